use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::auth::{
    keys::Keys,
    tests::stub::{FIRST, SECOND, Signer},
};

const NOW_MS: i64 = 1_800_000_000_000;
const NOW: i64 = NOW_MS / 1_000;
const MINUTE: i64 = 60;

fn access() -> Value {
    json!({
        "iss": "https://cloud.example",
        "aud": "https://cloud.example/resources",
        "client_id": "client",
        "exp": NOW + 3_600,
        "nbf": NOW,
        "sub": "5f0c",
    })
}

/// With one member set, or removed.
fn with(mut payload: Value, name: &str, value: Value) -> Value {
    let members = payload.as_object_mut().unwrap();
    match value {
        Value::Null => members.remove(name),
        value => members.insert(name.to_owned(), value),
    };
    payload
}

/// The public half of a key, read from a file.
fn key(signer: &Signer) -> VerifyingKey {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key.pem");
    std::fs::write(&path, signer.pem()).unwrap();
    let keys = Keys::from_file(&path).unwrap();
    let found = futures::executor::block_on(keys.find(None, None)).unwrap();
    found.into_iter().next().unwrap()
}

fn check(token: &str, purpose: TokenPurpose<'_>) -> Result<Claims, TokenRule> {
    let issuers = ["https://cloud.example".to_owned(), "https://id.example/auth/core".to_owned()];
    let rules = TokenRules { issuers: &issuers, leeway_ms: MINUTE * 1_000, purpose };
    verify(&TokenParts::read(token)?, &[key(&FIRST)], &rules, NOW_MS)
}

fn check_access(token: &str) -> Result<Claims, TokenRule> {
    check(token, TokenPurpose::Access { client: "client", audiences: &[] })
}

/// A broken rule in a word.
fn word<T>(checked: Result<T, TokenRule>) -> &'static str {
    match checked.err() {
        None => "good",
        Some(TokenRule::Malformed(_)) => "malformed",
        Some(TokenRule::Algorithm { .. }) => "algorithm",
        Some(TokenRule::Signature) => "signature",
        Some(TokenRule::Issuer { .. }) => "issuer",
        Some(TokenRule::Audience { .. }) => "audience",
        Some(TokenRule::Client) => "client",
        Some(TokenRule::Expired { .. }) => "expired",
        Some(TokenRule::NotYet { .. }) => "not yet",
        Some(TokenRule::Nonce) => "nonce",
        Some(TokenRule::Companion(_)) => "companion",
    }
}

#[test]
fn an_access_token_is_held_to_every_rule() {
    for (name, value, expected) in [
        ("other", json!(1), "good"),
        ("iss", json!("https://id.example/auth/core"), "good"),
        ("iss", json!("https://cloud.example/"), "issuer"),
        ("iss", json!(["https://cloud.example"]), "issuer"),
        ("iss", Value::Null, "issuer"),
        ("client_id", json!("other"), "client"),
        ("client_id", Value::Null, "client"),
        ("aud", Value::Null, "good"),
        ("exp", json!(NOW - MINUTE + 1), "good"),
        ("exp", json!(NOW - MINUTE), "expired"),
        ("exp", json!(NOW as f64 + 0.5), "good"),
        ("exp", json!(1e300), "good"),
        ("exp", json!(-1e300), "expired"),
        ("exp", json!(i64::MAX), "good"),
        ("exp", json!(i64::MIN), "expired"),
        ("exp", json!((NOW + 60).to_string()), "malformed"),
        ("exp", Value::Null, "malformed"),
        ("nbf", json!(NOW + MINUTE), "good"),
        ("nbf", json!(NOW + MINUTE + 1), "not yet"),
        ("nbf", json!("now"), "malformed"),
        ("nbf", json!(i64::MAX), "not yet"),
        ("nbf", Value::Null, "good"),
    ] {
        let token = FIRST.sign(&with(access(), name, value.clone()));

        assert_eq!(word(check_access(&token)), expected, "{name}: {value}");
    }
}

