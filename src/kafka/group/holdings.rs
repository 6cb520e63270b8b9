//! What a member has been given, which of it is its own, and how long that is sure.
//!
//! A partition goes through four steps: *wanted* (assigned), *asked* (its claim is being written), *written* (the claim
//! stands in the log) and *owned* (a commit that began after the claim was written has succeeded). The last step is what
//! makes claims tell who came later: a claim that was delayed, and landed behind a successor's, never becomes ownership,
//! since the commit after it fails.
//!
//! - A revoked partition is forgotten at once, whatever its step; what is still under way for it changes nothing.
//! - The lease runs from before a commit, or from the last poll if that was earlier: a thread that no longer polls cannot
//!   hear that its partitions are wanted elsewhere.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::Owned;

/// The most of a session that is kept back, for clocks that differ and for what the holder does after asking.
const LARGEST_MARGIN: Duration = Duration::from_secs(1);
/// The part of a short session that is kept back.
const MARGIN_SHARE: u32 = 6;

/// See the module's head. Times are those of [`super::clock`].
#[derive(Debug)]
pub(super) struct Holdings {
    /// How long after a sign of life the broker surely has given nothing to others.
    lease: Duration,
    /// Nanoseconds until which the lease runs.
    until: AtomicU64,
    /// Nanoseconds at which the last poll began.
    polled: AtomicU64,
    state: Mutex<State>,
    owned: watch::Sender<Owned>,
    wanted: Notify,
    woken: Condvar,
}

impl Holdings {
    pub(super) fn new(session: Duration) -> Self {
        Self {
            lease: session - LARGEST_MARGIN.min(session / MARGIN_SHARE),
            until: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            state: Mutex::default(),
            owned: watch::Sender::new(Owned::default()),
            wanted: Notify::new(),
            woken: Condvar::new(),
        }
    }

    /// The partitions owned, and a signal for every change.
    pub(super) fn owned(&self) -> watch::Receiver<Owned> {
        self.owned.subscribe()
    }

    /// Whether a partition is owned and the lease runs.
    pub(super) fn holds(&self, partition: i32, now: Duration) -> bool {
        self.owned.borrow().contains_key(&partition) && !self.left(now).is_zero()
    }

