//! Reads partitions to their current ends, and parses the options that bound such a read.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc, time::Duration};

use tokio::time::timeout;

use kafka::{
    Assignment, Consumer, ConsumerEvent, ConsumerOptions, ConsumerRecord, Kafka, StartOffset, TopicPartition,
};
use model::Moment;

use super::{Result, failure};

/// Without a record or an end for this long, the read fails.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Passes every record of the partitions to `visit`, in order within a partition, until their ends or until `visit` breaks.
pub(super) async fn scan(
    kafka: &Kafka,
    starts: impl IntoIterator<Item = (TopicPartition, StartOffset)>,
    options: &ConsumerOptions,
    mut visit: impl AsyncFnMut(ConsumerRecord) -> Result<ControlFlow<()>>,
) -> Result {
    let assignment = |((topic, partition), start)| Assignment { topic, partition, start };
    let assignments: Vec<Assignment> = starts.into_iter().map(assignment).collect();
    let mut open: BTreeSet<TopicPartition> =
        assignments.iter().map(|assigned| (Arc::clone(&assigned.topic), assigned.partition)).collect();
    if open.is_empty() {
        return Ok(());
    }
    let mut consumer = Consumer::assign(kafka, assignments, options).await?;
    while let Some((topic, _)) = open.first() {
        let silent =
            |_| failure(format!("read {topic}: no answer from Kafka for {} s", READ_TIMEOUT.as_secs()));
        match timeout(READ_TIMEOUT, consumer.next()).await.map_err(silent)?? {
            ConsumerEvent::End { topic, partition } => drop(open.remove(&(topic, partition))),
            ConsumerEvent::Record(record) => {
                if visit(record).await?.is_break() {
                    break;
                }
            }
        }
    }
    consumer.stop().await;
    Ok(())
}

/// Milliseconds since 1970 of a time, or of a duration before now.
pub(super) fn since(text: &str) -> Result<i64, &'static str> {
    if let Some(moment) = Moment::parse(text) {
        return Ok(moment.micros().div_euclid(1_000));
    }
    let fault = "must be a time such as 2026-11-15T09:00:00Z, or a duration such as 90s, 15m, 2h or 7d";
    let before = i64::try_from(seconds(text).ok_or(fault)?).map_err(|_| fault)?;
    Ok((Moment::now().micros() / 1_000 - before * 1_000).max(0))
}

/// A duration such as `90s`.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    seconds(text).map(Duration::from_secs).ok_or("must be a duration such as 90s, 15m, 2h or 7d")
}

fn seconds(text: &str) -> Option<u64> {
    let unit = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => 86_400,
        _ => return None,
    };
    let count: u32 = text[..text.len() - 1].parse().ok()?;
    Some(u64::from(count) * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_takes_a_time_or_a_duration() {
        let now = Moment::now().micros() / 1_000;

        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(1_000));
        let hours = now - since("2h").unwrap();
        assert!((7_140_000..7_260_000).contains(&hours), "{hours}");
        for wrong in ["", "h", "2", "-2h", "2w", "yesterday", "2026-11-15"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn duration_is_a_number_with_a_unit() {
        assert_eq!(duration("15m"), Ok(Duration::from_secs(900)));
        for wrong in ["", "m", "15", "1.5h", "2026-11-15T09:00:00Z"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
