//! What the token endpoint says, read for what is needed and for nothing else.
//!
//! The types stand in the place of `oauth2`'s own: those refuse a whole answer for one odd member (`"3600"` in quotes, a
//! list of scopes), and with it the refresh token that came with it.

use std::fmt;

use oauth2::{AccessToken, ErrorResponse, RefreshToken, Scope, TokenResponse, basic::BasicTokenType};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use base::secret::Secret;

/// Tokens.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Answer {
    access_token: AccessToken,
    #[serde(default)]
    refresh_token: Option<RefreshToken>,
    /// Not an access token, but as secret as one.
    #[serde(default, deserialize_with = "token_or_none")]
    id_token: Option<AccessToken>,
    #[serde(default, deserialize_with = "whole_seconds")]
    expires_in: Option<u64>,
    #[serde(default, deserialize_with = "words")]
    scope: Vec<String>,
    /// Every token is sent as a bearer token, whatever its type is called.
    #[serde(skip, default = "bearer")]
    token_type: BasicTokenType,
}

impl Answer {
    pub(super) fn is_empty(&self) -> bool {
        self.access_token.secret().trim().is_empty()
    }

    pub(super) fn access(&self) -> Secret {
        Secret::new(self.access_token.secret().as_str())
    }

    /// None where it is empty: then the former one stays.
    pub(super) fn refresh(&self) -> Option<Secret> {
        self.refresh_token
            .as_ref()
            .map(|token| Secret::new(token.secret().as_str()))
            .filter(|token| !token.is_empty())
    }

    pub(super) fn identity(&self) -> Option<Secret> {
        self.id_token
            .as_ref()
            .map(|token| Secret::new(token.secret().as_str()))
            .filter(|token| !token.is_empty())
    }

    pub(super) fn expires_in_ms(&self) -> Option<i64> {
        self.expires_in.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000))
    }

    pub(super) fn scopes(&self) -> &[String] {
        &self.scope
    }
}

impl TokenResponse for Answer {
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

/// `{"error": …}`; whatever else is told is not for us.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Refusal {
    error: String,
}

impl Refusal {
    pub(super) fn code(&self) -> &str {
        &self.error
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl ErrorResponse for Refusal {}

fn bearer() -> BasicTokenType {
    BasicTokenType::Bearer
}

fn token_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AccessToken>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(AccessToken::new(text)),
        _ => None,
    })
}

/// Seconds as a number, with or without a fraction, or as text.
fn whole_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let seconds = match Value::deserialize(deserializer)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    Ok(seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0).map(|seconds| seconds as u64))
}

/// Words in one text, as the standard has it, or in a list.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(crate::auth::token::words(&Value::deserialize(deserializer)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<Answer> {
        serde_json::from_str(text).ok()
    }

    #[test]
    fn an_odd_member_costs_no_token() {
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
            let answer = answer(text).unwrap_or_else(|| panic!("{text}"));

            assert_eq!(answer.refresh().unwrap().reveal(), "r", "{text}");
            assert_eq!(answer.expires_in_ms(), seconds, "{text}");
            assert_eq!(answer.scopes().len(), scopes, "{text}");
        }
    }

    #[test]
    fn an_answer_without_a_token_is_none() {
        for text in [r#"{"refresh_token":"r"}"#, r#"{"access_token":5}"#, "[]", "null", "\"a\""] {
            assert!(answer(text).is_none(), "{text}");
        }
        assert!(answer(r#"{"access_token":" "}"#).unwrap().is_empty());
        let kept = answer(r#"{"access_token":"a","refresh_token":""}"#).unwrap();
        assert!(kept.refresh().is_none());
    }
}
