//! State machine of a grant: the tokens of one login, and the refresh in progress. It reads no clock and draws no random numbers.
//!
//! ```text
//!            log_in                   begin                      recover (after the wait)
//! (absent) ─────────▶ Ready(n) ───────────────▶ Refreshing(n, i) ─────────┐
//!                       ▲  ▲    withdraw(i)        │   │   ▲              │
//!                       │  └───────────────────────┘   │   └──────────────┘
//!                       │        answer to T(n)        │ lose(i)
//!                       └──── Ready(n+1) ◀─────────────┼──▶ Lost ──▶ (log_in)
//!                                   ▲                  │     │
//!                                   └──── answer ──────┴─────┘         log_out: anything ──▶ LoggedOut
//! ```
//!
//! To present the refresh token T(n), a worker first commits a [`RefreshIntent`] for serial n. Only then it sends the token, once, and
//! only within the intent's window. It commits the response before anybody uses the new tokens.
//!
//! - Every change names its base: login, serial and intent. A late change with another base gets [`GrantConflict`] and changes
//!   nothing.
//! - A response to T(n) is accepted as long as n is the serial of the same login, even under another worker's intent: it contains
//!   T(n+1), which is stored nowhere else.
//! - Presenting T(n) again takes a new intent, committed [`GRACE`] after the window of the previous one has closed. The second
//!   worker counts that time from when it first saw the previous intent, so no clocks of two machines are compared.
//! - An intent with an unknown outcome stays open until the outcome is known: withdrawing a later intent does not undo it.
//! - A login is valid for the origins that were configured when it was made; see [`GrantLogin::may_go_to`].
//! - A grant is bound to one tenant; see [`TenantMismatch`]. An answer for another one is not stored, and makes the grant `Lost`.
//! - A login supersedes everything. A token set is identified by its login and serial. Serials continue under the same name,
//!   unless the previous record cannot be opened.
//!
//! What can be lost: T(n+1), if its only holder dies between the provider's rotation and the commit, or if the response is lost.
//! Then the intent stays open, T(n) is tried once more, and the grant becomes [`GrantState::Lost`] with the reason. If the provider
//! ends a grant whose token is presented twice, the same happens when a holder returns that was frozen, or cut off from the
//! topic, for longer than the wait: it looks like a dead one. Waiting longer than required before the second try makes
//! that rarer, but cannot rule it out.

mod record;
#[cfg(any(test, feature = "samples"))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub mod samples;
mod tenant;
#[cfg(test)]
mod tests;

pub use record::InvalidGrantBytes;
pub use tenant::{LossReason, TenantMismatch};

use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use base::secret::Secret;

use super::{Area, http::milliseconds, token};
use crate::HostPolicy;

/// Wait after the end of an intent's window before another worker may present the same token: longer than a request that was sent
/// within the window can be in flight.
pub const GRACE: Duration = Duration::from_secs(10);

/// A refresh starts this long before a token expires, or a quarter of its lifetime if that is less.
const REFRESH_BEFORE_END_MS: i64 = 300_000;
/// Random part of that time, so that grants of the same login hour do not refresh together.
const REFRESH_JITTER: f64 = 0.2;
/// Lifetime of an access token if the response has none: the documented one.
const ACCESS_LIFETIME: Duration = Duration::from_secs(3_600);

/// The tokens of one login, and the state of its refresh.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Name, as in the settings.
    pub name: String,
    /// Area of the login.
    pub area: Area,
    /// Who logged in, and when.
    pub login: GrantLogin,
    /// Grows by one with every token set under this name, as long as the previous record can be read.
    pub serial: u64,
    /// The tokens of this serial, and the state of their refresh.
    pub state: GrantState,
}

/// Who logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantLogin {
    /// Random id of the login.
    pub id: String,
    /// Time of the login by the provider's clock, in milliseconds since 1970.
    pub at_ms: i64,
    /// `sub` of the identity token.
    pub subject: String,
    /// E-mail address or name, to show.
    pub shown: Option<String>,
    /// The OAuth client of the tokens.
    pub client_id: String,
    /// The identity service of the tokens. The refresh token is presented only there.
    pub auth_url: String,
    /// Origins that access tokens may be sent to: those of `provider.base.url` at the time of the login. Empty in logins from
    /// before origins were recorded; see [`GrantLogin::may_go_to`].
    #[serde(default)]
    pub origins: Vec<String>,
    /// Tenant that the grant is bound to; `None` until a token names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// An access token, and the refresh token for the next set.
