//! The thread that polls for the group, and does nothing else: whoever is late here holds up every other member.

use std::{
    sync::{Arc, RwLock},
    thread,
    time::Duration,
};

use rdkafka::{
    TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Options, holdings::Holdings, lease, locked};
use crate::{
    config::Kafka,
    kafka::{
        Error,
        client::{Role, Settings},
        consumer::partitions_of,
        context::{Context, Rebalances},
        error::Cause,
        served::MORE,
        sys,
    },
    lapse,
    retry::{Chain, Retry},
};

/// The longest one poll waits: how late a stop may be noticed. A little more than whole milliseconds, for the reason in
/// [`served`](super::super::served).
const STEP: Duration = Duration::from_millis(100).saturating_add(MORE);
/// As long as a renewal is still under way at the end, events are served in steps of this length.
const LAST_STEP: Duration = Duration::from_millis(10);

/// A client that is told what the group gives and takes.
pub(super) type Client = BaseConsumer<Context>;

/// Where others find the client for as long as it is a member. Whoever looks must not keep it: ending it blocks, and is
/// for the thread that polls.
pub(super) type Slot = Arc<RwLock<Option<Arc<Client>>>>;

/// What the thread is to do.
pub(super) struct Order {
    pub(super) kafka: Kafka,
    pub(super) options: Options,
    /// The longest the topic may take to be found.
    pub(super) connect_limit: Duration,
    pub(super) holdings: Arc<Holdings>,
    pub(super) slot: Slot,
    pub(super) stop: CancellationToken,
}

/// Joins, tells how many partitions the topic has, and polls until stopped.
pub(super) fn run(order: &Order, joined: oneshot::Sender<Result<i32, Error>>) {
    // Whatever ends this thread, a fault of the program too: nothing may be held by a member that does not poll.
    let over = Over(order);
    let (client, partitions) = match join(order) {
        Err(error) => return drop(joined.send(Err(error))),
        Ok(opened) => opened,
    };
    if joined.send(Ok(partitions)).is_ok() {
        match renew(order, &client) {
            Ok(renewing) => poll(order, &client, &renewing),
            // Without leases nothing may be held: better not be a member.
            Err(error) => {
                tracing::error!(%error, "no thread to renew the lease on");
                order.holdings.failed(format!("no thread to renew the lease on: {error}"));
            }
        }
    }
    // In any case, or whoever lets go of the slot last would end the client.
    locked(order.slot.write()).take();
    // Tells the group, after a last call of ours to give everything back.
    drop(client);
    drop(over);
}

/// The end of the thread.
struct Over<'a>(&'a Order);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let Order { slot, holdings, stop, .. } = self.0;
        // Still there after a fault only: the group then learns of it by the session.
        locked(slot.write()).take();
        if thread::panicking() {
            holdings.failed("the thread that polls for the group has a fault, see the log".to_owned());
        }
        holdings.end();
        stop.cancel();
    }
}

fn join(order: &Order) -> Result<(Arc<Client>, i32), Error> {
    let Order { kafka, options, .. } = order;
    let role = Role::Member {
        group: options.group.as_str().into(),
        session: options.session,
        heartbeat: options.heartbeat,
    };
    let settings = Settings::new(kafka, &role)?;
    let rebalances =
        Arc::new(Changes { holdings: Arc::clone(&order.holdings), group: options.group.clone() });
    let client: Arc<Client> = settings.create(|context| context.telling(rebalances))?;
    settings.hand_token(client.client())?;
    let partitions = partitions_of(&client, &options.topic, order.connect_limit)?;
    let action = || format!("join group {} for topic {}", options.group, options.topic);
    client.subscribe(&[&options.topic]).map_err(|error| Error::request(action(), error))?;
    *locked(order.slot.write()) = Some(Arc::clone(&client));
    Ok((client, i32::try_from(partitions.len()).unwrap_or(i32::MAX)))
}

fn renew(order: &Order, client: &Arc<Client>) -> std::io::Result<thread::JoinHandle<()>> {
    let (client, holdings, stop) = (Arc::clone(client), Arc::clone(&order.holdings), order.stop.clone());
    let (topic, heartbeat) = (order.options.topic.clone(), order.options.heartbeat);
    thread::Builder::new()
        .name("kafka-lease".into())
        .spawn(move || lease::run(&client, &holdings, &topic, heartbeat, &stop))
}

fn poll(order: &Order, client: &Client, renewing: &thread::JoinHandle<()>) {
    let Order { holdings, stop, .. } = order;
    let mut last = None;
    // Without leases nothing may be held, so neither may the group count on us.
    while !stop.is_cancelled() && !renewing.is_finished() {
        holdings.polling(lapse::now());
        if let Some(Err(error)) = client.poll(STEP) {
            report(order, error, &mut last);
        }
        // What is read before a partition is paused is nobody's.
    }
    if !stop.is_cancelled() {
        tracing::error!(group = order.options.group, "the thread that renews the lease has ended by itself");
        holdings.failed("the thread that renews the lease has a fault, see the log".to_owned());
    }
    holdings.wake();
    // Its commit must not be the last to know the client. Commits have limits of their own.
    while !renewing.is_finished() {
        drop(client.poll(LAST_STEP));
    }
}

/// librdkafka goes on by itself after all of them; the same one again is no news.
fn report(order: &Order, error: KafkaError, last: &mut Option<Code>) {
    let Options { group, topic, .. } = &order.options;
    let code = Cause::from(error.clone()).code();
    let error = Error::request(format!("take part in group {group}"), error);
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    if error.retry() == Retry::Later || *last == code {
        tracing::debug!(group, topic, error = %error, source, "the group is held up");
    } else {
        tracing::error!(group, topic, error = %error, source, "the group cannot share its work");
    }
    *last = code;
    order.holdings.failed(Chain(&error).to_string());
}

/// Hears what the group gives and takes.
struct Changes {
    holdings: Arc<Holdings>,
    group: String,
}

impl Rebalances for Changes {
    fn assigned(&self, consumer: &Client, partitions: &TopicPartitionList) {
        if partitions.count() > 0 {
            tracing::info!(group = self.group, partitions = ?numbers(partitions), "partitions assigned");
            // Only who owns them matters. Those that are not paused are read in vain, nothing more.
            if let Err(error) = consumer.pause(partitions) {
                tracing::debug!(group = self.group, %error, "partitions are not paused");
            }
        }
        self.holdings.settled(sys::group_generation(consumer.client()), numbers(partitions));
    }

    fn revoked(&self, consumer: &Client, partitions: &TopicPartitionList) {
        self.holdings.revoked(numbers(partitions));
        if consumer.assignment_lost() {
            self.holdings.lost();
        }
        if partitions.count() > 0 {
            tracing::info!(group = self.group, partitions = ?numbers(partitions), "partitions revoked");
        }
    }
}

/// There is one topic only.
fn numbers(partitions: &TopicPartitionList) -> Vec<i32> {
    partitions.elements().iter().map(|element| element.partition()).collect()
}
