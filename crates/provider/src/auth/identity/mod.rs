//! The identity service: takes codes and refresh tokens, returns tokens.
//!
//! ```text
//! code, refresh token ──▶ oauth2: builds the form ──▶ transport: sends once ──▶ oauth2: parses ──▶ Granted, or another outcome
//! ```
//!
//! - Each call presents its token at most once: no pooled connection, no retry, no redirect, HTTP/1.1 only. The [`Gate`] is
//!   called just before the body is written, so that a process that was frozen while connecting sends nothing.
//! - [`RefreshOutcome`] says whether the provider may have acted; callers never guess it from an error.
//! - Only the needed members of a response are read. Otherwise a bad member would cost a rotated token.
//! - Errors hold nothing of a body. `oauth2` keeps bodies in its parse errors; they are dropped unread.
//! - After repeated failures the service rests ([`circuit`](base::circuit)), for all that share its circuit. A refresh is used as
//!   the probe only if no other request is available.

mod response;
mod transport;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet, EndpointSet,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RefreshToken, RequestTokenError, Scope,
    StandardRevocableToken, TokenUrl,
    basic::{BasicRevocationErrorResponse, BasicTokenIntrospectionResponse},
};
use tokio::time::Instant;
use url::Url;

use base::{
    circuit::{Circuit, RequestPermit, StaysOpen},
    metrics::{self, ApiArea, ApiHost},
    retry::Retry,
    secret::Secret,
};

use self::{
    response::{OAuthErrorBody, TokenBody},
    transport::{ExchangeFailure, HttpClients, TokenRequest},
};
use super::http::{ClientSetupError, ProviderClock};
use crate::{HostPolicy, Provider};

/// How long a request waits for an open circuit. Callers that can wait longer come back.
const MAX_CIRCUIT_WAIT: Duration = Duration::from_secs(2);

/// Called just before a token is sent; `false` stops it.
pub type Gate = Arc<dyn Fn() -> bool + Send + Sync>;

type Client = oauth2::Client<
    OAuthErrorBody,
    TokenBody,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// The identity service for one OAuth client. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Identity(pub(super) Arc<IdentityShared>);

#[derive(Debug)]
pub(super) struct IdentityShared {
    client: Client,
    clients: HttpClients,
    /// `{auth_url}/auth/core`, the base of the service's paths, which it may also use as its issuer.
    pub(super) root: String,
    /// `provider.auth.url`.
    pub(super) address: Url,
    /// Hosts that may be reached.
    pub(super) hosts: HostPolicy,
    /// Timeout of a code exchange.
    limit: Duration,
}

/// Parameters of an authorization URL.
#[derive(Debug)]
pub struct AuthorizeRequest<'a> {
    /// Redirect URI.
    pub redirect: &'a str,
    /// Returned unchanged in the callback.
    pub state: &'a str,
    /// Returned inside the identity token.
    pub nonce: &'a str,
    /// Requested scopes.
    pub scopes: &'a [String],
    /// PKCE challenge, if PKCE is on.
    pub challenge: Option<PkceCodeChallenge>,
}

/// Tokens from the provider, not verified yet.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The access token.
    pub access: Secret,
    /// Its expiry by the provider's clock in milliseconds since 1970, if known.
    pub access_expires_ms: Option<i64>,
    /// The new refresh token; `None` if the old one stays.
    pub refresh: Option<Secret>,
    /// The identity token.
    pub identity: Option<Secret>,
    /// Granted scopes; empty means the requested ones.
    pub scopes: Vec<String>,
}

/// The outcome of presenting a refresh token.
#[derive(Debug)]
pub enum RefreshOutcome {
    /// New tokens. The old refresh token may be invalid now.
    Granted(Granted),
    /// The provider rejects the token or client.
    Refused(OAuthCode),
    /// The provider has not acted: it was not reached, or it refused for now and said when to come back.
    NotSent(Error),
    /// It is unknown whether the provider has acted.
    Unknown(Error),
}

