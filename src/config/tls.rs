//! A certificate chain and its private key.

use std::path::PathBuf;

use super::{key::ConfigKey, reader::SettingsReader};

/// PEM files that identify a TLS server or client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Its private key, unencrypted.
    pub key: PathBuf,
}

/// Reads both keys; setting only one of them is a problem.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    certificate: &ConfigKey,
    key: &ConfigKey,
) -> Option<TlsFiles> {
    match (reader.is_set(certificate), reader.is_set(key)) {
        (true, false) => reader.require(key, "when the certificate is set"),
        (false, true) => reader.require(certificate, "when the key is set"),
        _ => {}
    }
    let (certificate, key) = (reader.path(certificate), reader.path(key));
    Some(TlsFiles { certificate: certificate?, key: key? })
}
