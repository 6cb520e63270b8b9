//! Steps of a plan, some at once: written down, called, settled.

use std::time::Duration;

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use base::failpoint;
use model::Moment;

use super::{
    Reconciler,
    calls::{LONGEST_PAUSE, Stop},
};
use crate::{
    plugin::Failure,
    state::subscriptions::SubscriptionChange,
    webhooks::subscriptions::{Call, Outcome, Step, settle},
};

/// Calls at once.
const AT_ONCE: usize = 4;
/// How long a stop waits for calls that are under way; less than a task is given to end.
const FINISHING: Duration = Duration::from_secs(3);

/// A call that has been answered.
struct Answered {
    call: Call,
    outcome: Outcome,
    stop: Option<Stop>,
}

impl Reconciler<'_> {
    /// Does steps, some at once.
    pub(super) async fn go(
        &mut self,
        steps: Vec<Step>,
        planned: Instant,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let end = planned + self.desired.request;
        let mut queue = steps.into_iter();
        let mut flying: JoinSet<Answered> = JoinSet::new();
        let (mut changes, mut settled) = (Vec::new(), Vec::<Call>::new());
        let mut stopped = None;
        loop {
            // One that is begun late would have no time left; it is planned anew.
            let is_late = Instant::now() + self.desired.request / 2 > end;
            let room = if stopped.is_none() && !is_over() && !is_late { AT_ONCE - flying.len() } else { 0 };
            let next: Vec<Step> = queue.by_ref().take(room).collect();
            // What came of some is written with what is to stand before the next.
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
                    None => self.backoff.reset(),
                }
                settled.push(one.call);
            }
        }
        match stopped {
            None => Ok(()),
            Some(Stop::Fail(failure)) => Err(failure),
            Some(Stop::Wait(verdict)) => {
                let wait = self.backoff.next_wait(verdict).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
                tracing::warn!(connector = &*self.task.connector, ?wait, "the provider cannot be asked now");
                self.pause_until = Instant::now() + wait;
                Ok(())
            }
        }
    }

    /// Calls the provider for each; what has to stand before is written.
    fn launch(&self, steps: Vec<Step>, end: Instant, flying: &mut JoinSet<Answered>) -> Result<(), Failure> {
        for Step { call, why, .. } in steps {
            failpoint::reach(format_args!("subscriptions.{}.before", call.name()));
            if !(self.task.tools.lease)() {
                let message = "keep subscriptions: this worker may not act on what it owns any more";
                return Err(Failure::passing("LeaseEnded", message));
            }
            let (connector, target) = (&*self.task.connector, call.target().map(|target| target.to_string()));
            if call.only_asks() {
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

    /// The next that are answered; `None` where none is under way any more, or nobody may wait for them.
    async fn answers(&self, flying: &mut JoinSet<Answered>) -> Option<Vec<Answered>> {
        let first = tokio::select! {
            first = flying.join_next() => first?,
            () = self.task.cancel.cancelled() => timeout(FINISHING, flying.join_next()).await.ok()??,
        };
        let mut answered: Vec<Answered> = first.ok().into_iter().collect();
        while let Some(next) = flying.try_join_next() {
            answered.extend(next.ok());
        }
        Some(answered)
    }

    /// What is to be written of outcomes.
    fn settle(&mut self, answered: &[Answered]) -> Vec<SubscriptionChange> {
        let mut ledger = self.handle.ledger(&self.task.connector);
        let wanted = self.wanted(&ledger);
        let mut changes = Vec::new();
        for Answered { call, outcome, .. } in answered {
            let situation = self.situation(&ledger, &wanted, Moment::now().micros());
            let (one, memory) = settle(&situation, call, outcome);
            self.memory = memory;
            for change in &one {
                ledger.apply(change);
            }
            changes.extend(one);
            self.tell(call, outcome);
        }
        changes
    }

    fn tell(&self, call: &Call, outcome: &Outcome) {
        let (connector, target) = (&*self.task.connector, call.target().map(|target| target.to_string()));
        match outcome {
            Outcome::Failed { words, .. } => {
                tracing::warn!(connector, call = call.name(), target, words, "a call failed");
            }
            Outcome::Done { errors, .. } if !errors.is_empty() => {
                let words = errors.join("; ");
                tracing::warn!(connector, call = call.name(), target, words, "the provider refuses");
            }
            _ => tracing::debug!(connector, call = call.name(), target, ?outcome, "the provider answered"),
        }
    }
}

/// What counts of two.
fn worse(known: Option<Stop>, other: Stop) -> Stop {
    match known {
        Some(known @ Stop::Fail(_)) => known,
        _ => other,
    }
}
