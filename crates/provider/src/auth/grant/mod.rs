//! One grant: the tokens of one login, and what is being done to them. Nothing here reads a clock or draws a number.
//!
//! ```text
//!            log_in                   begin                      recover (after the wait)
//! (absent) ─────────▶ Ready(n) ───────────────▶ Refreshing(n, i) ─────────┐
//!                       ▲  ▲    withdraw(i)        │   │   ▲              │
//!                       │  └───────────────────────┘   │   └──────────────┘
//!                       │        answer to T(n)        │ lose(i)
//!                       └──── Ready(n+1) ◀─────────────┼──▶ Lost ──▶ (log_in)
//!                                   ▲                  │     │
//!                                   └──── answer ──────┴─────┘         log_out: anything ──▶ Out
//! ```
//!
//! Who wants to present the refresh token T(n) first has an [`Intent`] committed that names the serial n. Only then is the token
//! sent, once, and not after the intent's window. What comes back is committed before anybody uses it.
//!
//! - Every change names what it is based on: login, serial and intent. Whoever comes late with another base gets [`Conflict`],
//!   and nothing changes.
//! - An answer to T(n) is taken for as long as n is the serial of the same login, whoever's intent stands by then: it holds
//!   T(n+1), and nobody else has that.
//! - A second presentation of T(n) needs an intent of its own, committed [`GRACE`] after the window of the one before has
//!   closed, counted by the second from when it saw the first: no clock is compared with another machine's.
//! - An intent whose outcome nobody knows stays open until somebody knows: withdrawing a later one does not make it undone.
//! - A login is good for the origins that were configured when it was made; see [`Login::may_go_to`].
//! - A login supersedes everything. A set of tokens is named by its login and its serial, which goes on under one name unless the
//!   record before cannot be opened.
//!
//! What can be lost: T(n+1), when its only holder ends between the provider's rotation and the commit, or the answer never
//! reaches anybody. Then the intent stands open, T(n) is tried once more, and the grant is [`State::Lost`] with the reason. Where
//! the provider ends a grant whose token is presented twice, a holder that is frozen beyond the wait, or cut off from the topic for
//! longer than it, and comes back is such a case too: nobody can tell it from one that has died. Whoever waits longer than they
//! must before they try again makes that rarer, and rules nothing out.

mod record;
#[cfg(any(test, feature = "samples"))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub mod samples;
#[cfg(test)]
mod tests;

pub use record::Unreadable;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use base::secret::Secret;

use super::{Area, http::milliseconds};
use crate::HostPolicy;

/// How long after the end of an intent's window nobody else presents the same token: longer than what was sent inside the
/// window can be on its way.
pub const GRACE: Duration = Duration::from_secs(10);

/// Refreshing begins so long before a token ends, or a quarter of its life if that is less.
const REFRESH_BEFORE_END_MS: i64 = 300_000;
/// How much of that is left to chance, so that grants of one login hour do not come in step.
const REFRESH_JITTER: f64 = 0.2;
/// What an access token lives where the provider does not say: its documented time.
const ACCESS_LIFETIME: Duration = Duration::from_secs(3_600);

/// The tokens of one login, and what is being done to them.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Its name, as in the settings.
    pub name: String,
    /// What it is for.
    pub area: Area,
    /// Who logged in, and when.
    pub login: Login,
    /// Grows by one with every set of tokens under this name, for as long as the one before can be read.
    pub serial: u64,
    /// The tokens of this serial; none once somebody has logged out.
    pub tokens: Option<TokenPair>,
    /// What is being done to it.
    pub state: State,
}

/// Who logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// Drawn at every login.
    pub id: String,
    /// When, by the provider's clock, in milliseconds since 1970.
    pub at_ms: i64,
    /// `sub` of the id token.
    pub subject: String,
    /// An e-mail or a name, for people.
    pub shown: Option<String>,
    /// The OAuth client that the tokens belong to.
    pub client_id: String,
    /// The identity service that they are from. A refresh token is presented there and nowhere else.
    pub auth_url: String,
    /// Origins that an access token may be presented to: those of `provider.base.url` when the person logged in. Empty in a
    /// login that was made before origins were kept; see [`Login::may_go_to`].
    #[serde(default)]
    pub origins: Vec<String>,
}

/// An access token and the refresh token for the next.
#[derive(Debug, Clone)]
pub struct TokenPair {
    /// For requests.
    pub access: Secret,
    /// When it was given, by the provider's clock, in milliseconds since 1970.
    pub access_since_ms: i64,
    /// When it ends.
    pub access_expires_ms: i64,
    /// For the next set.
    pub refresh: Secret,
    /// When that was given or last used.
    pub refresh_since_ms: i64,
    /// What they are good for.
    pub scopes: Vec<String>,
}

