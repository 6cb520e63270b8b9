//! A producer, and the thread that serves its events: reports, log lines, questions for a token.
//!
//! rdkafka's own, `ThreadedProducer`, asks for events for a tenth of a second at a time. librdkafka takes whole milliseconds, so the
//! last one of every turn is spent asking without waiting: a hundredth of a core for each producer that has nothing to do, and there is
//! one for every shard. Here a turn is a whole number of milliseconds and a little more, so that a quiet one has no rest.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    client::Client,
    config::FromClientConfigAndContext,
    error::{KafkaError, KafkaResult},
    producer::{BaseProducer, Producer as _, ProducerContext},
};

use super::context::{ClientHandle, Context, purge_everything};

/// How long events are waited for at a time, and so how long ending may take. Busy, it costs up to a millisecond of each turn.
const POLL_TIMEOUT: Duration = Duration::from_millis(250);
/// More than passes between two looks at the clock, less than it takes to wake up.
pub(super) const POLL_EXTRA: Duration = Duration::from_micros(50);

/// See the module's head. Dropping it waits for the thread, and for what librdkafka still has to say.
pub(super) struct PolledProducer<C: ProducerContext> {
    producer: Arc<BaseProducer<C>>,
    is_ending: Arc<AtomicBool>,
    /// Only `None` once it is being dropped.
    thread: Option<JoinHandle<()>>,
}

impl<C: ProducerContext + 'static> FromClientConfigAndContext<C> for PolledProducer<C> {
    fn from_config_and_context(config: &ClientConfig, context: C) -> KafkaResult<Self> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, context)?);
        let is_ending = Arc::new(AtomicBool::new(false));
        let (serving, ends) = (Arc::clone(&producer), Arc::clone(&is_ending));
        let serve = move || {
            while !ends.load(Ordering::Acquire) {
                serving.poll(POLL_TIMEOUT + POLL_EXTRA);
            }
        };
        let thread = thread::Builder::new().name("kafka-serve".into()).spawn(serve);
        let thread = thread.map_err(|error| KafkaError::ClientCreation(format!("no thread: {error}")))?;
        Ok(Self { producer, is_ending, thread: Some(thread) })
    }
}

impl<C: ProducerContext> Deref for PolledProducer<C> {
    type Target = BaseProducer<C>;

    fn deref(&self) -> &Self::Target {
        &self.producer
    }
}

impl<R> ClientHandle<R> for PolledProducer<Context<R>>
where
    Context<R>: ProducerContext,
{
    fn handle(&self) -> &Client<Context<R>> {
        self.client()
    }

    fn purge_if_fatal(&self) {
        if self.client().fatal_error().is_some() {
            self.purge(purge_everything());
        }
    }
}

impl<C: ProducerContext> Drop for PolledProducer<C> {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that serves a producer ended by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, sync::mpsc};

    use rdkafka::producer::{BaseRecord, DeliveryResult};

    use super::*;
    use crate::{client::Settings, embedded::EmbeddedCluster, role::ClientRole};

    /// Tells which thread serves the producer.
    struct ServingThread(mpsc::Sender<PathBuf>);

    impl ProducerContext for Context<ServingThread> {
        type DeliveryOpaque = ();

        fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {
            drop(self.own.0.send(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap())));
        }
    }

    /// Time that a thread has had a processor for, and how often it was given one.
    fn used(thread: &std::path::Path) -> (Duration, u64) {
        let text = fs::read_to_string(thread.join("schedstat")).unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        (Duration::from_nanos(numbers[0]), numbers[2])
    }

    #[test]
    fn a_producer_that_has_nothing_to_do_asks_for_nothing() {
        const TURNS: usize = 6;
        let cluster = EmbeddedCluster::start(1).unwrap();
        cluster.create_topic("events", 1).unwrap();
        let settings =
            Settings::new(&cluster.settings(), &ClientRole::Producer { queue_bytes: 1 << 20 }).unwrap();
        let (told, tells) = mpsc::channel();
        let producer: Arc<PolledProducer<Context<ServingThread>>> =
            settings.create(ServingThread(told)).unwrap();
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

        // One that spins to the end of a turn takes most of a millisecond for each. The least of them: a machine that is taken away
        // meanwhile counts as used.
        let least = turns.iter().min().unwrap();
        assert!(*least < Duration::from_micros(400), "{turns:?}");
    }
}
