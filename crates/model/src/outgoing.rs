//! A record to publish: its topic, key, value, and the headers that say where it came from.

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

/// The content of the headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordMeta {
    /// Stable id of the delivery or page item; a repetition has the same one.
    pub id: String,
    /// Why it is published.
    pub origin: Origin,
    /// The value's version; `None` uses the one in the value.
    pub version: Option<String>,
    /// Epoch of the version, for records.
    pub epoch: Option<Epoch>,
    /// Its trace; `None` derives one from the id.
    pub traceparent: Option<Traceparent>,
}

named! {
    /// Why a record is published.
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
    /// With id and origin only.
    pub fn new(id: impl Into<String>, origin: Origin) -> Self {
        Self { id: id.into(), origin, version: None, epoch: None, traceparent: None }
    }
}

impl Outgoing {
    /// Gives a value its topic, key and version header. The timestamp of an event is its time of receipt, so that retention counts
    /// from there.
    ///
    /// # Errors
    /// The key cannot be built ([`Value::key`]), a record's version cannot be compared ([`Value::version`]), or the topic of a
    /// [`Record`](super::Record)'s resource has another schema.
    pub fn new(value: Value, meta: RecordMeta) -> Result<Self, Error> {
        Self::shared(Arc::new(value), meta)
    }

    /// As [`Self::new`], for a shared value.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn shared(value: Arc<Value>, meta: RecordMeta) -> Result<Self, Error> {
        let key = value.key()?;
        Self::under(key, value, meta)
    }

    /// As [`Self::new`], with an explicit key.
    ///
    /// # Errors
    /// As [`Self::new`], except for the key.
    pub fn under(key: Key, value: Arc<Value>, meta: RecordMeta) -> Result<Self, Error> {
        let topic = value.topic();
        if topic.schema() != Some(value.schema()) {
            return Err(Error::Unplaceable { schema: value.schema(), member: "a resource of this schema" });
        }
        let (version, received_at) = match &*value {
            // An event is published whatever its version looks like; its consumers decide what to do.
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

    /// The tombstone of a deleted record. The caller decides whether the record is deleted; only resources that are never deleted
    /// are refused here. `meta.version` is that of the deleting event.
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

    /// The headers, in the order in which they are written.
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
