//! Secrets, and the search for them: verbatim, in base64 of either alphabet, and percent-encoded.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use url::form_urlencoded;

/// Bytes of a secret that the search looks up first; fewer would match by chance.
const SHORTEST: usize = 8;

/// Secrets, with the names that a report uses for them.
#[derive(Default)]
pub(crate) struct Secrets {
    /// By their first bytes, so that a text is searched once for all of them.
    by_start: HashMap<[u8; SHORTEST], Vec<(String, Vec<u8>)>>,
}

impl Secrets {
    /// Adds one, in every form in which it may have been written.
    ///
    /// # Panics
    ///
    /// If it is so short that it would be found by chance.
    pub(crate) fn add(&mut self, name: &str, secret: &str) {
        assert!(secret.len() >= 2 * SHORTEST, "{name} is too short to be looked for");
        self.form(name, "", secret.to_owned());
        self.form(name, " (percent-encoded)", form_urlencoded::byte_serialize(secret.as_bytes()).collect());
        // In base64 the same bytes look different in each of three positions; the ends also depend on the neighbors and are cut
        // off.
        for shift in 0..3 {
            let padded = [&vec![0; shift][..], secret.as_bytes()].concat();
            let inner = |text: String| text[if shift == 0 { 0 } else { 4 }..text.len() - 3].to_owned();
            self.form(name, " (base64)", inner(STANDARD_NO_PAD.encode(&padded)));
            self.form(name, " (base64url)", inner(URL_SAFE_NO_PAD.encode(&padded)));
        }
    }

    fn form(&mut self, name: &str, how: &str, text: String) {
        let start = *text.as_bytes().first_chunk().unwrap();
        let known = self.by_start.entry(start).or_default();
        if !known.iter().any(|(_, known)| known == text.as_bytes()) {
            known.push((format!("{name}{how}"), text.into_bytes()));
        }
    }

    /// The secrets in this text: their names, never the secrets.
    pub(crate) fn found_in(&self, place: &str, text: &[u8]) -> Vec<String> {
        let mut found = BTreeSet::new();
        for (at, start) in text.windows(SHORTEST).enumerate() {
            for (name, secret) in self.by_start.get(start).into_iter().flatten() {
                if text[at..].starts_with(secret) {
                    found.insert(format!("{name} in {place}"));
                }
            }
        }
        found.into_iter().collect()
    }

    /// The same in every file below a directory.
    pub(crate) fn found_below(&self, directory: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                found.extend(self.found_below(&path));
            } else if let Ok(text) = fs::read(&path) {
                found.extend(self.found_in(&path.display().to_string(), &text));
            }
        }
        found
    }
}
