//! OAuth errors: `{"error": …, "error_description": …}`.

use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::answer::json_answer;

/// An OAuth error. Descriptions are constants, so nothing a client sent is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OAuthError {
    /// HTTP status, where it is not a redirect.
    pub(super) status: u16,
    /// An OAuth error code.
    pub(super) error: &'static str,
    /// The reason, for people.
    pub(super) description: &'static str,
}

impl OAuthError {
    /// The request is incomplete or malformed.
    pub(super) const fn request(description: &'static str) -> Self {
        Self::other("invalid_request", description)
    }

    /// The code or refresh token is not valid.
    pub(super) const fn grant(description: &'static str) -> Self {
        Self::other("invalid_grant", description)
    }

    /// The redirect address is missing or differs.
    pub(super) const fn redirect(description: &'static str) -> Self {
        Self::other("unauthorized_client", description)
    }

    /// A scope is unknown.
    pub(super) const fn scope(description: &'static str) -> Self {
        Self::other("invalid_scope", description)
    }

    /// Any other error code, with status 400.
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
