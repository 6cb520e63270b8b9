//! First and end offsets of partitions, also behind open transactions.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode as Code},
};

use super::{
    Ends, StartOffset, TopicPartition, client_pool,
    query::{self, ConsumerClient, MIN_QUERY_TIMEOUT, check_partitions, close, find_topics, topics_of},
};
use crate::{
    Error, Kafka, OpenTransaction,
    client::{Settings, ask_until_answered, blocking},
    role::{ClientRole, Isolation},
};

/// Time limit for a broker that does not know a partition yet, and for the watermarks after an out-of-range offset.
pub(super) const WATERMARK_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two such queries.
const UNKNOWN_PARTITION_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two checks whether transactions have ended.
const UNDECIDED_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for reading the age of an open transaction.
const AGE_LOOKUP_LIMIT: Duration = Duration::from_millis(500);
/// Most open transactions whose age is read.
const MAX_AGE_LOOKUPS: usize = 4;
/// Most time reserved at the end of a limit for describing the open transactions.
const MAX_REPORT_TIME: Duration = Duration::from_secs(3);

/// The first offset of each partition, and the offset after its last visible record.
pub(super) fn ends(
    kafka: &Kafka,
    places: &[TopicPartition],
    isolation: Isolation,
    limit: Duration,
) -> Result<Ends, Error> {
    let end = Instant::now() + limit;
    let left = || end.saturating_duration_since(Instant::now()).max(MIN_QUERY_TIMEOUT);
    client_pool::ask(kafka, &ClientRole::Query(isolation), |client| {
        check_partitions(client, places, left)?;
        ask_ends(client, places, left)
    })
}

/// Where the records of this time or later begin in each partition, in milliseconds since 1970: at the first record that has such a
/// timestamp. Partitions without one start at their end.
pub async fn offsets_since(
    kafka: &Kafka,
    places: &[TopicPartition],
    timestamp_ms: i64,
    limit: Duration,
) -> Result<BTreeMap<TopicPartition, StartOffset>, Error> {
    if places.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (kafka, places) = (kafka.clone(), places.to_vec());
    let ask = move || {
        let end = Instant::now() + limit;
        let left = || end.saturating_duration_since(Instant::now()).max(MIN_QUERY_TIMEOUT);
        client_pool::ask(&kafka, &ClientRole::Query(Isolation::ReadCommitted), |client| {
            check_partitions(client, &places, left)?;
            // A negative number would be one of librdkafka's names for the start and the end.
            let since = Offset::Offset(timestamp_ms.max(0));
            ask_until_answered(left(), |step| {
                ask_patiently(step, |limit| ask_offsets(client, &places, since, limit))
            })
        })
    };
    let found = blocking("ask for the offsets of a time", ask).await??;
    let start = |offset| if offset < 0 { StartOffset::End } else { StartOffset::Offset(offset) };
    Ok(found.into_iter().map(|(place, offset)| (place, start(offset))).collect())
}

/// The ends, once they are behind everything that was in the log before this call: while a transaction is open, the broker
/// reports its start as the end (the last stable offset). The error names the transactions that are still open after
/// `transaction_wait`, or when `is_cancelled`.
pub(super) fn decided_ends(
    kafka: &Kafka,
    places: &[TopicPartition],
    transaction_wait: Duration,
    limit: Duration,
    is_cancelled: impl Fn() -> bool,
) -> Result<Ends, Error> {
    let end = Instant::now() + limit;
    let left = || end.saturating_duration_since(Instant::now()).max(MIN_QUERY_TIMEOUT);
    client_pool::ask(kafka, &ClientRole::Query(Isolation::ReadCommitted), |client| {
        check_partitions(client, places, left)?;
        let last = client_pool::ask(kafka, &ClientRole::Query(Isolation::ReadUncommitted), |asking| {
            // The leaders may have changed since this client's last query. A restarted broker may not know the partitions yet, so
            // the query for their offsets is repeated.
            find_topics(asking, &topics_of(places), left().min(WATERMARK_LIMIT)).ok();
            ask_ends(asking, places, left)
        })?;
        let telling = (limit / 4).min(MAX_REPORT_TIME);
        let begun = Instant::now();
        loop {
            let ends = ask_ends(client, places, left)?;
            let open: Vec<(&TopicPartition, i64)> = ends
                .iter()
                .filter(|(place, (_, end))| last.get(*place).is_some_and(|(_, last)| end < last))
                .map(|(place, (_, end))| (place, *end))
                .collect();
            if open.is_empty() {
                return Ok(ends);
            }
            let waited = begun.elapsed();
            if waited >= transaction_wait || left() <= telling || is_cancelled() {
                return Err(Error::Undecided { open: open_transactions(kafka, &open, left)?, waited });
            }
            thread::sleep(UNDECIDED_PAUSE.min(left()));
        }
    })
}

/// Describes the transactions that are open from these offsets on.
fn open_transactions(
    kafka: &Kafka,
    open: &[(&TopicPartition, i64)],
    left: impl Fn() -> Duration,
) -> Result<Vec<OpenTransaction>, Error> {
    let role = ClientRole::Consumer(None, Isolation::ReadUncommitted);
    let looking = query::open(&Settings::new(kafka, &role)?)?;
    let places: Vec<TopicPartition> = open.iter().map(|(place, _)| (*place).clone()).collect();
    // Avoids the 500 ms that an assignment on a new client would wait. Without an answer the error has no ages.
    check_partitions(&looking, &places, || AGE_LOOKUP_LIMIT.min(left())).ok();
    let look = |at: usize| if at < MAX_AGE_LOOKUPS { AGE_LOOKUP_LIMIT.min(left()) } else { Duration::ZERO };
    let reported = open.iter().enumerate();
    let reported =
        reported.map(|(at, (place, end))| open_transaction(&looking, place, *end, look(at))).collect();
    close(looking);
    Ok(reported)
}

