//! What this worker tells the owners of grants: that an API has refused an access token, or that it has ended.
//!
//! - However many are refused with one token, it is told once; and again after a while, for as long as somebody is refused: the
//!   owner may have read another's refusal of an older token instead.
//! - Telling waits for nothing. Whoever was refused has a deadline of its own, and Kafka may be away.
//!
//! On failure the next who is refused tells it again; a producer that is of no use any more is replaced.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use base::retry::Chain;
use kafka::{Kafka, Producer, ProducerOptions};
use model::EncodedRecord;

/// Bytes that may wait.
const QUEUE: usize = 1 << 20;
/// When what was told is told again, if it still holds.
const AGAIN: Duration = Duration::from_secs(30);

/// See the module's head.
pub(super) struct RefusalReporter {
    kafka: Kafka,
    producer: Mutex<Arc<Producer>>,
    told: Arc<Mutex<BTreeMap<String, Report>>>,
}

/// What was told of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    login: String,
    serial: u64,
    at: Instant,
}

impl RefusalReporter {
    pub(super) fn new(kafka: &Kafka) -> Result<Self, kafka::Error> {
        let producer = Mutex::new(Arc::new(build(kafka)?));
        Ok(Self { kafka: kafka.clone(), producer, told: Arc::default() })
    }

    /// Sends the record that this token was refused, unless that was told a moment ago.
    pub(super) fn tell(
        &self,
        grant: &str,
        login: &str,
        serial: u64,
        record: impl FnOnce() -> Option<EncodedRecord>,
    ) {
        let now = Report { login: login.to_owned(), serial, at: Instant::now() };
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.get(grant).is_some_and(|before| before.covers(&now)) {
                return;
            }
            told.insert(grant.to_owned(), now.clone());
        }
        let Some(record) = record() else { return };
        let (told, grant) = (Arc::clone(&self.told), grant.to_owned());
        let failed = move |error: kafka::Error| {
            tracing::warn!(grant, error = %Chain(&error), "that a token was refused could not be told");
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            // Not what somebody else has told since.
            if told.get(&grant) == Some(&now) {
                told.remove(&grant);
            }
        };
        match self.producer().send(record) {
            Ok(delivery) => {
                drop(tokio::spawn(async move { delivery.await.map(drop).unwrap_or_else(failed) }))
            }
            Err(refusal) => failed(refusal.error),
        }
    }

    /// Forgets grants that nobody names any more.
    pub(super) fn retain(&self, is_named: impl Fn(&str) -> bool) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).retain(|grant, _| is_named(grant));
    }

    fn producer(&self) -> Arc<Producer> {
        let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if producer.fatal().is_some() {
            match build(&self.kafka) {
                Ok(new) => *producer = Arc::new(new),
                Err(error) => {
                    tracing::error!(error = %Chain(&error), "the producer for refusals cannot be built anew");
                }
            }
        }
        Arc::clone(&producer)
    }
}

impl Report {
    /// Whether the other need not be told after this.
    fn covers(&self, other: &Self) -> bool {
        self.login == other.login && self.serial >= other.serial && other.at < self.at + AGAIN
    }
}

fn build(kafka: &Kafka) -> Result<Producer, kafka::Error> {
    Producer::new(kafka, &ProducerOptions { queue_bytes: QUEUE })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(login: &str, serial: u64, at: Instant) -> Report {
        Report { login: login.to_owned(), serial, at }
    }

    #[test]
    fn a_token_is_told_once_in_a_while_and_a_newer_one_or_one_of_another_login_at_once() {
        let now = Instant::now();
        let before = told("first", 57, now);

        assert!(before.covers(&told("first", 57, now)) && before.covers(&told("first", 56, now)));
        assert!(!before.covers(&told("first", 57, now + AGAIN)));
        assert!(!before.covers(&told("first", 58, now)));
        assert!(!before.covers(&told("second", 1, now)), "the login after one that nobody could read");
    }

    #[tokio::test]
    async fn telling_waits_for_no_kafka_and_fifty_tell_one_record() {
        let kafka = Kafka::plaintext("127.0.0.1:1");
        let refusals = RefusalReporter::new(&kafka).unwrap();
        let record = || {
            Some(EncodedRecord {
                topic: "grants".into(),
                partition: 0,
                key: bytes::Bytes::from_static(b"refused/acc"),
                value: None,
                headers: Vec::new(),
                timestamp_ms: None,
            })
        };

        for _ in 0..50 {
            refusals.tell("acc", "first", 1, record);
        }

        assert_eq!(refusals.producer().outstanding(), 1);
    }
}