    /// How much longer the lease runs.
    pub(super) fn left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Acquire)).saturating_sub(now)
    }

    /// A poll begins.
    pub(super) fn polling(&self, now: Duration) {
        self.polled.store(nanos(now), Ordering::Release);
    }

    /// The group gives these.
    pub(super) fn assigned(&self, partitions: impl IntoIterator<Item = i32>) {
        let mut state = self.lock();
        for partition in partitions {
            let before = state.assigned.insert(partition, Assigned::default());
            if let Some(before) = before {
                before.revoked.cancel();
            }
        }
        self.publish(&state);
        drop(state);
        self.wanted.notify_one();
    }

    /// The group takes these, or they are lost.
    pub(super) fn revoked(&self, partitions: impl IntoIterator<Item = i32>) {
        let mut state = self.lock();
        for partition in partitions {
            if let Some(assigned) = state.assigned.remove(&partition) {
                // Under the lock, so that whoever holds it and sees the token alive knows the partition is still this one.
                assigned.revoked.cancel();
            }
        }
        self.publish(&state);
    }

    /// Nothing is ours any more.
    pub(super) fn end(&self) {
        let all: Vec<i32> = self.lock().assigned.keys().copied().collect();
        self.revoked(all);
        self.lapse();
    }

    /// Partitions whose claim is to be written, each with what tells that it no longer is. Each is handed out once.
    pub(super) async fn wanted(&self) -> Vec<(i32, CancellationToken)> {
        loop {
            let wanted = self.lock().ask();
            if !wanted.is_empty() {
                return wanted;
            }
            self.wanted.notified().await;
        }
    }

    /// A partition's claim stands in the log, at this offset.
    pub(super) fn claimed(&self, partition: i32, revoked: &CancellationToken, claim: i64) {
        let mut state = self.lock();
        if !revoked.is_cancelled()
            && let Some(assigned) = state.assigned.get_mut(&partition)
        {
            assigned.step = Step::Written(claim);
        }
        drop(state);
        self.wake();
    }

    /// Blocks until a claim has been written, or [`Holdings::wake`] was called, since the last call, at most this long.
    pub(super) fn sleep(&self, limit: Duration) {
        let slept = self.woken.wait_timeout_while(self.lock(), limit, |state| !state.woken);
        let (mut state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
    }

    /// Ends a [`Holdings::sleep`].
    pub(super) fn wake(&self) {
        self.lock().woken = true;
        self.woken.notify_one();
    }

    /// What to commit next as a sign of life: each partition in turn. `None` without a claim.
    pub(super) fn next_renewal(&self) -> Option<Renewal> {
        let mut state = self.lock();
        let claims: BTreeMap<i32, i64> = state.claims().collect();
        let later = claims.range((Bound::Excluded(state.last_committed), Bound::Unbounded)).next();
        let (partition, claim) = later.or_else(|| claims.first_key_value())?;
        state.last_committed = *partition;
        Some(Renewal { partition: *partition, claim: *claim, proves: claims })
    }

    /// A commit of that renewal, begun at this time, has succeeded.
    pub(super) fn renewed(&self, renewal: &Renewal, begun: Duration) {
        let since = begun.min(Duration::from_nanos(self.polled.load(Ordering::Acquire)));
        // Before anything becomes ours by it: what is owned is held.
        self.until.store(nanos(since + self.lease), Ordering::Release);
        let mut state = self.lock();
        for (partition, claim) in &renewal.proves {
            // An offset is given once, so this is the same assignment and no later one.
            if let Some(assigned) = state.assigned.get_mut(partition)
                && assigned.step == Step::Written(*claim)
            {
                assigned.step = Step::Owned(*claim);
            }
        }
        self.publish(&state);
    }

    /// The broker no longer knows us: nothing is sure until a commit succeeds again.
    pub(super) fn lapse(&self) {
        self.until.store(0, Ordering::Release);
    }

    fn publish(&self, state: &State) {
        let owned: BTreeMap<i32, i64> = state.owned().collect();
        self.owned.send_if_modified(|known| {
            let changed = **known != owned;
            if changed {
                *known = Arc::new(owned);
            }
            changed
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A commit that shows the coordinator that we live, and us that it has given our partitions to nobody.
#[derive(Debug)]
pub(super) struct Renewal {
    /// The partition to commit.
    pub(super) partition: i32,
    /// Its claim.
    pub(super) claim: i64,
    /// Claims that stood in the log before the commit began.
    proves: BTreeMap<i32, i64>,
}

#[derive(Debug, Default)]
struct State {
    assigned: BTreeMap<i32, Assigned>,
    last_committed: i32,
    /// Whoever renews the lease is to look again.
    woken: bool,
}

impl State {
    fn ask(&mut self) -> Vec<(i32, CancellationToken)> {
        let wanted = self.assigned.iter_mut().filter(|(_, assigned)| assigned.step == Step::Wanted);
        wanted
            .map(|(partition, assigned)| {
                assigned.step = Step::Asked;
                (*partition, assigned.revoked.clone())
            })
            .collect()
    }

    fn claims(&self) -> impl Iterator<Item = (i32, i64)> {
        self.assigned.iter().filter_map(|(partition, assigned)| match assigned.step {
            Step::Written(claim) | Step::Owned(claim) => Some((*partition, claim)),
            Step::Wanted | Step::Asked => None,
        })
    }

    fn owned(&self) -> impl Iterator<Item = (i32, i64)> {
        self.assigned.iter().filter_map(|(partition, assigned)| match assigned.step {
            Step::Owned(claim) => Some((*partition, claim)),
            _ => None,
        })
    }
}

#[derive(Debug, Default)]
struct Assigned {
    revoked: CancellationToken,
    step: Step,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    #[default]
    Wanted,
    Asked,
    Written(i64),
    Owned(i64),
}

/// 584 years fit.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Duration = Duration::from_secs(6);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Given these, asked for their claims.
    async fn given(partitions: &[i32]) -> (Holdings, Vec<(i32, CancellationToken)>) {
        let holdings = Holdings::new(SESSION);
        holdings.polling(seconds(100));
        holdings.assigned(partitions.iter().copied());
        let wanted = holdings.wanted().await;
        (holdings, wanted)
    }

    fn owned(holdings: &Holdings) -> BTreeMap<i32, i64> {
        (**holdings.owned().borrow()).clone()
    }

    /// One partition, owned since 100 s.
    async fn holder() -> Holdings {
        let (holdings, wanted) = given(&[3]).await;
        holdings.claimed(3, &wanted[0].1, 40);
        holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));
        holdings
    }

    #[tokio::test]
    async fn a_partition_is_owned_once_a_commit_after_its_claim_has_succeeded() {
        let (holdings, wanted) = given(&[3]).await;
        assert!(holdings.next_renewal().is_none(), "there is nothing to commit without a claim");
        holdings.claimed(3, &wanted[0].1, 40);
        assert!(owned(&holdings).is_empty(), "the claim alone proves nothing");

        holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));

        assert_eq!(owned(&holdings), BTreeMap::from([(3, 40)]));
        assert!(holdings.holds(3, seconds(101)));
        assert!(!holdings.holds(4, seconds(101)));
    }

    #[tokio::test]
    async fn a_commit_that_began_before_a_claim_was_written_does_not_prove_it() {
        let (holdings, wanted) = given(&[3, 4]).await;
        holdings.claimed(3, &wanted[0].1, 40);
        let begun = holdings.next_renewal().unwrap();
        holdings.claimed(4, &wanted[1].1, 50);

        holdings.renewed(&begun, seconds(100));

        assert_eq!(owned(&holdings), BTreeMap::from([(3, 40)]));
    }

    #[tokio::test]
    async fn a_claim_that_arrives_after_its_partition_was_revoked_is_forgotten_even_if_it_is_assigned_again()
    {
        let (holdings, wanted) = given(&[3]).await;
        holdings.revoked([3]);
        holdings.assigned([3]);

        holdings.claimed(3, &wanted[0].1, 40);

        assert!(wanted[0].1.is_cancelled());
        assert!(holdings.next_renewal().is_none());
        assert_eq!(holdings.wanted().await.len(), 1, "the new assignment wants a claim of its own");
    }

    #[tokio::test]
    async fn a_commit_proves_nothing_about_a_partition_that_was_given_back_meanwhile() {
        let (holdings, wanted) = given(&[3]).await;
        holdings.claimed(3, &wanted[0].1, 40);
        let begun = holdings.next_renewal().unwrap();
        holdings.revoked([3]);
        holdings.assigned([3]);
        let again = holdings.wanted().await;
        holdings.claimed(3, &again[0].1, 41);

        holdings.renewed(&begun, seconds(100));

        assert!(owned(&holdings).is_empty());
    }

    #[tokio::test]
    async fn a_revoked_partition_is_neither_owned_nor_held_and_the_change_is_told() {
        let holdings = holder().await;
        let mut changes = holdings.owned();
        changes.mark_unchanged();

        holdings.revoked([3]);

        assert!(changes.has_changed().unwrap());
        assert!(owned(&holdings).is_empty());
        assert!(!holdings.holds(3, seconds(100)));
    }

    #[tokio::test]
    async fn a_lease_ends_a_second_before_the_session_that_began_with_the_commit() {
        let holdings = holder().await;

        assert!(holdings.holds(3, Duration::from_millis(104_999)));
        assert!(!holdings.holds(3, seconds(105)));
        assert_eq!(holdings.left(seconds(102)), seconds(3));
        assert_eq!(owned(&holdings).len(), 1, "a lease that has ended may run again");
    }

    #[tokio::test]
    async fn a_lease_is_not_renewed_for_a_thread_that_has_stopped_to_poll() {
        let holdings = holder().await;

        holdings.renewed(&holdings.next_renewal().unwrap(), seconds(104));

        assert!(!holdings.holds(3, seconds(105)), "the last poll was at 100 s");
        holdings.polling(seconds(106));
        holdings.renewed(&holdings.next_renewal().unwrap(), seconds(106));
        assert!(holdings.holds(3, seconds(110)));
    }

    #[tokio::test]
    async fn a_member_the_broker_does_not_know_holds_nothing_until_it_does_again() {
        let holdings = holder().await;

        holdings.lapse();

        assert!(!holdings.holds(3, seconds(100)));
        holdings.renewed(&holdings.next_renewal().unwrap(), seconds(100));
        assert!(holdings.holds(3, seconds(100)));
    }

    #[tokio::test]
    async fn partitions_are_committed_in_turn() {
        let (holdings, wanted) = given(&[3, 5, 9]).await;
        for (partition, revoked) in &wanted {
            holdings.claimed(*partition, revoked, 10);
        }

        let turns: Vec<i32> = (0..4).map(|_| holdings.next_renewal().unwrap().partition).collect();

        assert_eq!(turns, [3, 5, 9, 3]);
    }

    #[test]
    fn a_short_session_keeps_back_a_sixth() {
        assert_eq!(Holdings::new(Duration::from_millis(1500)).lease, Duration::from_millis(1250));
        assert_eq!(Holdings::new(seconds(30)).lease, seconds(29));
    }
}
