//! Signatures of dead letters: a replay publishes the letter's content, so it has to know that a worker wrote it.
//!
//! ```text
//! key, value, headers `tributary.*` and `__connect.errors.*` ──HMAC-SHA256, key from grant.encryption.key──▶ `tributary.mac`
//! ```
//!
//! - The headers include the `topic.prefix` ([`PREFIX`]), the connector, the topic of the failed record and everything that a replay
//!   reads. Other headers are not covered: tools that copy topics may add their own.
//! - The signature covers names and values with their lengths, and the order of headers. A second header with a covered name
//!   invalidates it.
//! - Each piece of a split letter has its own signature.
//! - A worker without `grant.encryption.key` writes letters unsigned and warns once.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tracing::warn;

use kafka::ConsumerRecord;
use model::EncodedRecord;
use provider::auth::seal::{self, BadSignature, Keyring};

use crate::config;

/// Header with the signature: `v1:{kid}:{base64}`.
pub const MAC: &str = "tributary.mac";
/// Header with the `topic.prefix` of the connector that wrote the letter.
pub const PREFIX: &str = "tributary.topic.prefix";
/// Names of covered headers begin with one of these.
const COVERED: [&str; 2] = ["tributary.", "__connect.errors."];
/// Domain separation, in case the key signs something else later.
const PURPOSE: &[u8] = b"dead letter";

/// Signs and verifies dead letters. Cheap to clone; clones share the one warning.
#[derive(Debug, Clone, Default)]
pub struct LetterSigner {
    /// `None` without `grant.encryption.key`.
    keys: Option<Arc<Keyring>>,
    warned: Arc<AtomicBool>,
}

/// Result of verifying a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetterSignature {
    /// Signed with the current or the previous key.
    Signed,
    /// It has no signature.
    Unsigned,
    /// Its signature does not match its content.
    Forged,
    /// It is signed with a key that is not configured here.
    UnknownKey {
        /// Fingerprint of that key, as the letter states it.
        kid: String,
    },
}

impl LetterSignature {
    /// One word for tables and JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Signed => "signed",
            Self::Unsigned => "unsigned",
            Self::Forged => "forged",
            Self::UnknownKey { .. } => "unknown-key",
        }
    }
}

impl fmt::Display for LetterSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl LetterSigner {
    /// Signs with these keys; without any, letters are not signed.
    #[must_use]
    pub fn new(keys: Option<Arc<Keyring>>) -> Self {
        Self { keys, warned: Arc::default() }
    }

    /// Signs with the keys of a worker's configuration.
    ///
    /// # Errors
    /// The library refuses to derive a key.
    pub fn of(worker: &config::Worker) -> Result<Self, seal::Error> {
        Ok(Self::new(worker.keyring()?.map(Arc::new)))
    }

    /// Adds the signature to a complete record. Returns whether a key is configured.
    pub fn sign(&self, record: &mut EncodedRecord) -> bool {
        let Some(keys) = &self.keys else { return false };
        let headers = record.headers.iter().map(|(name, value)| (*name, &value[..]));
        let value = record.value.as_deref().unwrap_or_default();
        let signature = keys.sign_letter(parts(&record.key, value, headers));
        record.headers.push((MAC, Bytes::from(signature)));
        true
    }

    /// Warns once that letters are not signed.
    pub(super) fn warn_unsigned(&self) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            warn!(
                "dead letters are not signed because grant.encryption.key is not set: a replay accepts them \
                 only with --trust-unsigned; set grant.encryption.key on all workers to sign them"
            );
        }
    }

    /// Checks that a worker wrote this record unchanged.
    #[must_use]
    pub fn verify(&self, record: &ConsumerRecord) -> LetterSignature {
        let mut signatures = record.headers.iter().filter(|(name, _)| name == MAC).map(|(_, value)| value);
        let signature = match (signatures.next(), signatures.next()) {
            (None, _) => return LetterSignature::Unsigned,
            (Some(signature), None) => signature,
            // A worker writes exactly one.
            (Some(_), Some(_)) => return LetterSignature::Forged,
        };
        let headers = record.headers.iter().map(|(name, value)| (name.as_str(), &value[..]));
        let key = record.key.as_deref().unwrap_or_default();
        let value = record.value.as_deref().unwrap_or_default();
        let verified = match &self.keys {
            Some(keys) => keys.verify_letter(parts(key, value, headers), signature),
            None => Err(BadSignature::without_keys(signature)),
        };
        match verified {
            Ok(()) => LetterSignature::Signed,
            Err(BadSignature::UnknownKey { kid }) => LetterSignature::UnknownKey { kid },
            Err(_) => LetterSignature::Forged,
        }
    }
}

