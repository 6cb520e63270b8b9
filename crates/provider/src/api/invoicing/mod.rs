//! The invoicing API: login and webhooks.
//!
//! A login returns a token for an hour. Selecting one of the user's companies with it returns the token for all other calls
//! ([`InvoicingTokens`]). The only [`LoginMethod`] so far is [`Password`]. A [`SuppliedToken`] needs no login. If
//! `invoicing.oauth.scopes` is set, tokens come from the identity service instead, and none of this is used.

mod hooks;
mod login;
mod supplied;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use base::{metrics::ApiArea, secret::Secret};

pub use self::{
    hooks::{Hook, NewHook},
    login::{InvoicingTokens, LoginMethod, Password},
    supplied::SuppliedToken,
};
use super::{
    CallOptions, Client, Error, body,
    call::{ApiCall, ApiResponse, Authority},
    error::Cause,
    request::AreaClient,
};

const LOGIN: &str = "invoicing/api/users/login";
const SELECT: &str = "invoicing/api/companies/{id}/select";
const SCHEME: &str = "Bearer ";

/// The invoicing API for one company.
#[derive(Debug, Clone)]
pub struct Invoicing(pub(super) AreaClient);

/// The response to a login or to the selection of a company.
#[derive(Debug, Clone)]
pub struct InvoicingSession {
    /// The whole value of `Authorization`.
    pub header: Secret,
    /// Token that selects a company.
    pub refresh: Secret,
    /// Companies to select from; empty after the selection.
    pub companies: Vec<CompanyChoice>,
}

/// A company of the user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CompanyChoice {
    /// Id for the selection.
    pub id: i64,
    /// Whether it is the user's default.
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
        let call = ApiCall::new(ApiArea::Invoicing, Method::POST, LOGIN, Authority::Nobody);
        self.0.call(&ApiCall { body, hide: vec![password], ..call }, options, read_session).await
    }

    /// Selects a company of a login.
    pub async fn select(
        &self,
        session: &InvoicingSession,
        company: i64,
        options: &CallOptions,
    ) -> Result<InvoicingSession, Error> {
        // The body is the token itself, as a JSON string.
        let body = Some(json!(session.refresh.reveal()));
        let authority = Authority::Given(&session.header);
        let call = ApiCall::new(ApiArea::Invoicing, Method::POST, SELECT, authority);
        let call = ApiCall { id: company.to_string().into(), body, hide: vec![&session.refresh], ..call };
        self.0.call(&call, options, read_session).await
    }
}

fn read_session(answer: &ApiResponse) -> Result<InvoicingSession, Cause> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SessionAnswer {
        token: String,
        refresh_token: String,
        #[serde(default, deserialize_with = "body::or_default")]
        companies: Vec<CompanyChoice>,
    }
    let wire: SessionAnswer = body::parse(answer.json()?)?;
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

/// The provider includes the scheme in its token. Adds it if it is missing.
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
    fn a_missing_scheme_is_added_to_a_token() {
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
