//! The keys that verify tokens: published by the identity service, or read from a file.
//!
//! ```text
//! discovery ──▶ key set ──┐
//! oauth.keys.location ────┴──▶ Keys::find(kid, x5t) ──▶ candidates
//! ```
//!
//! - A key set is used for a day. A missing key causes a refetch, at most once a minute, so that a rotation is noticed and forged
//!   tokens do not flood the provider. A file is reread for a missing key, as often.
//! - Concurrent callers cause one fetch.
//! - Unusable keys of a set are skipped.
//!
//! On failure: the old key set stays in use, so an outage has no effect while the service signs with the same keys.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde_json::{Map, Value};
use tokio::{sync::Mutex, time::Instant};

use base::retry::{ErrorChain, Retry};

use super::{
    discovery::{self, MAX_DOCUMENT_BYTES},
    identity::{self, Identity},
    key::VerifyingKey,
    token::shown,
};

/// How long a key set is used.
const KEY_SET_LIFETIME: Duration = Duration::from_secs(86_400);
/// Minimum time between two fetches after one for an unknown key.
const REFETCH_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum time between two fetches after a failed one.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of keys in a set.
const MAX_KEYS: usize = 64;

/// Why there is no key.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service does not publish it.
    #[error("the identity service has no key {kid}")]
    Unknown {
        /// Its id, cut.
        kid: String,
    },
    /// The key set could not be fetched.
    #[error("cannot fetch the identity service's keys")]
    Fetch(#[source] Arc<identity::Error>),
    /// The file cannot be used.
    #[error("cannot read the keys of oauth.keys.location {}: {what}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl Error {
    /// Whether and when a retry can help.
    pub fn retry(&self) -> Retry {
        match self {
            // The key may be published a little after its first use.
            Self::Unknown { .. } => Retry::Later,
            Self::Fetch(error) => error.retry(),
            Self::File { .. } => Retry::Never,
        }
    }
}

/// The keys of one identity service.
#[derive(Debug)]
pub struct Keys {
    source: KeySource,
    published: RwLock<Arc<KeySet>>,
    fetch_state: Mutex<FetchState>,
}

/// Where the keys come from.
#[derive(Debug)]
enum KeySource {
    Service(Identity),
    File(PathBuf),
}

#[derive(Debug, Default)]
struct KeySet {
    keys: Vec<VerifyingKey>,
    issuer: Option<String>,
    /// `None` before the first fetch.
    fetched: Option<Instant>,
}

/// State of fetching; only the holder of its lock fetches.
#[derive(Debug, Default)]
struct FetchState {
    not_before: Option<Instant>,
    failure: Option<Arc<identity::Error>>,
}

impl Keys {
    /// The keys that the service publishes. The first lookup fetches them.
    pub fn discovered(service: Identity) -> Self {
        Self {
            source: KeySource::Service(service),
            published: RwLock::default(),
            fetch_state: Mutex::default(),
        }
    }

    /// The keys of a file: public keys or certificates in PEM, or a key set in JSON.
    ///
    /// # Errors
    /// The file has no usable key.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let published = RwLock::new(Arc::new(read_file(path)?));
        Ok(Self { source: KeySource::File(path.to_owned()), published, fetch_state: Mutex::default() })
    }

    /// The keys that may have signed a token with these header fields; at least one.
    ///
    /// # Errors
    /// No key is known now.
    pub async fn find(&self, kid: Option<&str>, x5t: Option<&str>) -> Result<Vec<VerifyingKey>, Error> {
        let unknown = || Error::Unknown { kid: shown(kid.or(x5t).unwrap_or("without a name")) };
        let published = self.published();
        let found = published.candidates(kid, x5t);
        if !found.is_empty() && (published.is_fresh() || matches!(self.source, KeySource::File(_))) {
            return Ok(found);
        }
        let service = match &self.source {
            KeySource::Service(service) => service,
            KeySource::File(path) => {
                let found = self.read_again(path).await.candidates(kid, x5t);
                return if found.is_empty() { Err(unknown()) } else { Ok(found) };
            }
        };

        let mut fetch_state = self.fetch_state.lock().await;
        // Another caller may have fetched while this one waited for the lock.
        let published = self.published();
        let mut found = published.candidates(kid, x5t);
        if published.is_fresh() && !found.is_empty() {
            return Ok(found);
        }
        if fetch_state.not_before.is_none_or(|moment| moment <= Instant::now()) {
            match fetch(service).await {
                Ok(new) => {
                    found = new.candidates(kid, x5t);
                    // A fetch that was due anyway does not delay one for a missing key.
                    let for_a_key = published.is_fresh() || found.is_empty();
                    let not_before = for_a_key.then(|| Instant::now() + REFETCH_INTERVAL);
                    self.publish(new);
                    *fetch_state = FetchState { not_before, failure: None };
                }
                Err(error) => {
                    // Callers with a key see no error, so log one; once per outage.
                    if !found.is_empty() && fetch_state.failure.is_none() {
                        tracing::warn!(error = %ErrorChain(&error), "cannot fetch the identity service's keys; the old ones stay in use");
                    }
                    fetch_state.not_before = Some(Instant::now() + RETRY_INTERVAL);
                    fetch_state.failure = Some(Arc::new(error));
                }
            }
        }
        match &fetch_state.failure {
            _ if !found.is_empty() => Ok(found),
            Some(failure) => Err(Error::Fetch(Arc::clone(failure))),
            None => Err(unknown()),
        }
    }

    /// Rereads a file, unless that happened recently. Whether its keys have changed.
    pub async fn have_changed(&self) -> bool {
        let KeySource::File(path) = &self.source else { return false };
        let before = self.published();
        self.read_again(path).await.keys != before.keys
    }

    /// The current keys of a file, reread unless that happened recently. An unusable file changes nothing.
    async fn read_again(&self, path: &Path) -> Arc<KeySet> {
        let mut fetch_state = self.fetch_state.lock().await;
        if fetch_state.not_before.is_none_or(|moment| moment <= Instant::now()) {
            fetch_state.not_before = Some(Instant::now() + REFETCH_INTERVAL);
            let path = path.to_owned();
            match tokio::task::spawn_blocking(move || read_file(&path)).await {
                Ok(Ok(new)) => self.publish(new),
                Ok(Err(error)) => {
                    tracing::warn!(error = %ErrorChain(&error), "cannot reread the keys; the old ones stay in use")
                }
                // The runtime is shutting down.
                Err(_) => {}
            }
        }
        self.published()
    }

    /// The issuer from the discovery document.
    pub fn issuer(&self) -> Option<String> {
        self.published().issuer.clone()
    }

    fn published(&self) -> Arc<KeySet> {
        Arc::clone(&self.published.read())
    }

    fn publish(&self, published: KeySet) {
        *self.published.write() = Arc::new(published);
    }
}

