//! Plans against a provider that is a few lines long and does what the API documentation says, and what it leaves open.

mod addresses;
mod chaos;
mod orders;
mod provider;
mod transitions;

use std::collections::{BTreeMap, BTreeSet};

use model::{
    AccountingResource, Acknowledge, Echo, Fingerprint, Gap, GapCause, GapState, InvoicingAction,
    InvoicingEntity, InvoicingHook, Nonce, ReceiverReport, SubscriptionPhase, Target, Traffic,
};

use self::provider::{Provider, State};
use super::{
    DesiredSubscription, PlannerMemory, PollIntervals, RetryState, SilenceRules, SubscriptionInput,
    SubscriptionRules, TimeLimits, plan, settle,
};
use crate::state::subscriptions::{SubscriptionChange, SubscriptionState};

const SECOND: i64 = 1_000_000;
const CUSTOMERS: Target = Target::Accounting(AccountingResource::Customers);
const CREATED: Target =
    Target::Invoicing(InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created });

fn rules() -> SubscriptionRules {
    SubscriptionRules {
        intervals: PollIntervals { poll: 60 * SECOND, names: 86_400 * SECOND },
        limits: TimeLimits {
            acknowledge: 600 * SECOND,
            intent: 35 * SECOND,
            ready: 60 * SECOND,
            stale: 60 * SECOND,
            overlap: 120 * SECOND,
            ended: 7 * 86_400 * SECOND,
        },
        silence: None,
        margin: SECOND,
        backoff: (SECOND, 300 * SECOND),
        move_in_place: false,
    }
}

fn wanted(secret: &str) -> DesiredSubscription {
    DesiredSubscription {
        url: "https://hooks.example.com/a".to_owned(),
        other: None,
        fingerprint: Fingerprint::of(secret),
        known: BTreeSet::from([Fingerprint::of(secret)]),
        application: "tributary".to_owned(),
        endings: None,
    }
}

/// A connector, its ledger, and the provider that it talks to.
struct Scene {
    now: i64,
    rules: SubscriptionRules,
    wanted: BTreeMap<Target, DesiredSubscription>,
    ledger: SubscriptionState,
    memory: PlannerMemory,
    provider: Provider,
    /// Segments of other connectors.
    other_segments: BTreeSet<String>,
    /// Calls that were made, by name.
    calls: Vec<&'static str>,
    drawn: std::sync::atomic::AtomicU64,
}

/// Where a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// What the step writes before its call is there.
    Before,
    /// The provider has answered.
    Called,
}

impl Scene {
    /// A worker has opened a gap of all targets then.
    fn opened_by_worker(&mut self, cause: GapCause, from: i64) -> String {
        let gap = Gap {
            connector: "hooks".into(),
            cause,
            target: None,
            company: None,
            from,
            to: None,
            detail: cause.name().into(),
            opened_at: from,
            worker: "worker:2".into(),
            state: GapState::Open,
        };
        let id = gap.id();
        self.ledger.gaps.insert(id.clone(), gap);
        id
    }

    fn new(targets: &[Target]) -> Self {
        let wanted = targets.iter().map(|target| (*target, wanted("secret-1"))).collect();
        let mut scene = Self {
            now: 1_000 * SECOND,
            rules: rules(),
            wanted,
            ledger: SubscriptionState::default(),
            memory: PlannerMemory::default(),
            provider: Provider::default(),
            calls: Vec::new(),
            other_segments: BTreeSet::new(),
            drawn: 0.into(),
        };
        scene.hear();
        scene
    }

