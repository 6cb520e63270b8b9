//! Clients for queries, and topic metadata.

use std::{borrow::Borrow, collections::BTreeMap, sync::Arc, time::Duration};

use rdkafka::{
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode as Code},
};

use super::TopicPartition;
use crate::{
    Error,
    client::{Settings, ask_until_answered, on_closing_thread},
    context::ClientCallbacks,
    sys::{self, TopicMetadata},
};

/// Most events served at once when the reason of a failure or the last log lines may be queued.
const MAX_SERVED_EVENTS: usize = 10_000;
/// Shortest timeout of a query.
pub(super) const MIN_QUERY_TIMEOUT: Duration = Duration::from_millis(1);
/// The client for queries and for reading.
pub(crate) type ConsumerClient<R = ()> = BaseConsumer<ClientCallbacks<R>>;

/// Creates a consumer for queries, with its token. Its queue is only polled when a query fails and by [`close`].
pub(super) fn open(settings: &Settings) -> Result<Arc<ConsumerClient>, Error> {
    let client: Arc<ConsumerClient> = settings.create(())?;
    settings.hand_token(client.client())?;
    Ok(client)
}

/// Closes a consumer made by [`open`] after serving its queued log lines.
pub(super) fn close(client: Arc<ConsumerClient>) {
    on_closing_thread(move || close_here(client));
}

/// As [`close`], on the calling thread, which waits for librdkafka.
pub(super) fn close_here(client: Arc<ConsumerClient>) {
    serve_queued(&client);
    drop(client);
}

/// Checks that each topic and partition exists.
pub(super) fn check_partitions(
    client: &ConsumerClient,
    places: &[TopicPartition],
    left: impl Fn() -> Duration,
) -> Result<(), Error> {
    let found = find_topics(client, &topics_of(places), left())?;
    for (topic, partition) in places {
        if !known_topic(topic, found.get(&**topic).map(Result::as_ref))?.partitions.contains(partition) {
            let action = format!("find partition {partition} of topic {topic}");
            return Err(Error::request(action, KafkaError::MetadataFetch(Code::UnknownPartition)));
        }
    }
    Ok(())
}

/// The topics of these partitions, without duplicates.
pub(super) fn topics_of(places: &[TopicPartition]) -> Vec<&str> {
    let mut names: Vec<&str> = places.iter().map(|(topic, _)| &**topic).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Reads the metadata of a topic, which must exist. Call it before another thread polls the client.
pub(crate) fn find_topic<R>(
    client: &ConsumerClient<R>,
    name: &str,
    limit: Duration,
) -> Result<TopicMetadata, Error>
where
    ClientCallbacks<R>: ConsumerContext,
{
    known_topic(name, find_topics(client, &[name], limit)?.remove(name))
}

/// A topic's metadata, or the error if it is missing.
fn known_topic<T, C: Borrow<Code>>(name: &str, found: Option<Result<T, C>>) -> Result<T, Error> {
    let found = found.map_or(Err(Code::UnknownTopic), |found| found.map_err(|code| *code.borrow()));
    found.map_err(|code| Error::request(format!("find topic {name}"), KafkaError::MetadataFetch(code)))
}

/// Reads the metadata of topics with one request. Call it before another thread polls the client. A starting broker may
/// answer with neither brokers nor topics; the request is then repeated.
pub(crate) fn find_topics<R>(
    client: &ConsumerClient<R>,
    names: &[&str],
    limit: Duration,
) -> Result<BTreeMap<String, Result<TopicMetadata, Code>>, Error>
where
    ClientCallbacks<R>: ConsumerContext,
{
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let action = || match names {
        [name] => format!("find topic {name}"),
        several => format!("find topics {}", several.join(", ")),
    };
    ask_until_answered(limit, |step| {
        sys::find_topics(client.client(), names, step).map_err(|error| {
            // The reason may be in the queue, which was not polled yet.
            serve_queued(client);
            client.context().failed(action(), error)
        })
    })
}

/// Serves the events in the client's queue, mostly log lines, one per poll. `poll` returns the same for an event and for an
/// empty queue, hence the separate check.
pub(super) fn serve_queued(client: &BaseConsumer<impl ConsumerContext>) {
    for _ in 0..MAX_SERVED_EVENTS {
        if !sys::has_events(client.client()) {
            return;
        }
        drop(client.poll(Duration::ZERO));
    }
}
