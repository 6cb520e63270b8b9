//! Keeps the provider's subscriptions as a connector declares them: the task of a `WebhookSource`.
//!
//! ```text
//! configuration, ledger, memory ─▶ plan ─▶ commit its changes ─▶ steps, at most four at once:
//!        commit `before` ─▶ lease? ─▶ call the provider ─▶ settle ─▶ commit, with the next `before`
//! until there is nothing to do but to wait
//! ```
//!
//! What is planned and what outcomes mean is [`webhooks::subscriptions`](crate::webhooks::subscriptions)'; here it is done.
//!
//! - Every commit is fenced by the connector's transactional id, and one comes before every call that makes something: an older
//!   instance finds out before it acts. No call is begun without the lease, and none lasts longer than
//!   `provider.request.timeout.ms` from its plan on, which is shorter than an intent is waited for.
//! - What was committed has been read back before anything follows from it.
//! - A call that is under way is not given up for a pause or a change of settings; a stop waits for it for a while.
//! - What the configuration refers to is looked at every so often, and sooner where a receiver knows a secret that is new here.
//!   It counts once two looks have found the same.
//! - Without `subscriptions.manage` nobody is called: what is known to be lost is handed on to be repaired, and that is all.
//!
//! On failure of one call its target waits; of one that is about more than that everything does, for longer each time; what
//! needs a person fails the task. Beside accounting, invoicing fails nothing else: its targets show the problem and are retried.

mod calls;
mod desired;
mod look;
mod steps;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};

use base::{
    metrics, random,
    retry::{Backoff, BackoffPolicy, ErrorChain},
};
use model::{Fingerprint, GapState, Moment, Nonce, Target};

pub use self::look::{Desk, Look, Planned, look};
use self::{
    calls::{Calls, Stop},
    desired::Desired,
};

use crate::{
    config::{Providers, Worker},
    plugin::{Failure, Task},
    state::{
        configs::Properties,
        state_topic::{self, StateTopic, StateWriter},
        subscriptions::{SubscriptionChange, SubscriptionState},
    },
    webhooks::subscriptions::{Memory, Plan, Situation, Tries, Wanted, plan},
};

/// Between two plans where one follows from the other; and where that goes on and on.
const BREATH: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_secs(1);
/// Plans in a row before that.
const BUSY: u32 = 200;
/// How long after a reference has changed the second look is that confirms it.
const SETTLED: Duration = Duration::from_secs(1);
/// The longest until the next plan, whatever the last one says.
const LONGEST: Duration = Duration::from_secs(60);
/// Ids of others that are remembered.
const FOREIGN: usize = 1_024;

/// See the module's head.
pub(crate) struct Reconciler<'a> {
    task: &'a Task,
    handle: StateTopic,
    changes: watch::Receiver<u64>,
    writer: StateWriter,
    desired: Desired,
    calls: Calls,
    memory: Memory,
    /// Another reading of the configuration that the next look has to find again.
    unsettled: Option<Box<Desired>>,
    look_at: Instant,
    /// When it took over, in microseconds since 1970.
    began: i64,
    /// The wish that was last seen.
    wish: u64,
    /// After failures that are about everything.
    backoff: Backoff,
    pause_until: Instant,
    /// Plans in a row that have altered something.
    busy: u32,
}

impl<'a> Reconciler<'a> {
    /// Takes over from the instance before it.
    ///
    /// # Errors
    /// The configuration cannot be used here, or Kafka does not allow it.
    pub(crate) async fn start(task: &'a Task) -> Result<Self, Failure> {
        let tools = &task.tools;
        let desired = read(&task.connector, &task.config, &tools.providers, &tools.worker).await?;
        let calls = Calls::new(&tools.access, &task.connector, &desired.source)?;
        let opened = tools.ledgers.open(&desired.source).await;
        let handle = opened.map_err(|error| no_ledger("open the ledger of subscriptions", error))?;
        let lease = Arc::clone(&tools.lease);
        let writer = StateWriter::take(handle.clone(), &task.connector, &tools.shards, lease).await;
        let writer = writer.map_err(|error| Failure::kafka("take the ledger of subscriptions", error))?;
        let (first, longest) = desired.source.subscriptions.backoff;
        let seed = u64::from(kafka::murmur2(task.connector.as_bytes()));
        Ok(Self {
            changes: handle.changes(),
            handle,
            writer,
            calls,
            memory: Memory::default(),
            unsettled: None,
            look_at: Instant::now() + tools.worker.secrets_reload_interval,
            began: Moment::now().micros(),
            wish: 0,
            backoff: Backoff::new(BackoffPolicy { first, longest, total: None }, seed),
            pause_until: Instant::now(),
            busy: 0,
            desired,
            task,
        })
    }