/// Describes the transaction that is open from this offset on. Its age is that of its first record, which only a
/// read-uncommitted client sees.
fn open_transaction(
    asking: &ConsumerClient,
    place: &TopicPartition,
    offset: i64,
    limit: Duration,
) -> OpenTransaction {
    let (topic, partition) = place;
    let end = Instant::now() + limit;
    let mut list = TopicPartitionList::with_capacity(1);
    let assigned = list
        .add_partition_offset(topic, *partition, Offset::Offset(offset))
        .and_then(|()| asking.assign(&list));
    let mut open_for = None;
    while assigned.is_ok() && open_for.is_none() && Instant::now() < end {
        // Compaction removes no record of an open transaction, so its first record is the next one.
        let Some(Ok(record)) = asking.poll(end.saturating_duration_since(Instant::now())) else { continue };
        // A record of the previous partition may still be queued.
        if record.partition() == *partition && record.topic() == &**topic {
            let written = record.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
            let written = written.map(|millis| UNIX_EPOCH + Duration::from_millis(millis));
            open_for = Some(written.and_then(|written| SystemTime::now().duration_since(written).ok()));
        }
    }
    OpenTransaction { topic: Arc::clone(topic), partition: *partition, offset, open_for: open_for.flatten() }
}

/// The first and end offsets of partitions, with two requests to each leader.
fn ask_ends(
    client: &ConsumerClient,
    places: &[TopicPartition],
    left: impl Fn() -> Duration,
) -> Result<Ends, Error> {
    ask_until_answered(left(), |step| {
        ask_patiently(step, |limit| {
            let first = ask_offsets(client, places, Offset::Beginning, limit)?;
            let next = ask_offsets(client, places, Offset::End, limit)?;
            let both = first.into_iter().zip(next).map(|((place, first), (_, next))| (place, (first, next)));
            Ok(both.collect())
        })
    })
}

/// The first or the end offset of each partition, or the first one of a time in milliseconds, which is -1 if all records are older.
fn ask_offsets(
    client: &ConsumerClient,
    places: &[TopicPartition],
    which: Offset,
    limit: Duration,
) -> Result<BTreeMap<TopicPartition, i64>, (String, KafkaError)> {
    let named = |(topic, partition): &TopicPartition| format!("{topic} partition {partition}");
    let mut asked = TopicPartitionList::with_capacity(places.len());
    for place in places {
        let added = asked.add_partition_offset(&place.0, place.1, which);
        added.map_err(|error| (named(place), error))?;
    }
    let all = || places.iter().map(named).collect::<Vec<_>>().join(", ");
    let answered = client.offsets_for_times(asked, limit).map_err(|error| (all(), error))?;
    let found = answered.elements();
    let by_time = matches!(which, Offset::Offset(_));
    let one = |place: &TopicPartition| {
        let element = found.iter().find(|one| one.partition() == place.1 && one.topic() == &*place.0);
        let offset = match element {
            None => Err(KafkaError::OffsetFetch(Code::UnknownPartition)),
            Some(element) => element.error().and_then(|()| {
                let is_offset = |offset: &i64| *offset >= 0 || (by_time && *offset == -1);
                let offset = element.offset().to_raw().filter(is_offset);
                offset.ok_or(KafkaError::OffsetFetch(Code::NoOffset))
            }),
        };
        offset.map(|offset| (place.clone(), offset)).map_err(|error| (named(place), error))
    };
    places.iter().map(one).collect()
}

/// Queries the offsets of a partition from its leader.
pub(super) fn ask_leader(
    client: &ConsumerClient,
    topic: &str,
    partition: i32,
    limit: Duration,
) -> Result<(), Error> {
    ask_patiently(limit, |left| {
        let answered = client.fetch_watermarks(topic, partition, left).map(drop);
        answered.map_err(|error| (format!("{topic} partition {partition}"), error))
    })
}

/// Queries offsets, repeatedly while the broker does not know the partition: a restarted one may not for a moment. `ask`
/// gets the time it may take, and returns the name of the partition that failed.
fn ask_patiently<T>(
    limit: Duration,
    ask: impl Fn(Duration) -> Result<T, (String, KafkaError)>,
) -> Result<T, Error> {
    let begun = Instant::now();
    let (end, patient) = (begun + limit, begun + limit.min(WATERMARK_LIMIT));
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let (place, error) = match ask(left.max(MIN_QUERY_TIMEOUT)) {
            Ok(found) => return Ok(found),
            Err(failed) => failed,
        };
        let passes = matches!(
            error.rdkafka_error_code(),
            Some(
                Code::UnknownPartition
                    | Code::UnknownTopicOrPartition
                    | Code::LeaderNotAvailable
                    | Code::NotLeaderForPartition
            )
        );
        if !passes || Instant::now() >= patient {
            return Err(Error::request(format!("ask for the offsets of {place}"), error));
        }
        thread::sleep(UNKNOWN_PARTITION_PAUSE);
    }
}
