//! A login from its address to its tokens, without a socket or a terminal: whoever has those brings the query back.
//!
//! ```text
//! begin ──▶ address ──▶ (a person, a browser) ──▶ accept: the query of the callback ──▶ finish: exchange and checks
//! ```
//!
//! - State, nonce and verifier are drawn anew for each login and compared in constant time.
//! - A callback whose state is not ours ends the login, whatever else it says.
//! - No tokens leave [`PendingLogin::finish`] unchecked: the access token, and the identity token with the nonce in it.
//!
//! On failure nothing is kept; the person begins again. A code is redeemed once at most.

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

/// The redirect address that stands for none: the provider shows the code, and the person copies it.
pub const OUT_OF_BAND: &str = "urn:ietf:wg:oauth:2.0:oob";

/// The longest query or pasted text that is looked at.
const MAX_QUERY_BYTES: usize = 64 * 1024;
/// The longest code that is taken for one.
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

/// What a callback brought.
#[derive(Debug)]
pub struct CallbackCode {
    code: Secret,
    /// The document's table has one; the software behind the provider sends none. Checked where it is there.
    identity: Option<Secret>,
}

/// A login that has succeeded.
#[derive(Debug)]
pub struct CompletedLogin {
    /// The tokens.
    pub granted: Granted,
    /// What the access token says.
    pub claims: Claims,
    /// What was granted.
    pub scopes: Vec<String>,
}

/// Why a callback is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallbackError {
    /// It does not answer this login.
    #[error("the answer does not belong to this login: its state differs")]
    NotTrusted,
    /// The provider did not let the person in.
    #[error("the provider refuses the login: {code}{}", description.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// The provider's word, cut and cleaned.
        code: String,
        /// What it adds for people, cut and cleaned.
        description: Option<String>,
    },
    /// It holds no code.
    #[error("the answer is not usable: {0}")]
    Malformed(&'static str),
}

/// Why a login does not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The identity service, or the way there.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// The keys of a file cannot be used.
    #[error(transparent)]
    Keys(#[from] keys::Error),
    /// A token does not pass its check.
    #[error("the provider's {token} is not trusted")]
    Distrusted {
        /// Which.
        token: &'static str,
        /// Why.
        #[source]
        source: check::Error,
    },
    /// Something is missing.
    #[error("the provider gave no {what}: {} must have {scope}", area.scopes_key())]
    Incomplete {
        /// What was logged in for.
        area: Area,
        /// What.
        what: &'static str,
        /// The scope that brings it.
        scope: &'static str,
    },
    /// The code was refused together with its PKCE verifier.
    #[error(
        "redeem the code: if the client is not set up for PKCE, set oauth.pkce=false in the connector's configuration and log in again"
    )]
    Pkce(#[source] identity::Error),
    /// The machine has no random numbers.
    #[error("draw random numbers for the login")]
    Random,
}

impl PendingLogin {
    /// A login for an area, which comes back to `redirect`, to the letter.
    ///
    /// # Errors
    /// The settings cannot be used here.
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

    /// Where the person logs in. It carries state and nonce: for the person's eyes and browser, not for logs.
    pub fn address(&self) -> &Url {
        &self.address
    }

    /// Takes the query of a callback, without its question mark.
    ///
    /// # Errors
    /// It is not this login's, or holds no code. The login is over.
    pub fn accept(&self, query: &str) -> Result<CallbackCode, CallbackError> {
        if query.len() > MAX_QUERY_BYTES {
            return Err(CallbackError::Malformed("it is too long"));
        }
        let parameter = |name: &str| {
            let mut values = form_urlencoded::parse(query.as_bytes())
                .filter(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned());
            let first = values.next();
            // Which of two is meant, nobody can say.
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

    /// Takes what a person has pasted: the code that the provider shows, or the whole address that the browser came to.
    /// Only the address has the state in it; a code alone is trusted for the hands that it came through.
    ///
    /// # Errors
    /// It is not this login's, or no code.
    pub fn accept_pasted(&self, text: &str) -> Result<CallbackCode, CallbackError> {
        let text = text.trim();
        if text.len() > MAX_QUERY_BYTES {
            return Err(CallbackError::Malformed("it is too long"));
        }
        match text.split_once("://") {
            Some(_) => {
                let address = Url::parse(text).map_err(|_| CallbackError::Malformed("it is no address"))?;
                self.accept(address.query().unwrap_or_default())
            }
            None => Ok(CallbackCode { code: checked_code(text)?, identity: None }),
        }
    }

    /// Redeems the code and checks what comes for it.
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
            // Without it nothing ties the tokens to this login.
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
        return Err(CallbackError::Malformed("it is no code"));
    }
    Ok(Secret::from(text))
}

fn guid() -> Result<String, Error> {
    random::guid().map_err(|_| Error::Random)
}

#[cfg(test)]
mod tests;
