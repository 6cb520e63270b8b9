//! Configuration.

mod kafka;
mod registry;

pub use kafka::{ClientRole, Kafka};
pub use registry::{Registry, RegistryAuth, RegistryTls};