#[derive(Debug, Clone)]
pub struct TokenPair {
    /// Access token.
    pub access: Secret,
    /// When it was issued, by the provider's clock, in milliseconds since 1970.
    pub access_since_ms: i64,
    /// When it expires.
    pub access_expires_ms: i64,
    /// Refresh token.
    pub refresh: Secret,
    /// When it was issued or last used.
    pub refresh_since_ms: i64,
    /// Scopes.
    pub scopes: Vec<String>,
}

/// Tokens that the provider issued for a code or a refresh token.
#[derive(Debug, Clone)]
pub struct IssuedTokens {
    /// Access token.
    pub access: Secret,
    /// Its lifetime, if the response has it.
    pub expires_in: Option<Duration>,
    /// Refresh token; `None` if the old one stays.
    pub refresh: Option<Secret>,
    /// Scopes, if the response has them.
    pub scopes: Option<Vec<String>>,
    /// When, by the provider's clock, in milliseconds since 1970.
    pub at_ms: i64,
}

/// State of a grant. Each variant has what this state needs; `record` has its form in the topic.
#[derive(Debug, Clone)]
pub enum GrantState {
    /// Its tokens are the latest, as far as known.
    Ready {
        /// The current tokens.
        tokens: TokenPair,
    },
    /// A refresh was started, and its outcome is not known yet.
    Refreshing {
        /// The tokens to refresh.
        tokens: TokenPair,
        /// The current intent.
        intent: RefreshIntent,
    },
    /// The provider rejects its refresh token, or refreshed it for another tenant.
    Lost {
        /// The last tokens: a response to an earlier refresh may still arrive.
        tokens: TokenPair,
        /// The first refresh without a known outcome, if that was the cause.
        origin: Option<RefreshOrigin>,
        /// Why.
        reason: LossReason,
        /// When that was found, to show.
        at_ms: i64,
    },
    /// The grant was logged out.
    LoggedOut {
        /// When, to show.
        at_ms: i64,
    },
}

/// The announcement that a refresh token will be presented.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshIntent {
    /// Random id.
    pub id: String,
    /// Reason for the refresh.
    pub cause: RefreshCause,
    /// The first refresh of the series: this one, or the one whose outcome is unknown.
    pub origin: RefreshOrigin,
    /// How long after its commit the token may be sent.
    pub window_ms: u64,
    /// Its worker has confirmed that the token was not sent under it, and never will be.
    #[serde(default)]
    pub withdrawn: bool,
}

/// Who started a refresh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshOrigin {
    /// Worker, as `host:port`.
    pub worker: String,
    /// When, to show, in milliseconds since 1970.
    pub begun_ms: i64,
}

/// Reason for a refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefreshCause {
    /// The access token expires soon.
    Due,
    /// An API rejected the access token.
    Refused,
    /// The outcome of the previous refresh is unknown.
    Recovery,
}

/// The base of a change: login, token set, and the intent under which the token was presented.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshBase {
    /// [`GrantLogin::id`].
    pub login: String,
    /// Serial of the presented refresh token.
    pub serial: u64,
    /// [`RefreshIntent::id`].
    pub intent: String,
}

/// The grant does not match the base of a change. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantConflict {
    /// Login, serial or intent differ.
    #[error("the grant has changed in the meantime")]
    Changed,
    /// The worker with the open intent may still present the token.
    #[error("the refresh in progress may still present the token")]
    Early,
}

/// Origin of a URL, as a login records it: scheme and host, and the port unless it is the default.
pub fn origin(address: &Url) -> String {
    address.origin().ascii_serialization()
}

impl GrantLogin {
    /// Whether its tokens may be sent to a URL. A login without origins is valid only for hosts that `provider.hosts.allowed`
    /// lists in full, because the login itself does not limit where its tokens go.
    #[must_use]
    pub fn may_go_to(&self, address: &Url, hosts: &HostPolicy) -> bool {
        match self.origins.as_slice() {
            [] => hosts.names(address),
            origins => origins.contains(&origin(address)),
        }
    }

