//! Records to Confluent's wire format: a zero byte, the schema id in four bytes (big-endian), the Avro datum.
//!
//! No lock and no network: writers are resolved once per process, each thread has its own buffer, and an id is one atomic read of
//! a slot that [`Ids`] fills. A record that does not match its schema is an error and writes no bytes.

use std::{cell::Cell, collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use model::{SchemaKind, Value};

use super::{Error, Ids, ValueSubject, ids::IdSlot, schemas};

/// First byte of every framed record.
pub(crate) const MAGIC: u8 = 0;
/// Bytes before the datum.
pub(crate) const FRAME_BYTES: usize = 5;
/// A buffer that a huge record has grown beyond this is freed.
const MAX_KEPT_BYTES: usize = 1024 * 1024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes the records of a fixed set of topics; created once per connector and shared by its tasks.
#[derive(Debug)]
pub struct Encoder {
    slots: HashMap<Arc<str>, Arc<IdSlot>>,
}

impl Encoder {
    /// An encoder for these subjects. Their ids may arrive later: until then records are refused with the retriable
    /// [`Error::Unprepared`].
    #[must_use]
    pub fn new(ids: &Ids, subjects: &[ValueSubject]) -> Self {
        Self {
            slots: subjects.iter().map(|subject| (Arc::clone(&subject.topic), ids.slot(subject))).collect(),
        }
    }

    /// The framed bytes of `value` for `topic`.
    pub fn encode(&self, topic: &str, value: &Value) -> Result<Bytes, Error> {
        let slot = self.slots.get(topic).ok_or_else(|| Error::ForeignTopic { topic: topic.to_owned() })?;
        if slot.kind != value.schema() {
            return Err(Error::WrongSchema {
                topic: topic.to_owned(),
                takes: slot.kind.name(),
                given: value.schema().name(),
            });
        }
        let id = slot.id().ok_or_else(|| Error::Unprepared { topic: topic.to_owned() })?;
        frame_value(id, value)
    }
}

/// The framed bytes of `value` under schema id `id`.
pub fn frame_value(id: u32, value: &Value) -> Result<Bytes, Error> {
    frame(value.schema(), id, value)
}

/// As [`frame_value`], for anything whose members are the fields of the schema of this kind.
pub fn frame<T: Serialize>(kind: SchemaKind, id: u32, value: &T) -> Result<Bytes, Error> {
    let writer = &schemas::codec(kind)?.writer;
    // Taken, not borrowed: a `Serialize` that encodes another record meanwhile finds an empty buffer instead of panicking.
    let mut buffer = BUFFER.take();
    buffer.clear();
    buffer.push(MAGIC);
    buffer.extend_from_slice(&id.to_be_bytes());
    // The byte count it returns is wrong for some types; the length of the buffer is always right.
    let framed = writer
        .write_ser(&mut buffer, value)
        .map(|_| Bytes::copy_from_slice(&buffer))
        .map_err(|error| Error::Encode { schema: kind.name(), source: Arc::new(error) });
    if buffer.capacity() <= MAX_KEPT_BYTES {
        BUFFER.set(buffer);
    }
    framed
}

#[cfg(test)]
mod tests {
    use base::retry::Retry;

    use super::*;
    use crate::avro::{
        Registry,
        tests::{examples::example, stub::StubRegistry},
    };

    /// Bytes as lines of hex, so that a difference shows where it is.
    fn hex(bytes: &[u8]) -> String {
        let line = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        bytes.chunks(32).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn encoded_bytes_of_every_kind_never_change() {
        for kind in SchemaKind::ALL {
            let framed = frame_value(0x0102_0304, &example(kind)).unwrap();

            insta::assert_snapshot!(format!("golden_{}", kind.name()), hex(&framed));
        }
    }

    #[test]
    fn encode_buffer_is_clean_for_the_next_record() {
        let alone = frame_value(1, &example(SchemaKind::Account)).unwrap();
        let misfit = std::collections::BTreeMap::from([("companyId", 5_i32)]);

        let refused = frame(SchemaKind::Customer, 1, &misfit);
        frame_value(1, &example(SchemaKind::AccountingEvent)).unwrap();
        let after = frame_value(1, &example(SchemaKind::Account)).unwrap();

        assert!(matches!(refused, Err(Error::Encode { schema: "Customer", .. })), "{refused:?}");
        assert_eq!(after, alone);
    }

    #[tokio::test]
    async fn a_topic_is_encoded_under_its_subjects_id_once_it_has_one() {
        let stub = StubRegistry::start().await;
        stub.add("another-value", "\"string\"");
        let directory = tempfile::tempdir().unwrap();
        let ids = Ids::open(Registry::new(&stub.config()).unwrap(), directory.path()).await;
        let subject = ValueSubject::values_of("acme.accounting.customers", SchemaKind::Customer);
        let encoder = Encoder::new(&ids, std::slice::from_ref(&subject));
        let customer = example(SchemaKind::Customer);

        let before = encoder.encode("acme.accounting.customers", &customer).unwrap_err();
        ids.prepare(&[subject]).await.unwrap();
        let framed = encoder.encode("acme.accounting.customers", &customer).unwrap();

        assert!(matches!(before, Error::Unprepared { .. }), "{before:?}");
        assert_eq!(before.retry(), Retry::Later);
        assert_eq!(framed, frame_value(2, &customer).unwrap());
    }

    #[tokio::test]
    async fn a_record_of_another_schema_and_an_unknown_topic_are_refused() {
        let stub = StubRegistry::start().await;
        let directory = tempfile::tempdir().unwrap();
        let ids = Ids::open(Registry::new(&stub.config()).unwrap(), directory.path()).await;
        let subject = ValueSubject::values_of("acme.accounting.customers", SchemaKind::Customer);
        ids.prepare(std::slice::from_ref(&subject)).await.unwrap();
        let encoder = Encoder::new(&ids, &[subject]);

        let wrong = encoder.encode("acme.accounting.customers", &example(SchemaKind::Account)).unwrap_err();
        let unknown = encoder.encode("acme.elsewhere", &example(SchemaKind::Customer)).unwrap_err();

        assert_eq!(wrong.retry(), Retry::Never);
        assert!(wrong.to_string().contains("takes Customer, the record is Account"), "{wrong}");
        assert!(unknown.to_string().contains("acme.elsewhere"), "{unknown}");
    }
}
