//! Who issues tokens, as the refresher of grants sees it: the identity service of one OAuth client.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;

use base::{retry::Retry, secret::Secret};
use provider::{
    Provider,
    auth::{
        Area,
        identity::{self, Gate, Outcome},
    },
};

/// What is wrong with an access token.
#[derive(Debug)]
pub enum Fault {
    /// It breaks a rule that another token of this provider will break as well: the rule, and the setting behind it.
    Distrusted(String),
    /// It has ended, or its key is unknown even after a look at the keys of now: another may be better.
    Stale(String),
    /// The provider's keys cannot be had now.
    Keys {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// When to try again.
        retry: Retry,
    },
}

/// The identity service of one OAuth client.
#[async_trait]
pub trait Issuer: fmt::Debug + Send + Sync {
    /// Waits a moment where the service has failed and is left alone. Asked before a refresh is announced.
    ///
    /// # Errors
    /// It is left alone for longer than a moment.
    async fn ready(&self) -> Result<(), identity::Error> {
        Ok(())
    }

    /// Presents a refresh token, once, if the gate still allows it when the request is about to be written; listens until `end`.
    async fn refresh(&self, token: &Secret, gate: Gate, end: Instant) -> Outcome;

    /// Checks an access token; when it ends by the provider's clock, in milliseconds since 1970, if it says so.
    async fn check(&self, access: &Secret) -> Result<Option<i64>, Fault>;

    /// What time it is at the provider, in milliseconds since 1970.
    fn now_ms(&self) -> i64;
}

/// Makes them.
pub trait Issuers: fmt::Debug + Send + Sync {
    /// The one that a connector's settings name.
    ///
    /// # Errors
    /// What it takes to reach it is not usable here.
    fn issuer(&self, provider: &Provider, area: Area) -> Result<Arc<dyn Issuer>, identity::Error>;
}
