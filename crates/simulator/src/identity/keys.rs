//! Keys that sign tokens (RS256), and the key set for clients.
//!
//! One key signs. After a rotation earlier keys may stay in the key set, so that their tokens still verify.

use std::sync::Arc;

use aws_lc_rs::{
    digest,
    encoding::{AsDer, Pkcs8V1Der},
    rand::SystemRandom,
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_SHA256},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};

use crate::Error;

/// Keys in the key set; the oldest are dropped first.
const MAX_KEYS: usize = 8;

#[derive(Debug)]
pub(super) struct IdentityKeys {
    /// Never empty. The first one signs, the others are only published.
    keys: RwLock<Vec<Arc<SigningKey>>>,
}

/// One key and its certificate.
#[derive(Debug)]
struct SigningKey {
    pair: KeyPair,
    /// Thumbprint of the certificate, also the key's id.
    id: String,
    /// Its entry in the key set.
    published: Value,
}

impl IdentityKeys {
    /// Starts with a key that is shared within the process.
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self { keys: RwLock::new(vec![first()?]) })
    }

    /// Signs with a new key from now on.
    pub(super) fn rotate(&self, keep_old: bool) -> Result<(), Error> {
        let key = Arc::new(SigningKey::generate()?);
        let mut keys = self.keys.write();
        if !keep_old {
            keys.clear();
        }
        keys.insert(0, key);
        keys.truncate(MAX_KEYS);
        Ok(())
    }

    /// Signs a payload.
    pub(super) fn sign(&self, payload: &str) -> String {
        let key = self.keys.read().first().map(Arc::clone);
        key.map_or_else(String::new, |key| key.sign(payload))
    }

    pub(super) fn set(&self) -> Value {
        let keys = self.keys.read();
        json!({ "keys": keys.iter().map(|key| &key.published).collect::<Vec<_>>() })
    }
}

/// The first key of every simulator in this process: generating one takes a good part of a second, and a test run starts
/// hundreds of simulators.
fn first() -> Result<Arc<SigningKey>, Error> {
    static FIRST: Mutex<Option<Arc<SigningKey>>> = Mutex::new(None);
    let mut first = FIRST.lock();
    if let Some(key) = first.as_ref() {
        return Ok(Arc::clone(key));
    }
    let key = Arc::new(SigningKey::generate()?);
    *first = Some(Arc::clone(&key));
    Ok(key)
}

impl SigningKey {
    fn generate() -> Result<Self, Error> {
        let failed = |what: &str| Error::Key(what.to_owned());
        let pair = KeyPair::generate(KeySize::Rsa2048).map_err(|_| failed("RSA key generation"))?;
        let certificate = certificate(&pair)?;
        let thumbprint = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &certificate);
        let id = URL_SAFE_NO_PAD.encode(thumbprint);
        let published = json!({
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": id,
            "x5t": id,
            "n": URL_SAFE_NO_PAD.encode(pair.public_key().modulus().big_endian_without_leading_zero()),
            "e": URL_SAFE_NO_PAD.encode(pair.public_key().exponent().big_endian_without_leading_zero()),
            "x5c": [STANDARD.encode(&certificate)],
        });
        Ok(Self { pair, id, published })
    }

    fn sign(&self, payload: &str) -> String {
        let header = format!(r#"{{"$id":"1","typ":"JWT","alg":"RS256","x5t":"{0}","kid":"{0}"}}"#, self.id);
        let mut token = URL_SAFE_NO_PAD.encode(header);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(payload, &mut token);
        let mut signature = vec![0; self.pair.public_modulus_len()];
        let signed =
            self.pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature);
        if signed.is_err() {
            // Signing fails only without memory; no client accepts the signature of zeros.
            tracing::error!(key = self.id, "cannot sign a token; clients will refuse it");
        }
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        token
    }
}

/// A self-signed certificate of the key, as DER.
fn certificate(pair: &KeyPair) -> Result<Vec<u8>, Error> {
    let failed =
        |source: rcgen::Error| Error::Certificate { what: "certify a signing key", source: Box::new(source) };
    let der: Pkcs8V1Der<'_> =
        pair.as_der().map_err(|_| Error::Key("serialization of the RSA key".to_owned()))?;
    let der = PrivatePkcs8KeyDer::from(der.as_ref());
    let signer =
        rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_RSA_SHA256).map_err(failed)?;
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "simulated identity provider");
    let certificate = parameters.self_signed(&signer).map_err(failed)?;
    Ok(certificate.der().to_vec())
}
