//! The bytes of a grant before encryption, the only form in which its tokens are serialized.

use serde::{Deserialize, Serialize, de};
use zeroize::Zeroizing;

use base::secret::Secret;

use super::{
    Grant, GrantLogin, GrantState, LossReason, RefreshIntent, RefreshOrigin, TenantMismatch, TokenPair,
};
use crate::auth::Area;

/// The decrypted bytes are not a grant: written by something else, or by a later version.
#[derive(Debug, thiserror::Error)]
#[error("the decrypted bytes are not a grant")]
pub struct InvalidGrantBytes(#[source] serde_json::Error);

/// Copies of the grant types, which cannot be serialized by mistake.
#[derive(Serialize, Deserialize)]
struct GrantJson<'a> {
    name: &'a str,
    area: Area,
    login: GrantLogin,
    serial: u64,
    #[serde(borrow)]
    tokens: Option<TokenPairJson<'a>>,
    state: StateJson,
}

/// The state without its tokens, which are a field of the grant in the topic.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
enum StateJson {
    Ready,
    Refreshing {
        intent: RefreshIntent,
    },
    Lost {
        origin: Option<RefreshOrigin>,
        /// The error code, or the message of `tenant`, which earlier versions show.
        reason: String,
        at_ms: i64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<TenantMismatch>,
    },
    Out {
        at_ms: i64,
    },
}

#[derive(Serialize, Deserialize)]
struct TokenPairJson<'a> {
    // `Cow`, because a token with an escaped character cannot be borrowed.
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
    /// Serializes the grant into bytes that are wiped on drop.
    #[must_use]
    pub(in crate::auth) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let tokens = self.tokens().map(|tokens| TokenPairJson {
            access: tokens.access.reveal().into(),
            access_since_ms: tokens.access_since_ms,
            access_expires_ms: tokens.access_expires_ms,
            refresh: tokens.refresh.reveal().into(),
            refresh_since_ms: tokens.refresh_since_ms,
            scopes: tokens.scopes.clone(),
        });
        let state = match &self.state {
            GrantState::Ready { .. } => StateJson::Ready,
            GrantState::Refreshing { intent, .. } => StateJson::Refreshing { intent: intent.clone() },
            GrantState::Lost { origin, reason, at_ms, .. } => StateJson::Lost {
                origin: origin.clone(),
                reason: reason.to_string(),
                at_ms: *at_ms,
                tenant: match reason {
                    LossReason::Refused(_) => None,
                    LossReason::Tenant(mismatch) => Some(mismatch.clone()),
                },
            },
            GrantState::LoggedOut { at_ms } => StateJson::Out { at_ms: *at_ms },
        };
        let record = GrantJson {
            name: &self.name,
            area: self.area,
            login: self.login.clone(),
            serial: self.serial,
            tokens,
            state,
        };
        // Serializing strings and numbers cannot fail; empty bytes would be rejected when read.
        Zeroizing::new(serde_json::to_vec(&record).unwrap_or_default())
    }

    /// Reads such bytes.
    pub(in crate::auth) fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidGrantBytes> {
        let record: GrantJson<'_> = serde_json::from_slice(bytes).map_err(InvalidGrantBytes)?;
        let tokens = record.tokens.map(|tokens| TokenPair {
            access: Secret::new(tokens.access),
            access_since_ms: tokens.access_since_ms,
            access_expires_ms: tokens.access_expires_ms,
            refresh: Secret::new(tokens.refresh),
            refresh_since_ms: tokens.refresh_since_ms,
            scopes: tokens.scopes,
        });
        let state = match (record.state, tokens) {
            (StateJson::Ready, Some(tokens)) => GrantState::Ready { tokens },
            (StateJson::Refreshing { intent }, Some(tokens)) => GrantState::Refreshing { tokens, intent },
            (StateJson::Lost { origin, reason, at_ms, tenant }, Some(tokens)) => {
                let reason = tenant.map_or(LossReason::Refused(reason), LossReason::Tenant);
                GrantState::Lost { tokens, origin, reason, at_ms }
            }
            (StateJson::Out { at_ms }, _) => GrantState::LoggedOut { at_ms },
            (_, None) => return Err(InvalidGrantBytes(de::Error::missing_field("tokens"))),
        };
        Ok(Self {
            name: record.name.to_owned(),
            area: record.area,
            login: record.login,
            serial: record.serial,
            state,
        })
    }
}
