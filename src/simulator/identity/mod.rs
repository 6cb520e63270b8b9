//! The identity provider: login, codes, tokens, keys.

use std::sync::Arc;

use axum::Router;

use super::{Provider, clock::Ticks, settings::Settings};

/// The identity provider's state.
#[derive(Debug)]
pub struct Identity {}

/// Who calls an API.
#[derive(Debug, Clone)]
pub struct Caller {
    /// `sub` of the token; for invoicing the login's mail.
    pub subject: String,
    /// Scopes of the token; empty for invoicing.
    pub scopes: Arc<[String]>,
    /// Number of the invoicing company chosen, for invoicing tokens.
    pub invoicing_company: Option<u32>,
}

/// What a bearer token is worth.
#[derive(Debug, Clone)]
pub enum Standing {
    /// Good.
    Valid(Caller),
    /// It was good once.
    Expired,
    /// Never issued here, or revoked.
    Unknown,
}

/// A token that was issued, for those who compare.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Issued {
    /// Number of the grant it belongs to: one login, one grant.
    pub grant: u64,
    /// `access`, `refresh`, `id`, `code`.
    pub kind: &'static str,
    /// The token itself.
    pub token: String,
    /// When it was issued.
    pub at: Ticks,
    /// When it ends.
    pub expires: Ticks,
    /// When it was redeemed, rotated out or revoked.
    pub used: Option<Ticks>,
}

impl Identity {
    /// With a fresh signing key.
    ///
    /// # Errors
    /// No key could be made.
    pub fn new(settings: &Settings) -> Result<Self, super::Error> {
        Ok(Self {})
    }

    /// What an access token is worth now. Cheap: tokens issued here are remembered, not verified again.
    #[must_use]
    pub fn check(&self, bearer: &str, now: Ticks) -> Standing {
        Standing::Valid(Caller { subject: "stub".into(), scopes: Arc::new([]), invoicing_company: None })
    }

    /// Tokens are signed with a new key from now on. The old one stays in the key set if `keep_old`.
    ///
    /// # Errors
    /// No key could be made.
    pub fn rotate_keys(&self, keep_old: bool) -> Result<(), super::Error> {
        todo!()
    }

    /// Ends every grant: refresh tokens are refused as `invalid_grant`, access tokens are unknown.
    pub fn revoke_all(&self, now: Ticks) {
        todo!()
    }

    /// An access token (and its refresh token) without the login, for tests of other parts: accounting or payroll scopes.
    pub fn grant(&self, provider: &Provider, scopes: &[&str]) -> (String, String) {
        todo!()
    }

    /// Every token issued, in order, within the journal's limit.
    #[must_use]
    pub fn issued(&self) -> Vec<Issued> {
        todo!()
    }
}

/// Routes under `/auth/core`.
pub fn router() -> Router<Arc<Provider>> {
    Router::new()
}
