//! What the reconciler would do, without doing it: on any worker, whichever runs the task.
//!
//! The plan is made as the task makes it, on a copy of the ledger. Each read call is made once; calls that would change something are
//! assumed to succeed as the provider's API documentation says. If the plan would wait, time moves on, until everything is as declared or
//! the plan makes no progress.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use model::{Moment, Nonce, Target};

use super::{
    desired::ResolvedConnector,
    provider_calls::{CallStop, ProviderCalls},
    task::{draw, no_ledger, read, want_since},
};
use crate::{
    config,
    logins::access::ApiAccess,
    plugin::Failure,
    state::{configs::Properties, state_topic::StateTopics, subscriptions::SubscriptionState},
    webhooks::subscriptions::{
        CallOutcome, DesiredSubscription, ListedHook, PlannerMemory, PollIntervals, ProviderCall,
        SubscriptionInput, SubscriptionPlan, SubscriptionRules, WebhookSnapshot, history::LEFT_BY_CHANGES,
        plan, settle,
    },
};

/// Most plans in a row.
const MAX_PLANS: u32 = 256;
/// Most steps that are shown.
const MAX_STEPS: usize = 1_000;

/// A time that never comes, and the longest time that a dry run looks ahead, in microseconds.
const NEVER: i64 = i64::MAX / 8;
const MAX_LOOK_AHEAD: i64 = 400 * 86_400 * 1_000_000;

/// What a dry run needs.
#[derive(Debug, Clone, Copy)]
pub struct DryRunContext<'a> {
    /// The worker's configuration.
    pub worker: &'a Arc<config::Worker>,
    /// Who it is.
    pub worker_id: &'a str,
    /// The provider's APIs.
    pub access: &'a ApiAccess,
    /// The state topics.
    pub state_topics: &'a StateTopics,
}

/// What the reconciler would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Calls that change something, in order.
    pub steps: Vec<DryRunStep>,
    /// Whether everything is already as declared.
    pub converged: bool,
    /// Why it is not after these steps, in words.
    pub problems: Vec<String>,
}

/// A call that would be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRunStep {
    /// [`ProviderCall::name`].
    pub call: &'static str,
    /// Its target.
    pub target: Option<Target>,
    /// The provider's id, where there is one.
    pub id: Option<String>,
    /// The reason, for people.
    pub why: String,
}

/// Reads the state at the provider and returns what would be done, all before `end`. Changes nothing. `removed`: as if the operator
/// removed all subscriptions.
///
/// # Errors
/// The configuration cannot be used here, or the provider or Kafka cannot be asked.
pub async fn dry_run(
    context: DryRunContext<'_>,
    connector: &str,
    config: &Arc<Properties>,
    removed: bool,
    end: Instant,
) -> Result<DryRun, Failure> {
    let desired = read(connector, config, &context.worker.providers, context.worker).await?;
    if !desired.source.manage_subscriptions {
        return Ok(DryRun { converged: true, ..DryRun::default() });
    }
    let calls = ProviderCalls::new(context.access, connector, &desired.source)?;
    let handle = context.state_topics.of(&desired.source.common.topic_prefix).await;
    let handle = handle.map_err(|error| no_ledger("read the state topic", error))?;
    let ledger = handle.map(|handle| handle.subscriptions(connector)).unwrap_or_default();
    let answers = DryRunProvider { calls, desired: &desired, ledger: &ledger, end, asked: BTreeMap::new() };
    let wanted = if removed { BTreeMap::new() } else { desired.wanted.clone() };
    let scratch = DryRunState::new(connector, context.worker_id, &desired, wanted, ledger.clone());
    scratch.run(answers).await
}

/// Copies of the inputs of a plan.
struct DryRunState<'a> {
    connector: &'a str,
    worker_id: &'a str,
    wanted: BTreeMap<Target, DesiredSubscription>,
    rules: SubscriptionRules,
    ledger: SubscriptionState,
    memory: PlannerMemory,
    other_segments: BTreeSet<String>,
    now: i64,
}

