//! Topics to which Kafka takes no records, for `/health`: a failed report adds its topic, the next success removes it.
//!
//! Nothing waits for it: the queue and its drain decide when a record is sent again. It logs when a topic starts to fail, when the cause
//! changes, and when it recovers.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

use parking_lot::Mutex;

use base::retry::ErrorChain;

/// A topic to which Kafka takes no records of a connector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishError {
    /// The connector's name.
    pub connector: String,
    /// The topic's name.
    pub topic: String,
    /// When Kafka first did not take a record.
    pub since: SystemTime,
    /// Kafka's last error.
    pub cause: String,
}

/// All topics to which Kafka takes no records: at most those that connectors have.
#[derive(Debug, Default)]
pub(super) struct PublishErrors {
    /// Whether there are any: nearly never, and asked for every record.
    any: AtomicBool,
    known: Mutex<BTreeMap<(String, String), PublishError>>,
}

impl PublishErrors {
    /// Kafka did not take a record.
    pub(super) fn failed(&self, connector: &str, topic: &str, error: &kafka::Error) {
        let cause = ErrorChain(error).to_string();
        let mut known = self.known.lock();
        let reported =
            known.entry((connector.to_owned(), topic.to_owned())).or_insert_with(|| PublishError {
                connector: connector.to_owned(),
                topic: topic.to_owned(),
                since: SystemTime::now(),
                cause: String::new(),
            });
        if reported.cause != cause {
            tracing::warn!(
                connector,
                topic,
                error = cause,
                "Kafka does not take records; they are kept and sent again"
            );
        }
        reported.cause = cause;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Kafka took one.
    pub(super) fn acknowledged(&self, connector: &str, topic: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.known.lock();
        if known.remove(&(connector.to_owned(), topic.to_owned())).is_some() {
            tracing::info!(connector, topic, "Kafka takes records again");
        }
        self.any.store(!known.is_empty(), Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<PublishError> {
        self.known.lock().values().cloned().collect()
    }
}
