//! Passwords: compared in constant time, in plain text or as a PBKDF2 hash.
//!
//! [`PasswordHash`] has the format of a hash. Deriving one takes a large part of a second on purpose, so
//!
//! - it happens on a blocking thread, one per user at a time: a flood of guesses costs one core per user at most, even if clients
//!   disconnect before the answer;
//! - each address has at most one check in the queue for it: a flood from one address delays others by one guess, not by all.
//!   Clients behind the same address or proxy share its place;
//! - no hash is derived for an address that has to wait because of its failures (see [`super::throttle`]), and a failure counts
//!   before the next check of its address starts;
//! - a right password is remembered as a keyed digest, so a client that polls pays once.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac, pbkdf2, rand::SystemRandom};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use base::secret::Secret;
use server::origin::network;

use super::throttle::LoginAttempt;
use crate::config::worker::{PasswordDigest, PasswordHash};

/// How long a client waits for its check to start.
const TURN_LIMIT: Duration = Duration::from_secs(3);

/// A password that looks like a hash and cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the password of {user} looks like a hash but is not a valid one: {reason}; write it as $pbkdf2-sha256$i=600000$salt$hash, \
     salt and hash in base64"
)]
pub struct Error {
    user: String,
    reason: &'static str,
}

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Right,
    Wrong,
    /// Too many other checks are waiting.
    Busy,
    /// Not checked: the address has to wait this long because of its failures.
    Throttled(Duration),
}

/// A configured password.
pub(super) enum AcceptedPassword {
    /// Its digest under the process's key, which has the same length for every password.
    Plain(hmac::Tag),
    Hashed(Arc<Hashed>),
}

pub(super) struct Hashed {
    expected: PasswordHash,
    /// Digest of the last right password.
    known: Mutex<Option<hmac::Tag>>,
    turn: Arc<Semaphore>,
    address_locks: AddressLocks,
}

/// A lock for each address with a check in progress; unknown addresses share one (`None`).
#[derive(Debug, Default)]
struct AddressLocks(Mutex<BTreeMap<Option<IpAddr>, Arc<Semaphore>>>);

impl AddressLocks {
    fn of(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let mut address_locks = self.0.lock();
        // So there are at most as many locks as connections.
        address_locks.retain(|_, address_lock| Arc::strong_count(address_lock) > 1);
        Arc::clone(address_locks.entry(peer.map(network)).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

impl AcceptedPassword {
    pub(super) fn new(user: &str, password: &Secret) -> Result<Self, Error> {
        let text = password.reveal();
        match PasswordHash::parse(text) {
            Ok(None) => Ok(Self::Plain(digest(text))),
            Ok(Some(expected)) => {
                let (known, turn) = (Mutex::new(None), Arc::new(Semaphore::new(1)));
                Ok(Self::Hashed(Arc::new(Hashed {
                    expected,
                    known,
                    turn,
                    address_locks: AddressLocks::default(),
                })))
            }
            Err(reason) => Err(Error { user: user.to_owned(), reason }),
        }
    }

    /// Checks a password, unless the client has to wait; the outcome counts for its address.
    pub(super) async fn check(&self, presented: &str, attempt: &LoginAttempt) -> Checked {
        let digest = digest(presented);
        if let Some(wait) = attempt.wait() {
            let is_right = attempt.may_probe() && self.is_known(&digest);
            return if is_right { checked(attempt.finish(true)) } else { Checked::Throttled(wait) };
        }
        match self {
            Self::Plain(expected) => checked(attempt.finish(same(expected, &digest))),
            Self::Hashed(hashed) => hashed.check(presented, digest, attempt).await,
        }
    }

    /// Whether the password is known to be right without deriving a hash.
    fn is_known(&self, digest: &hmac::Tag) -> bool {
        match self {
            Self::Plain(expected) => same(expected, digest),
            Self::Hashed(hashed) => hashed.is_known(digest),
        }
    }
}

impl fmt::Debug for AcceptedPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Hashed(_) => "Hashed",
        })
    }
}

