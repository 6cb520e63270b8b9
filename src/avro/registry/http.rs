//! One registry address over HTTP: client settings, and answers converted to JSON or one of our errors.
//!
//! Every request, ours and those of `schema_registry_converter`, passes through [`AnswerMiddleware`]: it reads at most
//! [`MAX_ANSWER_BYTES`] and converts a status outside 2xx to a [`HttpFailure`] with status, code and `Retry-After`, which the
//! converter would drop.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::Extensions;
use reqwest::{Method, Request, Response, StatusCode, header};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next};
use schema_registry_converter::{
    async_impl::schema_registry::{SrSettings, perform_sr_call},
    schema_registry_common::{RawRegisteredSchema, SrCall},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use url::Url;

use crate::{
    avro::{Error, error::SharedCause},
    config::{self, TlsFiles},
};

/// No schema comes near this; an answer above it is not from a registry.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// How much of an answer an error shows.
const MAX_SHOWN_CHARACTERS: usize = 500;
/// Upper bound of `Retry-After`: a worker must notice when the registry is back.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// A PEM file above this is not a certificate.
const MAX_PEM_BYTES: u64 = 1024 * 1024;
const CONTENT_TYPE: &str = "application/vnd.schemaregistry.v1+json";

/// One address of the registry with both clients for it.
#[derive(Debug)]
pub(super) struct RegistryNode {
    base: Url,
    client: ClientWithMiddleware,
    auth: config::RegistryAuth,
    /// For the calls of `schema_registry_converter`.
    settings: SrSettings,
}

/// A request that `schema_registry_converter` does not offer.
pub(super) struct RegistryRequest<'a> {
    /// What is tried, for messages.
    pub(super) attempt: &'a str,
    pub(super) method: Method,
    /// Path segments after the base path, to be percent-encoded.
    pub(super) path: &'a [&'a str],
    pub(super) query: Option<&'a str>,
    pub(super) body: Option<&'a Value>,
}

impl RegistryNode {
    pub(super) fn new(base: &Url, config: &config::RegistrySettings) -> Result<Self, Error> {
        let mut base = base.clone();
        base.set_path(base.path().to_owned().trim_end_matches('/'));
        let client = builder(config)?.timeout(config.timeout).build().map_err(tls_failed)?;
        let mut settings = SrSettings::new_builder(base.as_str().trim_end_matches('/').to_owned());
        settings.with_middleware(AnswerMiddleware).set_timeout(config.timeout);
        match &config.auth {
            config::RegistryAuth::None => {}
            config::RegistryAuth::Basic { user, password } => {
                settings.set_basic_authorization(user.reveal(), Some(password.reveal()));
            }
            config::RegistryAuth::Bearer(token) => {
                settings.set_token_authorization(token.reveal());
            }
        }
        Ok(Self {
            client: reqwest_middleware::ClientBuilder::new(client).with(AnswerMiddleware).build(),
            auth: config.auth.clone(),
            settings: settings.build_with(builder(config)?).map_err(tls_failed)?,
            base,
        })
    }

    /// The address, for messages.
    pub(super) fn address(&self) -> &str {
        self.base.as_str()
    }

    /// Makes one request of ours and parses a successful answer.
    pub(super) async fn call<T: DeserializeOwned>(&self, call: &RegistryRequest<'_>) -> Result<T, Error> {
        let attempt = format!("{} at {}", call.attempt, self.address());
        let mut request = self.client.request(call.method.clone(), self.url(call));
        request = match &self.auth {
            config::RegistryAuth::None => request,
            config::RegistryAuth::Basic { user, password } => {
                request.basic_auth(user.reveal(), Some(password.reveal()))
            }
            config::RegistryAuth::Bearer(token) => request.bearer_auth(token.reveal()),
        };
        if let Some(body) = call.body {
            request = request.header(header::CONTENT_TYPE, CONTENT_TYPE).body(body.to_string());
        }
        let response = request
            .header(header::ACCEPT, CONTENT_TYPE)
            .send()
            .await
            .map_err(|error| failed(attempt.clone(), error))?;
        response.json().await.map_err(|error| failed(attempt, error))
    }

    /// Makes one call through `schema_registry_converter`; the answer is malformed if `pick` finds nothing in it.
    pub(super) async fn converted<T>(
        &self,
        attempt: &str,
        call: SrCall<'_>,
        pick: fn(RawRegisteredSchema) -> Option<T>,
    ) -> Result<T, Error> {
        let attempt = format!("{attempt} at {}", self.address());
        match perform_sr_call(&self.settings, call).await {
            Ok(answer) => pick(answer).ok_or_else(|| malformed(attempt, None)),
            Err(error) => Err(failed(attempt, error)),
        }
    }

    fn url(&self, call: &RegistryRequest<'_>) -> Url {
        let mut url = self.base.clone();
        // The settings refuse addresses that cannot have a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(call.path);
        }
        url.set_query(call.query);
        url
    }
}

