//! Whether the tokens of one grant were kept as promised, by the books of both sides.
//!
//! Of every refresh token the provider knows when it was shown, and the topic which intents to show it stood. So:
//! - nobody shows a token without an intent of its own that stood before;
//! - nobody shows one a second time unless the first holder was killed, and not while its request could still be on its way;
//! - what the provider gave stands in the topic, unless its holder was killed right then;
//! - a grant is lost exactly there.

pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use provider::auth::grant::{GRACE, State};
use simulator::{
    clock::{SECOND, Ticks},
    identity::{Exchange, ExchangeKind, ExchangeOutcome, Issued},
};

use super::scene::Written;

/// How much later than the death of a client its last request may be looked at, milliseconds.
const LATE: i64 = 5_000;

/// What there is to judge by.
pub(super) struct Books<'a> {
    /// Every token that the provider gave.
    pub(super) issued: &'a [Issued],
    /// Every token that it was shown.
    pub(super) exchanges: &'a [Exchange],
    /// When workers were killed, milliseconds since 1970: before, and when they were gone.
    pub(super) kills: &'a [(i64, i64)],
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Tokens that the provider rotated.
    pub(super) refreshes: usize,
    /// Tokens that were rotated although the first intent for them came to nothing.
    pub(super) recovered: usize,
    /// Tokens that it gave and nobody wrote down.
    pub(super) cut: usize,
    /// Logins that were lost.
    pub(super) lost: usize,
    /// Tokens that were shown once more.
    pub(super) again: usize,
    /// What must not be.
    pub(super) faults: Vec<String>,
}

impl Verdict {
    /// Adds what is found of a grant, with all that was written of it and the provider's numbers of its logins.
    pub(super) fn add(&mut self, books: &Books<'_>, name: &str, written: &[Written], logins: &[u64]) {
        let shown: BTreeSet<&str> =
            written.iter().filter_map(|one| Some(one.grant.tokens.as_ref()?.refresh.reveal())).collect();
        let intents = intents(written);
        let lost: BTreeSet<&str> = written
            .iter()
            .filter(|one| matches!(one.grant.state, State::Lost { .. }))
            .filter_map(|one| Some(one.grant.tokens.as_ref()?.refresh.reveal()))
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
                let one = Token { name, index, books, presented };
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
                    let is = if is_cut { "was given and not written" } else { "stands in the topic" };
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

impl fmt::Display for Verdict {
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
struct Token<'a> {
    name: &'a str,
    /// Its place among those of its login.
    index: usize,
    books: &'a Books<'a>,
    presented: Vec<&'a Exchange>,
}

impl Token<'_> {
    fn is_rotated(&self) -> bool {
        self.presented.iter().any(|exchange| exchange.outcome == ExchangeOutcome::Rotated)
    }

    fn check_intents(&self, intents: &[i64], faults: &mut Vec<String>) {
        for (earlier, exchange) in self.presented.iter().enumerate() {
            let at = milliseconds(exchange.at);
            let stood = intents.iter().filter(|begun| **begun <= at).count();
            if stood <= earlier {
                self.fault(
                    faults,
                    &format!("was shown at {at} with {earlier} before it, and {stood} intents stood"),
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
                // Whoever showed it was gone before anybody looked.
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
                self.fault(faults, &format!("was shown at {first} and {second}, and nobody died between"));
            }
            if u128::try_from(second - first).unwrap_or(0) < GRACE.as_millis() {
                self.fault(faults, &format!("was shown again after {} ms", second - first));
            }
        }
    }

    /// What it was rotated to nobody has written: only because of a kill, before anything else came of the login.
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
                &format!("was rotated at {at}, and nobody wrote down the next though nobody died"),
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

/// When intents were written first, by the token that they are for.
fn intents(written: &[Written]) -> BTreeMap<&str, Vec<i64>> {
    let mut known = BTreeSet::new();
    let mut intents: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for one in written {
        let (Some(intent), Some(tokens)) = (one.grant.intent(), &one.grant.tokens) else { continue };
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
