//! Every presentation of a code or refresh token, in the order in which they were decided: what a test of token keeping is
//! judged by.
//!
//! An entry is written with the decision, under the ledger's lock. It says what became of the answer only later; one whose
//! client left meanwhile is lost.

use serde::Serialize;

use super::{Identity, parameters::Parameters};
use crate::clock::Ticks;

/// The longest token kept, bytes: far more than any that is issued for this endpoint.
const LONGEST: usize = 1_024;

/// A code or refresh token, presented at the token endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exchange {
    /// When it was decided.
    pub at: Ticks,
    /// Which of the two it claims to be.
    pub kind: Kind,
    /// Number of its grant; none where it is unknown or nobody looked.
    pub grant: Option<u64>,
    /// The token itself, its first KiB.
    pub token: String,
    /// What was decided.
    pub outcome: Outcome,
    /// What became of the answer.
    pub answer: Answer,
}

/// What may be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A code of a login.
    Code,
    /// A refresh token.
    Refresh,
}

/// What was decided about an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Tokens were issued; a refresh token that was presented stays good.
    Granted,
    /// Tokens were issued, and the refresh token presented has ended.
    Rotated,
    /// It had been used or rotated out before.
    Reused,
    /// It came too late.
    Expired,
    /// Its grant had ended.
    Revoked,
    /// It was never issued here.
    Unknown,
    /// Something beside it is wrong: the redirect address or the verifier.
    Refused,
    /// The client is not who it says; nobody looked at the token.
    Client,
    /// The endpoint was not there, or the client left first; nobody looked at the token.
    Unavailable,
}

/// What became of the answer to an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It is being made.
    Pending,
    /// It was handed over to be written, whole. Whether the client got it nobody here knows.
    Sent,
    /// What a fault made of it was handed over to be written.
    Spoiled,
    /// It was given up: by a knob, or because the client has left.
    Lost,
}

/// What a request presents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Presented<'a> {
    pub(super) kind: Kind,
    pub(super) token: &'a str,
}

impl<'a> Presented<'a> {
    /// What a form presents, if anything.
    pub(super) fn read(form: &'a Parameters) -> Option<Self> {
        let (kind, name) = match form.get("grant_type")? {
            "authorization_code" => (Kind::Code, "code"),
            "refresh_token" => (Kind::Refresh, "refresh_token"),
            _ => return None,
        };
        form.get(name).map(|token| Self { kind, token })
    }

    /// Its entry, with the answer still to come.
    pub(super) fn decided(self, at: Ticks, grant: Option<u64>, outcome: Outcome) -> Exchange {
        let token = self.token[..self.token.floor_char_boundary(LONGEST)].to_owned();
        Exchange { at, kind: self.kind, grant, token, outcome, answer: Answer::Pending }
    }
}

/// Notes an exchange without a look at what is presented.
pub(super) fn undecided(identity: &Identity, form: &Parameters, outcome: Outcome) -> Option<u64> {
    let presented = Presented::read(form)?;
    Some(identity.exchanges.push(presented.decided(identity.core.clock.now(), None, outcome)))
}

/// The answer to an exchange while it is made: lost, unless it is said what else became of it.
#[derive(Debug)]
pub(super) struct OnItsWay<'a> {
    identity: &'a Identity,
    /// What is presented, until it is decided.
    form: Option<&'a Parameters>,
    /// Number of its entry, once there is one.
    number: Option<u64>,
}

impl<'a> OnItsWay<'a> {
    /// Of a form that is not decided yet; none for a request that presents nothing.
    pub(super) const fn new(identity: &'a Identity, form: Option<&'a Parameters>) -> Self {
        Self { identity, form, number: None }
    }

    /// The entry with this number says what was decided.
    pub(super) fn is_decided(&mut self, number: Option<u64>) {
        (self.form, self.number) = (None, number);
    }

    pub(super) fn is_unseen(&mut self) {
        if let Some(form) = self.form.take() {
            self.number = undecided(self.identity, form, Outcome::Unavailable);
        }
    }

    pub(super) fn end(mut self, answer: Answer) {
        self.note(answer);
    }

    fn note(&mut self, answer: Answer) {
        if let Some(number) = self.number.take() {
            self.identity.exchanges.update(number, |exchange| exchange.answer = answer);
        }
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.is_unseen();
        self.note(Answer::Lost);
    }
}
