//! Explores all orders of events of two workers, the provider, the network, kills and time.
//!
//! The workers do the steps of the grant refresher on the real [`Grant`]. The topic is one record, which only the last holder of
//! the transactional id can write. The clock has four ticks; a window and the grace time take one tick each. A request that is
//! sent within a window is delivered by the next tick, or never. A worker without a step while the clock advances is frozen.

use std::{
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher as _},
};

use super::*;

const WINDOW: u8 = 1;
const TICKS: u8 = 4;
/// Refreshes that each worker starts by itself.
const REFRESHES: u8 = 1;
const TICK: Duration = GRACE;

/// What the provider does when a used refresh token is presented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TokenReuse {
    /// Rejects that token.
    Refused,
    /// Ends the grant.
    EndsGrant,
}

#[derive(Clone)]
struct ModelWorld {
    now: u8,
    record: Grant,
    /// Who may write: the last one that took the transactional id.
    holder: Option<usize>,
    provider: ModelProvider,
    owners: [ModelWorker; 2],
    /// Tokens in flight whose sender no longer waits, with the tick of sending.
    adrift: Vec<(u32, u8)>,
    kills: u8,
    /// A response with the newest token was lost: by a kill, or in flight.
    excused: bool,
    /// A token was presented again while a frozen worker had the response to it.
    raced: bool,
    /// Serials and intents under which tokens were presented.
    presented: BTreeSet<(u64, String)>,
    intents: u8,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ModelProvider {
    /// Number of the valid token.
    good: u32,
    ended: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum RefreshReply {
    Granted(u32),
    Refused,
}

#[derive(Clone, Debug)]
enum WorkerStep {
    /// Reads the record; has seen the current intent since that tick.
    Looks {
        seen: Option<(String, u8)>,
    },
    /// Holds the transactional id, to start a refresh or to recover an intent watched for that long.
    Holds {
        watched: u8,
        orphan: Option<RefreshBase>,
    },
    /// Its intent was committed at that tick.
    Began {
        base: RefreshBase,
        begun: u8,
    },
    /// The token or its response is in flight.
    Sent {
        base: RefreshBase,
        token: u32,
        at: u8,
        answer: Option<RefreshReply>,
    },
    /// Has the response and must write it; `holds`: has the transactional id.
    Answered {
        base: RefreshBase,
        answer: RefreshReply,
        holds: bool,
    },
    Killed,
}

#[derive(Clone, Debug)]
struct ModelWorker {
    step: WorkerStep,
    begun: u8,
}

impl ModelWorld {
    fn new() -> Self {
        let owner = ModelWorker { step: WorkerStep::Looks { seen: None }, begun: 0 };
        Self {
            now: 0,
            record: ready("acc"),
            holder: None,
            provider: ModelProvider { good: 1, ended: false },
            owners: [owner.clone(), owner],
            adrift: Vec::new(),
            kills: 0,
            excused: false,
            raced: false,
            presented: BTreeSet::new(),
            intents: 0,
        }
    }

    /// Equal for equal worlds. With a million worlds, collisions are negligible.
    fn fingerprint(&self) -> u64 {
        let Self { now, record, holder, provider, owners, adrift, kills, excused, raced, presented, intents } =
            self;
        let (token, serial, state) = (refresh_token(record), record.serial, &record.state);
        let text = format!(
            "{now} {serial} {token} {state:?} {holder:?} {provider:?} {owners:?} {adrift:?} {kills} {excused} {raced} \
             {presented:?} {intents}"
        );
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }

    fn intent(&self) -> RefreshIntent {
        let window_ms = u64::from(WINDOW) * u64::try_from(TICK.as_millis()).unwrap();
        RefreshIntent { window_ms, ..intent(&format!("{}", self.intents)) }
    }

    /// Writes a changed record, if the writer still holds the transactional id.
    fn commit(&mut self, index: usize, changed: Result<Grant, GrantConflict>) -> bool {
        let stands = self.holder == Some(index) && changed.is_ok();
        if stands {
            self.record = changed.unwrap();
        }
        stands
    }

    /// All worlds that can come next.
    fn next(&self, reuse: TokenReuse) -> Vec<Self> {
        let mut worlds = Vec::new();
        if self.now < TICKS {
            let mut later = self.clone();
            later.now += 1;
            worlds.push(later);
        }
        for (number, (token, at)) in self.adrift.iter().enumerate() {
            let mut world = self.clone();
            world.adrift.remove(number);
            // It never arrives, or arrives and its response is lost.
            worlds.push(world.clone());
            if self.now <= at + 1 {
                world.excused |= matches!(world.provide(*token, reuse), RefreshReply::Granted(_));
                worlds.push(world);
            }
        }
        for index in 0..2 {
            self.steps(index, reuse, &mut worlds);
            if self.kills == 0 && !matches!(self.owners[index].step, WorkerStep::Killed) {
                let mut world = self.clone();
                world.kills += 1;
                match &self.owners[index].step {
                    WorkerStep::Answered { answer: RefreshReply::Granted(_), base, .. } => {
                        world.excused |= self.record.answer(base, issued(9)).is_ok();
                    }
                    WorkerStep::Sent { answer: Some(RefreshReply::Granted(_)), .. } => world.excused = true,
                    WorkerStep::Sent { answer: None, token, at, .. } => world.adrift.push((*token, *at)),
                    _ => {}
                }
                world.owners[index].step = WorkerStep::Killed;
                worlds.push(world);
            }
        }
        worlds
    }

    fn steps(&self, index: usize, reuse: TokenReuse, worlds: &mut Vec<Self>) {
        let owner = &self.owners[index];
        let mut world = self.clone();
        let looks = || WorkerStep::Looks { seen: None };
        world.owners[index].step = match &owner.step {
            WorkerStep::Killed => return,
            WorkerStep::Looks { seen } => match (self.record.intent(), seen) {
                (None, _)
                    if matches!(self.record.state, GrantState::Ready { .. }) && owner.begun < REFRESHES =>
                {
                    world.owners[index].begun += 1;
                    world.holder = Some(index);
                    WorkerStep::Holds { watched: 0, orphan: None }
                }
                (None, _) => return,
                (Some(intent), Some((id, at))) if intent.id == *id => {
                    let watched = self.now - at;
                    if TICK * u32::from(watched) < intent.patience() {
                        return;
                    }
                    let orphan = Some(self.record.base(intent));
                    world.holder = Some(index);
                    WorkerStep::Holds { watched, orphan }
                }
                (Some(intent), _) => WorkerStep::Looks { seen: Some((intent.id.clone(), self.now)) },
            },
            WorkerStep::Holds { watched, orphan } => {
                let intent = self.intent();
                let changed = match orphan {
                    None => self.record.begin(self.record.serial, intent.clone()),
                    Some(orphan) => self.record.recover(orphan, TICK * u32::from(*watched), intent.clone()),
                };
                if world.commit(index, changed) {
                    world.intents += 1;
                    WorkerStep::Began { base: world.record.base(&intent), begun: self.now }
                } else {
                    looks()
                }
            }
            WorkerStep::Began { base, begun }
                if self.now >= begun + WINDOW
                    || self.record.intent().is_none_or(|stands| self.record.base(stands) != *base) =>
            {
                // The gate is closed: the token is not sent, whether or not the intent is still current.
                world.commit(index, self.record.withdraw(base));
                looks()
            }
            WorkerStep::Began { base, .. } => {
                world.present(base);
                let token = refresh_token(&self.record).trim_start_matches("refresh-").parse().unwrap();
                WorkerStep::Sent { base: base.clone(), token, at: self.now, answer: None }
            }
            WorkerStep::Sent { base, token, at, answer: None } => {
                // The connection breaks: the request may still arrive.
                let mut lost = self.clone();
                lost.owners[index].step = looks();
                lost.adrift.push((*token, *at));
                worlds.push(lost);
                if self.now > at + 1 {
                    return;
                }
                let answer = world.provide(*token, reuse);
                WorkerStep::Sent { base: base.clone(), token: *token, at: *at, answer: Some(answer) }
            }
            WorkerStep::Sent { base, answer: Some(answer), .. } => {
                let mut lost = self.clone();
                lost.excused |= matches!(answer, RefreshReply::Granted(_));
                lost.owners[index].step = looks();
                worlds.push(lost);
                WorkerStep::Answered { base: base.clone(), answer: answer.clone(), holds: false }
            }
            WorkerStep::Answered { base, answer, holds: false } => {
                world.holder = Some(index);
                WorkerStep::Answered { base: base.clone(), answer: answer.clone(), holds: true }
            }
            WorkerStep::Answered { base, answer, holds: true } => {
                let changed = match answer {
                    RefreshReply::Granted(token) => self.record.answer(base, issued(*token)),
                    RefreshReply::Refused => self.record.lose(base, "invalid_grant", AT_MS),
                };
                let is_superseded = changed.is_err();
                if world.commit(index, changed) || is_superseded {
                    looks()
                } else {
                    WorkerStep::Answered { base: base.clone(), answer: answer.clone(), holds: false }
                }
            }
        };
        worlds.push(world);
    }

    /// Asserts the rules for presenting a token.
    fn present(&mut self, base: &RefreshBase) {
        let stands = self.record.intent().expect("an intent stands before a token is presented");
        assert_eq!(self.record.base(stands), *base, "the intent that stands is the presenter's own");
        for other in &self.owners {
            if let WorkerStep::Sent { base: other, answer: None, at, .. } = &other.step {
                assert!(
                    other.serial != base.serial || self.now > at + 1,
                    "two presentations of serial {} are under way",
                    base.serial
                );
            }
        }
        let token: u32 = refresh_token(&self.record).trim_start_matches("refresh-").parse().unwrap();
        let is_adrift = self.adrift.iter().any(|(other, at)| *other == token && self.now <= at + 1);
        assert!(!is_adrift, "token {token} may still be on its way");
        // A frozen worker with the newest token looks like a dead one: it has had its time.
        self.raced |= self.owners.iter().any(|owner| match &owner.step {
            WorkerStep::Answered { answer: RefreshReply::Granted(_), base: other, .. }
            | WorkerStep::Sent { answer: Some(RefreshReply::Granted(_)), base: other, .. } => {
                other.serial == base.serial
            }
            _ => false,
        });
        let is_new = self.presented.insert((base.serial, base.intent.clone()));
        assert!(is_new, "a token was presented twice under one intent");
        let is_first = self.presented.iter().filter(|(serial, _)| *serial == base.serial).count() == 1;
        assert!(is_first || stands.cause == RefreshCause::Recovery, "only a recovery presents a token again");
    }

    fn provide(&mut self, token: u32, reuse: TokenReuse) -> RefreshReply {
        if self.provider.ended || token != self.provider.good {
            if reuse == TokenReuse::EndsGrant && !self.provider.ended {
                self.provider.ended = true;
                assert!(self.excused || self.raced, "the grant was ended by a reuse that nothing excuses");
                self.excused = true;
            }
            return RefreshReply::Refused;
        }
        self.provider.good += 1;
        RefreshReply::Granted(self.provider.good)
    }

    /// Whether no response is pending or unwritten.
    fn is_quiet(&self) -> bool {
        let is_idle =
            |owner: &ModelWorker| matches!(owner.step, WorkerStep::Looks { .. } | WorkerStep::Killed);
        self.adrift.is_empty() && self.owners.iter().all(is_idle)
    }
}

/// Explores all worlds. Returns their number, and how many lost the grant.
fn explore(reuse: TokenReuse) -> (usize, usize) {
    let (mut seen, mut open, mut lost) = (HashSet::new(), vec![ModelWorld::new()], 0);
    while let Some(world) = open.pop() {
        if !seen.insert(world.fingerprint()) {
            continue;
        }
        if world.is_quiet() {
            let newest = format!("refresh-{}", world.provider.good);
            let is_kept = refresh_token(&world.record) == newest && !world.provider.ended;
            assert!(is_kept || world.excused, "no worker has the newest token, and nothing excuses it");
            let is_lost = matches!(world.record.state, GrantState::Lost { .. });
            assert!(!is_lost || world.excused, "a grant counts as lost that is not");
            lost += usize::from(is_lost);
        }
        open.extend(world.next(reuse));
    }
    (seen.len(), lost)
}

#[test]
fn a_token_is_lost_only_with_its_only_holder_or_its_response() {
    let (worlds, lost) = explore(TokenReuse::Refused);

    assert!(worlds > 10_000, "only {worlds} worlds were visited");
    assert!(lost > 0, "a kill after the rotation loses the grant, and no world had one");
}

#[test]
fn only_a_lost_or_frozen_response_leads_to_token_reuse() {
    let (worlds, lost) = explore(TokenReuse::EndsGrant);

    assert!(worlds > 10_000, "only {worlds} worlds were visited");
    assert!(lost > 0, "a kill after the rotation loses the grant, and no world had one");
}
