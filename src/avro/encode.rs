//! Records to Confluent's wire format: a zero byte, the schema id in four bytes (big-endian), the Avro datum.
//!
//! No lock and no network: writers are resolved once for the process, each thread has its own buffer, and an id is one
//! atomic read of a slot that [`Ids`] fills. A record that does not fit its schema is an error and leaves no bytes behind.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use super::{Error, Ids, Subject, ids::Slot, schemas};
use crate::model::{SchemaKind, Value};

/// First byte of every framed record.
pub(crate) const MAGIC: u8 = 0;
/// Bytes before the datum.
pub(crate) const FRAME_BYTES: usize = 5;
/// A buffer that one huge record has grown beyond this is given back.
const MAX_KEPT_BYTES: usize = 1024 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encodes the records of a fixed set of topics; made once per connector and shared by its tasks.
#[derive(Debug)]
pub struct Encoder {
    slots: HashMap<Arc<str>, Arc<Slot>>,
}

impl Encoder {
    /// An encoder for these subjects. Their ids may come later: until then records are refused as
    /// [`Error::Unprepared`], which is retriable.
    #[must_use]
    pub fn new(ids: &Ids, subjects: &[Subject]) -> Self {
        Self { slots: subjects.iter().map(|subject| (subject.topic(), ids.slot(subject))).collect() }
    }

    /// The framed bytes of `value` for `topic`.
    pub fn encode(&self, topic: &str, value: &Value) -> Result<Bytes, Error> {
        let slot = self.slots.get(topic).ok_or_else(|| Error::Unprepared { topic: topic.to_owned() })?;
        if slot.kind() != value.schema() {
            return Err(Error::WrongSchema {
                topic: topic.to_owned(),
                takes: slot.kind().name(),
                given: value.schema().name(),
            });
        }
        let id = slot.id().ok_or_else(|| Error::Unprepared { topic: topic.to_owned() })?;
        frame_value(id, value)
    }
}

/// The framed bytes of `value` under schema id `id`.
pub fn frame_value(id: u32, value: &Value) -> Result<Bytes, Error> {
    let kind = value.schema();
    match value {
        Value::AccountingEvent(event) => frame(kind, id, event),
        Value::InvoicingEvent(event) => frame(kind, id, event),
        Value::Company(company) => frame(kind, id, company),
        Value::Customer(customer) => frame(kind, id, customer),
        Value::Account(account) => frame(kind, id, account),
        Value::Record(record) => frame(kind, id, record),
        Value::PayrollCompany(company) => frame(kind, id, company),
        Value::Certificate(certificate) => frame(kind, id, certificate),
    }
}

/// As [`frame_value`], for anything whose members are the fields of the schema of this kind.
pub fn frame<T: Serialize>(kind: SchemaKind, id: u32, value: &T) -> Result<Bytes, Error> {
    let writer = schemas::writer(kind)?;
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        buffer.push(MAGIC);
        buffer.extend_from_slice(&id.to_be_bytes());
        // The byte count it returns is wrong for some types; the buffer's own length is right for all.
        writer
            .write_ser(buffer, value)
            .map_err(|error| Error::Encode { schema: kind.name(), source: Arc::new(error) })?;
        let framed = Bytes::copy_from_slice(buffer);
        if buffer.capacity() > MAX_KEPT_BYTES {
            *buffer = Vec::new();
        }
        Ok(framed)
    })
}
