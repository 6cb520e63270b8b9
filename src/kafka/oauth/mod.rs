//! Tokens for `sasl.mechanism=OAUTHBEARER`: by client-credentials grant from an endpoint, or from a file someone else
//! keeps fresh.
//!
//! librdkafka asks for a token in a callback that has to answer before it returns. The request therefore runs on a thread
//! with a runtime of its own and is bounded in time; on failure librdkafka asks again ten seconds later. Neither token nor
//! secret is ever part of an error.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rdkafka::client::OAuthToken;
use serde::Deserialize;
use url::Url;

use crate::kafka::Error;
use crate::secret::Secret;

/// The most a token request may take, so that the client's callbacks are never held up for longer.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// No provider's answer is larger; more is not read.
const ANSWER_LIMIT: usize = 64 * 1024;

/// Where tokens come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// A client-credentials grant.
    Endpoint { url: Url, client_id: String, client_secret: Secret, scope: Option<String> },
    /// A file with one JWT.
    File(PathBuf),
}

impl Source {
    /// Takes the settings that are ours out of the user's, keyed by librdkafka's names; `None` when another mechanism is
    /// used.
    pub(super) fn take(
        client: &'static str,
        user: &mut BTreeMap<&str, (&str, &str)>,
    ) -> Result<Option<Self>, Error> {
        let mut own = |key: &str| user.remove(key).map(|(_, value)| value.to_owned());
        let url = own("sasl.oauthbearer.token.endpoint.url");
        let client_id = own("sasl.oauthbearer.client.id");
        let client_secret = own("sasl.oauthbearer.client.secret");
        let scope = own("sasl.oauthbearer.scope");
        // `oidc` asks for the fetch that we do; librdkafka would refuse the word.
        own("sasl.oauthbearer.method");
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
        let url = Url::parse(&url).map_err(|_| wrong(URL, "it is no address", FORMS))?;
        match url.scheme() {
            "file" => {
                let path = url.to_file_path().map_err(|()| wrong(URL, "it names no local file", FORMS))?;
                Ok(Some(Self::File(path)))
            }
            "https" | "http" => {
                let missing = |key| wrong(key, "the token endpoint asks for it", "set it");
                Ok(Some(Self::Endpoint {
                    url,
                    client_id: client_id.ok_or_else(|| missing("sasl.oauthbearer.client.id"))?,
                    client_secret: client_secret
                        .ok_or_else(|| missing("sasl.oauthbearer.client.secret"))?
                        .into(),
                    scope,
                }))
            }
            _ => Err(wrong(URL, "its scheme is none of https, http and file", FORMS)),
        }
    }

    /// A fresh token. Blocks up to [`REQUEST_LIMIT`].
    pub(super) fn fetch(&self) -> Result<OAuthToken, Error> {
        match self {
            Self::File(path) => read(path).map_err(|reason| self.failed(reason)),
            Self::Endpoint { .. } => {
                let (answer, answered) = mpsc::sync_channel(1);
                let source = self.clone();
                thread::Builder::new()
                    .name("kafka-token".into())
                    .spawn(move || {
                        // Past the limit nobody listens any more.
                        drop(answer.send(source.request()));
                    })
                    .map_err(|error| self.failed(error.to_string()))?;
                answered
                    .recv_timeout(REQUEST_LIMIT)
                    .map_err(|_| self.failed(format!("no answer within {REQUEST_LIMIT:?}")))?
                    .map_err(|reason| self.failed(reason))
            }
        }
    }

    fn request(&self) -> Result<OAuthToken, String> {
        let Self::Endpoint { url, client_id, client_secret, scope } = self else {
            return Err("it is not an endpoint".into());
        };
        let mut form = vec![("grant_type", "client_credentials")];
        if let Some(scope) = scope {
            form.push(("scope", scope));
        }
        let exchange = async {
            let client = reqwest::Client::builder()
                .timeout(REQUEST_LIMIT)
                // A redirect would carry the secret to an address nobody configured.
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(|error| error.to_string())?;
            let request =
                client.post(url.clone()).basic_auth(client_id, Some(client_secret.reveal())).form(&form);
            let mut response = request.send().await.map_err(|error| error.without_url().to_string())?;
            let status = response.status();
            if !status.is_success() {
                return Err(format!("it answered {status}"));
            }
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|error| error.without_url().to_string())? {
                if body.len() + chunk.len() > ANSWER_LIMIT {
                    return Err(format!("its answer is longer than {ANSWER_LIMIT} bytes"));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let body = runtime.map_err(|error| error.to_string())?.block_on(exchange)?;
        let grant: Grant = serde_json::from_slice(&body)
            .map_err(|_| "its answer is not a JSON object with access_token".to_owned())?;
        grant.into_token(client_id)
    }

    fn failed(&self, reason: String) -> Error {
        let from = match self {
            Self::Endpoint { url, .. } => url.origin().ascii_serialization() + url.path(),
            Self::File(path) => path.display().to_string(),
        };
        Error::Token { from, reason }
    }
}

/// What a token endpoint answers.
#[derive(Deserialize)]
struct Grant {
    access_token: String,
    /// Seconds.
    expires_in: Option<u64>,
}

impl Grant {
    fn into_token(self, client_id: &str) -> Result<OAuthToken, String> {
        // A token that is no JWT is fine as long as the endpoint says how long it lives.
        let claims = claims(&self.access_token).unwrap_or_default();
        let lifetime_ms = match (self.expires_in, claims.exp) {
            (Some(seconds), _) => {
                now_ms().saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX / 1000) * 1000)
            }
            (None, Some(exp)) => epoch_ms(exp),
            (None, None) => return Err("its answer has no expires_in and the token no exp".into()),
        };
        let principal_name = claims.sub.unwrap_or_else(|| client_id.to_owned());
        Ok(OAuthToken { token: self.access_token, principal_name, lifetime_ms })
    }
}

/// The claims that matter to a Kafka client.
#[derive(Default, Deserialize)]
struct Claims {
    sub: Option<String>,
    /// Seconds since 1970; some issuers write fractions.
    exp: Option<f64>,
}

fn claims(token: &str) -> Option<Claims> {
    let payload = token.split('.').nth(1)?;
    let json = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&json).ok()
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