/// What the provider gave for a code or a refresh token.
#[derive(Debug, Clone)]
pub struct Issued {
    /// For requests.
    pub access: Secret,
    /// How long it lives, where the provider says so.
    pub expires_in: Option<Duration>,
    /// For the next set; none where the one before goes on.
    pub refresh: Option<Secret>,
    /// What they are good for, where the provider says so.
    pub scopes: Option<Vec<String>>,
    /// When, by the provider's clock, in milliseconds since 1970.
    pub at_ms: i64,
}

/// What is being done to a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum State {
    /// Its tokens are the provider's last, as far as anybody can know.
    Ready,
    /// Somebody presents its refresh token, or did and was not heard of again.
    Refreshing {
        /// Who, and until when.
        intent: Intent,
    },
    /// The provider does not take its refresh token any more.
    Lost {
        /// The first refresh of which nobody heard, if that is how it came.
        origin: Option<Origin>,
        /// The provider's word.
        reason: String,
        /// When that was found, for people.
        at_ms: i64,
    },
    /// Somebody has logged out.
    Out {
        /// When, for people.
        at_ms: i64,
    },
}

/// That somebody is about to present a refresh token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Drawn for each.
    pub id: String,
    /// Why.
    pub cause: Cause,
    /// The refresh that began it all: this one, or the one of which nobody heard.
    pub origin: Origin,
    /// How long after its commit the token may be sent, at most.
    pub window_ms: u64,
    /// Whoever had it has said that the token was not sent under it, and will not be.
    #[serde(default)]
    pub withdrawn: bool,
}

/// Who began a refresh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The worker, `host:port`.
    pub worker: String,
    /// When, for people, in milliseconds since 1970.
    pub begun_ms: i64,
}

/// Why a refresh is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The access token ends soon.
    Due,
    /// An API has refused the access token.
    Refused,
    /// Nobody heard of the refresh before.
    Recovery,
}

/// What a change is based on: the login, the set of tokens, and the intent under which one was presented.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// [`Login::id`].
    pub login: String,
    /// The serial whose refresh token was presented.
    pub serial: u64,
    /// [`Intent::id`].
    pub intent: String,
}

/// The grant is not any more what a change is based on, or not yet. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Another login, another serial, another intent.
    #[error("the grant has changed meanwhile")]
    Changed,
    /// Who has the open intent may still present the token.
    #[error("the refresh that is under way may still be")]
    Early,
}

/// The origin of an address, as a login keeps it: scheme, host, and the port where it is not the scheme's own.
pub fn origin(address: &Url) -> String {
    address.origin().ascii_serialization()
}

impl Login {
    /// Whether a token of it may be presented at an address. A login without origins is good only where the operator has listed
    /// the host in full in `provider.hosts.allowed`, because the login does not say where its tokens may go.
    #[must_use]
    pub fn may_go_to(&self, address: &Url, hosts: &HostPolicy) -> bool {
        match self.origins.as_slice() {
            [] => hosts.names(address),
            origins => origins.contains(&origin(address)),
        }
    }

    /// The person, as people know them; else as the provider does.
    pub fn who(&self) -> &str {
        self.shown.as_deref().unwrap_or(&self.subject)
    }
}

impl Grant {
    /// What a login makes of whatever was there. `None` where the provider gave no refresh token: nothing could be kept alive.
    #[must_use]
    pub fn log_in(
        before: Option<&Self>,
        name: &str,
        area: Area,
        login: Login,
        issued: Issued,
    ) -> Option<Self> {
        let serial = before.map_or(0, |before| before.serial) + 1;
        let refresh = issued.refresh.clone()?;
        let documented = area.scopes().iter().map(|scope| (*scope).to_owned()).collect();
        let tokens = TokenPair::new(issued, refresh, documented);
        Some(Self { name: name.to_owned(), area, login, serial, tokens: Some(tokens), state: State::Ready })
    }

    /// Forgets the tokens.
    #[must_use]
    pub fn log_out(&self, at_ms: i64) -> Self {
        Self { tokens: None, state: State::Out { at_ms }, ..self.clone() }
    }

    /// What a refresh of these tokens is based on.
    pub fn base(&self, intent: &Intent) -> Base {
        Base { login: self.login.id.clone(), serial: self.serial, intent: intent.id.clone() }
    }

    /// The intent that stands.
    pub fn intent(&self) -> Option<&Intent> {
        match &self.state {
            State::Refreshing { intent } => Some(intent),
            _ => None,
        }
    }

    /// Announces that the refresh token of `serial` will be presented.
    ///
    /// # Errors
    /// It is not that serial's turn.
    pub fn begin(&self, serial: u64, intent: Intent) -> Result<Self, Conflict> {
        match self.state {
            State::Ready if self.serial == serial => Ok(self.with(State::Refreshing { intent })),
            _ => Err(Conflict::Changed),
        }
    }

