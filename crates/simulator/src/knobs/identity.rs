//! Tokens and the login.

use serde::{Deserialize, Serialize};

use super::{Effect, Latency};

knobs! {
    /// Tokens and the login.
    pub struct IdentityKnobs {
        /// Lifetime of a code, seconds.
        pub code_seconds: u64 = 300,
        /// Lifetime of an access token, seconds.
        pub access_seconds: u64 = 3_600,
        /// How refresh tokens live.
        pub refresh: RefreshLife = RefreshLife::Absolute,
        /// Lifetime of a grant from its login under [`RefreshLife::Absolute`], seconds.
        pub absolute_seconds: u64 = 30 * 86_400,
        /// Lifetime of a refresh token from its last use under [`RefreshLife::Sliding`], seconds.
        pub sliding_seconds: u64 = 15 * 86_400,
        /// Whether a refresh under [`RefreshLife::Absolute`] rotates the refresh token.
        pub rotate_absolute: bool = true,
        /// Whether reuse of a rotated refresh token ends the whole grant.
        pub reuse_ends_grant: bool = true,
        /// PKCE: refused, allowed or required.
        pub pkce: Pkce = Pkce::Allowed,
        /// Access token payloads begin with the member `$id` twice.
        pub duplicate_id_claim: bool = false,
        /// The callback has an `id_token` beside code and state, as the document's table says. The software behind the provider sends
        /// one only for a hybrid request, so the default is off.
        pub callback_id_token: bool = false,
        /// Omits `refresh_token` from the answer to a refresh that did not rotate it.
        pub omit_unrotated: bool = false,
        /// Error for a wrong client id or secret.
        pub bad_client: BadClient = BadClient::InvalidClient,
        /// Delay of requests to the token endpoint before any work.
        pub latency: Latency = Latency::None,
        /// Delay of answers of the token endpoint after the work was done. A client that leaves meanwhile never learns its new
        /// refresh token.
        pub answer_latency: Latency = Latency::None,
        /// Number of requests to the token endpoint to answer with 503 before any work.
        pub unavailable: u32 = 0,
        /// Tenant that the user chooses at a login, instead of the one of the settings. Empty: access tokens name none.
        pub tenant: Option<String> = None,
        /// Tenant in the access tokens of refreshes, instead of the one of the login. Empty: they name none.
        pub refreshed_tenant: Option<String> = None,
        /// Refuses logins: the callback has `error` with this text.
        pub refuse_login: Option<String> = None,
        /// The callback returns another state than it was sent: an attack or a confused browser.
        pub bend_state: bool = false,
        /// Identity tokens contain another nonce than the login sent.
        pub bend_nonce: bool = false,
        /// Faults of requests by programs: the first rule for the endpoint that is not used up applies.
        pub faults: Vec<IdentityFault> = Vec::new(),
    }
}

/// A fault rule of the identity provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct IdentityFault {
    /// The endpoint.
    pub on: IdentityEndpoint,
    /// What happens to the request.
    pub effect: Effect,
    /// How often it still applies; counted down, unlimited if unset.
    #[serde(default)]
    pub times: Option<u32>,
    /// Whether the work is done first: a code is used or a refresh token rotated, whatever the answer is. Effects that need the
    /// right answer do the work in any case.
    #[serde(default)]
    pub after_work: bool,
}

choices! { "camelCase";
    /// An endpoint for programs.
    pub enum IdentityEndpoint {
        /// The discovery document.
        Discovery,
        /// The key set.
        Keys,
        /// The token endpoint.
        Token,
    }

    /// How long refresh tokens live.
    pub enum RefreshLife {
        /// A fixed time from the login.
        Absolute,
        /// A time from the last use; each use rotates the token.
        Sliding,
    }

    /// Whether the client may use PKCE.
    pub enum Pkce {
        /// A `code_verifier` is refused with `invalid_grant`.
        Refused,
        /// Checked if used.
        Allowed,
        /// S256 is required.
        Required,
    }

    /// The error for a wrong client.
    pub enum BadClient {
        /// 400 `invalid_client`.
        InvalidClient,
        /// 401 `unauthorized_client`.
        UnauthorizedClient,
    }
}
