//! The loop of the task: reads what is wanted, plans, writes, calls, settles.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep, sleep_until, timeout},
};

use base::{
    failpoint, metrics, random,
    retry::{Backoff, BackoffPolicy, ErrorChain},
};
use model::{Fingerprint, GapState, Moment, Nonce, Target};

use super::{
    desired::ResolvedConnector,
    provider_calls::{CallStop, MAX_PAUSE, ProviderCalls},
};
use crate::{
    config::{Providers, Worker, connector::ExclusiveSetting},
    plugin::{Failure, Task},
    state::{
        configs::{Properties, StoredConnector},
        state_topic::{self, StateTopic, StateWriter},
        subscriptions::{SubscriptionChange, SubscriptionState},
    },
    webhooks::subscriptions::{
        CallOutcome, DesiredSubscription, PlannedCall, PlannerMemory, ProviderCall, RetryState,
        SubscriptionInput, SubscriptionPlan, plan, settle,
    },
};

/// Shortest time between two plans, and after [`MAX_BUSY_PLANS`] plans in a row.
const MIN_PLAN_INTERVAL: Duration = Duration::from_millis(20);
const BUSY_PLAN_INTERVAL: Duration = Duration::from_secs(1);
/// Plans in a row that change something until the loop slows down.
const MAX_BUSY_PLANS: u32 = 200;
/// Time until a changed reference is read again to confirm it.
const REFERENCE_RECHECK: Duration = Duration::from_secs(1);
/// Longest time between two plans.
const MAX_PLAN_INTERVAL: Duration = Duration::from_secs(60);
/// Ids of other systems that are remembered.
const MAX_FOREIGN_IDS: usize = 1_024;

/// Calls in flight.
const MAX_CONCURRENT_CALLS: usize = 4;
/// How long a stop waits for calls in flight; shorter than the time a task has to end.
const STOP_CALL_WAIT: Duration = Duration::from_secs(3);

/// The task's loop; the module's head says how it works.
pub(crate) struct Reconciler<'a> {
    task: &'a Task,
    ledger: OwnedLedger,
    desired: ResolvedConnector,
    reload: Reload,
    calls: ProviderCalls,
    memory: PlannerMemory,
    /// Invoicing segments of other connectors.
    other_segments: BTreeSet<String>,
    /// When it took over, in microseconds since 1970.
    began: i64,
    /// Number of the last command that the memory was reset for.
    command: u64,
    pace: PlanPace,
}

/// This connector's records in `{prefix}.state`. Only this instance may write subscriptions, because its writes are fenced; workers,
/// `RecordSource` tasks and REST write other records.
struct OwnedLedger {
    handle: StateTopic,
    changes: watch::Receiver<u64>,
    writer: StateWriter,
}

/// When the configuration's references are read again.
struct Reload {
    at: Instant,
    /// A changed configuration, which applies once the next read is the same.
    unsettled: Option<Box<ResolvedConnector>>,
}

/// How long to wait between plans.
struct PlanPace {
    /// After failures that concern all targets.
    backoff: Backoff,
    pause_until: Instant,
    /// Plans in a row that have changed something.
    busy: u32,
}

impl<'a> Reconciler<'a> {
    /// Takes over from the instance before it.
    ///
    /// # Errors
    /// The configuration cannot be used here, or Kafka does not allow it.
    pub(crate) async fn start(task: &'a Task) -> Result<Self, Failure> {
        let tools = &task.tools;
        let desired = read(&task.connector, &task.config, &tools.worker.providers, &tools.worker).await?;
        let calls = ProviderCalls::new(&tools.access, &task.connector, &desired.source)?;
        let opened = tools.state_topics.open(&desired.source).await;
        let handle = opened.map_err(|error| no_ledger("open the state topic", error))?;
        let lease = Arc::clone(&task.permission.lease);
        let writer = StateWriter::take(handle.clone(), &task.connector, &tools.shards, lease).await;
        let writer = writer
            .map_err(|error| Failure::kafka("take over the subscriptions in the state topic", error))?;
        let (first, longest) = desired.source.subscriptions.backoff;
        let seed = u64::from(kafka::murmur2(task.connector.as_bytes()));
        Ok(Self {
            ledger: OwnedLedger { changes: handle.changes(), handle, writer },
            calls,
            memory: PlannerMemory::default(),
            other_segments: BTreeSet::new(),
            reload: Reload { at: Instant::now() + tools.worker.secrets_reload_interval, unsettled: None },
            began: Moment::now().micros(),
            command: 0,
            pace: PlanPace {
                backoff: Backoff::new(BackoffPolicy { first, longest, total: None }, seed),
                pause_until: Instant::now(),
                busy: 0,
            },
            desired,
            task,
        })
    }

