//! The provider's identity service as an [`Issuer`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use base::{retry::Chain, secret::Secret};
use provider::{
    Provider,
    auth::{
        Area,
        check::{self, Check},
        grant::Issued,
        identity::{self, Gate, Granted, Identity, Outcome},
        keys,
    },
};

use super::{
    hosts::{Host, Hosts},
    issuer::{Fault, Issuer, Issuers},
};

/// So much longer than it has to a refresh leaves a service alone that fails: whoever else was turned away meanwhile is back by
/// then, and finds out whether it answers.
const COURTESY: Duration = Duration::from_millis(250);

/// Makes issuers of connectors' settings.
#[derive(Debug)]
pub struct Services {
    /// What is known about their hosts.
    pub hosts: Arc<Hosts>,
}

impl Issuers for Services {
    fn issuer(&self, provider: &Provider, _: Area) -> Result<Arc<dyn Issuer>, identity::Error> {
        let host = self.hosts.of(&provider.auth_url);
        let identity = Identity::sharing(provider, host.clock.clone(), Arc::clone(&host.circuit))?;
        let check = Check::new(&identity, &provider.oauth).map_err(|error| identity::Error::Setup {
            what: Chain(&error).to_string(),
            source: Box::new(error),
        })?;
        Ok(Arc::new(Service { identity, check, _host: host }))
    }
}

/// The identity service of one client.
#[derive(Debug)]
struct Service {
    identity: Identity,
    check: Check,
    /// Keeps it known to others who ask it.
    _host: Arc<Host>,
}

#[async_trait]
impl Issuer for Service {
    async fn ready(&self) -> Result<(), identity::Error> {
        self.identity.ready().await.map_err(|error| match error {
            identity::Error::Resting { left: Some(left) } => {
                identity::Error::Resting { left: Some(left + COURTESY) }
            }
            error => error,
        })
    }

    async fn refresh(&self, token: &Secret, gate: Gate, end: Instant) -> Outcome {
        self.identity.refresh(token, gate, end).await
    }

    async fn check(&self, access: &Secret) -> Result<Option<i64>, Fault> {
        let error = match self.check.access(access).await {
            Ok(claims) => return Ok(Some(claims.ends_ms)),
            Err(error) => error,
        };
        Err(match &error {
            check::Error::Rule(rule) if !rule.is_about_time() => Fault::Distrusted(rule.to_string()),
            check::Error::Rule(_) | check::Error::Keys(keys::Error::Unknown { .. }) => {
                Fault::Stale(error.to_string())
            }
            _ => Fault::Keys { retry: error.retry(), source: Box::new(error) },
        })
    }

    fn now_ms(&self) -> i64 {
        self.identity.clock().now_ms()
    }
}

/// What a grant keeps of an answer, at this time of the provider's clock.
pub fn issued(granted: Granted, at_ms: i64) -> Issued {
    let left = |end: i64| Duration::from_millis(u64::try_from(end.saturating_sub(at_ms)).unwrap_or_default());
    Issued {
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
    fn a_token_that_has_ended_by_now_is_due_at_once_and_not_in_an_hour() {
        let granted = |access_expires_ms| Granted {
            access: "access".into(),
            access_expires_ms,
            refresh: Some("refresh".into()),
            identity: None,
            scopes: Vec::new(),
        };

        let lives = [Some(61_000), Some(59_000), None].map(|end| issued(granted(end), 60_000).expires_in);

        assert_eq!(lives, [Some(Duration::from_secs(1)), Some(Duration::ZERO), None]);
    }
}
