//! A public RSA key, read from a key set, a PEM file or a certificate.

use aws_lc_rs::{
    digest,
    rsa::PublicKey,
    signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rustls::pki_types::CertificateDer;
use serde_json::{Map, Value};

/// A public RSA key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    /// Key id, if it has one.
    kid: Option<String>,
    /// Thumbprint of its certificate.
    x5t: Option<String>,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

impl VerifyingKey {
    /// Whether this key signed the message with RS256.
    #[must_use]
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        RsaPublicKeyComponents { n: &self.modulus, e: &self.exponent }
            .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            .is_ok()
    }

    /// A key from modulus and exponent.
    fn new(kid: Option<String>, x5t: Option<String>, modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let [modulus, exponent] = [modulus, exponent].map(without_zeros);
        // In bytes: sizes that signature verification supports.
        ((256..=1_024).contains(&modulus.len()) && (1..=8).contains(&exponent.len())).then(|| Self {
            kid,
            x5t,
            modulus: modulus.to_vec(),
            exponent: exponent.to_vec(),
        })
    }

    /// A key in PKCS#1 or SPKI.
    pub(super) fn from_der(kid: Option<String>, x5t: Option<String>, der: &[u8]) -> Option<Self> {
        let key = PublicKey::from_der(der).ok()?;
        let (modulus, exponent) = (key.modulus(), key.exponent());
        Self::new(
            kid,
            x5t,
            modulus.big_endian_without_leading_zero(),
            exponent.big_endian_without_leading_zero(),
        )
    }

    /// The key of a certificate. The certificate is not validated: the file or key set is trusted as a whole.
    pub(super) fn from_certificate(kid: Option<String>, der: &[u8]) -> Option<Self> {
        let thumbprint = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, der);
        let der = CertificateDer::from(der);
        let certificate = webpki::EndEntityCert::try_from(&der).ok()?;
        let x5t = Some(URL_SAFE_NO_PAD.encode(thumbprint));
        Self::from_der(kid, x5t, &certificate.subject_public_key_info())
    }

    /// An entry of a key set.
    pub(super) fn from_json(entry: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let is_for_us = text("kty") == Some("RSA")
            && text("use").is_none_or(|purpose| purpose == "sig")
            && text("alg").is_none_or(|algorithm| algorithm == "RS256");
        if !is_for_us {
            return None;
        }
        let kid = text("kid").map(str::to_owned);
        let number = |name| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
        if let (Some(modulus), Some(exponent)) = (number("n"), number("e")) {
            return Self::new(kid, text("x5t").map(str::to_owned), &modulus, &exponent);
        }
        let certificate = entry.get("x5c")?.as_array()?.first()?.as_str()?;
        Self::from_certificate(kid, &STANDARD.decode(certificate).ok()?)
    }

    /// Whether this is its `kid` or the thumbprint of its certificate.
    pub(super) fn is_named(&self, name: &str) -> bool {
        [&self.kid, &self.x5t].into_iter().flatten().any(|own| own == name)
    }

    /// Whether it has a `kid`.
    pub(super) fn has_kid(&self) -> bool {
        self.kid.is_some()
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}
