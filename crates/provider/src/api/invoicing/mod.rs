//! The invoicing API: its login and its webhooks.
//!
//! A login gives a token that lives an hour; one of the user's companies is chosen with it, which gives the token for everything else
//! ([`Login`]). How one gets in is a [`Way`]: by mail and password ([`Password`]) today, and another may join. Where
//! `invoicing.oauth.scopes` is set, tokens are those of the identity service instead, and none of this is used.

mod hooks;
mod login;

use std::sync::Arc;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use base::{metrics::ApiArea, secret::Secret};

pub use self::{
    hooks::{Hook, NewHook},
    login::{Login, Password, Way},
};
use super::{
    Ask, Error, address, body,
    call::{Answer, Authority, Call},
    error::Cause,
    request::Core,
    webhooks::bytes,
};
use crate::auth::Tokens;

const LOGIN: &str = "invoicing/api/users/login";
const COMPANIES: &str = "invoicing/api/companies";
const SCHEME: &str = "Bearer ";

/// The invoicing API as one of its companies.
#[derive(Debug, Clone)]
pub struct Invoicing {
    core: Arc<Core>,
    tokens: Arc<dyn Tokens>,
}

/// What can be asked before one is in.
#[derive(Debug, Clone)]
pub struct Door {
    core: Arc<Core>,
}

/// A login, or the choice of a company.
#[derive(Debug, Clone)]
pub struct Session {
    /// The value of `Authorization`, whole.
    pub header: Secret,
    /// What a company is chosen with.
    pub refresh: Secret,
    /// The companies there are to choose from; none once one is chosen.
    pub companies: Vec<Choice>,
}

/// A company of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its id, to choose it by.
    pub id: i64,
    /// What it is called.
    pub name: Option<String>,
    /// Whether it is the user's usual one.
    pub default: bool,
}

impl Invoicing {
    pub(super) fn new(core: Arc<Core>, tokens: Arc<dyn Tokens>) -> Self {
        Self { core, tokens }
    }

    fn call(&self, method: Method, path: &'static str, address: String) -> Call<'_> {
        Call::new(ApiArea::Invoicing, method, path, address, Authority::Tokens(&*self.tokens))
    }
}

impl Door {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Logs in.
    ///
    /// # Errors
    /// See [`Error`]; [`Cause::Credentials`] if mail or password is wrong.
    pub async fn log_in(&self, mail: &str, password: &Secret, ask: &Ask) -> Result<Session, Error> {
        let call = Call::new(ApiArea::Invoicing, Method::POST, LOGIN, LOGIN.to_owned(), Authority::Nobody);
        let body = bytes(&json!({ "mail": mail, "password": password.reveal() }));
        self.core.call(&Call { body, hide: vec![password], ..call }, ask, read_session).await
    }

    /// Chooses one of the companies of a login.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn select(&self, session: &Session, company: i64, ask: &Ask) -> Result<Session, Error> {
        let address = format!("{COMPANIES}/{company}/select");
        let path = "invoicing/api/companies/{id}/select";
        let authority = Authority::Given(&session.header);
        let call = Call::new(ApiArea::Invoicing, Method::POST, path, address, authority);
        // The token itself is the body, as JSON text.
        let body = bytes(&json!(session.refresh.reveal()));
        self.core.call(&Call { body, hide: vec![&session.refresh], ..call }, ask, read_session).await
    }

    fn now_ms(&self) -> i64 {
        self.core.clock().now_ms()
    }
}

fn read_session(answer: &Answer) -> Result<Session, Cause> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wire {
        token: String,
        refresh_token: String,
        companies: Option<Vec<Company>>,
    }
    #[derive(Deserialize)]
    struct Company {
        id: i64,
        name: Option<String>,
        default: Option<bool>,
    }
    body::check_type(&answer.headers, &answer.body)?;
    let wire: Wire = body::parse(&answer.body)?;
    let token = Secret::new(wire.token);
    if token.is_empty() {
        return Err(Cause::Malformed { what: "the token is empty".into() });
    }
    let companies = wire.companies.unwrap_or_default().into_iter();
    Ok(Session {
        header: with_scheme(token),
        refresh: Secret::new(wire.refresh_token),
        companies: companies
            .map(|company| Choice {
                id: company.id,
                name: company.name,
                default: company.default.unwrap_or_default(),
            })
            .collect(),
    })
}

/// The provider puts the word before its token by itself; were it to stop, it would be missed.
fn with_scheme(token: Secret) -> Secret {
    let written = token.reveal().get(..SCHEME.len());
    if written.is_some_and(|start| start.eq_ignore_ascii_case(SCHEME)) {
        return token;
    }
    Secret::new(format!("{SCHEME}{}", token.reveal()))
}

/// A webhook's id as one segment.
fn hook_address(id: &str) -> Result<String, Cause> {
    Ok(format!("{}/{}", hooks::HOOKS, address::segment(id)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_as_given_and_gets_the_word_only_where_it_is_missing() {
        for (token, header) in [
            ("Bearer abc", "Bearer abc"),
            ("bearer abc", "bearer abc"),
            ("abc", "Bearer abc"),
            ("Bearerabc", "Bearer Bearerabc"),
            ("ñ", "Bearer ñ"),
        ] {
            assert_eq!(with_scheme(Secret::new(token)).reveal(), header);
        }
    }
}
