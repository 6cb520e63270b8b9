//! The lists that one shard reads: which runs are asked for, what of them is this shard's, and what is committed of it.
//!
//! ```text
//! orders ─▶ Active run ─▶ jobs: a list each, some at a time ─▶ page ─▶ Part ─┐
//!             ▲ progress      ▲ one page of a list at a time                 ├─▶ with the shard's batch: rows that are newer than
//!             │               └─ known and not shown: read by id ─▶ Part ────┘   the fence, the page, certificate, progress
//!             └────────────────────────────── committed ◀──────────────────────
//! ```
//!
//! - A page, the rows that follow from it and how far its run is are one transaction. So whoever has the shard next goes on after it.
//!   The next page of a list is asked for once the one before is committed; meanwhile others are read. So a crash costs each list that
//!   is under way one page at most.
//! - A row that shows less than its record is a request to the scheduler, which keeps nothing of it. Its page is marked once all that
//!   it asked for is settled: a mark never says more than is committed.
//! - A row is compared with the fence when its batch is made, and nothing is committed between: so lists and events never write over
//!   each other.
//! - That a list is over is marked with its certificate, and the marks are removed once their run is over.
//! - Lists that span companies are read at once, those of companies as these become known; see [`plan`].
//! - That a list does not show a record leads to a read of it and a line in the certificate, never to a tombstone.
//!
//! On failure of one page: it is tried some times, then its pass is void, then the list is uncertified and says why; others go on.
//! What concerns everything holds all of them back, what needs a person ends the task.

mod asking;
mod comparing;
mod hearing;
mod job;
mod pages;
mod plan;
mod planning;
mod probe;
mod refusals;
mod rows;
mod sample;
mod topic;
mod waiting;
mod writing;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::watch;

use model::{Certificate, CompanyId, DesiredRunState, Key, List, RecordId, Run, RunId, RunProgress, Stamp};
use provider::api;

pub(super) use self::pages::{Fetched, Pages};
use self::{
    comparing::{Strangers, Suspect},
    job::{Answer, Job, Missing, Stage, What},
    plan::Plan,
    rows::Request,
    topic::View,
};
use super::{
    Shared,
    state::{Collection, Cursor, Known, Probe},
};
use crate::records::{
    fence,
    proof::Reading,
    schedule::{Entry, Subject},
};

/// Lists of a task that are read at the same time, over all its shards: what proves one is held until its end. Each shard may have
/// [`LEAST_JOBS`], since a list of each run may wait for another API, and none more than [`MOST_JOBS`].
const MOST_LISTS: usize = 128;
const LEAST_JOBS: usize = MOST_RUNS + 1;
const MOST_JOBS: usize = 16;
/// Lists of a task that go on growing where much is remembered, over all its shards; one of each does in any case.
const MOST_GROWING: usize = 8;
/// Lists that may be held, with those that wait for a person or whose run is paused.
const MOST_HELD: usize = 1_000;
/// Lists of a shard that keep nobody else waiting although they wait for records that cannot be read; each holds what proves it.
const MOST_IDLE: usize = 64;
/// For how long a list waits for such records before others are read beside it; microseconds.
const IDLE_AFTER: i64 = 60_000_000;
/// Runs of a shard that are under way at the same time; others wait.
const MOST_RUNS: usize = 4;
/// Missing records of one list that are read at the same time.
const MISSING_AT_ONCE: usize = 8;
/// Known records of a resource that are looked up at the same time; after each so many it is kept how far they are read.
const KNOWN_AT_ONCE: usize = 1_000;
/// Keys that are forgotten in one batch.
const FORGOTTEN_AT_ONCE: usize = 5_000;
/// Bytes of rows that wait to be committed: above it no page is asked for.
const MOST_WAITING: usize = 16 << 20;
/// Missing records that are always read; above this and the share a person has to look first.
const BRAKE_COUNT: usize = 50;
const BRAKE_SHARE: usize = 50;
/// How often it is looked whether what is compared has come; microseconds.
const LOOK: i64 = 200_000;
/// Records that wait to be read because of rows: above it no page is asked for.
const MOST_ASKED: usize = 5_000;
/// Lists that a progress names.
const NAMED: usize = 10;
/// The longest a read by id may take.
const READ_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// Passes over a list.
pub(super) const PASSES: u32 = 4;

