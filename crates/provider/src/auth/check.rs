//! The check of tokens by a provider's settings: whose keys, which issuers, which audiences, by which clock.
//!
//! - Before a token is too old or too new, the provider is asked for the time, if it has not told it for a while: this
//!   machine's clock may have been wrong from the start.
//! - Before a signature is nobody's, a file of keys is looked at again.
//!
//! On failure it is told apart whether the token breaks a rule or whether the keys could not be had; only the first says
//! something about the token.

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

/// What the provider told longer ago about its time is asked for again, before a token is refused for that.
const CLOCK_FRESHNESS: Duration = Duration::from_secs(300);
/// Between two such questions.
const TIME_REQUEST_INTERVAL: Duration = Duration::from_secs(60);

/// Checks the tokens of one identity service for one client.
#[derive(Debug)]
pub struct TokenVerifier {
    keys: Keys,
    service: Identity,
    /// When the provider may be asked for the time again.
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
    /// There is no key to check it with.
    #[error(transparent)]
    Keys(#[from] keys::Error),
}

impl Error {
    /// What may be done about it.
    pub fn retry(&self) -> Retry {
        match self {
            // The clocks may come together, or another token come.
            Self::Rule(rule) if rule.is_about_time() => Retry::Later,
            Self::Rule(_) => Retry::Never,
            Self::Keys(error) => error.retry(),
        }
    }
}

/// What an identity token came with.
#[derive(Debug, Clone, Copy)]
pub struct LoginContext<'a> {
    /// What the login asked to have repeated.
    pub nonce: &'a Secret,
    /// The access token beside it.
    pub access: Option<&'a Secret>,
    /// The code beside it.
    pub code: Option<&'a Secret>,
}

impl TokenVerifier {
    /// By a provider's settings. Reads the file if `oauth.keys.location` names one.
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

    /// The claims of an access token that is good now.
    ///
    /// # Errors
    /// It is not, or cannot be checked.
    pub async fn access(&self, token: &Secret) -> Result<Claims, Error> {
        self.check(token, None).await
    }

    /// The claims of an identity token that is good now and answers this login.
    ///
    /// # Errors
    /// It is not, or cannot be checked.
    pub async fn identity(&self, token: &Secret, context: LoginContext<'_>) -> Result<Claims, Error> {
        self.check(token, Some(context)).await
    }

    /// With what an identity token came; `None` for an access token.
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
        // After the keys are there: the document that names them names the issuer.
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
        // After the keys are there: whoever sent them has also told the time.
        Ok(token::verify(parts, &keys, &rules, clock.now_ms())?)
    }

    /// Asks the provider for the time, unless it has told it recently; whether there is news.
    async fn refresh_clock(&self) -> bool {
        let is_recent = || self.service.clock().observed_age().is_some_and(|since| since < CLOCK_FRESHNESS);
        if is_recent() {
            return false;
        }
        let mut next_time_request = self.next_time_request.lock().await;
        // While this one waited for its turn, another may have asked.
        if is_recent() {
            return true;
        }
        if next_time_request.is_some_and(|moment| Instant::now() < moment) {
            return false;
        }
        *next_time_request = Some(Instant::now() + TIME_REQUEST_INTERVAL);
        // Whatever the answer is, it has a date.
        discovery::fetch(&self.service).await.ok();
        is_recent()
    }

    /// The audiences to accept; empty for every one. Unless they are set, they follow from the issuers: the identity software
    /// behind the provider adds `/resources` to its own address.
    fn audiences(&self, issuers: &[String]) -> Vec<String> {
        let resources = |issuer: &String| format!("{}/resources", issuer.trim_end_matches('/'));
        match self.audiences.as_slice() {
            [] => issuers.iter().map(resources).collect(),
            [one] if one == ANY_AUDIENCE => Vec::new(),
            named => named.to_vec(),
        }
    }

    /// The issuers to accept. Unless they are set, the service may use its own address as well as the issuer that it publishes.
    fn issuers(&self) -> Vec<String> {
        if !self.issuers.is_empty() {
            return self.issuers.clone();
        }
        self.keys.issuer().into_iter().chain([self.service.root().to_owned()]).collect()
    }
}
