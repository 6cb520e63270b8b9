//! Tokens as clients verify them, the key set, discovery and userinfo.

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};

use super::*;
use crate::simulator::{
    identity::{DISCOVERY, KEY_SET, USER},
    random::Guid,
    settings::Tls,
};

#[tokio::test]
async fn tokens_verify_by_the_key_set_and_not_after_a_change() {
    let simulated = Simulated::new();
    let answer = simulated.login(ACCOUNTING).await;

    let keys = simulated.get(KEY_SET, &[]).await.json();

    for name in ["access_token", "id_token"] {
        let token = answer.member(name);
        let (header, _) = parts(&token);
        assert!(verifies(&token, &keys), "{name}");
        assert!(!verifies(&token.replacen('.', ".A", 1), &keys), "{name}");
        assert_eq!((&header["typ"], &header["alg"]), (&"JWT".into(), &"RS256".into()));
        assert_eq!(header["kid"], keys["keys"][0]["kid"]);
        assert_eq!(header["x5t"], keys["keys"][0]["x5t"]);
        assert!(header["$id"].is_string());
    }
}

#[tokio::test]
async fn the_published_certificate_is_of_the_published_key() {
    let simulated = Simulated::new();

    let keys = simulated.get(KEY_SET, &[]).await.json();

    let key = &keys["keys"][0];
    let certificate = STANDARD.decode(key["x5c"][0].as_str().unwrap()).unwrap();
    let modulus = URL_SAFE_NO_PAD.decode(key["n"].as_str().unwrap()).unwrap();
    let thumbprint = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &certificate);
    assert_eq!(modulus.len(), 256);
    assert!(certificate.windows(256).any(|window| window == modulus));
    assert_eq!(key["x5t"], URL_SAFE_NO_PAD.encode(thumbprint));
}

#[tokio::test]
async fn a_token_has_the_claims_of_the_documents_table_and_no_others() {
    const BOTH: &str = "$id iss aud exp nbf auth_time client_id scope sub idp svc.es.clientid svc.es.idcda usr owapp \
                        mem oun amr";
    const ONLY_ACCOUNTING: &str = "given_name lang email svc.es.modules svc.es.keyusercorrelationid";
    const ONLY_PAYROLL: &str = "svc.es.equipouserid svc.es.secondclientid";
    let simulated = Simulated::new();

    for (scope, own) in [(ACCOUNTING, ONLY_ACCOUNTING), (PAYROLL, ONLY_PAYROLL)] {
        let (_, claims) = parts(&simulated.login(scope).await.member("access_token"));

        let mut names: Vec<&str> = claims.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = BOTH.split(' ').chain(own.split(' ')).collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
        for name in names {
            let value = &claims[name];
            match name {
                "exp" | "nbf" | "auth_time" => assert!(value.is_i64(), "{name}"),
                "scope" | "amr" => {
                    assert!(value.as_array().unwrap().iter().all(Value::is_string), "{name}");
                }
                "sub" | "usr" | "owapp" | "mem" | "oun" | "svc.es.keyusercorrelationid" => {
                    assert!(Guid::parse(value.as_str().unwrap()).is_some(), "{name}");
                }
                _ => assert!(value.is_string(), "{name}"),
            }
        }
        let scopes: Vec<&str> = scope.split(' ').filter(|scope| !scope.is_empty()).collect();
        assert_eq!(claims["scope"], Value::from(scopes));
    }
}

#[tokio::test]
async fn the_claims_tell_the_issuer_and_the_times_of_the_clock() {
    let simulated = Simulated::new();
    let login = simulated.0.clock.now().seconds();
    let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
    simulated.advance(100);

    let (_, claims) = parts(&simulated.refresh(&refresh).await.member("access_token"));

    assert_eq!(claims["iss"], "https://cloud-login.example/auth/core");
    assert_eq!(claims["aud"], "https://cloud-login.example/auth/core/resources");
    assert_eq!(claims["client_id"], "simulated-client");
    assert_eq!(claims["idp"], "idsrv");
    assert_eq!(claims["auth_time"], login);
    assert_eq!(claims["nbf"], login + 100);
    assert_eq!(claims["exp"], login + 100 + 3_600);
}

#[tokio::test]
async fn the_identity_token_of_the_login_carries_the_nonce() {
    let simulated = Simulated::new();
    let answer = simulated.login(ACCOUNTING).await;
    let refreshed = simulated.refresh(&answer.member("refresh_token")).await;

    let (_, first) = parts(&answer.member("id_token"));
    let (_, second) = parts(&refreshed.member("id_token"));
    let (_, access) = parts(&answer.member("access_token"));

    assert_eq!((&first["nonce"], &first["aud"]), (&"a nonce".into(), &"simulated-client".into()));
    assert_eq!(first["sub"], access["sub"]);
    assert_eq!(second.get("nonce"), None);
}

