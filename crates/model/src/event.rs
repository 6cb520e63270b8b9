//! A notification of the accounting family: the record of `schemas/AccountingEvent.avsc`.

use serde::{Deserialize, Serialize};

use super::{
    AccountingResource, CompanyId, Error, Moment, SchemaKind, SequenceVersion,
    members::{Members, nested_objects, provider_object},
};

/// Longest plausible delivery time in microseconds: a day of redeliveries.
const MAX_DELIVERY_MICROS: i64 = 86_400_000_000;

/// Outcome in the words of [`EventKind::outcome`] of an event that reports none of the others.
const OTHER_OUTCOME: &str = "other";

/// Where and when a delivery was received.
#[derive(Debug, Clone, Copy)]
pub struct Reception<'a> {
    /// Name of the connector that received it.
    pub connector: &'a str,
    /// Microseconds since 1970.
    pub received_at: i64,
}

/// A change of a record. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountingEvent {
    /// Name of the connector that received the delivery.
    pub connector: String,
    /// Resource the webhook is for, in the words of the topics, such as `input-invoices`.
    pub resource: AccountingResource,
    /// When the delivery was received, microseconds since 1970.
    pub received_at: i64,
    /// Correlation id of the company concerned.
    pub company_id: Option<CompanyId>,
    /// The envelope's `timestamp` as microseconds since 1970, if the provider counts in UTC, which it does not say.
    pub timestamp_at: Option<i64>,
    /// The body.
    #[serde(flatten)]
    pub envelope: AccountingEnvelope,
    /// Parsed from the envelope's `json_data`.
    #[serde(flatten)]
    pub data: AccountingData,
}

provider_object! {
    /// The body of a delivery.
    pub struct AccountingEnvelope {
        /// Id of the subscription that fired (`WebhookId`).
        webhook_id: Option<String> = text "WebhookId",
        /// Id of this delivery (`OutgoingId`).
        outgoing_id: Option<String> = text "OutgoingId",
        /// Provider's `ConversationId`.
        conversation_id: Option<String> = text "ConversationId",
        /// Provider's `TenantId`.
        tenant_id: Option<String> = text "TenantId",
        /// Provider's `ExtraPartitionInformation`.
        extra_partition_information: Option<ExtraPartitionInformation> = nested "ExtraPartitionInformation",
        /// Provider's `EventType`.
        event_type: Option<AccountingEventType> = nested "EventType",
        /// Provider's `Timestamp`: ticks of 100 nanoseconds.
        timestamp: Option<i64> = integer "Timestamp",
        /// Provider's `JsonData`, the text as sent: itself a JSON document.
        json_data: Option<String> = text "JsonData",
        /// Provider's `UserIdentifier`.
        user_identifier: Option<String> = text "UserIdentifier",
    }
}

/// Members of `JsonData`; each is `None` if that is not a JSON object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountingData {
    /// Id of the record that changed (`CorrelationId`).
    pub correlation_id: Option<String>,
    /// `Version`: a time as text in a format the provider does not state.
    pub version: Option<String>,
    /// `SequenceVersion`: the revision the change led to.
    pub sequence_version: Option<String>,
    /// `sequenceVersion` as a number.
    pub sequence: Option<i64>,
    /// `SvcSourceInterface`.
    pub svc_source_interface: Option<String>,
    /// `SvcProcessId`.
    pub svc_process_id: Option<String>,
    /// `SvcSourceAction`.
    pub svc_source_action: Option<String>,
}

provider_object! {
    /// Whose data changed.
    pub struct ExtraPartitionInformation {
        /// Correlation id of the company (`PartitionClientId`).
        partition_client_id: Option<String> = text "PartitionClientId",
        /// User who made the change (`UserName`).
        user_name: Option<String> = text "UserName",
    }
}

provider_object! {
    /// What happened, in the provider's words.
    pub struct AccountingEventType {
        /// Provider's `AppName`.
        app_name: Option<String> = text "AppName",
        /// Provider's `Domain`.
        domain: Option<String> = text "Domain",
        /// Provider's `Resource`.
        resource: Option<String> = text "Resource",
        /// Provider's `EventType`, such as `CustomerUpdated`.
        event_type: Option<String> = text "EventType",
        /// The four others joined by dots (`SemanticName`), such as `Svc.ACC.Customers.CustomerUpdated`.
        semantic_name: Option<String> = text "SemanticName",
    }
}

