//! Parked records: requests that would hold back an offset for too long are written to the state topic, so that the offset moves on.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use model::{AccountingResource, CompanyId, Key, Origin, RecordId, SequenceVersion};

use super::{Delete, Event, Source, Subject};
use crate::publish::Original;

/// First part of the keys.
pub(super) const KIND: &str = "parked";

/// Why a record is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkCause {
    /// No read has reached the version of the event.
    Floor,
    /// The list does not show its company yet.
    Company,
    /// Reading it fails.
    Unreadable,
    /// The provider says that it is gone; a second answer must confirm that.
    Gone,
    /// Too many records are deleted at once; an operator has to decide.
    Braked,
    /// Reads show an older version than the published one.
    Below,
    /// It waits for its turn, or for the second read of a record without a version.
    Busy,
    /// An earlier version of Tributary parked the record for a row of a list. Rows are no longer parked.
    Listed,
}

impl fmt::Display for ParkCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A parked record, with what its events ask for.
#[derive(Debug, Clone)]
pub struct Parked {
    /// The record.
    pub subject: Subject,
    /// A read must show at least this version.
    pub floor: Option<SequenceVersion>,
    /// The newest delete that an event reports.
    pub deleted: Option<Delete>,
    /// Why it is parked.
    pub cause: ParkCause,
    /// Since when that version or delete is requested, microseconds since 1970.
    pub since: i64,
    /// When it is read next, microseconds since 1970.
    pub due: i64,
    /// Since when the provider answers that it is gone, microseconds since 1970.
    pub gone_since: Option<i64>,
    /// Since when reads show an older version than the published one, microseconds since 1970.
    pub below_since: Option<i64>,
    /// The event with the highest version.
    pub event: Event,
}

/// JSON in the state topic.
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
    cause: ParkCause,
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
    /// Absent if it equals `received_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    happened_at: Option<i64>,
    /// Absent for events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<(String, i32, i64)>,
    /// Base64.
    key: String,
    /// Base64.
    value: String,
}

impl Parked {
    /// Key of a record in the state topic.
    #[must_use]
    pub fn key(shard: i32, subject: &Subject) -> Key {
        let Subject { resource, company, id, .. } = subject;
        Key::shard_state(KIND, shard, &[resource.name(), company.as_str(), id.as_str()])
    }

    /// Value in the state topic.
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

    /// Parses an entry of the state topic; `None` for a key of another kind or shard.
    ///
    /// # Errors
    /// Describes why key or value are invalid.
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

    /// The record that a key of the state topic names; `None` for a key of another kind or shard.
    ///
    /// # Errors
    /// Describes why the key is invalid.
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
            cause: ParkCause::Gone,
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
    fn parked_record_round_trips() {
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
    fn parse_skips_foreign_keys_and_rejects_broken_entries() {
        let value = parked(None, 4).to_json();
        assert!(Parked::parse(4, "parked/3/charges/c/r", &value).unwrap().is_none());
        assert!(Parked::parse(3, "page/3/charges/c/r", &value).unwrap().is_none());
        assert!(Parked::parse(3, "batch/3", &value).unwrap().is_none());
        assert!(Parked::parse(3, "parked/3/nothing/c/r", &value).is_err());
        assert!(Parked::parse(3, "parked/3/charges/c/r", b"{}").is_err());
    }
}
