//! How to reach the schema registry.

use std::{path::PathBuf, time::Duration};

use url::Url;

use crate::secret::Secret;

/// The registry section of the worker's configuration (`value.converter.schema.registry.*`).
#[derive(Debug, Clone)]
pub struct Registry {
    /// Base addresses, tried in order; each may carry a path, as Apicurio's `/apis/ccompat/v7` does. At least one.
    pub urls: Vec<Url>,
    /// How we show who we are.
    pub auth: RegistryAuth,
    /// Trust and client certificate for `https`.
    pub tls: RegistryTls,
    /// Longest wait for one answer.
    pub timeout: Duration,
}

/// How the registry knows us.
#[derive(Debug, Clone, Default)]
pub enum RegistryAuth {
    /// It does not ask.
    #[default]
    None,
    /// `basic.auth.user.info`, split at the first colon.
    Basic {
        /// Before the colon.
        user: String,
        /// After the colon.
        password: Secret,
    },
    /// `bearer.auth.token`.
    Bearer(Secret),
}

/// PEM files for `https`; an mTLS client certificate needs both certificate and key.
#[derive(Debug, Clone, Default)]
pub struct RegistryTls {
    /// Certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate chain.
    pub certificate: Option<PathBuf>,
    /// The certificate's private key, unencrypted PKCS#8 or the like.
    pub key: Option<PathBuf>,
}

impl Registry {
    /// A registry that asks for no credentials.
    #[must_use]
    pub fn open(url: Url) -> Self {
        Self {
            urls: vec![url],
            auth: RegistryAuth::None,
            tls: RegistryTls::default(),
            timeout: Duration::from_secs(10),
        }
    }
}
