//! Tokens for `sasl.mechanism=OAUTHBEARER`: by client-credentials grant from an endpoint, or from a file that another
//! program refreshes.
//!
//! librdkafka asks for a token well before the last one expires, in a callback on the thread that also serves delivery
//! reports. So the callback returns the cached token at once ([`TokenCache`]); the request runs on its own thread with a time
//! limit, and the token is set when it arrives. On failure librdkafka asks again after 10 s. Errors contain neither tokens nor
//! secrets.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rdkafka::client::OAuthToken;
use serde::Deserialize;
use tokio::time::timeout;
use url::Url;

use base::secret::Secret;

use crate::Error;

/// Time limit of a token request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Largest response we read, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024;

/// Where tokens come from.
#[derive(Debug, Clone)]
pub(super) enum TokenSource {
    Endpoint(TokenEndpoint),
    /// A file with one JWT.
    File(PathBuf),
}

/// A token endpoint, for client-credentials grants.
#[derive(Debug, Clone)]
pub(super) struct TokenEndpoint {
    url: Url,
    client_id: String,
    client_secret: Secret,
    scope: Option<String>,
    ca: Option<AuthorityFile>,
}

/// A PEM file of certificate authorities. It is read once: a fetch on a mount that hangs would never end.
#[derive(Debug, Clone)]
struct AuthorityFile {
    path: PathBuf,
    found: Arc<OnceLock<Vec<reqwest::Certificate>>>,
}

impl AuthorityFile {
    fn new(path: String) -> Self {
        Self { path: path.into(), found: Arc::default() }
    }

    /// The certificates in the file. Reads it if no earlier call could.
    fn authorities(&self) -> Result<&[reqwest::Certificate], String> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let read = authorities(&self.path)?;
        Ok(self.found.get_or_init(|| read))
    }
}

impl TokenSource {
    /// Removes our settings from the user's, which are keyed by librdkafka's names; `None` if another mechanism is used.
    pub(super) fn take(
        client: &'static str,
        user: &mut BTreeMap<&str, (&str, &str)>,
    ) -> Result<Option<Self>, Error> {
        let mut own = |key: &str| user.remove(key).map(|(_, value)| value.to_owned());
        let url = own("sasl.oauthbearer.token.endpoint.url");
        let client_id = own("sasl.oauthbearer.client.id");
        let client_secret = own("sasl.oauthbearer.client.secret");
        let scope = own("sasl.oauthbearer.scope");
        // The endpoint's certificate authority, by default that of the brokers; librdkafka does not know this setting.
        let ca = own("https.ca.location");
        // `oidc` requests what we do here; our build of librdkafka would refuse it.
        own("sasl.oauthbearer.method");
        let ca = ca.or_else(|| user.get("ssl.ca.location").map(|(_, path)| (*path).to_owned()));
        if user.get("sasl.mechanisms").is_none_or(|(_, value)| !value.eq_ignore_ascii_case("OAUTHBEARER")) {
            return Ok(None);
        }

        let wrong = |key: &str, reason: &str, remedy: &str| Error::Setting {
            client,
            key: key.into(),
            reason: reason.into(),
            remedy: remedy.into(),
        };
        const URL: &str = "sasl.oauthbearer.token.endpoint.url";
        const FORMS: &str =
            "set it to the https:// address of the token endpoint, or to file:///path of a JWT";
        let url = url.ok_or_else(|| wrong(URL, "sasl.mechanism=OAUTHBEARER needs it", FORMS))?;
        let url = Url::parse(&url).map_err(|_| wrong(URL, "it is not a URL", FORMS))?;
        match url.scheme() {
            "file" => {
                let path = url
                    .to_file_path()
                    .map_err(|()| wrong(URL, "it is not the path of a local file", FORMS))?;
                Ok(Some(Self::File(path)))
            }
            "https" | "http" => {
                let missing = |key| wrong(key, "the token endpoint requires it", "set it");
                Ok(Some(Self::Endpoint(TokenEndpoint {
                    url,
                    client_id: client_id.ok_or_else(|| missing("sasl.oauthbearer.client.id"))?,
                    client_secret: client_secret
                        .ok_or_else(|| missing("sasl.oauthbearer.client.secret"))?
                        .into(),
                    scope,
                    // `probe` means the system's store to librdkafka.
                    ca: ca.filter(|path| path != "probe").map(AuthorityFile::new),
                })))
            }
            _ => Err(wrong(URL, "its scheme is none of https, http and file", FORMS)),
        }
    }

    /// Reads the file of certificate authorities, as librdkafka reads its own when a client is created. If it cannot be read, the
    /// next fetch reads it and returns the error.
    fn prepare(&self) {
        if let Self::Endpoint(TokenEndpoint { ca: Some(ca), .. }) = self {
            ca.authorities().ok();
        }
    }

    /// A fresh token. Blocks up to [`REQUEST_LIMIT`].
    pub(super) fn fetch(&self) -> Result<OAuthToken, Error> {
        let fetched = match self {
            Self::File(path) => read(path),
            Self::Endpoint(endpoint) => endpoint.fetch(),
        };
        fetched.map_err(|reason| {
            let from = match self {
                Self::Endpoint(TokenEndpoint { url, .. }) => url.origin().ascii_serialization() + url.path(),
                Self::File(path) => path.display().to_string(),
            };
            Error::Token { from, reason }
        })
    }
}

