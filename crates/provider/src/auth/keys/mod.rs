//! The keys by which tokens are verified: those that the identity service publishes, or those of a file.
//!
//! ```text
//! discovery ──▶ key set ──┐
//! oauth.keys.location ────┴──▶ Keys::find(kid, x5t) ──▶ candidates
//! ```
//!
//! - A key set is good for a day. A key that it lacks makes it be fetched again, at most once a minute, so that neither a
//!   rotation is missed nor a forged token sends us to the provider each time. A file is read again for a key that it lacks,
//!   as often.
//! - However many ask, it is fetched once.
//! - A set is read key by key; what cannot be used is skipped.
//!
//! On failure the former set stays: a service that is away for a while costs nothing as long as it signs with the same key.

use std::{
    fs, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde_json::{Map, Value};
use tokio::{sync::Mutex, time::Instant};

use base::retry::{Chain, Retry};

use super::{
    discovery::{self, MAX_DOCUMENT_BYTES},
    identity::{self, Identity},
    key::VerifyingKey,
    token::shown,
};

/// How long a key set is good.
const KEY_SET_LIFETIME: Duration = Duration::from_secs(86_400);
/// After a fetch for an unknown key, the next one for any.
const REFETCH_INTERVAL: Duration = Duration::from_secs(60);
/// The same after a fetch that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// More keys than this are nobody's.
const MAX_KEYS: usize = 64;

/// Why there is no key.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service has not published it.
    #[error("the identity service has no key {kid}")]
    Unknown {
        /// Its name, cut.
        kid: String,
    },
    /// The key set could not be fetched.
    #[error("fetch the identity service's keys")]
    Fetch(#[source] Arc<identity::Error>),
    /// The file cannot be used.
    #[error("read the keys of oauth.keys.location {}: {what}", path.display())]
    File {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl Error {
    /// What may be done about it.
    pub fn retry(&self) -> Retry {
        match self {
            // KeySet a little later than used, or a token that nobody should have.
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

/// Where keys are from.
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

/// Of whoever fetches next.
#[derive(Debug, Default)]
struct FetchState {
    not_before: Option<Instant>,
    failure: Option<Arc<identity::Error>>,
}

impl Keys {
    /// The keys that the service publishes; nothing is fetched before one is needed.
    pub fn discovered(service: Identity) -> Self {
        Self {
            source: KeySource::Service(service),
            published: RwLock::default(),
            fetch_state: Mutex::default(),
        }
    }

    /// The keys of a file: public keys or certificates as PEM, or a key set as JSON.
    ///
    /// # Errors
    /// It holds no key that can be used.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let published = RwLock::new(Arc::new(read_file(path)?));
        Ok(Self { source: KeySource::File(path.to_owned()), published, fetch_state: Mutex::default() })
    }

    /// Keys that may have signed a token with these names in its header; never none.
    ///
    /// # Errors
    /// There is none, as far as can be known now.
    pub async fn find(&self, kid: Option<&str>, x5t: Option<&str>) -> Result<Vec<VerifyingKey>, Error> {
        let unknown = || Error::Unknown { kid: shown(kid.or(x5t).unwrap_or("without a name")) };
        let published = self.published();
        let found = published.candidates(kid, x5t);
        let service = match &self.source {
            KeySource::Service(service) => service,
            KeySource::File(_) if !found.is_empty() => return Ok(found),
            KeySource::File(path) => {
                let found = self.read_again(path).await.candidates(kid, x5t);
                return if found.is_empty() { Err(unknown()) } else { Ok(found) };
            }
        };
        if published.is_fresh() && !found.is_empty() {
            return Ok(found);
        }

        let mut fetch_state = self.fetch_state.lock().await;
        // While this one waited for its fetch_state, another may have fetched them.
        let published = self.published();
        let mut found = published.candidates(kid, x5t);
        if published.is_fresh() && !found.is_empty() {
            return Ok(found);
        }
        if fetch_state.not_before.is_none_or(|moment| moment <= Instant::now()) {
            match fetch(service).await {
                Ok(new) => {
                    found = new.candidates(kid, x5t);
                    // A set that was due anyway takes nothing from those who miss a key.
                    let for_a_key = published.is_fresh() || found.is_empty();
                    let not_before = for_a_key.then(|| Instant::now() + REFETCH_INTERVAL);
                    self.publish(new);
                    *fetch_state = FetchState { not_before, failure: None };
                }
                Err(error) => {
                    // Whoever gets no key is told; whoever gets a former one would never know. Once for each outage.
                    if !found.is_empty() && fetch_state.failure.is_none() {
                        tracing::warn!(error = %Chain(&error), "fetch the identity service's keys; the former ones stay");
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

    /// Looks at a file once more, if it was not looked at a moment ago; whether it holds other keys than before.
    pub async fn have_changed(&self) -> bool {
        let KeySource::File(path) = &self.source else { return false };
        let before = self.published();
        self.read_again(path).await.keys != before.keys
    }

    /// The keys of the file as it is now, if it was not looked at a moment ago. One that cannot be used changes nothing.
    async fn read_again(&self, path: &Path) -> Arc<KeySet> {
        let mut fetch_state = self.fetch_state.lock().await;
        if fetch_state.not_before.is_none_or(|moment| moment <= Instant::now()) {
            fetch_state.not_before = Some(Instant::now() + REFETCH_INTERVAL);
            let path = path.to_owned();
            match tokio::task::spawn_blocking(move || read_file(&path)).await {
                Ok(Ok(new)) => self.publish(new),
                Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "the former keys stay"),
                // The process ends.
                Err(_) => {}
            }
        }
        self.published()
    }

    /// Who issues tokens by the word of the service that published the keys.
    pub fn issuer(&self) -> Option<String> {
        self.published().issuer.clone()
    }

    fn published(&self) -> Arc<KeySet> {
        Arc::clone(&self.published.read())
    }

    fn publish(&self, published: KeySet) {
        let mut place = self.published.write();
        let former = mem::replace(&mut *place, Arc::new(published));
        drop(place);
        drop(former);
    }
}

impl KeySet {
    fn is_fresh(&self) -> bool {
        self.fetched.is_some_and(|moment| moment.elapsed() < KEY_SET_LIFETIME)
    }

    /// Those by that name; else those without one; all for a token that names none. Which it was is for the signature to
    /// tell: a name only saves work, and shows when a set is out of date.
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

/// What a file holds.
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
        return Err(malformed("the key set holds no key that can be used"));
    }
    Ok(KeySet { keys, issuer: discovery.issuer, fetched: Some(Instant::now()) })
}

fn read_set(body: &[u8]) -> Result<Vec<VerifyingKey>, &'static str> {
    let set: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| "the key set is no JSON object")?;
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
