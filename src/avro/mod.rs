//! Records to Avro bytes and back, under schemas that a registry knows.
//!
//! ```text
//! schemas/*.avsc ──embedded──▶ schemas ──text──▶ registry: level, check, register ──id──▶ ids ──▶ state.dir/schema-ids.json
//!                                 │                                                        │
//! model::Value ──────────────▶ encode: 0x00, id, datum ◀───────────────────────────────────┘ ──▶ Kafka
//! Kafka ──▶ decode: id ──▶ the writer's schema from the registry ──resolved to ours──▶ model::Value
//! ```
//!
//! Invariants:
//!
//! - A record is only written under an id that the registry gave for exactly this schema text under exactly this subject
//!   (`{topic}-value`).
//! - Before a schema is first registered, the subject's level is at least `BACKWARD_TRANSITIVE` and the schema reads every
//!   version the subject has.
//! - Ids of one registry are never used with another: the state file names the registry's addresses.
//! - Encoding needs no lock and no network: ids are fetched in advance, once per subject even if several callers ask.
//!
//! On failure: while the registry is unavailable, ids from memory or disk stay in use, with a warning; without an id the error is
//! retriable. A refusal (credentials, compatibility) is final and names subject, field and rule. See [`Error::retry`].

mod compatibility;
mod decode;
pub mod embedded;
mod encode;
mod error;
mod ids;
mod registry;
pub mod schemas;
#[cfg(test)]
mod tests;

pub use decode::{Decoder, decode_with};
pub use encode::{Encoder, frame, frame_value};
pub use error::{Error, SchemaConflict, SharedCause};
pub use ids::{Ids, ValueSubject};
pub use registry::{Level, Registry};