impl RefreshOutcome {
    /// Why there was no usable response.
    fn error(&self) -> Option<&Error> {
        match self {
            Self::Granted(_) | Self::Refused(_) => None,
            Self::NotSent(error) | Self::Unknown(error) => Some(error),
        }
    }
}

/// The OAuth error code of a rejection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OAuthCode {
    /// `invalid_grant`: the code or refresh token is expired, used or revoked.
    InvalidGrant,
    /// Any other code, cut and cleaned.
    Other(String),
}

impl OAuthCode {
    fn read(text: &str) -> Self {
        const LONGEST: usize = 64;
        if text == "invalid_grant" {
            return Self::InvalidGrant;
        }
        let is_word = |character: &char| character.is_ascii_alphanumeric() || "_-.".contains(*character);
        let word: String = text.chars().filter(is_word).take(LONGEST).collect();
        Self::Other(if word.is_empty() { "unnamed_error".into() } else { word })
    }
}

impl fmt::Display for OAuthCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidGrant => "invalid_grant",
            Self::Other(word) => word,
        })
    }
}

/// Why the identity service gave no usable response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Connecting failed, or the connection broke.
    #[error("cannot reach the identity service")]
    Unreachable(#[source] reqwest::Error),
    /// It did not answer in time.
    #[error("the identity service did not answer in time")]
    Silent,
    /// The gate was closed before the request could be sent.
    #[error("the time window for the request ended before the connection to the identity service was open")]
    Late,
    /// It has failed too often and rests.
    #[error("the identity service has failed repeatedly; requests to it are suspended for a while")]
    Resting {
        /// Time that is left, if known.
        left: Option<Duration>,
    },
    /// It answered with a failure status.
    #[error("the identity service answered with status {status}")]
    Unavailable {
        /// The status.
        status: u16,
        /// Wait that it names.
        again: Option<Duration>,
    },
    /// Its response cannot be used.
    #[error("the identity service's response cannot be used: {what}")]
    Malformed {
        /// What is wrong, never with words of the body.
        what: &'static str,
    },
    /// It rejects the request.
    #[error("the identity service rejects the request: {code}")]
    Refused {
        /// The OAuth error code.
        code: OAuthCode,
    },
    /// The client cannot be set up.
    #[error(transparent)]
    Setup(#[from] ClientSetupError),
}

impl Error {
    /// Whether and when a retry can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Unavailable { again: Some(again), .. } | Self::Resting { left: Some(again) } => {
                Retry::After(*again)
            }
            Self::Unreachable(_)
            | Self::Silent
            | Self::Late
            | Self::Resting { .. }
            | Self::Unavailable { .. }
            | Self::Malformed { .. } => Retry::Later,
            Self::Refused { .. } | Self::Setup { .. } => Retry::Never,
        }
    }
}

impl From<StaysOpen> for Error {
    fn from(StaysOpen(left): StaysOpen) -> Self {
        Self::Resting { left }
    }
}

