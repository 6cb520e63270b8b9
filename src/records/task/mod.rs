//! A task of a `RecordSource`: the shards it owns, what they read, and the transactions that publish it, one per batch of a shard.
//!
//! ```text
//! event topics                                        state topic: runs
//!      │ one consumer for all shards                        │
//!      ▼                                                    ▼
//!  reader.rs                                            runs/mod.rs
//!      │ Input, over a channel per shard                    │ Orders
//!      ▼                                                    ▼
//! ┌ one shard: shard.rs ──────────────────────────────────────────────────────────┐
//! │ Scheduler: one read for each record ◀── thin rows ── lists/: pages and proofs │
//! │      │ entries                                            │ parts             │
//! │      └───────────────────▶ draft.rs ◀─────────────────────┘                   │
//! │                               │ one batch at a time                           │
//! │                               ▼                                               │
//! │                           commit.rs ─▶ state.rs                               │
//! └───────────────────────────────┬───────────────────────────────────────────────┘
//!                                 ▼
//! one transaction per batch: values, fences, dead letters, parked events, page marks, certificates, offsets, batch id
//!
//! shared by all shards: request slots, page slots, lists/pages.rs, lists/spanning.rs, directory.rs, not_found.rs
//! ```
//!
//! Task `i` of `n` has the shards `s` with `s mod n = i`; a shard is a partition number, the same in every topic of the prefix.
//!
//! - Only the last owner of a shard's transactional id can write to the shard: the broker rejects writes of every earlier one (producer
//!   epoch).
//! - `taking.rs` takes a shard over: transactional id, offsets, state, fences. Everything a shard knows can be read from Kafka; the
//!   database on this disk only caches the fences.
//! - Answers that are not committed are lost with the task instance; the next one reads their events and pages again.
//! - A paused task releases all its shards.
//!
//! On failure of one shard, all shards of the task stop, and the supervisor restarts the task if a retry can help. Otherwise the task
//! stays FAILED, and its trace names the remedy.
//!
//! # One event, from its topic to its commit
//!
//! 25 stops: each file of `records`, and each crate or other module, counts once. `base` (metrics, backoff) is left out. Files without a
//! folder are in `task/`.
//!
//! | # | file | does |
//! |---|---|---|
//! | 1 | crate `kafka` | consumes the record, and commits the transaction in the end |
//! | 2 | `reader.rs` | decodes the event and passes it to its shard |
//! | 3 | `src/avro` | decodes it by its schema |
//! | 4 | `schedule/request.rs` | derives the read that it asks for |
//! | 5 | `shard.rs` | looks up the fence entry, and passes both to the scheduler |
//! | 6–8 | `fence/shard/mod.rs`, `fence/record.rs`, `fence/cache.rs` | read the newest published version of the key |
//! | 9 | `src/store` | the database on this disk |
//! | 10 | `schedule/offsets.rs` | opens its offset |
//! | 11 | `schedule/scheduler/mod.rs` | joins it with other events of its record, or makes the record due |
//! | 12 | `schedule/pending.rs` | holds what the record waits for |
//! | 13 | `schedule/queue.rs` | gives its company a turn |
//! | 14 | `directory.rs` | says whether the company exists |
//! | 15 | crate `provider` | reads the record by id |
//! | 16 | `mod.rs` | notes that the provider answered |
//! | 17 | `schedule/judge.rs` | says what the answer means |
//! | 18 | crate `model` | parses the record and compares its version |
//! | 19 | `schedule/scheduler/after_read.rs` | acts on the answer: publish, retry, park, give up; takes the entry into a batch, with the offset that it settles |
//! | 20 | `schedule/batch.rs` | the entry to write |
//! | 21 | `draft.rs` | compares it with the fence once more |
//! | 22 | `commit.rs` | turns the batch into records, fence entries by `fence/record.rs`; writes it, and retries it |
//! | 23 | `state.rs` | the key of the batch id, from which an unknown outcome is resolved |
//! | 24 | `src/plugin` | the offset as a record of the offset topic |
//! | 25 | `src/publish` | encodes values, and sends the transaction |
//!
//! After the commit it passes 6 to 9 again (store the fence entries) and 19 (continue with records that need another read). A delete
//! passes `not_found.rs` between 15 and 16; a parked event passes `schedule/parked.rs` at 20.
//!
//! # One page, from its run to the certificate of its list
//!
//! 31 stops, counted alike. Files without a folder, and `job/` and `comparing/`, are in `task/lists/`.
//!
//! | # | file | does |
//! |---|---|---|
//! | 1 | `src/state` | the run, read from the state topic |
//! | 2 | `task/runs/mod.rs` | passes it to the shards |
//! | 3 | `task/shard.rs` | wakes the lists, and commits their parts with its batches |
//! | 4 | `planning.rs` | starts the run in this shard, and plans its lists company by company |
//! | 5 | `task/directory.rs` | which companies there are |
//! | 6 | `asking.rs` | starts the list, and requests its pages, and known records that they do not show |
//! | 7 | `job/mod.rs` | the list, and its next page |
//! | 8 | `proof/mod.rs` | which page the proof needs |
//! | 9 | `pages.rs` | fetches it |
//! | 10 | crate `provider` | requests it |
//! | 11 | crate `model` | parses its rows, and compares versions |
//! | 12 | `probe.rs` | first page only: whether rows are whole records |
//! | 13 | `results.rs` | takes the page, or its failure |
//! | 14 | `proof/pass.rs` | advances the pass, counts its records |
//! | 15 | `proof/page.rs` | the page as it is stored |
//! | 16 | `mod.rs` | the part to commit |
//! | 17 | `writing.rs` | adds the part to the batch, and continues after the commit |
//! | 18 | `rows.rs` | compares each row with the fence |
//! | 19 | `task/draft.rs` | the batch, and what it writes so far |
//! | 20–23 | `fence/shard/mod.rs`, `fence/record.rs`, `fence/cache.rs`, `src/store` | read the newest published version of the key |
//! | 24 | `schedule/batch.rs` | the entry to write |
//! | 25 | `task/commit.rs` | writes the batch, as records; fence entries by `fence/record.rs` |
//! | 26 | `task/state.rs` | keys of pages, counts, progress and the batch id |
//! | 27 | `src/publish` | encodes values and certificates, and sends the transaction |
//! | 28 | crate `kafka` | commits it |
//! | 29 | `fence/shard/known.rs` | after the last page: published records that no page has shown |
//! | 30 | `job/end.rs` | counts what reads by id of these return; the certificate |
//! | 31 | `proof/verdict.rs` | what was proved |
//!
//! A thin row adds an event's stops 11 to 21. A run that verifies adds `topic.rs` and `comparing/`, and `sample.rs` if it reads
//! samples. A page of a list that spans companies passes `spanning.rs` before 17. `waiting.rs` only reports.

