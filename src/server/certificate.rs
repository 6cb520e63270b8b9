//! Certificates of listeners: PEM in, a TLS configuration out.

use std::sync::Arc;

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

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

/// TLS 1.2 and 1.3 with this chain and key, for HTTP/2 and HTTP/1.1.
///
/// # Errors
/// The texts are no PEM, or chain and key do not fit each other.
pub fn tls(chain: &str, key: &str) -> Result<Arc<ServerConfig>, CertificateError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(failed("read the certificate chain"))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed("read the private key"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed("choose TLS versions"))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(failed("serve with the certificate and key"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: &'static str,
) -> impl FnOnce(E) -> CertificateError {
    move |source| CertificateError { what, source: source.into() }
}
