//! A login, from the authorization URL to checked tokens. The caller brings the browser or terminal, and the callback's query.
//!
//! ```text
//! begin ──▶ URL ──▶ (person and browser) ──▶ accept: the callback's query ──▶ finish: code exchange and checks
//! ```
//!
//! - State, nonce and verifier are random for each login, and compared in constant time.
//! - A callback with another state ends the login, whatever else it says.
//! - [`PendingLogin::finish`] returns only verified tokens: the access token, and the identity token with the login's nonce.
//!
//! On failure: nothing is kept, and the person starts again. A code is redeemed at most once.

use std::fmt;

use oauth2::PkceCodeChallenge;
use url::{Url, form_urlencoded};

use base::{random, secret::Secret};

use super::{
    Area,
    check::{self, LoginContext, TokenVerifier},
    http::ProviderClock,
    identity::{self, AuthorizeRequest, Granted, Identity, OAuthCode},
    keys,
    token::{Claims, TokenRule, same, shown},
};
use crate::Provider;

/// The redirect URI for logins without a redirect: the provider shows the code, and the person copies it.
pub const OUT_OF_BAND: &str = "urn:ietf:wg:oauth:2.0:oob";

/// Size limit of a query or pasted text.
const MAX_QUERY_BYTES: usize = 64 * 1024;
/// Size limit of a code.
const MAX_CODE_BYTES: usize = 4 * 1024;

/// A login that waits for its callback.
pub struct PendingLogin {
    identity: Identity,
    check: TokenVerifier,
    redirect: String,
    area: Area,
    scopes: Vec<String>,
    state: Secret,
    nonce: Secret,
    verifier: Option<Secret>,
    address: Url,
}

/// The result of a callback.
#[derive(Debug)]
pub struct CallbackCode {
    code: Secret,
    /// The provider's document lists an identity token here, but its software sends none. Verified if it is there.
    identity: Option<Secret>,
}

/// A successful login.
#[derive(Debug)]
pub struct CompletedLogin {
    /// The tokens.
    pub granted: Granted,
    /// Claims of the access token.
    pub claims: Claims,
    /// Granted scopes.
    pub scopes: Vec<String>,
}

/// Why a callback is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallbackError {
    /// It belongs to another login.
    #[error("the callback does not belong to this login: its state differs")]
    NotTrusted,
    /// The provider rejected the login.
    #[error("the provider rejected the login: {code}{}", description.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// The OAuth error code, cut and cleaned.
        code: String,
        /// The error description, cut and cleaned.
        description: Option<String>,
    },
    /// It has no usable code.
    #[error("the callback cannot be used: {0}")]
    Malformed(&'static str),
}

/// Why a login failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The identity service failed or was not reached.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// The file of keys cannot be used.
    #[error(transparent)]
    Keys(#[from] keys::Error),
    /// A token failed verification.
    #[error("the provider's {token} is not trusted")]
    Distrusted {
        /// Which token.
        token: &'static str,
        /// The cause.
        #[source]
        source: check::Error,
    },
    /// A token is missing.
    #[error("the provider gave no {what}: {} must have {scope}", area.scopes_key())]
    Incomplete {
        /// Area of the login.
        area: Area,
        /// Which token.
        what: &'static str,
        /// The scope that grants it.
        scope: &'static str,
    },
    /// The code was rejected, and the request had a PKCE verifier.
    #[error(
        "cannot redeem the code: if the client is not set up for PKCE, set oauth.pkce=false in the connector's configuration and log in again"
    )]
    Pkce(#[source] identity::Error),
    /// There are no random numbers.
    #[error("cannot draw random numbers for the login")]
    Random,
}

