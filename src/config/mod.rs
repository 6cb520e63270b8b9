//! Configuration.

mod definition;
mod kafka;
mod key;
mod problem;
pub mod properties;
pub mod providers;
mod registry;

pub use definition::{Entry, KeyDef, KeyValue, Validation};
pub use kafka::{ClientRole, Kafka};
pub use key::{Fallback, Importance, Key, Type, Width};
pub use problem::{Problem, Problems, Warning};
pub use providers::{Providers, SecretsPolicy};
pub use registry::{Registry, RegistryAuth, RegistryTls};
