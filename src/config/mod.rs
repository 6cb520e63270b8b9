//! Configuration: files and environment become checked structs.
//!
//! Path of data: properties file, `CONNECT_*` variables or connector JSON → flat map of texts → references resolved
//! ([`Providers`]) → checked against one declaration per key ([`ConfigKey`]) → [`Worker`], [`connector::WebhookSource`] or
//! [`connector::RecordSource`]. The same declarations give Kafka Connect's [`Validation`] answers and [`reference()`].
//!
//! - Every problem is reported in one run, with key, value, rule and remedy ([`Problems`]).
//! - No problem, warning, `Debug` output or answer shows a secret.
//! - A reference that does not resolve is an error; an unknown key is one where it can only be a mistake.
//!
//! A configuration with a problem gives no struct: nothing starts with half of one.

mod address;
mod client;
pub mod connector;
mod converter;
mod cron;
pub(crate) mod definition;
mod environment;
pub(crate) mod key;
mod problem;
pub mod properties;
pub mod providers;
pub(crate) mod reader;
mod reference;
mod registry;
pub(crate) mod rules;
#[cfg(test)]
mod tests;
mod tls;
pub(crate) mod unknown_keys;
pub mod worker;
pub(crate) mod worker_keys;

pub use address::Listener;
pub use connector::{Connector, RecordSource, WebhookSource, validate};
pub use cron::Schedule;
pub use definition::{KeyDef, KeyValue, ValidatedKey, Validation};
pub use key::{ConfigKey, Fallback, Importance, Type, Width};
pub use problem::{Problem, Problems, Warning};
pub use providers::{Providers, SecretsPolicy};
pub use reference::reference;
pub use registry::{RegistryAuth, RegistrySettings};
pub use tls::TlsFiles;
pub use worker::{LoadedConfig, RejectedConfig, Worker};
