//! The supervisor at work: looks, compares, starts and ends.

mod upkeep;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use kafka::{Lease, Membership, OwnedPartitions, ShardProducers, TransactionOptions};

use super::{
    Error, Handle, Id, Parts,
    connector::{self, Divisions},
    keeper::Keeper,
    order::End,
    plan::{Reason, Standing, Wanted, plan},
    roster::{Instance, Roster},
    sweep::Leftover,
    task,
    voice::{Board, Topic, Voice},
};
use crate::{
    connect::{arbiter::Arbiter, fresh::read_configs},
    plugin::{Recorder, Tools},
    state::State,
};

/// How often everything is looked at, changed or not: a lease ends without a sign.
const LOOK: Duration = Duration::from_millis(250);
/// How often what was said is compared with what the topic shows, changed or not: patience ends without a sign.
const INSIST: Duration = Duration::from_secs(2);
/// How long reading the topics to their end may take.
const READ_LIMIT: Duration = Duration::from_secs(15);
/// Wait before that is tried again.
const READ_PAUSE: Duration = Duration::from_secs(1);
/// The most of a stop that is kept for telling the status topic.
const TELLING: Duration = Duration::from_secs(2);
/// What an aborted instance may take beyond its time.
const ABORTING: Duration = Duration::from_millis(1200);

/// Something that is under way beside the looking.
type UnderWay<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// See the module's head.
pub(super) struct Duty {
    parts: Parts,
    handle: Handle,
    tools: Tools,
    board: Arc<Topic>,
    owned: watch::Receiver<OwnedPartitions>,
    /// Partitions for which the topics have been read to their end since their claim.
    ready: BTreeMap<i32, i64>,
    roster: Roster,
    /// The part of those that is surely ours right now.
    held: BTreeMap<i32, i64>,
    /// What should run, of what is held and by the configs up to this change.
    planned: BTreeMap<Id, Wanted>,
    planned_at: Option<u64>,
    /// When nothing was left over: the changes of configs and statuses, and what was held.
    swept_at: Option<(u64, u64, BTreeMap<i32, i64>)>,
    divisions: Divisions,
    /// When all that was said was shown: the change of statuses.
    insisted_at: Option<u64>,
}

impl Duty {
    pub(super) fn new(parts: Parts, handle: Handle) -> Self {
        let kafka = parts.worker.kafka.clone();
        let tools = Tools {
            shards: ShardProducers::new(kafka.clone(), TransactionOptions::default()),
            kafka,
            providers: parts.worker.providers.clone(),
            worker: Arc::clone(&parts.worker),
            offsets: parts.state.offsets.clone(),
            configs: parts.state.configs.clone(),
            faults: parts.faults.clone(),
            access: parts.access.clone(),
            ledgers: parts.ledgers.clone(),
            store: parts.store.clone(),
            worker_id: Arc::clone(&parts.worker_id),
            // Both are made for each task.
            lease: Arc::new(|| false),
            uses_topic: Arc::new(|_| {}),
            recorder: Recorder::default(),
        };
        let board = Topic { writer: parts.statuses.clone(), statuses: parts.state.statuses.clone() };
        let owned = parts.membership.owned();
        Self {
            parts,
            handle,
            tools,
            board: Arc::new(board),
            owned,
            ready: BTreeMap::new(),
            held: BTreeMap::new(),
            planned: BTreeMap::new(),
            planned_at: None,
            roster: Roster::default(),
            swept_at: None,
            insisted_at: None,
            divisions: Divisions::default(),
        }
    }

