//! What requests may take before they are verified: memory over all requests, and hashing for each source address.
//!
//! ```text
//! enter (room?) ─▶ grow as bytes arrive ─▶ hash (source's bucket) ─▶ verified ─▶ counted until the intake is done with it
//! ```
//!
//! - Unverified bytes never exceed their limit, and a quarter of it is reserved for small bodies: large bodies without a valid
//!   signature cannot keep out a delivery of a kilobyte.
//! - Verified bytes are counted, never refused; while there are too many, no new request is admitted.
//! - Bytes are counted as they arrive, not as they are announced: an announcement costs its sender nothing.
//! - Hashing takes tokens from a bucket of the source address; time and valid signatures give them back. A source with an empty bucket
//!   is answered 503 with `Retry-After` before anything beyond [`HashLimit::free`] bytes of a request is hashed; the provider repeats a
//!   delivery after that.
//! - A source is an IPv4 address or an IPv6 /64; behind `webhook.proxies` it is the address that the proxy forwarded.
//! - A bucket that a valid signature fills up is dropped: a sender whose deliveries are all valid has no bucket between them. At most
//!   [`MAX_SOURCES`] buckets are kept; above that full ones are dropped, or the fullest, which costs the least protection.

use std::{
    collections::HashMap,
    mem,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use server::origin::network;

use crate::webhooks::delivery::{DeliveryMemory, HeldMemory};

/// Bodies up to this many bytes are small. Deliveries have about one kilobyte.
const SMALL_BODY_BYTES: usize = 64 << 10;

/// Buckets that are kept. Dropping one scans all of them, which bounds the number.
const MAX_SOURCES: usize = 1_024;
/// Shortest time between two log lines about sources with an empty bucket.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Memory over all requests, and the hash budgets of their sources.
#[derive(Debug)]
pub(super) struct ReceiverBudget {
    unverified_limit: usize,
    unverified: AtomicUsize,
    verified: Arc<DeliveryMemory>,
    pub(super) sources: SourceBudgets,
}

impl ReceiverBudget {
    pub(super) fn new(unverified_limit: usize, verified_limit: usize, hash_limit: HashLimit) -> Arc<Self> {
        let (unverified, sources) = (AtomicUsize::new(0), SourceBudgets::new(hash_limit));
        // `has_room` includes its limit, and there is no room at this one.
        let verified = DeliveryMemory::new(verified_limit.saturating_sub(1));
        Arc::new(Self { unverified_limit, unverified, verified, sources })
    }

    /// Admits a body with this announced length; `None`: there is no room now.
    pub(super) fn enter(self: &Arc<Self>, announced: usize, source: IpAddr) -> Option<UnverifiedBytes> {
        let room = self.limit_for(announced).saturating_sub(self.unverified.load(Ordering::Relaxed));
        (self.verified.has_room() && room > 0 && room >= announced).then(|| UnverifiedBytes {
            budget: Arc::clone(self),
            held: 0,
            source,
            hashed: 0,
            free: 0,
        })
    }

    /// The total up to which a body of this size may grow.
    fn limit_for(&self, size: usize) -> usize {
        if size > SMALL_BODY_BYTES { self.unverified_limit / 4 * 3 } else { self.unverified_limit }
    }
}

/// The bytes of a body that is being read.
#[derive(Debug)]
pub(super) struct UnverifiedBytes {
    budget: Arc<ReceiverBudget>,
    held: usize,
    /// Its source address.
    source: IpAddr,
    /// Bytes that were hashed for it, counted once for each secret.
    hashed: u64,
    /// Bytes that may still be hashed without a charge.
    free: u64,
}

impl UnverifiedBytes {
    /// Takes room for more bytes; `false`: there is none.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let limit = self.budget.limit_for(self.held + more);
        let fits = |used: usize| used.checked_add(more).filter(|sum| *sum <= limit);
        let grown = self.budget.unverified.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.held += if grown { more } else { 0 };
        grown
    }

    /// Charges bytes to its source before they are hashed; `false`: its bucket is empty.
    pub(super) fn hash(&mut self, bytes: usize) -> bool {
        if let Some(left) = self.free.checked_sub(bytes as u64) {
            self.free = left;
            return true;
        }
        let taken = self.budget.sources.take(self.source, bytes, Instant::now());
        self.hashed += if taken { bytes as u64 } else { 0 };
        taken
    }

    /// Hashes the first bytes without a charge.
    pub(super) fn allow_free(&mut self) {
        self.free = self.budget.sources.free();
    }

    /// Bytes that were hashed for it so far.
    #[cfg(test)]
    pub(super) fn hashed_bytes(&self) -> usize {
        usize::try_from(self.hashed).unwrap_or(usize::MAX)
    }

    /// Its signature is valid: returns the charge to its source.
    pub(super) fn give_back_hashed(&mut self) {
        self.budget.sources.give_back(self.source, mem::take(&mut self.hashed), Instant::now());
    }

    /// Returns the room: nothing of the body is kept.
    pub(super) fn clear(&mut self) {
        self.budget.unverified.fetch_sub(self.held, Ordering::Relaxed);
        self.held = 0;
    }

    /// The body is verified: its bytes move to the verified ones.
    pub(super) fn verified(self) -> HeldMemory {
        self.budget.verified.take(self.held)
    }
}

