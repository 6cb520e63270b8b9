use std::{path::PathBuf, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer, server::WebPkiClientVerifier,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::*;

/// An authority of the test's own, with the files a user would configure.
struct TestAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes a client certificate and its key.
    fn write_client(&self) {
        let (certificate, key) = self.issue("worker");
        std::fs::write(self.file("client.pem"), certificate.pem()).unwrap();
        std::fs::write(self.file("client.key"), key.serialize_pem()).unwrap();
    }

    fn client(&self) -> config::TlsFiles {
        config::TlsFiles { certificate: self.file("client.pem"), key: self.file("client.key") }
    }

    /// A registry on TLS that asks for a client certificate of this authority and answers every request with one schema.
    async fn serve(&self) -> url::Url {
        let (certificate, key) = self.issue("localhost");
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                let mut request = [0; 4096];
                if stream.read(&mut request).await.is_err() {
                    continue;
                }
                let body = r#"{"schema":"\"string\""}"#;
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        });
        url::Url::parse(&format!("https://localhost:{port}")).unwrap()
    }
}

#[tokio::test]
async fn mutual_tls_works_with_a_ca_file_and_a_client_certificate() {
    let authority = TestAuthority::new();
    authority.write_client();
    let mut config = config::RegistrySettings::open(authority.serve().await);
    config.ca = Some(authority.file("ca.pem"));
    config.client = Some(authority.client());

    let found = Registry::new(&config).unwrap().schema(1).await;

    assert_eq!(found.unwrap().unwrap().schema, "\"string\"");
}

#[tokio::test]
async fn without_the_client_certificate_or_the_ca_there_is_no_answer() {
    let authority = TestAuthority::new();
    authority.write_client();
    let mut no_client = config::RegistrySettings::open(authority.serve().await);
    no_client.ca = Some(authority.file("ca.pem"));
    let mut no_ca = config::RegistrySettings::open(authority.serve().await);
    no_ca.client = Some(authority.client());

    for config in [no_client, no_ca] {
        let error = Registry::new(&config).unwrap().schema(1).await.unwrap_err();

        assert!(matches!(error, Error::Transport { .. }), "{error:?}");
    }
}

#[test]
fn file_without_a_certificate_is_refused_by_name() {
    let authority = TestAuthority::new();
    std::fs::write(authority.file("empty.pem"), "not a certificate").unwrap();
    let mut config = config::RegistrySettings::open(url::Url::parse("https://localhost").unwrap());
    config.ca = Some(authority.file("empty.pem"));

    let error = Registry::new(&config).unwrap_err();

    assert!(error.to_string().contains("empty.pem"), "{error}");
}