    /// The person to show, else the provider's id of the person.
    pub fn who(&self) -> &str {
        self.shown.as_deref().unwrap_or(&self.subject)
    }
}

impl Grant {
    /// The grant of a new login. `None` without a refresh token, because it could not be kept alive.
    #[must_use]
    pub fn log_in(
        before: Option<&Self>,
        name: &str,
        area: Area,
        login: GrantLogin,
        issued: IssuedTokens,
    ) -> Option<Self> {
        let serial = before.map_or(0, |before| before.serial) + 1;
        let refresh = issued.refresh.clone()?;
        let documented = area.scopes().iter().map(|scope| (*scope).to_owned()).collect();
        let tokens = TokenPair::new(issued, refresh, documented);
        Some(Self { name: name.to_owned(), area, login, serial, state: GrantState::Ready { tokens } })
    }

    /// Removes the tokens.
    #[must_use]
    pub fn log_out(&self, at_ms: i64) -> Self {
        self.with(GrantState::LoggedOut { at_ms })
    }

    /// The base of a change under this intent.
    pub fn base(&self, intent: &RefreshIntent) -> RefreshBase {
        RefreshBase { login: self.login.id.clone(), serial: self.serial, intent: intent.id.clone() }
    }

    /// The tokens of this serial; `None` after a logout.
    pub fn tokens(&self) -> Option<&TokenPair> {
        match &self.state {
            GrantState::Ready { tokens }
            | GrantState::Refreshing { tokens, .. }
            | GrantState::Lost { tokens, .. } => Some(tokens),
            GrantState::LoggedOut { .. } => None,
        }
    }

    /// The current intent.
    pub fn intent(&self) -> Option<&RefreshIntent> {
        match &self.state {
            GrantState::Refreshing { intent, .. } => Some(intent),
            _ => None,
        }
    }

    /// Announces that the refresh token of `serial` will be presented.
    ///
    /// # Errors
    /// The grant has another serial or is not ready.
    pub fn begin(&self, serial: u64, intent: RefreshIntent) -> Result<Self, GrantConflict> {
        match &self.state {
            GrantState::Ready { tokens } if self.serial == serial => {
                Ok(self.with(GrantState::Refreshing { tokens: tokens.clone(), intent }))
            }
            _ => Err(GrantConflict::Changed),
        }
    }

    /// Announces that the refresh token will be presented again, because the outcome of the current intent has been unknown for
    /// `watched`, since this worker first saw it.
    ///
    /// # Errors
    /// There is another intent or none; or its worker may still present the token.
    pub fn recover(
        &self,
        orphan: &RefreshBase,
        watched: Duration,
        intent: RefreshIntent,
    ) -> Result<Self, GrantConflict> {
        let (tokens, current) = self.refresh_of(orphan)?;
        if watched < current.patience() {
            return Err(GrantConflict::Early);
        }
        let intent =
            RefreshIntent { cause: RefreshCause::Recovery, origin: current.origin.clone(), ..intent };
        Ok(self.with(GrantState::Refreshing { tokens: tokens.clone(), intent }))
    }

    /// Withdraws an announcement, because the provider has certainly not accepted the token under it. After a recovery the
    /// outcome of the earlier refresh is still unknown, so the intent stays, and the next worker may recover at once.
    ///
    /// # Errors
    /// The intent is not current any more.
    pub fn withdraw(&self, base: &RefreshBase) -> Result<Self, GrantConflict> {
        let (tokens, current) = self.refresh_of(base)?;
        let tokens = tokens.clone();
        Ok(self.with(match current.cause {
            RefreshCause::Due | RefreshCause::Refused => GrantState::Ready { tokens },
            RefreshCause::Recovery => GrantState::Refreshing {
                tokens,
                intent: RefreshIntent { withdrawn: true, ..current.clone() },
            },
        }))
    }

