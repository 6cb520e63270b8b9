//! The discovery document of the identity service: its issuer, and the address of its keys.
//!
//! The issuer's host may differ from the service's (it does with this provider), and the keys may be on a third host. That host
//! must be allowed by `provider.hosts.allowed`, and must have TLS. Only a service on this machine or in a private network may
//! name a private host for its keys, and only a service on this machine may name a local host without TLS. The service's
//! configured address decides, not the `issuer` in the document.

use serde_json::{Map, Value};
use url::Url;

use super::{
    http::ClientSetupError,
    identity::{Error, Identity},
};
use crate::{HostPolicy, is_local, is_private};

/// Size limit of a document or key set.
pub(super) const MAX_DOCUMENT_BYTES: usize = 1024 * 1024;
/// Length limit of an issuer.
const MAX_ISSUER_BYTES: usize = 2_048;

/// The members that we use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Discovery {
    /// The issuer that the document names.
    pub(super) issuer: Option<String>,
    /// Address of the key set.
    pub(super) keys: Url,
}

/// Fetches the document.
pub(super) async fn fetch(identity: &Identity) -> Result<Discovery, Error> {
    let address = format!("{}/.well-known/openid-configuration", identity.0.root);
    let address = Url::parse(&address)
        .map_err(ClientSetupError::wrap("cannot make the discovery address from provider.auth.url"))?;
    let body = identity.fetch(&address, MAX_DOCUMENT_BYTES).await?;
    read(&body, &identity.0.address, &identity.0.hosts)
}

fn read(body: &[u8], service: &Url, hosts: &HostPolicy) -> Result<Discovery, Error> {
    let malformed = |what| Error::Malformed { what };
    let document: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| malformed("the discovery document is not a JSON object"))?;
    let text = |name| document.get(name).and_then(Value::as_str);
    let keys = text("jwks_uri").ok_or(malformed("the discovery document has no jwks_uri"))?;
    let keys = Url::parse(keys).map_err(|_| malformed("jwks_uri is not a URL"))?;
    let is_safe =
        keys.scheme() == "https" || (keys.scheme() == "http" && is_local(&keys) && is_local(service));
    if !is_safe || !keys.username().is_empty() || keys.password().is_some() {
        return Err(malformed("jwks_uri must be https, without credentials"));
    }
    if is_private(&keys) && !is_private(service) {
        return Err(malformed("jwks_uri must be a public host, because provider.auth.url is"));
    }
    if hosts.check(&keys).is_err() {
        return Err(malformed("jwks_uri must be a host that provider.hosts.allowed allows"));
    }
    let issuer = text("issuer").filter(|issuer| !issuer.is_empty() && issuer.len() <= MAX_ISSUER_BYTES);
    Ok(Discovery { issuer: issuer.map(str::to_owned), keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: [&str; 4] = ["id.example", "localhost", "127.0.0.1", "10.0.0.1"];

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn discovery_accepts_only_a_safe_address_of_keys() {
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
            let read = read(document.as_bytes(), &url("http://localhost:1"), &HostPolicy::listing(&LISTED));

            assert_eq!(read.ok().map(|found| found.issuer.is_some()), expected, "{document}");
        }
    }

    #[test]
    fn keys_are_private_only_where_the_service_is() {
        let (local, private, public) = ("http://localhost:1", "https://10.0.0.1", "https://id.example");
        let open = HostPolicy::default();
        let listed = HostPolicy::listing(&LISTED);
        for (service, keys, hosts, is_taken) in [
            (public, "https://id.example/keys", &open, true),
            (public, "https://keys.example/keys", &open, true),
            (public, "https://keys.example/keys", &listed, false),
            (public, "http://localhost:1/keys", &listed, false),
            (public, "https://localhost:1/keys", &listed, false),
            (public, "https://10.0.0.1/keys", &listed, false),
            (public, "https://169.254.169.254/keys", &open, false),
            (private, "https://10.0.0.1/keys", &listed, true),
            (private, "http://localhost:1/keys", &listed, false),
            (local, "http://localhost:1/keys", &listed, true),
            (local, "http://127.0.0.9:1/keys", &listed, false),
            (local, "http://10.0.0.1/keys", &listed, false),
        ] {
            // The document claims a local issuer, which changes nothing.
            let document = format!(r#"{{"issuer":"http://localhost:1","jwks_uri":"{keys}"}}"#);

            let read = read(document.as_bytes(), &url(service), hosts);

            assert_eq!(read.is_ok(), is_taken, "{service} {keys}");
        }
    }
}