nested_objects!(ExtraPartitionInformation, AccountingEventType);

impl AccountingEvent {
    /// Parses a delivery's body. `resource` is the one the webhook was subscribed for: the provider documents its own names for
    /// two resources only.
    ///
    /// A `JsonData` that is not a JSON object is kept as text, and the fields parsed from it are null.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub fn from_json(
        json: &[u8],
        resource: AccountingResource,
        reception: Reception<'_>,
    ) -> Result<Self, Error> {
        Self::read(json, reception, |_| Some(resource))
    }

    /// Parses the body of a delivery whose resource is not certain: the name in the signed body counts first, then `subscribed`.
    ///
    /// # Errors
    /// The body is not a JSON object, or the resource, and so the topic, is unknown.
    pub fn from_delivery(
        json: &[u8],
        subscribed: Option<AccountingResource>,
        reception: Reception<'_>,
    ) -> Result<Self, Error> {
        Self::read(json, reception, |event_type| {
            let named = event_type.and_then(|event_type| event_type.resource.as_deref());
            named.and_then(AccountingResource::from_provider).or(subscribed)
        })
    }

    /// The subscription that a body acknowledges, if it is an `Acknowledge`. It need not name a resource: it is not published, so
    /// it needs no topic.
    #[must_use]
    pub fn acknowledged(json: &[u8]) -> Option<Option<String>> {
        let members = Members::parse(SchemaKind::AccountingEvent, json).ok()?;
        let envelope = AccountingEnvelope::from_members(members);
        (envelope.event_type?.kind()? == EventKind::Acknowledge).then_some(envelope.webhook_id)
    }

    fn read(
        json: &[u8],
        reception: Reception<'_>,
        resource: impl FnOnce(Option<&AccountingEventType>) -> Option<AccountingResource>,
    ) -> Result<Self, Error> {
        let envelope = AccountingEnvelope::from_members(Members::parse(SchemaKind::AccountingEvent, json)?);
        let resource = resource(envelope.event_type.as_ref()).ok_or(Error::Unplaceable {
            schema: SchemaKind::AccountingEvent,
            member: "EventType.Resource",
        })?;
        let data = AccountingData::parse(envelope.json_data.as_deref());
        let partition = envelope.extra_partition_information.as_ref();
        Ok(Self {
            connector: reception.connector.to_owned(),
            resource,
            received_at: reception.received_at,
            company_id: company(resource, partition, data.correlation_id.as_deref()),
            timestamp_at: envelope.timestamp.and_then(Moment::from_ticks).map(Moment::micros),
            envelope,
            data,
        })
    }

    /// The original body, without our fields.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.envelope.to_json()
    }

    /// When the change happened, in microseconds since 1970: the provider's `Timestamp` if plausible, else the time of receipt. A
    /// `Timestamp` after the receipt is not plausible: the provider may use a local time that is ahead.
    #[must_use]
    pub fn happened_at(&self) -> i64 {
        let earliest = self.received_at.saturating_sub(MAX_DELIVERY_MICROS);
        let can_be = |at: &i64| (earliest..=self.received_at).contains(at);
        self.timestamp_at.filter(can_be).unwrap_or(self.received_at)
    }

    /// Whether `JsonData` has a value under this name.
    pub(super) fn data_has_value(&self, name: &str) -> bool {
        data(self.envelope.json_data.as_deref()).has_value(name)
    }

    /// What happened; `None` if the provider does not say.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        self.envelope.event_type.as_ref()?.kind()
    }

    /// What it reports of a write, in one word ([`EventKind::outcome`]).
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        self.kind().map_or(OTHER_OUTCOME, |kind| kind.outcome())
    }
}