impl Drop for UnverifiedBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

/// How many bytes are hashed for a source without a valid signature, counted once for each secret that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashLimit {
    /// Size of the bucket.
    pub burst: u64,
    /// Bytes that are added each second, up to `burst`.
    pub per_second: u64,
    /// Bytes of each request that are not charged, unless it is for the shared address of hooks: senders that share a source address can
    /// always deliver bodies of the usual size.
    pub free: u64,
}

impl Default for HashLimit {
    /// The burst covers the largest deliveries, so that the first one of a source is always hashed to its end: an accounting one of 30
    /// MiB, the largest `body.limit.bytes`, read up to four times that and hashed with two secrets; and an invoicing one of 8 MiB, hashed
    /// with eight secrets of each connector that shares a segment. 8 MiB a second is about one percent of a core.
    fn default() -> Self {
        Self { burst: 512 << 20, per_second: 8 << 20, free: 128 << 10 }
    }
}

/// A token bucket for each source address.
#[derive(Debug)]
pub(super) struct SourceBudgets {
    limit: HashLimit,
    state: Mutex<SourceState>,
}

#[derive(Debug, Default)]
struct SourceState {
    buckets: HashMap<IpAddr, HashBucket>,
    logged: Option<Instant>,
}

/// Bytes that are left; below zero if the last piece took more than there were.
#[derive(Debug, Clone, Copy)]
struct HashBucket {
    left: i64,
    at: Instant,
}

impl HashBucket {
    /// Adds the bytes for the time since the last refill.
    fn refill(&mut self, limit: HashLimit, now: Instant) {
        let micros = now.saturating_duration_since(self.at).as_micros();
        let added = micros.saturating_mul(u128::from(limit.per_second)) / 1_000_000;
        // Less than one byte: keep the time, or frequent calls would never refill.
        if added > 0 {
            self.add(u64::try_from(added).unwrap_or(u64::MAX), limit);
            self.at = now;
        }
    }

    fn add(&mut self, bytes: u64, limit: HashLimit) {
        self.left = self.left.saturating_add_unsigned(bytes).min(limit.full());
    }
}

impl HashLimit {
    fn full(self) -> i64 {
        i64::try_from(self.burst).unwrap_or(i64::MAX)
    }
}

impl SourceBudgets {
    pub(super) fn new(limit: HashLimit) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// Bytes of a request that are not charged.
    pub(super) fn free(&self) -> u64 {
        self.limit.free
    }

    /// Whether the bucket of a source is not empty.
    pub(super) fn may_hash(&self, source: IpAddr, now: Instant) -> bool {
        let bucket = self.state.lock().buckets.get(&network(source)).copied();
        bucket.is_none_or(|mut bucket| {
            bucket.refill(self.limit, now);
            bucket.left > 0
        })
    }

