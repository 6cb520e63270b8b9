//! Heartbeats: which deliveries came to this worker and which secrets it knows, as `heard/{connector}/{worker}` of the state topic.
//!
//! - At once when a connector is received or its secrets change: the reconciler uses a new secret once every worker reports it.
//! - At [`Advertised::every`](crate::webhooks::receiver_table::Advertised) after deliveries, and at [`HEARTBEAT_INTERVAL`] in any case: a
//!   worker without a heartbeat no longer counts as one that receives.
//! - None for a stopped connector, and none on a worker without `webhook.listeners`, which only drains its spool: they take no deliveries.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use model::{Key, Moment};

use crate::webhooks::receiver_table::{Advertised, DeliveryStats, Receiver, ReceiverState};

/// Longest time between two heartbeats of a connector.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(20);

/// A heartbeat to be written.
#[derive(Debug)]
pub(super) struct DueHeartbeat {
    pub(super) connector: String,
    pub(super) prefix: String,
    pub(super) key: Key,
    pub(super) value: Value,
    sent: SentHeartbeat,
}

/// The last heartbeat of a connector.
#[derive(Debug, Clone)]
struct SentHeartbeat {
    prefix: String,
    advertised: Advertised,
    count: u64,
    at: Instant,
}

/// Decides when which heartbeat is due.
#[derive(Debug)]
pub(super) struct Heartbeat {
    pub(super) worker: Arc<str>,
    pub(super) delivery_stats: DeliveryStats,
    /// Whether this worker has listeners.
    receives: bool,
    sent: BTreeMap<String, SentHeartbeat>,
    /// Since when each connector is received here.
    since: BTreeMap<String, i64>,
}

impl Heartbeat {
    pub(super) fn new(worker: Arc<str>, delivery_stats: DeliveryStats, receives: bool) -> Self {
        Self { worker, delivery_stats, receives, sent: BTreeMap::new(), since: BTreeMap::new() }
    }

    /// The heartbeats that are due now, and when to ask again.
    pub(super) fn due(
        &mut self,
        receivers: &[Arc<Receiver>],
        now: Instant,
    ) -> (Vec<DueHeartbeat>, Option<Instant>) {
        let takes = |receiver: &&Arc<Receiver>| self.receives && receiver.state != ReceiverState::Stopped;
        let taking: Vec<&Arc<Receiver>> = receivers.iter().filter(takes).collect();
        let is_received = |name: &str| taking.iter().any(|receiver| &*receiver.connector == name);
        self.delivery_stats.retain(is_received);
        self.sent.retain(|name, _| is_received(name));
        self.since.retain(|name, _| is_received(name));
        let (mut due, mut again) = (Vec::new(), None::<Instant>);
        for receiver in taking {
            let name = &*receiver.connector;
            self.since.entry(name.to_owned()).or_insert_with(|| Moment::now().micros());
            let next = match self.sent.get(name) {
                None => now,
                Some(sent) if sent.advertised != receiver.advertised || *sent.prefix != *receiver.prefix => {
                    now
                }
                Some(sent) if self.delivery_stats.count(name) != sent.count => {
                    sent.at + receiver.advertised.every
                }
                Some(sent) => sent.at + HEARTBEAT_INTERVAL,
            };
            if next <= now {
                due.push(self.record(receiver, now));
            }
            let next_check = now + receiver.advertised.every.min(HEARTBEAT_INTERVAL);
            again = Some(again.map_or(next_check, |known| known.min(next_check)));
        }
        (due, again)
    }

    /// Kafka has it.
    pub(super) fn done(&mut self, due: DueHeartbeat) {
        self.sent.insert(due.connector, due.sent);
    }

