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

use base::retry::{ErrorChain, Retry};

use super::{
    discovery::{self, DOCUMENT_BYTES},
    identity::{self, Identity},
    key::Key,
    token::shown,
};

/// How long a key set is good.
const FRESH: Duration = Duration::from_secs(86_400);
/// After a fetch for an unknown key, the next one for any.
const AGAIN: Duration = Duration::from_secs(60);
/// The same after a fetch that failed.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// More keys than this are nobody's.
const MOST: usize = 64;

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
            // Published a little later than used, or a token that nobody should have.
            Self::Unknown { .. } => Retry::Later,
            Self::Fetch(error) => error.retry(),
            Self::File { .. } => Retry::Never,
        }
    }
}

/// The keys of one identity service.
#[derive(Debug)]
pub struct Keys {
    source: Source,
    published: RwLock<Arc<Published>>,
    turn: Mutex<Turn>,
}

/// Where keys are from.
#[derive(Debug)]
enum Source {
    Service(Identity),
    File(PathBuf),
}

#[derive(Debug, Default)]
struct Published {
    keys: Vec<Key>,
    issuer: Option<String>,
    /// `None` before the first fetch.
    fetched: Option<Instant>,
}

/// Of whoever fetches next.
#[derive(Debug, Default)]
struct Turn {
    not_before: Option<Instant>,
    failure: Option<Arc<identity::Error>>,
}

impl Keys {
    /// The keys that the service publishes; nothing is fetched before one is needed.
    pub fn discovered(service: Identity) -> Self {
        Self { source: Source::Service(service), published: RwLock::default(), turn: Mutex::default() }
    }

    /// The keys of a file: public keys or certificates as PEM, or a key set as JSON.
    ///
    /// # Errors
    /// It holds no key that can be used.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let published = RwLock::new(Arc::new(read_file(path)?));
        Ok(Self { source: Source::File(path.to_owned()), published, turn: Mutex::default() })
    }

    /// Keys that may have signed a token with these names in its header; never none.
    ///
    /// # Errors
    /// There is none, as far as can be known now.
    pub async fn find(&self, kid: Option<&str>, x5t: Option<&str>) -> Result<Vec<Key>, Error> {
        let unknown = || Error::Unknown { kid: shown(kid.or(x5t).unwrap_or("without a name")) };
        let published = self.published();
        let found = published.candidates(kid, x5t);
        let service = match &self.source {
            Source::Service(service) => service,
            Source::File(_) if !found.is_empty() => return Ok(found),
            Source::File(path) => {
                let found = self.read_again(path).await.candidates(kid, x5t);
                return if found.is_empty() { Err(unknown()) } else { Ok(found) };
            }
        };
        if published.is_fresh() && !found.is_empty() {
            return Ok(found);
        }

        let mut turn = self.turn.lock().await;
        // While this one waited for its turn, another may have fetched them.
        let published = self.published();
        let mut found = published.candidates(kid, x5t);
        if published.is_fresh() && !found.is_empty() {
            return Ok(found);
        }
        if turn.not_before.is_none_or(|moment| moment <= Instant::now()) {
            match fetch(service).await {
                Ok(new) => {
                    found = new.candidates(kid, x5t);
                    // A set that was due anyway takes nothing from those who miss a key.
                    let for_a_key = published.is_fresh() || found.is_empty();
                    let not_before = for_a_key.then(|| Instant::now() + AGAIN);
                    self.publish(new);
                    *turn = Turn { not_before, failure: None };
                }
                Err(error) => {
                    // Whoever gets no key is told; whoever gets a former one would never know. Once for each outage.
                    if !found.is_empty() && turn.failure.is_none() {
                        tracing::warn!(error = %ErrorChain(&error), "fetch the identity service's keys; the former ones stay");
                    }
                    turn.not_before = Some(Instant::now() + AGAIN_AFTER_FAILURE);
                    turn.failure = Some(Arc::new(error));
                }
            }
        }
        match &turn.failure {
            _ if !found.is_empty() => Ok(found),
            Some(failure) => Err(Error::Fetch(Arc::clone(failure))),
            None => Err(unknown()),
        }
    }

    /// Looks at a file once more, if it was not looked at a moment ago; whether it holds other keys than before.
    pub async fn have_changed(&self) -> bool {
        let Source::File(path) = &self.source else { return false };
        let before = self.published();
        self.read_again(path).await.keys != before.keys
    }

    /// The keys of the file as it is now, if it was not looked at a moment ago. One that cannot be used changes nothing.
    async fn read_again(&self, path: &Path) -> Arc<Published> {
        let mut turn = self.turn.lock().await;
        if turn.not_before.is_none_or(|moment| moment <= Instant::now()) {
            turn.not_before = Some(Instant::now() + AGAIN);
            let path = path.to_owned();
            match tokio::task::spawn_blocking(move || read_file(&path)).await {
                Ok(Ok(new)) => self.publish(new),
                Ok(Err(error)) => tracing::warn!(error = %ErrorChain(&error), "the former keys stay"),
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

    fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published.read())
    }

    fn publish(&self, published: Published) {
        let mut place = self.published.write();
        let former = mem::replace(&mut *place, Arc::new(published));
        drop(place);
        drop(former);
    }
}

