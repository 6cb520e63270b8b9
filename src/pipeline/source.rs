//! Where records come from: the trait every mode implements, and the batch it hands over.

use std::{fmt, future::Future, hash::Hash};

use bytes::Bytes;

use super::Stage;
use crate::{model::Outgoing, retry::Retry};

/// Where records come from, and how far that place may be forgotten.
///
/// Positions in one lane only grow. [`commit`](Source::commit) is called in order, and only when everything up to that
/// position is settled: acknowledged by Kafka, or written to the dead-letter topic and acknowledged there. It is not
/// called for every position: a later one stands for all before it.
pub trait Source: Send {
    /// What must stay in order: the spool, one partition, one snapshot range.
    type Lane: Clone + Eq + Hash + fmt::Debug + Send + 'static;
    /// A place in a lane from which work can resume after a crash.
    type Position: Clone + fmt::Debug + Send + 'static;
    /// Why the source failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Waits for the next items; `None` means finished for good. Cancel safe: a dropped call loses nothing.
    fn next(&mut self) -> impl Future<Output = Result<Option<Batch<Self>>, Self::Error>> + Send;

    /// Makes `position` durable. After a crash the source resumes just behind it. May be dropped at an await, and is then
    /// called again or not at all.
    fn commit(
        &mut self,
        lane: &Self::Lane,
        position: &Self::Position,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Whether trying again can help after this error.
    fn retry(&self, error: &Self::Error) -> Retry;
}

/// Items in reading order. The source bounds how much it hands over at once.
pub type Batch<S> = Vec<Item<<S as Source>::Lane, <S as Source>::Position>>;

/// One thing the source has read, and what it became.
#[derive(Debug)]
pub struct Item<L, P> {
    /// The lane it came from.
    pub lane: L,
    /// Its place there.
    pub position: P,
    /// What was read, as it was read: the body of a dead letter, should it come to that.
    pub original: Original,
    /// What it became.
    pub content: Content,
}

/// What an item became.
#[derive(Debug)]
pub enum Content {
    /// Records to publish, in this order. None at all settles the item at once.
    Records(Vec<Outgoing>),
    /// It cannot become a record; it goes to the dead letters with this reason.
    Unreadable(Failure),
}

/// The bytes a record was made of, and where they were found.
#[derive(Debug, Clone, Default)]
pub struct Original {
    /// Key as it was, or as the record would have had it.
    pub key: Bytes,
    /// The bytes themselves, unchanged.
    pub value: Bytes,
    /// Topic, partition and offset, where it came from Kafka.
    pub place: Option<(String, i32, i64)>,
}

impl Original {
    /// Bytes it holds.
    pub(super) fn size(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// Why something could not be published.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The step that failed.
    pub stage: Stage,
    /// Kind of error, as a stable name (`avro::Error::Encode`).
    pub class: &'static str,
    /// What happened, without the data itself: provider data and secrets do not belong into headers.
    pub message: String,
    /// Causes, outermost first.
    pub causes: Vec<String>,
}

impl Failure {
    /// A failure with the causes of `error` written out.
    pub fn new(stage: Stage, class: &'static str, error: &dyn std::error::Error) -> Self {
        let causes =
            std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string).collect();
        Self { stage, class, message: error.to_string(), causes }
    }
}
