//! The identity service: codes and refresh tokens in, tokens out.
//!
//! ```text
//! code, refresh token ──▶ oauth2: the form ──▶ wire: sent once ──▶ oauth2: the answer ──▶ Granted, or what became of it
//! ```
//!
//! - A token is presented once for each call: no pooled connection, no retry, no redirect, HTTP/1.1 only. The [`Gate`] is
//!   asked at the last moment, when the body goes out, so that a process that was frozen while connecting presents nothing.
//! - The caller never guesses from an error whether the provider acted: [`Outcome`] tells.
//! - Of an answer only what is needed is read. An odd member beside a good token costs nothing, since a rotated token that
//!   is not understood is lost.
//! - Nothing of a body is in an error. `oauth2` keeps bodies in its parse errors; they are dropped unread.
//! - A service that fails is left alone for a while ([`circuit`](base::circuit)), by all who share its circuit. A refresh is
//!   not the request that finds out whether it answers again, unless there is no other.

mod answer;
mod wire;

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
    answer::{Answer, Refusal},
    wire::{Acted, Failure, Once, Wire},
};
use super::http::{self, ProviderClock};
use crate::{HostPolicy, Provider};

/// How long a request waits for a service that is left alone; whoever can wait longer comes again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asked in the moment in which a token would be sent; `false` keeps it here.
pub type Gate = Arc<dyn Fn() -> bool + Send + Sync>;

type Client = oauth2::Client<
    Refusal,
    Answer,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// The identity service, as one OAuth client sees it. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Identity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    wire: Wire,
    /// `{auth_url}/auth/core`.
    root: String,
    address: Url,
    hosts: HostPolicy,
    /// How long a code exchange may take.
    limit: Duration,
}

/// What an authorization address asks for.
#[derive(Debug)]
pub struct Ask<'a> {
    /// Where the person comes back to.
    pub redirect: &'a str,
    /// What comes back unchanged.
    pub state: &'a str,
    /// What comes back inside the identity token.
    pub nonce: &'a str,
    /// What is asked for.
    pub scopes: &'a [String],
    /// Of the verifier that the exchange will show, where PKCE is on.
    pub challenge: Option<PkceCodeChallenge>,
}

/// Tokens that the provider has given. They are not checked yet.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The access token.
    pub access: Secret,
    /// When it ends by the provider's clock, in milliseconds since 1970, as far as it is told.
    pub access_expires_ms: Option<i64>,
    /// The refresh token; `None` where the provider keeps the former one.
    pub refresh: Option<Secret>,
    /// The identity token.
    pub identity: Option<Secret>,
    /// What was granted; empty where it is not told, and then it is what was asked for.
    pub scopes: Vec<String>,
}

/// What became of a refresh token that was to be presented.
#[derive(Debug)]
pub enum Outcome {
    /// New tokens. The former refresh token may be worth nothing from now on.
    Granted(Granted),
    /// The provider refuses.
    Refused(OAuthCode),
    /// The provider has not acted: it was not reached, or it says that it is not able to now and when to come again.
    NotSent(Error),
    /// Nobody knows whether the provider has acted.
    Unknown(Error),
}

impl Outcome {
    /// Why there was no answer to the request.
    fn error(&self) -> Option<&Error> {
        match self {
            Self::Granted(_) | Self::Refused(_) => None,
            Self::NotSent(error) | Self::Unknown(error) => Some(error),
        }
    }
}

/// The provider's word for why it refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OAuthCode {
    /// `invalid_grant`: the code or refresh token is over, used or revoked.
    InvalidGrant,
    /// `invalid_client`: the client is not known, or its secret is wrong.
    InvalidClient,
    /// `unauthorized_client`: the client may not do this, or its redirect address differs.
    UnauthorizedClient,
    /// Any other, cut and cleaned.
    Other(String),
}

impl OAuthCode {
    fn read(text: &str) -> Self {
        const LONGEST: usize = 64;
        match text {
            "invalid_grant" => Self::InvalidGrant,
            "invalid_client" => Self::InvalidClient,
            "unauthorized_client" => Self::UnauthorizedClient,
            other => {
                let is_word =
                    |character: &char| character.is_ascii_alphanumeric() || "_-.".contains(*character);
                let word: String = other.chars().filter(is_word).take(LONGEST).collect();
                Self::Other(if word.is_empty() { "unnamed_error".into() } else { word })
            }
        }
    }
}

impl fmt::Display for OAuthCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidGrant => "invalid_grant",
            Self::InvalidClient => "invalid_client",
            Self::UnauthorizedClient => "unauthorized_client",
            Self::Other(word) => word,
        })
    }
}