impl<'a> DryRunState<'a> {
    fn new(
        connector: &'a str,
        worker_id: &'a str,
        desired: &ResolvedConnector,
        wanted: BTreeMap<Target, DesiredSubscription>,
        mut ledger: SubscriptionState,
    ) -> Self {
        let (mut memory, now) = (PlannerMemory::default(), Moment::now().micros());
        want_since(&mut memory, desired, now);
        // Each is read once.
        for one in ledger.subscriptions.values_mut() {
            one.times.checked_at = None;
        }
        let rules = SubscriptionRules {
            intervals: PollIntervals { poll: NEVER, names: NEVER },
            ..desired.rules.clone()
        };
        // A dry run writes no ledger, so it does not need the segments of other connectors.
        let other_segments = BTreeSet::new();
        Self { connector, worker_id, wanted, rules, ledger, memory, other_segments, now }
    }

    async fn run(mut self, mut answers: DryRunProvider<'_>) -> Result<DryRun, Failure> {
        let mut run = DryRun { converged: true, ..DryRun::default() };
        let (mut problems, mut is_converged) = (BTreeSet::new(), true);
        for _ in 0..MAX_PLANS {
            let SubscriptionPlan { changes, steps, again_at, converged, problems: found } =
                plan(&self.input());
            is_converged = converged;
            problems.extend(found);
            for change in &changes {
                self.ledger.apply(change);
            }
            if steps.is_empty() && changes.is_empty() {
                // Without changes the run ends, unless the plan waits for a time.
                match again_at.filter(|at| !converged && at.saturating_sub(self.now) < MAX_LOOK_AHEAD) {
                    Some(at) if run.steps.len() < MAX_STEPS => self.now = at.max(self.now + 1),
                    _ => break,
                }
                continue;
            }
            for step in steps {
                for change in &step.before {
                    self.ledger.apply(change);
                }
                if !step.call.is_read_only() {
                    run.steps.push(planned(&step.call, step.why));
                }
                let outcome = answers.of(&step.call, &self.ledger).await?;
                if let CallOutcome::Failed { words, .. } = &outcome {
                    problems.insert(words.clone());
                }
                let (changes, memory) = settle(&self.input(), &step.call, &outcome);
                self.memory = memory;
                for change in &changes {
                    self.ledger.apply(change);
                }
            }
            if !problems.is_empty() && run.steps.is_empty() && converged {
                break;
            }
        }
        run.converged = is_converged && run.steps.is_empty() && problems.is_empty();
        run.problems = problems.into_iter().collect();
        Ok(run)
    }

    fn input(&self) -> SubscriptionInput<'_> {
        SubscriptionInput {
            connector: self.connector,
            worker: self.worker_id,
            now: self.now,
            began: self.now,
            wanted: &self.wanted,
            ledger: &self.ledger,
            memory: &self.memory,
            rules: &self.rules,
            other_segments: &self.other_segments,
            draw: &draw,
        }
    }
}

fn planned(call: &ProviderCall, why: String) -> DryRunStep {
    let id = match call {
        ProviderCall::Enable(one) | ProviderCall::Move(one) | ProviderCall::Delete(one) => one.id.clone(),
        _ => None,
    };
    DryRunStep { call: call.name(), target: call.target(), id, why }
}

/// The provider: its answers, and assumed ones.
struct DryRunProvider<'a> {
    calls: ProviderCalls,
    desired: &'a ResolvedConnector,
    /// The real ledger: what is not in it was assumed.
    ledger: &'a SubscriptionState,
    end: Instant,
    /// Answers; each read call is made once.
    asked: BTreeMap<String, CallOutcome>,
}