/// The parts that a signature covers.
fn parts<'a>(
    key: &'a [u8],
    value: &'a [u8],
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> impl Iterator<Item = &'a [u8]> {
    let covered = |(name, _): &(&str, &[u8])| *name != MAC && COVERED.iter().any(|one| name.starts_with(one));
    let headers = headers.filter(covered).flat_map(|(name, value)| [name.as_bytes(), value]);
    [PURPOSE, key, value].into_iter().chain(headers)
}

#[cfg(test)]
mod tests {
    use model::TopicPrefix;

    use super::*;
    use crate::publish::{DeadLetters, Original, PublishFailure, PublishStage};

    const KEY: &str = "a key of thirty-two bytes, or more";
    const OTHER_KEY: &str = "another key of thirty-two bytes, or more";

    fn signer(current: &str, previous: Option<&str>) -> LetterSigner {
        let previous = previous.map(Into::into);
        LetterSigner::new(Some(Arc::new(Keyring::new(&current.into(), previous.as_ref(), "group").unwrap())))
    }

    /// A letter as a consumer gets it.
    fn letter(signer: LetterSigner) -> ConsumerRecord {
        let letters = DeadLetters {
            topic: "acme.dead-letters".into(),
            partitions: 3,
            prefix: TopicPrefix::new("acme").unwrap(),
            connector: "hooks".into(),
            task: 0,
            logged: false,
            signer,
        };
        let original = Original {
            key: Bytes::from_static(b"hooks"),
            value: Bytes::from_static(b"{not json"),
            place: None,
        };
        let failure = PublishFailure {
            stage: PublishStage::Read,
            class: "x",
            message: "broken".to_owned(),
            causes: Vec::new(),
        };
        let own = [("tributary.delivery", Bytes::from_static(b"{}"))];
        let record = letters.record(&original, Some("acme.events"), &failure, &own);
        ConsumerRecord {
            topic: record.topic,
            partition: record.partition,
            offset: 0,
            key: Some(record.key),
            value: record.value,
            headers: record.headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            timestamp_ms: None,
        }
    }

    #[test]
    fn a_letter_is_signed_by_the_current_or_previous_key() {
        let record = letter(signer(KEY, None));

        assert_eq!(signer(KEY, None).verify(&record), LetterSignature::Signed);
        assert_eq!(signer(OTHER_KEY, Some(KEY)).verify(&record), LetterSignature::Signed);
        for stranger in [signer(OTHER_KEY, None), LetterSigner::default()] {
            let found = stranger.verify(&record);
            assert!(matches!(&found, LetterSignature::UnknownKey { kid } if kid.len() == 16), "{found:?}");
        }
        assert_eq!(signer(KEY, None).verify(&letter(LetterSigner::default())), LetterSignature::Unsigned);
    }

    #[test]
    fn every_change_of_a_signed_letter_is_detected() {
        type Change = fn(&mut ConsumerRecord);
        let changes: [(&str, Change); 10] = [
            ("value", |one| one.value = Some(Bytes::from_static(b"{}"))),
            ("no value", |one| one.value = None),
            ("key", |one| one.key = Some(Bytes::from_static(b"other"))),
            ("prefix", |one| put(one, PREFIX, "other")),
            ("connector", |one| put(one, "__connect.errors.connector.name", "other")),
            ("topic", |one| put(one, "__connect.errors.topic", "other")),
            ("delivery", |one| put(one, "tributary.delivery", "{1}")),
            ("left out", |one| one.headers.retain(|(name, _)| name != "tributary.delivery")),
            ("repeated", |one| one.headers.insert(0, ("tributary.delivery".to_owned(), Bytes::new()))),
            ("two signatures", |one| one.headers.push(one.headers.last().unwrap().clone())),
        ];

        for (what, change) in changes {
            let mut record = letter(signer(KEY, None));
            change(&mut record);
            assert_eq!(signer(KEY, None).verify(&record), LetterSignature::Forged, "{what}");
        }
        let mut traced = letter(signer(KEY, None));
        traced.headers.push(("traceparent".to_owned(), Bytes::from_static(b"00-1")));
        assert_eq!(
            signer(KEY, None).verify(&traced),
            LetterSignature::Signed,
            "an added header of another tool"
        );
    }

    fn put(record: &mut ConsumerRecord, name: &str, text: &'static str) {
        let found = record.headers.iter_mut().find(|(known, _)| known == name).unwrap();
        found.1 = Bytes::from_static(text.as_bytes());
    }
}
