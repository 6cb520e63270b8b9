//! The lists that one shard reads: it starts requested runs, reads their lists page by page, and commits rows, pages and certificates.
//!
//! ```text
//! Orders ─▶ planning.rs ─▶ Active: one run ─▶ asking.rs ─▶ Job: one list ─┬─▶ pages.rs: its next page ───────┐
//!                              ▲                                          └─▶ known records, read by id ─────┤
//!                              │                                                                             ▼
//!                              │ progress                                                    Got ─▶ results.rs ─▶ Part
//!                              │                                                                                   │
//!                              └─────────── committed ◀── the shard's batch ◀── writing.rs, rows.rs ◀──────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `planning.rs` | which runs to start, and which of their lists this shard reads |
//! | `asking.rs` | requests: pages, and records that no page has shown |
//! | `job/` | one list, from its first page to its certificate |
//! | `spanning.rs` | which shard of the task reads a list that spans companies, and how the others get its pages |
//! | `pages.rs`, `probe.rs`, `sample.rs` | pages; whether rows are whole records; samples |
//! | `results.rs` | results of requests |
//! | `writing.rs`, `rows.rs` | what is committed of them, and each row against the fence |
//! | `comparing/`, `topic.rs` | verification: lists against record topics |
//! | `waiting.rs` | why a run waits, for its progress and the log |
//!
//! - A page of whole rows in a company's list, its mark and the progress of the run are one transaction, so the next owner of the shard
//!   continues after the page. If rows wait for reads by id, or other shards share the list, marks follow later, in page order. The next
//!   page is requested after the commit of the rows; meanwhile pages of other lists are read. A crash repeats the pages without a mark:
//!   mostly one per list, and about [`MOST_UNMARKED`] at most. If Kafka refuses a record, state of lists moves to the next batch.
//! - A row that shows less than its record (a thin row) becomes a read request to the scheduler. The request holds no offset and is not
//!   stored. Its page and the next ones are marked as read once all requests are settled: a mark never claims more than is committed.
//! - A row is compared with the fence when its batch is built, and no other batch is committed in between. So lists and events never
//!   publish an older version over a newer one.
//! - The end of a list is marked in the transaction of its certificate. The marks are removed when the run ends.
//! - Lists that span companies start with the run; lists of a company start once the company is known. See [`planning`]. One shard of a
//!   task reads a list that spans companies, for all its shards. See [`spanning`].
//! - Published records that a proved list does not show are read by id, or only named for payroll, and counted in the certificate. They
//!   never become tombstones for that reason.
//!
//! On failure of one page, it is requested 8 times, then its pass is void, and after the last pass the list ends uncertified with the
//! reason. If the first page answers 401, 403, 404 or 410, the list ends after 2 attempts; any other failure of it that no retry can
//! resolve voids the pass after 2 attempts. A rate limit is waited for without a limit of attempts. Other lists continue. A retriable
//! failure of the accounting login or API pauses all lists of the shard, payroll too; a retriable failure of payroll pauses only that
//! list. Only a failure of the local fence database stops the task.
//!
//! The constants below are the limits, each with its reason.

mod asking;
mod comparing;
mod job;
mod pages;
mod planning;
mod probe;
mod results;
mod rows;
mod sample;
mod spanning;
mod topic;
mod waiting;
mod writing;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::{mpsc::UnboundedReceiver, watch};

use model::{Certificate, CompanyId, DesiredRunState, Key, List, RecordId, Run, RunId, RunProgress, Stamp};
use provider::api;

pub(crate) use self::probe::shows_less;
use self::{
    comparing::{Strangers, Suspect},
    job::{Answer, Job, Offer, Stage, UnlistedReads, What},
    planning::Plan,
    rows::Request,
    spanning::{FollowerReport, Relayed, RelayedPage},
    topic::View,
};
pub(super) use self::{
    pages::{Fetched, Pages},
    spanning::SpanningLists,
};
use super::{
    Shared,
    state::{Collection, Cursor, ListState, Probe},
};
use crate::records::{
    fence,
    schedule::{Entry, Subject},
};