#[tokio::test]
async fn the_member_id_is_there_twice_on_request() {
    let simulated = Simulated::new();

    let mut starts = [String::new(), String::new()];
    for (start, twice) in starts.iter_mut().zip([false, true]) {
        simulated.turn(|knobs| knobs.duplicate_id_claim = twice);
        let token = simulated.login(ACCOUNTING).await.member("access_token");
        let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        *start = String::from_utf8(payload).unwrap();
        assert!(start.starts_with(r#"{"$id":""#), "{start}");
        assert!(verifies(&token, &simulated.get(KEY_SET, &[]).await.json()));
    }

    let times = starts.map(|start| start.matches(r#""$id":"#).count());
    assert_eq!(times, [1, 2]);
}

#[tokio::test]
async fn a_rotation_keeps_the_old_key_or_removes_it() {
    let simulated = Simulated::new();
    let identity = &simulated.0.identity;
    let (first, _) = identity.grant(&simulated.0, &["openid"]);

    identity.rotate_keys(true).unwrap();
    let (second, _) = identity.grant(&simulated.0, &["openid"]);
    let kept = simulated.get(KEY_SET, &[]).await.json();
    identity.rotate_keys(false).unwrap();
    let (third, _) = identity.grant(&simulated.0, &["openid"]);
    let removed = simulated.get(KEY_SET, &[]).await.json();

    assert_eq!([&first, &second].map(|token| verifies(token, &kept)), [true, true]);
    assert_eq!([&first, &second, &third].map(|token| verifies(token, &removed)), [false, false, true]);
    assert_ne!(parts(&first).0["kid"], parts(&second).0["kid"]);
    assert_eq!(simulated.standing(&first), "valid");
}

#[tokio::test]
async fn discovery_names_the_address_that_was_used_and_the_other_issuer() {
    for (tls, host, base) in [
        (Tls::Off, "localhost:4711", "http://localhost:4711"),
        (Tls::Generated, "login.example", "https://login.example"),
    ] {
        let simulated = Simulated::with(|settings| settings.tls = tls);

        let document = simulated.get(DISCOVERY, &[("host", host)]).await.json();

        assert_eq!(document["issuer"], "https://cloud-login.example/auth/core");
        for (name, path) in [
            ("authorization_endpoint", "/auth/core/connect/authorize"),
            ("token_endpoint", "/auth/core/connect/token"),
            ("userinfo_endpoint", "/auth/core/connect/userinfo"),
            ("jwks_uri", "/auth/core/.well-known/jwks"),
        ] {
            assert_eq!(document[name], format!("{base}{path}"));
        }
    }
}

#[tokio::test]
async fn discovery_without_a_usable_host_is_refused() {
    let simulated = Simulated::new();

    let absent = simulated.get(DISCOVERY, &[]).await;
    let odd = simulated.get(DISCOVERY, &[("host", "a b\"c")]).await;
    let credentials = simulated.get(DISCOVERY, &[("host", "evil@localhost")]).await;

    assert_eq!([absent.status, odd.status, credentials.status], [400; 3]);
}

#[tokio::test]
async fn userinfo_is_told_to_bearers_of_good_tokens_alone() {
    let simulated = Simulated::new();
    let token = simulated.login(ACCOUNTING).await.member("access_token");
    let bearer = format!("bearer {token}");

    let good = simulated.get(USER, &[("authorization", &bearer)]).await;
    let mut refused = vec![simulated.get(USER, &[]).await];
    for header in [token.as_str(), "Bearer x", "Bearer", &format!("Basic {token}")] {
        refused.push(simulated.get(USER, &[("authorization", header)]).await);
    }
    simulated.advance(3_600);
    refused.push(simulated.get(USER, &[("authorization", &bearer)]).await);

    assert_eq!(good.json()["sub"], parts(&token).1["sub"]);
    for answer in refused {
        assert_eq!(answer.outcome(), (401, "invalid_token".to_owned()));
        assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    }
}

/// Header and payload of a token.
fn parts(token: &str) -> (Value, Value) {
    let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
    let mut next = || serde_json::from_slice(&parts.next().unwrap()).unwrap();
    (next(), next())
}

/// Whether a key of the set, found by its id, made the signature.
fn verifies(token: &str, keys: &Value) -> bool {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let header: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(signed.split('.').next().unwrap()).unwrap()).unwrap();
    let bytes = |value: &Value| URL_SAFE_NO_PAD.decode(value.as_str().unwrap()).unwrap();
    let Some(key) = keys["keys"].as_array().unwrap().iter().find(|key| key["kid"] == header["kid"]) else {
        return false;
    };
    let key = RsaPublicKeyComponents { n: bytes(&key["n"]), e: bytes(&key["e"]) };
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature).is_ok()
}
