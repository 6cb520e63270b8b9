//! Random shard histories with crashes, lost and lagging reads, duplicate and reordered events, compared with the provider's state.

use proptest::prelude::*;

use super::*;

/// The provider's state over time.
#[derive(Debug, Clone, Default)]
struct Truth {
    /// By record: time, version, and whether the version is a delete.
    records: BTreeMap<u8, Vec<(i64, u64, bool)>>,
}

impl Truth {
    fn as_of(&self, record: u8, at: i64) -> Option<(u64, bool)> {
        let all = self.records.get(&record)?;
        all.iter().rev().find(|(since, _, _)| *since <= at).map(|(_, version, deleted)| (*version, *deleted))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Change(u8),
    Delete(u8),
    Repeat(u8),
    /// A thin row of a list shows a record as it was this many milliseconds ago.
    Row(u8, u32),
    Feed,
    Begin,
    /// Which read in flight ends, and how.
    End(u8, Answer),
    Commit,
    Wait(u32),
    Crash,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    True,
    /// The state this many milliseconds ago.
    Behind(u32),
    Throttled,
    Broken,
    Lost,
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        6 => Just(Answer::True),
        3 => (0_u32..5_000).prop_map(Answer::Behind),
        1 => Just(Answer::Throttled),
        1 => Just(Answer::Broken),
        1 => Just(Answer::Lost),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..6).prop_map(Step::Change),
        1 => (0_u8..6).prop_map(Step::Delete),
        2 => any::<u8>().prop_map(Step::Repeat),
        2 => (0_u8..6, 0_u32..5_000).prop_map(|(record, lag)| Step::Row(record, lag)),
        8 => Just(Step::Feed),
        8 => Just(Step::Begin),
        8 => (any::<u8>(), answer()).prop_map(|(which, answer)| Step::End(which, answer)),
        6 => Just(Step::Commit),
        4 => (0_u32..3_000).prop_map(Step::Wait),
        1 => Just(Step::Crash),
    ]
}

/// A shard, its provider, and the event topic.
struct Simulation {
    shard: TestShard,
    truth: Truth,
    /// Record, version, whether it is a delete.
    events: Vec<(u8, u64, bool)>,
    fed: usize,
    reading: Vec<Subject>,
    /// Whether records carry a version.
    has_version: bool,
}

fn name(record: u8) -> String {
    format!("r{record}")
}

impl Simulation {
    fn new(has_version: bool) -> Self {
        let mut shard = TestShard::new();
        shard.paths.insert(RESOURCE);
        shard.crash();
        Self { shard, truth: Truth::default(), events: Vec::new(), fed: 0, reading: Vec::new(), has_version }
    }

