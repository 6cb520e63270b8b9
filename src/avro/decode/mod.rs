//! Confluent's wire format to records: the writer's schema is fetched by id, its datum resolved to today's schema.
//!
//! Old records stay readable, because [`super::Registry::register`] checks that our schema reads every registered version. Anything
//! else is [`Error::Malformed`] and final: another magic byte, an id the registry does not know, a writer's schema that ours cannot
//! read or that sets no bounds, a datum that is too short or too long. While the registry is unavailable the error is retriable.

mod bounds;

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
};

use apache_avro::{Schema, from_value, reader::datum::GenericDatumReader, types, util::max_allocation_bytes};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;

use model::{SchemaKind, Value};

use super::{
    Error, Registry, SharedCause, compatibility,
    encode::{FRAME_BYTES, MAGIC},
    schemas,
};

/// Writer schemas kept; a topic sees a handful in its life.
const MAX_SCHEMAS: usize = 512;
/// Maximum length claimed inside a datum: above any record that Kafka accepts, far below what would exhaust memory.
const MAX_ALLOCATION_BYTES: usize = 64 * 1024 * 1024;

/// Decodes framed records; shared by all readers.
#[derive(Debug)]
pub struct Decoder {
    registry: Registry,
    schemas: RwLock<WriterCache>,
}

/// Verdicts by id and the kind it is read as. When full, the oldest is evicted: ids are never reused, so entries do not become
/// stale.
#[derive(Debug, Default)]
struct WriterCache {
    writers: HashMap<(u32, SchemaKind), WriterVerdict>,
    order: VecDeque<(u32, SchemaKind)>,
}

/// A writer's schema that ours can read, or the rule it breaks.
type WriterVerdict = Result<Arc<WriterSchema>, Arc<str>>;

/// A schema that records were written with.
#[derive(Debug)]
struct WriterSchema {
    schema: Schema,
    /// Whether it equals ours, the usual case; then nothing has to be resolved.
    is_ours: bool,
}

impl WriterSchema {
    /// Parses and checks the schema that a registry has under `id`.
    fn parse(kind: SchemaKind, id: u32, text: &str) -> Result<WriterVerdict, Error> {
        let schema = Schema::parse_str(text).map_err(|error| {
            malformed(kind, id, "the registered schema cannot be parsed", Some(Arc::new(error)))
        })?;
        Self::judge(kind, schema)
    }

    /// Checks the schema once, so that every datum under it can be read within bounds.
    fn judge(kind: SchemaKind, schema: Schema) -> Result<WriterVerdict, Error> {
        let ours = &schemas::embedded(kind)?.schema;
        if schema == *ours {
            return Ok(Ok(Arc::new(Self { schema, is_ours: true })));
        }
        // Bounds first: a schema without them could make the comparison run endlessly.
        let judged =
            bounds::check(&schema).and_then(|()| match compatibility::incompatibility(&schema, ours) {
                None => Ok(()),
                Some(breach) => {
                    Err(format!("its schema does not fit ours at {}: {}", breach.field, breach.rule))
                }
            });
        Ok(judged.map(|()| Arc::new(Self { schema, is_ours: false })).map_err(Into::into))
    }
}

impl Decoder {
    /// A decoder that fetches writer schemas from `registry`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        bound_allocations();
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

    async fn writer_schema(&self, kind: SchemaKind, id: u32) -> Result<Arc<WriterSchema>, Error> {
        let key = (id, kind);
        let known = self.schemas.read().writers.get(&key).cloned();
        if let Some(verdict) = known {
            return verdict.map_err(|rule| malformed(kind, id, &rule, None));
        }
        let found = self.registry.schema(id).await?;
        let found =
            found.ok_or_else(|| malformed(kind, id, "the registry does not know this schema id", None))?;
        if !found.is_avro {
            return Err(malformed(kind, id, "the registry has this id for a schema that is not Avro", None));
        }
        let verdict = WriterSchema::parse(kind, id, &found.schema)?;
        self.schemas.write().put(key, verdict.clone());
        verdict.map_err(|rule| malformed(kind, id, &rule, None))
    }
}

/// As [`Decoder::decode`], with the text of the writer's schema instead of a registry that has it.
///
/// # Errors
/// The schema breaks a rule, or the record does not fit it.
pub fn decode_with(kind: SchemaKind, schema: &str, framed: &[u8]) -> Result<(u32, Value), Error> {
    bound_allocations();
    let (id, datum) = unframe(kind, framed)?;
    let writer = WriterSchema::parse(kind, id, schema)?.map_err(|rule| malformed(kind, id, &rule, None))?;
    Ok((id, of_kind(kind, id, read(kind, id, &writer, datum)?)?))
}

/// Bounds every length inside a datum. apache-avro takes the first call in a process and ignores later ones; its own
/// default is eight times as much.
fn bound_allocations() {
    max_allocation_bytes(MAX_ALLOCATION_BYTES);
}

impl WriterCache {
    fn put(&mut self, key: (u32, SchemaKind), verdict: WriterVerdict) {
        if self.writers.insert(key, verdict).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > MAX_SCHEMAS
            && let Some(oldest) = self.order.pop_front()
        {
            self.writers.remove(&oldest);
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

/// The datum as a value of the current schema.
fn read(kind: SchemaKind, id: u32, writer: &WriterSchema, mut datum: &[u8]) -> Result<types::Value, Error> {
    let result = if writer.is_ours {
        schemas::codec(kind)?.reader.read_value(&mut datum)
    } else {
        GenericDatumReader::builder(&writer.schema)
            .reader_schema(&schemas::embedded(kind)?.schema)
            .human_readable(false)
            .build()
            .and_then(|reader| reader.read_value(&mut datum))
    };
    let value = result.map_err(|error| {
        let rule = "the datum does not fit the schema it names, or ends early";
        malformed(kind, id, rule, Some(Arc::new(error)))
    })?;
    if datum.is_empty() {
        return Ok(value);
    }
    let left = io::Error::other(format!("{} bytes are left over", datum.len()));
    Err(malformed(kind, id, "the datum continues after the end of its schema", Some(Arc::new(left))))
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
    from_value(&value).map_err(|error| {
        malformed(kind, id, "the record does not have this schema's fields", Some(Arc::new(error)))
    })
}

fn malformed(kind: SchemaKind, id: u32, rule: &str, source: Option<SharedCause>) -> Error {
    let attempt = format!("decode a record as {} with schema id {id}", kind.name());
    Error::Malformed { attempt, rule: rule.into(), source }
}

#[cfg(test)]
mod tests;
