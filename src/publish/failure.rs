//! What a dead letter is made from: the bytes that could not be published, and the reason.

use bytes::Bytes;

use super::PublishStage;

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

/// Why something could not be published.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The step that failed.
    pub stage: PublishStage,
    /// Kind of error, as a stable name (`avro::Error::Encode`).
    pub class: &'static str,
    /// What happened, without the data itself: provider data and secrets do not belong into headers.
    pub message: String,
    /// Causes, outermost first.
    pub causes: Vec<String>,
}

impl Failure {
    /// A failure with the causes of `error` written out.
    pub fn new(stage: PublishStage, class: &'static str, error: &dyn std::error::Error) -> Self {
        let causes =
            std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string).collect();
        Self { stage, class, message: error.to_string(), causes }
    }
}