    /// Charges bytes before they are hashed; `false`: the bucket is empty.
    pub(super) fn take(&self, source: IpAddr, bytes: usize, now: Instant) -> bool {
        let (limit, source) = (self.limit, network(source));
        let mut state = self.state.lock();
        if state.buckets.len() >= MAX_SOURCES && !state.buckets.contains_key(&source) {
            state.make_room(limit, now);
        }
        let bucket = state.buckets.entry(source).or_insert(HashBucket { left: limit.full(), at: now });
        bucket.refill(limit, now);
        let may = bucket.left > 0;
        if may {
            bucket.left = bucket.left.saturating_sub_unsigned(bytes as u64);
        }
        may
    }

    /// Returns the charge of a delivery with a valid signature.
    pub(super) fn give_back(&self, source: IpAddr, bytes: u64, now: Instant) {
        let (limit, source) = (self.limit, network(source));
        let mut state = self.state.lock();
        let Some(bucket) = state.buckets.get_mut(&source) else { return };
        bucket.refill(limit, now);
        bucket.add(bytes, limit);
        if bucket.left == limit.full() {
            state.buckets.remove(&source);
        }
    }

    /// Logs a refused source, at most once in [`LOG_INTERVAL`] over all of them: an attacker must not fill the log.
    pub(super) fn log_refusal(&self, source: IpAddr, now: Instant) {
        let mut state = self.state.lock();
        if state.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return;
        }
        state.logged = Some(now);
        drop(state);
        tracing::warn!(
            source = %network(source),
            limit = self.limit.burst,
            "a source sent more bytes without a valid signature than are hashed for one address; its deliveries are answered \
             503 until its budget refills. If the address is a load balancer, name it in webhook.proxies: the provider behind \
             it is refused as well"
        );
    }
}