impl Identity {
    /// Creates a client from a provider's settings. Reads the file of certificates, if one is set.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub fn new(provider: &Provider, clock: ProviderClock) -> Result<Self, Error> {
        Self::sharing(provider, clock, Arc::new(Circuit::new(ApiHost::Identity)))
    }

    /// Like [`Identity::new`], with a circuit that others share.
    ///
    /// # Errors
    /// As [`Identity::new`].
    pub fn sharing(provider: &Provider, clock: ProviderClock, circuit: Arc<Circuit>) -> Result<Self, Error> {
        let hosts = provider.transport.hosts.clone();
        hosts.check(&provider.auth_url).map_err(ClientSetupError::wrap("cannot use provider.auth.url"))?;
        let root = format!("{}/auth/core", provider.auth_url.as_str().trim_end_matches('/'));
        let address =
            || ClientSetupError::wrap("cannot make the identity service's addresses from provider.auth.url");
        let client = oauth2::Client::new(ClientId::new(provider.oauth.client_id.clone()))
            .set_client_secret(ClientSecret::new(provider.oauth.client_secret.reveal().to_owned()))
            .set_auth_type(AuthType::RequestBody)
            .set_auth_uri(AuthUrl::new(format!("{root}/connect/authorize")).map_err(address())?)
            .set_token_uri(TokenUrl::new(format!("{root}/connect/token")).map_err(address())?);
        let clients = HttpClients::new(&provider.transport, provider.auth_url.origin(), clock, circuit)?;
        let (address, limit) = (provider.auth_url.clone(), provider.transport.request);
        Ok(Self(Arc::new(IdentityShared { client, clients, root, address, hosts, limit })))
    }

    /// The URL at which a person logs in.
    ///
    /// # Errors
    /// The redirect URI is not a URL.
    pub fn authorize(&self, params: AuthorizeRequest<'_>) -> Result<Url, Error> {
        let state = params.state.to_owned();
        let mut request = self
            .0
            .client
            .authorize_url(|| CsrfToken::new(state))
            .set_redirect_uri(Cow::Owned(redirect_url(params.redirect)?))
            .add_scopes(params.scopes.iter().cloned().map(Scope::new))
            .add_extra_param("nonce", params.nonce.to_owned());
        if let Some(challenge) = params.challenge {
            request = request.set_pkce_challenge(challenge);
        }
        Ok(request.url().0)
    }

    /// Exchanges a code for tokens. `redirect` must be exactly the URI that the code was sent to.
    ///
    /// # Errors
    /// There are no tokens. After [`Error::Refused`] the code is worthless; after another error it may be.
    pub async fn redeem(
        &self,
        code: &Secret,
        redirect: &str,
        verifier: Option<&Secret>,
    ) -> Result<Granted, Error> {
        let token_request =
            TokenRequest::new(&self.0.clients, Arc::new(|| true), Instant::now() + self.0.limit);
        let mut request = self
            .0
            .client
            .exchange_code(AuthorizationCode::new(code.reveal().to_owned()))
            .set_redirect_uri(Cow::Owned(redirect_url(redirect)?));
        if let Some(verifier) = verifier {
            request = request.set_pkce_verifier(PkceCodeVerifier::new(verifier.reveal().to_owned()));
        }
        let pass = self.0.clients.circuit.pass(Instant::now() + MAX_CIRCUIT_WAIT).await?;
        let outcome = self.judge(&token_request, request.request_async(&token_request).await);
        report_to_circuit(pass, outcome.error());
        match outcome {
            RefreshOutcome::Granted(granted) => Ok(granted),
            RefreshOutcome::Refused(code) => Err(Error::Refused { code }),
            RefreshOutcome::NotSent(error) | RefreshOutcome::Unknown(error) => Err(error),
        }
    }

    /// Waits shortly until a refresh token may be presented to a service that has failed.
    ///
    /// # Errors
    /// The service rests for longer.
    pub async fn ready(&self) -> Result<(), Error> {
        Ok(self.0.clients.circuit.ready_yielding(Instant::now() + MAX_CIRCUIT_WAIT).await?)
    }

    /// Presents a refresh token once, if `gate` allows it, and waits for the response until `end`. If the future is dropped
    /// before it is done, the outcome is unknown.
    pub async fn refresh(&self, token: &Secret, gate: Gate, end: Instant) -> RefreshOutcome {
        let pass = match self.0.clients.circuit.enter_yielding() {
            Ok(pass) => pass,
            Err(stays_open) => return RefreshOutcome::NotSent(stays_open.into()),
        };
        let token_request = TokenRequest::new(&self.0.clients, gate, end);
        let token = RefreshToken::new(token.reveal().to_owned());
        let answer = self.0.client.exchange_refresh_token(&token).request_async(&token_request).await;
        let outcome = self.judge(&token_request, answer);
        report_to_circuit(pass, outcome.error());
        outcome
    }

    /// The body of a public document, at most `limit` bytes.
    pub(super) async fn fetch(&self, address: &Url, limit: usize) -> Result<Bytes, Error> {
        self.0.clients.get(address, limit).await
    }

    /// The provider's clock.
    pub fn clock(&self) -> &ProviderClock {
        &self.0.clients.clock
    }

    fn judge(
        &self,
        token_request: &TokenRequest<'_>,
        answer: Result<TokenBody, RequestTokenError<ExchangeFailure, OAuthErrorBody>>,
    ) -> RefreshOutcome {
        let malformed = |what| ExchangeFailure { error: Error::Malformed { what }, may_have_acted: true };
        let failure = match answer {
            Ok(answer) => match answer.granted(self.clock().now_ms()) {
                Some(granted) => {
                    token_request.ended(None);
                    return RefreshOutcome::Granted(granted);
                }
                None => malformed("the access token is empty"),
            },
            Err(RequestTokenError::Request(failure)) => failure,
            Err(RequestTokenError::ServerResponse(refusal)) => {
                match (refusal.error.as_str(), token_request.status()) {
                    ("temporarily_unavailable", _) => token_request.unanswered(false),
                    ("server_error", _) => token_request.unanswered(true),
                    (code, Some(status)) if is_refusal(code, status) => {
                        token_request.ended(None);
                        return RefreshOutcome::Refused(OAuthCode::read(code));
                    }
                    // Something between us and the service.
                    (_, status) => token_request.unanswered(unread_by_service(status)),
                }
            }
            // Both may hold words of the provider, even a token: dropped unread.
            Err(RequestTokenError::Parse(..) | RequestTokenError::Other(_)) => match token_request.status() {
                Some(200) => malformed("it is not JSON with an access_token"),
                status @ Some(_) => token_request.unanswered(unread_by_service(status)),
                None => ExchangeFailure {
                    error: Error::Malformed { what: "no request was made" },
                    may_have_acted: false,
                },
            },
        };
        token_request.ended(Some(&failure.error));
        if failure.may_have_acted {
            RefreshOutcome::Unknown(failure.error)
        } else {
            RefreshOutcome::NotSent(failure.error)
        }
    }
}