/// Concurrent lists of a task, over all its shards: each holds the state of its proof until its end.
const MOST_LISTS: usize = 128;
/// Concurrent lists that each shard may have in any case: a list of each run may wait for another API.
const LEAST_JOBS: usize = MOST_RUNS + 1;
/// Concurrent lists of a shard, so that no shard takes all of the task's.
const MOST_JOBS: usize = 16;
/// Lists of a task that continue to grow while much is remembered, over all its shards; at least one per shard. Bounds the memory of
/// proofs.
const MOST_GROWING: usize = 8;
/// Lists of a shard in memory, including those that wait for an operator or whose run is paused; also the limit of runs.
const MOST_HELD: usize = 1_000;
/// Lists of a shard that wait for records and do not count toward [`MOST_LISTS`], so that unreadable records do not block other lists.
/// Each holds the state of its proof.
const MOST_IDLE: usize = 64;
/// How long a list waits for records before it counts toward [`MOST_IDLE`]; microseconds. A short wait is normal for thin rows.
const IDLE_AFTER: i64 = 60_000_000;
/// Concurrent runs of a shard; others wait. Runs share the request slots.
const MOST_RUNS: usize = 4;
/// Concurrent reads by id of one list, for known records that no page has shown. Lists share the request slots.
const UNLISTED_AT_ONCE: usize = 8;
/// Known records of a resource to look up at a time. After each such part the cursor is committed.
const KNOWN_AT_ONCE: usize = 1_000;
/// Keys to remove with one batch of a shard. Bounds the transaction.
const FORGOTTEN_AT_ONCE: usize = 5_000;
/// Bytes of rows of a shard that wait for their commit; above this no page is requested.
const MOST_WAITING: usize = 16 << 20;
/// Known records that no page of a list has shown and that a shard reads by id without an operator: this many, or the listed ones divided
/// by [`UNLISTED_BRAKE_DIVISOR`], if that is more. A wrong list must not cause a read of every record.
const UNLISTED_BRAKE_COUNT: usize = 50;
/// 50 means 2 % of the listed records.
const UNLISTED_BRAKE_DIVISOR: usize = 50;
/// How often a verification checks for records in flight; microseconds.
const LOOK: i64 = 200_000;
/// Records that rows of a shard wait for; above this no page is requested. Bounds memory.
const MOST_ASKED: usize = 5_000;
/// Pages of a list that wait for requests of their rows and are not marked as read; above this no page is requested. A crash reads them
/// again.
const MOST_UNMARKED: usize = 50;
/// Lists that the progress of a run in a shard names. Bounds the record.
const NAMED: usize = 10;
/// Time limit of a read by id.
const READ_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// Passes over a list. A list that changes too fast ends uncertified after them.
pub(super) const PASSES: u32 = 4;

/// A requested run.
#[derive(Debug, Clone)]
pub(super) struct Ordered {
    pub(super) run: Arc<Run>,
    pub(super) wanted: DesiredRunState,
    /// When an operator requested that state, in microseconds since 1970; 0 if none did.
    pub(super) at: i64,
    /// Filter of the payroll list; `None` means the whole list.
    pub(super) filter: Option<String>,
}

/// All unfinished runs, the oldest first.
pub(super) type Orders = Arc<Vec<Ordered>>;

/// Result of a request. The first number names the job, except in `Topic`; the second one is the page, or the attempt to read a record.
pub(super) enum Got {
    Page(u64, u32, Result<Came, Failed>),
    Known(u64, Result<Found, fence::Error>),
    Record(u64, Subject, u32, Result<Bytes, Failed>),
    /// Digests of the topic of a list, for a verification.
    Topic(RunId, List, topic::TopicRead),
    /// Number of known records of a list.
    Counted(u64, Result<u64, fence::Error>),
    /// What the leader of a list passes on; `None` if it has stopped.
    Relayed(u64, UnboundedReceiver<Relayed>, Option<Relayed>),
    /// What a follower has done; `None` if all have stopped.
    Reported(u64, UnboundedReceiver<FollowerReport>, Option<FollowerReport>),
}

/// A page that was read.
pub(super) struct Came {
    page: Arc<Fetched>,
    /// Whether its rows show less than their records; `None` if that was not checked.
    thin: Option<bool>,
}

/// Known records, from the fence.
pub(super) struct Found {
    records: Vec<(CompanyId, RecordId)>,
    /// Key after which to continue, if there are more.
    next: Option<String>,
    /// Number of all known records of their topic.
    entries: u64,
}

