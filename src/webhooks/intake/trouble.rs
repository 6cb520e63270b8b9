//! What Kafka does not take of a connector, for people: since when, and why.
//!
//! A report that is not a success puts its topic here, the next success takes it out again. Nothing waits for it: whether and
//! when a record is sent again is the lane's and the drain's. The log gets a line when it begins, when Kafka gives another
//! cause, and when it is over, however many records that concerns.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

use parking_lot::Mutex;

use base::retry::ErrorChain;

/// A connector whose records Kafka does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Its name.
    pub connector: String,
    /// The topic they are for.
    pub topic: String,
    /// The first of them was reported then.
    pub since: SystemTime,
    /// What Kafka said last.
    pub cause: String,
}

/// All of them. There are no more than connectors have topics.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// Whether there are any: nearly never, and asked for every record.
    any: AtomicBool,
    known: Mutex<BTreeMap<(String, String), Trouble>>,
}

impl Troubles {
    /// Kafka did not take a record.
    pub(super) fn failed(&self, connector: &str, topic: &str, error: &kafka::Error) {
        let cause = ErrorChain(error).to_string();
        let mut known = self.known.lock();
        let trouble = known.entry((connector.to_owned(), topic.to_owned())).or_insert_with(|| Trouble {
            connector: connector.to_owned(),
            topic: topic.to_owned(),
            since: SystemTime::now(),
            cause: String::new(),
        });
        if trouble.cause != cause {
            tracing::warn!(
                connector,
                topic,
                error = cause,
                "Kafka does not take records; they are kept and sent again"
            );
        }
        trouble.cause = cause;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Kafka took one.
    pub(super) fn landed(&self, connector: &str, topic: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.known.lock();
        if known.remove(&(connector.to_owned(), topic.to_owned())).is_some() {
            tracing::info!(connector, topic, "Kafka takes records again");
        }
        self.any.store(!known.is_empty(), Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<Trouble> {
        self.known.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use kafka::samples;

    use super::*;

    #[test]
    fn a_trouble_is_of_one_topic_and_keeps_its_beginning_until_that_topic_takes_a_record() {
        let troubles = Troubles::default();
        troubles.failed("hooks", "one", &samples::unauthorised());
        let first = troubles.all();

        troubles.failed("hooks", "two", &samples::purged());
        troubles.failed("hooks", "one", &samples::purged());
        troubles.landed("hooks", "two");
        troubles.landed("other", "one");

        let now = troubles.all();
        assert_eq!((now.len(), now[0].since), (1, first[0].since));
        assert_ne!(now[0].cause, first[0].cause, "the last one is told");
        troubles.landed("hooks", "one");
        assert!(troubles.all().is_empty());
    }
}