mod reader;

mod taking;

mod shard;

mod directory;

mod not_found;

mod runs;

mod lists;

mod draft;

mod commit;

mod state;

mod gauges;

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use base::retry::ErrorChain;
use kafka::partition_of;
use model::{AccountingResource, Key, List, Moment, Partitioning, Topic};
use provider::{
    api::{self, Accounting, Rates},
    auth::Area,
};

pub(crate) use self::lists::shows_less;
pub(super) use self::taking::transactional_id;
use self::{
    directory::Directory,
    lists::{Orders, Pages, SpanningLists},
    not_found::NotFoundChecks,
    reader::{InHand, Reader},
    runs::Follower,
    shard::Shard,
};

use crate::{
    avro,
    config::{
        Connector, RecordSource,
        connector::{SnapshotMode, record::MAX_SHARDS},
    },
    logins::access::ApiUser,
    plugin::{Failure, Task, unable},
    publish::{self, DeadLetters, Layout, Preparer},
    records::{
        fence::Fences,
        schedule::{Rules, doubled_delay},
    },
    state::state_topic::StateTopic,
};

/// Records of one task that may hold back offsets, over all its shards; each shard may have [`LEAST_OPEN`].
const MOST_OPEN: usize = 20_000;
const LEAST_OPEN: usize = 100;
/// Records of one task that may be parked; each shard may have ten times [`LEAST_OPEN`].
const MOST_PARKED: usize = 200_000;
/// Shards that are taken concurrently: each reads several topics.
const TAKING: usize = 8;
/// Minimum time between two reads that only check one record for a version regression.
const REGRESSION_CHECK_EVERY: Duration = Duration::from_secs(3_600);

