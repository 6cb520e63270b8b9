//! Hashed passwords of the REST API: distinguished from plain ones and parsed with the configuration, so that an unusable hash is
//! reported at start and not at the first login.
//!
//! The form is `$pbkdf2-sha256$i=600000$salt$hash` (or `sha512`), salt and hash in base64 without padding, as the PHC
//! string format has it; passlib's form, with the bare count and `.` for `+`, is accepted too.

use std::{fmt, num::NonZeroU32, ops::RangeInclusive};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// Fewer iterations protect nothing; more would make clients wait.
const ITERATIONS: RangeInclusive<u32> = 1000..=10_000_000;
/// Prefixes of hashes of any kind. A hash we cannot use must not be taken for a plain password.
const HASH_PREFIXES: [&str; 8] = ["$pbkdf2", "$argon2", "$scrypt", "$2a$", "$2b$", "$2y$", "$5$", "$6$"];

/// A PBKDF2 hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    /// Hash function.
    pub digest: PasswordDigest,
    /// Number of iterations.
    pub iterations: NonZeroU32,
    /// At least 8 bytes.
    pub salt: Vec<u8>,
    /// At least 16 bytes.
    pub hash: Vec<u8>,
}

/// The hash function used by PBKDF2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordDigest {
    /// HMAC with SHA-256.
    Sha256,
    /// HMAC with SHA-512.
    Sha512,
}

impl PasswordHash {
    /// Parses a password that may be a hash; `None` for a plain one.
    ///
    /// # Errors
    /// It looks like a hash but cannot be used: what is wrong with it.
    pub fn parse(text: &str) -> Result<Option<Self>, &'static str> {
        if !HASH_PREFIXES.iter().any(|mark| text.starts_with(mark)) {
            return Ok(None);
        }
        let mut parts = text.split('$').skip(1);
        let mut part = || parts.next().unwrap_or_default();
        let digest = match part() {
            "pbkdf2-sha256" => PasswordDigest::Sha256,
            "pbkdf2-sha512" => PasswordDigest::Sha512,
            _ => return Err("its algorithm is not pbkdf2-sha256 or pbkdf2-sha512"),
        };
        let parameters = part();
        let count = parameters.split(',').find_map(|one| one.strip_prefix("i=")).unwrap_or(parameters);
        let iterations =
            count.parse().ok().filter(|count| ITERATIONS.contains(count)).and_then(NonZeroU32::new);
        let iterations = iterations.ok_or("its count of iterations is not 1000 to 10000000")?;
        let decode = |text: &str| BASE64.decode(text.replace('.', "+")).unwrap_or_default();
        let (salt, hash) = (decode(part()), decode(part()));
        if salt.len() < 8 {
            return Err("its salt is not base64, or less than 8 bytes");
        }
        if hash.len() < 16 {
            return Err("its hash is not base64, or less than 16 bytes");
        }
        if parts.next().is_some() {
            return Err("something follows the hash");
        }
        Ok(Some(Self { digest, iterations, salt, hash }))
    }
}

/// Shows no hash: with it, passwords can be guessed offline.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash").field("digest", &self.digest).finish_non_exhaustive()
    }
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str =
        "$pbkdf2-sha256$i=2000$++++MDEyMzQ1Njc4OWFiY2Rl$Xd1pSv8YAdlDfCYZG2S3V8XUpvgZtxd2oXysIE2RqAI";

    #[test]
    fn all_forms_of_a_hash_parse_alike() {
        let parsed = PasswordHash::parse(HASH).unwrap().unwrap();

        let padded = format!("{HASH}=");
        let passlib = HASH.replace("i=2000", "2000").replace('+', ".");
        for form in [padded, passlib] {
            assert_eq!(PasswordHash::parse(&form), Ok(Some(parsed.clone())), "{form}");
        }
        assert_eq!((parsed.digest, parsed.iterations.get()), (PasswordDigest::Sha256, 2000));
        assert_eq!((parsed.salt.len(), parsed.hash.len()), (18, 32));
        for plain in ["hunter2-hunter2", "$pb", "", "$$$$"] {
            assert_eq!(PasswordHash::parse(plain), Ok(None), "{plain}");
        }
    }

    #[test]
    fn a_broken_hash_is_refused_and_not_taken_for_a_plain_password() {
        let table = [
            ("$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHQ$aGFzaA".to_owned(), "algorithm"),
            ("$2b$12$abcdefghijklmnopqrstuv".to_owned(), "algorithm"),
            (HASH.replace("i=2000", "i=0"), "iterations"),
            (HASH.replace("i=2000", "i=4000000000"), "iterations"),
            (HASH.replace("$++++", "$!!!!"), "salt"),
            (HASH[..HASH.len() - 30].to_owned(), "hash"),
            (format!("{HASH}$more"), "follows"),
        ];

        for (text, reason) in table {
            let message = PasswordHash::parse(&text).unwrap_err();

            assert!(message.contains(reason), "{text}: {message}");
        }
    }
}