/// Why the identity service gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It was not reached, or the connection broke.
    #[error("reach the identity service")]
    Unreachable(#[source] reqwest::Error),
    /// It did not answer in time.
    #[error("the identity service did not answer in time")]
    Silent,
    /// The time in which the request might be sent was over before it was.
    #[error("the time to ask the identity service was over before the connection stood")]
    Late,
    /// It has failed too often, and is left alone for so long, where that is known.
    #[error("the identity service does not answer, and is left alone for a while")]
    Resting {
        /// How much longer.
        left: Option<Duration>,
    },
    /// It says that it cannot answer now.
    #[error("the identity service answers {status}")]
    Unavailable {
        /// The status.
        status: u16,
        /// When it wants to be asked again.
        again: Option<Duration>,
    },
    /// Its answer is none.
    #[error("the identity service's answer is not usable: {what}")]
    Malformed {
        /// What is wrong with it; never its words.
        what: &'static str,
    },
    /// It refuses what it was asked for.
    #[error("the identity service refuses: {code}")]
    Refused {
        /// The OAuth error code.
        code: OAuthCode,
    },
    /// What it takes to reach it is not usable here.
    #[error("{what}")]
    Setup {
        /// What was attempted, with the setting behind it.
        what: String,
        /// Why it did not work.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// What may be done about it.
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

impl From<http::Setup> for Error {
    fn from(setup: http::Setup) -> Self {
        Self::Setup { what: setup.what, source: setup.source }
    }
}

impl Identity {
    /// The service of a provider's settings. Reads a file if `provider.ssl.ca.location` names one.
    ///
    /// # Errors
    /// The settings cannot be used here.
    pub fn new(provider: &Provider, clock: ProviderClock) -> Result<Self, Error> {
        Self::sharing(provider, clock, Arc::new(Circuit::new(ApiHost::Identity)))
    }

    /// The same, which shares with others what is known about the host of `provider.auth.url`.
    ///
    /// # Errors
    /// As [`Identity::new`].
    pub fn sharing(provider: &Provider, clock: ProviderClock, circuit: Arc<Circuit>) -> Result<Self, Error> {
        let hosts = provider.transport.hosts.clone();
        hosts.check(&provider.auth_url).map_err(|source| Error::Setup {
            what: "use provider.auth.url".into(),
            source: Box::new(source),
        })?;
        let root = format!("{}/auth/core", provider.auth_url.as_str().trim_end_matches('/'));
        let address = |source: oauth2::url::ParseError| Error::Setup {
            what: "make the identity service's addresses out of provider.auth.url".into(),
            source: Box::new(source),
        };
        let client = oauth2::Client::new(ClientId::new(provider.oauth.client_id.clone()))
            .set_client_secret(ClientSecret::new(provider.oauth.client_secret.reveal().to_owned()))
            .set_auth_type(AuthType::RequestBody)
            .set_auth_uri(AuthUrl::new(format!("{root}/connect/authorize")).map_err(address)?)
            .set_token_uri(TokenUrl::new(format!("{root}/connect/token")).map_err(address)?);
        let wire = Wire::new(&provider.transport, provider.auth_url.origin(), clock, circuit)?;
        let (address, limit) = (provider.auth_url.clone(), provider.transport.request);
        Ok(Self(Arc::new(Inner { client, wire, root, address, hosts, limit })))
    }

    /// The address at which a person logs in.
    ///
    /// # Errors
    /// The redirect address is none.
    pub fn authorize(&self, ask: Ask<'_>) -> Result<Url, Error> {
        let state = ask.state.to_owned();
        let mut request = self
            .0
            .client
            .authorize_url(|| CsrfToken::new(state))
            .set_redirect_uri(Cow::Owned(redirect_url(ask.redirect)?))
            .add_scopes(ask.scopes.iter().cloned().map(Scope::new))
            .add_extra_param("nonce", ask.nonce.to_owned());
        if let Some(challenge) = ask.challenge {
            request = request.set_pkce_challenge(challenge);
        }
        Ok(request.url().0)
    }

    /// Tokens for a code. `redirect` is to the letter the one that the code came to.
    ///
    /// # Errors
    /// There are none. After [`Error::Refused`] the code is worth nothing; after others it may be.
    pub async fn redeem(
        &self,
        code: &Secret,
        redirect: &str,
        verifier: Option<&Secret>,
    ) -> Result<Granted, Error> {
        let once = Once::new(&self.0.wire, Arc::new(|| true), Instant::now() + self.0.limit);
        let mut request = self
            .0
            .client
            .exchange_code(AuthorizationCode::new(code.reveal().to_owned()))
            .set_redirect_uri(Cow::Owned(redirect_url(redirect)?));
        if let Some(verifier) = verifier {
            request = request.set_pkce_verifier(PkceCodeVerifier::new(verifier.reveal().to_owned()));
        }
        let pass = self.0.wire.circuit.pass(Instant::now() + PATIENCE).await?;
        let outcome = self.judge(&once, request.request_async(&once).await);
        tell(pass, outcome.error());
        match outcome {
            Outcome::Granted(granted) => Ok(granted),
            Outcome::Refused(code) => Err(Error::Refused { code }),
            Outcome::NotSent(error) | Outcome::Unknown(error) => Err(error),
        }
    }

    /// Waits until a refresh token may be presented to a service that has failed; not long.
    ///
    /// # Errors
    /// It is left alone for longer.
    pub async fn ready(&self) -> Result<(), Error> {
        Ok(self.0.wire.circuit.ready_yielding(Instant::now() + PATIENCE).await?)
    }

    /// Presents a refresh token, once, if `gate` lets it; listens until `end`. Whoever drops the future before it is done
    /// does not know what became of the token.
    pub async fn refresh(&self, token: &Secret, gate: Gate, end: Instant) -> Outcome {
        let pass = match self.0.wire.circuit.enter_yielding() {
            Ok(pass) => pass,
            Err(stays_open) => return Outcome::NotSent(stays_open.into()),
        };
        let once = Once::new(&self.0.wire, gate, end);
        let token = RefreshToken::new(token.reveal().to_owned());
        let answer = self.0.client.exchange_refresh_token(&token).request_async(&once).await;
        let outcome = self.judge(&once, answer);
        tell(pass, outcome.error());
        outcome
    }

    /// The body of a public document, at most `limit` bytes.
    pub(super) async fn fetch(&self, address: &Url, limit: usize) -> Result<Bytes, Error> {
        self.0.wire.get(address, limit).await
    }

    /// `provider.auth.url`.
    pub(super) fn address(&self) -> &Url {
        &self.0.address
    }

    /// Which hosts may be reached.
    pub(super) fn hosts(&self) -> &HostPolicy {
        &self.0.hosts
    }

    /// Where the service's paths begin, which is also one of the names it may go by as an issuer.
    pub(super) fn root(&self) -> &str {
        &self.0.root
    }

    /// The provider's clock.
    pub fn clock(&self) -> &ProviderClock {
        &self.0.wire.clock
    }

    fn judge(&self, once: &Once<'_>, answer: Result<Answer, RequestTokenError<Failure, Refusal>>) -> Outcome {
        let malformed = |what| Failure { error: Error::Malformed { what }, acted: Acted::Maybe };
        let failure = match answer {
            Ok(answer) => match answer.granted(self.clock().now_ms()) {
                Some(granted) => {
                    once.ended(None);
                    return Outcome::Granted(granted);
                }
                None => malformed("the access token is empty"),
            },
            Err(RequestTokenError::Request(failure)) => failure,
            Err(RequestTokenError::ServerResponse(refusal)) => {
                match (refusal.error.as_str(), once.status()) {
                    ("temporarily_unavailable", _) => once.unanswered(Acted::No),
                    ("server_error", _) => once.unanswered(Acted::Maybe),
                    (code, Some(status)) if is_refusal(code, status) => {
                        once.ended(None);
                        return Outcome::Refused(OAuthCode::read(code));
                    }
                    // Somebody between us and the service.
                    (_, status) => once.unanswered(unread_by_service(status)),
                }
            }
            // Both may hold the provider's words, a token among them: they are dropped as they are.
            Err(RequestTokenError::Parse(..) | RequestTokenError::Other(_)) => match once.status() {
                Some(200) => malformed("it is not JSON with an access_token"),
                status @ Some(_) => once.unanswered(unread_by_service(status)),
                None => Failure { error: Error::Malformed { what: "no request was made" }, acted: Acted::No },
            },
        };
        once.ended(Some(&failure.error));
        match failure.acted {
            Acted::No => Outcome::NotSent(failure.error),
            Acted::Maybe => Outcome::Unknown(failure.error),
        }
    }
}

/// Whether an answer is the word of an identity service about what it was asked for. Proxies have an `error` too.
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

/// Whether somebody who answers with this status may have passed the form on before.
fn unread_by_service(status: Option<u16>) -> Acted {
    match status {
        // Whoever answers so has not looked at the form, let alone at the token in it.
        Some(404 | 405 | 407 | 411 | 413 | 414 | 415 | 421 | 431) => Acted::No,
        _ => Acted::Maybe,
    }
}

fn redirect_url(redirect: &str) -> Result<RedirectUrl, Error> {
    RedirectUrl::new(redirect.to_owned()).map_err(|source| Error::Setup {
        what: "use oauth.redirect.uri as an address".into(),
        source: Box::new(source),
    })
}

/// What the end of a request says about the host.
fn tell(pass: RequestPermit<'_>, failure: Option<&Error>) {
    match failure {
        None | Some(Error::Malformed { .. } | Error::Refused { .. }) => pass.succeeded(),
        Some(Error::Unavailable { status, .. }) if *status < 500 => pass.succeeded(),
        Some(Error::Unreachable(_) | Error::Silent | Error::Unavailable { status: 502..=504, .. }) => {
            pass.failed();
        }
        // Nothing: the time may have been too short, and other statuses may be about what was asked.
        Some(Error::Late | Error::Resting { .. } | Error::Unavailable { .. } | Error::Setup { .. }) => {
            drop(pass)
        }
    }
}

/// A request to the identity service has ended.
fn count(outcome: metrics::ApiOutcome, elapsed: Duration) {
    metrics::api_request_ended(ApiArea::Identity, outcome, elapsed);
}

#[cfg(test)]
mod tests;