    fn record(&self, receiver: &Receiver, now: Instant) -> DueHeartbeat {
        let name = &*receiver.connector;
        let stats = self.delivery_stats.of(name);
        let sent = SentHeartbeat {
            prefix: receiver.prefix.to_string(),
            advertised: receiver.advertised.clone(),
            count: stats.count,
            at: now,
        };
        let at = Moment::now().micros();
        let value = model::ReceiverReport {
            worker: self.worker.to_string(),
            at,
            since: self.since.get(name).copied().unwrap_or(at),
            accounting: receiver.advertised.accounting.clone(),
            invoicing: receiver.advertised.invoicing.clone(),
            hook_addresses: true,
            tells_echoes: true,
            webhooks: stats.webhooks,
            hooks: stats.hooks,
        };
        DueHeartbeat {
            connector: name.to_owned(),
            prefix: receiver.prefix.to_string(),
            key: model::ReceiverReport::key(name, &self.worker),
            // Plain data with texts as keys: it always becomes JSON.
            value: serde_json::to_value(value).unwrap_or_default(),
            sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Fingerprint;

    use super::*;
    use crate::{
        config::{Providers, WebhookSource},
        plugin::samples::webhook_config,
        webhooks::receiver_table::DeliveredBy,
    };

    fn receiver(secret: &str, state: ReceiverState) -> Arc<Receiver> {
        let mut config = webhook_config();
        config.insert("accounting.secret".into(), secret.into());
        config.insert("subscriptions.poll.interval.ms".into(), "4000".into());
        let (source, _) = WebhookSource::parse("hooks", &config, &Providers::new([])).unwrap();
        Arc::new(Receiver::of(&source, "dead".to_owned(), state).unwrap())
    }

    fn send_due(heartbeat: &mut Heartbeat, receivers: &[Arc<Receiver>], now: Instant) -> Vec<Value> {
        let (due, _) = heartbeat.due(receivers, now);
        let values = due.iter().map(|due| due.value.clone()).collect();
        due.into_iter().for_each(|due| heartbeat.done(due));
        values
    }

    #[tokio::test]
    async fn new_secrets_are_sent_at_once_and_deliveries_at_an_interval() {
        let mut heartbeat = Heartbeat::new("w:1".into(), DeliveryStats::default(), true);
        let (first, second) = ("0123456789abcdef-first", "0123456789abcdef-second");
        let receivers = [receiver(first, ReceiverState::Running)];
        let now = Instant::now();

        let begun = send_due(&mut heartbeat, &receivers, now);
        let nothing_new = send_due(&mut heartbeat, &receivers, now + Duration::from_secs(2));
        heartbeat.delivery_stats.note(&receivers[0].connector, DeliveredBy::Webhook("w-1", None), 5);
        let too_soon = send_due(&mut heartbeat, &receivers, now + Duration::from_millis(500));
        let after_deliveries = send_due(&mut heartbeat, &receivers, now + Duration::from_secs(2));
        let rotated = send_due(
            &mut heartbeat,
            &[receiver(second, ReceiverState::Running)],
            now + Duration::from_secs(2),
        );
        let alive = send_due(
            &mut heartbeat,
            &[receiver(second, ReceiverState::Running)],
            now + Duration::from_secs(23),
        );

        let known = |secret| serde_json::json!([Fingerprint::of(secret)]);
        assert_eq!((begun.len(), &begun[0]["accounting"]), (1, &known(first)));
        assert!(nothing_new.is_empty() && too_soon.is_empty());
        assert_eq!(
            (after_deliveries.len(), &after_deliveries[0]["webhooks"]["w-1"]["count"]),
            (1, &1.into())
        );
        assert_eq!((rotated.len(), &rotated[0]["accounting"]), (1, &known(second)));
        assert_eq!(alive.len(), 1);
    }

    #[tokio::test]
    async fn a_worker_without_listeners_sends_no_heartbeat() {
        let receivers = [receiver("0123456789abcdef-first", ReceiverState::Running)];
        let sends = |receives| {
            let mut heartbeat = Heartbeat::new("w:1".into(), DeliveryStats::default(), receives);
            send_due(&mut heartbeat, &receivers, Instant::now()).len()
        };

        assert_eq!((sends(true), sends(false)), (1, 0));
    }

    #[tokio::test]
    async fn a_stopped_connector_has_no_heartbeat() {
        let mut heartbeat = Heartbeat::new("w:1".into(), DeliveryStats::default(), true);
        let secret = "0123456789abcdef-first";
        let now = Instant::now();

        let running = send_due(&mut heartbeat, &[receiver(secret, ReceiverState::Running)], now);
        let stopped = send_due(&mut heartbeat, &[receiver(secret, ReceiverState::Stopped)], now);
        let resumed = send_due(&mut heartbeat, &[receiver(secret, ReceiverState::Paused)], now);

        assert_eq!((running.len(), stopped.len(), resumed.len()), (1, 0, 1));
    }
}
