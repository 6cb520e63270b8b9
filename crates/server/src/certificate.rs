//! Server certificates: reads PEM files into a TLS configuration, and reloads them when the files change.
//!
//! - Open connections keep their certificate; the next handshake uses the new one.
//! - If the files cannot be used, such as halfway through a renewal, the old certificate stays, the log says so once, and the
//!   next check reads the files again.
//! - The authorities for client certificates ([`Certificates::load_verifying`]) reload together with the pair.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use sha2::{Digest, Sha256};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use base::{metrics, retry::ErrorChain};

use super::clients::{ReloadableVerifier, client_verifier};

/// Lower bound of the check interval.
const MIN_WATCH_INTERVAL: Duration = Duration::from_millis(1);

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct CertificateError {
    /// What was attempted.
    pub what: &'static str,
    /// Why it failed.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
struct Unreadable {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// TLS 1.2 and 1.3 with this chain and key, for HTTP/2 and HTTP/1.1.
///
/// # Errors
/// The PEM is invalid, or the key does not match the chain.
pub fn tls(chain: &str, key: &str) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certified = certified(chain, key, &provider)?;
    configuration(provider, Arc::new(SingleCertAndKey::from(certified)), None)
}

/// When the first certificate of a chain expires, in seconds since 1970. `None` if a certificate cannot be parsed.
fn expiry(chain: &str) -> Option<i64> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
    let ends = chain.map(|one| {
        let one = one.ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&one).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.collect::<Option<Vec<i64>>>()?.into_iter().min()
}

/// A certificate and its key in files that may change. See the module head.
#[derive(Debug)]
pub struct Certificates {
    chain: PathBuf,
    key: PathBuf,
    /// The PEM file of the client authorities, and its verifier.
    clients: Option<(PathBuf, Arc<ReloadableVerifier>)>,
    provider: Arc<CryptoProvider>,
    current: Arc<CurrentCertificate>,
    expiry: Option<i64>,
    /// Digest of the files that were read last.
    seen: [u8; 32],
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or is not PEM, or the key does not match the chain.
    pub fn load(chain: &Path, key: &Path) -> Result<Self, CertificateError> {
        Self::read(chain, key, None)
    }

    /// Like [`Certificates::load`], and verifies client certificates against the authorities in a PEM file. A client with another
    /// certificate fails the handshake; a client without one fails only if `required`.
    ///
    /// # Errors
    /// As [`Certificates::load`]; or the authorities cannot be read or are empty.
    pub fn load_verifying(
        chain: &Path,
        key: &Path,
        authorities: &Path,
        required: bool,
    ) -> Result<Self, CertificateError> {
        Self::read(chain, key, Some((authorities, required)))
    }

    fn read(chain: &Path, key: &Path, clients: Option<(&Path, bool)>) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let files = CertificateFiles::read(chain, key, clients.map(|(authorities, _)| authorities))?;
        let current = Arc::new(CurrentCertificate(RwLock::new(Arc::new(files.certified(&provider)?))));
        let clients = clients.zip(files.client_verifier(&provider)?).map(
            |((authorities, required), client_verifier)| {
                (authorities.to_owned(), Arc::new(ReloadableVerifier::new(client_verifier, required)))
            },
        );
        let (expiry, seen) = (expiry(&files.chain), files.digest());
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), clients, provider, current, expiry, seen })
    }

    /// TLS 1.2 and 1.3 with the current certificate, for HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// The TLS library rejects its own defaults.
    pub fn tls(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let current: Arc<dyn ResolvesServerCert> = Arc::<CurrentCertificate>::clone(&self.current);
        let clients = self.clients.as_ref().map(|(_, clients)| {
            let clients: Arc<dyn ClientCertVerifier> = Arc::<ReloadableVerifier>::clone(clients);
            clients
        });
        configuration(Arc::clone(&self.provider), current, clients)
    }

    /// Checks the files at this interval and reloads changed ones, until `stop`. `listener` is the metric label `rest` or
    /// `webhook`.
    pub async fn watch(mut self, listener: &'static str, every: Duration, stop: CancellationToken) {
        let mut ticks = interval(every.max(MIN_WATCH_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Logs each failure once, however often it repeats.
        let mut failing = String::new();
        self.report_expiry(listener);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            match self.reload().await {
                Ok(changed) => {
                    failing.clear();
                    if changed {
                        metrics::certificate_loaded(true);
                        self.report_expiry(listener);
                        tracing::info!(certificate = %self.chain.display(), "reloaded the changed certificate");
                    }
                }
                Err(error) => {
                    let error = ErrorChain(&error).to_string();
                    if error != failing {
                        metrics::certificate_loaded(false);
                        tracing::error!(
                            certificate = %self.chain.display(),
                            error = error,
                            "cannot use the changed certificate; the previous one stays in use"
                        );
                        failing = error;
                    }
                }
            }
        }
    }

    fn report_expiry(&self, listener: &'static str) {
        metrics::certificate_expires(listener, self.expiry.unwrap_or_default());
    }

    /// Reads the files; whether they have changed.
    async fn reload(&mut self) -> Result<bool, CertificateError> {
        let (chain, key) = (self.chain.clone(), self.key.clone());
        let authorities = self.clients.as_ref().map(|(file, _)| file.clone());
        let read =
            tokio::task::spawn_blocking(move || CertificateFiles::read(&chain, &key, authorities.as_deref()));
        let files = read.await.map_err(failed("read the certificate and key"))??;
        let digest = files.digest();
        if digest == self.seen {
            return Ok(false);
        }
        // Check both before replacing either.
        let certified = Arc::new(files.certified(&self.provider)?);
        let client_verifier = files.client_verifier(&self.provider)?;
        *self.current.0.write() = certified;
        if let (Some((_, clients)), Some(client_verifier)) = (&self.clients, client_verifier) {
            clients.replace(client_verifier);
        }
        (self.seen, self.expiry) = (digest, expiry(&files.chain));
        Ok(true)
    }
}