    /// Looks and acts until cancelled, or until something it needs has broken.
    pub(super) async fn run(&mut self, cancel: &CancellationToken) -> Result<(), Error> {
        let mut configs = self.parts.state.configs.changes();
        let mut owned = self.owned.clone();
        let (mut looks, mut insists) = (ticks(LOOK), ticks(INSIST));
        let mut preparing: UnderWay<(OwnedPartitions, Result<(), kafka::Error>)> = None;
        let mut sweeping: UnderWay<(BTreeSet<Leftover>, Result<(), kafka::Error>)> = None;
        loop {
            // The senders are held by what this holds, so none of these can fail.
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                _ = owned.changed() => {}
                _ = configs.changed() => {}
                () = self.roster.ended() => {}
                (claims, read) = done(&mut preparing) => {
                    preparing = None;
                    self.prepared(&claims, read);
                }
                (found, read) = done(&mut sweeping) => {
                    sweeping = None;
                    self.sweep(&found, read);
                }
                _ = looks.tick() => {
                    self.check()?;
                    self.insist_if_changed();
                }
                _ = insists.tick() => self.insist(),
            }
            if preparing.is_none() {
                preparing = self.prepare();
            }
            self.follow();
            if sweeping.is_none() {
                sweeping = self.find_leftovers();
            }
        }
    }

    /// Looks whether all that it works with is still there.
    fn check(&self) -> Result<(), Error> {
        let Parts { statuses, state, .. } = &self.parts;
        let broken = [
            (statuses.is_running(), "writes the status topic"),
            (state.configs.is_running(), "follows the config topic"),
            (state.statuses.is_running(), "follows the status topic"),
            (state.offsets.is_running(), "follows the offset topic"),
        ];
        match broken.into_iter().find(|(runs, _)| !runs) {
            Some((_, does)) => Err(Error { does }),
            None => Ok(()),
        }
    }

    /// Ends everything, tasks before connectors, within `grace`.
    pub(super) async fn stop(mut self, grace: Duration) {
        let now = Instant::now();
        let deadline = now + grace;
        let patience = grace.saturating_sub(TELLING.min(grace / 4) + ABORTING.min(grace / 4));
        let by = now + patience.min(self.parts.settings.task_grace);
        for tasks in [true, false] {
            let ending = self.roster.iter().filter(|(id, _)| id.task.is_some() == tasks);
            let ending: Vec<(Id, bool)> =
                ending.map(|(id, instance)| (id.clone(), self.holds(instance))).collect();
            for (id, told) in ending {
                self.roster.end(&id, End { by, told });
            }
            while !self.roster.has_none(tasks) {
                tokio::select! {
                    () = self.roster.ended() => {}
                    () = sleep_until(by.max(Instant::now()) + ABORTING) => {
                        tracing::warn!(tasks, "instances have not ended in time");
                        break;
                    }
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = self.parts.statuses.flush(left).await {
            tracing::warn!(%error, "the status topic was not told of the end");
        }
    }

    /// Compares what should run with what does.
    fn follow(&mut self) {
        let owned = Arc::clone(&self.owned.borrow_and_update());
        self.ready.retain(|partition, claim| owned.get(partition) == Some(claim));
        let membership = &self.parts.membership;
        let held: BTreeMap<i32, i64> = self
            .ready
            .iter()
            .filter(|(partition, _)| membership.holds(**partition))
            .map(|(partition, claim)| (*partition, *claim))
            .collect();
        let configs = &self.parts.state.configs;
        // Before the look: a change in between is looked at again.
        let change = Some(*configs.changes().borrow());
        if self.planned_at != change || self.held != held {
            self.planned = configs.read(|configs| plan(configs, &held, self.parts.partitions));
            (self.planned_at, self.held) = (change, held);
        }

        let ends: Vec<(Id, End)> = self
            .roster
            .iter()
            .filter_map(|(id, instance)| {
                Some((id.clone(), self.end(instance, &owned, self.planned.get(id))?))
            })
            .collect();
        for (id, end) in ends {
            self.roster.end(&id, end);
        }
        let mut missing = Vec::new();
        for (id, wanted) in &self.planned {
            if !self.roster.tell(id, &wanted.order) {
                missing.push((id.clone(), wanted.clone()));
            }
        }
        for (id, wanted) in missing {
            self.start(id, wanted);
        }
    }

    /// How an instance ends, if it shall.
    fn end(&self, instance: &Instance, owned: &OwnedPartitions, wanted: Option<&Wanted>) -> Option<End> {
        let (settings, membership) = (&self.parts.settings, &self.parts.membership);
        let standing = Standing {
            claim: instance.claim,
            owned: owned.get(&instance.partition).copied(),
            holds: membership.holds(instance.partition),
            leased: !membership.lease_left().is_zero(),
            wanted: wanted.is_some(),
        };
        let now = Instant::now();
        standing.ends().map(|reason| match reason {
            Reason::Lost => End { by: now + settings.lost_grace, told: false },
            // Its status is removed by the connector's owner.
            Reason::Gone => End { by: now + settings.task_grace, told: false },
            Reason::GivenUp => End { by: now + settings.task_grace, told: true },
        })
    }

    fn start(&mut self, id: Id, wanted: Wanted) {
        let Parts { plugins, state, arbiter, statuses, membership, worker_id, settings, .. } = &self.parts;
        let (partition, claim) = (wanted.partition, wanted.claim);
        let may_act: Lease = {
            let (membership, owned) = (membership.clone(), self.owned.clone());
            Arc::new(move || holds(&owned, &membership, partition, claim))
        };
        let body = match id.task {
            None => {
                let dividing = self.divisions.of(&id.connector);
                connector::body(&id, plugins, arbiter, &state.configs, &may_act, dividing)
            }
            Some(_) => {
                let uses_topic = task::uses_topic(&id, statuses, &state.statuses);
                let recorder = self.handle.recorder_of(&id);
                let tools = Tools { uses_topic, recorder, ..self.tools.clone() };
                task::body(&id, claim, plugins, &tools, &may_act)
            }
        };
        let board: Arc<dyn Board> = Arc::clone(&self.board) as _;
        let voice = Voice::new(id.clone(), claim, Arc::clone(worker_id), board, self.handle.clone());
        let voice = Arc::new(voice);
        tracing::info!(connector = &*id.connector, task = id.task, partition, generation = claim, "starting");
        let keeper = Keeper::new(id.clone(), body, Arc::clone(&voice), may_act, *settings);
        self.roster.start(id, wanted, keeper, voice);
    }

    /// Reads the topics to their end for partitions that are new.
    fn prepare(&self) -> UnderWay<(OwnedPartitions, Result<(), kafka::Error>)> {
        let owned = Arc::clone(&self.owned.borrow());
        if owned.iter().all(|(partition, claim)| self.ready.get(partition) == Some(claim)) {
            return None;
        }
        let (state, arbiter) = (self.parts.state.clone(), self.parts.arbiter.clone());
        Some(Box::pin(async move {
            let read = read_to_end(&state, &arbiter).await;
            if read.is_err() {
                sleep(READ_PAUSE).await;
            }
            (owned, read)
        }))
    }

    fn prepared(&mut self, claims: &OwnedPartitions, read: Result<(), kafka::Error>) {
        match read {
            Ok(()) => self.ready = (**claims).clone(),
            Err(error) => tracing::warn!(%error, "what was assigned waits until the topics have been read"),
        }
    }

    fn holds(&self, instance: &Instance) -> bool {
        holds(&self.owned, &self.parts.membership, instance.partition, instance.claim)
    }
}

/// Whether a partition is surely ours, and under this claim.
fn holds(
    owned: &watch::Receiver<OwnedPartitions>,
    membership: &Membership,
    partition: i32,
    claim: i64,
) -> bool {
    // Not in one expression: both look at the same lock, and it would be held over the second look.
    let claimed = owned.borrow().get(&partition) == Some(&claim);
    claimed && membership.holds(partition)
}

/// Reads configurations, commands and statuses. Not the offsets: what a dead worker has left open there is only decided
/// once its successors take over its transactional ids, so tasks read them after that.
async fn read_to_end(state: &State, arbiter: &Arbiter) -> Result<(), kafka::Error> {
    let configs = read_configs(&state.configs, arbiter, READ_LIMIT);
    tokio::try_join!(configs, state.statuses.read_to_end(READ_LIMIT)).map(drop)
}

/// The result of what is under way; waits for ever while nothing is.
async fn done<T>(under_way: &mut UnderWay<T>) -> T {
    match under_way {
        Some(work) => work.await,
        None => pending().await,
    }
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
