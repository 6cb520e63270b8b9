//! Encrypts grants at rest with AES-256-GCM, under a key derived from `grant.encryption.key`.
//!
//! ```text
//! setting ──HKDF-SHA256──┬─ info "seal" ──▶ key        grant ──▶ AES-GCM(key, random nonce, AAD) ──▶ Envelope
//!                        ├─ info "id" ────▶ kid                              ▲ version, kid, record key,
//!                        │                                                    group, serial, revision
//!                        └─ info "dead-letters" ──▶ key of [`Keyring::sign_letter`]
//! ```
//!
//! - Group, serial and revision are in the envelope in plain text and authenticated, so that a reader can distinguish older envelopes
//!   from newer ones, and other groups' from its own. Version 1 has none of them; it is still read, but no longer written.
//! - An envelope opens only under the record key that it was sealed for: a copy under another key is damaged.
//! - The kid identifies the key without revealing anything about it. With a previous key in the ring both keys open; only the
//!   current key seals.
//! - Dead letters are signed with another key, so that signatures reveal nothing about the encryption key.
//! - Nonces are random: at two writes per hour and grant, 2^32 writes under one key are far away.
//!
//! On failure: [`Error::UnknownKey`] is not damage. Another worker may have that key, so such an envelope must not be
//! overwritten.

use std::fmt;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    constant_time::verify_slices_are_equal,
    hkdf::{HKDF_SHA256, KeyType, Salt},
    hmac,
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use base::{retry::Retry, secret::Secret};

use super::grant::{Grant, InvalidGrantBytes};

/// Version of signatures, written and read.
const SIGNATURE_VERSION: &str = "v1";
/// Version of envelopes that are written.
const VERSION: u8 = 2;
/// The previous version, which is still read.
const VERSION_1: u8 = 1;
const SALT: &[u8] = b"tributary grants v1";
const AAD_PREFIX: &[u8] = b"tributary-grant\0";
const KEY_LEN: usize = 32;
/// Length of a key's fingerprint in bytes.
const ID_LEN: usize = 8;

/// An encrypted grant, as it is stored in the topic and in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Version.
    pub v: u8,
    /// Fingerprint of the key that opens it: 16 hexadecimal digits.
    pub kid: String,
    /// Who sealed it, and in which order; `None` in version 1.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<SealStamp>,
    nonce: String,
    sealed: String,
}

/// Orders the envelopes of one record. Trustworthy only after the envelope was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealStamp {
    /// `group.id` of the worker or command that sealed it.
    pub group: String,
    /// Serial of the grant.
    pub serial: u64,
    /// Grows with every write of the record, even if the serial stays.
    pub revision: u64,
}

/// Why an envelope was not opened, or a grant not sealed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its key is not in the ring.
    #[error("it is encrypted with the key {kid}, which is neither grant.encryption.key nor its previous one")]
    UnknownKey {
        /// Fingerprint of that key.
        kid: String,
    },
    /// It was changed, or sealed for another record.
    #[error("it is damaged, or was written for another record")]
    Damaged,
    /// Another version of Tributary sealed it.
    #[error("it has version {version}, and this Tributary reads versions {VERSION_1} and {VERSION}")]
    Form {
        /// The envelope's version.
        version: u8,
    },
    /// The content is not a grant.
    #[error(transparent)]
    InvalidGrantBytes(#[from] InvalidGrantBytes),
    /// There are no random numbers, or the library failed.
    #[error("encryption failed on this machine")]
    Failed,
}

impl Error {
    /// Whether and when a retry can help.
    pub fn retry(&self) -> Retry {
        match self {
            // A worker with another configuration may take over.
            Self::UnknownKey { .. } | Self::Failed => Retry::Later,
            Self::Damaged | Self::Form { .. } | Self::InvalidGrantBytes(_) => Retry::Never,
        }
    }
}

/// Why a signature is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSignature {
    /// Its key is not in the ring.
    #[error("it is signed with the key {kid}, which is neither grant.encryption.key nor its previous one")]
    UnknownKey {
        /// Fingerprint of that key, as the signature states it.
        kid: String,
    },
    /// The content or the signature was changed.
    #[error("its signature does not match its content")]
    Wrong,
}

