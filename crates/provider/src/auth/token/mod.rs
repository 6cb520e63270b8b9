//! Verifies one token: text in, claims or the broken rule out.
//!
//! ```text
//! token ──▶ TokenParts: three, RS256 ──▶ signature by one of the keys ──▶ times ──▶ issuer ──▶ purpose ──▶ Claims
//! ```
//!
//! - Only [`verify`] creates [`Claims`], so they prove that the token was valid at that moment.
//! - Nothing of a payload is used before its signature is verified, except for `unverified_expiry_ms`, which only decides when to
//!   request the next token, and `unverified_tenant`, which only decides whether a grant is kept: its tokens are verified before use.
//! - The time is an argument: this module has no clock.
//! - The last of duplicate members counts: the provider's own tokens have `$id` twice.
//!
//! Not `jsonwebtoken`, because all of its validation would have to be off: it uses this machine's clock, takes only whole
//! seconds, accepts a token without `iss`, ignores `crit`, and rejects a key set with one unknown key or with keys only in `x5c`.
//!
//! On failure: a [`TokenRule`] names the broken rule and the setting behind it. It never repeats the token.

mod claims;

use aws_lc_rs::{constant_time::verify_slices_are_equal, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use base::metrics::TokenCheck;
use model::is_printable;

pub use self::claims::Claims;
pub(super) use self::claims::words;
use super::key::VerifyingKey;

/// Size limit of a token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Length limit of foreign text in a message.
const MAX_SHOWN_CHARS: usize = 120;

/// The rules for a token.
#[derive(Debug, Clone)]
pub struct TokenRules<'a> {
    /// Accepted issuers.
    pub issuers: &'a [String],
    /// Leeway for times in milliseconds.
    pub leeway_ms: i64,
    /// Purpose of the token.
    pub purpose: TokenPurpose<'a>,
}

/// Purpose of a token.
#[derive(Debug, Clone, Copy)]
pub enum TokenPurpose<'a> {
    /// API calls of our client.
    Access {
        /// Our client id.
        client: &'a str,
        /// Accepted audiences; empty accepts all.
        audiences: &'a [String],
    },
    /// Telling our client who has logged in.
    Identity {
        /// Our client id.
        client: &'a str,
        /// Nonce of the login.
        nonce: &'a str,
        /// The access token that came with it.
        access: Option<&'a str>,
        /// The code that came with it.
        code: Option<&'a str>,
    },
}

/// The rule that a token breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenRule {
    /// It is not a token.
    #[error("it is not a token: {0}")]
    Malformed(&'static str),
    /// It has another signature algorithm.
    #[error("it is signed with {found}, not with RS256")]
    Algorithm {
        /// The algorithm that it names.
        found: String,
    },
    /// No key matches its signature.
    #[error("its signature matches no key of the identity service (oauth.keys.location)")]
    Signature,
    /// It has another issuer.
    #[error("its issuer is {found}, which is not in oauth.issuers")]
    Issuer {
        /// That issuer.
        found: String,
    },
    /// It has another audience.
    #[error(
        "its audience is {found}, which oauth.audiences does not accept: set the key to that audience if it is the provider's"
    )]
    Audience {
        /// That audience.
        found: String,
    },
    /// It belongs to another client.
    #[error("it belongs to another client than oauth.client.id")]
    Client,
    /// It has expired.
    #[error("it expired {seconds} s ago by the provider's clock")]
    Expired {
        /// Seconds since then.
        seconds: i64,
    },
    /// It is not valid yet.
    #[error("it becomes valid in {seconds} s by the provider's clock (clock.skew.max.ms)")]
    NotYet {
        /// Seconds until then.
        seconds: i64,
    },
    /// It belongs to another login.
    #[error("its nonce belongs to another login")]
    Nonce,
    /// It does not match the token or code that came with it.
    #[error("it belongs to another {0}")]
    Companion(&'static str),
}

impl TokenRule {
    /// Whether only its times are wrong, so that a later check or another token may pass.
    pub fn is_about_time(&self) -> bool {
        matches!(self, Self::Expired { .. } | Self::NotYet { .. })
    }

    /// Outcome in the metrics.
    pub fn outcome(&self) -> TokenCheck {
        match self {
            Self::Malformed(_) | Self::Algorithm { .. } => TokenCheck::Malformed,
            Self::Signature => TokenCheck::Signature,
            Self::Issuer { .. } => TokenCheck::Issuer,
            Self::Audience { .. } | Self::Client | Self::Nonce | Self::Companion(_) => TokenCheck::Audience,
            Self::Expired { .. } | Self::NotYet { .. } => TokenCheck::Time,
        }
    }
}

/// The parts of a token. The header is parsed, the payload is not.
#[derive(Debug)]
pub struct TokenParts<'a> {
    /// The signed text.
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
    /// Id of the signing key, as the header names it.
    pub kid: Option<String>,
    /// Thumbprint of the signing certificate, as the header names it.
    pub x5t: Option<String>,
}

