//! Confluent's wire format to records: the writer's schema is fetched by id, its datum resolved to today's schema.
//!
//! Old records stay readable because every registered version is: what [`super::Registry::register`] checked on the way in
//! is used here on the way out. Anything else is [`Error::Malformed`] and final: another magic byte, an id the registry
//! does not know, a datum that ends early or goes on. A registry that is away makes the error retriable.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, PoisonError, RwLock},
};

use apache_avro::{Schema, from_value, reader::datum::GenericDatumReader, types, util::max_allocation_bytes};
use schema_registry_converter::schema_registry_common::SchemaType;
use serde::de::DeserializeOwned;

use super::{
    Error, Registry,
    encode::{FRAME_BYTES, MAGIC},
    schemas,
};
use crate::model::{SchemaKind, Value};

/// Writer schemas kept; a topic sees a handful in its life.
const MAX_SCHEMAS: usize = 512;
/// Most a length inside a datum may claim: above any record Kafka takes, far below what would hurt.
const MAX_ALLOCATION_BYTES: usize = 64 * 1024 * 1024;

/// Decodes framed records; shared by all who read.
#[derive(Debug)]
pub struct Decoder {
    registry: Registry,
    schemas: RwLock<Cache>,
}

/// By id. The oldest goes first when full: ids are never given twice, so any entry is as good as on its first day.
#[derive(Debug, Default)]
struct Cache {
    schemas: HashMap<u32, Arc<Writer>>,
    order: VecDeque<u32>,
}

/// A schema that records were written with.
#[derive(Debug)]
struct Writer {
    schema: Schema,
    /// The schema of ours it equals; then nothing has to be resolved. That is the usual case by far.
    own: Option<SchemaKind>,
}

impl Writer {
    fn new(schema: Schema) -> Self {
        let equals = |kind: &SchemaKind| schemas::embedded(*kind).is_ok_and(|ours| ours.schema == schema);
        Self { own: SchemaKind::ALL.iter().copied().find(equals), schema }
    }
}

impl Decoder {
    /// A decoder that fetches writer schemas from `registry`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        // Counts for the process and only once; apache-avro's own default is eight times as much.
        max_allocation_bytes(MAX_ALLOCATION_BYTES);
        Self { registry, schemas: RwLock::default() }
    }

    /// The schema id and the record of this kind in `framed`.
    pub async fn decode(&self, kind: SchemaKind, framed: &[u8]) -> Result<(u32, Value), Error> {
        let (id, value) = self.resolve(kind, framed).await?;
        Ok((id, of_kind(kind, id, value)?))
    }

    /// As [`Decoder::decode`], into any type whose members are the fields of the schema.
    pub async fn decode_as<T: DeserializeOwned>(
        &self,
        kind: SchemaKind,
        framed: &[u8],
    ) -> Result<(u32, T), Error> {
        let (id, value) = self.resolve(kind, framed).await?;
        Ok((id, typed(kind, id, value)?))
    }

    async fn resolve(&self, kind: SchemaKind, framed: &[u8]) -> Result<(u32, types::Value), Error> {
        let (id, datum) = unframe(kind, framed)?;
        let writer = self.writer_schema(kind, id).await?;
        Ok((id, read(kind, id, &writer, datum)?))
    }

    async fn writer_schema(&self, kind: SchemaKind, id: u32) -> Result<Arc<Writer>, Error> {
        let known = self.schemas.read().unwrap_or_else(PoisonError::into_inner).schemas.get(&id).cloned();
        if let Some(writer) = known {
            return Ok(writer);
        }
        let malformed =
            |rule: &str, source| Error::Malformed { attempt: attempt(kind, id), rule: rule.into(), source };
        let found = self.registry.schema(id).await?;
        let found = found.ok_or_else(|| malformed("the registry does not know this schema id", None))?;
        if found.schema_type != SchemaType::Avro {
            return Err(malformed("the registry has this id for a schema that is not Avro", None));
        }
        let schema = Schema::parse_str(&found.schema)
            .map_err(|error| malformed("the registered schema cannot be parsed", Some(Arc::new(error))))?;
        let writer = Arc::new(Writer::new(schema));
        self.schemas.write().unwrap_or_else(PoisonError::into_inner).put(id, Arc::clone(&writer));
        Ok(writer)
    }
}

impl Cache {
    fn put(&mut self, id: u32, writer: Arc<Writer>) {
        if self.schemas.insert(id, writer).is_some() {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_SCHEMAS
            && let Some(oldest) = self.order.pop_front()
        {
            self.schemas.remove(&oldest);
        }
    }
}

/// Schema id and datum.
fn unframe(kind: SchemaKind, framed: &[u8]) -> Result<(u32, &[u8]), Error> {
    let malformed = |rule: String| Error::Malformed {
        attempt: format!("decode a record as {}", kind.name()),
        rule,
        source: None,
    };
    match framed.split_first_chunk::<FRAME_BYTES>() {
        Some(([MAGIC, id @ ..], datum)) => Ok((u32::from_be_bytes(*id), datum)),
        Some(([other, ..], _)) => Err(malformed(format!("the first byte must be {MAGIC}, not {other}"))),
        None => Err(malformed(format!("{} bytes are fewer than a frame's {FRAME_BYTES}", framed.len()))),
    }
}

/// The datum as a value of today's schema.
fn read(kind: SchemaKind, id: u32, writer: &Writer, mut datum: &[u8]) -> Result<types::Value, Error> {
    let malformed =
        |rule: &str, source| Error::Malformed { attempt: attempt(kind, id), rule: rule.into(), source };
    let result = if writer.own == Some(kind) {
        schemas::reader(kind)?.read_value(&mut datum)
    } else {
        GenericDatumReader::builder(&writer.schema)
            .reader_schema(&schemas::embedded(kind)?.schema)
            .human_readable(false)
            .build()
            .and_then(|reader| reader.read_value(&mut datum))
    };
    let value = result.map_err(|error| {
        malformed("the datum does not fit the schema it names, or ends early", Some(Arc::new(error)))
    })?;
    if datum.is_empty() {
        return Ok(value);
    }
    let left = io::Error::other(format!("{} bytes are left over", datum.len()));
    Err(malformed("the datum goes on after its schema ends", Some(Arc::new(left))))
}

fn of_kind(kind: SchemaKind, id: u32, value: types::Value) -> Result<Value, Error> {
    Ok(match kind {
        SchemaKind::AccountingEvent => Value::AccountingEvent(typed(kind, id, value)?),
        SchemaKind::InvoicingEvent => Value::InvoicingEvent(typed(kind, id, value)?),
        SchemaKind::Company => Value::Company(typed(kind, id, value)?),
        SchemaKind::Customer => Value::Customer(typed(kind, id, value)?),
        SchemaKind::Account => Value::Account(typed(kind, id, value)?),
        SchemaKind::Record => Value::Record(typed(kind, id, value)?),
        SchemaKind::PayrollCompany => Value::PayrollCompany(typed(kind, id, value)?),
        SchemaKind::Certificate => Value::Certificate(typed(kind, id, value)?),
    })
}

fn typed<T: DeserializeOwned>(kind: SchemaKind, id: u32, value: types::Value) -> Result<T, Error> {
    from_value(&value).map_err(|error| Error::Malformed {
        attempt: attempt(kind, id),
        rule: "the record does not have this schema's fields".into(),
        source: Some(Arc::new(error)),
    })
}

fn attempt(kind: SchemaKind, id: u32) -> String {
    format!("decode a record as {} with schema id {id}", kind.name())
}

#[cfg(test)]
mod tests;