#[test]
fn an_audience_is_one_of_those_that_are_set() {
    let audiences = ["a".to_owned(), "b".to_owned()];

    for (value, expected) in [
        (json!("b"), "good"),
        (json!(["x", "a"]), "good"),
        (json!(["x", 7]), "audience"),
        (json!("ab"), "audience"),
        (Value::Null, "audience"),
    ] {
        let token = FIRST.sign(&with(access(), "aud", value.clone()));
        let purpose = TokenPurpose::Access { client: "client", audiences: &audiences };

        assert_eq!(word(check(&token, purpose)), expected, "{value}");
    }
}

#[test]
fn only_a_known_keys_signature_of_this_text_is_accepted() {
    let payload = access().to_string();
    let good = FIRST.sign_text(r#"{"alg":"RS256"}"#, &payload);
    assert_eq!(word(check_access(&good)), "good");
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    let forged = URL_SAFE_NO_PAD.encode(with(access(), "sub", json!("root")).to_string());

    for (token, expected) in [
        (SECOND.sign(&access()), "signature"),
        (format!("{header}.{forged}.{signature}"), "signature"),
        (format!("{signed}."), "signature"),
        (format!("{signed}.{signature}A"), "signature"),
        (format!("{signed}.{signature}="), "malformed"),
        (FIRST.sign_text(r#"{"alg":"none"}"#, &payload), "algorithm"),
        (FIRST.sign_text(r#"{"alg":"HS256"}"#, &payload), "algorithm"),
        (FIRST.sign_text(r#"{"alg":"rs256"}"#, &payload), "algorithm"),
        (FIRST.sign_text(r#"{"alg":["RS256"]}"#, &payload), "algorithm"),
        (FIRST.sign_text(r#"{"kid":"first"}"#, &payload), "algorithm"),
        (FIRST.sign_text(r#"{"alg":"RS256","alg":"none"}"#, &payload), "algorithm"),
        (FIRST.sign_text(r#"{"alg":"RS256","crit":["b64"]}"#, &payload), "malformed"),
        (FIRST.sign_text("[]", &payload), "malformed"),
        (FIRST.sign_text(r#"{"alg":"RS256"}"#, "[]"), "malformed"),
        (FIRST.sign_text(r#"{"alg":"RS256"}"#, "{"), "malformed"),
        (FIRST.sign_text(r#"{"alg":"RS256"}"#, &payload.replace('}', r#","x":""#)), "malformed"),
        (format!("{good}.x"), "malformed"),
        (signed.to_owned(), "malformed"),
        (format!("a{}", ".".repeat(MAX_TOKEN_BYTES)), "malformed"),
        (String::new(), "malformed"),
    ] {
        assert_eq!(word(check_access(&token)), expected, "{token}");
    }
}

#[test]
fn an_identity_token_belongs_to_one_login_and_its_tokens() {
    let payload = json!({
        "iss": "https://cloud.example", "aud": "client", "exp": NOW + 300, "nonce": "n0nce", "sub": "5f0c",
    });
    // The standard's own example.
    let code = "Qcb0Orv1zh30vL1MPRsbm-diHiMwcLyZvn1arpZv-Jxf_11jnpEX3Tgfvk";
    let hash = json!("LDktKdoQak3Pk0cnXxCltA");

    for (name, value, expected) in [
        ("other", json!(1), "good"),
        ("aud", json!(["other", "client"]), "good"),
        ("aud", json!("https://cloud.example/resources"), "client"),
        ("nonce", json!("other"), "nonce"),
        ("nonce", json!("n0nce2"), "nonce"),
        ("nonce", Value::Null, "nonce"),
        ("exp", json!(NOW - 3_600), "expired"),
        ("c_hash", hash.clone(), "good"),
        ("c_hash", json!("LDktKdoQak3Pk0cnXxCltB"), "companion"),
        ("at_hash", hash, "companion"),
    ] {
        let token = FIRST.sign(&with(payload.clone(), name, value.clone()));
        let purpose = TokenPurpose::Identity {
            client: "client",
            nonce: "n0nce",
            access: Some("access"),
            code: Some(code),
        };

        assert_eq!(word(check(&token, purpose)), expected, "{name}: {value}");
    }
}

#[test]
fn the_last_of_two_equal_claims_counts() {
    let payload = format!(
        r#"{{"$id":"1","$id":"2","iss":"https://cloud.example","aud":"r","exp":{end},"client_id":"client",
        "scope":["openid","a"],"sub":"s","given_name":"Ana","email":"ana@example.com","svc.es.clientid":"t","nbf":{NOW}}}"#,
        end = NOW + 60,
    );

    let claims = check_access(&FIRST.sign_text(r#"{"alg":"RS256"}"#, &payload)).unwrap();

    assert_eq!(claims.issuer.as_deref(), Some("https://cloud.example"));
    assert_eq!(claims.subject.as_deref(), Some("s"));
    for (name, expected) in [
        ("$id", "2"),
        ("client_id", "client"),
        ("given_name", "Ana"),
        ("email", "ana@example.com"),
        ("svc.es.clientid", "t"),
    ] {
        assert_eq!(claims.text(name), Some(expected));
    }
    assert_eq!(claims.audiences, ["r"]);
    assert_eq!(claims.scopes, ["openid", "a"]);
    assert_eq!(claims.ends_ms, NOW_MS + 60_000);
    let shown = format!("{claims:?}");
    assert!(!shown.contains("ana@example.com") && !shown.contains("Ana"), "{shown}");
}

#[test]
fn claim_of_another_type_is_missing() {
    let payload = with(with(access(), "sub", json!(7)), "scope", json!("openid  a"));

    let claims = check_access(&FIRST.sign(&payload)).unwrap();

    assert_eq!((claims.subject, claims.all["sub"].as_i64()), (None, Some(7)));
    assert_eq!(claims.scopes, ["openid", "a"]);
}

#[test]
fn the_unverified_expiry_of_any_text_is_read_safely() {
    assert_eq!(unverified_expiry_ms(&SECOND.sign(&access())), Some(NOW_MS + 3_600_000));
    for token in ["", "a", "a.b.c", "a.bnVsbA.c", "..", "a.e30.c"] {
        assert_eq!(unverified_expiry_ms(token), None, "{token}");
    }
}

#[test]
fn a_tenant_that_cannot_be_shown_is_missing() {
    let long = "t".repeat(300);
    for (value, expected) in [
        (json!("tenant-1"), Some("tenant-1")),
        (json!("a b"), Some("a b")),
        (json!(""), None),
        (json!(" "), None),
        (json!("a\nb"), None),
        (json!("a\u{1b}[2J"), None),
        (json!(long), None),
        (json!(7), None),
        (json!(["a"]), None),
        (Value::Null, None),
    ] {
        let token = FIRST.sign(&with(access(), "svc.es.clientid", value.clone()));

        assert_eq!(check_access(&token).unwrap().tenant(), expected, "{value}");
        assert_eq!(unverified_tenant(&token).as_deref(), expected, "{value}");
    }
    for token in ["", "a", "a.b.c", "a.bnVsbA.c", "..", "a.e30.c"] {
        assert_eq!(unverified_tenant(token), None, "{token}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_check_panic_or_pass(text in "[A-Za-z0-9_.=-]{0,200}") {
        let rules = TokenRules {
            issuers: &[],
            leeway_ms: i64::MAX,
            purpose: TokenPurpose::Access { client: "", audiences: &[] },
        };
        let checked = TokenParts::read(&text).and_then(|parts| verify(&parts, &[], &rules, i64::MAX));
        prop_assert!(checked.is_err());
    }
}
