//! Proof Key for Code Exchange ([RFC 7636]).
//!
//! [RFC 7636]: https://www.rfc-editor.org/rfc/rfc7636

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::{oauth_error::OAuthError, parameters::Parameters};
use crate::knobs::Pkce;

/// Base64url of the SHA-256 of the code's verifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Challenge(String);

impl Challenge {
    /// The challenge of an authorization request; ignored where PKCE is refused.
    pub(super) fn read(parameters: &Parameters, pkce: Pkce) -> Result<Option<Self>, OAuthError> {
        if pkce == Pkce::Refused {
            return Ok(None);
        }
        let Some(value) = parameters.get("code_challenge") else {
            if pkce == Pkce::Required {
                return Err(OAuthError::request("code_challenge is missing"));
            }
            return Ok(None);
        };
        if !well_formed(value) {
            return Err(OAuthError::request("code_challenge must be 43 to 128 unreserved characters"));
        }
        match parameters.get("code_challenge_method") {
            Some("S256") => Ok(Some(Self(value.to_owned()))),
            _ => Err(OAuthError::request("code_challenge_method must be S256")),
        }
    }

    /// Whether the verifier matches.
    fn fits(&self, verifier: &str) -> bool {
        let hash = digest::digest(&digest::SHA256, verifier.as_bytes());
        well_formed(verifier) && URL_SAFE_NO_PAD.encode(hash) == self.0
    }
}

/// Checks the verifier of a code exchange.
pub(super) fn verify(
    challenge: Option<&Challenge>,
    verifier: Option<&str>,
    pkce: Pkce,
) -> Result<(), OAuthError> {
    match (pkce, challenge, verifier) {
        (Pkce::Refused, _, None) | (Pkce::Allowed, None, None) => Ok(()),
        (Pkce::Refused, _, Some(_)) | (Pkce::Allowed, None, Some(_)) => {
            Err(OAuthError::grant("code_verifier is not expected"))
        }
        (Pkce::Required, None, _) => Err(OAuthError::grant("the code was issued without an S256 challenge")),
        (_, Some(_), None) => Err(OAuthError::grant("code_verifier is missing")),
        (_, Some(challenge), Some(verifier)) if challenge.fits(verifier) => Ok(()),
        (_, Some(_), Some(_)) => Err(OAuthError::grant("code_verifier does not fit")),
    }
}

/// 43 to 128 unreserved characters.
fn well_formed(text: &str) -> bool {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    (43..=128).contains(&text.len()) && text.bytes().all(unreserved)
}
