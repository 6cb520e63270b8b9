//! Random operations against a model: in any order of appends, removals, reads, restarts, crashes and failures, the spool
//! holds what was acknowledged and not removed.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::spool::fault::{Fault, Random};

const LANES: u8 = 3;
const STEPS: usize = 300;

#[derive(Default)]
struct Model {
    /// Acknowledged and not removed.
    held: BTreeMap<u8, BTreeSet<u64>>,
    /// Either outcome is right: refused but perhaps written, or removed without a sync before a crash.
    doubtful: BTreeMap<u8, BTreeSet<u64>>,
}

impl Model {
    async fn check(&self, spool: &Spool, seed: u64) {
        for number in 0..LANES {
            let found: BTreeSet<_> = sequences(spool, &lane("t", number)).await.into_iter().collect();
            let held = self.held.get(&number).cloned().unwrap_or_default();
            let doubtful = self.doubtful.get(&number).cloned().unwrap_or_default();
            let lost: Vec<_> = held.difference(&found).collect();
            let invented: Vec<_> =
                found.iter().filter(|at| !held.contains(at) && !doubtful.contains(at)).collect();
            assert!(
                lost.is_empty() && invented.is_empty(),
                "seed {seed}: lost {lost:?}, invented {invented:?}"
            );
        }
    }

    /// Takes what a restart found as the new state of the model.
    async fn settle(&mut self, spool: &Spool) {
        self.doubtful.clear();
        for number in 0..LANES {
            self.held.insert(number, sequences(spool, &lane("t", number)).await.into_iter().collect());
        }
    }

    async fn check_counts(&self, spool: &Spool, seed: u64) {
        let lanes = within(spool.lanes()).await.unwrap();
        let found: BTreeMap<_, _> =
            lanes.iter().map(|state| (state.lane.number, (state.entries, state.oldest_sequence))).collect();
        let expected: BTreeMap<_, _> = self
            .held
            .iter()
            .filter_map(|(number, held)| Some((*number, (held.len() as u64, *held.first()?))))
            .collect();
        assert_eq!(found, expected, "seed {seed}");
        let bytes: u64 = self
            .held
            .iter()
            .flat_map(|(number, held)| held.iter().map(|at| entry(&lane("t", *number), *at)))
            .map(|entry| entry.lane.size(&entry.payload))
            .sum();
        assert_eq!(spool.totals().bytes, bytes, "seed {seed}");
    }
}

/// Opens the spool again after it was dropped, once its writer has ended.
async fn open_once_unlocked(options: impl Fn() -> SpoolOptions) -> Spool {
    let mut spool = None;
    eventually("the directory is unlocked", async || {
        spool = Spool::open(options()).ok().map(|opened| opened.spool);
        spool.is_some()
    })
    .await;
    spool.unwrap()
}

async fn run(seed: u64, with_failures: bool) {
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let home = tempfile::tempdir().unwrap();
    let faults = Faulty::default();
    let options = |home: &Path| SpoolOptions { storage: Arc::new(faults.clone()), ..options(home) };
    let mut spool = Spool::open(options(home.path())).unwrap().spool;
    let mut next = 1;
    for _ in 0..STEPS {
        let number = random.below(LANES.into()) as u8;
        let lane = lane("t", number);
        match random.below(100) {
            0..50 => {
                let sequence = next + random.below(3);
                next += 3;
                if with_failures && random.below(20) == 0 {
                    faults.fail_commits(&[[Fault::Sync, Fault::Write][random.below(2) as usize]]);
                }
                match within(spool.append(entry(&lane, sequence))).await {
                    Ok(()) => model.held.entry(number).or_default().insert(sequence),
                    Err(_) => model.doubtful.entry(number).or_default().insert(sequence),
                };
            }
            50..80 => {
                let held = model.held.entry(number).or_default();
                let Some(sequence) =
                    held.iter().nth(random.below(held.len().max(1) as u64) as usize).copied()
                else {
                    continue;
                };
                held.remove(&sequence);
                spool.remove(&lane, sequence);
                let left = sequences(&spool, &lane).await;
                assert!(!left.contains(&sequence), "seed {seed}: {sequence} is read after its removal");
                model.doubtful.entry(number).or_default().insert(sequence);
            }
            80..94 => model.check(&spool, seed).await,
            94..97 => {
                close(spool).await;
                spool = Spool::open(options(home.path())).unwrap().spool;
                model.check(&spool, seed).await;
                model.settle(&spool).await;
                model.check_counts(&spool, seed).await;
            }
            _ => {
                // Dropped with appends in flight.
                for _ in 0..random.below(10) {
                    next += 1;
                    drop(spool.append(entry(&lane, next)));
                    model.doubtful.entry(number).or_default().insert(next);
                }
                drop(spool);
                spool = open_once_unlocked(|| options(home.path())).await;
                model.check(&spool, seed).await;
                model.settle(&spool).await;
                model.check_counts(&spool, seed).await;
            }
        }
    }
    faults.fail_commits(&[]);
    close(spool).await;
}

#[tokio::test]
async fn the_spool_holds_what_was_acknowledged_and_not_removed() {
    for seed in crate::cycles::seeds("MODEL", 3) {
        run((seed + 1).wrapping_mul(7_919), false).await;
    }
}

#[tokio::test]
async fn the_same_holds_when_databases_fail() {
    for seed in crate::cycles::seeds("MODEL", 3) {
        run((seed + 1).wrapping_mul(104_729), true).await;
    }
}
