//! Configuration: files and environment become checked structs.
//!
//! Data flow: properties file, `CONNECT_*` variables or connector JSON → flat map of texts → references resolved
//! ([`Providers`]) → checked against one declaration per key ([`ConfigKey`]) → [`Worker`], [`connector::WebhookSource`] or
//! [`connector::RecordSource`]. The same declarations give Kafka Connect's [`Validation`] answers and [`reference()`].
//!
//! - One run reports every problem, with key, rule and remedy ([`Problems`]).
//! - No problem, warning, `Debug` output or answer contains a secret.
//! - A reference that does not resolve is an error. An unknown key is an error where it can only be a mistake, else a warning.
//!
//! A configuration with a problem yields no struct, so nothing starts with half a configuration.

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
pub(crate) mod samples;
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