impl Published {
    fn is_fresh(&self) -> bool {
        self.fetched.is_some_and(|moment| moment.elapsed() < FRESH)
    }

    /// Those by that name; else those without one; all for a token that names none. Which it was is for the signature to
    /// tell: a name only saves work, and shows when a set is out of date.
    fn candidates(&self, kid: Option<&str>, x5t: Option<&str>) -> Vec<Key> {
        let chosen = |choose: &dyn Fn(&Key) -> bool| -> Vec<Key> {
            self.keys.iter().filter(|key| choose(key)).cloned().collect()
        };
        let names: Vec<&str> = [kid, x5t].into_iter().flatten().collect();
        if names.is_empty() {
            return self.keys.clone();
        }
        let named = chosen(&|key| names.iter().any(|name| key.is_named(name)));
        if named.is_empty() { chosen(&|key| !key.has_name()) } else { named }
    }
}

/// What a file holds.
fn read_file(path: &Path) -> Result<Published, Error> {
    let wrong = |what: String| Error::File { path: path.to_owned(), what };
    let size = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > DOCUMENT_BYTES as u64 {
        return Err(wrong(format!("it is larger than {DOCUMENT_BYTES} bytes")));
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
    Ok(Published { keys, ..Published::default() })
}

async fn fetch(service: &Identity) -> Result<Published, identity::Error> {
    let discovery = discovery::fetch(service).await?;
    let body = service.fetch(&discovery.keys, DOCUMENT_BYTES).await?;
    let malformed = |what| identity::Error::Malformed { what };
    let keys = read_set(&body).map_err(malformed)?;
    if keys.is_empty() {
        return Err(malformed("the key set holds no key that can be used"));
    }
    Ok(Published { keys, issuer: discovery.issuer, fetched: Some(Instant::now()) })
}

fn read_set(body: &[u8]) -> Result<Vec<Key>, &'static str> {
    let set: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| "the key set is no JSON object")?;
    let entries = set.get("keys").and_then(Value::as_array).ok_or("the key set has no list of keys")?;
    Ok(entries.iter().filter_map(Value::as_object).filter_map(Key::from_json).take(MOST).collect())
}

fn read_pem(content: &[u8]) -> Vec<Key> {
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(content).filter_map(Result::ok);
    let key = |(kind, der): (SectionKind, Vec<u8>)| match kind {
        SectionKind::PublicKey => Key::from_der(None, None, &der),
        SectionKind::Certificate => Key::from_certificate(None, &der),
        _ => None,
    };
    sections.filter_map(key).take(MOST).collect()
}

#[cfg(test)]
mod tests;
