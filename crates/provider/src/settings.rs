//! Provider settings of a connector: addresses, OAuth client and timeouts.

use std::{path::PathBuf, time::Duration};

use base::secret::Secret;
use url::Url;

use crate::HostPolicy;

/// Addresses and credentials of the provider.
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
    /// Timeouts, certificates and allowed hosts.
    pub transport: Transport,
}

/// Timeouts and limits of connections to the provider.
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

/// The value of `oauth.audiences` that accepts every audience.
pub const ANY_AUDIENCE: &str = "any";

/// The OAuth client and its scopes.
#[derive(Debug, Clone)]
pub struct OAuth {
    /// `oauth.client.id`.
    pub client_id: String,
    /// `oauth.client.secret`.
    pub client_secret: Secret,
    /// Grant and scopes of each area.
    pub logins: AreaLogins,
    /// `oauth.redirect.uri`, unchanged, because the provider compares it as text.
    pub redirect_uri: Option<String>,
    /// `oauth.pkce`.
    pub pkce: bool,
    /// `oauth.issuers`; empty for the identity service's own.
    pub issuers: Vec<String>,
    /// `oauth.audiences`; empty derives them from the issuers, `ANY_AUDIENCE` alone accepts all.
    pub audiences: Vec<String>,
    /// `oauth.keys.location`; `None` for the published keys.
    pub keys: Option<PathBuf>,
    /// `oauth.login.lifetime.days`; `None` for no limit.
    pub login_lifetime: Option<Duration>,
    /// `oauth.idle.lifetime.days`; `None` for no limit.
    pub idle_lifetime: Option<Duration>,
}

/// The login of each area.
#[derive(Debug, Clone)]
pub struct AreaLogins {
    /// Accounting.
    pub accounting: AreaLogin,
    /// Payroll.
    pub payroll: AreaLogin,
    /// Invoicing.
    pub invoicing: AreaLogin,
}

/// The login for one area.
#[derive(Debug, Clone)]
pub struct AreaLogin {
    /// `accounting.oauth.grant` and so on.
    pub grant: String,
    /// `accounting.oauth.scopes` or `payroll.oauth.scopes`, else `oauth.scopes`; empty for the documented scopes.
    /// `invoicing.oauth.scopes`; empty if the invoicing API is used with mail and password.
    pub scopes: Vec<String>,
}

/// Whether an address is on this machine, like the simulator's, and therefore needs no TLS.
pub fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