impl BadSignature {
    /// The error for a signature if there are no keys at all.
    pub fn without_keys(signature: &[u8]) -> Self {
        match parse_signature(signature) {
            Some((kid, _)) => Self::UnknownKey { kid: short(kid) },
            None => Self::Wrong,
        }
    }
}

/// The encryption keys of this worker.
pub struct Keyring {
    current: SealingKey,
    previous: Option<SealingKey>,
    group: String,
}

impl Keyring {
    /// Derives the keys from `grant.encryption.key`, and from the previous one if it is set, for the workers of a group.
    ///
    /// # Errors
    /// The library fails to derive a key.
    pub fn new(current: &Secret, previous: Option<&Secret>, group: &str) -> Result<Self, Error> {
        let (current, previous) =
            (SealingKey::derive(current)?, previous.map(SealingKey::derive).transpose()?);
        Ok(Self { current, previous, group: group.to_owned() })
    }

    /// `group.id` of this worker.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Signs the parts of a dead letter with the current key (HMAC-SHA256). Each part is prefixed with its length, so that the
    /// borders between parts are signed too.
    pub fn sign_letter<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> String {
        let tag = self.current.tag(parts);
        format!("{SIGNATURE_VERSION}:{}:{}", self.current.id, BASE64.encode(tag))
    }

    /// Verifies a signature of [`Keyring::sign_letter`] with the current or the previous key, in constant time.
    ///
    /// # Errors
    /// Another key signed it, or the parts or the signature were changed.
    pub fn verify_letter<'a>(
        &self,
        parts: impl IntoIterator<Item = &'a [u8]>,
        signature: &[u8],
    ) -> Result<(), BadSignature> {
        let (kid, given) = parse_signature(signature).ok_or(BadSignature::Wrong)?;
        let key = self.find(kid).ok_or_else(|| BadSignature::UnknownKey { kid: short(kid) })?;
        let given = BASE64.decode(given).map_err(|_| BadSignature::Wrong)?;
        verify_slices_are_equal(key.tag(parts).as_ref(), &given).map_err(|_| BadSignature::Wrong)
    }

    fn find(&self, kid: &str) -> Option<&SealingKey> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten().find(|key| key.id == kid)
    }

    /// Fingerprint of the current key.
    pub fn kid(&self) -> &str {
        &self.current.id
    }

    /// Encrypts a grant for the record with this key and revision.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn seal(&self, record_key: &str, grant: &Grant, revision: u64) -> Result<Envelope, Error> {
        self.seal_bytes(record_key, grant.serial, revision, grant.to_bytes())
    }

    /// Decrypts the envelope of the record with this key.
    ///
    /// # Errors
    /// Its key is missing, or it is damaged.
    pub fn open(&self, record_key: &str, envelope: &Envelope) -> Result<Grant, Error> {
        let bytes = self.open_bytes(record_key, envelope)?;
        Ok(Grant::from_bytes(&bytes)?)
    }

    /// Like [`Keyring::seal`], for any bytes.
    ///
    /// # Errors
    /// As there.
    pub fn seal_bytes(
        &self,
        record_key: &str,
        serial: u64,
        revision: u64,
        mut bytes: Zeroizing<Vec<u8>>,
    ) -> Result<Envelope, Error> {
        let SealingKey { id, cipher, .. } = &self.current;
        let stamp = SealStamp { group: self.group.clone(), serial, revision };
        // Sealing appends the tag: reserve room for it, so that no copy of the plain text is left behind.
        let mut sealed = Zeroizing::new(Vec::with_capacity(bytes.len() + AES_256_GCM.tag_len()));
        sealed.append(&mut bytes);
        let nonce = cipher
            .seal_in_place_append_tag(Aad::from(associated_data(id, record_key, &stamp)), &mut *sealed)
            .map_err(|_| Error::Failed)?;
        Ok(Envelope {
            v: VERSION,
            kid: id.clone(),
            stamp: Some(stamp),
            nonce: BASE64.encode(nonce.as_ref()),
            sealed: BASE64.encode(&*sealed),
        })
    }

    /// Like [`Keyring::open`], for any bytes.
    ///
    /// # Errors
    /// As there.
    pub fn open_bytes(&self, record_key: &str, envelope: &Envelope) -> Result<Zeroizing<Vec<u8>>, Error> {
        let Envelope { v, kid, stamp, nonce, sealed } = envelope;
        let aad = match (*v, stamp) {
            (VERSION_1, None) => associated_data_v1(VERSION_1, kid, record_key),
            (VERSION, Some(stamp)) => associated_data(kid, record_key, stamp),
            (VERSION_1 | VERSION, _) => return Err(Error::Damaged),
            (version, _) => return Err(Error::Form { version }),
        };
        let Some(SealingKey { cipher, .. }) = self.find(kid) else {
            return Err(Error::UnknownKey { kid: short(kid) });
        };
        let nonce = BASE64.decode(nonce).ok().and_then(|nonce| <[u8; NONCE_LEN]>::try_from(nonce).ok());
        let nonce = Nonce::assume_unique_for_key(nonce.ok_or(Error::Damaged)?);
        let mut bytes = Zeroizing::new(BASE64.decode(sealed).map_err(|_| Error::Damaged)?);
        let length =
            cipher.open_in_place(nonce, Aad::from(aad), &mut bytes).map_err(|_| Error::Damaged)?.len();
        bytes.truncate(length);
        Ok(bytes)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("current", &self.current.id)
            .field("previous", &self.previous.as_ref().map(|key| &key.id))
            .finish()
    }
}

