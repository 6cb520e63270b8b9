//! Access to the provider: logins, grants and tokens. No Kafka here: an implementation of [`Tokens`] keeps the grants.
//!
//! ```text
//! person ──▶ login: code ──▶ identity: tokens ──▶ token: verified with keys ──▶ grant (sealed) ──▶ grant store
//!                                 ▲ refresh                  ▲ discovery
//! API client ◀── Tokens: the current token, or a replacement for a rejected one
//! ```
//!
//! - A token is used only after its grant was stored durably.
//! - Expiry follows the provider's clock, as its responses report it; waits follow a monotonic clock.
//! - No error and no log line shows a token.

pub mod check;
mod discovery;
pub mod grant;
pub mod http;
pub mod identity;
pub mod key;
pub mod keys;
pub mod login;
pub mod seal;
#[cfg(test)]
pub(crate) mod tests;
pub mod token;

use std::{fmt, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use base::{retry::Retry, secret::Secret};

use crate::{AreaLogin, OAuth};

const ACCOUNTING_SCOPES: &[&str] = &[
    "offline_access",
    "openid",
    "SVC.ES.NEWPOL.COR.API",
    "SVC.ES.NEWPOL.ACC.API",
    "SVC.ES.NEWPOL.MNG.API",
    "SVC.ES.Webhooks",
];
const PAYROLL_SCOPES: &[&str] = &["offline_access", "openid", "IDInfo", "SVC.ES.EquipoContex"];

/// The API that a login is for. Each has its own grant, because the scopes differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Area {
    /// The accounting API.
    Accounting,
    /// The payroll API.
    Payroll,
    /// The invoicing API, if it is used with tokens of the identity service.
    Invoicing,
}