impl KeySet {
    fn is_fresh(&self) -> bool {
        self.fetched.is_some_and(|moment| moment.elapsed() < KEY_SET_LIFETIME)
    }

    /// Keys with that name, else keys without a name; all keys for a token without a name. The signature decides: a name only
    /// saves work, and shows that a set is outdated.
    fn candidates(&self, kid: Option<&str>, x5t: Option<&str>) -> Vec<VerifyingKey> {
        let chosen = |choose: &dyn Fn(&VerifyingKey) -> bool| -> Vec<VerifyingKey> {
            self.keys.iter().filter(|key| choose(key)).cloned().collect()
        };
        let names: Vec<&str> = [kid, x5t].into_iter().flatten().collect();
        if names.is_empty() {
            return self.keys.clone();
        }
        let named = chosen(&|key| names.iter().any(|name| key.is_named(name)));
        if named.is_empty() { chosen(&|key| !key.has_kid()) } else { named }
    }
}

/// Reads the keys of a file.
fn read_file(path: &Path) -> Result<KeySet, Error> {
    let wrong = |what: String| Error::File { path: path.to_owned(), what };
    let size = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > MAX_DOCUMENT_BYTES as u64 {
        return Err(wrong(format!("it is larger than {MAX_DOCUMENT_BYTES} bytes")));
    }
    let content = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let keys = if content.trim_ascii_start().starts_with(b"{") {
        read_set(&content).map_err(|what| wrong(what.into()))?
    } else {
        read_pem(&content)
    };
    if keys.is_empty() {
        return Err(wrong(
            "it holds no public RSA key of 2048 bits or more, and no certificate of one".into(),
        ));
    }
    Ok(KeySet { keys, ..KeySet::default() })
}

async fn fetch(service: &Identity) -> Result<KeySet, identity::Error> {
    let discovery = discovery::fetch(service).await?;
    let body = service.fetch(&discovery.keys, MAX_DOCUMENT_BYTES).await?;
    let malformed = |what| identity::Error::Malformed { what };
    let keys = read_set(&body).map_err(malformed)?;
    if keys.is_empty() {
        return Err(malformed("the key set has no usable key"));
    }
    Ok(KeySet { keys, issuer: discovery.issuer, fetched: Some(Instant::now()) })
}

fn read_set(body: &[u8]) -> Result<Vec<VerifyingKey>, &'static str> {
    let set: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| "the key set is not a JSON object")?;
    let entries = set.get("keys").and_then(Value::as_array).ok_or("the key set has no list of keys")?;
    Ok(entries
        .iter()
        .filter_map(Value::as_object)
        .filter_map(VerifyingKey::from_json)
        .take(MAX_KEYS)
        .collect())
}

fn read_pem(content: &[u8]) -> Vec<VerifyingKey> {
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(content).filter_map(Result::ok);
    let key = |(kind, der): (SectionKind, Vec<u8>)| match kind {
        SectionKind::PublicKey => VerifyingKey::from_der(None, None, &der),
        SectionKind::Certificate => VerifyingKey::from_certificate(None, &der),
        _ => None,
    };
    sections.filter_map(key).take(MAX_KEYS).collect()
}

#[cfg(test)]
mod tests;
