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
    fmt, fs, mem,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use aws_lc_rs::{
    digest,
    rsa::PublicKey,
    signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rustls::pki_types::{
    CertificateDer,
    pem::{PemObject, SectionKind},
};
use serde_json::{Map, Value};
use tokio::{sync::Mutex, time::Instant};

use super::{
    discovery::{self, DOCUMENT_BYTES},
    identity::{self, Identity},
    token::shown,
};
use crate::retry::{Chain, Retry};

/// How long a key set is good.
const FRESH: Duration = Duration::from_secs(86_400);
/// After a fetch for an unknown key, the next one for any.
const AGAIN: Duration = Duration::from_secs(60);
/// The same after a fetch that failed.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// More keys than this are nobody's.
const MOST: usize = 64;

/// A public RSA key. Clones are cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Arc<Material>);

#[derive(PartialEq, Eq)]
struct Material {
    /// The name it goes by.
    kid: Option<String>,
    /// The thumbprint of its certificate.
    x5t: Option<String>,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

impl Key {
    /// Whether the key's owner has signed this with RS256.
    #[must_use]
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        RsaPublicKeyComponents { n: &self.0.modulus, e: &self.0.exponent }
            .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            .is_ok()
    }

    /// A key by its two numbers.
    fn new(kid: Option<String>, x5t: Option<String>, modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let [modulus, exponent] = [modulus, exponent].map(without_zeros);
        // In bytes: the sizes that a signature is accepted with.
        ((256..=1_024).contains(&modulus.len()) && (1..=8).contains(&exponent.len())).then(|| {
            Self(Arc::new(Material { kid, x5t, modulus: modulus.to_vec(), exponent: exponent.to_vec() }))
        })
    }

    /// A key as PKCS#1 or SPKI has it.
    fn from_der(kid: Option<String>, x5t: Option<String>, der: &[u8]) -> Option<Self> {
        let key = PublicKey::from_der(der).ok()?;
        let (modulus, exponent) = (key.modulus(), key.exponent());
        Self::new(
            kid,
            x5t,
            modulus.big_endian_without_leading_zero(),
            exponent.big_endian_without_leading_zero(),
        )
    }

    /// The key of a certificate, which is not looked at for anything else: who trusts the file or the set trusts it.
    fn from_certificate(kid: Option<String>, der: &[u8]) -> Option<Self> {
        let thumbprint = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, der);
        let der = CertificateDer::from(der);
        let certificate = webpki::EndEntityCert::try_from(&der).ok()?;
        let x5t = Some(URL_SAFE_NO_PAD.encode(thumbprint));
        Self::from_der(kid, x5t, &certificate.subject_public_key_info())
    }

    /// A key of a set.
    fn from_json(entry: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let is_for_us = text("kty") == Some("RSA")
            && text("use").is_none_or(|purpose| purpose == "sig")
            && text("alg").is_none_or(|algorithm| algorithm == "RS256");
        if !is_for_us {
            return None;
        }
        let kid = text("kid").map(str::to_owned);
        let number = |name| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
        if let (Some(modulus), Some(exponent)) = (number("n"), number("e")) {
            return Self::new(kid, text("x5t").map(str::to_owned), &modulus, &exponent);
        }
        let certificate = entry.get("x5c")?.as_array()?.first()?.as_str()?;
        Self::from_certificate(kid, &STANDARD.decode(certificate).ok()?)
    }

    fn is_named(&self, name: &str) -> bool {
        [&self.0.kid, &self.0.x5t].into_iter().flatten().any(|own| own == name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("kid", &self.0.kid).field("x5t", &self.0.x5t).finish_non_exhaustive()
    }
}

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
    #[must_use]
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
    #[must_use]
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
                        tracing::warn!(error = %Chain(&error), "fetch the identity service's keys; the former ones stay");
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
                Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "the former keys stay"),
                // The process ends.
                Err(_) => {}
            }
        }
        self.published()
    }

    /// Who issues tokens by the word of the service that published the keys.
    #[must_use]
    pub fn issuer(&self) -> Option<String> {
        self.published().issuer.clone()
    }

    fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn publish(&self, published: Published) {
        let mut place = self.published.write().unwrap_or_else(PoisonError::into_inner);
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
        if named.is_empty() { chosen(&|key| key.0.kid.is_none()) } else { named }
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

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests;