    /// Plans and makes the calls that are due, unless it is to stop; returns when to plan again.
    ///
    /// # Errors
    /// The task fails.
    pub(crate) async fn round(&mut self, is_over: impl Fn() -> bool) -> Result<Instant, Failure> {
        self.reread_references().await;
        self.ledger.changes.borrow_and_update();
        let ledger = self.ledger.handle.subscriptions(&self.task.connector);
        self.remember(&ledger);
        self.other_segments = self.read_other_segments();
        let planned = Instant::now();
        let now = Moment::now().micros();
        let mut plan = plan(&self.input(&ledger, &self.wanted(&ledger), now));
        if !self.desired.source.manage_subscriptions {
            plan = only_losses(plan, &ledger);
        }
        let is_paused = planned < self.pace.pause_until;
        let has_changes = !plan.changes.is_empty();
        let alters = has_changes || plan.steps.iter().any(|step| !step.call.is_read_only());
        self.commit(&plan.changes).await?;
        let has_steps = !is_paused && !plan.steps.is_empty();
        if has_steps {
            self.go(plan.steps, planned, is_over).await?;
        }
        let now = Moment::now().micros();
        let again = plan.again_at.map_or(MAX_PLAN_INTERVAL, |at| {
            duration_of_micros(at.saturating_sub(now)).min(MAX_PLAN_INTERVAL)
        });
        let mut wake = (Instant::now() + again).min(self.reload.at);
        self.pace.busy = if alters && !is_paused { self.pace.busy.saturating_add(1) } else { 0 };
        if has_changes || has_steps {
            wake = Instant::now();
        }
        if Instant::now() < self.pace.pause_until {
            wake = wake.max(self.pace.pause_until);
        }
        Ok(wake.max(
            Instant::now()
                + if self.pace.busy > MAX_BUSY_PLANS { BUSY_PLAN_INTERVAL } else { MIN_PLAN_INTERVAL },
        ))
    }

    /// Retries invoicing now, after a login.
    pub(crate) fn retry_invoicing(&mut self) {
        self.memory.retries.changes.retain(|target, _| target.resource().is_some());
        self.memory.retries.list = RetryState::default();
    }