/// Effect of a failure that an operator has to resolve.
const EVENTS_WAIT: &str = "events wait until it is resolved";

/// What all shards of a task share.
struct Shared {
    task: Arc<Task>,
    source: RecordSource,
    output: TaskOutput,
    requests: TaskRequests,
    evidence: Evidence,
    directory: Directory,
    events: TaskEvents,
    fences: TaskFences,
    lists: TaskLists,
    /// Shards of this task.
    shards: Vec<i32>,
}

/// What is written.
struct TaskOutput {
    preparer: Preparer,
    dead_letters: DeadLetters,
}

/// Requests to the provider.
struct TaskRequests {
    accounting: Accounting,
    /// Concurrent reads by id for events.
    slots: Arc<Semaphore>,
    /// A counter: each shard that reads nothing and waits for a slot holds a clone, and the others then release theirs.
    starving: Arc<()>,
    /// Concurrent requests for lists, separate from `slots`: three quarters of `budget.requests.in.flight`, so that lists never use up the
    /// worker's limit.
    page_slots: Arc<Semaphore>,
}

/// What reads by id have shown.
#[derive(Default)]
struct Evidence {
    answers: Answers,
    failures: Failures,
    not_found: NotFoundChecks,
}

/// Events on their way to the shards.
struct TaskEvents {
    decoder: avro::Decoder,
    in_hand: InHand,
}

/// The newest published version of each key, on this disk.
struct TaskFences {
    all: Fences,
    /// Partitions that have published records; read once, when the first fence is rebuilt.
    published: OnceCell<BTreeSet<(Topic, i32)>>,
}

/// What the lists of all shards share.
struct TaskLists {
    pages: Pages,
    spanning: SpanningLists,
    /// Requested runs.
    orders: watch::Receiver<Orders>,
    /// `None` until pages may be read; then whether the stream is verified, which means that every later change is delivered.
    stream: watch::Receiver<Option<bool>>,
    /// Number of tasks of the connector.
    tasks: i32,
}

/// Number of reads by id that the accounting API has answered for any shard of the task. A record that fails while this number grows
/// fails alone. Pages do not count: lists may be available while all reads by id fail.
#[derive(Debug, Default)]
struct Answers(AtomicU64);

