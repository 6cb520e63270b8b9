//! How the identity provider says no: `{"error": …, "error_description": …}`.

use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::answer::json_answer;

/// An OAuth error. Descriptions are fixed texts: nothing a client sent is repeated to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OAuthError {
    /// Status of the answer, where it is not a redirect.
    pub(super) status: u16,
    /// One of OAuth's error codes.
    pub(super) error: &'static str,
    /// Why, for people.
    pub(super) description: &'static str,
}

impl OAuthError {
    /// The request lacks something or cannot be read.
    pub(super) const fn request(description: &'static str) -> Self {
        Self::other("invalid_request", description)
    }

    /// The code or refresh token is not good (any more).
    pub(super) const fn grant(description: &'static str) -> Self {
        Self::other("invalid_grant", description)
    }

    /// The redirect address is missing or another one than before.
    pub(super) const fn redirect(description: &'static str) -> Self {
        Self::other("unauthorized_client", description)
    }

    /// A scope nobody knows.
    pub(super) const fn scope(description: &'static str) -> Self {
        Self::other("invalid_scope", description)
    }

    /// Any other code, answered with 400.
    pub(super) const fn other(error: &'static str, description: &'static str) -> Self {
        Self { status: 400, error, description }
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "error_description": self.description });
        json_answer(self.status, &body)
    }
}
