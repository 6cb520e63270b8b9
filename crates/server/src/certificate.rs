//! Certificates of listeners: PEM in, a TLS configuration out, and another certificate in it once the files change.
//!
//! - A connection keeps what it shook hands with; the next one gets what is there then.
//! - A pair that cannot be served, such as half of a renewal, changes nothing: the one before stays, the log says so once, and
//!   the files are looked at again.
//! - The certificates of client authorities ([`Certificates::load_verifying`]) reload together with the pair.

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

use super::clients::{Clients, trusting};

/// The files are looked at no more often than this.
const OFTENEST: Duration = Duration::from_millis(1);

/// Why a certificate cannot be served.
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
/// The texts are no PEM, or chain and key do not fit each other.
pub fn tls(chain: &str, key: &str) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certified = certified(chain, key, &provider)?;
    configuration(provider, Arc::new(SingleCertAndKey::from(certified)), None)
}

/// When the first certificate of a chain ends, in seconds since 1970. `None` where that cannot be read.
fn expiry(chain: &str) -> Option<i64> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
    let ends = chain.map(|one| {
        let one = one.ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&one).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.collect::<Option<Vec<i64>>>()?.into_iter().min()
}

/// A certificate and its key in two files, which may change while they are served. See the module's head.
#[derive(Debug)]
pub struct Certificates {
    chain: PathBuf,
    key: PathBuf,
    /// PEM file of the client authorities, and the verifier that follows it.
    clients: Option<(PathBuf, Arc<Clients>)>,
    provider: Arc<CryptoProvider>,
    current: Arc<Current>,
    expiry: Option<i64>,
    /// Of the contents that were last looked at.
    seen: [u8; 32],
}

impl Certificates {
    /// Reads them.
    ///
    /// # Errors
    /// A file cannot be read, is no PEM, or the two do not fit each other.
    pub fn load(chain: &Path, key: &Path) -> Result<Self, CertificateError> {
        Self::read(chain, key, None)
    }

    /// The same, and asks clients for a certificate that an authority in a PEM file has issued. A client that shows another one
    /// is refused in the handshake; a client that shows none only where certificates are `required`.
    ///
    /// # Errors
    /// As [`Certificates::load`]; or the file of authorities cannot be read, or holds no certificate.
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
        let contents = Contents::read(chain, key, clients.map(|(authorities, _)| authorities))?;
        let current = Arc::new(Current(RwLock::new(Arc::new(contents.certified(&provider)?))));
        let clients =
            clients.zip(contents.trusting(&provider)?).map(|((authorities, required), trusting)| {
                (authorities.to_owned(), Arc::new(Clients::new(trusting, required)))
            });
        let (expiry, seen) = (expiry(&contents.chain), contents.digest());
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), clients, provider, current, expiry, seen })
    }

    /// TLS 1.2 and 1.3 with whatever was taken up last, for HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// The TLS library refuses its own defaults.
    pub fn tls(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let current: Arc<dyn ResolvesServerCert> = Arc::<Current>::clone(&self.current);
        let clients = self.clients.as_ref().map(|(_, clients)| {
            let clients: Arc<dyn ClientCertVerifier> = Arc::<Clients>::clone(clients);
            clients
        });
        configuration(Arc::clone(&self.provider), current, clients)
    }

    /// Looks at the files this often and takes up what has changed, until it is told to stop. `listener` is `rest` or `webhook`,
    /// as metrics name it.
    pub async fn watch(mut self, listener: &'static str, every: Duration, stop: CancellationToken) {
        let mut ticks = interval(every.max(OFTENEST));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // One line for each failure, however often it is met.
        let mut failing = String::new();
        self.report_expiry(listener);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            match self.look().await {
                Ok(changed) => {
                    failing.clear();
                    if changed {
                        metrics::certificate_loaded(true);
                        self.report_expiry(listener);
                        tracing::info!(certificate = %self.chain.display(), "a changed certificate was taken up");
                    }
                }
                Err(error) => {
                    let told = ErrorChain(&error).to_string();
                    if told != failing {
                        metrics::certificate_loaded(false);
                        tracing::error!(
                            certificate = %self.chain.display(),
                            error = told,
                            "a changed certificate cannot be served, the one before stays"
                        );
                        failing = told;
                    }
                }
            }
        }
    }

    fn report_expiry(&self, listener: &'static str) {
        metrics::certificate_expires(listener, self.expiry.unwrap_or_default());
    }

    /// Takes up what is in the files. Whether that was new.
    async fn look(&mut self) -> Result<bool, CertificateError> {
        let (chain, key) = (self.chain.clone(), self.key.clone());
        let authorities = self.clients.as_ref().map(|(file, _)| file.clone());
        let read = tokio::task::spawn_blocking(move || Contents::read(&chain, &key, authorities.as_deref()));
        let contents = read.await.map_err(failed("read the certificate and key"))??;
        let digest = contents.digest();
        if digest == self.seen {
            return Ok(false);
        }
        // Both are sound before either is replaced.
        let certified = Arc::new(contents.certified(&self.provider)?);
        let trusting = contents.trusting(&self.provider)?;
        *self.current.0.write() = certified;
        if let (Some((_, clients)), Some(trusting)) = (&self.clients, trusting) {
            clients.replace(trusting);
        }
        (self.seen, self.expiry) = (digest, expiry(&contents.chain));
        Ok(true)
    }
}

