//! The provider, as a real HTTP server: for every integration test, the demo, the benchmarks and `tributary simulate`.
//!
//! ```text
//! client ──▶ server ──▶ gateway: latency, key, rate, faults, token, headers ──▶ reads ────────▶ world
//!                  │                                                       ├──▶ accounting ┐    │ changes
//!                  │                                                       └──▶ invoicing ─┤    ▼
//!                  ├──▶ identity: login, codes, tokens, keys                               └─ deliveries ──▶ receiver
//!                  └──▶ /_control: knobs, steps of the world, what is true now
//! ```
//!
//! - It is written from the provider's document alone and shares no signing, parsing, paging or token code with the
//!   product, so that a misreading in one does not hide in the other.
//! - Everything random follows from the seed, and every date from one [`clock::Clock`]: with a frozen clock, the same seed
//!   and the same calls give the same records and deliveries, byte for byte.
//! - Where the document leaves something open that Tributary could notice, there is a knob ([`knobs::Knobs`]). Faults are
//!   knobs, too.
//! - Tests can ask for the truth: records, deliveries with their answers, tokens.
//! - Bad input gets the error the document describes; no request makes the simulator fail.

#[macro_use]
mod declare;

pub mod accounting;
pub mod answer;
pub mod call;
pub mod catalog;
pub mod clock;
pub mod control;
mod core;
pub mod deliveries;
mod effect;
mod error_answer;
pub mod gateway;
pub mod identity;
pub mod invoicing;
pub mod journal;
pub mod knobs;
mod provider;
pub mod random;
pub mod reads;
mod recent;
pub mod settings;
mod start;
pub mod timestamp;
pub mod transcript;
mod validation;
pub mod world;

pub use self::{core::Core, provider::SimulatedProvider, start::Simulator, validation::InvalidSetting};

/// Why a simulator did not start or could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why it cannot be bound.
        #[source]
        source: std::io::Error,
    },
    /// A certificate, key or chain is invalid or could not be generated.
    #[error("cannot {what}")]
    Certificate {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No signing key could be generated.
    #[error("cannot generate a signing key: {0} failed")]
    Key(String),
    /// Invalid settings or knobs; never empty.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<InvalidSetting>),
}
