//! What waits for longer than an offset may: a record of the state topic, so that the offset moves on.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use model::{AccountingResource, CompanyId, Key, Origin, RecordId, SequenceVersion};

use super::{Delete, Event, Source, Subject};
use crate::publish::Original;

/// The kind of its keys.
pub(super) const KIND: &str = "parked";

/// Why something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No read has reached the version of the event.
    Floor,
    /// The list does not show its company yet.
    Company,
    /// It cannot be read.
    Unreadable,
    /// The provider says that it is gone, and will be asked once more.
    Gone,
    /// Too much is deleted at once; a person has to look.
    Braked,
    /// Reads show less than was published before.
    Below,
    /// Its company has more to be read than fits.
    Busy,
    /// An earlier version parked it for a row of a list.
    Listed,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An event, or several of one record, that will be looked at again.
#[derive(Debug, Clone)]
pub struct Parked {
    /// Which record.
    pub subject: Subject,
    /// At least this version.
    pub floor: Option<SequenceVersion>,
    /// The newest delete that an event reports.
    pub deleted: Option<Delete>,
    /// Why.
    pub cause: Cause,
    /// Since when the first of the events has been waiting.
    pub since: i64,
    /// When it is looked at again.
    pub due: i64,
    /// Since when the provider says that it is gone.
    pub gone_since: Option<i64>,
    /// Since when reads show less than was published.
    pub below_since: Option<i64>,
    /// The event that asks for the most.
    pub event: Event,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    in_company: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor: Option<String>,
    #[serde(default)]
    is_delete: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted: Option<String>,
    cause: Cause,
    since: i64,
    due: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone_since: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    below_since: Option<i64>,
    event: WireEvent,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEvent {
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    received_at: i64,
    /// Absent where it is not known otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    happened_at: Option<i64>,
    /// Absent for an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<(String, i32, i64)>,
    /// Base64, as is the next.
    key: String,
    value: String,
}

impl Parked {
    /// The key of a record's entry, in its shard's partition.
    #[must_use]
    pub fn key(shard: i32, subject: &Subject) -> Key {
        let Subject { resource, company, id, .. } = subject;
        Key::shard_state(KIND, shard, &[resource.name(), company.as_str(), id.as_str()])
    }

    /// Its value, as JSON.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        let Source { original, id, trace, received_at, happened_at, origin } = &*self.event;
        let wire = Wire {
            in_company: self.subject.in_company,
            floor: self.floor.as_ref().map(|floor| floor.as_str().to_owned()),
            is_delete: self.deleted.is_some(),
            deleted: self
                .deleted
                .as_ref()
                .and_then(Delete::version)
                .map(|version| version.as_str().to_owned()),
            cause: self.cause,
            since: self.since,
            due: self.due,
            gone_since: self.gone_since,
            below_since: self.below_since,
            event: WireEvent {
                id: id.clone(),
                trace: trace.map(|trace| trace.to_string()),
                received_at: *received_at,
                happened_at: (happened_at != received_at).then_some(*happened_at),
                origin: (*origin != Origin::Enrichment).then(|| origin.name().to_owned()),
                place: original.place.clone(),
                key: BASE64.encode(&original.key),
                value: BASE64.encode(&original.value),
            },
        };
        serde_json::json!(wire).to_string().into()
    }

