//! Passwords: compared in constant time, plain or as a PBKDF2 hash.
//!
//! A hash has the form `$pbkdf2-sha256$i=600000$salt$hash` (or `sha512`), salt and hash in base64 without padding, as the
//! PHC string format has it; passlib's form, with the bare count and `.` for `+`, is taken too. Deriving a hash takes a
//! large part of a second on purpose, so
//!
//! - it happens on a thread for blocking work, one at a time: a flood of guesses costs one core at most;
//! - a password that was right is remembered as a keyed digest, so a client that asks often pays once.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac, pbkdf2, rand::SystemRandom};
use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::{retry::Retry, secret::Secret};

/// Fewer rounds protect nothing, more would keep an honest client waiting.
const ITERATIONS: std::ops::RangeInclusive<u32> = 1000..=10_000_000;
/// The longest a client waits for its turn.
const TURN: Duration = Duration::from_secs(3);

/// A password in the form of a hash that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the password of {user} looks like a hash and is none: {reason}; write it as $pbkdf2-sha256$i=600000$salt$hash, \
     salt and hash in base64"
)]
pub struct Error {
    user: String,
    reason: &'static str,
}

impl Error {
    /// A password does not mend itself.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        Retry::Never
    }
}

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Right,
    Wrong,
    /// Too many others are being checked.
    Busy,
}

/// A password to compare with.
pub(super) enum Password {
    /// Its digest under the process's key: of equal length for any password.
    Plain(hmac::Tag),
    Hashed(Arc<Hashed>),
}

pub(super) struct Hashed {
    algorithm: pbkdf2::Algorithm,
    iterations: NonZeroU32,
    salt: Vec<u8>,
    hash: Vec<u8>,
    /// Digest of the password that was right.
    known: Mutex<Option<hmac::Tag>>,
    turn: Semaphore,
}

impl Password {
    pub(super) fn new(user: &str, password: &Secret) -> Result<Self, Error> {
        let text = password.reveal();
        let hashed = ["$pbkdf2", "$argon2", "$scrypt", "$2a$", "$2b$", "$2y$", "$5$", "$6$"];
        if !hashed.iter().any(|start| text.starts_with(start)) {
            return Ok(Self::Plain(digest(text)));
        }
        let hashed = parse(text).map_err(|reason| Error { user: user.to_owned(), reason })?;
        Ok(Self::Hashed(Arc::new(hashed)))
    }

    pub(super) async fn check(&self, presented: &str) -> Checked {
        let digest = digest(presented);
        match self {
            Self::Plain(expected) => checked(same(expected, &digest)),
            Self::Hashed(hashed) => hashed.check(presented, digest).await,
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Hashed(_) => "Hashed",
        })
    }
}

impl Hashed {
    async fn check(self: &Arc<Self>, presented: &str, digest: hmac::Tag) -> Checked {
        if self.is_known(&digest) {
            return Checked::Right;
        }
        let Ok(Ok(_turn)) = timeout(TURN, self.turn.acquire()).await else { return Checked::Busy };
        let (hashed, presented) = (Arc::clone(self), Secret::new(presented));
        let derive = move || {
            let Self { algorithm, iterations, salt, hash, .. } = &*hashed;
            pbkdf2::verify(*algorithm, *iterations, salt, presented.reveal().as_bytes(), hash).is_ok()
        };
        // A panic in there is no proof of a password.
        let right = spawn_blocking(derive).await.unwrap_or(false);
        if right {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
        }
        checked(right)
    }

    fn is_known(&self, digest: &hmac::Tag) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|known| same(known, digest))
    }
}

fn parse(text: &str) -> Result<Hashed, &'static str> {
    let mut parts = text.split('$').skip(1);
    let mut part = || parts.next().unwrap_or_default();
    let algorithm = match part() {
        "pbkdf2-sha256" => pbkdf2::PBKDF2_HMAC_SHA256,
        "pbkdf2-sha512" => pbkdf2::PBKDF2_HMAC_SHA512,
        _ => return Err("its algorithm is not pbkdf2-sha256 or pbkdf2-sha512"),
    };
    let parameters = part();
    let count = parameters.split(',').find_map(|one| one.strip_prefix("i=")).unwrap_or(parameters);
    let iterations = count.parse().ok().filter(|count| ITERATIONS.contains(count)).and_then(NonZeroU32::new);
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
    Ok(Hashed { algorithm, iterations, salt, hash, known: Mutex::new(None), turn: Semaphore::new(1) })
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn digest(text: &str) -> hmac::Tag {
    /// Lives and dies with the process: a digest that leaks is of no use elsewhere.
    static KEY: LazyLock<Option<hmac::Key>> =
        LazyLock::new(|| hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok());
    match &*KEY {
        Some(key) => hmac::sign(key, text.as_bytes()),
        // Without randomness the comparison still takes constant time.
        None => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"tributary"), text.as_bytes()),
    }
}

fn same(one: &hmac::Tag, other: &hmac::Tag) -> bool {
    verify_slices_are_equal(one.as_ref(), other.as_ref()).is_ok()
}

const fn checked(right: bool) -> Checked {
    if right { Checked::Right } else { Checked::Wrong }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `hashlib.pbkdf2_hmac("sha256", b"correct horse", b"\xfb\xef\xbe0123456789abcde", 2000)`.
    const HASH: &str =
        "$pbkdf2-sha256$i=2000$++++MDEyMzQ1Njc4OWFiY2Rl$Xd1pSv8YAdlDfCYZG2S3V8XUpvgZtxd2oXysIE2RqAI";

    fn password(text: &str) -> Result<Password, Error> {
        Password::new("admin", &Secret::new(text))
    }

    #[tokio::test]
    async fn a_hash_made_elsewhere_takes_its_password_and_no_other() {
        let padded = format!("{HASH}=");
        let passlib = HASH.replace("i=2000", "2000").replace('+', ".");
        for form in [HASH, &padded, &passlib] {
            let password = password(form).unwrap();

            assert_eq!(password.check("correct horse").await, Checked::Right, "{form}");
            assert_eq!(password.check("correct horse").await, Checked::Right, "remembered, {form}");
            assert_eq!(password.check("correct Horse").await, Checked::Wrong, "{form}");
            assert_eq!(password.check("").await, Checked::Wrong, "{form}");
            assert_eq!(password.check(form).await, Checked::Wrong, "the hash is not the password");
        }
    }

    #[tokio::test]
    async fn a_plain_password_takes_itself_alone() {
        let password = password("hunter2-hunter2").unwrap();

        assert_eq!(password.check("hunter2-hunter2").await, Checked::Right);
        assert_eq!(password.check("hunter2-hunter").await, Checked::Wrong);
        assert_eq!(password.check("hunter2-hunter2 ").await, Checked::Wrong);
    }

    #[tokio::test]
    async fn a_client_does_not_wait_for_its_turn_for_ever() {
        let Password::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let turn = hashed.turn.acquire().await.unwrap();

        let waiting = hashed.check("correct horse", digest("correct horse")).await;
        drop(turn);
        let later = hashed.check("correct horse", digest("correct horse")).await;

        assert_eq!((waiting, later), (Checked::Busy, Checked::Right));
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
            let told = password(&text).unwrap_err().to_string();

            assert!(told.contains(reason) && told.contains("admin"), "{text}: {told}");
            assert!(!told.contains(&text), "{told}");
        }
    }

    #[test]
    fn nothing_shows_a_password_or_its_digest() {
        let shown = format!("{:?} {:?}", password("hunter2-hunter2").unwrap(), password(HASH).unwrap());

        assert_eq!(shown, "Plain Hashed");
    }
}