/// The certificate in use.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// Contents of the files.
struct CertificateFiles {
    chain: String,
    key: Zeroizing<String>,
    authorities: Option<String>,
}

impl CertificateFiles {
    fn read(chain: &Path, key: &Path, authorities: Option<&Path>) -> Result<Self, CertificateError> {
        let read = |path: &Path| {
            let unreadable = |source| Unreadable { path: path.to_owned(), source };
            std::fs::read_to_string(path).map_err(unreadable)
        };
        Ok(Self {
            chain: read(chain).map_err(failed("read the certificate chain"))?,
            key: Zeroizing::new(read(key).map_err(failed("read the private key"))?),
            authorities: authorities.map(read).transpose().map_err(failed(AUTHORITIES))?,
        })
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [&self.chain, self.key.as_str(), self.authorities.as_deref().unwrap_or_default()] {
            digest.update(part);
            digest.update([0]);
        }
        digest.finalize().into()
    }

    fn certified(&self, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
        certified(&self.chain, &self.key, provider)
    }

    /// A verifier for the client authorities, if they are configured.
    fn client_verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, CertificateError> {
        let Some(pem) = &self.authorities else { return Ok(None) };
        client_verifier(pem, provider)
            .map(Some)
            .map_err(|source| CertificateError { what: AUTHORITIES, source })
    }
}

const AUTHORITIES: &str = "read the certificates of client authorities";

fn certified(chain: &str, key: &str, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(failed("read the certificate chain"))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed("read the private key"))?;
    CertifiedKey::from_der(chain, key, provider).map_err(failed("serve with the certificate and key"))
}

