//! Input of a dead letter: the bytes that could not be published, and the reason.

use bytes::Bytes;

use super::PublishStage;

/// The bytes of a record, and where they came from.
#[derive(Debug, Clone, Default)]
pub struct Original {
    /// The original key, or the one that the record would have had.
    pub key: Bytes,
    /// The original bytes.
    pub value: Bytes,
    /// Topic, partition and offset if it came from Kafka.
    pub place: Option<(String, i32, i64)>,
}

/// Why something could not be published.
#[derive(Debug, Clone)]
pub struct PublishFailure {
    /// The step that failed.
    pub stage: PublishStage,
    /// Kind of error, as a stable name (`avro::Error::Encode`).
    pub class: &'static str,
    /// What happened, without the data itself: headers must not contain provider data or secrets.
    pub message: String,
    /// Causes, outermost first.
    pub causes: Vec<String>,
}

impl PublishFailure {
    /// A failure with the causes of `error` written out.
    pub fn new(stage: PublishStage, class: &'static str, error: &dyn std::error::Error) -> Self {
        let causes =
            std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string).collect();
        Self { stage, class, message: error.to_string(), causes }
    }
}
