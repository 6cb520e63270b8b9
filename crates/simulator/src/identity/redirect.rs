//! Redirect addresses of logins.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use url::Url;

use super::page;

/// The address of clients without one: a page shows the code.
const OUT_OF_BAND: &str = "urn:ietf:wg:oauth:2.0:oob";

/// A valid redirect address.
#[derive(Debug, Clone)]
pub(super) struct Redirect {
    /// As it was sent; the token endpoint compares it exactly.
    text: String,
    /// `None` for the out-of-band address.
    url: Option<Url>,
}

impl Redirect {
    /// Checks an address by the document's rule: https, `http://localhost:<port>/…` or out-of-band; `http://127.0.0.1` is not
    /// allowed.
    pub(super) fn check(text: &str) -> Result<Self, &'static str> {
        if text == OUT_OF_BAND {
            return Ok(Self { text: text.to_owned(), url: None });
        }
        let url = Url::parse(text).map_err(|_| "the redirect address is no address")?;
        if url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
            return Err("the redirect address must have no fragment and no credentials");
        }
        if url.scheme() == "https" || is_local(text) {
            return Ok(Self { text: text.to_owned(), url: Some(url) });
        }
        Err("the redirect address must be https, or http://localhost with a port")
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Redirects with a code, and with the identity token if there is one.
    pub(super) fn grant(&self, code: &str, identity: Option<&str>, state: &str) -> Response {
        let mut parameters = vec![("code", code)];
        parameters.extend(identity.map(|token| ("id_token", token)));
        parameters.push(("state", state));
        self.answer(&parameters).unwrap_or_else(|| page::code(code))
    }

    /// Redirects with an error.
    pub(super) fn refuse(&self, error: &str, description: &str, state: Option<&str>) -> Response {
        let mut parameters = vec![("error", error), ("error_description", description)];
        parameters.extend(state.map(|state| ("state", state)));
        self.answer(&parameters).unwrap_or_else(|| page::refusal(&format!("{error}: {description}")))
    }

    /// 302 with these parameters added to those of the address.
    fn answer(&self, parameters: &[(&str, &str)]) -> Option<Response> {
        let mut url = self.url.clone()?;
        url.query_pairs_mut().extend_pairs(parameters);
        let headers = [(header::LOCATION, String::from(url)), (header::CACHE_CONTROL, "no-store".to_owned())];
        Some((StatusCode::FOUND, headers).into_response())
    }
}

/// Whether the address is literally `http://localhost:<port>/…`.
fn is_local(text: &str) -> bool {
    text.strip_prefix("http://localhost:").and_then(|rest| rest.split_once('/')).is_some_and(|(port, _)| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_is_there_already_stays() {
        let redirect = Redirect::check("https://client.example/callback?a=b%20c").unwrap();

        let response = redirect.grant("c0de", None, "a&b=\r\nc");

        assert_eq!(response.status(), 302);
        assert_eq!(
            response.headers()["location"],
            "https://client.example/callback?a=b%20c&code=c0de&state=a%26b%3D%0D%0Ac"
        );
    }
}
