//! The provider's APIs: one way for every request, typed calls for every endpoint.
//!
//! ```text
//! call ─▶ circuit ─▶ token ─▶ budget: priority, company, application ─▶ send ─▶ read, bounded ─▶ verdict ─▶ typed answer
//!            ▲         ▲ another, once, after 401            ▲ pause and cut after 429, quota        │
//!            └─────────┴──────────────── again ──────────────┴───────────────────────────────────────┘
//! ```
//!
//! - There is one place that sends (`request`); what every request carries, waits for and is judged by stands there alone.
//! - A call ends with [`CallOptions::deadline`], whatever the provider does.
//! - A refusal for the rate is waited out inside the call; a refused token is replaced once; everything else is the
//!   area_client's to try again, by [`Error::retry`].
//! - Ids and filters are opaque: encoded, never taken apart.
//! - No error, log line or metric shows a key, a token, a password or the provider's words beyond a short, cleaned excerpt.
//!
//! On failure: an [`Error`] with endpoint, status, cause, verdict, and whether the provider may have acted.

mod accounting;
mod address;
mod body;
pub mod budget;
mod call;
mod error;
pub mod invoicing;
mod paging;
mod payroll;
mod quirks;
mod request;
mod verdict;
mod webhooks;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use url::Url;

use base::{metrics::ApiArea, secret::Secret};
use model::Traceparent;

use self::request::{AreaClient, Core};
pub use self::{
    accounting::{Accounting, Document},
    budget::{Budget, Budgets, Rates},
    error::{Acted, AnsweredBy, Cause, Endpoint, Error, Limit, Reach},
    invoicing::Invoicing,
    paging::{
        NextPage, Oddities, Page, PageRequest, PageWalk, Pagination, Total, WalkStep, page_hash, row_hash,
    },
    payroll::{Payroll, PayrollRequest},
    webhooks::{EventType, Operation, SubscribeRequest, UrlChange, Webhook},
};
/// Reads a page by the provider's own number; public for the simulations of lists, which have no provider.
pub use self::{paging::first_page::read as read_numbered, quirks::Quirks};
use crate::{
    Provider, Transport,
    auth::{Tokens, http::ProviderClock},
};

/// Who goes first when the budget is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// What somebody waits for: records behind events, and subscriptions.
    Webhook,
    /// What mends gaps.
    Repair,
    /// What reads everything.
    Snapshot,
}

impl Priority {
    /// All, first to last.
    pub const ALL: [Self; 3] = [Self::Webhook, Self::Repair, Self::Snapshot];

    /// Its name, as metrics have it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Repair => "repair",
            Self::Snapshot => "snapshot",
        }
    }
}

/// How something is asked for, whatever it is.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Who goes first.
    pub priority: Priority,
    /// When the call ends at the latest.
    pub deadline: Instant,
    /// The trace it belongs to; without one it begins its own.
    pub trace: Option<Traceparent>,
}

impl CallOptions {
    /// With a priority, within a time from now.
    pub fn within(priority: Priority, time: Duration) -> Self {
        Self { priority, deadline: Instant::now() + time, trace: None }
    }
}

/// When an answer was true: somewhere between the first two, by our clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadTimes {
    /// When the request was sent.
    pub sent: SystemTime,
    /// When the last byte of its answer was read.
    pub answered: SystemTime,
    /// What the provider's clock said, where it tells.
    pub date: Option<SystemTime>,
    /// How long it lay in a cache on the way, though none was asked for: then it was true so much earlier.
    pub age: Option<Duration>,
}

/// Where the APIs are and how they are reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// `provider.base.url`.
    pub base_url: Url,
    /// `provider.subscription.key`.
    pub subscription_key: Secret,
    /// How the provider is reached.
    pub transport: Transport,
    /// `invoicing.api.version`: the header `Api-Version` of invoicing calls; `None` sends none.
    pub api_version: Option<String>,
    /// `invoicing.egress.proxy`: what invoicing hooks are created through.
    pub egress_proxy: Option<Secret>,
}

impl From<&Provider> for Options {
    fn from(provider: &Provider) -> Self {
        Self {
            base_url: provider.base_url.clone(),
            subscription_key: provider.subscription_key.clone(),
            transport: provider.transport.clone(),
            api_version: None,
            egress_proxy: None,
        }
    }
}

/// A client of all areas. Clones share connections, budget and what is known about the host.
#[derive(Debug, Clone)]
pub struct Client(Arc<Core>);

impl Client {
    /// A client; reads a file if a setting names one.
    ///
    /// # Errors
    /// A certificate, the proxy or the key cannot be used.
    pub fn new(options: &Options, budget: Budget, clock: ProviderClock) -> Result<Self, Cause> {
        Ok(Self(Arc::new(Core::new(options, budget, clock)?)))
    }

    /// The accounting API and its webhooks.
    pub fn accounting(&self, tokens: Arc<dyn Tokens>) -> Accounting {
        Accounting(self.area_client(ApiArea::Accounting, tokens))
    }

    /// The payroll API.
    pub fn payroll(&self, tokens: Arc<dyn Tokens>) -> Payroll {
        Payroll(self.area_client(ApiArea::Payroll, tokens))
    }

    /// The invoicing API, with tokens such as [`invoicing::InvoicingTokens`] has.
    pub fn invoicing(&self, tokens: Arc<dyn Tokens>) -> Invoicing {
        Invoicing(self.area_client(ApiArea::Invoicing, tokens))
    }

    fn area_client(&self, area: ApiArea, tokens: Arc<dyn Tokens>) -> AreaClient {
        AreaClient { core: Arc::clone(&self.0), area, tokens }
    }
}