impl PendingLogin {
    /// Starts a login that returns to exactly this redirect URI.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub fn begin(
        provider: &Provider,
        area: Area,
        redirect: &str,
        clock: &ProviderClock,
    ) -> Result<Self, Error> {
        let identity = Identity::new(provider, clock.clone())?;
        let check = TokenVerifier::new(&identity, &provider.oauth)?;
        let scopes = area.scopes_of(&provider.oauth);
        let (state, nonce) = (guid()?, guid()?);
        let (challenge, verifier) = match provider.oauth.pkce {
            false => (None, None),
            true => {
                let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
                (Some(challenge), Some(Secret::new(verifier.into_secret())))
            }
        };
        let address = identity.authorize(AuthorizeRequest {
            redirect,
            state: &state,
            nonce: &nonce,
            scopes: &scopes,
            challenge,
        })?;
        Ok(Self {
            identity,
            check,
            redirect: redirect.to_owned(),
            area,
            scopes,
            state: state.into(),
            nonce: nonce.into(),
            verifier,
            address,
        })
    }

    /// The URL at which the person logs in. It contains state and nonce: do not log it.
    pub fn address(&self) -> &Url {
        &self.address
    }

    /// Takes the query of a callback, without its question mark.
    ///
    /// # Errors
    /// It belongs to another login, or has no code. The login has failed.
    pub fn accept(&self, query: &str) -> Result<CallbackCode, CallbackError> {
        if query.len() > MAX_QUERY_BYTES {
            return Err(CallbackError::Malformed("it is too long"));
        }
        let parameter = |name: &str| {
            let mut values = form_urlencoded::parse(query.as_bytes())
                .filter(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned());
            let first = values.next();
            // Ambiguous.
            if values.next().is_some() {
                return Err(CallbackError::Malformed("a parameter is there twice"));
            }
            Ok(first.filter(|value| !value.is_empty()))
        };
        let state = parameter("state")?.unwrap_or_default();
        if !same(&state, self.state.reveal()) {
            return Err(CallbackError::NotTrusted);
        }
        if let Some(code) = parameter("error")? {
            let description = parameter("error_description")?.map(|text| shown(&text));
            return Err(CallbackError::Refused { code: shown(&code), description });
        }
        let code = parameter("code")?.ok_or(CallbackError::Malformed("it has no code"))?;
        Ok(CallbackCode { code: checked_code(&code)?, identity: parameter("id_token")?.map(Secret::from) })
    }

    /// Takes pasted text: the code that the provider shows, or the URL that the browser was redirected to. Only the URL contains
    /// the state; a bare code is trusted because the person brought it.
    ///
    /// # Errors
    /// It belongs to another login, or is no code.
    pub fn accept_pasted(&self, text: &str) -> Result<CallbackCode, CallbackError> {
        let text = text.trim();
        if text.len() > MAX_QUERY_BYTES {
            return Err(CallbackError::Malformed("it is too long"));
        }
        match text.split_once("://") {
            Some(_) => {
                let address = Url::parse(text).map_err(|_| CallbackError::Malformed("it is not a URL"))?;
                self.accept(address.query().unwrap_or_default())
            }
            None => Ok(CallbackCode { code: checked_code(text)?, identity: None }),
        }
    }

    /// Exchanges the code for tokens and verifies them.
    ///
    /// # Errors
    /// There are no tokens, or they are not trusted. The code is used up.
    pub async fn finish(self, code: CallbackCode) -> Result<CompletedLogin, Error> {
        let nonce = &self.nonce;
        if let Some(token) = &code.identity {
            let context = LoginContext { nonce, access: None, code: Some(&code.code) };
            self.check.identity(token, context).await.map_err(distrusted("identity token"))?;
        }
        let redeemed = self.identity.redeem(&code.code, &self.redirect, self.verifier.as_ref()).await;
        let granted = redeemed.map_err(|error| match error {
            identity::Error::Refused { code: OAuthCode::InvalidGrant } if self.verifier.is_some() => {
                Error::Pkce(error)
            }
            error => error.into(),
        })?;
        let claims = self.check.access(&granted.access).await.map_err(distrusted("access token"))?;
        match &granted.identity {
            Some(token) => {
                let context = LoginContext { nonce, access: Some(&granted.access), code: None };
                let person =
                    self.check.identity(token, context).await.map_err(distrusted("identity token"))?;
                if person.subject != claims.subject {
                    return Err(distrusted("identity token")(TokenRule::Companion("person").into()));
                }
            }
            // The identity token ties the tokens to this login.
            None => {
                return Err(Error::Incomplete { area: self.area, what: "identity token", scope: "openid" });
            }
        }
        if granted.refresh.is_none() {
            return Err(Error::Incomplete {
                area: self.area,
                what: "refresh token",
                scope: "offline_access",
            });
        }
        let scopes = [&claims.scopes, &granted.scopes, &self.scopes];
        let scopes = scopes.into_iter().find(|scopes| !scopes.is_empty()).cloned().unwrap_or_default();
        Ok(CompletedLogin { granted, claims, scopes })
    }
}

impl fmt::Debug for PendingLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingLogin")
            .field("redirect", &self.redirect)
            .field("scopes", &self.scopes)
            .field("pkce", &self.verifier.is_some())
            .finish_non_exhaustive()
    }
}

fn distrusted(token: &'static str) -> impl FnOnce(check::Error) -> Error {
    move |source| Error::Distrusted { token, source }
}

fn checked_code(text: &str) -> Result<Secret, CallbackError> {
    let is_printed = |byte: u8| byte.is_ascii_graphic();
    if text.is_empty() || text.len() > MAX_CODE_BYTES || !text.bytes().all(is_printed) {
        return Err(CallbackError::Malformed("it is not a code"));
    }
    Ok(Secret::from(text))
}

fn guid() -> Result<String, Error> {
    random::guid().map_err(|_| Error::Random)
}

#[cfg(test)]
mod tests;
