//! The check of one token: a text in, its claims out, or the rule that it breaks.
//!
//! ```text
//! token ──▶ TokenParts: three, RS256 ──▶ signature by one of the keys ──▶ times ──▶ issuer ──▶ what it is for ──▶ Claims
//! ```
//!
//! - Only [`verify`] makes [`Claims`]: whoever holds them holds a token that was good at that moment.
//! - Nothing is read out of a payload before its signature holds, apart from `unverified_expiry_ms`, which decides nothing but when
//!   to ask for the next token.
//! - The time is an argument: this module has no clock.
//! - A member that is there twice counts with its last value, as the provider's own tokens have `$id` twice.
//!
//! Not `jsonwebtoken`, because all of its validation would have to be off: it uses this machine's clock instead of the provider's, takes only
//! whole seconds, accepts a token without `iss`, ignores `crit`, and rejects a key set with one unknown key or with keys only in `x5c`.
//!
//! On failure a [`TokenRule`] says which one, and which setting is behind it. It never repeats the token.

mod claims;

use aws_lc_rs::{constant_time::verify_slices_are_equal, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use base::metrics::TokenCheck;
use model::is_printable;

pub use self::claims::Claims;
pub(super) use self::claims::words;
use super::key::VerifyingKey;

/// The longest token that is looked at.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// How much of a foreign word a message shows.
const MAX_SHOWN_CHARS: usize = 120;

/// What a token is held to.
#[derive(Debug, Clone)]
pub struct TokenRules<'a> {
    /// Who may have issued it.
    pub issuers: &'a [String],
    /// How far times may be off, in milliseconds.
    pub leeway_ms: i64,
    /// What it is for.
    pub purpose: TokenPurpose<'a>,
}

/// What a token is for.
#[derive(Debug, Clone, Copy)]
pub enum TokenPurpose<'a> {
    /// To call APIs, by our client.
    Access {
        /// Our client.
        client: &'a str,
        /// Whom it must be meant for, one of them; empty for anybody.
        audiences: &'a [String],
    },
    /// To tell our client who has logged in.
    Identity {
        /// Our client.
        client: &'a str,
        /// What the login asked to have repeated.
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
    /// It is no token.
    #[error("it is not a token: {0}")]
    Malformed(&'static str),
    /// It is not signed as the provider signs.
    #[error("it is signed with {found}, not with RS256")]
    Algorithm {
        /// What it says.
        found: String,
    },
    /// None of the keys has signed it.
    #[error("its signature is none of the identity service's (oauth.keys.location)")]
    Signature,
    /// Somebody else has issued it.
    #[error("its issuer is {found}, which oauth.issuers does not have")]
    Issuer {
        /// Who.
        found: String,
    },
    /// It is meant for somebody else.
    #[error(
        "its audience is {found}, which oauth.audiences does not accept: set the key to that audience if it is the provider's"
    )]
    Audience {
        /// Who.
        found: String,
    },
    /// It belongs to another client.
    #[error("it belongs to another client than oauth.client.id")]
    Client,
    /// It is over.
    #[error("it ended {seconds} s ago by the provider's clock")]
    Expired {
        /// For how long.
        seconds: i64,
    },
    /// It has not begun.
    #[error("it begins in {seconds} s by the provider's clock (clock.skew.max.ms)")]
    NotYet {
        /// In how long.
        seconds: i64,
    },
    /// It does not answer this login.
    #[error("its nonce is not that of this login")]
    Nonce,
    /// It came with another token or code.
    #[error("it belongs to another {0}")]
    Companion(&'static str),
}

impl TokenRule {
    /// Whether another token may keep what this one breaks: it is only too old or too new.
    pub fn is_about_time(&self) -> bool {
        matches!(self, Self::Expired { .. } | Self::NotYet { .. })
    }

    /// Its name among the metrics.
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

/// A token in its parts. Its header is read, its payload not yet.
#[derive(Debug)]
pub struct TokenParts<'a> {
    /// What is signed.
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
    /// Which key has signed it, by its own word.
    pub kid: Option<String>,
    /// The same as the thumbprint of a certificate.
    pub x5t: Option<String>,
}