impl Hashed {
    async fn check(self: &Arc<Self>, presented: &str, digest: hmac::Tag, attempt: &LoginAttempt) -> Checked {
        if self.is_known(&digest) {
            return checked(attempt.finish(true));
        }
        let address_lock = self.address_locks.of(attempt.client);
        let turns = async {
            let in_turn = address_lock.acquire_owned().await.ok()?;
            Some((in_turn, Arc::clone(&self.turn).acquire_owned().await.ok()?))
        };
        let Ok(Some(turns)) = timeout(TURN_LIMIT, turns).await else { return Checked::Busy };
        // Earlier checks of this address may have failed meanwhile.
        if let Some(wait) = attempt.wait() {
            return Checked::Throttled(wait);
        }
        // A client that sends many requests at once pays only once too.
        if self.is_known(&digest) {
            return checked(attempt.finish(true));
        }
        let (hashed, presented, attempt) = (Arc::clone(self), Secret::new(presented), attempt.clone());
        // It finishes even if its client disconnects: it holds the lock, and the outcome counts.
        let derive = move || {
            let PasswordHash { digest: algorithm, iterations, salt, hash } = &hashed.expected;
            let algorithm = match algorithm {
                PasswordDigest::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
                PasswordDigest::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
            };
            let presented = presented.reveal().as_bytes();
            let is_right = pbkdf2::verify(algorithm, *iterations, salt, presented, hash).is_ok();
            if is_right {
                *hashed.known.lock() = Some(digest);
            }
            let succeeded = attempt.finish(is_right);
            drop(turns);
            succeeded
        };
        // A panic counts as a wrong password.
        checked(spawn_blocking(derive).await.unwrap_or(false))
    }

    fn is_known(&self, digest: &hmac::Tag) -> bool {
        let known = self.known.lock();
        known.as_ref().is_some_and(|known| same(known, digest))
    }
}

