//! Every presentation of a code or refresh token, in the order in which they were decided: what a test of token keeping is
//! judged by.
//!
//! An entry is written with the decision, under the ledger's lock. It says what became of the answer only later; one whose
//! client left meanwhile is lost.

use serde::Serialize;

use super::{Identity, parameters::Parameters};
use crate::clock::Ticks;

/// The longest token kept, bytes: far more than any that is issued for this endpoint.
const MAX_TOKEN_BYTES: usize = 1_024;

/// A code or refresh token, presented at the token endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exchange {
    /// When it was decided.
    pub at: Ticks,
    /// Which of the two it claims to be.
    pub kind: ExchangeKind,
    /// Number of its grant; none where it is unknown or nobody looked.
    pub grant: Option<u64>,
    /// The token itself, its first KiB.
    pub token: String,
    /// What was decided.
    pub outcome: ExchangeOutcome,
    /// What became of the answer.
    pub answer: AnswerFate,
}

/// What may be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExchangeKind {
    /// A code of a login.
    Code,
    /// A refresh token.
    Refresh,
}

/// What was decided about an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExchangeOutcome {
    /// TokenResponse were issued; a refresh token that was presented stays good.
    Granted,
    /// TokenResponse were issued, and the refresh token presented has ended.
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
pub enum AnswerFate {
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
pub(super) struct PresentedToken<'a> {
    pub(super) kind: ExchangeKind,
    pub(super) token: &'a str,
}

impl<'a> PresentedToken<'a> {
    /// What a form presents, if anything.
    pub(super) fn read(form: &'a Parameters) -> Option<Self> {
        let (kind, name) = match form.get("grant_type")? {
            "authorization_code" => (ExchangeKind::Code, "code"),
            "refresh_token" => (ExchangeKind::Refresh, "refresh_token"),
            _ => return None,
        };
        form.get(name).map(|token| Self { kind, token })
    }

    /// Its entry, with the answer still to come.
    pub(super) fn decided(self, at: Ticks, grant: Option<u64>, outcome: ExchangeOutcome) -> Exchange {
        let token = self.token[..self.token.floor_char_boundary(MAX_TOKEN_BYTES)].to_owned();
        Exchange { at, kind: self.kind, grant, token, outcome, answer: AnswerFate::Pending }
    }
}

/// Notes an exchange without a look at what is presented.
pub(super) fn undecided(identity: &Identity, form: &Parameters, outcome: ExchangeOutcome) -> Option<u64> {
    let presented = PresentedToken::read(form)?;
    Some(identity.exchanges.push(presented.decided(identity.core.clock.now(), None, outcome)))
}

/// The answer to an exchange while it is made: lost, unless it is said what else became of it.
#[derive(Debug)]
pub(super) struct ExchangeRecord<'a> {
    identity: &'a Identity,
    /// What is presented, until it is decided.
    form: Option<&'a Parameters>,
    /// Number of its entry, once there is one.
    number: Option<u64>,
}

impl<'a> ExchangeRecord<'a> {
    /// Of a form that is not decided yet; none for a request that presents nothing.
    pub(super) const fn new(identity: &'a Identity, form: Option<&'a Parameters>) -> Self {
        Self { identity, form, number: None }
    }

    /// The entry with this number says what was decided.
    pub(super) fn is_decided(&mut self, number: Option<u64>) {
        (self.form, self.number) = (None, number);
    }

    pub(super) fn is_undecided(&mut self) {
        if let Some(form) = self.form.take() {
            self.number = undecided(self.identity, form, ExchangeOutcome::Unavailable);
        }
    }

    pub(super) fn end(mut self, answer: AnswerFate) {
        self.note(answer);
    }

    fn note(&mut self, answer: AnswerFate) {
        if let Some(number) = self.number.take() {
            self.identity.exchanges.update(number, |exchange| exchange.answer = answer);
        }
    }
}

impl Drop for ExchangeRecord<'_> {
    fn drop(&mut self) {
        self.is_undecided();
        self.note(AnswerFate::Lost);
    }
}