/// Whether an error code is the identity service's own. Proxies send `error` members too.
fn is_refusal(code: &str, status: u16) -> bool {
    const STANDARD: [&str; 6] = [
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    ];
    matches!(status, 400 | 401) || status == 403 && STANDARD.contains(&code)
}

/// Whether the form may have reached the service before this status was sent.
fn unread_by_service(status: Option<u16>) -> bool {
    // These statuses are sent without reading the form.
    !matches!(status, Some(404 | 405 | 407 | 411 | 413 | 414 | 415 | 421 | 431))
}

fn redirect_url(redirect: &str) -> Result<RedirectUrl, Error> {
    Ok(RedirectUrl::new(redirect.to_owned())
        .map_err(ClientSetupError::wrap("oauth.redirect.uri is not a URL"))?)
}

/// Reports the end of a request to the circuit.
fn report_to_circuit(pass: RequestPermit<'_>, failure: Option<&Error>) {
    match failure {
        None | Some(Error::Malformed { .. } | Error::Refused { .. }) => pass.succeeded(),
        Some(Error::Unavailable { status, .. }) if *status < 500 => pass.succeeded(),
        Some(Error::Unreachable(_) | Error::Silent | Error::Unavailable { status: 502..=504, .. }) => {
            pass.failed();
        }
        // No report: the time may have been too short, or the status may be about the request.
        Some(Error::Late | Error::Resting { .. } | Error::Unavailable { .. } | Error::Setup { .. }) => {
            drop(pass)
        }
    }
}

/// Counts the end of a request.
fn count(outcome: metrics::ApiOutcome, elapsed: Duration) {
    metrics::api_request_ended(ApiArea::Identity, outcome, elapsed);
}

#[cfg(test)]
mod tests;
