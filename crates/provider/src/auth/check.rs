//! Verifies tokens by a provider's settings: keys, issuers, audiences and clock.
//!
//! - Before a token is rejected for its times, the provider's time is fetched if it was not observed recently: this machine's
//!   clock may have been wrong from the start.
//! - Before a signature is rejected, a file of keys is read again.
//!
//! On failure: [`Error::Rule`] means that the token breaks a rule; [`Error::Keys`] says nothing about the token.

use std::{path::Path, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use base::{
    metrics::{self, TokenCheck},
    retry::Retry,
    secret::Secret,
};

use super::{
    discovery,
    http::milliseconds,
    identity::Identity,
    keys::{self, Keys},
    token::{self, Claims, TokenParts, TokenPurpose, TokenRule, TokenRules},
};
use crate::{ANY_AUDIENCE, OAuth};

/// Older observations of the provider's clock are refreshed before a token is rejected for its times.
const CLOCK_FRESHNESS: Duration = Duration::from_secs(300);
/// Minimum time between two such requests.
const TIME_REQUEST_INTERVAL: Duration = Duration::from_secs(60);

/// Verifies the tokens of one identity service for one client.
#[derive(Debug)]
pub struct TokenVerifier {
    keys: Keys,
    service: Identity,
    /// When the provider's time may be requested again.
    next_time_request: Mutex<Option<Instant>>,
    client: String,
    issuers: Vec<String>,
    audiences: Vec<String>,
}

/// Why a token is not trusted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It breaks a rule.
    #[error(transparent)]
    Rule(#[from] TokenRule),
    /// There is no key to verify it with.
    #[error(transparent)]
    Keys(#[from] keys::Error),
}

impl Error {
    /// Whether and when a retry can help.
    pub fn retry(&self) -> Retry {
        match self {
            // The clocks may converge, or the next token may pass.
            Self::Rule(rule) if rule.is_about_time() => Retry::Later,
            Self::Rule(_) => Retry::Never,
            Self::Keys(error) => error.retry(),
        }
    }
}

/// What an identity token must match.
#[derive(Debug, Clone, Copy)]
pub struct LoginContext<'a> {
    /// Nonce of the login.
    pub nonce: &'a Secret,
    /// The access token that came with it.
    pub access: Option<&'a Secret>,
    /// The code that came with it.
    pub code: Option<&'a Secret>,
}

impl TokenVerifier {
    /// Creates a verifier from a provider's settings. Reads the file of `oauth.keys.location`, if it is set.
    ///
    /// # Errors
    /// The file of keys cannot be used.
    pub fn new(identity: &Identity, oauth: &OAuth) -> Result<Self, keys::Error> {
        let keys = match oauth.keys.as_deref() {
            Some(path) => Keys::from_file(Path::new(path))?,
            None => Keys::discovered(identity.clone()),
        };
        Ok(Self {
            keys,
            service: identity.clone(),
            next_time_request: Mutex::default(),
            client: oauth.client_id.clone(),
            issuers: oauth.issuers.clone(),
            audiences: oauth.audiences.clone(),
        })
    }

    /// Verifies an access token and returns its claims.
    ///
    /// # Errors
    /// The token is not valid now, or cannot be verified.
    pub async fn access(&self, token: &Secret) -> Result<Claims, Error> {
        self.check(token, None).await
    }

    /// Verifies the identity token of a login and returns its claims.
    ///
    /// # Errors
    /// The token is not valid now or belongs to another login, or cannot be verified.
    pub async fn identity(&self, token: &Secret, context: LoginContext<'_>) -> Result<Claims, Error> {
        self.check(token, Some(context)).await
    }

    /// `context` is `None` for access tokens.
    async fn check(&self, token: &Secret, context: Option<LoginContext<'_>>) -> Result<Claims, Error> {
        let checked = self.try_check(token, context).await;
        metrics::token_checked(match &checked {
            Ok(_) => TokenCheck::Good,
            Err(Error::Rule(rule)) => rule.outcome(),
            Err(Error::Keys(_)) => TokenCheck::NoKey,
        });
        checked
    }

    async fn try_check(&self, token: &Secret, context: Option<LoginContext<'_>>) -> Result<Claims, Error> {
        let parts = TokenParts::read(token.reveal())?;
        let checked = self.verify(&parts, context).await;
        let retry_check = match &checked {
            Err(Error::Rule(rule)) if rule.is_about_time() => self.refresh_clock().await,
            Err(Error::Rule(TokenRule::Signature)) => self.keys.have_changed().await,
            _ => false,
        };
        if retry_check { self.verify(&parts, context).await } else { checked }
    }

    async fn verify(
        &self,
        parts: &TokenParts<'_>,
        context: Option<LoginContext<'_>>,
    ) -> Result<Claims, Error> {
        let keys = self.keys.find(parts.kid.as_deref(), parts.x5t.as_deref()).await?;
        // Only after the keys were fetched: discovery names the issuer too.
        let (issuers, clock) = (self.issuers(), self.service.clock());
        let audiences = self.audiences(&issuers);
        let client = self.client.as_str();
        let purpose = match context {
            None => TokenPurpose::Access { client, audiences: &audiences },
            Some(context) => TokenPurpose::Identity {
                client,
                nonce: context.nonce.reveal(),
                access: context.access.map(Secret::reveal),
                code: context.code.map(Secret::reveal),
            },
        };
        let rules = TokenRules { issuers: &issuers, leeway_ms: milliseconds(clock.tolerance()), purpose };
        // Only after the keys were fetched: their response updates the clock.
        Ok(token::verify(parts, &keys, &rules, clock.now_ms())?)
    }

    /// Fetches the provider's time, unless it was observed recently. Whether there is a newer observation.
    async fn refresh_clock(&self) -> bool {
        let is_recent = || self.service.clock().observed_age().is_some_and(|since| since < CLOCK_FRESHNESS);
        if is_recent() {
            return false;
        }
        let mut next_time_request = self.next_time_request.lock().await;
        // Another caller may have fetched it while this one waited for the lock.
        if is_recent() {
            return true;
        }
        if next_time_request.is_some_and(|moment| Instant::now() < moment) {
            return false;
        }
        *next_time_request = Some(Instant::now() + TIME_REQUEST_INTERVAL);
        // Any response has a `Date`.
        discovery::fetch(&self.service).await.ok();
        is_recent()
    }

    /// Accepted audiences; empty accepts all. By default they follow from the issuers: the provider's identity software appends
    /// `/resources` to its own address.
    fn audiences(&self, issuers: &[String]) -> Vec<String> {
        let resources = |issuer: &String| format!("{}/resources", issuer.trim_end_matches('/'));
        match self.audiences.as_slice() {
            [] => issuers.iter().map(resources).collect(),
            [one] if one == ANY_AUDIENCE => Vec::new(),
            named => named.to_vec(),
        }
    }

    /// Accepted issuers. By default the published issuer, and the service's own address.
    fn issuers(&self) -> Vec<String> {
        if !self.issuers.is_empty() {
            return self.issuers.clone();
        }
        self.keys.issuer().into_iter().chain([self.service.0.root.clone()]).collect()
    }
}