/// A page that could not be read.
pub(super) struct Failed {
    error: api::Error,
    /// Whether the provider answered another request meanwhile.
    is_alone: bool,
}

/// Requests in flight.
pub(super) type Getting = FuturesUnordered<BoxFuture<'static, Got>>;

/// The runs of one shard, their lists, and the parts that wait for a commit.
pub(super) struct Lists {
    shared: Arc<Shared>,
    shard: i32,
    runs: BTreeMap<RunId, Active>,
    jobs: BTreeMap<u64, Job>,
    numbers: u64,
    parts: PartQueue,
    after: AfterListCommit,
    /// State of lists and runs: pages that previous owners read, lists that have ended, probes.
    state: ListState,
    hold: ListHold,
    reported: waiting::Reported,
}

/// What waits for a commit.
#[derive(Default)]
struct PartQueue {
    ready: VecDeque<Part>,
    waiting_bytes: usize,
    committing: Vec<Part>,
    /// Keys in the state topic that no run needs any more.
    forgotten: Vec<Key>,
}

/// What the scheduler gets after the commit.
#[derive(Default)]
struct AfterListCommit {
    /// Read requests of thin rows, and of records without a version that differ from the published ones; each with its job.
    requests: Vec<(u64, Request)>,
    regression_checks: Vec<Request>,
    /// Suspected records of which a row shows the published version: cleared.
    cleared: Vec<Subject>,
}

/// A pause of all lists of the shard.
struct ListHold {
    until: i64,
    /// Pauses since the last page.
    count: u32,
    why: Option<String>,
}

/// A run in progress in this shard.
struct Active {
    run: Arc<Run>,
    wanted: DesiredRunState,
    /// When an operator requested that state, in microseconds since 1970; 0 if none did.
    ordered_at: i64,
    waiting: VecDeque<What>,
    open: usize,
    progress: RunProgress,
    /// Which companies' lists are read.
    plan: Plan,
    /// Topics in which a verification still has to search for keys without a fence entry.
    strangers: Strangers,
    /// Digests of topics, if it verifies.
    views: BTreeMap<List, View>,
}

/// A unit of commit: it is written whole, with one batch.
struct Part {
    run: RunId,
    job: Option<u64>,
    what: PartContent,
    bytes: usize,
}

enum PartContent {
    /// A page, with the key and value of its mark if this shard reads the list.
    Page(Arc<RelayedPage>, Option<(Key, Bytes)>),
    /// All requests of a page are settled.
    Read(PageMark),
    Record(Box<Entry>),
    /// Differences that need no read by id.
    Found(Vec<(Key, Suspect)>),
    /// A record that was read by id because it differs or is on no page.
    Looked(Box<(Subject, Answer)>),
    End {
        certificate: Option<Box<Certificate>>,
        /// State records to remove, and those to keep until the end of the run.
        state: Vec<(Key, Option<Bytes>)>,
        totals: ListTotals,
    },
    /// State records, beside the progress of the run.
    State(Vec<(Key, Option<Bytes>)>),
}

/// The mark of a page that was read.
#[derive(Debug)]
struct PageMark {
    /// Its number in reading order, over all passes.
    number: u64,
    key: Key,
    value: Bytes,
    /// Number of its rows in this shard.
    rows: u64,
}

/// Counts that are added to the progress with the end of a list.
#[derive(Debug, Clone, Copy, Default)]
struct ListTotals {
    certified: u64,
    vanished: u64,
    unread: u64,
    offer: Offer,
}

impl Lists {
    pub(super) fn new(shared: Arc<Shared>, shard: i32, state: ListState, forgotten: Vec<Key>) -> Self {
        shared.lists.spanning.restore(shard, &state);
        Self {
            shared,
            shard,
            runs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            numbers: 0,
            parts: PartQueue { forgotten, ..PartQueue::default() },
            after: AfterListCommit::default(),
            state,
            hold: ListHold { until: i64::MIN, count: 0, why: None },
            reported: waiting::Reported::default(),
        }
    }

