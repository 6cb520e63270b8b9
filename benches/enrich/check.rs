//! Checks that the record of every event is in the record topic, and that no version went back.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use kafka::{ConsumerRecord, read_to_end};
use tokio::time::{Instant, sleep};

use crate::feed::Feed;
use crate::site::Site;
use crate::support::place::header;
use crate::support::{Error, Result};

/// Limit for records that are still in flight.
const LIMIT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_secs(1);

/// What the record topic holds.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Records in the topic.
    records: u64,
    /// Keys with an event.
    expected: usize,
    /// Keys whose newest version is not in the topic.
    missing: usize,
    /// Records with a version below an earlier one's, or without a version.
    backwards: u64,
}

impl Verdict {
    pub(crate) fn is_sound(&self) -> bool {
        self.missing == 0 && self.backwards == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, expected, missing, backwards } = self;
        let sound = if self.is_sound() { "sound" } else { "NOT SOUND" };
        write!(
            f,
            "{sound}: {records} records, {expected} keys expected, {missing} missing, {backwards} went backwards"
        )
    }
}

/// Reads the record topic until nothing is missing or the limit has passed.
pub(crate) async fn check(site: &Site, feed: &Feed) -> Result<Verdict> {
    let end = Instant::now() + LIMIT;
    loop {
        let verdict = read(site, feed).await?;
        if verdict.missing == 0 || Instant::now() > end {
            return Ok(verdict);
        }
        sleep(STEP).await;
    }
}

/// Number of records in the topic.
pub(crate) async fn count(site: &Site) -> Result<u64> {
    let mut records = 0;
    let (topic, partitions) = (site.records(), (0..site.partitions).collect::<Vec<_>>());
    let read = read_to_end(&site.kafka, &topic, &partitions, LIMIT, |_| records += 1).await;
    read.map_err(|error| Error(format!("read {topic}: {error}")))?;
    Ok(records)
}

async fn read(site: &Site, feed: &Feed) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut last: HashMap<String, (u64, u64)> = HashMap::new();
    let number =
        |record: &ConsumerRecord, name| header(record, name).and_then(|text| text.parse::<u64>().ok());
    let each = |record: ConsumerRecord| {
        verdict.records += 1;
        let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
        let Some(version) = number(&record, "tributary.version") else {
            verdict.backwards += 1;
            return;
        };
        let stamp = (number(&record, "tributary.epoch").unwrap_or(0), version);
        let before = last.entry(key).or_default();
        if stamp < *before {
            verdict.backwards += 1;
        }
        *before = stamp;
    };
    let (topic, partitions) = (site.records(), (0..site.partitions).collect::<Vec<_>>());
    let read = read_to_end(&site.kafka, &topic, &partitions, LIMIT, each).await;
    read.map_err(|error| Error(format!("read {topic}: {error}")))?;
    let book = feed.book();
    verdict.expected = book.newest.len();
    let is_there = |key: &String, version: u64| last.get(key).is_some_and(|(_, last)| *last >= version);
    verdict.missing = book.newest.iter().filter(|(key, version)| !is_there(key, **version)).count();
    Ok(verdict)
}
