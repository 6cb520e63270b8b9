//! A certificate chain and its private key.

use std::path::PathBuf;

use super::{key::ConfigKey, reader::SettingsReader};

/// PEM files with which a TLS server or client shows who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Its private key, unencrypted.
    pub key: PathBuf,
}

/// Reads both keys; one without the other is a problem.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    certificate: &ConfigKey,
    key: &ConfigKey,
) -> Option<TlsFiles> {
    match (reader.is_set(certificate), reader.is_set(key)) {
        (true, false) => reader.require(key, "beside the certificate"),
        (false, true) => reader.require(certificate, "beside the key"),
        _ => {}
    }
    let (certificate, key) = (reader.path(certificate), reader.path(key));
    Some(TlsFiles { certificate: certificate?, key: key? })
}
