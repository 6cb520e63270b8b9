//! The provider's APIs: one path for every request, and a typed call for every endpoint.
//!
//! ```text
//! call ─▶ circuit ─▶ token ─▶ budget: priority, company, application ─▶ send ─▶ read, bounded ─▶ verdict ─▶ typed answer
//!            ▲         ▲ another, once, after 401            ▲ pause and cut after 429, quota        │
//!            └─────────┴──────────────── again ──────────────┴───────────────────────────────────────┘
//! ```
//!
//! - Only `request` sends. Headers, waiting and the verdict on a response are in that module and nowhere else.
//! - A call ends by [`CallOptions::deadline`], whatever the provider does.
//! - The call itself waits out a rate limit and replaces a rejected token once. The caller retries everything else, by
//!   [`Error::retry`].
//! - Ids and filters are opaque: they are encoded, never parsed.
//! - No error, log line or metric shows a key, token or password, nor more of a response than a short, redacted excerpt.
//!
//! On failure: an [`Error`] with endpoint, status, cause, verdict, and whether the provider may have acted.

mod accounting;
mod address;
mod body;
pub mod budget;
mod call;
mod error;
mod inspect;
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

use self::request::{AreaClient, ClientCore};
pub use self::{
    accounting::{Accounting, Document},
    address::ContextHeader,
    budget::{Budget, Budgets, Rates},
    error::{Acted, AnsweredBy, Cause, Endpoint, Error, Limit, Reach},
    inspect::{Inspection, Inspector, RawAnswer},
    invoicing::Invoicing,
    paging::{
        NextPage, Oddities, Page, PageRequest, PageWalk, Pagination, Total, WalkStep, page_hash, row_hash,
    },
    payroll::{Payroll, PayrollRequest},
    webhooks::{EventType, Operation, SubscribeRequest, UrlChange, Webhook},
};
/// Reads a page by the provider's own number. Public for list simulations, which have no provider.
pub use self::{paging::first_page::read as read_numbered, quirks::Quirks};
use crate::{
    Provider, Transport,
    auth::{Tokens, http::ProviderClock},
};

/// Order of requests when the budget is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Interactive work: records of events, and subscriptions.
    Webhook,
    /// Repairs of gaps.
    Repair,
    /// Snapshots.
    Snapshot,
}

impl Priority {
    /// All priorities, first to last.
    pub const ALL: [Self; 3] = [Self::Webhook, Self::Repair, Self::Snapshot];

    /// Label in the metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Repair => "repair",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Options of every call.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Priority in the budget.
    pub priority: Priority,
    /// When the call ends at the latest.
    pub deadline: Instant,
    /// The trace that it belongs to; `None` starts one.
    pub trace: Option<Traceparent>,
}

impl CallOptions {
    /// With a priority and a timeout from now.
    pub fn within(priority: Priority, time: Duration) -> Self {
        Self { priority, deadline: Instant::now() + time, trace: None }
    }
}

/// When a response was true: between `sent` and `answered` by our clock, minus `age`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadTimes {
    /// When the request was sent.
    pub sent: SystemTime,
    /// When the last byte of the response was read.
    pub answered: SystemTime,
    /// The `Date` header, if it is there.
    pub date: Option<SystemTime>,
    /// Time in a cache on the way, although requests ask for none.
    pub age: Option<Duration>,
}

/// Addresses, credentials and limits of the APIs.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// `provider.base.url`.
    pub base_url: Url,
    /// `provider.subscription.key`.
    pub subscription_key: Secret,
    /// Timeouts, certificates and allowed hosts.
    pub transport: Transport,
    /// `invoicing.api.version`: the header `Api-Version` of invoicing calls; `None` sends none.
    pub api_version: Option<String>,
    /// `invoicing.egress.proxy`: the proxy for creating invoicing hooks.
    pub egress_proxy: Option<Secret>,
}

impl From<&Provider> for ApiOptions {
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

/// A client of all APIs. Clones share connections, the budget and what was learned about the host.
#[derive(Debug, Clone)]
pub struct Client(Arc<ClientCore>);

impl Client {
    /// Creates a client. Reads the file of certificates, if one is set.
    ///
    /// # Errors
    /// A certificate, the proxy or the subscription key cannot be used.
    pub fn new(options: &ApiOptions, budget: Budget, clock: ProviderClock) -> Result<Self, Cause> {
        Ok(Self(Arc::new(ClientCore::new(options, budget, clock)?)))
    }

    /// The accounting API and its webhooks.
    pub fn accounting(&self, tokens: Arc<dyn Tokens>) -> Accounting {
        Accounting(self.area_client(ApiArea::Accounting, tokens))
    }

    /// The payroll API.
    pub fn payroll(&self, tokens: Arc<dyn Tokens>) -> Payroll {
        Payroll(self.area_client(ApiArea::Payroll, tokens))
    }

    /// The invoicing API, with tokens such as those of [`invoicing::InvoicingTokens`].
    pub fn invoicing(&self, tokens: Arc<dyn Tokens>) -> Invoicing {
        Invoicing(self.area_client(ApiArea::Invoicing, tokens))
    }

    /// Reads of any path of an API that return every answer as it arrives.
    pub fn inspector(&self, area: ApiArea, tokens: Arc<dyn Tokens>) -> Inspector {
        Inspector(self.area_client(area, tokens))
    }

    fn area_client(&self, area: ApiArea, tokens: Arc<dyn Tokens>) -> AreaClient {
        AreaClient { core: Arc::clone(&self.0), area, tokens }
    }
}