struct SealingKey {
    id: String,
    cipher: RandomizedNonceKey,
    letters: hmac::Key,
}

impl SealingKey {
    fn derive(text: &Secret) -> Result<Self, Error> {
        let derived = Salt::new(HKDF_SHA256, SALT).extract(text.reveal().as_bytes());
        let (mut key, mut letters) = (Zeroizing::new([0; KEY_LEN]), Zeroizing::new([0; KEY_LEN]));
        let mut id = [0; ID_LEN];
        for (info, out) in [
            (&b"seal"[..], &mut key[..]),
            (&b"id"[..], &mut id[..]),
            (&b"dead-letters"[..], &mut letters[..]),
        ] {
            let info = [info];
            let filled = derived.expand(&info, DerivedLength(out.len())).and_then(|okm| okm.fill(out));
            filled.map_err(|_| Error::Failed)?;
        }
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &*key).map_err(|_| Error::Failed)?;
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id, cipher, letters: hmac::Key::new(hmac::HMAC_SHA256, &*letters) })
    }

    fn tag<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.letters);
        let mut update = |part: &[u8]| {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        };
        update(SIGNATURE_VERSION.as_bytes());
        update(self.id.as_bytes());
        parts.into_iter().for_each(update);
        context.sign()
    }
}

/// Number of bytes to derive.
struct DerivedLength(usize);

impl KeyType for DerivedLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Authenticated data of version 2; each text is prefixed with its length.
fn associated_data(kid: &str, record_key: &str, stamp: &SealStamp) -> Vec<u8> {
    let mut parts = [AAD_PREFIX, &[VERSION]].concat();
    for text in [kid, record_key, &stamp.group] {
        parts.extend((text.len() as u64).to_be_bytes());
        parts.extend(text.as_bytes());
    }
    parts.extend(stamp.serial.to_be_bytes());
    parts.extend(stamp.revision.to_be_bytes());
    parts
}

/// Authenticated data of version 1.
fn associated_data_v1(version: u8, kid: &str, record_key: &str) -> Vec<u8> {
    let parts = [AAD_PREFIX, &[version], kid.as_bytes(), b"\0", record_key.as_bytes()];
    parts.concat()
}

/// The kid and the digits of a signature of this version.
fn parse_signature(signature: &[u8]) -> Option<(&str, &str)> {
    let (version, rest) = str::from_utf8(signature).ok()?.split_once(':')?;
    rest.split_once(':').filter(|_| version == SIGNATURE_VERSION)
}

