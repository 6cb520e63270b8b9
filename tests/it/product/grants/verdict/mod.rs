//! Whether the workers kept the tokens of a grant as promised, judged by the records of provider and topic.
//!
//! The provider records when each refresh token was shown, and the topic has the intents to show it. So:
//! - a worker shows a token only after it has written an intent for this attempt;
//! - a token is shown a second time only if the first holder was killed, and not while the first request may still be in flight;
//! - every token that the provider issued is in the topic, unless the holder was killed before it could write it;
//! - exactly in that case the grant is lost.

pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use provider::auth::grant::{GRACE, GrantState};
use simulator::{
    clock::{SECOND, Ticks},
    identity::{Exchange, ExchangeKind, ExchangeOutcome, Issued},
};

use super::scene::CommittedGrant;

/// Longest time from the death of a client to the provider's record of its last request, milliseconds.
const LATE: i64 = 5_000;

/// The records of the provider, and the kills.
pub(super) struct GrantHistory<'a> {
    /// Every token that the provider issued.
    pub(super) issued: &'a [Issued],
    /// Every token that it was shown.
    pub(super) exchanges: &'a [Exchange],
    /// The kills, milliseconds since 1970: before the signal, and when the worker was gone.
    pub(super) kills: &'a [(i64, i64)],
}

/// Counts and faults.
#[derive(Debug, Default)]
pub(super) struct GrantVerdict {
    /// Tokens that the provider rotated.
    pub(super) refreshes: usize,
    /// Tokens that were rotated although their first intent failed.
    pub(super) recovered: usize,
    /// Tokens that it issued and that are not in the topic.
    pub(super) cut: usize,
    /// Logins that the topic has as lost.
    pub(super) lost: usize,
    /// Tokens that were shown once more.
    pub(super) again: usize,
    /// Violations, in words.
    pub(super) faults: Vec<String>,
}

impl GrantVerdict {
    /// Judges a grant by its records in the topic and the provider's numbers of its logins.
    pub(super) fn add(
        &mut self,
        books: &GrantHistory<'_>,
        name: &str,
        written: &[CommittedGrant],
        logins: &[u64],
    ) {
        let shown: BTreeSet<&str> =
            written.iter().filter_map(|one| Some(one.grant.tokens()?.refresh.reveal())).collect();
        let intents = intents(written);
        let lost: BTreeSet<&str> = written
            .iter()
            .filter(|one| matches!(one.grant.state, GrantState::Lost { .. }))
            .filter_map(|one| Some(one.grant.tokens()?.refresh.reveal()))
            .collect();
        self.lost += lost.len();
        for login in logins {
            let given: Vec<&str> = books
                .issued
                .iter()
                .filter(|issued| issued.kind == "refresh" && issued.grant == *login)
                .map(|issued| &*issued.token)
                .collect();
            for (index, token) in given.iter().enumerate() {
                let presented: Vec<&Exchange> = books
                    .exchanges
                    .iter()
                    .filter(|exchange| exchange.kind == ExchangeKind::Refresh && exchange.token == **token)
                    .collect();
                let one = TokenUse { name, index, books, presented };
                let intents = intents.get(*token).map_or(&[][..], Vec::as_slice);
                one.check_intents(intents, &mut self.faults);
                one.check_again(&mut self.faults);
                self.again += one.presented.len().saturating_sub(1);
                let is_rotated = one.is_rotated();
                self.refreshes += usize::from(is_rotated);
                let is_cut = is_rotated && given.get(index + 1).is_none_or(|next| !shown.contains(next));
                self.cut += usize::from(is_cut);
                self.recovered += usize::from(is_rotated && !is_cut && intents.len() > 1);
                if is_cut {
                    one.check_cut(&mut self.faults);
                }
                if is_cut != lost.contains(token) {
                    let is = if is_cut { "was issued and not written" } else { "is in the topic" };
                    one.fault(&mut self.faults, &format!("is lost {}, but what followed {is}", !is_cut));
                }
            }
        }
        let all: BTreeSet<u64> = logins.iter().copied().collect();
        let stray = books.issued.iter().filter(|issued| !all.contains(&issued.grant));
        let stray = stray.filter(|issued| shown.contains(&*issued.token)).count();
        if stray > 0 {
            self.faults.push(format!("{name} has {stray} tokens of other logins"));
        }
    }
}

