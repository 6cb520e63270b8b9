//! A producer with the thread that polls it: delivery reports, log lines, token requests.
//!
//! rdkafka's `ThreadedProducer` polls with a timeout of 100 ms. librdkafka waits in whole milliseconds, so it spends the last
//! millisecond of every poll spinning: 1 % of a core per idle producer, and there is one producer per shard. Here the timeout
//! is slightly more than a whole number of milliseconds, which leaves no remainder to spin in.

use std::{ops::Deref, sync::Arc, thread, time::Duration};

use rdkafka::{
    ClientConfig,
    client::Client,
    config::FromClientConfigAndContext,
    error::{KafkaError, KafkaResult},
    producer::{BaseProducer, Producer as _, ProducerContext},
};

use super::context::{ClientCallbacks, ClientHandle, purge_everything};

/// Timeout of one poll, and so the longest until a dropped producer closes. A busy producer spins up to 1 ms per poll.
const POLL_TIMEOUT: Duration = Duration::from_millis(250);
/// Added to timeouts: longer than the time between two reads of the clock, shorter than a thread takes to wake up.
pub(super) const POLL_EXTRA: Duration = Duration::from_micros(50);

/// See the module's head. Dropping it does not block: the thread closes the client.
pub(super) struct PolledProducer<C: ProducerContext>(Arc<BaseProducer<C>>);

impl<C: ProducerContext + 'static> FromClientConfigAndContext<C> for PolledProducer<C> {
    fn from_config_and_context(config: &ClientConfig, context: C) -> KafkaResult<Self> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, context)?);
        let polled = Arc::clone(&producer);
        let poll = move || {
            // Until only the thread is left: it drops the client, which waits for librdkafka's threads.
            while Arc::strong_count(&polled) > 1 {
                polled.poll(POLL_TIMEOUT + POLL_EXTRA);
            }
        };
        let started = thread::Builder::new().name("kafka-serve".into()).spawn(poll);
        started.map_err(|error| KafkaError::ClientCreation(format!("no thread: {error}")))?;
        Ok(Self(producer))
    }
}

impl<C: ProducerContext> Deref for PolledProducer<C> {
    type Target = BaseProducer<C>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<R> ClientHandle<R> for PolledProducer<ClientCallbacks<R>>
where
    ClientCallbacks<R>: ProducerContext,
{
    fn handle(&self) -> &Client<ClientCallbacks<R>> {
        self.client()
    }

    fn purge_if_fatal(&self) {
        if self.client().fatal_error().is_some() {
            self.purge(purge_everything());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, sync::mpsc, time::Instant};

    use rdkafka::producer::{BaseRecord, DeliveryResult};

    use super::*;
    use crate::{client::Settings, embedded::EmbeddedCluster, role::ClientRole};

    /// Reports which thread polls the producer.
    struct ServingThread(mpsc::Sender<PathBuf>);

    impl ProducerContext for ClientCallbacks<ServingThread> {
        type DeliveryOpaque = ();

        fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {
            drop(self.own.0.send(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap())));
        }
    }

    /// CPU time of a thread, and how often it was scheduled.
    fn used(thread: &std::path::Path) -> (Duration, u64) {
        let text = fs::read_to_string(thread.join("schedstat")).unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        (Duration::from_nanos(numbers[0]), numbers[2])
    }

    #[test]
    fn idle_producer_does_not_spin() {
        const TURNS: usize = 6;
        let cluster = EmbeddedCluster::start(1).unwrap();
        cluster.create_topic("events", 1).unwrap();
        let settings =
            Settings::new(&cluster.settings(), &ClientRole::Producer { queue_bytes: 1 << 20 }).unwrap();
        let (reported, tells) = mpsc::channel();
        let producer: Arc<PolledProducer<ClientCallbacks<ServingThread>>> =
            settings.create(ServingThread(reported)).unwrap();
        producer
            .send(BaseRecord::to("events").key("key").payload("value"))
            .map_err(|(error, _)| error)
            .unwrap();
        let thread = tells.recv_timeout(Duration::from_secs(20)).unwrap();

        let (mut turns, mut last) = (Vec::new(), used(&thread));
        while turns.len() < TURNS {
            let now = used(&thread);
            if now.1 > last.1 {
                turns.push((now.0 - last.0) / u32::try_from(now.1 - last.1).unwrap());
                last = now;
            }
            thread::sleep(POLL_TIMEOUT / 10);
        }

        // A thread that spins to the end of a poll uses most of a millisecond each time. The minimum counts: if the machine
        // is paused, the pause counts as CPU time.
        let least = turns.iter().min().unwrap();
        assert!(*least < Duration::from_micros(400), "{turns:?}");

        drop(producer);
        // The directory of a thread in /proc goes with the thread.
        let ended = Instant::now() + Duration::from_secs(20);
        while thread.exists() {
            assert!(Instant::now() < ended, "the thread polls a producer that was dropped");
            thread::sleep(POLL_TIMEOUT / 10);
        }
    }
}