    /// Stores the tokens that the provider issued for the refresh token of the base. Also if another worker's intent is current,
    /// or the grant is lost: see the module head. If they are for another tenant, they are not stored, and the grant is lost.
    ///
    /// # Errors
    /// The serial or login differs, or the grant was logged out. The tokens are useless.
    pub fn answer(&self, base: &RefreshBase, issued: IssuedTokens) -> Result<Self, GrantConflict> {
        if !base.is_of(self) {
            return Err(GrantConflict::Changed);
        }
        let before = self.tokens().ok_or(GrantConflict::Changed)?;
        let tenant = token::unverified_tenant(issued.access.reveal()).or_else(|| self.tenant());
        if let Err(mismatch) = self.check_tenant(tenant.as_deref()) {
            let (tokens, reason) = (before.clone(), LossReason::Tenant(mismatch));
            return Ok(self.with(GrantState::Lost { tokens, origin: None, reason, at_ms: issued.at_ms }));
        }
        let refresh = issued.refresh.clone().unwrap_or_else(|| before.refresh.clone());
        let tokens = TokenPair::new(issued, refresh, before.scopes.clone());
        let login = GrantLogin { tenant, ..self.login.clone() };
        Ok(Self { login, serial: self.serial + 1, ..self.with(GrantState::Ready { tokens }) })
    }

    /// Records that the provider rejects the refresh token. Keeps the tokens, because an earlier response may still arrive.
    ///
    /// # Errors
    /// The intent is not current any more.
    pub fn lose(&self, base: &RefreshBase, reason: &str, at_ms: i64) -> Result<Self, GrantConflict> {
        let (tokens, current) = self.refresh_of(base)?;
        let origin = (current.cause == RefreshCause::Recovery).then(|| current.origin.clone());
        let (tokens, reason) = (tokens.clone(), LossReason::Refused(reason.to_owned()));
        Ok(self.with(GrantState::Lost { tokens, origin, reason, at_ms }))
    }

    /// When to replace the access token, by the provider's clock. `chance` is from 0 to 1.
    pub fn due_ms(&self, chance: f64) -> Option<i64> {
        let tokens = self.tokens()?;
        let life = tokens.access_expires_ms.saturating_sub(tokens.access_since_ms).max(0);
        let ahead = REFRESH_BEFORE_END_MS.min(life / 4) as f64
            * (1.0 + REFRESH_JITTER * (2.0 * chance.clamp(0.0, 1.0) - 1.0));
        Some(tokens.access_expires_ms.saturating_sub(ahead as i64))
    }

    /// When the login ends, and when the refresh token ends, by the provider's clock; `None` for no limit.
    pub fn ends_ms(&self, lifetime: Option<Duration>, idle: Option<Duration>) -> (Option<i64>, Option<i64>) {
        let after = |at_ms: i64, life: Duration| at_ms.saturating_add(milliseconds(life));
        let login = lifetime.map(|life| after(self.login.at_ms, life));
        let unused = self.tokens().and_then(|tokens| Some(after(tokens.refresh_since_ms, idle?)));
        (login, [login, unused].into_iter().flatten().min())
    }

    /// The tokens and the intent of the current refresh, if it is the base's.
    fn refresh_of(&self, base: &RefreshBase) -> Result<(&TokenPair, &RefreshIntent), GrantConflict> {
        match &self.state {
            GrantState::Refreshing { tokens, intent } if self.base(intent) == *base => Ok((tokens, intent)),
            _ => Err(GrantConflict::Changed),
        }
    }

    fn with(&self, state: GrantState) -> Self {
        let Self { name, area, login, serial, .. } = self;
        Self { name: name.clone(), area: *area, login: login.clone(), serial: *serial, state }
    }
}

impl RefreshBase {
    /// Whether a grant has this login and serial.
    pub fn is_of(&self, grant: &Grant) -> bool {
        self.login == grant.login.id && self.serial == grant.serial
    }
}

impl RefreshIntent {
    /// How long other workers must wait from when they first see this intent.
    pub fn patience(&self) -> Duration {
        if self.withdrawn { Duration::ZERO } else { Duration::from_millis(self.window_ms) + GRACE }
    }
}

impl TokenPair {
    fn new(issued: IssuedTokens, refresh: Secret, scopes: Vec<String>) -> Self {
        let IssuedTokens { access, expires_in, scopes: granted, at_ms, .. } = issued;
        let life = milliseconds(expires_in.unwrap_or(ACCESS_LIFETIME));
        Self {
            access,
            access_since_ms: at_ms,
            access_expires_ms: at_ms.saturating_add(life),
            refresh,
            refresh_since_ms: at_ms,
            scopes: granted.unwrap_or(scopes),
        }
    }
}