/// A foreign kid, shortened to be shown.
fn short(kid: &str) -> String {
    kid.chars().filter(char::is_ascii_hexdigit).take(2 * ID_LEN).collect()
}

/// An envelope of version 1.
#[cfg(any(test, feature = "samples"))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub fn unstamped(ring: &Keyring, record_key: &str, grant: &Grant) -> Envelope {
    let SealingKey { id, cipher, .. } = &ring.current;
    let mut sealed = grant.to_bytes().to_vec();
    let aad = Aad::from(associated_data_v1(VERSION_1, id, record_key));
    let nonce = cipher.seal_in_place_append_tag(aad, &mut sealed).unwrap();
    let (nonce, sealed) = (BASE64.encode(nonce.as_ref()), BASE64.encode(&sealed));
    Envelope { v: VERSION_1, kid: id.clone(), stamp: None, nonce, sealed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::grant::samples::ready;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn ring(current: &str, previous: Option<&str>) -> Keyring {
        Keyring::new(&current.into(), previous.map(Secret::from).as_ref(), "group").unwrap()
    }

    #[test]
    fn an_opened_grant_is_whole_and_its_envelope_reveals_nothing() {
        let (ring, grant) = (ring(KEY, None), ready("acc"));

        let envelope = ring.seal("grant/acc", &grant, 1).unwrap();
        let opened = ring.open("grant/acc", &envelope).unwrap();

        assert_eq!(*opened.to_bytes(), *grant.to_bytes());
        let tokens = grant.tokens().unwrap();
        let shown = format!("{envelope:?} {ring:?} {}", serde_json::to_string(&envelope).unwrap());
        for secret in [tokens.access.reveal(), tokens.refresh.reveal(), KEY, "person@example.com"] {
            assert!(!shown.contains(secret) && !shown.contains(&BASE64.encode(secret)), "{shown}");
        }
    }

    #[test]
    fn an_envelope_for_another_record_or_with_a_bit_flip_is_damaged() {
        let ring = ring(KEY, None);
        let envelope = ring.seal("grant/acc", &ready("acc"), 7).unwrap();
        let bent = |bend: fn(&mut Envelope)| {
            let mut bent = envelope.clone();
            bend(&mut bent);
            ring.open("grant/acc", &bent)
        };

        assert!(matches!(ring.open("grant/pay", &envelope), Err(Error::Damaged)));
        assert!(matches!(bent(|one| one.sealed.replace_range(0..1, "_")), Err(Error::Damaged)));
        let flip = |one: &mut Envelope| {
            let mut bytes = BASE64.decode(&one.sealed).unwrap();
            bytes[0] ^= 1;
            one.sealed = BASE64.encode(bytes);
        };
        assert!(matches!(bent(flip), Err(Error::Damaged)));
        assert!(matches!(bent(|one| one.nonce.clear()), Err(Error::Damaged)));
        assert!(matches!(bent(|one| one.sealed.clear()), Err(Error::Damaged)));
        assert!(matches!(bent(|one| one.v = 3), Err(Error::Form { version: 3 })));
    }

    #[test]
    fn group_serial_and_revision_cannot_be_changed() {
        let ring = ring(KEY, None);
        let envelope = ring.seal("grant/acc", &ready("acc"), 7).unwrap();
        let stamp = envelope.stamp.clone().unwrap();
        assert_eq!((stamp.group.as_str(), stamp.serial, stamp.revision), ("group", 1, 7));
        let text = serde_json::to_string(&envelope).unwrap();
        assert!(text.contains(r#""group":"group","serial":1,"revision":7"#), "{text}");
        assert_eq!(serde_json::from_str::<Envelope>(&text).unwrap(), envelope);

        for other in [
            Some(SealStamp { group: "other".into(), ..stamp.clone() }),
            Some(SealStamp { serial: 2, ..stamp.clone() }),
            Some(SealStamp { revision: 8, ..stamp.clone() }),
            None,
        ] {
            let bent = Envelope { stamp: other, ..envelope.clone() };
            assert!(matches!(ring.open("grant/acc", &bent), Err(Error::Damaged)), "{bent:?}");
        }
        let unstamped = Envelope { v: 1, stamp: None, ..envelope };
        assert!(matches!(ring.open("grant/acc", &unstamped), Err(Error::Damaged)));
    }

    #[test]
    fn an_envelope_of_form_1_is_still_read() {
        let ring = ring(KEY, None);

        let old = unstamped(&ring, "grant/acc", &ready("acc"));

        assert_eq!(ring.open("grant/acc", &old).unwrap().serial, 1);
        assert!(matches!(ring.open("grant/pay", &old), Err(Error::Damaged)));
        let text = serde_json::to_string(&old).unwrap();
        assert_eq!(serde_json::from_str::<Envelope>(&text).unwrap(), old);
    }

    #[test]
    fn the_previous_key_opens_but_does_not_seal() {
        let (old, new) = ("old key of thirty-two bytes or more", "new key of thirty-two bytes or more");
        let before = ring(old, None).seal("grant/acc", &ready("acc"), 1).unwrap();
        let both = ring(new, Some(old));

        let resealed = both.seal("grant/acc", &both.open("grant/acc", &before).unwrap(), 2).unwrap();

        assert_eq!((resealed.kid.as_str(), resealed.kid.len()), (both.kid(), 16));
        assert!(ring(new, None).open("grant/acc", &resealed).is_ok());
        let unknown = ring(new, None).open("grant/acc", &before).unwrap_err();
        assert!(matches!(&unknown, Error::UnknownKey { kid } if *kid == before.kid), "{unknown}");
        assert_eq!(unknown.retry(), Retry::Later);
    }

    #[test]
    fn sealing_a_grant_twice_gives_different_bytes() {
        let (ring, grant) = (ring(KEY, None), ready("acc"));

        assert_ne!(ring.seal("grant/acc", &grant, 1).unwrap(), ring.seal("grant/acc", &grant, 1).unwrap());
    }

    #[test]
    fn a_signature_is_valid_for_its_parts_and_key_only() {
        let (old, new) = ("old key of thirty-two bytes or more", "new key of thirty-two bytes or more");
        let parts = [&b"acme"[..], b"", b"body"];
        let signed = ring(old, None).sign_letter(parts);
        let both = ring(new, Some(old));
        let verify = |ring: &Keyring, parts: &[&'static [u8]], signature: &str| {
            ring.verify_letter(parts.iter().copied(), signature.as_bytes())
        };

        assert_eq!(verify(&ring(old, None), &parts, &signed), Ok(()));
        assert_eq!(verify(&both, &parts, &signed), Ok(()), "the previous key still verifies");
        assert!(both.sign_letter(parts).contains(both.kid()), "the current key signs");
        let unknown = BadSignature::UnknownKey { kid: ring(old, None).kid().to_owned() };
        assert_eq!(verify(&ring(new, None), &parts, &signed), Err(unknown.clone()));
        assert_eq!(BadSignature::without_keys(signed.as_bytes()), unknown);
        for other in [
            &[&b"acme"[..], b"", b"bodY"][..],
            &[b"acm", b"e", b"body"],
            &[b"acme", b"body", b""],
            &[b"acme", b"", b"body", b""],
            &[],
        ] {
            assert_eq!(verify(&both, other, &signed), Err(BadSignature::Wrong), "{other:?}");
        }
        let digits = signed.rsplit(':').next().unwrap();
        let renamed = format!("v1:{}:{digits}", both.kid());
        let (later, short) = (signed.replace("v1", "v2"), signed[..signed.len() - 4].to_owned());
        for wrong in [renamed.as_str(), &later, &short, "", "v1", "v1:", &format!("{signed}A")] {
            let refused = verify(&both, &parts, wrong).unwrap_err();
            assert!(matches!(refused, BadSignature::Wrong | BadSignature::UnknownKey { .. }), "{wrong}");
        }
    }
}
