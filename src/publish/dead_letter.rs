//! Dead letters: the original bytes of a record that cannot be published, with Kafka Connect's `__connect.errors.*` headers.
//!
//! The body is the input, byte for byte, so that a fixed parser can replay it. Headers give its source, the failure and the
//! reason; they never quote the data. Header text and body are bounded: a broker refuses a letter that is too large, and then
//! the delivery would stay in the spool or the shard's batch would fail. For a truncated body, a header gives the original
//! length. The worker signs each letter ([`LetterSigner`]), so that a replay can recognize letters that others wrote to the topic.

use std::sync::Arc;

use bytes::Bytes;
use tracing::{debug, warn};

use model::{EncodedRecord, TopicPrefix};

use super::{
    PublishStage,
    failure::{Original, PublishFailure},
    signature::{LetterSigner, PREFIX},
};

/// Longest text in one header, in bytes.
const TEXT_LIMIT: usize = 4096;

/// Longest body, in bytes: with its key and headers it has to be a record that a producer takes.
const BODY_LIMIT: usize = kafka::MAX_RECORD_BYTES - (128 << 10);

/// Value of `__connect.errors.class.name`. Consumers may filter by it, so it does not follow the path of the module.
const CLASS_NAME: &str = "tributary::pipeline::dead_letter";

/// Header with the original length in bytes of a truncated body.
const CUT: &str = "tributary.cut.from";

/// Who writes the dead letters and where to.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    /// Full name of the dead-letter topic.
    pub topic: Arc<str>,
    /// Its partition count.
    pub partitions: i32,
    /// `topic.prefix` of the connector; a replay publishes below it and nowhere else.
    pub prefix: TopicPrefix,
    /// `__connect.errors.connector.name`.
    pub connector: String,
    /// `__connect.errors.task.id`.
    pub task: u32,
    /// `errors.log.enable`: whether each one is logged as a warning; the metric always counts them.
    pub logged: bool,
    /// Signs each one.
    pub signer: LetterSigner,
}

impl DeadLetters {
    /// Logs the destination and the failure, never the data.
    pub fn log(&self, destination: Option<&str>, failure: &PublishFailure) {
        let (topic, class, error) = (&self.topic, failure.class, &failure.message);
        if self.logged {
            warn!(%topic, class, %error, destination, "sending to the dead letters");
        } else {
            debug!(%topic, class, %error, destination, "sending to the dead letters");
        }
    }

    /// The dead letter for `original`. `destination` is the topic of its record, if known.
    #[must_use]
    pub fn record(
        &self,
        original: &Original,
        destination: Option<&str>,
        failure: &PublishFailure,
        own_headers: &[(&'static str, Bytes)],
    ) -> EncodedRecord {
        let mut headers: Vec<(&'static str, Bytes)> = own_headers.to_vec();
        let mut put =
            |name, text: &str| headers.push((name, Bytes::copy_from_slice(bounded(text).as_bytes())));
        match (&original.place, destination) {
            (Some((topic, partition, offset)), _) => {
                put("__connect.errors.topic", topic);
                put("__connect.errors.partition", &partition.to_string());
                put("__connect.errors.offset", &offset.to_string());
            }
            (None, Some(topic)) => put("__connect.errors.topic", topic),
            (None, None) => {}
        }
        put(PREFIX, self.prefix.as_str());
        put("__connect.errors.connector.name", &self.connector);
        put("__connect.errors.task.id", &self.task.to_string());
        put("__connect.errors.stage", connect_stage(failure.stage));
        put("__connect.errors.class.name", CLASS_NAME);
        put("__connect.errors.exception.class.name", failure.class);
        put("__connect.errors.exception.message", &failure.message);
        put("__connect.errors.exception.stacktrace", &stack_trace(failure));
        let whole = original.value.len();
        if whole > BODY_LIMIT {
            put(CUT, &whole.to_string());
        }
        let mut record = EncodedRecord {
            topic: Arc::clone(&self.topic),
            partition: kafka::partition_of(&original.key, self.partitions),
            key: original.key.clone(),
            value: Some(original.value.slice(..whole.min(BODY_LIMIT))),
            headers,
            timestamp_ms: None,
        };
        if !self.signer.sign(&mut record) {
            self.signer.warn_unsigned();
        }
        record
    }
}

/// Kafka Connect's name of the step, because its tools filter by it.
fn connect_stage(stage: PublishStage) -> &'static str {
    match stage {
        PublishStage::Read => "TASK_POLL",
        PublishStage::Convert => "VALUE_CONVERTER",
        PublishStage::Produce => "KAFKA_PRODUCE",
    }
}

/// Formatted like a Java stack trace, because tools parse that: class, message, then one `Caused by` per line.
fn stack_trace(failure: &PublishFailure) -> String {
    let mut trace = format!("{}: {}", failure.class, failure.message);
    for cause in &failure.causes {
        trace.push_str("\nCaused by: ");
        trace.push_str(cause);
    }
    trace
}

/// At most [`TEXT_LIMIT`] bytes, cut at a character's edge.
fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_LIMIT)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kafka::MAX_RECORD_BYTES;

