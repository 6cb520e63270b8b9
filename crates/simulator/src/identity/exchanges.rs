//! The journal of codes and refresh tokens presented at the token endpoint, in the order of the decisions. Tests of token
//! handling compare with it.
//!
//! An entry is written with its decision, under the lock of the grant table. What happened to the answer is added later; if
//! the client has left, the answer is lost.

use serde::Serialize;

use super::{IdentityProvider, parameters::Parameters};
use crate::clock::Ticks;

/// Far more than any token of this endpoint has.
const MAX_TOKEN_BYTES: usize = 1_024;

/// A code or refresh token, presented at the token endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exchange {
    /// When it was decided.
    pub at: Ticks,
    /// Code or refresh token, as the request says.
    pub kind: ExchangeKind,
    /// Number of its grant; `None` where it is unknown or was not looked up.
    pub grant: Option<u64>,
    /// The token, its first KiB.
    pub token: String,
    /// The decision.
    pub outcome: ExchangeOutcome,
    /// What happened to the answer.
    pub answer: AnswerFate,
}

/// What is exchanged for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExchangeKind {
    /// The code of a login.
    Code,
    /// A refresh token.
    Refresh,
}

/// The decision about an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExchangeOutcome {
    /// Tokens were issued; a refresh token that was presented stays valid.
    Granted,
    /// Tokens were issued, and the presented refresh token is now invalid.
    Rotated,
    /// It had been redeemed or rotated before.
    Reused,
    /// It had expired.
    Expired,
    /// Its grant had ended.
    Revoked,
    /// It was never issued here.
    Unknown,
    /// The redirect address or the verifier is wrong.
    Refused,
    /// The client's credentials are wrong; the token was not looked up.
    Client,
    /// The endpoint was unavailable or the client left first; the token was not looked up.
    Unavailable,
}

/// What happened to the answer to an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AnswerFate {
    /// Not sent yet.
    Pending,
    /// Handed to the connection unchanged. Whether the client received it is unknown.
    Sent,
    /// Changed by a fault and handed to the connection.
    Spoiled,
    /// Not sent: by a knob, or because the client left.
    Lost,
}

/// The code or refresh token in a request.
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

    /// The journal entry of a decision; its answer is pending.
    pub(super) fn decided(self, at: Ticks, grant: Option<u64>, outcome: ExchangeOutcome) -> Exchange {
        let token = self.token[..self.token.floor_char_boundary(MAX_TOKEN_BYTES)].to_owned();
        Exchange { at, kind: self.kind, grant, token, outcome, answer: AnswerFate::Pending }
    }
}

/// Records an exchange whose token was not looked up.
pub(super) fn record_undecided(
    identity: &IdentityProvider,
    form: &Parameters,
    outcome: ExchangeOutcome,
) -> Option<u64> {
    let presented = PresentedToken::read(form)?;
    Some(identity.exchanges.push(presented.decided(identity.core.clock.now(), None, outcome)))
}

/// Records what happens to an answer; lost unless [`Self::end`] says otherwise.
#[derive(Debug)]
pub(super) struct ExchangeRecord<'a> {
    identity: &'a IdentityProvider,
    /// The form, until its exchange is decided.
    form: Option<&'a Parameters>,
    /// Number of the journal entry, once there is one.
    number: Option<u64>,
}

impl<'a> ExchangeRecord<'a> {
    /// `form` is `None` for a request that presents nothing.
    pub(super) const fn new(identity: &'a IdentityProvider, form: Option<&'a Parameters>) -> Self {
        Self { identity, form, number: None }
    }

    /// The exchange was decided and has this entry.
    pub(super) fn set_decided(&mut self, number: Option<u64>) {
        (self.form, self.number) = (None, number);
    }

    pub(super) fn set_undecided(&mut self) {
        if let Some(form) = self.form.take() {
            self.number = record_undecided(self.identity, form, ExchangeOutcome::Unavailable);
        }
    }

    pub(super) fn end(mut self, answer: AnswerFate) {
        self.set_answer(answer);
    }

    fn set_answer(&mut self, answer: AnswerFate) {
        if let Some(number) = self.number.take() {
            self.identity.exchanges.update(number, |exchange| exchange.answer = answer);
        }
    }
}

impl Drop for ExchangeRecord<'_> {
    fn drop(&mut self) {
        self.set_undecided();
        self.set_answer(AnswerFate::Lost);
    }
}