/// A run that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Ordered {
    pub(super) run: Arc<Run>,
    pub(super) wanted: DesiredRunState,
    /// When that was said.
    pub(super) at: i64,
    /// What of payroll is read; all where there is none.
    pub(super) filter: Option<String>,
}

/// All of them, the oldest first.
pub(super) type Orders = Arc<Vec<Ordered>>;

/// Something that was asked for has come.
pub(super) enum Got {
    Page(u64, u32, Result<Came, Failed>),
    Known(u64, Option<Box<Reading>>, Result<Found, fence::Error>),
    Record(u64, Subject, u32, Result<Bytes, Failed>),
    /// What the topic of a list holds, for who compares.
    Topic(RunId, List, topic::Read),
    /// How many records of a list are known.
    Counted(u64, Result<u64, fence::Error>),
}

/// A page that was asked for.
pub(super) struct Came {
    page: Arc<Fetched>,
    /// Whether its rows show less than their records, where that was looked at.
    thin: Option<bool>,
    /// Whether the provider was asked for it; another shard may have had it.
    is_asked: bool,
}

/// Records that are known.
pub(super) struct Found {
    records: Vec<(CompanyId, RecordId)>,
    /// Where to go on, if these are not all.
    next: Option<String>,
    /// All that are known of their topic.
    entries: u64,
}

/// A page that could not be read.
pub(super) struct Failed {
    error: api::Error,
    /// The provider has answered to something else meanwhile.
    is_alone: bool,
}

/// What is under way of it.
pub(super) type Getting = FuturesUnordered<BoxFuture<'static, Got>>;

/// See the module's head.
pub(super) struct Lists {
    shared: Arc<Shared>,
    shard: i32,
    orders: watch::Receiver<Orders>,
    runs: BTreeMap<RunId, Active>,
    jobs: BTreeMap<u64, Job>,
    numbers: u64,
    ready: VecDeque<Part>,
    waiting_bytes: usize,
    committing: Vec<Part>,
    /// Reads that rows ask for once these are committed, each with its job.
    requests: Vec<(u64, Request)>,
    looking_back: Vec<Request>,
    /// Records that a row shows as much of as was published, once that is committed.
    not_below: Vec<Subject>,
    /// What the state topic has of lists and runs: pages that an owner before has read, lists that are over, probes.
    state: Known,
    /// Keys that the state topic has and no run needs any more.
    forgotten: Vec<Key>,
    /// What topics hold, for runs that compare.
    views: HashMap<(RunId, List), View>,
    held_until: i64,
    holds: u32,
    /// Why nothing is read until then.
    held_why: Option<String>,
    told: waiting::Told,
}

/// A run that is under way here.
struct Active {
    run: Arc<Run>,
    wanted: DesiredRunState,
    /// When that was said.
    ordered_at: i64,
    waiting: VecDeque<What>,
    open: usize,
    progress: RunProgress,
    /// Whose lists are read.
    plan: Plan,
    /// Topics of a run that compares in which keys are left that the fence may not know.
    strangers: Strangers,
}

/// What is committed together.
struct Part {
    run: RunId,
    job: Option<u64>,
    what: Written,
    bytes: usize,
}

enum Written {
    Page {
        fetched: Arc<Fetched>,
        /// Its key and value.
        mark: (Key, Bytes),
        /// Rows that a page before has shown: what is compared is compared once.
        shown: HashSet<Key>,
    },
    /// All that a page has asked for is settled.
    Read(PageMark),
    Record(Box<Entry>),
    /// What differs and is not read by id.
    Found(Vec<(Key, Suspect)>),
    /// What was read by id because it differs, or is on no page.
    Looked(Box<(Subject, Answer)>),
    End {
        certificate: Option<Box<Certificate>>,
        /// What was kept of it until then, and what is from now on.
        state: Vec<(Key, Option<Bytes>)>,
        ended: Ended,
    },
    /// Records of the state topic, beside how far the run is.
    State(Vec<(Key, Option<Bytes>)>),
}

/// That a page is read: the key and value that say so, and how many rows of the shard it has.
type PageMark = (Key, Bytes, u64);

/// What is counted with the end of a list.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    certified: u64,
    vanished: u64,
    unread: u64,
    /// Lists whose path the provider does not know.
    absent: u64,
    /// Lists of accounts whose path the provider does not offer.
    unoffered: u64,
}

