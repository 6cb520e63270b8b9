//! Tokens and the login.

use serde::{Deserialize, Serialize};

use super::{Effect, Latency};

knobs! {
    /// Tokens and the login.
    pub struct IdentityKnobs {
        /// Seconds a code may wait to be redeemed.
        pub code_seconds: u64 = 300,
        /// Seconds an access token lives.
        pub access_seconds: u64 = 3_600,
        /// How refresh tokens live.
        pub refresh: RefreshLife = RefreshLife::Absolute,
        /// Seconds from the first login after which a refresh token is refused, under [`RefreshLife::Absolute`].
        pub absolute_seconds: u64 = 30 * 86_400,
        /// Seconds a refresh token lives from its last use, under [`RefreshLife::Sliding`].
        pub sliding_seconds: u64 = 15 * 86_400,
        /// Whether each refresh under [`RefreshLife::Absolute`] returns a new refresh token and ends the old one.
        pub rotate_absolute: bool = true,
        /// Whether an old refresh token used again ends the whole grant.
        pub reuse_ends_grant: bool = true,
        /// PKCE: refused, allowed or required.
        pub pkce: Pkce = Pkce::Allowed,
        /// Access token payloads begin with the member `$id` twice.
        pub duplicate_id_claim: bool = false,
        /// The callback carries an `id_token` beside code and state, as the document's table has it. The software behind the
        /// provider sends one only for a hybrid request, so the default leaves it out.
        pub callback_id_token: bool = false,
        /// Leaves `refresh_token` out of answers to a refresh that did not rotate it.
        pub omit_unrotated: bool = false,
        /// Status for a wrong client id or secret: 400 `invalid_client`, or 401 `unauthorized_client`.
        pub bad_client: BadClient = BadClient::InvalidClient,
        /// What every request to the token endpoint waits before any work, milliseconds.
        pub latency: Latency = Latency::None,
        /// What every answer of the token endpoint waits after the work was done: a client that leaves meanwhile has a token
        /// rotated and never learns the next.
        pub answer_latency: Latency = Latency::None,
        /// The next answers of the token endpoint that are lost after the work was done: the client never sees them.
        pub lose_answers: u32 = 0,
        /// The next requests to the token endpoint answered 503 before any work.
        pub unavailable: u32 = 0,
        /// What the login page says instead of granting: the callback then carries `error` with this text.
        pub refuse_login: Option<String> = None,
        /// The callback returns another state than it was given: an attack, or a mixed-up browser.
        pub bend_state: bool = false,
        /// Identity tokens carry another nonce than the login was asked for with.
        pub bend_nonce: bool = false,
        /// What goes wrong with requests of programs: the first rule for the endpoint that is not used up decides.
        pub faults: Vec<IdentityFault> = Vec::new(),
    }
}

/// One thing that goes wrong at the identity provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct IdentityFault {
    /// Where.
    pub on: Endpoint,
    /// What happens.
    pub effect: Effect,
    /// How often it still happens; counted down, for ever without it.
    #[serde(default)]
    pub times: Option<u32>,
    /// Whether the work is done first: a code is then used and a refresh token rotated, whatever is answered. Effects that
    /// spoil the right answer need it either way, and do it.
    #[serde(default)]
    pub after_work: bool,
}

choices! { "camelCase";
    /// What programs ask the identity provider for.
    pub enum Endpoint {
        /// The discovery document.
        Discovery,
        /// The key set.
        Keys,
        /// Tokens.
        Token,
    }

    /// How refresh tokens live.
    pub enum RefreshLife {
        /// A fixed time from the first login.
        Absolute,
        /// A time from the last use; each use returns a new token.
        Sliding,
    }

    /// What the client may do with PKCE.
    pub enum Pkce {
        /// A `code_verifier` is refused with `invalid_grant`.
        Refused,
        /// Checked where used.
        Allowed,
        /// S256 is needed.
        Required,
    }

    /// How a wrong client is told so.
    pub enum BadClient {
        /// 400 `invalid_client`.
        InvalidClient,
        /// 401 `unauthorized_client`.
        UnauthorizedClient,
    }
}
