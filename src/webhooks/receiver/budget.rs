//! Bytes that requests may hold, over all of them: unverified ones while bodies are read, verified ones until they are durable.
//!
//! - Unverified bytes never exceed their limit, and large bodies leave a part of it to small ones: who sends megabytes
//!   without a secret keeps nobody from delivering a kilobyte with one.
//! - Verified bytes are counted, never refused; while there are too many, nobody new is let in.
//! - Bytes are counted as they come, not as they are announced: an announcement costs its sender nothing.
//! - Bytes that are hashed count against the address they came from until their signature proves valid: see [`Sources`].

use std::{
    mem,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::time::Instant;

use super::sources::{HashLimit, Sources};
use crate::webhooks::memory::{Memory, Taken};

/// Bodies up to this many bytes are small. Deliveries have about one kilobyte.
const SMALL: usize = 64 << 10;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Budget {
    unverified_limit: usize,
    unverified: AtomicUsize,
    verified: Arc<Memory>,
    pub(super) sources: Sources,
}

impl Budget {
    pub(super) fn new(unverified_limit: usize, verified_limit: usize, hash_limit: HashLimit) -> Arc<Self> {
        let (unverified, sources) = (AtomicUsize::new(0), Sources::new(hash_limit));
        // At its limit it is full.
        let verified = Memory::new(verified_limit.saturating_sub(1));
        Arc::new(Self { unverified_limit, unverified, verified, sources })
    }

    /// Lets in a body of which this much is announced and would be kept; `None` where there is no room for it now.
    pub(super) fn enter(self: &Arc<Self>, announced: usize, source: IpAddr) -> Option<Unverified> {
        let room = self.limit_for(announced).saturating_sub(self.unverified.load(Ordering::Relaxed));
        (self.verified.has_room() && room > 0 && room >= announced).then(|| Unverified {
            budget: Arc::clone(self),
            held: 0,
            source,
            hashed: 0,
            free: 0,
        })
    }

    /// What all together may hold for a body of this size to grow.
    fn limit_for(&self, size: usize) -> usize {
        if size > SMALL { self.unverified_limit / 4 * 3 } else { self.unverified_limit }
    }
}

/// The bytes of a body that is being read.
#[derive(Debug)]
pub(super) struct Unverified {
    budget: Arc<Budget>,
    held: usize,
    /// Where it comes from.
    source: IpAddr,
    /// Bytes that were hashed for it, counted once for every secret.
    hashed: u64,
    /// Bytes that may still be hashed for it without a charge.
    free: u64,
}

impl Unverified {
    /// Takes room for so many bytes more. Whether there was.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let limit = self.budget.limit_for(self.held + more);
        let fits = |used: usize| used.checked_add(more).filter(|sum| *sum <= limit);
        let grown = self.budget.unverified.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.held += if grown { more } else { 0 };
        grown
    }

    /// Takes so many bytes from what its source may have hashed. Whether there were any left.
    pub(super) fn hash(&mut self, bytes: usize) -> bool {
        if let Some(left) = self.free.checked_sub(bytes as u64) {
            self.free = left;
            return true;
        }
        let taken = self.budget.sources.take(self.source, bytes, Instant::now());
        self.hashed += if taken { bytes as u64 } else { 0 };
        taken
    }

    /// Lets the first bytes be hashed even where its source has used up its budget.
    pub(super) fn allow_free(&mut self) {
        self.free = self.budget.sources.free();
    }

    /// Bytes that were hashed for it so far.
    #[cfg(test)]
    pub(super) fn hashed_bytes(&self) -> usize {
        usize::try_from(self.hashed).unwrap_or(usize::MAX)
    }

    /// Its signature is valid, whatever becomes of it: its source gets back what was hashed.
    pub(super) fn give_back_hashed(&mut self) {
        self.budget.sources.give_back(self.source, mem::take(&mut self.hashed), Instant::now());
    }

    /// Gives the room back: nothing of the body is kept.
    pub(super) fn clear(&mut self) {
        self.budget.unverified.fetch_sub(self.held, Ordering::Relaxed);
        self.held = 0;
    }

    /// The body was verified: its bytes are counted with those now.
    pub(super) fn verified(self) -> Taken {
        self.budget.verified.take(self.held)
    }
}

impl Drop for Unverified {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 4 << 20;
    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn used(budget: &Budget) -> (usize, usize) {
        (budget.unverified.load(Ordering::Relaxed), budget.verified.used())
    }

    #[test]
    fn what_was_taken_comes_back_however_a_request_ends() {
        let budget = Budget::new(LIMIT, LIMIT, HashLimit::default());
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
    fn large_bodies_leave_room_for_small_ones_and_nobody_exceeds_the_limit() {
        let budget = Budget::new(LIMIT, LIMIT, HashLimit::default());
        let mut large = budget.enter(LIMIT / 4 * 3, SOURCE).unwrap();
        assert!(large.grow(LIMIT / 4 * 3));

        assert!(!large.grow(1));
        assert!(budget.enter(SMALL + 1, SOURCE).is_none());
        let mut small: Vec<_> =
            (0..LIMIT / 4 / SMALL).map(|_| budget.enter(SMALL, SOURCE).unwrap()).collect();
        assert!(small.iter_mut().all(|small| small.grow(SMALL)));

        assert!(budget.enter(0, SOURCE).is_none() && budget.enter(1, SOURCE).is_none());
        assert_eq!(used(&budget).0, LIMIT);
    }

    #[test]
    fn a_body_that_grows_large_is_held_to_the_share_of_large_ones() {
        let budget = Budget::new(LIMIT, LIMIT, HashLimit::default());
        let mut creeping = budget.enter(0, SOURCE).unwrap();

        let grown = (0..).take_while(|_| creeping.grow(SMALL)).count();

        assert_eq!(grown * SMALL, LIMIT / 4 * 3);
    }

    #[test]
    fn nobody_is_let_in_while_too_many_verified_bytes_wait() {
        let budget = Budget::new(LIMIT, 100, HashLimit::default());
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
}
