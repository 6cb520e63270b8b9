//! Tokens of the identity service, and the key sets that they are checked with.

use std::{io::Write as _, sync::LazyLock};

use aws_lc_rs::{
    encoding::{AsDer, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_SHA256},
};
use base64::{Engine as _, engine::general_purpose::STANDARD, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::executor::block_on;
use provider::{
    auth::token::{Claims, TokenParts, TokenPurpose, TokenRule, TokenRules, verify},
    auth::{key::VerifyingKey, keys::Keys},
};
use serde_json::{Map, Value};

const NOW_MS: i64 = 1_800_000_000_000;
const LEEWAY_MS: i64 = 60_000;
const ISSUER: &str = "https://cloud.example";
const CLIENT: &str = "client";
const NONCE: &str = "nonce";
/// Longest message about a token: a rule, and at most 120 characters of what the token says.
const MESSAGE_CHARS: usize = 300;
/// Most keys of a set that are used.
const MAX_KEYS: usize = 64;

/// Made for this process: a token that it has not signed is a forgery, whatever the input says.
static SIGNER: LazyLock<Signer> = LazyLock::new(Signer::new);

struct Signer {
    pair: KeyPair,
    keys: Vec<VerifyingKey>,
}

impl Signer {
    fn new() -> Self {
        let pair = KeyPair::generate(KeySize::Rsa2048).expect("a key");
        let der: PublicKeyX509Der<'_> = pair.public_key().as_der().expect("its public half");
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            STANDARD.encode(der.as_ref())
        );
        let keys = keys(pem.as_bytes()).expect("the key of a file");
        Self { pair, keys }
    }

    fn sign(&self, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
            .expect("a signature");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A key set if it begins as one; header and payload of a token to sign, on two lines; else a token as it came.
/// Returns whether a token was accepted for some purpose, or a key set has keys.
///
/// # Panics
/// A forgery is accepted, a token is accepted that breaks a rule, or a message shows too much of one.
pub fn token(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    match text.split_once('\n') {
        _ if text.starts_with(r#"{"keys""#) => key_set(text),
        Some((header, payload)) => signed(header, payload),
        None => forged(text),
    }
}

fn key_set(text: &str) -> bool {
    let Some(found) = keys(text.as_bytes()) else { return false };
    assert!(!found.is_empty() && found.len() <= MAX_KEYS);
    assert!(!found.iter().any(|key| key.has_signed(b"a message", &[0; 256])));
    true
}

fn forged(text: &str) -> bool {
    for purpose in purposes() {
        let rule = check(text, purpose).expect_err("a forgery was accepted");
        is_brief(&rule);
    }
    false
}

fn signed(header: &str, payload: &str) -> bool {
    let token = SIGNER.sign(header, payload);
    let mut accepted = false;
    for purpose in purposes() {
        match check(&token, purpose) {
            Ok(_) => {
                accepted = true;
                keeps_the_rules(purpose, &object(header), &object(payload));
                // The signature's last byte but two, so that the text stays base64.
                let at = token.len() - 3;
                let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
                let forged = format!("{}{other}{}", &token[..at], &token[at + 1..]);
                assert_eq!(check(&forged, purpose).err(), Some(TokenRule::Signature));
            }
            Err(rule) => {
                assert_ne!(rule, TokenRule::Signature, "our own signature was refused");
                is_brief(&rule);
            }
        }
    }
    accepted
}

/// The rules that the identity service documents, read from the claims once more.
fn keeps_the_rules(purpose: TokenPurpose<'_>, header: &Map<String, Value>, payload: &Map<String, Value>) {
    let text = |name: &str| payload.get(name).and_then(Value::as_str);
    let milliseconds = |name: &str| payload.get(name).and_then(Value::as_f64).map(|seconds| seconds * 1e3);
    let leeway = LEEWAY_MS as f64;
    assert_eq!(header.get("alg").and_then(Value::as_str), Some("RS256"));
    assert!(!header.contains_key("crit"));
    assert_eq!(text("iss"), Some(ISSUER));
    assert!(milliseconds("exp").is_some_and(|end| end + leeway >= NOW_MS as f64));
    assert!(
        payload.get("nbf").is_none()
            || milliseconds("nbf").is_some_and(|begin| begin - leeway <= NOW_MS as f64)
    );
    match purpose {
        TokenPurpose::Access { .. } => assert_eq!(text("client_id"), Some(CLIENT)),
        TokenPurpose::Identity { .. } => assert_eq!(text("nonce"), Some(NONCE)),
    }
}

fn is_brief(rule: &TokenRule) {
    let message = rule.to_string();
    assert!(
        message.chars().count() <= MESSAGE_CHARS && !message.chars().any(char::is_control),
        "{message:?}"
    );
}

fn check(token: &str, purpose: TokenPurpose<'_>) -> Result<Claims, TokenRule> {
    let issuers = [ISSUER.to_owned()];
    let rules = TokenRules { issuers: &issuers, leeway_ms: LEEWAY_MS, purpose };
    verify(&TokenParts::read(token)?, &SIGNER.keys, &rules, NOW_MS)
}

fn purposes() -> [TokenPurpose<'static>; 2] {
    [
        TokenPurpose::Access { client: CLIENT, audiences: &[] },
        TokenPurpose::Identity { client: CLIENT, nonce: NONCE, access: Some("access"), code: Some("code") },
    ]
}

/// The keys of a file with this content, if it has any.
fn keys(content: &[u8]) -> Option<Vec<VerifyingKey>> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(content).expect("written");
    let keys = Keys::from_file(file.path()).ok()?;
    Some(block_on(keys.find(None, None)).expect("keys of the file"))
}

fn object(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).expect("an accepted token is made of JSON objects")
}