impl fmt::Display for GrantVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refreshes, recovered, cut, lost, again, faults } = self;
        write!(
            f,
            "{refreshes} refreshes, {recovered} at a later attempt, {cut} rotations cut, {lost} lost, \
             {again} tokens shown once more"
        )?;
        faults.iter().try_for_each(|fault| write!(f, "\n{fault}"))
    }
}

/// A refresh token and when it was shown.
struct TokenUse<'a> {
    name: &'a str,
    /// Its index among those of its login.
    index: usize,
    books: &'a GrantHistory<'a>,
    presented: Vec<&'a Exchange>,
}

impl TokenUse<'_> {
    fn is_rotated(&self) -> bool {
        self.presented.iter().any(|exchange| exchange.outcome == ExchangeOutcome::Rotated)
    }

    fn check_intents(&self, intents: &[i64], faults: &mut Vec<String>) {
        for (earlier, exchange) in self.presented.iter().enumerate() {
            let at = milliseconds(exchange.at);
            let written = intents.iter().filter(|begun| **begun <= at).count();
            if written <= earlier {
                self.fault(
                    faults,
                    &format!("was shown at {at} with {earlier} before it, and {written} intents written"),
                );
            }
        }
    }

    fn check_again(&self, faults: &mut Vec<String>) {
        let mut is_rotated = false;
        for (earlier, exchange) in self.presented.iter().enumerate() {
            let is_expected = match exchange.outcome {
                ExchangeOutcome::Rotated => !is_rotated,
                ExchangeOutcome::Reused | ExchangeOutcome::Revoked => is_rotated,
                // The client was gone before the provider handled the request.
                ExchangeOutcome::Unavailable => true,
                _ => false,
            };
            is_rotated |= exchange.outcome == ExchangeOutcome::Rotated;
            if !is_expected {
                self.fault(faults, &format!("was shown with {earlier} before it: {:?}", exchange.outcome));
            }
        }
        for pair in self.presented.windows(2) {
            let [first, second] = [pair[0], pair[1]].map(|exchange| milliseconds(exchange.at));
            if !self.is_killed_between(first, second) {
                self.fault(
                    faults,
                    &format!("was shown at {first} and {second}, and no worker was killed between"),
                );
            }
            if u128::try_from(second - first).unwrap_or(0) < GRACE.as_millis() {
                self.fault(faults, &format!("was shown again after {} ms", second - first));
            }
        }
    }

    /// The token that it was rotated to is not written: only a kill before the next request of this login may cause that.
    fn check_cut(&self, faults: &mut Vec<String>) {
        let Some(rotated) =
            self.presented.iter().find(|exchange| exchange.outcome == ExchangeOutcome::Rotated)
        else {
            return;
        };
        let later = self.books.exchanges.iter().filter(|exchange| exchange.grant == rotated.grant);
        let at = milliseconds(rotated.at);
        let next = later.map(|exchange| milliseconds(exchange.at)).find(|later| *later > at);
        if !self.is_killed_between(at, next.unwrap_or(i64::MAX)) {
            self.fault(
                faults,
                &format!("was rotated at {at}, and the next is not written though no worker was killed"),
            );
        }
    }

    fn is_killed_between(&self, first: i64, second: i64) -> bool {
        self.books.kills.iter().any(|(begun, gone)| *gone + LATE >= first && *begun <= second)
    }

    fn fault(&self, faults: &mut Vec<String>, what: &str) {
        faults.push(format!("{}, refresh token {}: {what}", self.name, self.index));
    }
}

/// When each intent was written first, by token.
fn intents(written: &[CommittedGrant]) -> BTreeMap<&str, Vec<i64>> {
    let mut known = BTreeSet::new();
    let mut intents: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for one in written {
        let (Some(intent), Some(tokens)) = (one.grant.intent(), one.grant.tokens()) else { continue };
        if known.insert(&intent.id) {
            intents.entry(tokens.refresh.reveal()).or_default().push(one.at_ms);
        }
    }
    intents
}

/// Since 1970.
fn milliseconds(at: Ticks) -> i64 {
    at.0 / (SECOND / 1_000)
}