    /// Reads an entry; `None` for a key of another kind or shard.
    ///
    /// # Errors
    /// What is strange about it.
    pub fn parse(shard: i32, key: &str, value: &[u8]) -> Result<Option<Self>, String> {
        let Some(subject) = Self::subject(shard, key)? else { return Ok(None) };
        let wire: Wire = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        let version = |text: Option<String>| {
            text.map(SequenceVersion::parse).transpose().map_err(|error| error.to_string())
        };
        let bytes = |text: &str| BASE64.decode(text).map(Bytes::from).map_err(|error| error.to_string());
        let WireEvent { id, trace, received_at, happened_at, origin, place, key, value } = wire.event;
        let happened_at = happened_at.unwrap_or(received_at);
        let original = Original { key: bytes(&key)?, value: bytes(&value)?, place };
        let trace = trace.and_then(|trace| trace.parse().ok());
        let known = |name: &str| Origin::ALL.into_iter().find(|origin| origin.name() == name);
        let origin = origin.as_deref().and_then(known).unwrap_or(Origin::Enrichment);
        Ok(Some(Self {
            subject: Subject { in_company: wire.in_company, ..subject },
            floor: version(wire.floor)?,
            deleted: if wire.is_delete { Some(Delete::new(version(wire.deleted)?)) } else { None },
            cause: wire.cause,
            since: wire.since,
            due: wire.due,
            gone_since: wire.gone_since,
            below_since: wire.below_since,
            event: Arc::new(Source { original, id, trace, received_at, happened_at, origin }),
        }))
    }

    /// The record that an entry is about; `None` for a key of another kind or shard.
    ///
    /// # Errors
    /// What is strange about it.
    pub fn subject(shard: i32, key: &str) -> Result<Option<Subject>, String> {
        let parts = Key::parts(key).map_err(|error| error.to_string())?;
        let [kind, number, resource, company, id] = &parts[..] else { return Ok(None) };
        if kind != KIND || *number != shard.to_string() {
            return Ok(None);
        }
        let resource: AccountingResource = resource.parse().map_err(|_| format!("no resource {resource}"))?;
        let company = CompanyId::new(company.as_str()).map_err(|error| error.to_string())?;
        let id = RecordId::new(id.as_str()).map_err(|error| error.to_string())?;
        Ok(Some(Subject { resource, company, id, in_company: false }))
    }
}

#[cfg(test)]
mod tests {
    use model::Traceparent;

    use super::*;

    fn parked(deleted: Option<Delete>, happened_at: i64) -> Parked {
        let original = Original {
            key: Bytes::from_static(b"c"),
            value: Bytes::from_static(b"\x00\x01\xff"),
            place: Some(("p.accounting.charges.events".into(), 3, 17)),
        };
        let trace = Some(Traceparent::derived("x"));
        Parked {
            subject: Subject {
                resource: AccountingResource::Charges,
                company: CompanyId::new("a/b").unwrap(),
                id: RecordId::new("r%1").unwrap(),
                in_company: true,
            },
            floor: SequenceVersion::parse("007").ok(),
            deleted,
            cause: Cause::Gone,
            since: 1,
            due: 2,
            gone_since: Some(3),
            below_since: None,
            event: Arc::new(Source {
                original,
                id: "delivery".into(),
                trace,
                received_at: 4,
                happened_at,
                origin: Origin::Snapshot,
            }),
        }
    }

    #[test]
    fn what_is_parked_reads_back_to_the_byte() {
        for (deleted, happened_at) in [
            (None, 4),
            (Some(Delete::Unversioned), 3),
            (Some(Delete::new(SequenceVersion::parse("9").ok())), 2),
        ] {
            let parked = parked(deleted, happened_at);
            let key = Parked::key(3, &parked.subject);

            let back = Parked::parse(3, key.as_str(), &parked.to_json()).unwrap().unwrap();

            assert_eq!(key.as_str(), "parked/3/charges/a%2Fb/r%251");
            assert_eq!(format!("{back:?}"), format!("{parked:?}"));
        }
    }

    #[test]
    fn what_is_of_another_kind_or_shard_is_left_out_and_what_is_broken_is_told() {
        let value = parked(None, 4).to_json();
        assert!(Parked::parse(4, "parked/3/charges/c/r", &value).unwrap().is_none());
        assert!(Parked::parse(3, "page/3/charges/c/r", &value).unwrap().is_none());
        assert!(Parked::parse(3, "batch/3", &value).unwrap().is_none());
        assert!(Parked::parse(3, "parked/3/nothing/c/r", &value).is_err());
        assert!(Parked::parse(3, "parked/3/charges/c/r", b"{}").is_err());
    }
}