fn configuration(
    provider: Arc<CryptoProvider>,
    certificates: Arc<dyn ResolvesServerCert>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, CertificateError> {
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed("choose TLS versions"))?;
    let verifies_clients = clients.is_some();
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certificates);
    if verifies_clients {
        // A resumed session skips verification and would outlive the authority that admitted the client.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: &'static str,
) -> impl FnOnce(E) -> CertificateError {
    move |source| CertificateError { what, source: source.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Writes a new certificate with its own key, or with a key that does not match.
    fn renew(directory: &Path, fits: bool) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        let key = if fits { &made.signing_key } else { &other };
        fs::write(directory.join("chain"), made.cert.pem()).unwrap();
        fs::write(directory.join("key"), key.serialize_pem()).unwrap();
    }

    fn served(certificates: &Certificates) -> Vec<u8> {
        certificates.current.0.read().cert[0].to_vec()
    }

    #[tokio::test]
    async fn changed_files_reload_once_and_unusable_files_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = (directory.path().join("chain"), directory.path().join("key"));
        renew(directory.path(), true);
        let mut certificates = Certificates::load(&chain, &key).unwrap();
        let first = served(&certificates);
        assert!(!certificates.reload().await.unwrap());

        renew(directory.path(), true);
        assert!(certificates.reload().await.unwrap());
        assert!(!certificates.reload().await.unwrap());
        let second = served(&certificates);
        assert_ne!(first, second);
        renew(directory.path(), false);
        assert!(certificates.reload().await.is_err());
        fs::write(&chain, "no certificate").unwrap();
        assert!(certificates.reload().await.is_err());
        fs::remove_file(&chain).unwrap();
        assert!(certificates.reload().await.is_err());
        assert_eq!(served(&certificates), second);

        renew(directory.path(), true);
        assert!(certificates.reload().await.unwrap());
        assert_ne!(served(&certificates), second);
    }

    #[tokio::test]
    async fn a_chain_expires_with_its_first_certificate() {
        let ends = |year: i32| {
            let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 3, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let ((early, key), (late, other)) = (ends(2031), ends(2061));
        let (of_early, of_late) = (1_930_089_600, 2_876_860_800);

        assert_eq!(expiry(&early), Some(of_early));
        assert_eq!(expiry(&late), Some(of_late), "a year that needs another notation");
        assert_eq!(expiry(&format!("{late}{early}")), Some(of_early));
        assert_eq!((expiry(""), expiry("no certificate")), (None, None));
        let directory = tempfile::tempdir().unwrap();
        let (chain_file, key_file) = (directory.path().join("chain"), directory.path().join("key"));
        fs::write(&chain_file, early).unwrap();
        fs::write(&key_file, key).unwrap();
        let mut certificates = Certificates::load(&chain_file, &key_file).unwrap();
        assert_eq!(certificates.expiry, Some(of_early));
        fs::write(&chain_file, late).unwrap();
        assert!(certificates.reload().await.is_err(), "the key does not fit");
        assert_eq!(certificates.expiry, Some(of_early));
        fs::write(&key_file, other).unwrap();
        assert!(certificates.reload().await.unwrap());
        assert_eq!(certificates.expiry, Some(of_late));
    }

    #[tokio::test]
    async fn client_authorities_reload_and_a_broken_file_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let [chain, key, authorities] =
            ["chain", "key", "authorities"].map(|file| directory.path().join(file));
        renew(directory.path(), true);
        let authority = || rcgen::generate_simple_self_signed(["authority".to_owned()]).unwrap().cert.pem();
        let load = || Certificates::load_verifying(&chain, &key, &authorities, true);
        for text in [None, Some("no certificate")] {
            if let Some(text) = text {
                fs::write(&authorities, text).unwrap();
            }
            let error = ErrorChain(&load().unwrap_err()).to_string();
            assert!(error.starts_with("read the certificates of client authorities: "), "{error}");
        }
        fs::write(&authorities, authority()).unwrap();

        let mut certificates = load().unwrap();
        assert!(!certificates.reload().await.unwrap());
        fs::write(&authorities, authority() + &authority()).unwrap();
        assert!(certificates.reload().await.unwrap());
        let before = served(&certificates);
        renew(directory.path(), true);
        fs::write(&authorities, "").unwrap();
        assert!(certificates.reload().await.is_err());

        assert_eq!(served(&certificates), before, "all files reload or none does");
    }

    #[test]
    fn a_missing_file_is_named_and_no_key_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = (directory.path().join("chain"), directory.path().join("key"));
        let missing = Certificates::load(&chain, &key).unwrap_err();
        renew(directory.path(), false);
        let secret = fs::read_to_string(&key).unwrap();
        let unfit = Certificates::load(&chain, &key).unwrap_err();

        let error = ErrorChain(&missing).to_string();

        assert!(error.contains(&chain.display().to_string()), "{error}");
        let line = secret.lines().nth(1).unwrap();
        assert!(!format!("{unfit:?} {}", ErrorChain(&unfit)).contains(line));
    }
}