    /// Waits until the next plan or a change of the ledger.
    pub(crate) async fn idle(&mut self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            // The table lives as long as this does.
            _ = self.ledger.changes.changed() => sleep(MIN_PLAN_INTERVAL).await,
        }
    }

    /// What is declared; nothing, if the operator removes all subscriptions.
    fn wanted(&self, ledger: &SubscriptionState) -> BTreeMap<Target, DesiredSubscription> {
        if ledger.requests.is_removed() { BTreeMap::new() } else { self.desired.wanted.clone() }
    }

    fn input<'s>(
        &'s self,
        ledger: &'s SubscriptionState,
        wanted: &'s BTreeMap<Target, DesiredSubscription>,
        now: i64,
    ) -> SubscriptionInput<'s> {
        SubscriptionInput {
            connector: &self.task.connector,
            worker: &self.task.tools.worker_id,
            now,
            began: self.began,
            wanted,
            ledger,
            memory: &self.memory,
            rules: &self.desired.rules,
            other_segments: &self.other_segments,
            draw: &draw,
        }
    }

    fn read_other_segments(&self) -> BTreeSet<String> {
        let Task { connector, tools, .. } = self.task;
        let segment = |connector: &StoredConnector| {
            let exclusive = ExclusiveSetting::of(&connector.config, &tools.worker.providers)?;
            exclusive.segment_name().map(str::to_owned)
        };
        tools.configs.read(|configs| {
            let others = configs.connectors().iter().filter(|(name, _)| ***name != **connector);
            others.filter_map(|(_, other)| segment(other)).collect()
        })
    }

    /// Commits changes; success proves that this instance still owns the ledger.
    async fn commit(&mut self, changes: &[SubscriptionChange]) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        let known: Vec<String> =
            self.ledger.handle.read(&self.task.connector, |ledger| ledger.gaps.keys().cloned().collect());
        let written = self.ledger.writer.commit(changes).await;
        written.map_err(|error| Failure::kafka("write to the state topic", error))?;
        for change in changes {
            if let SubscriptionChange::Gap(gap) = change
                && gap.state == GapState::Open
                && !known.contains(&gap.id())
            {
                metrics::gap_written(gap.cause.name());
                let (connector, cause) = (&*self.task.connector, gap.cause.name());
                let target = gap.target.map(|target| target.to_string());
                let detail = &*gap.detail;
                tracing::error!(
                    connector,
                    cause,
                    target,
                    gap = gap.id(),
                    detail,
                    "opened a gap: deliveries may be missing"
                );
            }
        }
        Ok(())
    }

    /// Updates the memory for the current command and the declared secrets.
    fn remember(&mut self, ledger: &SubscriptionState) {
        let number = ledger.requests.command.as_ref().map_or(0, |command| command.number);
        if number != self.command {
            self.command = number;
            // A new command is tried at once: backoffs of earlier failures end.
            let PlannerMemory { secrets, foreign, .. } = std::mem::take(&mut self.memory);
            self.memory = PlannerMemory { secrets, foreign, ..PlannerMemory::default() };
            self.pace.pause_until = Instant::now();
            self.pace.backoff.reset();
        }
        want_since(&mut self.memory, &self.desired, Moment::now().micros());
        while self.memory.foreign.len() > MAX_FOREIGN_IDS {
            self.memory.foreign.pop_first();
        }
    }

    /// Resolves references again, if it is time or a worker reports a secret that this task does not know.
    async fn reread_references(&mut self) {
        let now = Instant::now();
        let is_behind = self.ledger.handle.read(&self.task.connector, |ledger| self.is_behind(ledger));
        if !self.desired.source.common.restart_on_changed_secret {
            self.reload.at = now + MAX_PLAN_INTERVAL;
            return;
        }
        if now < self.reload.at && !(is_behind && now + REFERENCE_RECHECK <= self.reload.at) {
            return;
        }
        let every = self.task.tools.worker.secrets_reload_interval;
        self.reload.at = now + every;
        if is_behind {
            self.reload.at = now + every.min(REFERENCE_RECHECK);
        }
        let Task { connector, config, tools, .. } = self.task;
        let found = match read(connector, config, &tools.worker.providers, &tools.worker).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %ErrorChain(&error), "references of the configuration cannot be resolved; trying again");
                return;
            }
        };
        if found.is_same(&self.desired) {
            self.reload.unsettled = None;
            return;
        }
        let is_settled = self.reload.unsettled.as_ref().is_some_and(|before| before.is_same(&found));
        if !is_settled {
            self.reload.unsettled = Some(Box::new(found));
            self.reload.at = now + every.min(REFERENCE_RECHECK);
            return;
        }
        self.reload.unsettled = None;
        match ProviderCalls::new(&self.task.tools.access, &self.task.connector, &found.source) {
            Ok(calls) => {
                tracing::info!(
                    connector = &*self.task.connector,
                    "references resolved to new values; applying them"
                );
                (self.calls, self.desired) = (calls, found);
            }
            Err(error) => tracing::warn!(
                error = %ErrorChain(&error),
                "new values of references cannot be used; keeping the values before"
            ),
        }
    }

    /// Whether a worker with a recent heartbeat reports a secret that this task does not know.
    fn is_behind(&self, ledger: &SubscriptionState) -> bool {
        let stale = Moment::now().micros().saturating_sub(self.desired.rules.limits.stale);
        let knows = |target_is_hook: bool, fingerprint: &Fingerprint| {
            let mut wanted = self.desired.wanted.iter();
            wanted.any(|(target, one)| {
                matches!(target, Target::Invoicing(_)) == target_is_hook && one.known.contains(fingerprint)
            })
        };
        self.desired.source.manage_subscriptions
            && ledger.heard.values().filter(|heartbeat| heartbeat.at > stale).any(|heartbeat| {
                !heartbeat.accounting.iter().all(|one| knows(false, one))
                    || !heartbeat.invoicing.iter().all(|one| knows(true, one))
            })
    }
}

