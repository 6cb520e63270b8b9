//! A certificate chain and its private key.

use std::path::PathBuf;

use super::{key::Key, reader::Reader};

/// PEM files with which a TLS server or client shows who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Its private key, unencrypted.
    pub key: PathBuf,
}

/// Reads both keys; one without the other is a problem.
pub(super) fn read(reader: &mut Reader<'_>, certificate: &Key, key: &Key) -> Option<Tls> {
    match (reader.is_set(certificate), reader.is_set(key)) {
        (true, false) => reader.demand(key, "beside the certificate"),
        (false, true) => reader.demand(certificate, "beside the key"),
        _ => {}
    }
    let (certificate, key) = (reader.path(certificate), reader.path(key));
    Some(Tls { certificate: certificate?, key: key? })
}