    use super::*;

    fn dead_letters() -> DeadLetters {
        DeadLetters {
            topic: "t.dead-letters".into(),
            partitions: 3,
            prefix: TopicPrefix::new("t").unwrap(),
            connector: "hooks".into(),
            task: 2,
            logged: true,
            signer: LetterSigner::default(),
        }
    }

    fn failure(message: &str) -> PublishFailure {
        PublishFailure {
            stage: PublishStage::Convert,
            class: "avro::Error::Encode",
            message: message.to_owned(),
            causes: vec!["bad byte".to_owned(), "disk".to_owned()],
        }
    }

    fn headers(record: &EncodedRecord) -> BTreeMap<&str, String> {
        record.headers.iter().map(|(k, v)| (*k, String::from_utf8(v.to_vec()).unwrap())).collect()
    }

    #[test]
    fn a_body_too_large_for_a_record_is_truncated() {
        let body = |size| Original { value: vec![b'x'; size].into(), ..Original::default() };

        let whole = dead_letters().record(&body(BODY_LIMIT), None, &failure("large"), &[]);
        let cut =
            dead_letters().record(&body(MAX_RECORD_BYTES + 1), None, &failure(&"large".repeat(5_000)), &[]);

        assert_eq!(whole.value.as_ref().map(Bytes::len), Some(BODY_LIMIT));
        assert_eq!(headers(&whole).get(CUT), None);
        assert_eq!(headers(&cut)[CUT], (MAX_RECORD_BYTES + 1).to_string());
        assert!(cut.size() <= MAX_RECORD_BYTES, "{}", cut.size());
    }

    #[test]
    fn the_body_is_unchanged_and_the_headers_are_connects() {
        let original = Original {
            key: Bytes::from_static(b"c-1"),
            value: Bytes::from_static(b"{not json \xff"),
            place: Some(("t.events".into(), 1, 42)),
        };

        let record = dead_letters().record(&original, None, &failure("encode Customer"), &[]);

        assert_eq!(record.value.as_deref(), Some(&b"{not json \xff"[..]));
        assert_eq!(&record.key[..], b"c-1");
        let headers = headers(&record);
        assert_eq!(headers["__connect.errors.topic"], "t.events");
        assert_eq!(headers["__connect.errors.partition"], "1");
        assert_eq!(headers["__connect.errors.offset"], "42");
        assert_eq!(headers["tributary.topic.prefix"], "t");
        assert_eq!(headers["__connect.errors.connector.name"], "hooks");
        assert_eq!(headers["__connect.errors.task.id"], "2");
        assert_eq!(headers["__connect.errors.stage"], "VALUE_CONVERTER");
        assert_eq!(headers["__connect.errors.class.name"], "tributary::pipeline::dead_letter");
        assert_eq!(headers["__connect.errors.exception.class.name"], "avro::Error::Encode");
        assert_eq!(headers["__connect.errors.exception.message"], "encode Customer");
        assert_eq!(
            headers["__connect.errors.exception.stacktrace"],
            "avro::Error::Encode: encode Customer\nCaused by: bad byte\nCaused by: disk"
        );
    }

    #[test]
    fn a_header_is_truncated_at_a_character_boundary() {
        let record = dead_letters().record(&Original::default(), Some("t"), &failure(&"é".repeat(9000)), &[]);

        let message = &headers(&record)["__connect.errors.exception.message"];
        assert!(message.len() <= TEXT_LIMIT && message.chars().all(|c| c == 'é'), "{} bytes", message.len());
    }

    #[test]
    fn letters_of_one_key_stay_in_one_partition() {
        let letter = |key: &'static [u8]| {
            let original = Original { key: Bytes::from_static(key), ..Original::default() };
            dead_letters().record(&original, None, &failure("x"), &[]).partition
        };

        assert_eq!(letter(b"same"), letter(b"same"));
    }
}
