//! HTTP from the command line: one way to trust a private certificate.

use std::{fs, path::Path};

use reqwest::{Certificate, Client, ClientBuilder};

use super::Failure;
use crate::config::Problem;

/// A client that trusts what the system trusts or, where a file is given, what that holds and nothing else.
pub(super) fn builder(ca: Option<&Path>) -> Result<ClientBuilder, Failure> {
    let builder = Client::builder();
    let Some(file) = ca else { return Ok(builder) };
    let unusable = |fault: &dyn std::fmt::Display| Problem {
        key: "--ca".to_owned(),
        value: Some(file.display().to_string()),
        rule: format!("must be a file with PEM certificates: {fault}"),
        remedy: "name the certificate of the authority that signed the worker's".to_owned(),
    };
    let pem = fs::read(file).map_err(|error| unusable(&error.kind()))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
    if certificates.is_empty() {
        return Err(unusable(&"it holds none").into());
    }
    Ok(builder.tls_certs_only(certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_cannot_be_used_is_a_mistake_of_the_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        fs::write(&empty, "no certificate\n").unwrap();

        for file in [empty, directory.path().join("absent.pem")] {
            let Err(Failure::Configuration(problems)) = builder(Some(&file)) else {
                panic!("{file:?} was taken")
            };
            assert!(problems.to_string().contains("--ca"), "{problems}");
        }
        assert!(builder(None).is_ok());
    }
}