impl AccountingData {
    fn parse(json_data: Option<&str>) -> Self {
        let mut data = data(json_data);
        let sequence_version = data.digits("SequenceVersion");
        Self {
            correlation_id: data.text("CorrelationId"),
            version: data.text("Version"),
            sequence: sequence(sequence_version.as_deref()),
            sequence_version,
            svc_source_interface: data.text("SvcSourceInterface"),
            svc_process_id: data.text("SvcProcessId"),
            svc_source_action: data.text("SvcSourceAction"),
        }
    }
}

impl AccountingEventType {
    fn kind(&self) -> Option<EventKind> {
        let name = self.event_type.as_deref().filter(|name| !name.is_empty());
        name.or(self.semantic_name.as_deref()).map(EventKind::parse)
    }
}

/// What an accounting event reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A subscription was created or moved; it must be answered with 200.
    Acknowledge,
    /// A record was created.
    Created,
    /// A record was changed.
    Updated,
    /// A record was deleted.
    Deleted,
    /// A record that cannot be deleted was disabled.
    Disabled,
    /// The provider failed to do something; there is nothing to fetch.
    ErrorOccurred,
    /// None of these: the text as sent.
    Unknown(String),
}

impl EventKind {
    /// From an `EventType` (`CustomerUpdated`) or a `SemanticName` (`Svc.ACC.Customers.CustomerUpdated`): the ending of the last
    /// part decides, since only the full names for accounts and customers are documented. An `Acknowledge` must be the whole last
    /// part: it is answered and not published, which must not happen to an event with a similar name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let last = text.rsplit('.').next().unwrap_or(text);
        if last == "Acknowledge" {
            return Self::Acknowledge;
        }
        let kinds: [(&str, Self); 5] = [
            ("ErrorOccurred", Self::ErrorOccurred),
            ("Created", Self::Created),
            ("Updated", Self::Updated),
            ("Deleted", Self::Deleted),
            ("Disabled", Self::Disabled),
        ];
        kinds
            .into_iter()
            .find(|(ending, _)| last.ends_with(ending))
            .map_or_else(|| Self::Unknown(text.to_owned()), |(_, kind)| kind)
    }

    /// What an event of this kind reports of a write, in one word, for metrics and commands.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
            Self::Disabled => "disabled",
            Self::ErrorOccurred => "error",
            Self::Acknowledge | Self::Unknown(_) => OTHER_OUTCOME,
        }
    }
}

/// The members of `JsonData`, none if it is not a JSON object. Its text is kept too, so nothing is lost.
fn data(json_data: Option<&str>) -> Members<'_> {
    let parsed = json_data.map(|json| Members::parse(SchemaKind::AccountingEvent, json.as_bytes()));
    parsed.and_then(Result::ok).unwrap_or_default()
}

/// The company of an event. Events about a company name it as the changed record.
fn company(
    resource: AccountingResource,
    partition: Option<&ExtraPartitionInformation>,
    correlation_id: Option<&str>,
) -> Option<CompanyId> {
    let own = correlation_id.filter(|_| resource == AccountingResource::Companies);
    let named = partition.and_then(|partition| partition.partition_client_id.as_deref());
    [own, named].into_iter().flatten().find_map(|id| CompanyId::new(id).ok())
}