impl SourceState {
    fn make_room(&mut self, limit: HashLimit, now: Instant) {
        self.buckets.retain(|_, bucket| {
            bucket.refill(limit, now);
            bucket.left < limit.full()
        });
        if self.buckets.len() >= MAX_SOURCES
            && let Some(fullest) =
                self.buckets.iter().max_by_key(|(_, bucket)| bucket.left).map(|(one, _)| *one)
        {
            self.buckets.remove(&fullest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::{super::body::OVERSIZED_READ_FACTOR, *};
    use crate::config::connector::MAX_SEGMENT_CONNECTORS;

    const LIMIT: usize = 4 << 20;
    const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn used(budget: &ReceiverBudget) -> (usize, usize) {
        (budget.unverified.load(Ordering::Relaxed), budget.verified.used())
    }

    #[test]
    fn a_request_returns_its_bytes_however_it_ends() {
        let budget = ReceiverBudget::new(LIMIT, LIMIT, HashLimit::default());
        let mut abandoned = budget.enter(10, SOURCE).unwrap();
        let mut delivered = budget.enter(10, SOURCE).unwrap();
        assert!(abandoned.grow(10) && delivered.grow(20));
        assert_eq!(used(&budget), (30, 0));

        let verified = delivered.verified();
        assert_eq!(used(&budget), (10, 20));
        drop(abandoned);
        drop(verified);

        assert_eq!(used(&budget), (0, 0));
    }

    #[test]
    fn large_bodies_leave_room_for_small_ones_within_the_limit() {
        let budget = ReceiverBudget::new(LIMIT, LIMIT, HashLimit::default());
        let mut large = budget.enter(LIMIT / 4 * 3, SOURCE).unwrap();
        assert!(large.grow(LIMIT / 4 * 3));

        assert!(!large.grow(1));
        assert!(budget.enter(SMALL_BODY_BYTES + 1, SOURCE).is_none());
        let mut small: Vec<_> = (0..LIMIT / 4 / SMALL_BODY_BYTES)
            .map(|_| budget.enter(SMALL_BODY_BYTES, SOURCE).unwrap())
            .collect();
        assert!(small.iter_mut().all(|small| small.grow(SMALL_BODY_BYTES)));

        assert!(budget.enter(0, SOURCE).is_none() && budget.enter(1, SOURCE).is_none());
        assert_eq!(used(&budget).0, LIMIT);
    }

    #[test]
    fn a_body_that_grows_large_is_held_to_the_share_of_large_ones() {
        let budget = ReceiverBudget::new(LIMIT, LIMIT, HashLimit::default());
        let mut creeping = budget.enter(0, SOURCE).unwrap();

        let grown = (0..).take_while(|_| creeping.grow(SMALL_BODY_BYTES)).count();

        assert_eq!(grown * SMALL_BODY_BYTES, LIMIT / 4 * 3);
    }

    #[test]
    fn no_request_is_admitted_above_the_verified_limit() {
        let budget = ReceiverBudget::new(LIMIT, 100, HashLimit::default());
        let mut read = budget.enter(100, SOURCE).unwrap();
        let mut already_in = budget.enter(100, SOURCE).unwrap();
        assert!(read.grow(100));
        let waiting = read.verified();

        assert!(budget.enter(1, SOURCE).is_none());
        // Who was let in before is not turned away.
        assert!(already_in.grow(100));
        drop(waiting);

        assert!(budget.enter(1, SOURCE).is_some());
    }

    const HASH_LIMIT: HashLimit = HashLimit { burst: 1_000, per_second: 100, free: 0 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn kept(sources: &SourceBudgets) -> usize {
        sources.state.lock().buckets.len()
    }

    #[test]
    fn an_empty_bucket_refills_and_stops_no_other_source() {
        let (sources, now) = (SourceBudgets::new(HASH_LIMIT), Instant::now());
        let (forger, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!(sources.take(forger, 900, now) && sources.take(forger, 300, now));

        assert!(!sources.may_hash(forger, now) && !sources.take(forger, 1, now));
        assert!(sources.may_hash(other, now) && sources.take(other, 1, now));
        // The last piece took 200 bytes more than there were.
        assert!(!sources.may_hash(forger, now + Duration::from_secs(2)));
        let later = now + Duration::from_secs(3);

        assert!(sources.take(forger, 100, later) && !sources.take(forger, 1, later));
    }

    #[test]
    fn a_valid_signature_gives_everything_back() {
        let (sources, now, provider) = (SourceBudgets::new(HASH_LIMIT), Instant::now(), address("192.0.2.1"));

        for _ in 0..10 {
            assert!(sources.take(provider, 900, now));
            sources.give_back(provider, 900, now);
        }

        assert_eq!(kept(&sources), 0);
        sources.give_back(provider, 900, now);
        assert_eq!(kept(&sources), 0);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let (sources, now) = (SourceBudgets::new(HASH_LIMIT), Instant::now());
        assert!(sources.take(address("2001:db8::1"), 1_000, now));

        assert!(!sources.may_hash(address("2001:db8::ffff:2"), now));
        assert!(sources.may_hash(address("2001:db8:0:1::1"), now));
    }

    #[test]
    fn the_table_is_bounded_and_drops_the_fullest_bucket() {
        let (sources, now) = (SourceBudgets::new(HASH_LIMIT), Instant::now());
        let nth = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number));
        for number in 0..MAX_SOURCES as u32 {
            assert!(sources.take(nth(number), 1_000 - usize::from(number == 7), now));
        }

        assert!(sources.take(nth(5_000), 1_000, now));
        assert_eq!(kept(&sources), MAX_SOURCES);
        assert!(!sources.may_hash(nth(6), now), "an empty bucket stays");
        assert!(!sources.state.lock().buckets.contains_key(&nth(7)), "the fullest one was dropped");
        assert!(sources.take(nth(9_000), 1, now + Duration::from_secs(60)));

        assert_eq!(kept(&sources), 1, "buckets that are full again are dropped");
    }

    #[test]
    fn one_largest_delivery_fits_into_a_full_bucket() {
        let accounting = 30 * 1024 * 1024 * OVERSIZED_READ_FACTOR * 2;
        // Three actions of an entity, and the secret for all hooks, each with its previous one.
        let invoicing = 8 * 1024 * 1024 * (3 + 1) * 2 * MAX_SEGMENT_CONNECTORS;

        assert!(HashLimit::default().burst >= accounting.max(invoicing) as u64);
    }
}
