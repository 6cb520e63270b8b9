//! Derives the read that an event asks for.

use model::{AccountingEvent, AccountingResource, CompanyId, EventKind, RecordId, SequenceVersion, Value};

use super::{GapFound, Subject};

/// The read that an event asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadRequest {
    /// Read a record.
    Wanted(Wanted),
    /// No read: the event reports no change.
    Nothing,
    /// The event is unusable: class and message of the error.
    Unusable(&'static str, String),
    /// Replaces events that were removed from their topic before they were read.
    Lost(GapFound),
}

/// A record that an event asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The record.
    pub subject: Subject,
    /// Lowest version that settles the event; `None` if the event carries none.
    pub floor: Option<SequenceVersion>,
    /// Whether the event reports a delete.
    pub is_delete: bool,
}

impl ReadRequest {
    /// Derives the request of an event.
    #[must_use]
    pub fn of(event: AccountingEvent) -> Self {
        if matches!(event.kind(), Some(EventKind::ErrorOccurred | EventKind::Acknowledge)) {
            return Self::Nothing;
        }
        let (resource, is_delete) = (event.resource, event.kind() == Some(EventKind::Deleted));
        let Some(id) = event.data.correlation_id.as_deref().and_then(|id| RecordId::new(id).ok()) else {
            let what = "the event names no record: CorrelationId in JsonData is missing or empty";
            return Self::Unusable("model::Error::Unplaceable", what.to_owned());
        };
        let company = match (&event.company_id, event.envelope.tenant_id.as_deref()) {
            (Some(company), _) => Some((company.clone(), true)),
            (None, Some(tenant)) => CompanyId::new(tenant).ok().map(|tenant| (tenant, false)),
            (None, None) => None,
        };
        let Some((company, in_company)) = company else {
            let what = "the event names neither a company nor a tenant";
            return Self::Unusable("model::Error::Unplaceable", what.to_owned());
        };
        // The record of a company itself is read without context, so that it can be read after the company was deleted.
        let in_company = in_company && resource != AccountingResource::Companies;
        let floor = match Value::from(event).version() {
            Ok(version) => version.and_then(|version| version.number().cloned()),
            Err(error) => return Self::Unusable("model::Error::Unversioned", error.to_string()),
        };
        Self::Wanted(Wanted { subject: Subject { resource, company, id, in_company }, floor, is_delete })
    }
}

#[cfg(test)]
mod tests {
    use model::Reception;

    use super::*;

    fn event(resource: AccountingResource, kind: &str, partition: &str, data: &str) -> ReadRequest {
        let data = serde_json::to_string(data).unwrap();
        let body = format!(
            r#"{{"TenantId":"t","ExtraPartitionInformation":{partition},"EventType":{{"EventType":"{kind}"}},"JsonData":{data}}}"#
        );
        let reception = Reception { connector: "hooks", received_at: 1 };
        ReadRequest::of(AccountingEvent::from_json(body.as_bytes(), resource, reception).unwrap())
    }

    const COMPANY: &str = r#"{"PartitionClientId":"c"}"#;

    #[test]
    fn event_asks_for_its_version_in_the_context_of_its_company() {
        let asked = event(
            AccountingResource::Charges,
            "ChargeDeleted",
            COMPANY,
            r#"{"CorrelationId":"r","SequenceVersion":"007"}"#,
        );

        let ReadRequest::Wanted(wanted) = asked else { panic!("{asked:?}") };
        assert_eq!(wanted.subject.key().as_str(), "c/r");
        assert_eq!(wanted.subject.context().map(CompanyId::as_str), Some("c"));
        assert_eq!(wanted.floor, SequenceVersion::parse("7").ok());
        assert!(wanted.is_delete);
    }

    #[test]
    fn records_without_a_company_are_read_without_context() {
        let data = r#"{"CorrelationId":"r"}"#;
        for (resource, partition, key) in [
            (AccountingResource::Persons, "null", "t/r"),
            (AccountingResource::Companies, COMPANY, "r/r"),
            (AccountingResource::Companies, "null", "r/r"),
        ] {
            let asked = event(resource, "XUpdated", partition, data);

            let ReadRequest::Wanted(wanted) = asked else { panic!("{asked:?}") };
            assert_eq!(
                (wanted.subject.key().as_str(), wanted.subject.context()),
                (key, None),
                "{resource:?}"
            );
            assert_eq!((wanted.floor, wanted.is_delete), (None, false));
        }
    }

    #[test]
    fn event_without_a_change_asks_for_nothing() {
        let data = r#"{"CorrelationId":"r","SequenceVersion":"1"}"#;
        for kind in ["ErrorOccurred", "Svc.ACC.Customers.ErrorOccurred", "Acknowledge"] {
            assert_eq!(
                event(AccountingResource::Customers, kind, COMPANY, data),
                ReadRequest::Nothing,
                "{kind}"
            );
        }
    }

    #[test]
    fn unusable_events_are_classified_by_cause() {
        for (data, class) in [
            (r#"{}"#, "model::Error::Unplaceable"),
            (r#"{"CorrelationId":""}"#, "model::Error::Unplaceable"),
            ("no JSON", "model::Error::Unplaceable"),
            (r#"{"CorrelationId":"r","SequenceVersion":"x7"}"#, "model::Error::Unversioned"),
            (r#"{"CorrelationId":"r","SequenceVersion":true}"#, "model::Error::Unversioned"),
        ] {
            let asked = event(AccountingResource::Customers, "CustomerUpdated", COMPANY, data);

            assert!(
                matches!(&asked, ReadRequest::Unusable(found, _) if *found == class),
                "{data}: {asked:?}"
            );
        }
    }
}
