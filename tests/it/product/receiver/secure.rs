//! Deliveries over TLS: both versions of each protocol.

use std::fs;

use reqwest::{Client, tls::Version as Tls};
use server::Certificates;

use super::rig::{ACCOUNTING, PATIENCE, Rig, SECRET, event, sign};

crate::tests! {
    plain deliveries_come_in_by_both_versions_of_tls_and_of_http;
}

async fn deliveries_come_in_by_both_versions_of_tls_and_of_http() {
    let directory = tempfile::tempdir().unwrap();
    let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let trusted = reqwest::Certificate::from_der(made.cert.der()).unwrap();
    let certificates = Certificates::load(&chain, &key).unwrap();
    let rig = Rig::with(|setup| setup.server.tls = Some(certificates.tls().unwrap())).await;
    let client = || Client::builder().no_proxy().timeout(PATIENCE).tls_certs_only([trusted.clone()]);
    let (url, body) = (format!("https://{}{ACCOUNTING}", rig.address), event("1"));

    for tls in [Tls::TLS_1_2, Tls::TLS_1_3] {
        for (client, http) in
            [(client(), reqwest::Version::HTTP_2), (client().http1_only(), reqwest::Version::HTTP_11)]
        {
            let client = client.tls_version_min(tls).tls_version_max(tls).build().unwrap();

            let request = client.post(&url).header("svc-webhook-signature", sign(SECRET, &body));
            let answer = request.body(body.clone()).send().await.unwrap();

            assert_eq!((answer.status().as_u16(), answer.version()), (200, http), "{tls:?}");
            let mut names: Vec<_> = answer.headers().keys().map(|name| name.as_str().to_owned()).collect();
            names.sort();
            assert_eq!(names, ["content-length", "date"], "{tls:?} {http:?}");
            assert_eq!(answer.bytes().await.unwrap().len(), 0);
        }
    }
    assert_eq!(rig.taken.drain().len(), 4);
}