    /// Announces that the refresh token will be presented once more, because nobody has heard of the intent that stands for
    /// `watched` since this caller saw it first.
    ///
    /// # Errors
    /// Another intent stands, or none; or whoever has it may still present the token.
    pub fn recover(&self, orphan: &Base, watched: Duration, intent: Intent) -> Result<Self, Conflict> {
        let stands = self.standing(orphan).ok_or(Conflict::Changed)?;
        if watched < stands.patience() {
            return Err(Conflict::Early);
        }
        let intent = Intent { cause: Cause::Recovery, origin: stands.origin.clone(), ..intent };
        Ok(self.with(State::Refreshing { intent }))
    }

    /// Takes back an announcement: the token was certainly not taken by the provider under it. After a recovery it is still
    /// unknown what became of the refresh before, so the intent stands, for the next to recover at once.
    ///
    /// # Errors
    /// The intent does not stand any more.
    pub fn withdraw(&self, base: &Base) -> Result<Self, Conflict> {
        let stands = self.standing(base).ok_or(Conflict::Changed)?;
        Ok(match stands.cause {
            Cause::Due | Cause::Refused => self.with(State::Ready),
            Cause::Recovery => {
                self.with(State::Refreshing { intent: Intent { withdrawn: true, ..stands.clone() } })
            }
        })
    }

    /// Takes what the provider gave for the refresh token of the base's serial. Also where another's intent stands by now, or
    /// the grant counts as lost: see the module's head.
    ///
    /// # Errors
    /// The serial or the login is another, or somebody has logged out: the answer is of no use.
    pub fn answer(&self, base: &Base, issued: Issued) -> Result<Self, Conflict> {
        if self.login.id != base.login || self.serial != base.serial {
            return Err(Conflict::Changed);
        }
        let before = self.tokens.as_ref().ok_or(Conflict::Changed)?;
        let refresh = issued.refresh.clone().unwrap_or_else(|| before.refresh.clone());
        let tokens = TokenPair::new(issued, refresh, before.scopes.clone());
        Ok(Self { serial: self.serial + 1, tokens: Some(tokens), state: State::Ready, ..self.clone() })
    }

    /// Takes note that the provider refuses the refresh token. The tokens stay: an answer may still turn up.
    ///
    /// # Errors
    /// The intent does not stand any more.
    pub fn lose(&self, base: &Base, reason: &str, at_ms: i64) -> Result<Self, Conflict> {
        let stands = self.standing(base).ok_or(Conflict::Changed)?;
        let origin = (stands.cause == Cause::Recovery).then(|| stands.origin.clone());
        Ok(self.with(State::Lost { origin, reason: reason.to_owned(), at_ms }))
    }

    /// When the access token should be replaced, by the provider's clock. `chance` is from 0 to 1.
    pub fn due_ms(&self, chance: f64) -> Option<i64> {
        let tokens = self.tokens.as_ref()?;
        let life = tokens.access_expires_ms.saturating_sub(tokens.access_since_ms).max(0);
        let ahead = REFRESH_BEFORE_END_MS.min(life / 4) as f64
            * (1.0 + REFRESH_JITTER * (2.0 * chance.clamp(0.0, 1.0) - 1.0));
        Some(tokens.access_expires_ms.saturating_sub(ahead as i64))
    }

    /// When the login ends for good, and when the refresh token does, by the provider's clock; `None` for never.
    pub fn ends_ms(&self, lifetime: Option<Duration>, idle: Option<Duration>) -> (Option<i64>, Option<i64>) {
        let after = |at_ms: i64, life: Duration| at_ms.saturating_add(milliseconds(life));
        let login = lifetime.map(|life| after(self.login.at_ms, life));
        let unused = self.tokens.as_ref().and_then(|tokens| Some(after(tokens.refresh_since_ms, idle?)));
        (login, [login, unused].into_iter().flatten().min())
    }

    /// The intent that stands, if it is the base's.
    fn standing(&self, base: &Base) -> Option<&Intent> {
        self.intent().filter(|intent| {
            self.login.id == base.login && self.serial == base.serial && intent.id == base.intent
        })
    }

    fn with(&self, state: State) -> Self {
        Self { state, ..self.clone() }
    }
}

impl Intent {
    /// How long nobody else may present the token, from when they saw this.
    pub fn patience(&self) -> Duration {
        if self.withdrawn { Duration::ZERO } else { Duration::from_millis(self.window_ms) + GRACE }
    }
}

impl TokenPair {
    fn new(issued: Issued, refresh: Secret, scopes: Vec<String>) -> Self {
        let Issued { access, expires_in, scopes: told, at_ms, .. } = issued;
        let life = milliseconds(expires_in.unwrap_or(ACCESS_LIFETIME));
        Self {
            access,
            access_since_ms: at_ms,
            access_expires_ms: at_ms.saturating_add(life),
            refresh,
            refresh_since_ms: at_ms,
            scopes: told.unwrap_or(scopes),
        }
    }
}
