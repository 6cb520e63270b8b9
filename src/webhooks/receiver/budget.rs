//! Bytes that requests may hold, over all of them: unverified ones while bodies are read, verified ones until they are durable.
//!
//! - Unverified bytes never exceed their limit, and large bodies leave a part of it to small ones: who sends megabytes
//!   without a secret keeps nobody from delivering a kilobyte with one.
//! - Verified bytes are counted, never refused; while there are too many, nobody new is let in.
//! - Bytes are counted as they come, not as they are announced: an announcement costs its sender nothing.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bodies up to this many bytes are small. Deliveries have about one kilobyte.
const SMALL: usize = 64 << 10;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Budget {
    unverified_limit: usize,
    verified_limit: usize,
    unverified: AtomicUsize,
    verified: AtomicUsize,
}

impl Budget {
    pub(super) fn new(unverified_limit: usize, verified_limit: usize) -> Arc<Self> {
        let (unverified, verified) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { unverified_limit, verified_limit, unverified, verified })
    }

    /// Lets in a body of which this much is announced and would be kept; `None` where there is no room for it now.
    pub(super) fn enter(self: &Arc<Self>, announced: usize) -> Option<Unverified> {
        let room = self.limit_for(announced).saturating_sub(self.unverified.load(Ordering::Relaxed));
        let open = self.verified.load(Ordering::Relaxed) < self.verified_limit;
        (open && room > 0 && room >= announced).then(|| Unverified { budget: Arc::clone(self), held: 0 })
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

    /// Gives the room back: nothing of the body is kept.
    pub(super) fn clear(&mut self) {
        self.budget.unverified.fetch_sub(self.held, Ordering::Relaxed);
        self.held = 0;
    }

    /// The body was verified: its bytes are counted with those now.
    pub(super) fn verified(self) -> Verified {
        self.budget.verified.fetch_add(self.held, Ordering::Relaxed);
        Verified { budget: Arc::clone(&self.budget), held: self.held }
    }
}

impl Drop for Unverified {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The bytes of a delivery on its way.
#[derive(Debug)]
pub(super) struct Verified {
    budget: Arc<Budget>,
    held: usize,
}

impl Drop for Verified {
    fn drop(&mut self) {
        self.budget.verified.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 4 << 20;

    fn used(budget: &Budget) -> (usize, usize) {
        (budget.unverified.load(Ordering::Relaxed), budget.verified.load(Ordering::Relaxed))
    }

    #[test]
    fn what_was_taken_comes_back_however_a_request_ends() {
        let budget = Budget::new(LIMIT, LIMIT);
        let mut abandoned = budget.enter(10).unwrap();
        let mut delivered = budget.enter(10).unwrap();
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
        let budget = Budget::new(LIMIT, LIMIT);
        let mut large = budget.enter(LIMIT / 4 * 3).unwrap();
        assert!(large.grow(LIMIT / 4 * 3));

        assert!(!large.grow(1));
        assert!(budget.enter(SMALL + 1).is_none());
        let mut small: Vec<_> = (0..LIMIT / 4 / SMALL).map(|_| budget.enter(SMALL).unwrap()).collect();
        assert!(small.iter_mut().all(|small| small.grow(SMALL)));

        assert!(budget.enter(0).is_none() && budget.enter(1).is_none());
        assert_eq!(used(&budget).0, LIMIT);
    }

    #[test]
    fn a_body_that_grows_large_is_held_to_the_share_of_large_ones() {
        let budget = Budget::new(LIMIT, LIMIT);
        let mut creeping = budget.enter(0).unwrap();

        let grown = (0..).take_while(|_| creeping.grow(SMALL)).count();

        assert_eq!(grown * SMALL, LIMIT / 4 * 3);
    }

    #[test]
    fn nobody_is_let_in_while_too_many_verified_bytes_wait() {
        let budget = Budget::new(LIMIT, 100);
        let mut read = budget.enter(100).unwrap();
        let mut already_in = budget.enter(100).unwrap();
        assert!(read.grow(100));
        let waiting = read.verified();

        assert!(budget.enter(1).is_none());
        // Who was let in before is not turned away.
        assert!(already_in.grow(100));
        drop(waiting);

        assert!(budget.enter(1).is_some());
    }
}
