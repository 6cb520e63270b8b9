//! Proof key for code exchange ([RFC 7636]): off by default, because the provider's own pages never use it.
//!
//! [RFC 7636]: https://www.rfc-editor.org/rfc/rfc7636

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::{parameters::Parameters, refusal::Refusal};
use crate::knobs::Pkce;

/// What the code's verifier must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// The verifier itself.
    Plain(String),
    /// Its SHA-256, base64url.
    S256(String),
}

impl Challenge {
    /// The challenge of an authorization request. Where PKCE is refused it is not looked at.
    pub(super) fn read(parameters: &Parameters, pkce: Pkce) -> Result<Option<Self>, Refusal> {
        if pkce == Pkce::Refused {
            return Ok(None);
        }
        let Some(value) = parameters.get("code_challenge") else {
            if pkce == Pkce::Required {
                return Err(Refusal::request("code_challenge is missing"));
            }
            return Ok(None);
        };
        if !well_formed(value) {
            return Err(Refusal::request("code_challenge must be 43 to 128 unreserved characters"));
        }
        match parameters.get("code_challenge_method") {
            Some("S256") => Ok(Some(Self::S256(value.to_owned()))),
            None | Some("plain") if pkce == Pkce::Allowed => Ok(Some(Self::Plain(value.to_owned()))),
            _ => Err(Refusal::request("code_challenge_method is not supported")),
        }
    }

    /// Whether this verifier belongs to the challenge.
    fn fits(&self, verifier: &str) -> bool {
        if !well_formed(verifier) {
            return false;
        }
        match self {
            Self::Plain(challenge) => challenge == verifier,
            Self::S256(challenge) => {
                let hash = digest::digest(&digest::SHA256, verifier.as_bytes());
                URL_SAFE_NO_PAD.encode(hash) == *challenge
            }
        }
    }
}

/// Checks the verifier of a code exchange against the challenge of its authorization request.
pub(super) fn verify(
    challenge: Option<&Challenge>,
    verifier: Option<&str>,
    pkce: Pkce,
) -> Result<(), Refusal> {
    match (pkce, challenge, verifier) {
        (Pkce::Refused, _, None) | (Pkce::Allowed, None, None) => Ok(()),
        (Pkce::Refused, _, Some(_)) | (Pkce::Allowed, None, Some(_)) => {
            Err(Refusal::grant("code_verifier is not expected"))
        }
        (Pkce::Required, None | Some(Challenge::Plain(_)), _) => {
            Err(Refusal::grant("the code was issued without an S256 challenge"))
        }
        (Pkce::Allowed | Pkce::Required, Some(_), None) => Err(Refusal::grant("code_verifier is missing")),
        (Pkce::Allowed | Pkce::Required, Some(challenge), Some(verifier)) => {
            if challenge.fits(verifier) {
                Ok(())
            } else {
                Err(Refusal::grant("code_verifier does not fit"))
            }
        }
    }
}

/// 43 to 128 of the characters that need no escaping.
fn well_formed(text: &str) -> bool {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    (43..=128).contains(&text.len()) && text.bytes().all(unreserved)
}
