//! A grant as bytes, to be sealed: the only form in which its tokens are written down.

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use base::secret::Secret;

use super::{Grant, Login, Pair, State};
use crate::auth::Area;

/// What was sealed is no grant: somebody else has written it, or a later version.
#[derive(Debug, thiserror::Error)]
#[error("what was encrypted is no grant")]
pub struct Unreadable(#[source] serde_json::Error);

/// Twins of the types of the state machine, which cannot be serialised by mistake.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    name: &'a str,
    area: Area,
    login: Login,
    serial: u64,
    #[serde(borrow)]
    tokens: Option<WrittenPair<'a>>,
    state: State,
}

#[derive(Serialize, Deserialize)]
struct WrittenPair<'a> {
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
        let tokens = self.tokens.as_ref().map(|tokens| WrittenPair {
            access: tokens.access.reveal().into(),
            access_since_ms: tokens.access_since_ms,
            access_expires_ms: tokens.access_expires_ms,
            refresh: tokens.refresh.reveal().into(),
            refresh_since_ms: tokens.refresh_since_ms,
            scopes: tokens.scopes.clone(),
        });
        let written = Written {
            name: &self.name,
            area: self.area,
            login: self.login.clone(),
            serial: self.serial,
            tokens,
            state: self.state.clone(),
        };
        // Texts and numbers always serialise; an empty value would be refused by whoever reads it.
        Zeroizing::new(serde_json::to_vec(&written).unwrap_or_default())
    }

    /// From such bytes.
    pub(in crate::auth) fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let written: Written<'_> = serde_json::from_slice(bytes).map_err(Unreadable)?;
        let tokens = written.tokens.map(|tokens| Pair {
            access: Secret::new(tokens.access),
            access_since_ms: tokens.access_since_ms,
            access_expires_ms: tokens.access_expires_ms,
            refresh: Secret::new(tokens.refresh),
            refresh_since_ms: tokens.refresh_since_ms,
            scopes: tokens.scopes,
        });
        Ok(Self {
            name: written.name.to_owned(),
            area: written.area,
            login: written.login,
            serial: written.serial,
            tokens,
            state: written.state,
        })
    }
}