fn digest(text: &str) -> hmac::Tag {
    /// Random per process: a leaked digest is useless elsewhere.
    static KEY: LazyLock<Option<hmac::Key>> =
        LazyLock::new(|| hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok());
    match &*KEY {
        Some(key) => hmac::sign(key, text.as_bytes()),
        // Without a random key the comparison still takes constant time.
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

    use futures::FutureExt as _;

    use super::{
        super::{Role, throttle::Throttle},
        *,
    };

    /// A login as administrator from this address, with its own count of failures.
    fn from(client: Option<IpAddr>) -> LoginAttempt {
        LoginAttempt { throttle: Arc::new(Throttle::default()), client, role: Some(Role::Administrator) }
    }

    /// `hashlib.pbkdf2_hmac("sha256", b"correct horse", b"\xfb\xef\xbe0123456789abcde", 2000)`.
    const HASH: &str =
        "$pbkdf2-sha256$i=2000$++++MDEyMzQ1Njc4OWFiY2Rl$Xd1pSv8YAdlDfCYZG2S3V8XUpvgZtxd2oXysIE2RqAI";

    fn password(text: &str) -> Result<AcceptedPassword, Error> {
        AcceptedPassword::new("admin", &Secret::new(text))
    }

    #[tokio::test]
    async fn foreign_hash_accepts_only_its_password() {
        let padded = format!("{HASH}=");
        let passlib = HASH.replace("i=2000", "2000").replace('+', ".");
        for form in [HASH, &padded, &passlib] {
            let password = password(form).unwrap();

            assert_eq!(password.check("correct horse", &from(None)).await, Checked::Right, "{form}");
            assert_eq!(
                password.check("correct horse", &from(None)).await,
                Checked::Right,
                "remembered, {form}"
            );
            assert_eq!(password.check("correct Horse", &from(None)).await, Checked::Wrong, "{form}");
            assert_eq!(password.check("", &from(None)).await, Checked::Wrong, "{form}");
            assert_eq!(
                password.check(form, &from(None)).await,
                Checked::Wrong,
                "the hash is not the password"
            );
        }
    }

    #[tokio::test]
    async fn plain_password_accepts_only_itself() {
        let password = password("hunter2-hunter2").unwrap();

        assert_eq!(password.check("hunter2-hunter2", &from(None)).await, Checked::Right);
        assert_eq!(password.check("hunter2-hunter", &from(None)).await, Checked::Wrong);
        assert_eq!(password.check("hunter2-hunter2 ", &from(None)).await, Checked::Wrong);
    }

    #[tokio::test]
    async fn check_that_never_starts_ends_as_busy() {
        let AcceptedPassword::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let turn = hashed.turn.acquire().await.unwrap();

        let waiting = hashed.check("correct horse", digest("correct horse"), &from(None)).await;
        drop(turn);
        let later = hashed.check("correct horse", digest("correct horse"), &from(None)).await;

        assert_eq!((waiting, later), (Checked::Busy, Checked::Right));
    }

    #[tokio::test]
    async fn flood_from_one_address_delays_others_by_one_guess() {
        let AcceptedPassword::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let guessed = Arc::new(AtomicUsize::new(0));
        let turn = hashed.turn.acquire().await.unwrap();
        let flood: Vec<_> = (0..20)
            .map(|number| {
                let (hashed, guessed) = (Arc::clone(&hashed), Arc::clone(&guessed));
                // One client: IPv6 gives it a whole /64.
                let peer = Ipv6Addr::from_bits(0x2001_0db8 << 96 | number).into();
                tokio::spawn(async move {
                    let checked = hashed.check("a guess", digest("a guess"), &from(Some(peer))).await;
                    // A guess that timed out in the queue has delayed no other.
                    if checked != Checked::Busy {
                        guessed.fetch_add(1, Ordering::SeqCst);
                    }
                    checked
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(turn);

        let (elsewhere, before) = (Some(Ipv4Addr::new(192, 0, 2, 1).into()), Arc::clone(&guessed));
        // A task, like the guesses: tasks run in the order in which they are woken.
        let right = tokio::spawn(async move {
            let right = hashed.check("correct horse", digest("correct horse"), &from(elsewhere)).await;
            (right, before.load(Ordering::SeqCst))
        });
        let (right, before) = right.await.unwrap();

        // One guess ran before it; a second may end while its answer is on the way.
        assert_eq!((right, before <= 2), (Checked::Right, true), "{before}");
        flood.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn throttled_address_is_refused_without_a_check() {
        for text in [HASH, "correct horse"] {
            let (password, here) = (password(text).unwrap(), from(Some(Ipv4Addr::LOCALHOST.into())));
            let mut answers = Vec::new();
            for _ in 0..5 {
                answers.push(password.check("a guess", &here).await);
            }
            assert_eq!(answers, [Checked::Wrong; 5], "{text}");

            let sixth = password.check("a guess", &here).await;
            let elsewhere = LoginAttempt { client: Some(Ipv4Addr::new(192, 0, 2, 1).into()), ..here.clone() };

            assert!(matches!(sixth, Checked::Throttled(wait) if wait <= Duration::from_secs(5)), "{sixth:?}");
            assert_eq!(password.check("correct horse", &elsewhere).await, Checked::Right, "{text}");
        }
    }

    #[tokio::test]
    async fn throttled_address_accepts_a_known_password() {
        for text in [HASH, "correct horse"] {
            let (password, here) = (password(text).unwrap(), from(Some(Ipv4Addr::LOCALHOST.into())));
            assert_eq!(password.check("correct horse", &here).await, Checked::Right, "{text}");
            for _ in 0..5 {
                assert_eq!(password.check("a guess", &here).await, Checked::Wrong, "{text}");
            }
            assert!(here.wait().is_some(), "{text}");

            assert_eq!(password.check("correct horse", &here).await, Checked::Right, "{text}");
        }
    }

    #[tokio::test]
    async fn queued_guesses_are_not_checked_after_failures() {
        let AcceptedPassword::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let here = from(Some(Ipv4Addr::LOCALHOST.into()));
        let guesses = (0..50).map(|_| hashed.check("a guess", digest("a guess"), &here));

        let answers = futures::future::join_all(guesses).await;

        let checked = answers.iter().filter(|answer| **answer == Checked::Wrong).count();
        assert_eq!(checked, 5, "{answers:?}");
    }

    #[tokio::test]
    async fn guess_counts_after_its_client_disconnects() {
        let AcceptedPassword::Hashed(hashed) = password(HASH).unwrap() else { panic!("it is a hash") };
        let here = from(Some(Ipv4Addr::LOCALHOST.into()));

        while here.wait().is_none() {
            let left = hashed.check("a guess", digest("a guess"), &here);
            assert!(left.now_or_never().is_none_or(|answer| answer != Checked::Right));
            // The lock is free again once the guess was checked.
            drop(hashed.turn.acquire().await);
        }
    }

    #[tokio::test]
    async fn unknown_user_has_no_right_password() {
        let unknown = LoginAttempt { role: None, ..from(None) };
        for text in [HASH, "correct horse"] {
            let password = password(text).unwrap();

            assert_eq!(password.check("correct horse", &unknown).await, Checked::Wrong, "{text}");
            assert_eq!(password.check("correct horse", &unknown).await, Checked::Wrong, "remembered, {text}");
        }
    }

    #[test]
    fn broken_hash_is_refused_without_showing_it() {
        let broken = HASH.replace("i=2000", "i=0");

        let refusal = password(&broken).unwrap_err().to_string();

        assert!(refusal.contains("iterations") && refusal.contains("admin"), "{refusal}");
        assert!(!refusal.contains(&broken), "{refusal}");
    }

    #[test]
    fn debug_output_shows_no_password_or_digest() {
        let shown = format!("{:?} {:?}", password("hunter2-hunter2").unwrap(), password(HASH).unwrap());

        assert_eq!(shown, "Plain Hashed");
    }
}
