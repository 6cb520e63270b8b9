//! Provider addresses, OAuth client and timeouts, as a connector configures them.

use std::{path::PathBuf, time::Duration};

use base::secret::Secret;
use url::Url;

use crate::HostPolicy;

/// Where the provider is and who we are there.
#[derive(Debug, Clone)]
pub struct Provider {
    /// `provider.base.url`.
    pub base_url: Url,
    /// `provider.auth.url`.
    pub auth_url: Url,
    /// `provider.subscription.key`.
    pub subscription_key: Secret,
    /// The OAuth client.
    pub oauth: OAuth,
    /// How it is reached.
    pub transport: Transport,
}

/// How the provider is reached, and how long that may take.
#[derive(Debug, Clone)]
pub struct Transport {
    /// `provider.connect.timeout.ms`.
    pub connect: Duration,
    /// `provider.read.timeout.ms`.
    pub read: Duration,
    /// `provider.request.timeout.ms`.
    pub request: Duration,
    /// `provider.response.limit.bytes`.
    pub response_limit: usize,
    /// `provider.ssl.ca.location`.
    pub authorities: Option<PathBuf>,
    /// `provider.hosts.allowed` of the worker.
    pub hosts: HostPolicy,
}

/// The value of `oauth.audiences` that switches the check off.
pub const ANY_AUDIENCE: &str = "any";

/// The OAuth client and what it asks for.
#[derive(Debug, Clone)]
pub struct OAuth {
    /// `oauth.client.id`.
    pub client_id: String,
    /// `oauth.client.secret`.
    pub client_secret: Secret,
    /// `accounting.oauth.grant`.
    pub accounting_grant: String,
    /// `payroll.oauth.grant`.
    pub payroll_grant: String,
    /// `invoicing.oauth.grant`.
    pub invoicing_grant: String,
    /// `accounting.oauth.scopes`, else `oauth.scopes`; empty for the documented ones.
    pub accounting_scopes: Vec<String>,
    /// `payroll.oauth.scopes`, else `oauth.scopes`; empty for the documented ones.
    pub payroll_scopes: Vec<String>,
    /// `invoicing.oauth.scopes`; empty where the invoicing API is entered by mail and password.
    pub invoicing_scopes: Vec<String>,
    /// `oauth.redirect.uri`, to the letter: the provider compares it so.
    pub redirect_uri: Option<String>,
    /// `oauth.pkce`.
    pub pkce: bool,
    /// `oauth.issuers`; empty for the identity service's own.
    pub issuers: Vec<String>,
    /// `oauth.audiences`; empty for those that follow from the issuers, `ANY_AUDIENCE` alone for no check.
    pub audiences: Vec<String>,
    /// `oauth.keys.location`; `None` for the keys that the identity service publishes.
    pub keys: Option<PathBuf>,
    /// `oauth.login.lifetime.days`; `None` for ever.
    pub login_lifetime: Option<Duration>,
    /// `oauth.idle.lifetime.days`; `None` for ever.
    pub idle_lifetime: Option<Duration>,
}

/// Whether an address stays on this machine, as the simulator's does: then it needs no TLS.
pub fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
