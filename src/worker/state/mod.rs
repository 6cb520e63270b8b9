//! What the three topics say, as this worker has read them: configs, offsets, statuses.

pub mod configs;
pub mod offsets;
pub mod statuses;
mod tail;

pub use tail::{Apply, Tail};

use self::{configs::Configs, offsets::Offsets, statuses::Statuses};

/// The three tails. Cheap to clone.
#[derive(Debug, Clone)]
pub struct State {
    /// Connector configurations, target states, task configurations, commands.
    pub configs: Tail<Configs>,
    /// Source offsets.
    pub offsets: Tail<Offsets>,
    /// States of connectors and tasks, and the topics they use.
    pub statuses: Tail<Statuses>,
}
