//! Deliveries over TLS: both versions of each protocol, and a certificate that is renewed meanwhile.

use std::{fs, path::Path, time::Duration};

use reqwest::{Client, tls::Version as Tls};
use server::Certificates;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::rig::{ACCOUNTING, PATIENCE, Rig, SECRET, event, sign};

crate::tests! {
    plain deliveries_come_in_by_both_versions_of_tls_and_of_http;
    plain a_renewed_certificate_is_served_without_ending_a_connection;
}

/// A certificate for loopback in two files, and as clients trust it.
fn certificate(directory: &Path) -> reqwest::Certificate {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(directory.join("chain.pem"), made.cert.pem()).unwrap();
    fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    reqwest::Certificate::from_der(made.cert.der()).unwrap()
}

fn client(trusted: &reqwest::Certificate) -> reqwest::ClientBuilder {
    Client::builder().no_proxy().timeout(PATIENCE).tls_certs_only([trusted.clone()])
}

async fn deliver(client: &Client, rig: &Rig) -> reqwest::Result<reqwest::Response> {
    let body = event("1");
    let request = client.post(format!("https://{}{ACCOUNTING}", rig.address));
    request.header("svc-webhook-signature", sign(SECRET, &body)).body(body).send().await
}

async fn start(certificates: &Certificates) -> Rig {
    Rig::with(|setup| setup.server.tls = Some(certificates.tls().unwrap())).await
}

async fn deliveries_come_in_by_both_versions_of_tls_and_of_http() {
    let directory = tempfile::tempdir().unwrap();
    let trusted = certificate(directory.path());
    let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
    let rig = start(&Certificates::load(&chain, &key).unwrap()).await;

    for tls in [Tls::TLS_1_2, Tls::TLS_1_3] {
        for (client, http) in [
            (client(&trusted), reqwest::Version::HTTP_2),
            (client(&trusted).http1_only(), reqwest::Version::HTTP_11),
        ] {
            let client = client.tls_version_min(tls).tls_version_max(tls).build().unwrap();

            let answer = deliver(&client, &rig).await.unwrap();

            assert_eq!((answer.status().as_u16(), answer.version()), (200, http), "{tls:?}");
            let mut names: Vec<_> = answer.headers().keys().map(|name| name.as_str().to_owned()).collect();
            names.sort();
            assert_eq!(names, ["content-length", "date"], "{tls:?} {http:?}");
            assert_eq!(answer.bytes().await.unwrap().len(), 0);
        }
    }
    assert_eq!(rig.taken.drain().len(), 4);
}

async fn a_renewed_certificate_is_served_without_ending_a_connection() {
    let directory = tempfile::tempdir().unwrap();
    let old = certificate(directory.path());
    let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
    let certificates = Certificates::load(&chain, &key).unwrap();
    let rig = start(&certificates).await;
    let stop = CancellationToken::new();
    let watching = tokio::spawn(certificates.watch("webhook", Duration::from_millis(10), stop.clone()));
    let before = client(&old).build().unwrap();
    assert_eq!(deliver(&before, &rig).await.unwrap().status(), 200);

    let new = certificate(directory.path());
    let after = client(&new).build().unwrap();
    let renewed = timeout(PATIENCE, async {
        loop {
            match deliver(&after, &rig).await {
                Ok(answer) => break answer.status(),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    assert_eq!(renewed.await.unwrap(), 200);
    // It trusts only the old certificate, so this is the old connection.
    assert_eq!(deliver(&before, &rig).await.unwrap().status(), 200);
    assert!(deliver(&client(&old).build().unwrap(), &rig).await.is_err());

    // Half of a renewal, with a key that does not match: the present certificate stays.
    fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    for _ in 0..20 {
        let next = client(&new).build().unwrap();
        assert_eq!(deliver(&next, &rig).await.unwrap().status(), 200);
    }
    stop.cancel();
    watching.await.unwrap();
}
