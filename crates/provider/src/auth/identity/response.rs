//! The token endpoint's response, read only as far as needed.
//!
//! These types replace those of `oauth2`, which reject a whole response for one bad member (`"3600"` as a string, a list of
//! scopes), and with it the refresh token.

use oauth2::{AccessToken, ErrorResponse, RefreshToken, Scope, TokenResponse, basic::BasicTokenType};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use base::secret::Secret;

use super::Granted;
use crate::auth::token;

/// A successful response.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct TokenBody {
    access_token: AccessToken,
    #[serde(default)]
    refresh_token: Option<RefreshToken>,
    /// Not an access token, but as secret.
    #[serde(default, deserialize_with = "token_or_none")]
    id_token: Option<AccessToken>,
    #[serde(default, deserialize_with = "whole_seconds")]
    expires_in: Option<u64>,
    #[serde(default, deserialize_with = "words")]
    scope: Vec<String>,
    /// Every token is sent as a bearer token, whatever type the response names.
    #[serde(skip, default = "bearer")]
    token_type: BasicTokenType,
}

impl TokenBody {
    /// The tokens, at this time of the provider's clock; `None` if the access token is empty.
    pub(super) fn granted(self, now_ms: i64) -> Option<Granted> {
        let access = Some(self.access_token.into_secret()).filter(|text| !text.trim().is_empty())?;
        let expires_ms = self.expires_in.map(|seconds| {
            let wait_ms = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
            now_ms.saturating_add(wait_ms)
        });
        // An empty token counts as missing: the old refresh token stays.
        let secret = |text: String| Some(Secret::new(text)).filter(|token| !token.is_empty());
        Some(Granted {
            // `expires_in` and the token's own `exp` may differ: use the earlier one.
            access_expires_ms: [expires_ms, token::unverified_expiry_ms(&access)].into_iter().flatten().min(),
            access: Secret::new(access),
            refresh: self.refresh_token.map(RefreshToken::into_secret).and_then(secret),
            identity: self.id_token.map(AccessToken::into_secret).and_then(secret),
            scopes: self.scope,
        })
    }
}

impl TokenResponse for TokenBody {
    type TokenType = BasicTokenType;

    fn access_token(&self) -> &AccessToken {
        &self.access_token
    }

    fn token_type(&self) -> &BasicTokenType {
        &self.token_type
    }

    fn expires_in(&self) -> Option<std::time::Duration> {
        self.expires_in.map(std::time::Duration::from_secs)
    }

    fn refresh_token(&self) -> Option<&RefreshToken> {
        self.refresh_token.as_ref()
    }

    fn scopes(&self) -> Option<&Vec<Scope>> {
        None
    }
}

/// `{"error": …}`; other members are ignored.
#[derive(Debug, Deserialize, Serialize, thiserror::Error)]
#[error("refused")]
pub(super) struct OAuthErrorBody {
    pub(super) error: String,
}

impl ErrorResponse for OAuthErrorBody {}

fn bearer() -> BasicTokenType {
    BasicTokenType::Bearer
}

fn token_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AccessToken>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(AccessToken::new(text)),
        _ => None,
    })
}

/// Seconds as a number, with or without a fraction, or as a string.
fn whole_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let seconds = match Value::deserialize(deserializer)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    Ok(seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0).map(|seconds| seconds as u64))
}

/// Words in one string, as the standard has it, or in a list.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(token::words(&Value::deserialize(deserializer)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// The tokens of a response at time 0.
    fn granted(text: &str) -> Option<Granted> {
        serde_json::from_str::<TokenBody>(text).ok()?.granted(0)
    }

    #[test]
    fn a_bad_member_costs_no_token() {
        for (text, seconds, scopes) in [
            (r#"{"access_token":"a","refresh_token":"r","expires_in":3600}"#, Some(3_600_000), 0),
            (r#"{"access_token":"a","refresh_token":"r","expires_in":"3600"}"#, Some(3_600_000), 0),
            (r#"{"access_token":"a","refresh_token":"r","expires_in":3600.5}"#, Some(3_600_000), 0),
            (r#"{"access_token":"a","refresh_token":"r","expires_in":null,"token_type":7}"#, None, 0),
            (r#"{"access_token":"a","refresh_token":"r","expires_in":-1,"id_token":{}}"#, None, 0),
            (r#"{"access_token":"a","refresh_token":"r","expires_in":"soon","scope":"b c"}"#, None, 2),
            (r#"{"access_token":"a","refresh_token":"r","scope":["b","c",3]}"#, None, 2),
            (r#"{"access_token":"a","refresh_token":"r","scope":17}"#, None, 0),
        ] {
            let granted = granted(text).unwrap_or_else(|| panic!("{text}"));

            assert_eq!(granted.refresh.unwrap().reveal(), "r", "{text}");
            assert_eq!(granted.access_expires_ms, seconds, "{text}");
            assert_eq!(granted.scopes.len(), scopes, "{text}");
        }
    }

    #[test]
    fn a_response_without_token_is_rejected() {
        let empty = r#"{"access_token":" "}"#;
        for text in [r#"{"refresh_token":"r"}"#, r#"{"access_token":5}"#, "[]", "null", "\"a\"", empty] {
            assert!(granted(text).is_none(), "{text}");
        }
        let kept = granted(r#"{"access_token":"a","refresh_token":""}"#).unwrap();
        assert!(kept.refresh.is_none());
    }
}
