//! Client certificates: a verifier whose authorities can be reloaded while it is in use.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

/// A verifier that trusts the authorities in `pem`.
///
/// # Errors
/// `pem` is invalid, or has no usable authority certificate.
pub(super) fn client_verifier(
    pem: &str,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(builder.build()?)
}

/// The client verifier of a listener. Its authorities reload; whether a certificate is required does not.
#[derive(Debug)]
pub(super) struct ReloadableVerifier {
    required: bool,
    current: RwLock<Arc<dyn ClientCertVerifier>>,
}

impl ReloadableVerifier {
    pub(super) fn new(verifier: Arc<dyn ClientCertVerifier>, required: bool) -> Self {
        Self { required, current: RwLock::new(verifier) }
    }

    /// Replaces the authorities, from the next handshake on.
    pub(super) fn replace(&self, verifier: Arc<dyn ClientCertVerifier>) {
        *self.current.write() = verifier;
    }

    fn current(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.current.read())
    }
}

impl ClientCertVerifier for ReloadableVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    /// Empty, because the hints would have to outlive a reload. Clients then present the certificate that they have.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.current().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().supported_verify_schemes()
    }
}
