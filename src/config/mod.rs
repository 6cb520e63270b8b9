//! Configuration.

mod address;
mod definition;
mod kafka;
mod key;
mod problem;
pub mod properties;
pub mod providers;
mod reader;
mod registry;
mod unknown;

pub use address::Listener;
pub use definition::{Entry, KeyDef, KeyValue, Validation};
pub use kafka::{ClientRole, Kafka};
pub use key::{Fallback, Importance, Key, Type, Width};
pub use problem::{Problem, Problems, Warning};
pub use providers::{Providers, SecretsPolicy};
pub use registry::{Registry, RegistryAuth, RegistryTls};