impl<'a> TokenParts<'a> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// It is none, or one of another kind.
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
        let header = object(header).ok_or(TokenRule::Malformed("its header is no JSON object"))?;
        match header.get("alg").and_then(Value::as_str) {
            Some("RS256") => {}
            other => return Err(TokenRule::Algorithm { found: shown(other.unwrap_or("nothing")) }),
        }
        // Whoever marks something as critical wants it to be understood, and there is nothing that we would understand.
        if header.contains_key("crit") {
            return Err(TokenRule::Malformed("it demands an extension"));
        }
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| TokenRule::Malformed("its signature is no base64"))?;
        let text = |name| header.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(Self { signed, payload, signature, kid: text("kid"), x5t: text("x5t") })
    }
}

/// The claims of a token that one of these keys has signed and that keeps all rules at this time, in milliseconds since 1970.
///
/// # Errors
/// The first rule that it breaks.
pub fn verify(
    parts: &TokenParts<'_>,
    keys: &[VerifyingKey],
    rules: &TokenRules<'_>,
    now_ms: i64,
) -> Result<Claims, TokenRule> {
    if !keys.iter().any(|key| key.has_signed(parts.signed.as_bytes(), &parts.signature)) {
        return Err(TokenRule::Signature);
    }
    let payload = object(parts.payload).ok_or(TokenRule::Malformed("its payload is no JSON object"))?;
    let ends_ms =
        milliseconds(payload.get("exp")).ok_or(TokenRule::Malformed("exp is missing or no number"))?;
    let over_ms = now_ms.saturating_sub(ends_ms.saturating_add(rules.leeway_ms));
    if over_ms >= 0 {
        return Err(TokenRule::Expired { seconds: now_ms.saturating_sub(ends_ms) / 1_000 });
    }
    if let Some(begin) = payload.get("nbf") {
        let begins_ms = milliseconds(Some(begin)).ok_or(TokenRule::Malformed("nbf is no number"))?;
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

/// When a token ends by its own word, which nobody has checked.
pub(crate) fn unverified_expiry_ms(token: &str) -> Option<i64> {
    let payload = token.split('.').nth(1).filter(|payload| payload.len() <= MAX_TOKEN_BYTES)?;
    milliseconds(object(payload)?.get("exp"))
}

impl TokenPurpose<'_> {
    fn check(&self, claims: &Claims) -> Result<(), TokenRule> {
        match *self {
            Self::Access { client, audiences } => {
                let meant = |allowed: &String| claims.audiences.contains(allowed);
                if !audiences.is_empty() && !audiences.iter().any(meant) {
                    return Err(TokenRule::Audience { found: shown(&claims.audiences.join(" ")) });
                }
                if claims.client.as_deref() == Some(client) { Ok(()) } else { Err(TokenRule::Client) }
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
                    let (Some(told), Some(companion)) = (claims.text(name), companion) else { continue };
                    if !same(told, &half_hash(companion)) {
                        return Err(TokenRule::Companion(what));
                    }
                }
                Ok(())
            }
        }
    }
}

/// The first half of a text's hash, as identity tokens tell it.
fn half_hash(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    URL_SAFE_NO_PAD.encode(hash.as_ref().get(..16).unwrap_or_default())
}

/// Compares without telling by its time where two texts differ.
pub(super) fn same(left: &str, right: &str) -> bool {
    verify_slices_are_equal(left.as_bytes(), right.as_bytes()).is_ok()
}

/// A foreign text on one line, cut.
pub(super) fn shown(text: &str) -> String {
    let clean = |character: char| if is_printable(character) { character } else { ' ' };
    let cut: String = text.trim().chars().take(MAX_SHOWN_CHARS).map(clean).collect();
    if cut.is_empty() { "missing".into() } else { cut }
}

fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Seconds since 1970, whole or not, in milliseconds.
fn milliseconds(value: Option<&Value>) -> Option<i64> {
    let number = value?.as_number()?;
    match number.as_i64() {
        Some(seconds) => Some(seconds.saturating_mul(1_000)),
        // Saturates: a date that no number of ours can hold is far away in any case.
        None => {
            number.as_f64().filter(|seconds| seconds.is_finite()).map(|seconds| (seconds * 1_000.0) as i64)
        }
    }
}

#[cfg(test)]
mod tests;
