//! Passwords: compared in constant time, plain or as a PBKDF2 hash.
//!
//! [`PasswordHash`] has the form of a hash. Deriving one takes a large part of a second on purpose, so
//!
//! - it happens on a thread for blocking work, one at a time: a flood of guesses costs one core at most;
//! - of each address one check at a time stands in the line for that: a flood from one address makes others wait for one of
//!   its guesses, not for all. Who comes from the same address, or through the same proxy, has to share;
//! - a password that was right is remembered as a keyed digest, so a client that asks often pays once.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac, pbkdf2, rand::SystemRandom};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::{
    config::worker::{PasswordDigest, PasswordHash},
    retry::Retry,
    secret::Secret,
};

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
    expected: PasswordHash,
    /// Digest of the password that was right.
    known: Mutex<Option<hmac::Tag>>,
    turn: Semaphore,
    lines: Lines,
}

/// The line of each address that has a check under way; `None` is for those that are not known.
#[derive(Debug, Default)]
struct Lines(Mutex<BTreeMap<Option<IpAddr>, Arc<Semaphore>>>);

impl Lines {
    fn of(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // As many are left as there are connections at most.
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        Arc::clone(lines.entry(peer.map(network)).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

/// What one client has for itself: with IPv6 usually 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

impl Password {
    pub(super) fn new(user: &str, password: &Secret) -> Result<Self, Error> {
        let text = password.reveal();
        match PasswordHash::parse(text) {
            Ok(None) => Ok(Self::Plain(digest(text))),
            Ok(Some(expected)) => {
                let (known, turn) = (Mutex::new(None), Semaphore::new(1));
                Ok(Self::Hashed(Arc::new(Hashed { expected, known, turn, lines: Lines::default() })))
            }
            Err(reason) => Err(Error { user: user.to_owned(), reason }),
        }
    }

    /// Compares; `peer` is who presents it, as far as that is known.
    pub(super) async fn check(&self, presented: &str, peer: Option<IpAddr>) -> Checked {
        let digest = digest(presented);
        match self {
            Self::Plain(expected) => checked(same(expected, &digest)),
            Self::Hashed(hashed) => hashed.check(presented, digest, peer).await,
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
    async fn check(self: &Arc<Self>, presented: &str, digest: hmac::Tag, peer: Option<IpAddr>) -> Checked {
        if self.is_known(&digest) {
            return Checked::Right;
        }
        let line = self.lines.of(peer);
        let turns = async {
            let first_in_line = line.acquire().await.ok()?;
            Some((first_in_line, self.turn.acquire().await.ok()?))
        };
        let Ok(Some(_turns)) = timeout(TURN, turns).await else { return Checked::Busy };
        // A client that sends many requests at once pays once as well.
        if self.is_known(&digest) {
            return Checked::Right;
        }
        let (hashed, presented) = (Arc::clone(self), Secret::new(presented));
        let derive = move || {
            let PasswordHash { digest, iterations, salt, hash } = &hashed.expected;
            let algorithm = match digest {
                PasswordDigest::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
                PasswordDigest::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
            };
            pbkdf2::verify(algorithm, *iterations, salt, presented.reveal().as_bytes(), hash).is_ok()
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
    use std::{
        net::{Ipv4Addr, Ipv6Addr},
        sync::atomic::{AtomicUsize, Ordering},
    };

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

            assert_eq!(password.check("correct horse", None).await, Checked::Right, "{form}");
            assert_eq!(password.check("correct horse", None).await, Checked::Right, "remembered, {form}");
            assert_eq!(password.check("correct Horse", None).await, Checked::Wrong, "{form}");
            assert_eq!(password.check("", None).await, Checked::Wrong, "{form}");
            assert_eq!(password.check(form, None).await, Checked::Wrong, "the hash is not the password");
        }
    }

    #[tokio::test]
    async fn a_plain_password_takes_itself_alone() {
        let password = password("hunter2-hunter2").unwrap();

        assert_eq!(password.check("hunter2-hunter2", None).await, Checked::Right);
        assert_eq!(password.check("hunter2-hunter", None).await, Checked::Wrong);
        assert_eq!(password.check("hunter2-hunter2 ", None).await, Checked::Wrong);
    }

    #[tokio::test]
    async fn a_client_does_not_wait_for_its_turn_for_ever() {
        let Password::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let turn = hashed.turn.acquire().await.unwrap();

        let waiting = hashed.check("correct horse", digest("correct horse"), None).await;
        drop(turn);
        let later = hashed.check("correct horse", digest("correct horse"), None).await;

        assert_eq!((waiting, later), (Checked::Busy, Checked::Right));
    }

    #[tokio::test]
    async fn a_flood_from_one_address_keeps_nobody_at_another_waiting_for_more_than_one_guess() {
        let Password::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let guessed = Arc::new(AtomicUsize::new(0));
        let turn = hashed.turn.acquire().await.unwrap();
        let flood: Vec<_> = (0..20)
            .map(|number| {
                let (hashed, guessed) = (Arc::clone(&hashed), Arc::clone(&guessed));
                // The same client, by what IPv6 gives to one.
                let peer = Ipv6Addr::from_bits(0x2001_0db8 << 96 | number).into();
                tokio::spawn(async move {
                    let checked = hashed.check("a guess", digest("a guess"), Some(peer)).await;
                    // Who has not had its turn in time has made nobody wait.
                    if checked != Checked::Busy {
                        guessed.fetch_add(1, Ordering::SeqCst);
                    }
                    checked
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(turn);

        let elsewhere = Some(Ipv4Addr::new(192, 0, 2, 1).into());
        let right = hashed.check("correct horse", digest("correct horse"), elsewhere).await;

        assert_eq!((right, guessed.load(Ordering::SeqCst) <= 1), (Checked::Right, true), "{guessed:?}");
        flood.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[test]
    fn a_broken_hash_is_refused_with_its_user_and_never_shown() {
        let broken = HASH.replace("i=2000", "i=0");

        let told = password(&broken).unwrap_err().to_string();

        assert!(told.contains("iterations") && told.contains("admin"), "{told}");
        assert!(!told.contains(&broken), "{told}");
    }

    #[test]
    fn nothing_shows_a_password_or_its_digest() {
        let shown = format!("{:?} {:?}", password("hunter2-hunter2").unwrap(), password(HASH).unwrap());

        assert_eq!(shown, "Plain Hashed");
    }
}