    /// Queues a part of a job for the next batch. The job waits for its commit.
    fn put(&mut self, number: u64, what: PartContent, bytes: usize) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.written.unwritten += 1;
        job.written.unwritten_marks += usize::from(matches!(what, PartContent::Read(_)));
        self.parts.waiting_bytes += bytes;
        self.parts.ready.push_back(Part { run: job.run.id.clone(), job: Some(number), what, bytes });
    }

    /// Waits until orders change, or pages may be read.
    pub(super) async fn changed(
        orders: &mut watch::Receiver<Orders>,
        stream: &mut watch::Receiver<Option<bool>>,
    ) {
        tokio::select! {
            changed = orders.changed() => if changed.is_err() { std::future::pending::<()>().await },
            changed = stream.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }

    /// Whether a page that waits for its commit shows the published version of a record, or a newer one: then there is no version
    /// regression.
    pub(super) fn shows(&self, subject: &Subject, stored: &Stamp) -> bool {
        let key = subject.key();
        let is_shown = |fetched: &Fetched| {
            let mut rows = fetched.rows.iter().filter(|row| row.key == key);
            rows.any(|row| row.version.as_ref().is_some_and(|version| version.reaches(stored)))
        };
        self.parts.ready.iter().any(|part| match &part.what {
            PartContent::Page(page, _) => {
                let list = part.job.and_then(|number| self.jobs.get(&number)?.list());
                list.is_some_and(|list| list.topic() == subject.topic()) && is_shown(&page.fetched)
            }
            _ => false,
        })
    }

    /// Voids the lists that contain these fence keys, because of version regressions, as far as they are still read or not fully marked.
    /// Returns the marks that say so: they are committed with the records, or before, so that the next owner of the shard does not
    /// continue the proofs.
    pub(super) fn note_regressions(&mut self, keys: &[Key], now: i64) -> Vec<(Key, Bytes)> {
        if keys.is_empty() {
            return Vec::new();
        }
        let is_hit = |Collection { list, company, .. }: &Collection| {
            let lead = Key::fences_of(list.topic(), company.as_ref());
            keys.iter().any(|key| key.as_str().starts_with(&lead))
        };
        let open = self.jobs.values_mut().filter(|job| job.collection().is_some_and(is_hit));
        let mut void: Vec<Collection> = open.filter_map(|job| job.note_regression(now)).collect();
        // Lists that a previous owner started and this one has not continued yet.
        let begun =
            self.state.pages.iter().filter(|(one, pages)| is_hit(one) && pages.range(1..).next().is_some());
        void.extend(begun.map(|(collection, _)| collection.clone()));
        // Another shard of the task may have their marks.
        let spanning = self.shared.lists.spanning.begun().into_iter();
        void.extend(spanning.filter(|list| is_hit(list) && !self.is_known(list)));
        void.retain(|collection| self.state.void.insert(collection.clone()));
        void.into_iter().map(|collection| (collection.void(self.shard), Bytes::from_static(b"{}"))).collect()
    }

    /// Whether this shard has started a list, or the list is over.
    fn is_known(&self, list: &Collection) -> bool {
        self.state.over.contains(list)
            || self.state.progress.get(&list.run).is_some_and(|progress| progress.state.is_over())
            || self.jobs.values().any(|job| job.collection() == Some(list))
    }

    /// Whether parts or removals wait for a commit.
    pub(super) fn has_parts(&self) -> bool {
        !self.parts.ready.is_empty() || !self.parts.forgotten.is_empty()
    }

    /// Whether counts of rows have changed since they were last written.
    pub(super) fn has_counts(&self) -> bool {
        self.jobs.values().any(Job::has_new_counts)
    }

    /// When the next request may start without another event.
    pub(super) fn wake_at(&self, now: i64) -> Option<i64> {
        let is_due = |job: &&Job| matches!(job.stage, Stage::Pages | Stage::Scan | Stage::Unlisted(_));
        let due = self.jobs.values().filter(is_due);
        let due = due.map(|job| job.requests.due.max(self.hold.until));
        let strangers = self.runs.values().filter_map(|active| active.strangers.due());
        due.chain(strangers).chain([self.hold.until]).filter(|at| *at > now).min()
    }
}

impl Part {
    /// State records for whose commit no job waits.
    fn of_run(run: &RunId, state: Vec<(Key, Option<Bytes>)>) -> Self {
        Self { run: run.clone(), job: None, what: PartContent::State(state), bytes: 0 }
    }

    /// Only the progress of the run.
    fn standing(run: &RunId) -> Self {
        Self::of_run(run, Vec::new())
    }
}
