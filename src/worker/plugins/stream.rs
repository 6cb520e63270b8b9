//! Where the stream begins that lists are read beside: no page is read before every change after it would be heard of.
//!
//! ```text
//! managed WebhookSources of the prefix ─▶ none ─────────────────────────────▶ unverified
//!                                       └▶ each has its `start/` record ────▶ verified, from these on
//!                                       └▶ not all, and the time is up ─────▶ unverified, for those that have none
//! ```
//!
//! A start is durable and never in memory alone: whoever goes on after a crash reads the same. It names the
//! subscription that stands now; a target that was subscribed anew begins anew.

use std::{collections::BTreeMap, fmt, time::Duration};

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};

use model::Start;

/// What is known of the streams of one prefix.
#[async_trait]
pub trait Streams: Send {
    /// Its managed `WebhookSource`s, each with where its stream begins, once that is known.
    fn starts(&self) -> BTreeMap<String, Option<Start>>;

    /// Returns once [`Streams::starts`] may say something else than when it was last asked.
    async fn changed(&mut self);
}

/// What is known of the stream when lists begin to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Where it begins, by connector.
    pub starts: BTreeMap<String, Start>,
    /// Why it is not verified; `None` where it is.
    pub unverified: Option<Unverified>,
}

impl Stream {
    fn of(known: BTreeMap<String, Option<Start>>) -> Self {
        let (begun, late): (Vec<_>, Vec<_>) = known.into_iter().partition(|(_, start)| start.is_some());
        let unverified = match (begun.is_empty(), late.is_empty()) {
            (true, true) => Some(Unverified::Nobody),
            (false, true) => None,
            (_, false) => Some(Unverified::Late(late.into_iter().map(|(name, _)| name).collect())),
        };
        let starts = begun.into_iter().filter_map(|(name, start)| Some((name, start?))).collect();
        Self { starts, unverified }
    }
}

/// Why a stream is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unverified {
    /// Nobody keeps subscriptions for this prefix.
    Nobody,
    /// These connectors had not begun when the time was up.
    Late(Vec<String>),
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("no WebhookSource with the same topic.prefix manages subscriptions"),
            Self::Late(names) => {
                write!(
                    f,
                    "subscriptions of {} were not all active within stream.start.timeout.ms",
                    names.join(", ")
                )
            }
        }
    }
}

/// Waits until the stream has begun, at most for so long (`stream.start.timeout.ms`). Dropped it has done nothing.
pub async fn begun(streams: &mut dyn Streams, limit: Duration) -> Stream {
    let until = Instant::now().checked_add(limit);
    loop {
        let stream = Stream::of(streams.starts());
        let Some(Unverified::Late(_)) = stream.unverified else { return stream };
        let is_over = match until {
            Some(until) => timeout_at(until, streams.changed()).await.is_err(),
            // Longer than clocks count.
            None => {
                streams.changed().await;
                false
            }
        };
        if is_over {
            // What came at the last moment counts all the same.
            return Stream::of(streams.starts());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use model::{AccountingResource, Nonce, Started, Target};

    use super::*;

    fn start(connector: &str, since: i64) -> Start {
        let started = Started { nonce: Nonce::new(7), since };
        let targets = BTreeMap::from([(Target::Accounting(AccountingResource::Customers), started)]);
        Start { connector: connector.to_owned(), at: since, targets }
    }

    /// What is known at first and after each change; no further change ever comes.
    struct Told(BTreeMap<String, Option<Start>>, VecDeque<BTreeMap<String, Option<Start>>>);

    #[async_trait]
    impl Streams for Told {
        fn starts(&self) -> BTreeMap<String, Option<Start>> {
            self.0.clone()
        }

        async fn changed(&mut self) {
            match self.1.pop_front() {
                Some(next) => self.0 = next,
                None => std::future::pending().await,
            }
        }
    }

    fn known(all: &[(&str, Option<i64>)]) -> BTreeMap<String, Option<Start>> {
        all.iter().map(|(name, since)| ((*name).to_owned(), since.map(|since| start(name, since)))).collect()
    }

    #[tokio::test]
    async fn a_prefix_without_managed_subscriptions_is_not_waited_for() {
        let stream = begun(&mut Told(known(&[]), VecDeque::new()), Duration::MAX).await;

        assert_eq!(stream, Stream { starts: BTreeMap::new(), unverified: Some(Unverified::Nobody) });
    }

    #[tokio::test]
    async fn a_stream_is_verified_once_every_connector_of_the_prefix_has_begun() {
        let changes = [known(&[("a", Some(3)), ("b", None)]), known(&[("a", Some(3)), ("b", Some(5))])];
        let mut told = Told(known(&[("a", None), ("b", None)]), changes.into());

        let stream = begun(&mut told, Duration::from_secs(600)).await;

        assert_eq!(stream.unverified, None);
        let starts = BTreeMap::from([("a".to_owned(), start("a", 3)), ("b".to_owned(), start("b", 5))]);
        assert_eq!(stream.starts, starts);
    }

    #[tokio::test]
    async fn one_that_has_not_begun_in_time_is_named_and_those_that_have_count() {
        let mut told = Told(known(&[("a", Some(3)), ("b", None)]), VecDeque::new());

        let stream = begun(&mut told, Duration::from_millis(5)).await;

        assert_eq!(stream.unverified, Some(Unverified::Late(vec!["b".to_owned()])));
        assert_eq!(stream.starts, BTreeMap::from([("a".to_owned(), start("a", 3))]));
        let words = stream.unverified.unwrap().to_string();
        assert!(words.contains("subscriptions of b") && words.contains("stream.start.timeout.ms"), "{words}");
    }

    #[tokio::test]
    async fn without_time_to_wait_what_is_known_decides() {
        let late = begun(&mut Told(known(&[("a", None)]), VecDeque::new()), Duration::ZERO).await;
        let known = begun(&mut Told(known(&[("a", Some(3))]), VecDeque::new()), Duration::ZERO).await;

        assert_eq!(late.unverified, Some(Unverified::Late(vec!["a".to_owned()])));
        assert_eq!(known.unverified, None);
    }
}
