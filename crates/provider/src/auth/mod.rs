//! Access to the provider: who we are there, and the tokens that say so. No Kafka: where grants are kept is [`Tokens`]' secret.
//!
//! ```text
//! person ──▶ login: code ──▶ identity: tokens ──▶ token: checked with keys ──▶ grant (sealed) ──▶ whoever keeps it
//!                                 ▲ refresh                  ▲ discovery
//! API client ◀── Tokens: the header of now, or another than the one that was refused
//! ```
//!
//! - A token is used only after whoever keeps the grant has it for good.
//! - Validity follows the provider's clock, as its answers tell it; waits follow a clock that never jumps.
//! - Nothing here prints a token: not an error, not a log line.

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
mod tests;
pub mod token;

use std::{fmt, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use base::{retry::Retry, secret::Secret};

use crate::OAuth;

const ACCOUNTING_SCOPES: &[&str] = &[
    "offline_access",
    "openid",
    "SVC.ES.NEWPOL.COR.API",
    "SVC.ES.NEWPOL.ACC.API",
    "SVC.ES.NEWPOL.MNG.API",
    "SVC.ES.Webhooks",
];
const PAYROLL_SCOPES: &[&str] = &["offline_access", "openid", "IDInfo", "SVC.ES.EquipoContex"];

/// What a login is for. Each has its own grant: the provider gives other scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Area {
    /// The accounting API.
    Accounting,
    /// The payroll API.
    Payroll,
    /// The invoicing API, where it is entered with tokens of the identity service.
    Invoicing,
}

impl Area {
    /// Every area.
    pub const ALL: [Self; 3] = [Self::Accounting, Self::Payroll, Self::Invoicing];

    /// Its name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accounting => "accounting",
            Self::Payroll => "payroll",
            Self::Invoicing => "invoicing",
        }
    }

    /// Whether a connector has tokens of the identity service for it. The invoicing API is entered by mail and password unless its
    /// scopes are set.
    pub fn is_used(self, oauth: &OAuth) -> bool {
        !self.scopes_of(oauth).is_empty()
    }

    /// The scopes that the provider documents for it: none for invoicing.
    pub const fn scopes(self) -> &'static [&'static str] {
        match self {
            Self::Accounting => ACCOUNTING_SCOPES,
            Self::Payroll => PAYROLL_SCOPES,
            Self::Invoicing => &[],
        }
    }

    /// The scopes that a login asks for: those of its settings, else the documented ones.
    pub fn scopes_of(self, oauth: &OAuth) -> Vec<String> {
        let configured = match self {
            Self::Accounting => &oauth.accounting_scopes,
            Self::Payroll => &oauth.payroll_scopes,
            Self::Invoicing => &oauth.invoicing_scopes,
        };
        match configured.is_empty() {
            true => self.scopes().iter().copied().map(str::to_owned).collect(),
            false => configured.clone(),
        }
    }

    /// The setting for its scopes.
    pub const fn scopes_key(self) -> &'static str {
        match self {
            Self::Accounting => "accounting.oauth.scopes",
            Self::Payroll => "payroll.oauth.scopes",
            Self::Invoicing => "invoicing.oauth.scopes",
        }
    }

    /// The setting for the name of its grant.
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

/// What every request of one area carries, from whoever keeps the grant.
#[async_trait]
pub trait Tokens: fmt::Debug + Send + Sync {
    /// A token that is checked and good for a moment longer. One that is on its way is waited for, until `end`.
    async fn token(&self, end: Instant) -> Result<Access, Error>;

    /// Another than one that an API has refused, waited for until `end`. However many ask, the provider is asked once.
    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, Error>;

    /// Whose tokens these are, and what a person may do where the provider refuses even a fresh one.
    fn remedy(&self) -> Option<String> {
        None
    }
}

/// A token in use.
#[derive(Debug, Clone)]
pub struct Access {
    /// The value of `Authorization`, whole.
    pub header: Secret,
    /// Grows with every token of a grant.
    pub serial: u64,
    /// When it ends by the provider's clock, in milliseconds since 1970, where that is known.
    pub expires_ms: Option<i64>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Grants cannot be read or kept here.
    #[error("grant.encryption.key is not set, so no grant can be read: set it, the same on all workers")]
    NoKey,
    /// Nobody has logged in.
    #[error("nobody has logged in for the grant {grant}: run `{command}`")]
    Absent {
        /// Its name.
        grant: String,
        /// What to run.
        command: String,
    },
    /// Somebody has logged out.
    #[error("the grant {grant} was logged out: run `{command}`")]
    LoggedOut {
        /// Its name.
        grant: String,
        /// What to run.
        command: String,
    },
    /// The provider does not take its refresh token any more.
    #[error("the grant {grant} is lost: {reason}: run `{command}`")]
    Lost {
        /// Its name.
        grant: String,
        /// How that came.
        reason: String,
        /// What to run.
        command: String,
    },
    /// The provider gave a token that does not pass the check.
    #[error("a token of the grant {grant} is not trusted: {rule}")]
    Distrusted {
        /// The grant's name.
        grant: String,
        /// The rule that it breaks, and the setting behind it.
        rule: String,
    },
    /// The connector wants to present the token where the login does not allow it.
    #[error(
        "the login of the grant {grant} may not be used at the origin of provider.base.url: a login is good for the origin that was \
         configured when it was made, and a login from before origins were kept only for hosts that provider.hosts.allowed lists in \
         full; correct provider.base.url, or run `{command}`"
    )]
    Elsewhere {
        /// The grant's name.
        grant: String,
        /// What to run.
        command: String,
    },
    /// The provider does not take the OAuth client.
    #[error(
        "the identity service refuses the client of the grant {grant} ({code}): check oauth.client.id and oauth.client.secret"
    )]
    Client {
        /// The grant's name.
        grant: String,
        /// The provider's word.
        code: String,
    },
    /// What it takes to ask the identity service, or to read grants, is not there now.
    #[error("the grant {grant} cannot be used here now: {what}")]
    Setup {
        /// The grant's name.
        grant: String,
        /// What was attempted, with the setting behind it.
        what: String,
    },
    /// It is encrypted with a key that this worker does not have.
    #[error(
        "the grant {grant} is encrypted with the key {key}, which is neither grant.encryption.key nor its previous one"
    )]
    Unreadable {
        /// The grant's name.
        grant: String,
        /// Which key, by its fingerprint.
        key: String,
    },
    /// The token has ended, and the next has not come in time.
    #[error("no valid token of the grant {grant} came within {waited:?}")]
    Pending {
        /// The grant's name.
        grant: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The topic of the grants belongs to other workers.
    #[error("the grants are those of the group {group}: give this one a grant.storage.topic of its own")]
    Foreign {
        /// Whose they are.
        group: String,
    },
    /// A login that is no grant did not give a token.
    #[error("log in to {area}")]
    Login {
        /// Where.
        area: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What may be done about it.
        retry: Retry,
    },
}

impl Error {
    /// What may be done about it.
    pub fn retry(&self) -> Retry {
        match self {
            Self::NoKey
            | Self::Absent { .. }
            | Self::LoggedOut { .. }
            | Self::Lost { .. }
            | Self::Distrusted { .. }
            | Self::Elsewhere { .. }
            | Self::Client { .. }
            | Self::Foreign { .. } => Retry::Never,
            Self::Setup { .. } | Self::Unreadable { .. } | Self::Pending { .. } => Retry::Later,
            Self::Login { retry, .. } => *retry,
        }
    }
}
