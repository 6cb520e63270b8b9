//! What this worker has heard and which secrets it knows, as `heard/{connector}/{worker}` of the state topic.
//!
//! - Told at once where a connector begins to be received or its secrets have changed: a secret is used for new subscriptions once
//!   every receiver knows it.
//! - Told every so often ([`Told::every`](crate::webhooks::receivers::Told)) where deliveries have come, and every [`ALIVE`] in
//!   any case: a worker that is not heard of any more counts for nothing.
//! - Nothing is told of one that is stopped: it takes no deliveries.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use model::{Key, Moment};

use crate::webhooks::receivers::{Hearing, Receiver, Taking, Told};

/// The longest that nothing is told of a connector that is received.
pub(super) const ALIVE: Duration = Duration::from_secs(20);

/// A record that is due.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) connector: String,
    pub(super) prefix: String,
    pub(super) key: Key,
    pub(super) value: Value,
    said: Said,
}

/// What was last told of a connector.
#[derive(Debug, Clone)]
struct Said {
    prefix: String,
    told: Told,
    count: u64,
    at: Instant,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) worker: Arc<str>,
    pub(super) hearing: Hearing,
    said: BTreeMap<String, Said>,
    /// Since when each connector is received here.
    since: BTreeMap<String, i64>,
}

impl Telling {
    pub(super) fn new(worker: Arc<str>, hearing: Hearing) -> Self {
        Self { worker, hearing, said: BTreeMap::new(), since: BTreeMap::new() }
    }

    /// What is to be told now, and when to look again.
    pub(super) fn due(&mut self, receivers: &[Arc<Receiver>], now: Instant) -> (Vec<Due>, Option<Instant>) {
        let taking: Vec<&Arc<Receiver>> =
            receivers.iter().filter(|receiver| receiver.state != Taking::Nothing).collect();
        let is_received = |name: &str| taking.iter().any(|receiver| &*receiver.connector == name);
        self.hearing.retain(is_received);
        self.said.retain(|name, _| is_received(name));
        self.since.retain(|name, _| is_received(name));
        let (mut due, mut again) = (Vec::new(), None::<Instant>);
        for receiver in taking {
            let name = &*receiver.connector;
            self.since.entry(name.to_owned()).or_insert_with(|| Moment::now().micros());
            let next = match self.said.get(name) {
                None => now,
                Some(said) if said.told != receiver.told || *said.prefix != *receiver.prefix => now,
                Some(said) if self.hearing.count(name) != said.count => said.at + receiver.told.every,
                Some(said) => said.at + ALIVE,
            };
            if next <= now {
                due.push(self.record(receiver, now));
            }
            let look = now + receiver.told.every.min(ALIVE);
            again = Some(again.map_or(look, |known| known.min(look)));
        }
        (due, again)
    }

    /// Kafka has it.
    pub(super) fn done(&mut self, due: Due) {
        self.said.insert(due.connector, due.said);
    }

    fn record(&self, receiver: &Receiver, now: Instant) -> Due {
        let name = &*receiver.connector;
        let heard = self.hearing.of(name);
        let said = Said {
            prefix: receiver.prefix.to_string(),
            told: receiver.told.clone(),
            count: heard.count,
            at: now,
        };
        let at = Moment::now().micros();
        let value = model::Heard {
            worker: self.worker.to_string(),
            at,
            since: self.since.get(name).copied().unwrap_or(at),
            accounting: receiver.told.accounting.clone(),
            invoicing: receiver.told.invoicing.clone(),
            hook_addresses: true,
            tells_echoes: true,
            webhooks: heard.webhooks,
            hooks: heard.hooks,
        };
        Due {
            connector: name.to_owned(),
            prefix: receiver.prefix.to_string(),
            key: model::Heard::key(name, &self.worker),
            // Plain data with texts as keys: it always becomes JSON.
            value: serde_json::to_value(value).unwrap_or_default(),
            said,
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
        webhooks::receivers::By,
    };

    fn receiver(secret: &str, state: Taking) -> Arc<Receiver> {
        let mut config = webhook_config();
        config.insert("accounting.secret".into(), secret.into());
        config.insert("subscriptions.poll.interval.ms".into(), "4000".into());
        let (source, _) = WebhookSource::parse("hooks", &config, &Providers::new([])).unwrap();
        Arc::new(Receiver::of(&source, "dead".to_owned(), state).unwrap())
    }

    fn tell(telling: &mut Telling, receivers: &[Arc<Receiver>], now: Instant) -> Vec<Value> {
        let (due, _) = telling.due(receivers, now);
        let values = due.iter().map(|due| due.value.clone()).collect();
        due.into_iter().for_each(|due| telling.done(due));
        values
    }

    #[tokio::test]
    async fn a_new_secret_is_told_at_once_and_deliveries_every_so_often() {
        let mut telling = Telling::new("w:1".into(), Hearing::default());
        let (first, second) = ("0123456789abcdef-first", "0123456789abcdef-second");
        let receivers = [receiver(first, Taking::All)];
        let now = Instant::now();

        let begun = tell(&mut telling, &receivers, now);
        let nothing_new = tell(&mut telling, &receivers, now + Duration::from_secs(2));
        telling.hearing.note(&receivers[0].connector, By::Webhook("w-1", None), 5);
        let too_soon = tell(&mut telling, &receivers, now + Duration::from_millis(500));
        let heard = tell(&mut telling, &receivers, now + Duration::from_secs(2));
        let rotated = tell(&mut telling, &[receiver(second, Taking::All)], now + Duration::from_secs(2));
        let alive = tell(&mut telling, &[receiver(second, Taking::All)], now + Duration::from_secs(23));

        let known = |secret| serde_json::json!([Fingerprint::of(secret)]);
        assert_eq!((begun.len(), &begun[0]["accounting"]), (1, &known(first)));
        assert!(nothing_new.is_empty() && too_soon.is_empty());
        assert_eq!((heard.len(), &heard[0]["webhooks"]["w-1"]["count"]), (1, &1.into()));
        assert_eq!((rotated.len(), &rotated[0]["accounting"]), (1, &known(second)));
        assert_eq!(alive.len(), 1);
    }

    #[tokio::test]
    async fn nothing_is_told_of_a_connector_that_is_stopped_and_all_again_once_it_runs() {
        let mut telling = Telling::new("w:1".into(), Hearing::default());
        let secret = "0123456789abcdef-first";
        let now = Instant::now();

        let running = tell(&mut telling, &[receiver(secret, Taking::All)], now);
        let stopped = tell(&mut telling, &[receiver(secret, Taking::Nothing)], now);
        let resumed = tell(&mut telling, &[receiver(secret, Taking::SpoolOnly)], now);

        assert_eq!((running.len(), stopped.len(), resumed.len()), (1, 0, 1));
    }
}