impl DryRunProvider<'_> {
    async fn of(&mut self, call: &ProviderCall, scratch: &SubscriptionState) -> Result<CallOutcome, Failure> {
        if !call.is_read_only() {
            return Ok(assumed(call));
        }
        if let ProviderCall::Read(one) = call
            && self.ledger.subscriptions.get(&one.nonce) != Some(&**one)
            && let Some(outcome) = self.assumed_of(&one.nonce, scratch)
        {
            return Ok(outcome);
        }
        let name = match call {
            ProviderCall::Read(one) => format!("read {}", one.nonce),
            ProviderCall::Identify { id, .. } => format!("identify {id}"),
            ProviderCall::Names(resource) => format!("names {}", resource.name()),
            _ => call.name().to_owned(),
        };
        let known = match self.asked.get(&name) {
            Some(known) => known.clone(),
            None => {
                let limit = Instant::now() + self.desired.request.max(Duration::from_millis(1));
                let (outcome, stop) = self.calls.make(call, limit.min(self.end)).await;
                if let Some(CallStop::Fail(failure)) = stop {
                    return Err(failure);
                }
                if let (Some(CallStop::Wait(_)), CallOutcome::Failed { words, .. }) = (stop, &outcome) {
                    return Err(Failure::retryable(
                        "NoAccess",
                        format!("the provider cannot be asked: {words}"),
                    ));
                }
                self.asked.insert(name, outcome.clone());
                outcome
            }
        };
        Ok(match known {
            CallOutcome::Listed(hooks) => CallOutcome::Listed(self.with_assumed(hooks, scratch)),
            known => known,
        })
    }

    /// The assumed state of a subscription; `None`: nothing was assumed about it.
    fn assumed_of(&self, nonce: &Nonce, scratch: &SubscriptionState) -> Option<CallOutcome> {
        let one = scratch.subscriptions.get(nonce)?;
        let before = self.ledger.subscriptions.get(nonce);
        let is_touched = before.is_none_or(|before| {
            // Only a step that changes something puts such a line there.
            let lines = |one: &model::Subscription| {
                one.history
                    .iter()
                    .filter(|note| LEFT_BY_CHANGES.contains(&&*note.what))
                    .map(|note| note.at)
                    .max()
            };
            lines(before) != lines(one)
        });
        is_touched.then(|| {
            CallOutcome::Seen(WebhookSnapshot {
                name: Some(one.registered_name()),
                url: Some(one.registration.url.clone()),
                active: Some(true),
                deleted: false,
                events: one.registration.events.clone(),
            })
        })
    }

    /// The list as it would be by then.
    fn with_assumed(&self, hooks: Vec<ListedHook>, scratch: &SubscriptionState) -> Vec<ListedHook> {
        let ended = |id: &str| scratch.by_id(id).is_some_and(|one| !one.phase.may_live());
        let mut hooks: Vec<ListedHook> =
            hooks.into_iter().filter(|hook| !hook.id.as_deref().is_some_and(ended)).collect();
        let made = scratch.subscriptions.values().filter(|one| {
            let is_new = !self.ledger.subscriptions.contains_key(&one.nonce);
            is_new && one.phase.may_live() && matches!(one.target, Target::Invoicing(_))
        });
        for one in made.filter(|one| !hooks.iter().any(|hook| hook.id == one.id)).collect::<Vec<_>>() {
            hooks.push(ListedHook {
                id: one.id.clone(),
                target: Some(one.target),
                url: Some(one.registration.url.clone()),
                paused: Some(false),
                name: Some(one.registered_name()),
                description: None,
            });
        }
        hooks
    }
}

/// A success, as the provider's API documentation describes it.
fn assumed(call: &ProviderCall) -> CallOutcome {
    let state = match (call, call.target()) {
        (_, Some(Target::Invoicing(_))) => None,
        (ProviderCall::Subscribe(_), _) => Some(3),
        (ProviderCall::Delete(_), _) => Some(5),
        (ProviderCall::Enable(_), _) => Some(7),
        _ => None,
    };
    let id = match call {
        ProviderCall::Subscribe(one) => Some(format!("of {}", one.nonce)),
        _ => None,
    };
    CallOutcome::Done { state, id, errors: Vec::new() }
}

#[cfg(test)]
mod tests;
