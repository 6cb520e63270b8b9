//! The start of the stream: no page of a list is read before every later change would be delivered as an event.
//!
//! ```text
//! managed WebhookSources of the prefix ─▶ none ─────────────────────────────▶ unverified
//!                                       └▶ each has its `start/` record ────▶ verified
//!                                       └▶ not all, and the time is up ─────▶ unverified, for those that have none
//! ```
//!
//! A start is stored in the state topic, so the next task instance finds it after a crash. It names the current subscription; after a
//! new subscription of the same target, the target starts again.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use model::TopicPrefix;

use crate::{
    config::connector::{Class, SubscriptionTargets, keys::CONNECTOR_CLASS},
    plugin::Tools,
    state::{
        configs::{Configs, StoredConnector},
        state_topic::StateTopic,
    },
};

/// How often to check for a state topic that this worker does not read yet.
const STATE_TOPIC_POLL: Duration = Duration::from_secs(1);

/// Why a stream is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unverified {
    /// No connector manages subscriptions for this prefix.
    Unmanaged,
    /// These connectors had not started when the time was up.
    Late(Vec<String>),
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmanaged => {
                f.write_str("no WebhookSource with the same topic.prefix manages subscriptions")
            }
            Self::Late(names) => {
                let names = names.join(", ");
                write!(f, "subscriptions of {names} were not all active within stream.start.timeout.ms")
            }
        }
    }
}

/// Waits until the stream of a prefix has started, at most for `limit` (`stream.start.timeout.ms`). Returns why it is not verified;
/// `None` if it is.
pub(super) async fn started(tools: &Tools, prefix: &TopicPrefix, limit: Duration) -> Option<Unverified> {
    wait(limit, || starts(tools, prefix), || changed(tools, prefix)).await
}

/// `starts` returns whether each connector has started; `changed` returns when that may have changed.
async fn wait<F: Future<Output = ()>>(
    limit: Duration,
    starts: impl Fn() -> BTreeMap<String, bool>,
    changed: impl Fn() -> F,
) -> Option<Unverified> {
    let until = Instant::now().checked_add(limit);
    let mut is_over = false;
    loop {
        let starts = starts();
        if starts.is_empty() {
            return Some(Unverified::Unmanaged);
        }
        let late: Vec<String> =
            starts.into_iter().filter(|(_, started)| !started).map(|(name, _)| name).collect();
        if late.is_empty() {
            return None;
        }
        if is_over {
            return Some(Unverified::Late(late));
        }
        // A start at the last moment still counts.
        match until {
            Some(until) => is_over = timeout_at(until, changed()).await.is_err(),
            // The limit exceeds the range of the clock.
            None => changed().await,
        }
    }
}

/// The `WebhookSource`s that manage subscriptions of the prefix, each with whether its stream has started, as far as this worker has
/// read the topics.
fn starts(tools: &Tools, prefix: &TopicPrefix) -> BTreeMap<String, bool> {
    let is_managed = |connector: &StoredConnector| {
        let class = connector.config.get(CONNECTOR_CLASS.name).and_then(|class| Class::parse(class));
        class == Some(Class::WebhookSource)
            && SubscriptionTargets::of(&connector.config, &tools.worker.providers)
                .is_some_and(|declared| declared.manage && declared.topic_prefix == *prefix)
    };
    let names = |configs: &Configs| -> Vec<String> {
        let managed = configs.connectors().iter().filter(|(_, connector)| is_managed(connector));
        managed.map(|(name, _)| name.clone()).collect()
    };
    let state_topic = state_topic(tools, prefix);
    let started =
        |name: &str| state_topic.as_ref().is_some_and(|topic| topic.read(name, |one| one.start.is_some()));
    tools.configs.read(names).into_iter().map(|name| (name.clone(), started(&name))).collect()
}

async fn changed(tools: &Tools, prefix: &TopicPrefix) {
    let mut configs = tools.configs.changes();
    configs.borrow_and_update();
    let state_change = async {
        match state_topic(tools, prefix) {
            Some(topic) => {
                let mut changes = topic.changes();
                changes.borrow_and_update();
                // The poll finds a change between the last check and this subscription.
                tokio::select! { _ = changes.changed() => {} () = sleep(STATE_TOPIC_POLL) => {} }
            }
            None => sleep(STATE_TOPIC_POLL).await,
        }
    };
    tokio::select! {
        _ = configs.changed() => {}
        () = state_change => {}
    }
}

fn state_topic(tools: &Tools, prefix: &TopicPrefix) -> Option<StateTopic> {
    tools.state_topics.known(prefix.as_str()).filter(StateTopic::is_caught_up)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::VecDeque};

    use super::*;

    type Starts = BTreeMap<String, bool>;

    fn known(all: &[(&str, bool)]) -> Starts {
        all.iter().map(|(name, started)| ((*name).to_owned(), *started)).collect()
    }

    /// Result of `wait` for these starts, and these changes after them.
    async fn waited(limit: Duration, first: Starts, changes: &[Starts]) -> Option<Unverified> {
        let (now, later) = (RefCell::new(first), RefCell::new(VecDeque::from(changes.to_vec())));
        let changed = || {
            let (next, now) = (later.borrow_mut().pop_front(), &now);
            async move {
                match next {
                    Some(next) => drop(now.replace(next)),
                    None => std::future::pending().await,
                }
            }
        };
        wait(limit, || now.borrow().clone(), changed).await
    }

    #[tokio::test]
    async fn prefix_without_managed_subscriptions_is_not_waited_for() {
        assert_eq!(waited(Duration::MAX, known(&[]), &[]).await, Some(Unverified::Unmanaged));
    }

    #[tokio::test]
    async fn stream_is_verified_once_every_connector_has_started() {
        let changes = [known(&[("a", true), ("b", false)]), known(&[("a", true), ("b", true)])];

        let unverified =
            waited(Duration::from_secs(600), known(&[("a", false), ("b", false)]), &changes).await;

        assert_eq!(unverified, None);
    }

    #[tokio::test]
    async fn connector_that_has_not_started_in_time_is_named() {
        let late = waited(Duration::from_millis(5), known(&[("a", true), ("b", false)]), &[]).await.unwrap();

        assert_eq!(late, Unverified::Late(vec!["b".to_owned()]));
        let words = late.to_string();
        assert!(words.contains("subscriptions of b") && words.contains("stream.start.timeout.ms"), "{words}");
    }

    #[tokio::test]
    async fn without_time_to_wait_known_starts_decide() {
        let late = waited(Duration::ZERO, known(&[("a", false)]), &[]).await;
        let started = waited(Duration::ZERO, known(&[("a", true)]), &[]).await;

        assert_eq!(late, Some(Unverified::Late(vec!["a".to_owned()])));
        assert_eq!(started, None);
    }
}