impl TokenEndpoint {
    fn fetch(&self) -> Result<OAuthToken, String> {
        // A redirect would send the secret to an address that was not configured.
        let mut client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        if let Some(ca) = &self.ca {
            client = client.tls_certs_only(ca.authorities()?.iter().cloned());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let answered = runtime.block_on(async { timeout(REQUEST_LIMIT, self.request(client)).await });
        // Does not wait for DNS, which may hang.
        runtime.shutdown_background();
        let body = answered.map_err(|_| format!("no answer within {REQUEST_LIMIT:?}"))??;
        let grant: TokenResponse = serde_json::from_slice(&body)
            .map_err(|_| "its answer is not a JSON object with access_token".to_owned())?;
        grant.into_token(&self.client_id)
    }

    /// The body of a successful response.
    async fn request(&self, client: reqwest::ClientBuilder) -> Result<Vec<u8>, String> {
        let failed = |error: reqwest::Error| error.without_url().to_string();
        let mut form = vec![("grant_type", "client_credentials")];
        form.extend(self.scope.as_deref().map(|scope| ("scope", scope)));
        let request = client.build().map_err(failed)?.post(self.url.clone());
        let request = request.basic_auth(&self.client_id, Some(self.client_secret.reveal())).form(&form);
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("it answered {status}"));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_LIMIT {
                return Err(format!("its answer is longer than {ANSWER_LIMIT} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

/// The last token of one client, and whether the next is being fetched.
#[derive(Debug)]
pub(super) struct TokenCache {
    source: TokenSource,
    last: Mutex<Option<CachedToken>>,
    fetching: AtomicBool,
}

#[derive(Clone)]
struct CachedToken {
    text: Secret,
    principal_name: String,
    lifetime_ms: i64,
}

opaque_debug!(CachedToken);

/// The only running fetch of a client, until this is dropped: also if the fetch panics.
struct RunningFetch<'a>(&'a AtomicBool);

impl<'a> RunningFetch<'a> {
    /// `None` if a fetch is already running.
    fn begin(fetching: &'a AtomicBool) -> Option<Self> {
        (!fetching.swap(true, Ordering::AcqRel)).then_some(Self(fetching))
    }
}

impl Drop for RunningFetch<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl TokenCache {
    pub(super) fn new(source: TokenSource) -> Self {
        source.prepare();
        Self { source, last: Mutex::default(), fetching: AtomicBool::new(false) }
    }

    /// The last token, if it has not expired.
    pub(super) fn current(&self) -> Option<OAuthToken> {
        let last = self.last.lock().clone().filter(|token| token.lifetime_ms > now_ms())?;
        Some(OAuthToken {
            token: last.text.reveal().to_owned(),
            principal_name: last.principal_name,
            lifetime_ms: last.lifetime_ms,
        })
    }

    /// Fetches the next token; `None` if a fetch is already running. Blocks up to [`REQUEST_LIMIT`].
    pub(super) fn next(&self) -> Option<Result<OAuthToken, Error>> {
        let _running = RunningFetch::begin(&self.fetching)?;
        let fetched = self.source.fetch();
        if let Ok(token) = &fetched {
            *self.last.lock() = Some(CachedToken {
                text: token.token.clone().into(),
                principal_name: token.principal_name.clone(),
                lifetime_ms: token.lifetime_ms,
            });
        }
        Some(fetched)
    }
}

/// Response of a token endpoint.
#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    /// Seconds, as a number or, with some issuers, as text.
    expires_in: Option<serde_json::Value>,
}

impl TokenResponse {
    fn into_token(self, client_id: &str) -> Result<OAuthToken, String> {
        // The token need not be a JWT if the endpoint says when it expires.
        let claims = claims(&self.access_token).unwrap_or_default();
        let lifetime_ms = match (self.expires_in, claims.exp) {
            (Some(seconds), _) => {
                let seconds = match &seconds {
                    serde_json::Value::String(text) => text.trim().parse().ok(),
                    other => other.as_u64(),
                };
                let seconds: u64 =
                    seconds.ok_or("expires_in in its answer must be a whole number of seconds")?;
                now_ms().saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000))
            }
            (None, Some(exp)) => epoch_ms(exp),
            (None, None) => return Err("its answer has no expires_in and the token has no exp claim".into()),
        };
        let principal_name = claims.sub.unwrap_or_else(|| client_id.to_owned());
        Ok(OAuthToken { token: self.access_token, principal_name, lifetime_ms })
    }
}

/// The claims that matter to a Kafka client.
#[derive(Default, Deserialize)]
struct JwtClaims {
    sub: Option<String>,
    /// Seconds since 1970; some issuers write fractions.
    exp: Option<f64>,
}

fn claims(token: &str) -> Option<JwtClaims> {
    let payload = token.split('.').nth(1)?;
    let json = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&json).ok()
}

fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, String> {
    let wrong = |reason: String| {
        let path = path.display();
        format!(
            "{path} must be a PEM file of certificates ({reason}); set https.ca.location for the endpoint"
        )
    };
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() { Err(wrong("it contains none".into())) } else { Ok(found) }
}

fn read(path: &Path) -> Result<OAuthToken, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    let claims = claims(token).ok_or("it does not hold a JWT")?;
    let exp = claims.exp.ok_or("the JWT in it has no exp claim")?;
    let principal_name = claims.sub.ok_or("the JWT in it has no sub claim")?;
    Ok(OAuthToken { token: token.to_owned(), principal_name, lifetime_ms: epoch_ms(exp) })
}

fn epoch_ms(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
