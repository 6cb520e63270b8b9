//! A grant as bytes, to be sealed: the only form in which its tokens are record down.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use base::secret::Secret;

use super::{Grant, Login, State, TokenPair};
use crate::auth::Area;

/// What was sealed is no grant: somebody else has record it, or a later version.
#[derive(Debug, thiserror::Error)]
#[error("what was encrypted is no grant")]
pub struct Unreadable(#[source] serde_json::Error);

/// Twins of the types of the state machine, which cannot be serialised by mistake.
#[derive(Serialize, Deserialize)]
struct GrantRecord<'a> {
    name: &'a str,
    area: Area,
    login: Login,
    serial: u64,
    #[serde(borrow)]
    tokens: Option<TokenPairRecord<'a>>,
    state: State,
}

#[derive(Serialize, Deserialize)]
struct TokenPairRecord<'a> {
    // Not borrowed alone: a token with an escaped character is a text of its own.
    #[serde(borrow)]
    access: std::borrow::Cow<'a, str>,
    access_since_ms: i64,
    access_expires_ms: i64,
    #[serde(borrow)]
    refresh: std::borrow::Cow<'a, str>,
    refresh_since_ms: i64,
    scopes: Vec<String>,
}

impl Grant {
    /// As bytes that are forgotten when they are dropped.
    #[must_use]
    pub(in crate::auth) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let tokens = self.tokens.as_ref().map(|tokens| TokenPairRecord {
            access: tokens.access.reveal().into(),
            access_since_ms: tokens.access_since_ms,
            access_expires_ms: tokens.access_expires_ms,
            refresh: tokens.refresh.reveal().into(),
            refresh_since_ms: tokens.refresh_since_ms,
            scopes: tokens.scopes.clone(),
        });
        let record = GrantRecord {
            name: &self.name,
            area: self.area,
            login: self.login.clone(),
            serial: self.serial,
            tokens,
            state: self.state.clone(),
        };
        // Texts and numbers always serialise; an empty value would be refused by whoever reads it.
        Zeroizing::new(serde_json::to_vec(&record).unwrap_or_default())
    }

    /// From such bytes.
    pub(in crate::auth) fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let record: GrantRecord<'_> = serde_json::from_slice(bytes).map_err(Unreadable)?;
        let tokens = record.tokens.map(|tokens| TokenPair {
            access: Secret::new(tokens.access),
            access_since_ms: tokens.access_since_ms,
            access_expires_ms: tokens.access_expires_ms,
            refresh: Secret::new(tokens.refresh),
            refresh_since_ms: tokens.refresh_since_ms,
            scopes: tokens.scopes,
        });
        Ok(Self {
            name: record.name.to_owned(),
            area: record.area,
            login: record.login,
            serial: record.serial,
            tokens,
            state: record.state,
        })
    }
}