/// A call that has been answered.
struct Answered {
    call: ProviderCall,
    outcome: CallOutcome,
    stop: Option<CallStop>,
}

impl Reconciler<'_> {
    /// Makes the planned calls, several at once.
    async fn go(
        &mut self,
        steps: Vec<PlannedCall>,
        planned: Instant,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let end = planned + self.desired.request;
        let mut queue = steps.into_iter();
        let mut flying: JoinSet<Answered> = JoinSet::new();
        let (mut changes, mut settled) = (Vec::new(), Vec::<ProviderCall>::new());
        let mut stopped = None;
        loop {
            // A late call would have no time left; it is planned again.
            let is_late = Instant::now() + self.desired.request / 2 > end;
            let room = if stopped.is_none() && !is_over() && !is_late {
                MAX_CONCURRENT_CALLS - flying.len()
            } else {
                0
            };
            let next: Vec<PlannedCall> = queue.by_ref().take(room).collect();
            // Outcomes are committed together with what precedes the next calls.
            changes.extend(next.iter().flat_map(|step| step.before.iter().cloned()));
            self.commit(&changes).await?;
            for call in settled.drain(..) {
                failpoint::reach(format_args!("subscriptions.{}.settled", call.name()));
            }
            self.launch(next, end, &mut flying)?;
            let Some(answered) = self.answers(&mut flying).await else { break };
            changes = self.settle(&answered);
            for one in answered {
                match one.stop {
                    Some(stop) => stopped = Some(worse(stopped, stop)),
                    None => self.pace.backoff.reset(),
                }
                settled.push(one.call);
            }
        }
        match stopped {
            None => Ok(()),
            Some(CallStop::Fail(failure)) => Err(failure),
            Some(CallStop::Wait(verdict)) => {
                let wait = self.pace.backoff.next_wait(verdict).unwrap_or(MAX_PAUSE).min(MAX_PAUSE);
                tracing::warn!(
                    connector = &*self.task.connector,
                    ?wait,
                    "a failed call holds all calls back"
                );
                self.pace.pause_until = Instant::now() + wait;
                Ok(())
            }
        }
    }

    /// Starts calls whose `before` is committed.
    fn launch(
        &self,
        steps: Vec<PlannedCall>,
        end: Instant,
        flying: &mut JoinSet<Answered>,
    ) -> Result<(), Failure> {
        for PlannedCall { call, why, .. } in steps {
            failpoint::reach(format_args!("subscriptions.{}.before", call.name()));
            if !(self.task.permission.lease)() {
                let message = "keep subscriptions: the lease of this worker has ended";
                return Err(Failure::retryable("LeaseEnded", message));
            }
            let (connector, target) = (&*self.task.connector, call.target().map(|target| target.to_string()));
            if call.is_read_only() {
                tracing::debug!(connector, call = call.name(), target, why, "asking the provider");
            } else {
                tracing::info!(connector, call = call.name(), target, why, "calling the provider");
            }
            let calls = self.calls.clone();
            flying.spawn(async move {
                let (outcome, stop) = calls.make(&call, end).await;
                failpoint::reach(format_args!("subscriptions.{}.called", call.name()));
                Answered { call, outcome, stop }
            });
        }
        Ok(())
    }

    /// The next answered calls; `None`: none is in flight, or the stop waits no longer.
    async fn answers(&self, flying: &mut JoinSet<Answered>) -> Option<Vec<Answered>> {
        let first = tokio::select! {
            first = flying.join_next() => first?,
            () = self.task.cancel.cancelled() => timeout(STOP_CALL_WAIT, flying.join_next()).await.ok()??,
        };
        let mut answered: Vec<Answered> = first.ok().into_iter().collect();
        while let Some(next) = flying.try_join_next() {
            answered.extend(next.ok());
        }
        Some(answered)
    }

    /// The changes that follow from outcomes.
    fn settle(&mut self, answered: &[Answered]) -> Vec<SubscriptionChange> {
        let mut ledger = self.ledger.handle.subscriptions(&self.task.connector);
        let wanted = self.wanted(&ledger);
        let mut changes = Vec::new();
        for Answered { call, outcome, .. } in answered {
            let input = self.input(&ledger, &wanted, Moment::now().micros());
            let (one, memory) = settle(&input, call, outcome);
            self.memory = memory;
            for change in &one {
                ledger.apply(change);
            }
            changes.extend(one);
            self.log(call, outcome);
        }
        changes
    }

    fn log(&self, call: &ProviderCall, outcome: &CallOutcome) {
        let (connector, target) = (&*self.task.connector, call.target().map(|target| target.to_string()));
        match outcome {
            CallOutcome::Failed { words, .. } => {
                tracing::warn!(connector, call = call.name(), target, words, "call to the provider failed");
            }
            CallOutcome::Done { errors, .. } if !errors.is_empty() => {
                let words = errors.join("; ");
                tracing::warn!(connector, call = call.name(), target, words, "the provider refused the call");
            }
            _ => tracing::debug!(connector, call = call.name(), target, ?outcome, "the provider answered"),
        }
    }
}

