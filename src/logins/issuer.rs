//! The identity service of one OAuth client, as the tasks of grants use it, and the clock and circuit of its host.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use base::{circuit::Circuit, metrics::ApiHost, retry::Retry, secret::Secret};
use provider::{
    Provider,
    auth::{
        check::{self, TokenVerifier},
        grant::IssuedTokens,
        http::{ClientSetupError, ProviderClock},
        identity::{self, Gate, Granted, Identity, RefreshOutcome},
        keys,
    },
};

/// Extra wait of a refresh after the circuit of a failed service may close: other requests probe the service first.
const READY_MARGIN: Duration = Duration::from_millis(250);

/// Why an access token fails the check.
#[derive(Debug)]
pub enum TokenFault {
    /// It breaks a rule that the next token would break too: the rule, and the setting behind it.
    Distrusted(String),
    /// It has expired, or its key is unknown even after fetching the current keys. The next token may pass.
    Stale(String),
    /// The provider's keys cannot be fetched now.
    Keys {
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// When to retry.
        retry: Retry,
    },
}

/// The identity service of one OAuth client.
#[async_trait]
pub trait Issuer: fmt::Debug + Send + Sync {
    /// Waits briefly while the circuit of a failed service is open. Called before a refresh is announced.
    ///
    /// # Errors
    /// The circuit stays open for longer.
    async fn ready(&self) -> Result<(), identity::Error> {
        Ok(())
    }

    /// Presents a refresh token, once, if the gate still allows it when the request is about to be written; waits for the answer
    /// until `end`.
    async fn refresh(&self, token: &Secret, gate: Gate, end: Instant) -> RefreshOutcome;

    /// Checks an access token. Returns when it expires by the provider's clock, in milliseconds since 1970, if it says so.
    async fn check(&self, access: &Secret) -> Result<Option<i64>, TokenFault>;

    /// The provider's time, in milliseconds since 1970.
    fn now_ms(&self) -> i64;
}

/// Makes issuers from connectors' settings.
pub trait IssuerFactory: fmt::Debug + Send + Sync {
    /// The issuer for a connector's settings.
    ///
    /// # Errors
    /// The issuer cannot be built from these settings on this worker.
    fn issuer(&self, provider: &Provider) -> Result<Arc<dyn Issuer>, identity::Error>;
}

/// Shared state of one identity service.
#[derive(Debug)]
pub struct IdentityHost {
    /// Its clock.
    pub clock: ProviderClock,
    /// Its circuit breaker.
    pub circuit: Arc<Circuit>,
}

/// The identity hosts in use on this worker. A host is dropped with its last user.
#[derive(Debug)]
pub struct IdentityHosts {
    tolerance: Duration,
    known: Mutex<BTreeMap<String, Weak<IdentityHost>>>,
}

impl IdentityHosts {
    /// `tolerance` is the clock difference above which the worker warns: `clock.skew.max.ms`.
    pub fn new(tolerance: Duration) -> Self {
        Self { tolerance, known: Mutex::default() }
    }

    /// The host of `provider.auth.url`.
    pub fn of(&self, auth_url: &Url) -> Arc<IdentityHost> {
        let mut known = self.known.lock();
        known.retain(|_, host| host.strong_count() > 0);
        if let Some(host) = known.get(auth_url.as_str()).and_then(Weak::upgrade) {
            return host;
        }
        let host = Arc::new(IdentityHost {
            clock: ProviderClock::new(self.tolerance),
            circuit: Arc::new(Circuit::new(ApiHost::Identity)),
        });
        known.insert(auth_url.as_str().to_owned(), Arc::downgrade(&host));
        host
    }
}

impl IssuerFactory for IdentityHosts {
    fn issuer(&self, provider: &Provider) -> Result<Arc<dyn Issuer>, identity::Error> {
        let host = self.of(&provider.auth_url);
        let identity = Identity::sharing(provider, host.clock.clone(), Arc::clone(&host.circuit))?;
        let check = TokenVerifier::new(&identity, &provider.oauth)
            .map_err(ClientSetupError::wrap("cannot verify access tokens"))?;
        Ok(Arc::new(IdentityService { identity, check, _host: host }))
    }
}

/// The identity service of one client.
#[derive(Debug)]
struct IdentityService {
    identity: Identity,
    check: TokenVerifier,
    /// Keeps the host's clock and circuit alive for its other users.
    _host: Arc<IdentityHost>,
}

#[async_trait]
impl Issuer for IdentityService {
    async fn ready(&self) -> Result<(), identity::Error> {
        self.identity.ready().await.map_err(|error| match error {
            identity::Error::Resting { left: Some(left) } => {
                identity::Error::Resting { left: Some(left + READY_MARGIN) }
            }
            error => error,
        })
    }

    async fn refresh(&self, token: &Secret, gate: Gate, end: Instant) -> RefreshOutcome {
        self.identity.refresh(token, gate, end).await
    }

    async fn check(&self, access: &Secret) -> Result<Option<i64>, TokenFault> {
        let error = match self.check.access(access).await {
            Ok(claims) => return Ok(Some(claims.ends_ms)),
            Err(error) => error,
        };
        Err(match &error {
            check::Error::Rule(rule) if !rule.is_about_time() => TokenFault::Distrusted(rule.to_string()),
            check::Error::Rule(_) | check::Error::Keys(keys::Error::Unknown { .. }) => {
                TokenFault::Stale(error.to_string())
            }
            _ => TokenFault::Keys { retry: error.retry(), source: Box::new(error) },
        })
    }

    fn now_ms(&self) -> i64 {
        self.identity.clock().now_ms()
    }
}

/// The tokens of a response that arrived at this time of the provider's clock.
pub fn issued_tokens(granted: Granted, at_ms: i64) -> IssuedTokens {
    let left = |end: i64| Duration::from_millis(u64::try_from(end.saturating_sub(at_ms)).unwrap_or_default());
    IssuedTokens {
        access: granted.access,
        expires_in: granted.access_expires_ms.map(left),
        refresh: granted.refresh,
        scopes: (!granted.scopes.is_empty()).then_some(granted.scopes),
        at_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_token_is_due_at_once() {
        let granted = |access_expires_ms| Granted {
            access: "access".into(),
            access_expires_ms,
            refresh: Some("refresh".into()),
            identity: None,
            scopes: Vec::new(),
        };

        let lives =
            [Some(61_000), Some(59_000), None].map(|end| issued_tokens(granted(end), 60_000).expires_in);

        assert_eq!(lives, [Some(Duration::from_secs(1)), Some(Duration::ZERO), None]);
    }
}