/// The settings of both clients.
fn builder(config: &config::RegistrySettings) -> Result<reqwest::ClientBuilder, Error> {
    let mut builder = reqwest::Client::builder()
        // A redirect would send our credentials and schemas to an address that is not configured.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(config.timeout)
        .user_agent(concat!("tributary/", env!("CARGO_PKG_VERSION")))
        .tls_backend_rustls();
    if let Some(path) = &config.ca {
        let certificates = reqwest::Certificate::from_pem_bundle(&read_pem("ca", path)?)
            .map_err(|error| pem_failed("ca", path, error))?;
        if certificates.is_empty() {
            return Err(Error::Settings {
                rule: format!("ca {} must hold at least one PEM certificate", path.display()),
                source: None,
            });
        }
        builder = builder.tls_certs_only(certificates);
    }
    if let Some(TlsFiles { certificate, key }) = &config.client {
        let mut pem = zeroize::Zeroizing::new(read_pem("key", key)?);
        pem.push(b'\n');
        pem.extend_from_slice(&read_pem("certificate", certificate)?);
        let identity = reqwest::Identity::from_pem(&pem)
            .map_err(|error| pem_failed("certificate and key", certificate, error))?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

fn read_pem(what: &str, path: &Path) -> Result<Vec<u8>, Error> {
    let too_large = || std::io::Error::other(format!("larger than {MAX_PEM_BYTES} bytes"));
    fs::metadata(path)
        .and_then(|found| if found.len() > MAX_PEM_BYTES { Err(too_large()) } else { fs::read(path) })
        .map_err(|error| pem_failed(what, path, error))
}

fn pem_failed(what: &str, path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Settings {
        rule: format!("{what} {} must be a readable PEM file", path.display()),
        source: Some(Arc::new(error)),
    }
}

fn tls_failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Settings { rule: "the TLS settings cannot be used".into(), source: Some(Arc::new(error)) }
}

/// Converts the error of either client: with an [`HttpFailure`] among its causes there was an answer, with another client error
/// there was none, and any other error is about an answer that cannot be parsed.
fn failed(attempt: String, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let answer = match causes.find_map(|cause| cause.downcast_ref()) {
        Some(reqwest_middleware::Error::Middleware(inner)) => inner.downcast_ref::<HttpFailure>().cloned(),
        Some(reqwest_middleware::Error::Reqwest(_)) => None,
        None => return malformed(attempt, Some(Arc::new(error))),
    };
    match answer {
        Some(answer) => answer.into_error(attempt),
        None => Error::Transport { attempt, source: Arc::new(error) },
    }
}

fn malformed(attempt: String, source: Option<SharedCause>) -> Error {
    Error::Malformed { attempt, rule: "the answer is not that of a schema registry".into(), source }
}

/// An unsuccessful answer.
#[derive(Debug, Clone, thiserror::Error)]
enum HttpFailure {
    #[error("status {status}: {message}")]
    Status { status: u16, code: Option<u32>, retry_after: Option<Duration>, message: String },
    #[error("an answer above {MAX_ANSWER_BYTES} bytes")]
    TooLarge,
}

impl HttpFailure {
    fn into_error(self, attempt: String) -> Error {
        match self {
            Self::TooLarge => Error::Malformed { attempt, rule: self.to_string(), source: None },
            Self::Status { status: status @ (401 | 403), message, .. } => {
                Error::Unauthorised { attempt, status, message }
            }
            Self::Status { status: status @ (408 | 429 | 500..), retry_after, message, .. } => {
                Error::Unavailable { attempt, status, retry_after, message }
            }
            Self::Status { status: status @ 300..=399, code, .. } => Error::Refused {
                attempt,
                status,
                code,
                message: "redirects are not followed; set the address it points to".into(),
            },
            // A registry's own codes begin with the status; a proxy or another application has none, or other ones.
            Self::Status { status: 404, code, message, .. }
                if code.is_none_or(|code| !(40_400..40_500).contains(&code)) =>
            {
                let message = format!("not a registry's own answer, is the base path right? {message}");
                Error::Refused { attempt, status: 404, code, message }
            }
            Self::Status { status, code, message, .. } => Error::Refused { attempt, status, code, message },
        }
    }
}

struct AnswerMiddleware;

#[async_trait::async_trait]
impl Middleware for AnswerMiddleware {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let response = next.run(request, extensions).await?;
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let body = match bounded(response).await? {
            Some(body) => body,
            None if status.is_success() => {
                return Err(reqwest_middleware::Error::middleware(HttpFailure::TooLarge));
            }
            None => Bytes::new(),
        };
        if status.is_success() {
            let mut whole = http::Response::new(body);
            *whole.status_mut() = status;
            return Ok(whole.into());
        }
        Err(reqwest_middleware::Error::middleware(failure(status, retry_after, &body)))
    }
}

/// The body, or `None` if it is larger than any registry's answer.
async fn bounded(mut response: Response) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

fn failure(status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> HttpFailure {
    #[derive(Deserialize)]
    struct ErrorAnswer {
        error_code: Option<u32>,
        message: Option<String>,
    }
    let (code, message) = match serde_json::from_slice::<ErrorAnswer>(body) {
        Ok(ErrorAnswer { error_code, message: Some(message) }) => (error_code, message),
        Ok(ErrorAnswer { error_code: Some(code), message: None }) => (Some(code), String::new()),
        _ => (None, String::from_utf8_lossy(body).into_owned()),
    };
    HttpFailure::Status { status: status.as_u16(), code, retry_after, message: excerpt(&message) }
}

/// The start of a text from outside, on one line.
pub(super) fn excerpt(text: &str) -> String {
    let clean = |character: char| if character.is_control() { ' ' } else { character };
    text.trim().chars().take(MAX_SHOWN_CHARACTERS).map(clean).collect()
}

/// Only seconds: no registry sends a date, and a wrong clock must not determine the wait.
fn retry_after(headers: &header::HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}