    /// Does what there is to do now, unless it is to stop; returns when to come again.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub(crate) async fn round(&mut self, is_over: impl Fn() -> bool) -> Result<Instant, Failure> {
        self.reload().await;
        self.changes.borrow_and_update();
        let ledger = self.handle.ledger(&self.task.connector);
        self.remember(&ledger);
        let planned = Instant::now();
        let now = Moment::now().micros();
        let mut plan = plan(&self.situation(&ledger, &self.wanted(&ledger), now));
        if !self.desired.source.manage_subscriptions {
            plan = only_losses(plan, &ledger);
        }
        let is_paused = planned < self.pause_until;
        let has_changes = !plan.changes.is_empty();
        let alters = has_changes || plan.steps.iter().any(|step| !step.call.only_asks());
        self.commit(&plan.changes).await?;
        let has_steps = !is_paused && !plan.steps.is_empty();
        if has_steps {
            self.go(plan.steps, planned, is_over).await?;
        }
        let now = Moment::now().micros();
        let again = plan.again_at.map_or(LONGEST, |at| micros(at.saturating_sub(now)).min(LONGEST));
        let mut wake = (Instant::now() + again).min(self.look_at);
        self.busy = if alters && !is_paused { self.busy.saturating_add(1) } else { 0 };
        if has_changes || has_steps {
            wake = Instant::now();
        }
        if Instant::now() < self.pause_until {
            wake = wake.max(self.pause_until);
        }
        Ok(wake.max(Instant::now() + if self.busy > BUSY { REST } else { BREATH }))
    }

    /// Retries invoicing now: somebody has logged in for it.
    pub(crate) fn retry_invoicing(&mut self) {
        self.memory.tries.retain(|target, _| target.resource().is_some());
        self.memory.list_tries = Tries::default();
    }

    /// Waits until there may be something to do.
    pub(crate) async fn idle(&mut self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            // The tail lives as long as this does.
            _ = self.changes.changed() => sleep(BREATH).await,
        }
    }

    /// What is wanted: nothing, where people want all removed.
    fn wanted(&self, ledger: &SubscriptionState) -> BTreeMap<Target, Wanted> {
        match &ledger.wish {
            Some(wish) if wish.removed => BTreeMap::new(),
            _ => self.desired.wanted.clone(),
        }
    }

    fn situation<'s>(
        &'s self,
        ledger: &'s SubscriptionState,
        wanted: &'s BTreeMap<Target, Wanted>,
        now: i64,
    ) -> Situation<'s> {
        Situation {
            connector: &self.task.connector,
            worker: &self.task.tools.worker_id,
            now,
            began: self.began,
            wanted,
            ledger,
            memory: &self.memory,
            rules: &self.desired.rules,
            draw: &draw,
        }
    }

    /// Writes changes at once; nobody has come after this instance where it succeeds.
    async fn commit(&mut self, changes: &[SubscriptionChange]) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        let known: Vec<String> =
            self.handle.read(&self.task.connector, |ledger| ledger.gaps.keys().cloned().collect());
        let written = self.writer.commit(changes).await;
        written.map_err(|error| Failure::kafka("write to the ledger of subscriptions", error))?;
        for change in changes {
            if let SubscriptionChange::Gap(gap) = change
                && gap.state == GapState::Open
                && !known.contains(&gap.id())
            {
                metrics::gap_written(gap.cause.name());
                let (connector, cause) = (&*self.task.connector, gap.cause.name());
                let target = gap.target.map(|target| target.to_string());
                let detail = &*gap.detail;
                tracing::error!(connector, cause, target, detail, "deliveries may be missing: a gap is open");
            }
        }
        Ok(())
    }

    /// Keeps what this process remembers in step with what is wanted.
    fn remember(&mut self, ledger: &SubscriptionState) {
        let number = ledger.wish.as_ref().map_or(0, |wish| wish.number);
        if number != self.wish {
            self.wish = number;
            // Somebody wants it done now: nothing waits because of what failed before.
            let Memory { secrets, foreign, .. } = std::mem::take(&mut self.memory);
            self.memory = Memory { secrets, foreign, ..Memory::default() };
            self.pause_until = Instant::now();
            self.backoff.reset();
        }
        want_since(&mut self.memory, &self.desired, Moment::now().micros());
        while self.memory.foreign.len() > FOREIGN {
            self.memory.foreign.pop_first();
        }
    }

    /// Looks at what the configuration refers to, if it is time or a receiver knows more.
    async fn reload(&mut self) {
        let now = Instant::now();
        let is_told = self.handle.read(&self.task.connector, |ledger| self.is_behind(ledger));
        if !self.desired.source.common.restart_on_changed_secret {
            self.look_at = now + LONGEST;
            return;
        }
        if now < self.look_at && !(is_told && now + SETTLED <= self.look_at) {
            return;
        }
        let every = self.task.tools.worker.secrets_reload_interval;
        self.look_at = now + every;
        if is_told {
            self.look_at = now + every.min(SETTLED);
        }
        let Task { connector, config, tools, .. } = self.task;
        let found = match read(connector, config, &tools.providers, &tools.worker).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %ErrorChain(&error), "what the configuration refers to cannot be read");
                return;
            }
        };
        if found.is_same(&self.desired) {
            self.unsettled = None;
            return;
        }
        let is_settled = self.unsettled.as_ref().is_some_and(|before| before.is_same(&found));
        if !is_settled {
            self.unsettled = Some(Box::new(found));
            self.look_at = now + every.min(SETTLED);
            return;
        }
        self.unsettled = None;
        match Calls::new(&self.task.tools.access, &self.task.connector, &found.source) {
            Ok(calls) => {
                tracing::info!(connector = &*self.task.connector, "what it refers to has changed");
                (self.calls, self.desired) = (calls, found);
            }
            Err(error) => tracing::warn!(error = %ErrorChain(&error), "what it refers to now cannot be used"),
        }
    }

    /// Whether a receiver knows a secret that is not known here.
    fn is_behind(&self, ledger: &SubscriptionState) -> bool {
        let stale = Moment::now().micros().saturating_sub(self.desired.rules.stale);
        let knows = |target_is_hook: bool, fingerprint: &Fingerprint| {
            let mut wanted = self.desired.wanted.iter();
            wanted.any(|(target, one)| {
                matches!(target, Target::Invoicing(_)) == target_is_hook && one.known.contains(fingerprint)
            })
        };
        self.desired.source.manage_subscriptions
            && ledger.heard.values().filter(|heard| heard.at > stale).any(|heard| {
                !heard.accounting.iter().all(|one| knows(false, one))
                    || !heard.invoicing.iter().all(|one| knows(true, one))
            })
    }
}

