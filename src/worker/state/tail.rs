//! Following a compacted topic: read to the end once, then on and on.

use std::time::Duration;

use tokio::sync::watch;

use crate::{
    config::Kafka,
    kafka::{self, Received},
};

/// What a topic's records add up to.
pub trait Apply: Default + Send + Sync + 'static {
    /// Takes one more record, in the order of its partition. A record that cannot be understood is logged once and left
    /// out; it never stops the tail.
    fn apply(&mut self, record: &Received);
}

/// A topic, followed by one consumer (read committed). Cheap to clone.
#[derive(Debug)]
pub struct Tail<S> {
    state: std::marker::PhantomData<S>,
}

impl<S> Clone for Tail<S> {
    fn clone(&self) -> Self {
        todo!()
    }
}

impl<S: Apply> Tail<S> {
    /// Starts to follow; [`Tail::caught_up`] says when everything written before has been read. A broker that is away only
    /// delays it, then and later.
    ///
    /// # Errors
    /// The client cannot be built.
    pub async fn follow(kafka: &Kafka, topic: &str, partitions: i32) -> Result<Self, kafka::Error> {
        todo!()
    }

    /// Looks at the state.
    pub fn read<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        todo!()
    }

    /// A number that rises with every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        todo!()
    }

    /// Whether all partitions have been read to their end once.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        todo!()
    }

    /// Waits for that.
    pub async fn caught_up(&self) {
        todo!()
    }

    /// Waits until a record at this offset, or a later one, has been read.
    ///
    /// # Errors
    /// It was not within the limit.
    pub async fn read_past(&self, partition: i32, offset: i64, limit: Duration) -> Result<(), kafka::Error> {
        todo!()
    }

    /// Asks the broker for the end of every partition and waits until that has been read.
    ///
    /// # Errors
    /// The broker did not answer, or the records did not come, within the limit.
    pub async fn read_to_end(&self, limit: Duration) -> Result<(), kafka::Error> {
        todo!()
    }

    /// How long nothing has been heard from the broker that should have been: `None` while all is well.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        todo!()
    }
}
