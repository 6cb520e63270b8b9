//! Tributary.

pub mod avro;
pub mod config;
pub mod kafka;
pub mod metrics;
pub mod model;
pub mod pipeline;
pub mod retry;
pub mod secret;
pub mod telemetry;