impl<'a> TokenParts<'a> {
    /// Splits a token.
    ///
    /// # Errors
    /// It is not a token, or has another algorithm.
    pub fn read(token: &'a str) -> Result<Self, TokenRule> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRule::Malformed("it is too long"));
        }
        const THREE: TokenRule = TokenRule::Malformed("it does not have three parts");
        let (signed, signature) = token.rsplit_once('.').ok_or(THREE)?;
        let (header, payload) = signed.split_once('.').ok_or(THREE)?;
        if payload.contains('.') {
            return Err(THREE);
        }
        let header = object(header).ok_or(TokenRule::Malformed("its header is not a JSON object"))?;
        match header.get("alg").and_then(Value::as_str) {
            Some("RS256") => {}
            other => return Err(TokenRule::Algorithm { found: shown(other.unwrap_or("nothing")) }),
        }
        // Critical extensions must be understood, and we support none.
        if header.contains_key("crit") {
            return Err(TokenRule::Malformed("it requires an extension"));
        }
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| TokenRule::Malformed("its signature is not base64"))?;
        let text = |name| header.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(Self { signed, payload, signature, kid: text("kid"), x5t: text("x5t") })
    }
}

/// Verifies a token against keys and rules at a time, in milliseconds since 1970.
///
/// # Errors
/// The first broken rule.
pub fn verify(
    parts: &TokenParts<'_>,
    keys: &[VerifyingKey],
    rules: &TokenRules<'_>,
    now_ms: i64,
) -> Result<Claims, TokenRule> {
    if !keys.iter().any(|key| key.has_signed(parts.signed.as_bytes(), &parts.signature)) {
        return Err(TokenRule::Signature);
    }
    let payload = object(parts.payload).ok_or(TokenRule::Malformed("its payload is not a JSON object"))?;
    let ends_ms =
        milliseconds(payload.get("exp")).ok_or(TokenRule::Malformed("exp is missing or not a number"))?;
    let over_ms = now_ms.saturating_sub(ends_ms.saturating_add(rules.leeway_ms));
    if over_ms >= 0 {
        return Err(TokenRule::Expired { seconds: now_ms.saturating_sub(ends_ms) / 1_000 });
    }
    if let Some(begin) = payload.get("nbf") {
        let begins_ms = milliseconds(Some(begin)).ok_or(TokenRule::Malformed("nbf is not a number"))?;
        if begins_ms.saturating_sub(rules.leeway_ms) > now_ms {
            return Err(TokenRule::NotYet { seconds: begins_ms.saturating_sub(now_ms) / 1_000 });
        }
    }
    let claims = Claims::read(payload, ends_ms);
    let issuer = claims.issuer.as_deref().unwrap_or_default();
    if !rules.issuers.iter().any(|allowed| allowed == issuer) {
        return Err(TokenRule::Issuer { found: shown(issuer) });
    }
    rules.purpose.check(&claims)?;
    Ok(claims)
}

/// The expiry in a token, not verified.
pub(crate) fn unverified_expiry_ms(token: &str) -> Option<i64> {
    milliseconds(unverified_payload(token)?.get("exp"))
}

/// The tenant in a token, not verified.
pub(super) fn unverified_tenant(token: &str) -> Option<String> {
    claims::tenant(&unverified_payload(token)?).map(str::to_owned)
}

fn unverified_payload(token: &str) -> Option<Map<String, Value>> {
    object(token.split('.').nth(1).filter(|payload| payload.len() <= MAX_TOKEN_BYTES)?)
}

impl TokenPurpose<'_> {
    fn check(&self, claims: &Claims) -> Result<(), TokenRule> {
        match *self {
            Self::Access { client, audiences } => {
                let meant = |allowed: &String| claims.audiences.contains(allowed);
                if !audiences.is_empty() && !audiences.iter().any(meant) {
                    return Err(TokenRule::Audience { found: shown(&claims.audiences.join(" ")) });
                }
                if claims.text("client_id") == Some(client) { Ok(()) } else { Err(TokenRule::Client) }
            }
            Self::Identity { client, nonce, access, code } => {
                if !claims.audiences.iter().any(|audience| audience == client) {
                    return Err(TokenRule::Client);
                }
                if !claims.text("nonce").is_some_and(|found| same(found, nonce)) {
                    return Err(TokenRule::Nonce);
                }
                for (name, what, companion) in [("at_hash", "access token", access), ("c_hash", "code", code)]
                {
                    let (Some(hash), Some(companion)) = (claims.text(name), companion) else { continue };
                    if !same(hash, &half_hash(companion)) {
                        return Err(TokenRule::Companion(what));
                    }
                }
                Ok(())
            }
        }
    }
}

/// The first half of a text's hash, the form of `at_hash` and `c_hash`.
fn half_hash(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    URL_SAFE_NO_PAD.encode(hash.as_ref().get(..16).unwrap_or_default())
}

/// Compares in constant time.
pub(super) fn same(left: &str, right: &str) -> bool {
    verify_slices_are_equal(left.as_bytes(), right.as_bytes()).is_ok()
}

/// Foreign text on one line, cut.
pub(super) fn shown(text: &str) -> String {
    let clean = |character: char| if is_printable(character) { character } else { ' ' };
    let cut: String = text.trim().chars().take(MAX_SHOWN_CHARS).map(clean).collect();
    if cut.is_empty() { "missing".into() } else { cut }
}

fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Whole or fractional seconds since 1970, in milliseconds.
fn milliseconds(value: Option<&Value>) -> Option<i64> {
    let number = value?.as_number()?;
    match number.as_i64() {
        Some(seconds) => Some(seconds.saturating_mul(1_000)),
        // Saturates: such a date is far away in any case.
        None => {
            number.as_f64().filter(|seconds| seconds.is_finite()).map(|seconds| (seconds * 1_000.0) as i64)
        }
    }
}

#[cfg(test)]
mod tests;
