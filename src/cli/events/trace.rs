//! The search for the events of a write, in rounds: each reads what was written since the last one.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use base::retry::ErrorChain;
use kafka::{Admin, ConsumerOptions, ConsumerRecord, Kafka, StartOffset, TopicPartition};
use model::{AccountingEvent, AccountingResource, SchemaKind, Topic, TopicPrefix};

use super::{
    TraceBounds,
    found::{self, EventPlace, FoundEvent},
    write_id::WriteId,
};
use crate::{
    avro::{Decoder, Registry},
    cli::{CommandError, Result, failure, outside, scan::scan, table::moment},
    config::Worker,
};

/// Time limit of a question about offsets.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two rounds.
const ROUND_PAUSE: Duration = Duration::from_millis(250);
/// All partitions of a prefix share it; with less, partitions would be read in small pieces.
const PREFETCH_BYTES: usize = 64 << 20;

/// A search for the events with an id.
pub(super) struct EventTrace {
    id: WriteId,
    kafka: Kafka,
    decoder: Decoder,
    /// What is left to read.
    starts: BTreeMap<TopicPartition, StartOffset>,
    limit: usize,
    found: BTreeMap<EventPlace, FoundEvent>,
    counts: TraceCounts,
}

/// What was read.
#[derive(Debug, Default)]
struct TraceCounts {
    records: u64,
    /// Timestamps of the earliest and the latest record, in milliseconds since 1970.
    times: Option<(i64, i64)>,
    /// Events with the id beyond the limit.
    older: u64,
    /// Records with the id that cannot be decoded.
    undecodable: u64,
}

impl EventTrace {
    /// Finds the event topics of the prefix, and where to start in them.
    pub(super) async fn begin(
        worker: &Worker,
        prefix: &TopicPrefix,
        id: WriteId,
        bounds: &TraceBounds,
    ) -> Result<Self> {
        let kafka = worker.kafka.clone();
        let decoder = Decoder::new(Registry::new(&worker.registry)?);
        let names: Vec<String> = AccountingResource::all()
            .map(|resource| Topic::AccountingEvents(resource).name(prefix))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let counts = Admin::Real(kafka.clone()).partition_counts(&names).await?;
        let mut places: Vec<TopicPartition> = Vec::new();
        for (topic, count) in counts {
            let topic: Arc<str> = topic.into();
            places.extend((0..count).map(|partition| (Arc::clone(&topic), partition)));
        }
        if places.is_empty() {
            return Err(failure(format!(
                "the prefix {prefix} has no accounting event topic, or this user may not describe any; choose another with \
                 --prefix or --connector"
            )));
        }
        let starts = match bounds.since {
            // The ends first: a record that arrives between the two queries is behind the end, and so is read.
            Some(since) => {
                let ends = kafka::watermarks_of(&kafka, &places, ASK_LIMIT).await?;
                let mut starts = kafka::offsets_since(&kafka, &places, since, ASK_LIMIT).await?;
                for (place, start) in &mut starts {
                    if let (StartOffset::End, Some((_, end))) = (*start, ends.get(place)) {
                        *start = StartOffset::Offset(*end);
                    }
                }
                starts
            }
            None => places.into_iter().map(|place| (place, StartOffset::Earliest)).collect(),
        };
        let (limit, found) = (bounds.limit as usize, BTreeMap::new());
        Ok(Self { id, kafka, decoder, starts, limit, found, counts: TraceCounts::default() })
    }

    /// Reads to the current ends, and on until an event is found or this time has passed.
    pub(super) async fn run(&mut self, wait: Duration) -> Result {
        let until = Instant::now() + wait;
        self.round().await?;
        if self.found.is_empty() && !wait.is_zero() {
            writeln!(io::stderr(), "no event yet; waiting for one, {} s at most", wait.as_secs()).ok();
        }
        while self.found.is_empty() && Instant::now() < until {
            sleep(ROUND_PAUSE.min(until.saturating_duration_since(Instant::now()))).await;
            self.round().await?;
        }
        Ok(())
    }