    fn input<T>(&self, look: impl FnOnce(&SubscriptionInput<'_>) -> T) -> T {
        let draw = || Nonce::new(0x1000 + self.drawn.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        look(&SubscriptionInput {
            connector: "hooks",
            worker: "worker:1",
            now: self.now,
            began: 500 * SECOND,
            wanted: &self.wanted,
            ledger: &self.ledger,
            memory: &self.memory,
            rules: &self.rules,
            other_segments: &self.other_segments,
            draw: &draw,
        })
    }

    /// Heartbeat of one worker, which knows all secrets.
    fn hear(&mut self) {
        let known: BTreeSet<_> = self.wanted.values().flat_map(|wanted| wanted.known.clone()).collect();
        let heard = self
            .ledger
            .heard
            .entry("worker:1".to_owned())
            .or_insert_with(|| ReceiverReport { worker: "worker:1".to_owned(), ..ReceiverReport::default() });
        heard.at = self.now;
        (heard.accounting, heard.invoicing) = (known.clone(), known);
        (heard.hook_addresses, heard.tells_echoes) = (true, true);
    }

    /// A delivery of an active webhook is durable.
    fn deliver(&mut self, id: &str) {
        let Some(found) = self.provider.webhooks.iter().find(|one| one.id == id) else { return };
        let (target, now) = (found.target, self.now);
        self.hear();
        let Some(heard) = self.ledger.heard.get_mut("worker:1") else { return };
        match target {
            Target::Accounting(resource) => {
                let traffic = heard.webhooks.entry(id.to_owned()).or_default();
                *traffic = Traffic { resource: Some(resource), last: now, count: traffic.count + 1 };
            }
            target => {
                let traffic = heard.hooks.entry(target).or_default();
                *traffic = Traffic { resource: None, last: now, count: traffic.count + 1 };
            }
        }
    }

    /// The provider asks for the echoes it owes.
    fn echo(&mut self) {
        let only = self.provider.only_echoes_at;
        for one in self.provider.webhooks.iter_mut().filter(|one| !one.is_echoed && one.lives()) {
            if only.is_some_and(|only| one.url != only) {
                continue;
            }
            one.is_echoed = true;
            let Target::Invoicing(hook) = one.target else { continue };
            let slug = hook.slug();
            let place = if one.url.ends_with(&slug) { slug } else { String::new() };
            let echo = Echo { received_at: self.now, worker: "worker:1".to_owned() };
            self.ledger.echoes.insert(place, echo);
        }
    }

    /// The provider sends the Acknowledges it owes; receivers that know the secret accept them.
    fn acknowledge(&mut self) {
        self.echo();
        let known: BTreeSet<_> = self.wanted.values().flat_map(|wanted| wanted.known.clone()).collect();
        let now = self.now;
        for one in self.provider.webhooks.iter_mut().filter(|one| one.state == State::Awaiting) {
            let Target::Accounting(resource) = one.target else { continue };
            if !known.contains(&one.fingerprint) || !one.is_foreign && !one.url.contains("hooks.example.com")
            {
                continue;
            }
            one.state = State::Active;
            let acknowledge = Acknowledge {
                webhook_id: one.id.clone(),
                resource: Some(resource),
                received_at: now,
                worker: "worker:1".to_owned(),
            };
            self.ledger.acknowledges.insert(one.id.clone(), acknowledge);
        }
    }

    fn write(&mut self, changes: &[SubscriptionChange]) {
        for change in changes {
            self.ledger.apply(change);
        }
    }

    /// Plans and does it, up to where the process ends. Whether anything was done.
    fn round(&mut self, end: Option<(usize, End)>) -> bool {
        let plan = self.input(plan);
        let is_idle = plan.changes.is_empty() && plan.steps.is_empty();
        self.write(&plan.changes);
        for (number, step) in plan.steps.iter().enumerate() {
            self.write(&step.before);
            if end == Some((number, End::Before)) {
                self.memory = PlannerMemory::default();
                return true;
            }
            self.calls.push(step.call.name());
            let outcome = self.provider.answer(&step.call, self.now);
            if end == Some((number, End::Called)) {
                self.memory = PlannerMemory::default();
                return true;
            }
            let (changes, memory) = self.input(|input| settle(input, &step.call, &outcome));
            self.memory = memory;
            self.write(&changes);
        }
        !is_idle
    }

    /// Plans until everything is as declared; fails after an hour of the provider's time.
    fn converge(&mut self) {
        let until = self.now + 3_600 * SECOND;
        loop {
            self.hear();
            self.acknowledge();
            self.round(None);
            let plan = self.input(plan);
            if plan.converged && plan.steps.is_empty() && plan.changes.is_empty() {
                return;
            }
            assert!(
                self.now < until,
                "does not converge at {}: {plan:?}\n{:?}\n{:?}",
                self.now,
                self.memory,
                self.brief()
            );
            let again = plan.again_at.unwrap_or(self.now + SECOND);
            self.now = if plan.steps.is_empty() {
                again.clamp(self.now + 1, self.now + 30 * SECOND)
            } else {
                self.now + 1
            };
        }
    }

    /// Plans for a time.
    fn pass(&mut self, seconds: i64) {
        let until = self.now + seconds * SECOND;
        while self.now < until {
            self.hear();
            self.acknowledge();
            self.round(None);
            self.now += SECOND;
        }
    }

    /// The one of a target that the provider has and that is ours and lives.
    fn only(&self, target: Target) -> &provider::Webhook {
        let living: Vec<_> = self.provider.living(target).filter(|one| !self.is_mute(one)).collect();
        let [one] = living[..] else { panic!("{target}: {living:#?}") };
        one
    }

    /// Whether it can never be found: no answer has its id, and its secret was forgotten before its Acknowledge came. It
    /// sends nothing else.
    fn is_mute(&self, one: &provider::Webhook) -> bool {
        let is_known = self.wanted.values().any(|wanted| wanted.known.contains(&one.fingerprint));
        one.state == State::Awaiting && !is_known && self.ledger.by_id(&one.id).is_none()
    }

    /// The ledger's and the provider's view, on a line each.
    fn brief(&self) -> Vec<String> {
        let known = self.ledger.subscriptions.values().map(|one| {
            format!(
                "{} {} {:?} {} since {} {:?} {:?}\n",
                one.target, one.nonce, one.id, one.phase, one.since, one.registration.url, one.problem
            )
        });
        let there = self.provider.webhooks.iter().filter(|one| one.lives() && !one.is_foreign);
        known
            .chain(there.map(|one| format!("{} {} {:?} {}\n", one.id, one.target, one.state, one.url)))
            .collect()
    }

    fn gaps(&self) -> Vec<&Gap> {
        self.ledger.gaps.values().collect()
    }

    /// What has to hold once everything is as it is wanted.
    fn check(&self) {
        for (target, wanted) in &self.wanted {
            let one = self.only(*target);
            assert_eq!(one.state, State::Active, "{target}");
            assert_eq!((&one.url, &one.fingerprint), (&wanted.url, &wanted.fingerprint), "{target}");
            let known = self.ledger.by_id(&one.id);
            assert_eq!(known.map(|known| known.phase), Some(SubscriptionPhase::Active), "{target}");
        }
        for one in
            self.provider.webhooks.iter().filter(|one| one.lives() && !one.is_foreign && !self.is_mute(one))
        {
            assert!(self.wanted.contains_key(&one.target), "an orphan is left: {one:?}");
        }
        for one in self.provider.webhooks.iter().filter(|one| one.is_foreign) {
            assert_eq!(one.touched, 0, "a foreign webhook was touched: {one:?}");
        }
        for (id, gap) in &self.ledger.gaps {
            assert!(gap.to.is_some_and(|to| to >= gap.from), "a gap is not over: {gap:?}");
            let is_mended =
                self.ledger.repairs.contains_key(id) || matches!(gap.target, Some(Target::Invoicing(_)));
            assert!(is_mended, "no repair is asked for: {gap:?}");
        }
    }
}
