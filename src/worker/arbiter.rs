//! Writes to the config topic, one at a time across all workers.
//!
//! A write is: take the transactional id (which fences every rival's half-done write), read the topic to its end, decide
//! on what stands there now, write, commit, and wait until the own tail has read it back. Rivals that were fenced meanwhile
//! try again a few times, then say so.

use std::{sync::Arc, time::Duration};

use super::state::{
    Tail,
    configs::{Configs, Write},
};
use crate::{config::Kafka, kafka};

/// The one way to the config topic. Cheap to clone; one write at a time per worker.
#[derive(Debug, Clone)]
pub struct Arbiter {}

/// Why a write did not happen. Nothing of it is in the topic, unless said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<R> {
    /// What stands in the topic does not allow it.
    #[error("refused")]
    Refused(R),
    /// Other workers kept writing at the same moment.
    #[error("another worker was writing at the same moment, {attempts} times in a row")]
    Conflict {
        /// Attempts made.
        attempts: u32,
    },
    /// Kafka did not take it in time. Whether it did is said by the cause; reading the topic tells.
    #[error("write to the config topic")]
    Kafka(#[source] kafka::Error),
}

impl Arbiter {
    /// For the config topic of a group of workers. Nothing is taken before the first write.
    #[must_use]
    pub fn new(kafka: &Kafka, topic: &str, group: &str, configs: Tail<Configs>) -> Self {
        todo!()
    }

    /// Writes what `decide` makes of the state of all edits so far; nothing if it makes nothing. `decide` may be called
    /// several times. Returns within the limit, once the own tail has read the write.
    ///
    /// # Errors
    /// `decide` refused, rivals kept interfering, or Kafka did not answer.
    pub async fn write<T, R>(
        &self,
        limit: Duration,
        decide: impl Fn(&Configs) -> Result<(T, Vec<Write>), R> + Send,
    ) -> Result<T, Error<R>> {
        todo!()
    }
}
