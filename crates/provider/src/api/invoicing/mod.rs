//! The invoicing API: its login and its webhooks.
//!
//! A login gives a token that lives an hour; one of the user's companies is chosen with it, which gives the token for everything else
//! ([`InvoicingTokens`]). How one gets in is a [`LoginMethod`]: by mail and password ([`Password`]) today, and another may join. Where
//! `invoicing.oauth.scopes` is set, tokens are those of the identity service instead, and none of this is used.

mod hooks;
mod login;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use base::{metrics::ApiArea, secret::Secret};

pub use self::{
    hooks::{Hook, NewHook},
    login::{InvoicingTokens, LoginMethod, Password},
};
use super::{
    CallOptions, Client, Error, body,
    call::{ApiResponse, Authority, Call},
    error::Cause,
    request::AreaClient,
};

const LOGIN: &str = "invoicing/api/users/login";
const SELECT: &str = "invoicing/api/companies/{id}/select";
const SCHEME: &str = "Bearer ";

/// The invoicing API as one of its companies.
#[derive(Debug, Clone)]
pub struct Invoicing(pub(super) AreaClient);

/// A login, or the choice of a company.
#[derive(Debug, Clone)]
pub struct InvoicingSession {
    /// The value of `Authorization`, whole.
    pub header: Secret,
    /// What a company is chosen with.
    pub refresh: Secret,
    /// The companies there are to choose from; none once one is chosen.
    pub companies: Vec<CompanyChoice>,
}

/// A company of the user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CompanyChoice {
    /// Its id, to choose it by.
    pub id: i64,
    /// Whether it is the user's usual one.
    #[serde(default, deserialize_with = "body::or_default")]
    pub default: bool,
}

impl Client {
    /// Logs in to the invoicing API.
    ///
    /// # Errors
    /// See [`Error`]; [`Cause::Credentials`] if mail or password is wrong.
    pub async fn log_in(
        &self,
        mail: &str,
        password: &Secret,
        options: &CallOptions,
    ) -> Result<InvoicingSession, Error> {
        let body = Some(json!({ "mail": mail, "password": password.reveal() }));
        let call = Call::new(ApiArea::Invoicing, Method::POST, LOGIN, Authority::Nobody);
        self.0.call(&Call { body, hide: vec![password], ..call }, options, read_session).await
    }

    /// Chooses one of the companies of a login to the invoicing API.
    pub async fn select(
        &self,
        session: &InvoicingSession,
        company: i64,
        options: &CallOptions,
    ) -> Result<InvoicingSession, Error> {
        // The token itself is the body, as JSON text.
        let body = Some(json!(session.refresh.reveal()));
        let authority = Authority::Given(&session.header);
        let call = Call::new(ApiArea::Invoicing, Method::POST, SELECT, authority);
        let call = Call { id: company.to_string().into(), body, hide: vec![&session.refresh], ..call };
        self.0.call(&call, options, read_session).await
    }
}

fn read_session(answer: &ApiResponse) -> Result<InvoicingSession, Cause> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wire {
        token: String,
        refresh_token: String,
        #[serde(default, deserialize_with = "body::or_default")]
        companies: Vec<CompanyChoice>,
    }
    let wire: Wire = body::parse(answer.json()?)?;
    let token = Secret::new(wire.token);
    if token.is_empty() {
        return Err(Cause::Malformed { what: "the token is empty".into() });
    }
    Ok(InvoicingSession {
        header: with_scheme(token),
        refresh: Secret::new(wire.refresh_token),
        companies: wire.companies,
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