/// Notes since when each secret is wanted.
fn want_since(memory: &mut Memory, desired: &Desired, now: i64) {
    let all: Vec<&Fingerprint> = desired.wanted.values().map(|one| &one.fingerprint).collect();
    memory.secrets.retain(|known, _| all.contains(&known));
    for one in all {
        memory.secrets.entry(one.clone()).or_insert(now);
    }
}

/// Reads a configuration, where that may block.
async fn read(
    connector: &str,
    config: &Arc<Properties>,
    providers: &Providers,
    worker: &Arc<Worker>,
) -> Result<Desired, Failure> {
    let (connector, config) = (connector.to_owned(), Arc::clone(config));
    let (providers, worker) = (providers.clone(), Arc::clone(worker));
    let reading = spawn_blocking(move || {
        Desired::read(&connector, &config, &providers, worker.webhook.advertised_url.as_ref())
    });
    let broken = |_| Err(Failure::passing("InvalidConfiguration", "reading the configuration broke off"));
    reading.await.unwrap_or_else(broken)
}

fn no_ledger(action: &str, error: state_topic::Error) -> Failure {
    let (retry, message) = (error.retry(), action.to_owned());
    Failure { kind: "KafkaError", message, remedy: None, retry, source: Some(Box::new(error)) }
}

/// Of a plan what is about deliveries that were lost on this side, whoever keeps the subscriptions.
fn only_losses(plan: Plan, ledger: &SubscriptionState) -> Plan {
    let concerns = |change: &SubscriptionChange| match change {
        // A gap that is there ends in any case: nobody here would end it otherwise.
        SubscriptionChange::Gap(gap) => ledger.gaps.contains_key(&gap.id()),
        SubscriptionChange::Repair(_) | SubscriptionChange::ForgetHeard(_) => true,
        _ => false,
    };
    let changes = plan.changes.into_iter().filter(concerns).collect();
    Plan { changes, ..Plan::default() }
}

/// Microseconds from now on.
fn micros(time: i64) -> Duration {
    Duration::from_micros(u64::try_from(time).unwrap_or_default())
}

/// A nonce nobody has.
fn draw() -> Nonce {
    // The clock has never been here before either.
    let bytes = random::bytes::<8>().unwrap_or_else(|_| Moment::now().micros().to_be_bytes());
    Nonce::new(u64::from_be_bytes(bytes))
}
