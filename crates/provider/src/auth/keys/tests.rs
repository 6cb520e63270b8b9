use aws_lc_rs::digest;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD},
};
use serde_json::json;

use super::*;
use crate::auth::{
    http::ProviderClock,
    tests::stub::{Act, DISCOVERY, FIRST, ISSUER, KEY_SET, SECOND, Signer, Stub},
};

fn keys(stub: &Stub) -> Keys {
    let clock = ProviderClock::new(Duration::from_secs(300));
    Keys::discovered(Identity::new(&stub.provider(), clock).unwrap())
}

/// Whether one of these keys is the signer's.
fn has(keys: &[VerifyingKey], signer: &Signer) -> bool {
    let token = signer.sign(&json!({}));
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    keys.iter().any(|key| key.has_signed(signed.as_bytes(), &signature))
}

async fn found(keys: &Keys, signer: &Signer) -> bool {
    keys.find(Some(signer.kid), None).await.is_ok_and(|keys| has(&keys, signer))
}

fn from_file(content: &str) -> Result<Keys, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    fs::write(&path, content).unwrap();
    Keys::from_file(&path)
}

#[tokio::test]
async fn concurrent_callers_fetch_the_keys_once() {
    let stub = Stub::start().await;
    stub.publish(&[FIRST.published()]);
    let keys = keys(&stub);
    assert!(stub.seen(DISCOVERY).is_empty());

    let asking = futures::future::join_all((0..50).map(|_| found(&keys, &FIRST))).await;

    assert!(asking.into_iter().all(|found| found));
    assert_eq!((stub.seen(DISCOVERY).len(), stub.seen(KEY_SET).len()), (1, 1));
    assert_eq!(keys.issuer().as_deref(), Some(ISSUER));
}

#[tokio::test]
async fn an_unknown_key_causes_one_fetch_per_minute() {
    let stub = Stub::start().await;
    stub.publish(&[FIRST.published()]);
    let keys = keys(&stub);
    assert!(found(&keys, &FIRST).await);
    stub.publish(&[SECOND.published()]);

    assert!(found(&keys, &SECOND).await);
    assert!(!found(&keys, &FIRST).await, "it is not published any more");
    assert_eq!(stub.seen(KEY_SET).len(), 2);

    for minute in 2..5 {
        for _ in 0..3 {
            let made_up = keys.find(Some("made up"), None).await;
            assert!(matches!(&made_up, Err(Error::Unknown { kid }) if kid == "made up"), "{made_up:?}");
        }
        assert_eq!(stub.seen(KEY_SET).len(), minute);
        assert!(keys.fetch_state.lock().await.not_before.unwrap() > Instant::now() + REFETCH_INTERVAL / 2);
        let_fetch(&keys).await;
    }
}

/// As if the refetch interval were over.
async fn let_fetch(keys: &Keys) {
    keys.fetch_state.lock().await.not_before = None;
}

/// As if a day had passed.
async fn outdate(keys: &Keys) {
    let former = keys.published();
    keys.publish(KeySet { keys: former.keys.clone(), issuer: former.issuer.clone(), fetched: None });
    let_fetch(keys).await;
}

