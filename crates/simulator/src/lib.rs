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
//!   product, so that one misreading cannot hide in both.
//! - Everything that looks random follows from the seed, and every date from one [`clock::Clock`]: under a frozen clock
//!   the same seed and the same calls give the same records and the same deliveries, byte for byte.
//! - What the document leaves open is a knob ([`knobs::Knobs`]) where Tributary could notice the difference, and so is everything
//!   that goes wrong.
//! - What is true (records, deliveries with their answers, tokens) can be asked for, so that tests compare with it.
//! - Bad input gets what the document says; nothing a client sends makes it fail on its own account.

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
mod layers;
mod provider;
pub mod random;
pub mod reads;
mod recent;
pub mod settings;
mod start;
pub mod timestamp;
mod validation;
pub mod world;

pub use self::{core::Core, provider::Provider, start::Simulator, validation::InvalidSetting};

/// Why a simulator did not start, or could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is taken or not ours.
    #[error("listen on {address}")]
    Listen {
        /// Where it should have listened.
        address: std::net::SocketAddr,
        /// Why it could not.
        #[source]
        source: std::io::Error,
    },
    /// A certificate, key or chain cannot be used or made.
    #[error("{what}")]
    Certificate {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No signing key could be made.
    #[error("make a signing key: {0}")]
    Key(String),
    /// No HTTP client could be made.
    #[error("make the client for deliveries")]
    Client(#[source] reqwest::Error),
    /// Settings or knobs that cannot be used; never empty.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<InvalidSetting>),
}