/// The worse of two.
fn worse(known: Option<CallStop>, other: CallStop) -> CallStop {
    match known {
        Some(known @ CallStop::Fail(_)) => known,
        _ => other,
    }
}

/// Remembers since when each secret is wanted.
pub(super) fn want_since(memory: &mut PlannerMemory, desired: &ResolvedConnector, now: i64) {
    let all: Vec<&Fingerprint> = desired.wanted.values().map(|one| &one.fingerprint).collect();
    memory.secrets.retain(|known, _| all.contains(&known));
    for one in all {
        memory.secrets.entry(one.clone()).or_insert(now);
    }
}

/// Reads a configuration on a thread that may block.
pub(super) async fn read(
    connector: &str,
    config: &Arc<Properties>,
    providers: &Providers,
    worker: &Arc<Worker>,
) -> Result<ResolvedConnector, Failure> {
    let (connector, config) = (connector.to_owned(), Arc::clone(config));
    let (providers, worker) = (providers.clone(), Arc::clone(worker));
    let reading = spawn_blocking(move || {
        ResolvedConnector::read(&connector, &config, &providers, worker.webhook.advertised_url.as_ref())
    });
    let broken = |_| {
        Err(Failure::retryable("InvalidConfiguration", "the thread that reads the configuration panicked"))
    };
    reading.await.unwrap_or_else(broken)
}

pub(super) fn no_ledger(action: &str, error: state_topic::Error) -> Failure {
    let (retry, message) = (error.retry(), action.to_owned());
    Failure { kind: "KafkaError", message, remedy: None, retry, source: Some(Box::new(error)) }
}

/// The part of a plan about deliveries that were lost on our side, without managing subscriptions.
fn only_losses(plan: SubscriptionPlan, ledger: &SubscriptionState) -> SubscriptionPlan {
    let concerns = |change: &SubscriptionChange| match change {
        // Gaps that are open end in any case: nothing else would end them.
        SubscriptionChange::Gap(gap) => ledger.gaps.contains_key(&gap.id()),
        SubscriptionChange::Repair(_) | SubscriptionChange::ForgetHeard(_) => true,
        _ => false,
    };
    let changes = plan.changes.into_iter().filter(concerns).collect();
    SubscriptionPlan { changes, ..SubscriptionPlan::default() }
}

/// A duration in microseconds.
fn duration_of_micros(time: i64) -> Duration {
    Duration::from_micros(u64::try_from(time).unwrap_or_default())
}

/// A new nonce.
pub(super) fn draw() -> Nonce {
    // Without random numbers the time is unique enough.
    let bytes = random::bytes::<8>().unwrap_or_else(|_| Moment::now().micros().to_be_bytes());
    Nonce::new(u64::from_be_bytes(bytes))
}