#[tokio::test]
async fn known_keys_survive_an_outage_of_the_service() {
    let stub = Stub::start().await;
    stub.publish(&[FIRST.published()]);
    let keys = keys(&stub);
    assert!(found(&keys, &FIRST).await);

    for act in [
        Act::json(503, ""),
        Act::answer(200, "text/html", "<html>"),
        Act::json(200, "{}"),
        Act::json(200, r#"{"keys":"#),
        Act::json(200, r#"{"keys":[]}"#),
        Act::json(200, r#"{"keys":[{"kty":"RSA","kid":"first","n":7,"e":"AQAB"}]}"#),
        Act::json(200, &format!(r#"{{"keys":[],"x":"{}"}}"#, "x".repeat(10 << 20))),
        Act::Cut,
    ] {
        stub.on(KEY_SET, act.clone());
        outdate(&keys).await;
        let before = stub.seen(KEY_SET).len();

        assert!(found(&keys, &FIRST).await, "{act:?}");
        assert!(matches!(keys.find(Some("other"), None).await, Err(Error::Fetch(_))), "{act:?}");

        assert_eq!(stub.seen(KEY_SET).len(), before + 1, "{act:?}");
    }
    stub.publish(&[FIRST.published()]);
    assert!(keys.fetch_state.lock().await.not_before.unwrap() <= Instant::now() + RETRY_INTERVAL);
    let_fetch(&keys).await;
    assert!(matches!(keys.find(Some("other"), None).await, Err(Error::Unknown { .. })));
}

#[tokio::test]
async fn unusable_keys_are_skipped() {
    let good = FIRST.published();
    let with = |name: &str, value: Value| {
        let mut key = good.clone();
        key["kid"] = json!("other");
        key[name] = value;
        key
    };
    let odd = [
        json!(7),
        json!({}),
        with("kty", json!("EC")),
        json!({ "kty": "oct", "kid": "other", "k": "AQAB" }),
        with("use", json!("enc")),
        with("alg", json!("RS512")),
        with("n", json!("!")),
        with("n", json!("AQAB")),
        with("e", json!("")),
        json!({ "kty": "RSA", "kid": "other", "x5c": ["AAAA"] }),
    ];
    let stub = Stub::start().await;
    stub.publish(&[&odd[..], std::slice::from_ref(&good)].concat());
    let keys = keys(&stub);

    assert!(found(&keys, &FIRST).await);
    let all = keys.find(None, None).await.unwrap();

    assert_eq!(all.len(), 1, "{all:?}");
}

#[tokio::test]
async fn a_key_set_may_pad_numbers_and_have_leading_zeros() {
    let mut key = FIRST.published();
    let modulus = URL_SAFE_NO_PAD.decode(key["n"].as_str().unwrap()).unwrap();
    key["n"] = json!(URL_SAFE.encode([&[0][..], &modulus].concat()));
    key["e"] = json!(URL_SAFE.encode([0, 1, 0, 1]));
    assert!(["n", "e"].iter().all(|name| key[name].as_str().unwrap().ends_with('=')), "{key}");

    let keys = from_file(&json!({ "keys": [key] }).to_string()).unwrap();

    assert!(found(&keys, &FIRST).await);
}

#[tokio::test]
async fn key_set_entry_may_have_only_a_certificate() {
    let certificate = certificate();
    let entry = json!({ "kty": "RSA", "kid": "c", "x5c": [STANDARD.encode(certificate.der())] });
    let content =
        format!(r#"{{"keys":[],"keys":[{}]}}"#, entry.to_string().replacen('{', r#"{"kid":"d","#, 1));

    let keys = from_file(&content).unwrap();

    let named = keys.find(Some("c"), None).await.unwrap();
    let by_thumbprint = keys.find(None, Some(&thumbprint(&certificate))).await.unwrap();
    assert_eq!((named.len(), &named), (1, &by_thumbprint));
    assert!(matches!(keys.find(Some("d"), None).await, Err(Error::Unknown { .. })));
    for kind in ["EC", "oct", "other"] {
        let refused = from_file(&content.replace("RSA", kind)).unwrap_err();
        assert!(matches!(refused, Error::File { .. }), "{kind}: {refused}");
    }
}

fn certificate() -> rcgen::Certificate {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256);
    pair.and_then(|pair| rcgen::CertificateParams::default().self_signed(&pair)).unwrap()
}

fn thumbprint(certificate: &rcgen::Certificate) -> String {
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, certificate.der()))
}

#[tokio::test]
async fn a_file_holds_keys_certificates_or_a_set() {
    let certificate = certificate();
    let set = json!({ "keys": [FIRST.published(), SECOND.published()] }).to_string();
    let both = format!("{}{}", FIRST.pem(), SECOND.pem());

    for (content, count) in [(&both, 2), (&set, 2), (&certificate.pem(), 1)] {
        let keys = from_file(content).unwrap();
        assert_eq!(keys.find(None, None).await.unwrap().len(), count, "{content}");
    }
    // Named keys of a set are selected by name; bare keys by the signature.
    assert!(found(&from_file(&set).unwrap(), &SECOND).await);
    assert!(found(&from_file(&both).unwrap(), &SECOND).await);
    assert!(matches!(from_file(&set).unwrap().find(Some("x"), None).await, Err(Error::Unknown { .. })));
    let keys = from_file(&format!("{both}{}", certificate.pem())).unwrap();
    assert_eq!(keys.find(None, Some(&thumbprint(&certificate))).await.unwrap().len(), 1);
}

#[test]
fn a_file_without_usable_keys_names_its_setting() {
    let elliptic = rcgen::KeyPair::generate().unwrap();
    let (private, public) = (elliptic.serialize_pem(), elliptic.public_key_pem());

    for content in ["", "{}", r#"{"keys":[]}"#, "{", "not a key", &private, &public] {
        let error = from_file(content).unwrap_err();
        assert!(error.to_string().contains("oauth.keys.location"), "{error}");
    }
    assert!(matches!(Keys::from_file(Path::new("/nowhere/at/all")), Err(Error::File { .. })));
}

#[tokio::test]
async fn a_file_is_reread_for_a_missing_key_and_a_bad_one_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let set = |signer: &Signer| json!({ "keys": [signer.published()] }).to_string();
    fs::write(&path, set(&FIRST)).unwrap();
    let keys = Keys::from_file(&path).unwrap();
    assert!(found(&keys, &FIRST).await);
    fs::write(&path, "{").unwrap();

    assert!(!found(&keys, &SECOND).await);
    assert!(found(&keys, &FIRST).await, "the old keys stay");
    fs::write(&path, set(&SECOND)).unwrap();
    assert!(!found(&keys, &SECOND).await, "it was looked at a moment ago");
    // A minute passes.
    keys.fetch_state.lock().await.not_before = None;
    assert!(found(&keys, &SECOND).await);
}