/// A sequence version as a number.
pub(super) fn sequence(text: Option<&str>) -> Option<i64> {
    SequenceVersion::parse(text?).ok()?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_comes_from_the_body_or_else_the_subscription() {
        use AccountingResource::{Customers, InputInvoices, Persons};
        let reception = Reception { connector: "hooks", received_at: 0 };
        let read = |named: &str, subscribed| {
            let json = format!(r#"{{"EventType":{{"Resource":"{named}"}}}}"#);
            AccountingEvent::from_delivery(json.as_bytes(), subscribed, reception).map(|event| event.resource)
        };

        assert_eq!(read("Customers", Some(Persons)), Ok(Customers));
        assert_eq!(read("inputInvoices", None), Ok(InputInvoices));
        assert_eq!(read("Something new", Some(Persons)), Ok(Persons));
        let nothing = read("Something new", None).unwrap_err().to_string();
        assert!(nothing.contains("EventType.Resource"), "{nothing}");
        let bare = AccountingEvent::from_delivery(b"{}", Some(Persons), reception);
        assert_eq!(bare.map(|event| event.resource), Ok(Persons));
    }

    #[test]
    fn event_time_is_the_providers_if_plausible() {
        const HOUR: i64 = 3_600_000_000;
        let received_at = 1_714_979_289_000_000;
        // Ticks of .NET count from year 1.
        let ticks = |micros: i64| (micros * 10 + 621_355_968_000_000_000).to_string();
        for (timestamp, happened_at) in [
            (ticks(received_at - 1_500_000), received_at - 1_500_000),
            (ticks(received_at), received_at),
            (ticks(received_at - 23 * HOUR), received_at - 23 * HOUR),
            // Two hours east of Greenwich; another age; no count of ticks; nothing.
            (ticks(received_at + 2 * HOUR), received_at),
            (ticks(received_at - 25 * HOUR), received_at),
            ("1714979289".to_owned(), received_at),
            ("null".to_owned(), received_at),
        ] {
            let json = format!(r#"{{"Timestamp":{timestamp}}}"#);
            let reception = Reception { connector: "hooks", received_at };
            let event =
                AccountingEvent::from_json(json.as_bytes(), AccountingResource::Charges, reception).unwrap();

            assert_eq!(event.happened_at(), happened_at, "{timestamp}");
        }
    }

    #[test]
    fn acknowledge_needs_no_resource() {
        for (json, expected) in [
            (r#"{"WebhookId":"w","EventType":{"EventType":"Acknowledge"}}"#, Some(Some("w".to_owned()))),
            (
                r#"{"EventType":{"Resource":"Customers","SemanticName":"Svc.ACC.Customers.Acknowledge"}}"#,
                Some(None),
            ),
            (r#"{"WebhookId":"w","EventType":{"EventType":"CustomerUpdated"}}"#, None),
            (r#"{"WebhookId":"w"}"#, None),
            ("Acknowledge", None),
        ] {
            assert_eq!(AccountingEvent::acknowledged(json.as_bytes()), expected, "{json}");
        }
    }

    #[test]
    fn event_kind_is_the_ending_of_its_name() {
        for (text, kind) in [
            ("Acknowledge", EventKind::Acknowledge),
            ("Svc.ACC.Customers.Acknowledge", EventKind::Acknowledge),
            ("PaymentAcknowledge", EventKind::Unknown("PaymentAcknowledge".into())),
            ("Svc.ACC.Accounts.AccountCreated", EventKind::Created),
            ("InputInvoiceUpdated", EventKind::Updated),
            ("Svc.COR.Persons.PersonDeleted", EventKind::Deleted),
            ("SupplierDisabled", EventKind::Disabled),
            ("Svc.ACC.Customers.ErrorOccurred", EventKind::ErrorOccurred),
            ("Svc.Deleted.Customers.Moved", EventKind::Unknown("Svc.Deleted.Customers.Moved".into())),
            ("", EventKind::Unknown(String::new())),
        ] {
            assert_eq!(EventKind::parse(text), kind, "{text}");
        }
    }

    #[test]
    fn outcome_of_an_event_is_one_word() {
        let reception = Reception { connector: "hooks", received_at: 0 };
        for (event_type, outcome) in [
            (r#"{"EventType":"ChargeCreated"}"#, "created"),
            (r#"{"SemanticName":"Svc.ACC.Charges.ChargeUpdated"}"#, "updated"),
            (r#"{"EventType":"ChargeDeleted"}"#, "deleted"),
            (r#"{"EventType":"SupplierDisabled"}"#, "disabled"),
            (r#"{"EventType":"ErrorOccurred"}"#, "error"),
            (r#"{"EventType":"ChargeMoved"}"#, "other"),
            ("{}", "other"),
            ("null", "other"),
        ] {
            let json = format!(r#"{{"EventType":{event_type}}}"#);
            let event =
                AccountingEvent::from_json(json.as_bytes(), AccountingResource::Charges, reception).unwrap();

            assert_eq!(event.outcome(), outcome, "{event_type}");
        }
    }
}
