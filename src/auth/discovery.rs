//! What the identity service publishes about itself: who it is as an issuer, and where its keys are.
//!
//! The document is taken for what it says: the issuer's host is another than the service's (that is so with this provider),
//! and the keys may be on a third. But they come over TLS, or from this machine.

use serde_json::{Map, Value};
use url::Url;

use super::identity::{Error, Identity};
use crate::config::is_local;

/// No document or key set of anybody is larger.
pub(super) const DOCUMENT_BYTES: usize = 1024 * 1024;
/// The longest issuer that is taken.
const LONGEST_ISSUER: usize = 2_048;

/// What is of use to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Discovery {
    /// Who issues tokens, by its own word.
    pub(super) issuer: Option<String>,
    /// Where the key set is.
    pub(super) keys: Url,
}

/// Fetches the document.
pub(super) async fn fetch(identity: &Identity) -> Result<Discovery, Error> {
    let address = format!("{}/.well-known/openid-configuration", identity.root());
    let address = Url::parse(&address).map_err(|source| Error::Setup {
        what: "make the discovery address out of provider.auth.url".into(),
        source: Box::new(source),
    })?;
    let body = identity.fetch(&address, DOCUMENT_BYTES).await?;
    read(&body)
}

fn read(body: &[u8]) -> Result<Discovery, Error> {
    let malformed = |what| Error::Malformed { what };
    let document: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| malformed("the discovery document is no JSON object"))?;
    let text = |name| document.get(name).and_then(Value::as_str);
    let keys = text("jwks_uri").ok_or(malformed("the discovery document has no jwks_uri"))?;
    let keys = Url::parse(keys).map_err(|_| malformed("jwks_uri is no address"))?;
    let is_safe = keys.scheme() == "https" || (keys.scheme() == "http" && is_local(&keys));
    if !is_safe || !keys.username().is_empty() || keys.password().is_some() {
        return Err(malformed("jwks_uri must be https, without credentials"));
    }
    let issuer = text("issuer").filter(|issuer| !issuer.is_empty() && issuer.len() <= LONGEST_ISSUER);
    Ok(Discovery { issuer: issuer.map(str::to_owned), keys })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_for_the_issuer_and_a_safe_place_of_its_keys() {
        for (document, expected) in [
            (r#"{"issuer":"https://cloud.example","jwks_uri":"https://id.example/keys"}"#, Some(true)),
            (r#"{"issuer":7,"jwks_uri":"https://id.example/keys"}"#, Some(false)),
            (r#"{"issuer":"i","issuer":"j","jwks_uri":"http://localhost:1/keys"}"#, Some(true)),
            (r#"{"issuer":"i","jwks_uri":"http://127.0.0.1:1/keys"}"#, Some(true)),
            (r#"{"issuer":"i","jwks_uri":"http://id.example/keys"}"#, None),
            (r#"{"issuer":"i","jwks_uri":"http://localhost.id.example/keys"}"#, None),
            (r#"{"issuer":"i","jwks_uri":"https://user:word@id.example/keys"}"#, None),
            (r#"{"issuer":"i","jwks_uri":"file:///etc/keys"}"#, None),
            (r#"{"issuer":"i","jwks_uri":5}"#, None),
            (r#"{"issuer":"i"}"#, None),
            (r#"["https://id.example/keys"]"#, None),
            ("<html>", None),
            ("", None),
        ] {
            let read = read(document.as_bytes());

            assert_eq!(read.ok().map(|found| found.issuer.is_some()), expected, "{document}");
        }
    }
}