impl Answers {
    /// Counts a result of a read. An error about the requested record is an answer too.
    fn note<T>(&self, asked: &Result<T, api::Error>) {
        let is_answer = match asked {
            Ok(_) => true,
            // Such a request is never sent.
            Err(api::Error { cause: api::Cause::Unaddressable, .. }) => false,
            Err(error) => error.reach() == api::Reach::Record,
        };
        if is_answer {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why the last read by id of each resource failed, for reports of runs that wait for it.
#[derive(Debug, Default)]
struct Failures(Mutex<BTreeMap<AccountingResource, String>>);

impl Failures {
    /// Records the result of a read.
    fn note<T>(&self, resource: AccountingResource, read: &Result<T, api::Error>) {
        let mut failures = self.0.lock();
        match read {
            Ok(_) => drop(failures.remove(&resource)),
            Err(error) => drop(failures.insert(resource, ErrorChain(error).to_string())),
        }
    }

    fn all(&self) -> BTreeMap<AccountingResource, String> {
        self.0.lock().clone()
    }
}

/// Runs a task until it is cancelled. `tasks` is how many the connector has.
///
/// # Errors
/// The task cannot continue.
pub(super) async fn run(
    task: Task,
    source: RecordSource,
    tasks: u32,
    stream: watch::Receiver<Option<bool>>,
    fences: Fences,
) -> Result<(), Failure> {
    let mut paused = task.paused.clone();
    let task = Arc::new(task);
    while task.wait_while_paused(&mut paused).await {
        let stop = task.cancel.child_token();
        let mut working = pin!(work(&task, &source, tasks, &stream, &fences, &stop));
        tokio::select! {
            ended = &mut working => return ended,
            // If the supervisor has dropped the sender, no more pauses can come, and the task continues.
            Ok(()) = paused.changed() => stop.cancel(),
        }
        // Wait for the commit in flight. Nothing else starts.
        working.await?;
    }
    Ok(())
}

async fn work(
    task: &Arc<Task>,
    source: &RecordSource,
    tasks: u32,
    stream: &watch::Receiver<Option<bool>>,
    fences: &Fences,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let (orders, followed) = watch::channel(Orders::default());
    let beginning = begin(task, source, tasks, stream.clone(), fences, followed);
    let Some(begun) = stop.run_until_cancelled(beginning).await else { return Ok(()) };
    let Some((shared, shards, handle)) = begun? else {
        // There are more tasks than shards.
        task.started();
        stop.cancelled().await;
        return Ok(());
    };
    task.started();
    let ending = stop.child_token();
    let mut parts: JoinSet<Result<(), Failure>> = JoinSet::new();
    let (reader, inboxes) = Reader::new(Arc::clone(&shared), &shards);
    // `initial_only` publishes the records of the initial run and no later change, so events are not read.
    if source.snapshot.mode != SnapshotMode::InitialOnly {
        parts.spawn(reader.run(ending.clone()));
    }
    // With `no_data` no run is requested at the start, so none has to wait for the payroll login.
    let payroll =
        source.snapshot.lists.contains(&List::Payroll) && source.snapshot.mode != SnapshotMode::NoData;
    let grants = task.tools.access.grants();
    let payroll = payroll.then(|| grants.watch(&source.provider, Area::Payroll, &task.connector));
    let follower = Follower {
        task: Arc::clone(task),
        source: source.clone(),
        handle,
        orders,
        begun_at: now(),
        payroll,
        waits: None,
    };
    parts.spawn(follower.run(ending.clone()));
    // Companies are read with the login for accounting.
    if !source.is_payroll_only() {
        parts.spawn(shared.directory.clone().run(Arc::clone(&shared), ending.clone()));
    }
    for (shard, inbox) in shards.into_iter().zip(inboxes) {
        parts.spawn(shard.run(inbox, ending.clone()));
    }
    let mut ended: Result<(), Failure> = Ok(());
    while let Some(part) = parts.join_next().await {
        let part = part.unwrap_or_else(|error| {
            Err(Failure::retryable("Panicked", format!("a part of the task ended by itself: {error}")))
        });
        // The first failure counts, because the others follow from it; but one that needs an operator outweighs a retriable one.
        let is_worse = |failure: &Failure| match &ended {
            Ok(()) => true,
            Err(known) => known.retry.is_retriable() && !failure.retry.is_retriable(),
        };
        if let Err(failure) = part
            && is_worse(&failure)
        {
            ended = Err(failure);
        }
        ending.cancel();
    }
    task.recorder.clear_lags();
    ended
}

/// Prepares everything that a task needs before its first event; `None` if it owns no shard.
async fn begin(
    task: &Arc<Task>,
    source: &RecordSource,
    tasks: u32,
    stream: watch::Receiver<Option<bool>>,
    fences: &Fences,
    orders: watch::Receiver<Orders>,
) -> Result<Option<(Arc<Shared>, Vec<Shard>, StateTopic)>, Failure> {
    let tools = &task.tools;
    let writing = &tools.record_writing;
    // A connector that also reads accounting starts without the payroll login; only the payroll list waits for it.
    let area = if source.is_payroll_only() { Area::Payroll } else { Area::Accounting };
    let mut login = tools.access.grants().watch(&source.provider, area, &task.connector);
    if login.problem().is_some() {
        login.catch_up().await;
        if let Some(error) = login.problem() {
            return Err(unable("records cannot be read", EVENTS_WAIT, &error));
        }
    }
    let connector = Connector::RecordSource(Box::new(source.clone()));
    let layout = Layout { create: tools.worker.topic_creation, ..Layout::of(&connector) };
    let opened = publish::open(&layout, &writing.admin, &writing.ids).await.map_err(unopened)?;
    let partitions = opened.preparer.partitions();
    if partitions > MAX_SHARDS {
        let message = format!(
            "the topics of this prefix have {partitions} partitions, and at most {MAX_SHARDS} can be kept"
        );
        return Err(Failure::permanent("TooManyPartitions", message, "use another topic.prefix"));
    }
    let number = i32::try_from(task.number).unwrap_or(i32::MAX);
    let tasks = i32::try_from(tasks).unwrap_or(i32::MAX).max(1);
    let own: Vec<i32> = (0..partitions).filter(|shard| shard % tasks == number).collect();
    if own.is_empty() {
        return Ok(None);
    }
    let party =
        ApiUser { rates: Some(Rates::from(source)), ..ApiUser::new(&task.connector, &source.provider) };
    let unusable = |cause: api::Cause| {
        let remedy = "correct provider.*, or what it refers to on this worker";
        Failure::permanent("InvalidConfiguration", cause.to_string(), remedy)
    };
    let accounting = tools.access.accounting(&party).map_err(unusable)?;
    let payroll = match source.snapshot.lists.contains(&List::Payroll) {
        true => Some(tools.access.payroll(&party).map_err(unusable)?),
        false => None,
    };
    let followed = tools.state_topics.of(&source.common.topic_prefix).await;
    let followed = followed.map_err(|error| Failure {
        retry: error.retry(),
        ..Failure::retryable("NotFollowed", ErrorChain(&error).to_string())
    })?;
    let Some(handle) = followed else {
        return Err(Failure::retryable("NotFollowed", "the state topic of the prefix is not there yet"));
    };
    let page_slots = Arc::new(Semaphore::new((source.requests_in_flight * 3 / 4).max(1)));
    let order_by = source.snapshot.payroll_order_by.clone();
    let pages = Pages::new(accounting.clone(), payroll, order_by, Arc::clone(&page_slots));
    let shared = Arc::new(Shared {
        task: Arc::clone(task),
        source: source.clone(),
        output: TaskOutput {
            // Never optional: an acknowledged event must not be lost because its record cannot be published.
            dead_letters: opened.dead_letters_of(
                &source.common.name,
                task.number,
                source.common.errors.logged,
                &writing.signer,
            ),
            preparer: opened.preparer,
        },
        requests: TaskRequests {
            accounting,
            slots: Arc::new(Semaphore::new(source.requests_in_flight.max(1))),
            starving: Arc::default(),
            page_slots,
        },
        evidence: Evidence::default(),
        directory: Directory::new(
            source.companies_refresh,
            source.companies_max,
            Arc::clone(&task.connector),
            task.recorder.clone(),
        ),
        events: TaskEvents {
            decoder: avro::Decoder::new(writing.ids.registry().clone()),
            in_hand: InHand::of(&own),
        },
        fences: TaskFences { all: fences.clone(), published: OnceCell::new() },
        lists: TaskLists { pages, spanning: SpanningLists::new(own.clone()), orders, stream, tasks },
        shards: own.clone(),
    });
    let taking = own.into_iter().map(|shard| Shard::take(Arc::clone(&shared), shard));
    let mut shards: Vec<Shard> = futures::stream::iter(taking).buffer_unordered(TAKING).try_collect().await?;
    shards.sort_by_key(Shard::number);
    Ok(Some((shared, shards, handle)))
}

impl Shared {
    /// The shard that a key belongs to.
    fn shard_of(&self, key: &Key) -> i32 {
        match key.partitioning() {
            Partitioning::By(bytes) => partition_of(bytes, self.output.preparer.partitions()),
            Partitioning::Shard(shard) => shard,
        }
    }

    /// Backoff of a list or of a read for it, in microseconds, after `tries` attempts beside the first one.
    fn wait(&self, tries: u32) -> i64 {
        let (first, longest) = (micros(self.source.enrich.retry), micros(self.source.enrich.retry_max));
        doubled_delay(first, longest, tries.saturating_add(1)).max(1)
    }

    fn rules(&self) -> Rules {
        let enrich = &self.source.enrich;
        Rules {
            window: micros(enrich.window),
            retry_first: micros(enrich.retry),
            retry_longest: micros(enrich.retry_max),
            park_after: micros(enrich.park_after),
            parked_first: micros(enrich.parked),
            parked_longest: micros(enrich.parked_max),
            horizon: micros(enrich.horizon),
            tombstone_confirm: micros(self.source.tombstone_confirm),
            epoch_confirm: micros(self.source.epoch_confirm),
            regression_check_every: micros(REGRESSION_CHECK_EVERY.min(self.source.epoch_confirm)),
            most_open: (MOST_OPEN / self.shards.len().max(1)).max(LEAST_OPEN),
            most_parked: (MOST_PARKED / self.shards.len().max(1)).max(10 * LEAST_OPEN),
            // More reads would only wait for the rate limit of the company. Half of the slots stay free for other companies.
            company_reads: (self.source.company_budget_per_second.ceil() as usize)
                .clamp(1, self.source.requests_in_flight.div_ceil(2)),
            brake_count: self.source.brake_count.into(),
            brake_share: self.source.brake_percent / 100.0,
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn now() -> i64 {
    Moment::now().micros()
}

fn unopened(error: publish::Error) -> Failure {
    let (message, retry) = (ErrorChain(&error).to_string(), error.retry());
    if retry.is_retriable() {
        return Failure { retry, ..Failure::retryable("NotOpened", message) };
    }
    let remedy = "correct what Kafka or the schema registry refuses";
    Failure::permanent("NotOpened", message, remedy)
}

/// The failure of the task after an error that no retry can resolve.
fn refused(error: &api::Error) -> Failure {
    if let api::Cause::Access(error) = &error.cause {
        return unable("records cannot be read", EVENTS_WAIT, error);
    }
    let message = format!("records cannot be read: {}", ErrorChain(error));
    let remedy = "correct what the provider refuses; events wait until then";
    Failure::permanent("ProviderRefused", message, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_an_answer_but_outage_and_unsent_request_are_not() {
        let answers = Answers::default();
        let error = |status, cause| {
            let endpoint = api::Endpoint { method: "GET", path: "x".into() };
            Err(api::Error {
                endpoint,
                status,
                cause,
                excerpt: None,
                acted: api::Acted::No,
                in_company: true,
            })
        };
        for (asked, count) in [
            (Ok(()), 1),
            (error(Some(404), api::Cause::NotFound { by: api::AnsweredBy::Api }), 2),
            (error(Some(503), api::Cause::Server { again: None }), 2),
            (error(Some(403), api::Cause::Forbidden { by: api::AnsweredBy::Api }), 2),
            (error(None, api::Cause::Unaddressable), 2),
        ] {
            answers.note(&asked);

            assert_eq!(answers.count(), count, "{asked:?}");
        }
    }
}
