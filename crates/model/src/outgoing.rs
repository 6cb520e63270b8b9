//! A record on its way out: what is published, where, and the headers that say where it came from.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    AccountingResource, CompanyId, Epoch, Error, Key, RecordId, RemovalKind, Topic, Traceparent, Value,
    names::named,
};

/// A record to publish; encoding it and finding its partition is all that is left to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub topic: Topic,
    /// What it is about.
    pub key: Key,
    /// `None` is a tombstone.
    pub value: Option<Arc<Value>>,
    /// Where it came from.
    pub meta: RecordMeta,
    /// Milliseconds since 1970; `None` lets the producer stamp it.
    pub timestamp_ms: Option<i64>,
}

/// What the headers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordMeta {
    /// Stable id of the delivery or page item: a repetition has the same.
    pub id: String,
    /// What made us publish it.
    pub origin: Origin,
    /// The value's version; `None` takes the one that the value tells itself.
    pub version: Option<String>,
    /// Epoch of the version, for records.
    pub epoch: Option<Epoch>,
    /// Trace it belongs to; `None` gives it one of its own, derived from the id.
    pub traceparent: Option<Traceparent>,
}

named! {
    /// What made us publish a record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Origin {
        /// A delivery.
        Webhook = "webhook",
        /// A read because of an event.
        Enrichment = "enrichment",
        /// A row of a list.
        Snapshot = "snapshot",
        /// A read to close a gap.
        Repair = "repair",
    }
}

impl RecordMeta {
    /// Id and origin; the rest is filled in as it becomes known.
    pub fn new(id: impl Into<String>, origin: Origin) -> Self {
        Self { id: id.into(), origin, version: None, epoch: None, traceparent: None }
    }
}

impl Outgoing {
    /// Puts a value under the right key in the right topic, with its version in the headers. Events are
    /// stamped with the time we received them, so that retention counts from there.
    ///
    /// # Errors
    /// The key cannot be made ([`Value::key`]), a record's version cannot be compared ([`Value::version`]),
    /// or a [`Record`](super::Record) is of a resource whose topic holds another schema.
    pub fn new(value: Value, meta: RecordMeta) -> Result<Self, Error> {
        Self::shared(Arc::new(value), meta)
    }

    /// As [`Self::new`], of a value that others hold as well.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn shared(value: Arc<Value>, meta: RecordMeta) -> Result<Self, Error> {
        let key = value.key()?;
        Self::under(key, value, meta)
    }

    /// As [`Self::new`], under a key that the value need not tell itself.
    ///
    /// # Errors
    /// As [`Self::new`], but for the key.
    pub fn under(key: Key, value: Arc<Value>, meta: RecordMeta) -> Result<Self, Error> {
        let topic = value.topic();
        if topic.schema() != Some(value.schema()) {
            return Err(Error::Unplaceable { schema: value.schema(), member: "a resource of this schema" });
        }
        let (version, received_at) = match &*value {
            // An event is published whatever its version looks like: whoever reads it decides what to make of
            // it.
            Value::AccountingEvent(event) => (value.version().ok().flatten(), Some(event.received_at)),
            Value::InvoicingEvent(event) => (None, Some(event.received_at)),
            _ if meta.version.is_some() => (None, None),
            _ => (value.version()?, None),
        };
        let version = version.map(|version| version.to_string());
        Ok(Self {
            topic,
            key,
            meta: RecordMeta { version: version.or(meta.version), ..meta },
            value: Some(value),
            timestamp_ms: received_at.map(|micros| micros.div_euclid(1_000)),
        })
    }

    /// The end of a deleted record. Whether it may be written is decided by whoever read the provider's
    /// answers; here it is only refused for what is never deleted. `meta.version` is the deleting event's.
    ///
    /// # Errors
    /// Records of the resource are never deleted.
    pub fn tombstone(
        resource: AccountingResource,
        company: &CompanyId,
        id: &RecordId,
        meta: RecordMeta,
    ) -> Result<Self, Error> {
        if resource.ending() == RemovalKind::Disabled {
            return Err(Error::NeverDeleted { resource: resource.name() });
        }
        let key = Key::record(company, id);
        Ok(Self { topic: Topic::AccountingRecords(resource), key, value: None, meta, timestamp_ms: None })
    }

    /// The headers, in the order they are written.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, Bytes)> {
        let meta = &self.meta;
        let mut headers = Vec::with_capacity(5);
        headers.push(("tributary.id", Bytes::from(meta.id.clone())));
        headers.push(("tributary.origin", Bytes::from_static(meta.origin.name().as_bytes())));
        if let Some(version) = &meta.version {
            headers.push(("tributary.version", Bytes::from(version.clone())));
        }
        if let Some(Epoch(epoch)) = meta.epoch {
            headers.push(("tributary.epoch", Bytes::from(epoch.to_string())));
        }
        let traceparent = meta.traceparent.unwrap_or_else(|| Traceparent::derived(&meta.id));
        headers.push(("traceparent", Bytes::from(traceparent.to_string())));
        headers
    }
}