impl Area {
    /// All areas.
    pub const ALL: [Self; 3] = [Self::Accounting, Self::Payroll, Self::Invoicing];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accounting => "accounting",
            Self::Payroll => "payroll",
            Self::Invoicing => "invoicing",
        }
    }

    /// Whether the connector uses tokens of the identity service for this area. For invoicing only if its scopes are set;
    /// otherwise it logs in with mail and password, or has a token.
    pub fn is_used(self, oauth: &OAuth) -> bool {
        !self.scopes_of(oauth).is_empty()
    }

    /// Documented scopes; none for invoicing.
    pub const fn scopes(self) -> &'static [&'static str] {
        match self {
            Self::Accounting => ACCOUNTING_SCOPES,
            Self::Payroll => PAYROLL_SCOPES,
            Self::Invoicing => &[],
        }
    }

    /// The configured login.
    pub const fn login(self, oauth: &OAuth) -> &AreaLogin {
        match self {
            Self::Accounting => &oauth.logins.accounting,
            Self::Payroll => &oauth.logins.payroll,
            Self::Invoicing => &oauth.logins.invoicing,
        }
    }

    /// Scopes that a login requests: the configured ones, else the documented ones.
    pub fn scopes_of(self, oauth: &OAuth) -> Vec<String> {
        let configured = &self.login(oauth).scopes;
        match configured.is_empty() {
            true => self.scopes().iter().copied().map(str::to_owned).collect(),
            false => configured.clone(),
        }
    }

    /// The setting of its scopes.
    pub const fn scopes_key(self) -> &'static str {
        match self {
            Self::Accounting => "accounting.oauth.scopes",
            Self::Payroll => "payroll.oauth.scopes",
            Self::Invoicing => "invoicing.oauth.scopes",
        }
    }

    /// The setting of its grant's name.
    pub const fn grant_key(self) -> &'static str {
        match self {
            Self::Accounting => "accounting.oauth.grant",
            Self::Payroll => "payroll.oauth.grant",
            Self::Invoicing => "invoicing.oauth.grant",
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Supplies the tokens of one area. Implemented by whatever keeps the grant.
#[async_trait]
pub trait Tokens: fmt::Debug + Send + Sync {
    /// A verified token with some validity left. Waits until `end` if one is being fetched.
    async fn token(&self, end: Instant) -> Result<Access, Error>;

    /// A replacement for a rejected token. Waits until `end`; concurrent callers cause one refresh.
    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, Error>;

    /// The grant or login behind the tokens, and what a person can do if even a fresh token is rejected.
    fn remedy(&self) -> Option<String> {
        None
    }
}

/// A token for requests.
#[derive(Debug, Clone)]
pub struct Access {
    /// The whole value of `Authorization`.
    pub header: Secret,
    /// Grows with every token of a grant.
    pub serial: u64,
    /// Expiry by the provider's clock in milliseconds since 1970, if known.
    pub expires_ms: Option<i64>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `grant.encryption.key` is not set.
    #[error("grant.encryption.key is not set, so no grant can be read: set it, the same on all workers")]
    NoKey,
    /// The grant does not exist.
    #[error("no login exists for the grant {grant}: run `{command}`")]
    Absent {
        /// Name of the grant.
        grant: String,
        /// Command to run.
        command: String,
    },
    /// The grant was logged out.
    #[error("the grant {grant} was logged out: run `{command}`")]
    LoggedOut {
        /// Name of the grant.
        grant: String,
        /// Command to run.
        command: String,
    },
    /// The provider rejects its refresh token, or refreshed it for another tenant.
    #[error("the grant {grant} is lost: {reason}: run `{command}`")]
    Lost {
        /// Name of the grant.
        grant: String,
        /// How it was lost.
        reason: String,
        /// Command to run.
        command: String,
    },
    /// A new token failed verification.
    #[error("a token of the grant {grant} is not trusted: {rule}")]
    Distrusted {
        /// Name of the grant.
        grant: String,
        /// The broken rule, and the setting behind it.
        rule: String,
    },
    /// The connector's base URL is not an origin of the login.
    #[error(
        "the login of the grant {grant} may not be used at the origin of provider.base.url: a login is good for the origin that was \
         configured when it was made, and a login from before origins were kept only for hosts that provider.hosts.allowed lists in \
         full; correct provider.base.url, or run `{command}`"
    )]
    Elsewhere {
        /// Name of the grant.
        grant: String,
        /// Command to run.
        command: String,
    },
    /// The identity service rejects the OAuth client.
    #[error(
        "the identity service refuses the client of the grant {grant} ({code}): check oauth.client.id and oauth.client.secret"
    )]
    Client {
        /// Name of the grant.
        grant: String,
        /// The OAuth error code.
        code: String,
    },
    /// The identity service or the stored grants cannot be used now.
    #[error("the grant {grant} cannot be used now: {what}")]
    Setup {
        /// Name of the grant.
        grant: String,
        /// What was attempted, with the setting behind it.
        what: String,
    },
    /// The grant is encrypted with a key that this worker does not have.
    #[error(
        "the grant {grant} is encrypted with the key {key}, which is neither grant.encryption.key nor its previous one"
    )]
    Unreadable {
        /// Name of the grant.
        grant: String,
        /// Fingerprint of the key.
        key: String,
    },
    /// The token has expired, and no replacement came in time.
    #[error("no valid token of the grant {grant} came within {waited:?}")]
    Pending {
        /// Name of the grant.
        grant: String,
        /// Time that was waited.
        waited: Duration,
    },
    /// The grant topic belongs to another group.
    #[error("grant.storage.topic belongs to the group {group}: set another topic for this group")]
    Foreign {
        /// That group.
        group: String,
    },
    /// The provider rejects a token that a setting supplies, and that nothing here can renew.
    #[error("the provider refuses the token of {setting}: set a new one")]
    Supplied {
        /// The setting.
        setting: &'static str,
    },
    /// A login without a grant failed.
    #[error("cannot log in to {area}")]
    Login {
        /// The API.
        area: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether and when a retry can help.
        retry: Retry,
    },
}

impl Error {
    /// Whether and when a retry can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::NoKey
            | Self::Absent { .. }
            | Self::LoggedOut { .. }
            | Self::Lost { .. }
            | Self::Distrusted { .. }
            | Self::Elsewhere { .. }
            | Self::Client { .. }
            | Self::Foreign { .. }
            | Self::Supplied { .. } => Retry::Never,
            Self::Setup { .. } | Self::Unreadable { .. } | Self::Pending { .. } => Retry::Later,
            Self::Login { retry, .. } => *retry,
        }
    }
}