    /// JSON of a record.
    fn shown(&self, record: u8, version: u64) -> Bytes {
        if self.has_version {
            json(&name(record), version)
        } else {
            format!(r#"{{"name":"at {version}"}}"#).into()
        }
    }

    /// Fence entry of a record.
    fn stamp(&self, record: u8, version: u64, deleted: bool) -> Stamp {
        let number = super::version(version);
        if self.has_version || deleted {
            return stamp(0, version, Rank::ById, deleted);
        }
        let value = subject(&name(record)).record(&self.shown(record, version)).unwrap().unwrap();
        Stamp { version: value.version_or(Some(&number)), ..stamp(0, version, Rank::ById, deleted) }
    }

    fn change(&mut self, record: u8, deletes: bool) {
        let last = self.truth.records.get(&record).and_then(|all| all.last().copied());
        if deletes && last.is_none_or(|(_, _, deleted)| deleted) {
            return;
        }
        let version = last.map_or(1, |(_, version, _)| version + 1);
        self.truth.records.entry(record).or_default().push((self.shard.now, version, deletes));
        // Every fifth version's event overtakes the one before it.
        let at = if version.is_multiple_of(5) {
            self.events.len().saturating_sub(1).max(self.fed)
        } else {
            self.events.len()
        };
        self.events.insert(at, (record, version, deletes));
    }

    fn feed(&mut self) {
        let Some((record, version, deletes)) = self.events.get(self.fed).copied() else { return };
        if self.shard.scheduler.is_full() {
            return;
        }
        self.fed += 1;
        let next = i64::try_from(self.fed).unwrap();
        self.shard.take(
            next,
            wanted(subject(&name(record)), version, deletes),
            &format!("{record}/{version}"),
        );
    }

    /// As [`Draft`](crate::records::task) does: only a row that is newer is asked for.
    fn row(&mut self, record: u8, at: i64) {
        let Some((version, false)) = self.truth.as_of(record, at) else { return };
        let row = stamp(0, version, Rank::List, false);
        if row.against(self.shard.fences.get(&subject(&name(record)))).publishes() {
            self.shard.row_shows(&name(record), version);
        }
    }

    fn end(&mut self, which: usize, answer: Answer) {
        if self.reading.is_empty() {
            return;
        }
        let subject = self.reading.swap_remove(which % self.reading.len());
        let record: u8 = subject.id.as_str()[1..].parse().unwrap();
        let found = |at: i64| match self.truth.as_of(record, at) {
            Some((version, false)) => Ok(self.shown(record, version)),
            _ => Err(gone()),
        };
        let reading = match answer {
            Answer::True => found(self.shard.now),
            Answer::Behind(lag) => found(self.shard.now - i64::from(lag) * 1_000),
            Answer::Throttled => Err(error(429, api::Cause::Throttled { again: None })),
            Answer::Broken => Err(error(500, api::Cause::Server { again: None })),
            Answer::Lost => Err(error(403, api::Cause::Forbidden { by: AnsweredBy::Api })),
        };
        self.shard.read(&subject, reading).unwrap();
    }

    fn go(&mut self, step: &Step) {
        match step {
            Step::Change(record) => self.change(*record, false),
            Step::Delete(record) => self.change(*record, true),
            Step::Repeat(which) => {
                if let Some(event) = self.events.get(usize::from(*which) % self.events.len().max(1)).copied()
                {
                    self.events.push(event);
                }
            }
            Step::Row(record, lag) => self.row(*record, self.shard.now - i64::from(*lag) * 1_000),
            Step::Feed => self.feed(),
            Step::Begin => self.reading.extend(self.shard.ask().map(|ask| ask.subject)),
            Step::End(which, answer) => self.end(usize::from(*which), *answer),
            Step::Commit => self.shard.commit(),
            Step::Wait(time) => self.shard.now += i64::from(*time) * 1_000,
            Step::Crash => {
                self.shard.crash();
                self.reading.clear();
                self.fed = usize::try_from(self.shard.offset).unwrap();
            }
        }
    }

    /// With a healthy provider, advances time until no work is left.
    fn quiesce(&mut self) {
        for _ in 0..20_000 {
            self.feed();
            while let Some(ask) = self.shard.ask() {
                self.reading.push(ask.subject);
            }
            while !self.reading.is_empty() {
                self.end(0, Answer::True);
            }
            while self.shard.scheduler.ready() > 0 {
                self.shard.commit();
            }
            if self.fed == self.events.len() && !self.shard.scheduler.has_reads(self.shard.now) {
                match self.shard.scheduler.wake_at() {
                    Some(at) => self.shard.now = at.max(self.shard.now + 1),
                    None => return,
                }
            }
        }
        panic!("work never ends: {:?}", self.shard.scheduler);
    }

    fn check(&self) {
        let mut last: BTreeMap<&Subject, &Stamp> = BTreeMap::new();
        for (subject, stamp) in &self.shard.published {
            if let Some(before) = last.insert(subject, stamp) {
                assert!(stamp.against(Some(before)).publishes(), "{subject:?}: {stamp:?} after {before:?}");
            }
            assert_eq!(stamp.epoch, Epoch(0), "the provider never went back");
        }
        assert_eq!(self.shard.offset, i64::try_from(self.events.len()).unwrap());
        assert!(self.shard.parked.is_empty(), "{:?}", self.shard.parked);
        for (record, all) in &self.truth.records {
            let (_, version, deleted) = *all.last().unwrap();
            let subject = subject(&name(*record));
            let found = last.get(&subject).copied();
            if deleted && found.is_none() {
                // It was deleted before a read could show it.
                continue;
            }
            assert_eq!(found, Some(&self.stamp(*record, version, deleted)), "{subject:?}");
        }
        assert!(self.shard.letters.is_empty(), "{:?}", self.shard.letters);
    }
}

/// Number of histories.
fn cases() -> u32 {
    crate::cycles::cycles("LIVES", 300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn versions_never_go_back_and_the_topic_converges(
        steps in proptest::collection::vec(step(), 1..250),
        has_version: bool,
    ) {
        let mut simulation = Simulation::new(has_version);
        for step in &steps {
            simulation.go(step);
        }
        simulation.quiesce();

        simulation.check();
    }
}