    async fn round(&mut self) -> Result {
        let places: Vec<TopicPartition> = self.starts.keys().cloned().collect();
        let ends = kafka::watermarks_of(&self.kafka, &places, ASK_LIMIT).await?;
        // Most topics of a prefix are empty, and each partition takes a share of the buffers.
        let has_records = |(place, start): &(TopicPartition, StartOffset)| match (start, ends.get(place)) {
            (StartOffset::Earliest, Some((first, end))) => first < end,
            (StartOffset::Offset(offset), Some((_, end))) => offset < end,
            (StartOffset::End, _) | (_, None) => false,
        };
        let starts: Vec<_> = self.starts.clone().into_iter().filter(has_records).collect();
        for (place, (_, end)) in &ends {
            self.starts.insert(place.clone(), StartOffset::Offset(*end));
        }
        let kafka = self.kafka.clone();
        let options = ConsumerOptions { prefetch_bytes: PREFETCH_BYTES, ..ConsumerOptions::default() };
        scan(&kafka, starts, &options, async |record| {
            // A later record is a part of the next round.
            let end = ends.get(&(Arc::clone(&record.topic), record.partition));
            if end.is_none_or(|(_, end)| record.offset < *end) {
                self.take(&record).await?;
            }
            Ok(ControlFlow::Continue(()))
        })
        .await
    }

    async fn take(&mut self, record: &ConsumerRecord) -> Result {
        self.counts.add(record.timestamp_ms);
        let Some(value) = record.value.as_deref().filter(|value| self.id.is_in(value)) else { return Ok(()) };
        let decoded = self.decoder.decode_as::<AccountingEvent>(SchemaKind::AccountingEvent, value).await;
        let event = match decoded {
            Ok((_, event)) => event,
            Err(error) if error.retry().is_retriable() => return Err(outside(error)),
            Err(error) => {
                self.counts.undecodable += 1;
                let place = format!("{} {}@{}", record.topic, record.partition, record.offset);
                let error = ErrorChain(&error);
                writeln!(io::stderr(), "{place} contains the id and cannot be decoded: {error}").ok();
                return Ok(());
            }
        };
        if let Some(matched) = self.id.matched(&event) {
            let event = FoundEvent::new(event, matched, record);
            self.found.insert(event.place(record), event);
            if self.found.len() > self.limit && self.found.pop_first().is_some() {
                self.counts.older += 1;
            }
        }
        Ok(())
    }

    /// Prints the events, oldest first.
    ///
    /// # Errors
    /// There are none: [`CommandError::NotFound`].
    pub(super) fn print(&self, json: bool, out: &mut dyn Write) -> Result {
        let counts = &self.counts;
        if self.found.is_empty() {
            return Err(match counts.undecodable {
                0 => CommandError::NotFound(self.missing()),
                1 => failure("a record that contains the id cannot be decoded"),
                several => failure(format!("{several} records that contain the id cannot be decoded")),
            });
        }
        let events: Vec<_> = self.found.iter().map(|(place, event)| event.json(place)).collect();
        if json {
            return events.iter().try_for_each(|event| writeln!(out, "{event}")).map_err(outside);
        }
        found::table(&events, out)?;
        if counts.older > 0 {
            let older = counts.older;
            writeln!(out, "\n{older} older events are not shown; raise --limit, or bound them with --since")?;
        }
        Ok(())
    }

    /// That no event has the id, with what was searched.
    fn missing(&self) -> String {
        let mut topics: Vec<&str> = self.starts.keys().map(|(topic, _)| &**topic).collect();
        topics.dedup();
        format!(
            "no event has the SvcProcessId or ConversationId {}: searched {} of {}\nremedy: wait for it with --wait if the write is \
             recent; `tributary subscriptions list` shows whether its events are subscribed, `tributary dead-letters list` what could \
             not be published",
            self.id.as_str(),
            counted(&self.counts),
            topics.join(", ")
        )
    }
}

impl TraceCounts {
    fn add(&mut self, timestamp_ms: Option<i64>) {
        self.records += 1;
        if let Some(at) = timestamp_ms {
            let (first, last) = self.times.unwrap_or((at, at));
            self.times = Some((first.min(at), last.max(at)));
        }
    }
}

/// The number of records, and when they were received.
fn counted(counts: &TraceCounts) -> String {
    let noun = if counts.records == 1 { "record" } else { "records" };
    let times = counts.times.map(|(first, last)| format!(" from {} to {}", moment(first), moment(last)));
    format!("{} {noun}{}", counts.records, times.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_name_the_time_of_what_was_read() {
        let mut counts = TraceCounts::default();
        assert_eq!(counted(&counts), "0 records");

        counts.add(Some(3_000));
        assert_eq!(counted(&counts), "1 record from 1970-01-01T00:00:03.000Z to 1970-01-01T00:00:03.000Z");
        counts.add(None);
        counts.add(Some(1_000));
        assert_eq!(counted(&counts), "3 records from 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:03.000Z");
    }
}
