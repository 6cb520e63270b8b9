//! How to reach the schema registry.

use std::{path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;
use url::Url;

use base::secret::Secret;

use super::{
    address::http_url,
    reader::SettingsReader,
    tls::{self, TlsFiles},
    worker_keys as keys,
};

/// The registry section of the worker's configuration (`value.converter.schema.registry.*`).
#[derive(Debug, Clone)]
pub struct RegistrySettings {
    /// Base addresses, tried in order; each may carry a path, as Apicurio's `/apis/ccompat/v7` does. At least one.
    pub urls: Vec<Url>,
    /// Our credentials.
    pub auth: RegistryAuth,
    /// PEM file with certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate to show.
    pub client: Option<TlsFiles>,
    /// Longest wait for one answer.
    pub timeout: Duration,
}

/// Credentials for the registry.
#[derive(Debug, Clone, Default)]
pub enum RegistryAuth {
    /// No credentials.
    #[default]
    None,
    /// `basic.auth.user.info`, split at the first colon.
    Basic {
        /// Before the colon.
        user: Secret,
        /// After the colon.
        password: Secret,
    },
    /// `bearer.auth.token`.
    Bearer(Secret),
}

impl RegistrySettings {
    /// A registry without credentials.
    #[must_use]
    pub fn open(url: Url) -> Self {
        Self {
            urls: vec![url],
            auth: RegistryAuth::None,
            ca: None,
            client: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Reads the registry's section. Credentials are removed from the addresses, so that these may be logged.
pub(super) fn read(reader: &mut SettingsReader<'_>) -> RegistrySettings {
    let mut urls = reader.parsed_list(&keys::REGISTRY_URL, http_url);
    let auth = authentication(reader, &urls);
    for url in &mut urls {
        // Both calls fail only for addresses that cannot have credentials at all.
        url.set_username("").and_then(|()| url.set_password(None)).unwrap_or_default();
    }
    RegistrySettings {
        urls,
        auth,
        ca: reader.path(&keys::REGISTRY_CA),
        client: tls::read(reader, &keys::REGISTRY_CERTIFICATE, &keys::REGISTRY_KEY),
        timeout: reader.milliseconds(&keys::REGISTRY_TIMEOUT),
    }
}

fn authentication(reader: &mut SettingsReader<'_>, urls: &[Url]) -> RegistryAuth {
    let basic = reader.text(&keys::REGISTRY_BASIC_SOURCE);
    let user_info = reader.secret(&keys::REGISTRY_USER_INFO);
    let bearer = reader.text(&keys::REGISTRY_BEARER_SOURCE);
    let token = reader.secret(&keys::REGISTRY_TOKEN);
    let in_url = urls.iter().find(|url| !url.username().is_empty());

    if (basic.is_some() || user_info.is_some()) && (bearer.is_some() || token.is_some()) {
        reader.refuse(
            &keys::REGISTRY_TOKEN,
            "cannot go together with basic authentication",
            "remove the bearer.auth keys or the basic.auth keys",
        );
    }
    match basic.as_deref() {
        Some("USER_INFO") => reader.require(&keys::REGISTRY_USER_INFO, "when its source is USER_INFO"),
        Some("URL") if in_url.is_none() && reader.are_valid(&[&keys::REGISTRY_URL]) => {
            reader.refuse(
                &keys::REGISTRY_BASIC_SOURCE,
                "needs name and password in the registry's address",
                "write them into the address, or use USER_INFO",
            );
        }
        _ => {}
    }
    if bearer.is_some() {
        reader.require(&keys::REGISTRY_TOKEN, "when its source is STATIC_TOKEN");
    }

    if let Some(token) = token {
        RegistryAuth::Bearer(token)
    } else if let Some((user, password)) = user_info.as_ref().and_then(|info| info.reveal().split_once(':')) {
        RegistryAuth::Basic { user: Secret::new(user), password: Secret::new(password) }
    } else if let Some(url) = in_url {
        let password = percent_decoded(url.password().unwrap_or_default());
        RegistryAuth::Basic {
            user: Secret::new(percent_decoded(url.username())),
            password: Secret::new(password),
        }
    } else {
        RegistryAuth::None
    }
}

/// Credentials are percent-encoded in an address; the registry expects them decoded.
fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