impl Lists {
    pub(super) fn new(shared: Arc<Shared>, shard: i32, state: Known, forgotten: Vec<Key>) -> Self {
        let orders = shared.orders.clone();
        Self {
            shared,
            shard,
            orders,
            runs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            numbers: 0,
            ready: VecDeque::new(),
            waiting_bytes: 0,
            committing: Vec::new(),
            requests: Vec::new(),
            looking_back: Vec::new(),
            not_below: Vec::new(),
            state,
            forgotten,
            views: HashMap::new(),
            held_until: i64::MIN,
            holds: 0,
            held_why: None,
            told: waiting::Told::default(),
        }
    }

    /// Hands over a part of a job, which waits until it is committed.
    fn put(&mut self, number: u64, what: Written, bytes: usize) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.unwritten += 1;
        self.waiting_bytes += bytes;
        self.ready.push_back(Part { run: job.run.id.clone(), job: Some(number), what, bytes });
    }

    /// Waits until something else may be asked for.
    pub(super) async fn changed(
        orders: &mut watch::Receiver<Orders>,
        stream: &mut watch::Receiver<Option<bool>>,
    ) {
        tokio::select! {
            changed = orders.changed() => if changed.is_err() { std::future::pending::<()>().await },
            changed = stream.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }

    /// Whether a page that waits to be committed shows as much of a record as is stored: then the provider did not go back.
    pub(super) fn shows(&self, subject: &Subject, stored: &Stamp) -> bool {
        let key = subject.key();
        let is_shown = |fetched: &Fetched| {
            let mut rows = fetched.rows.iter().filter(|row| row.key == key);
            rows.any(|row| row.version.as_ref().is_some_and(|version| version.reaches(stored)))
        };
        self.ready.iter().any(|part| match &part.what {
            Written::Page { fetched, .. } => {
                let list = part.job.and_then(|number| self.jobs.get(&number)?.list());
                list.is_some_and(|list| list.topic() == subject.topic()) && is_shown(fetched)
            }
            _ => false,
        })
    }

    /// The provider went back in these records, so that nothing is proved of their lists. What says so is committed with the records, or
    /// before: whoever takes the lists over must not go on counting.
    pub(super) fn went_back(&mut self, keys: &[Key]) -> Vec<(Key, Bytes)> {
        let is_hit = |Collection { list, company, .. }: &Collection| {
            let lead = Key::fences_of(list.topic(), company.as_ref());
            keys.iter().any(|key| key.as_str().starts_with(&lead))
        };
        let open = self.jobs.values_mut().filter(|job| job.collection().is_some_and(is_hit));
        let mut void: Vec<Collection> = open.filter_map(Job::went_back).collect();
        // Those that an owner before has begun, and that nobody has taken up again.
        let begun =
            self.state.pages.iter().filter(|(one, pages)| is_hit(one) && pages.range(1..).next().is_some());
        void.extend(begun.map(|(collection, _)| collection.clone()));
        void.retain(|collection| self.state.void.insert(collection.clone()));
        void.into_iter().map(|collection| (collection.void(self.shard), Bytes::from_static(b"{}"))).collect()
    }

    /// Whether there is anything to commit.
    pub(super) fn has_parts(&self) -> bool {
        !self.ready.is_empty() || !self.forgotten.is_empty()
    }

    /// Whether something has become of rows that is to be kept.
    pub(super) fn has_counts(&self) -> bool {
        self.jobs.values().any(Job::has_new_counts)
    }

    /// When there is something to begin that nobody tells of.
    pub(super) fn wake_at(&self, now: i64) -> Option<i64> {
        let is_due = |job: &&Job| matches!(job.stage, Stage::Pages | Stage::Compare | Stage::Missing(_));
        let due = self.jobs.values().filter(is_due);
        let due = due.map(|job| job.due.max(self.held_until));
        let strangers = self.runs.values().filter_map(|active| active.strangers.due());
        due.chain(strangers).chain([self.held_until]).filter(|at| *at > now).min()
    }
}

impl Part {
    /// Records of the state topic that no job waits for.
    fn of_run(run: &RunId, state: Vec<(Key, Option<Bytes>)>) -> Self {
        Self { run: run.clone(), job: None, what: Written::State(state), bytes: 0 }
    }

    /// Only how far the run is.
    fn standing(run: &RunId) -> Self {
        Self::of_run(run, Vec::new())
    }
}