/// The certificate of the moment.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// What is in the files.
struct Contents {
    chain: String,
    key: Zeroizing<String>,
    authorities: Option<String>,
}

impl Contents {
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

    /// A verifier of clients that trusts the authorities, where there is a file of them.
    fn trusting(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, CertificateError> {
        let Some(pem) = &self.authorities else { return Ok(None) };
        trusting(pem, provider).map(Some).map_err(|source| CertificateError { what: AUTHORITIES, source })
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
        // A resumed session is not verified again: it would outlive the authority that let the client in.
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

    /// Writes another certificate with its key, or with that of somebody else.
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
    async fn what_changed_is_taken_up_once_and_what_cannot_be_served_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = (directory.path().join("chain"), directory.path().join("key"));
        renew(directory.path(), true);
        let mut certificates = Certificates::load(&chain, &key).unwrap();
        let first = served(&certificates);
        assert!(!certificates.look().await.unwrap());

        renew(directory.path(), true);
        assert!(certificates.look().await.unwrap());
        assert!(!certificates.look().await.unwrap());
        let second = served(&certificates);
        assert_ne!(first, second);
        renew(directory.path(), false);
        assert!(certificates.look().await.is_err());
        fs::write(&chain, "no certificate").unwrap();
        assert!(certificates.look().await.is_err());
        fs::remove_file(&chain).unwrap();
        assert!(certificates.look().await.is_err());
        assert_eq!(served(&certificates), second);

        renew(directory.path(), true);
        assert!(certificates.look().await.unwrap());
        assert_ne!(served(&certificates), second);
    }

    #[tokio::test]
    async fn a_chain_ends_with_the_first_of_its_certificates_and_with_the_one_that_is_taken_up() {
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
        assert!(certificates.look().await.is_err(), "the key does not fit");
        assert_eq!(certificates.expiry, Some(of_early));
        fs::write(&key_file, other).unwrap();
        assert!(certificates.look().await.unwrap());
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
            let told = ErrorChain(&load().unwrap_err()).to_string();
            assert!(told.starts_with("read the certificates of client authorities: "), "{told}");
        }
        fs::write(&authorities, authority()).unwrap();

        let mut certificates = load().unwrap();
        assert!(!certificates.look().await.unwrap());
        fs::write(&authorities, authority() + &authority()).unwrap();
        assert!(certificates.look().await.unwrap());
        let before = served(&certificates);
        renew(directory.path(), true);
        fs::write(&authorities, "").unwrap();
        assert!(certificates.look().await.is_err());

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

        let told = ErrorChain(&missing).to_string();

        assert!(told.contains(&chain.display().to_string()), "{told}");
        let line = secret.lines().nth(1).unwrap();
        assert!(!format!("{unfit:?} {}", ErrorChain(&unfit)).contains(line));
    }
}
