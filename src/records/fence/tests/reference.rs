//! A fence compared with a model through random batches and crashes.

use std::collections::BTreeMap;

use super::*;
use crate::store::crash_copy;

/// Numbers drawn by xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Writes batches and puts them, with crashes in between. A crash is a copy of the directory of a running worker: nothing was closed.
#[tokio::test]
async fn restored_fence_equals_the_log_after_random_crashes() {
    for seed in crate::cycles::seeds("SHELF", 4) {
        let bench = Bench::new();
        let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9));
        let mut model: BTreeMap<String, Stamp> = BTreeMap::new();
        let mut directory = bench.home.path().join("0");
        let mut fences = Fences::new(directory.clone());
        let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
        bench.write_birth(0, "b").await;
        bench.restore(&mut fence).await;

        for step in 1..=40 {
            let size = random.below(5) + 1;
            let mut batch: Vec<(Key, Stamp)> =
                (0..size).map(|_| (key(random.below(30)), stamp(random.below(1_000)))).collect();
            // A transaction has each key once.
            batch.sort_by(|one, other| one.0.as_str().cmp(other.0.as_str()));
            batch.dedup_by(|one, other| one.0 == other.0);
            let next_offset = bench.write_entries(0, &batch).await;
            model.extend(batch.iter().map(|(key, stamp)| (key.as_str().to_owned(), stamp.clone())));
            match random.below(6) {
                // Put with its offset, or without as after an unknown outcome.
                0..=2 => fence.put(batch, Some(next_offset)).await.unwrap(),
                3 => fence.put(batch, None).await.unwrap(),
                // A crash before, during or after the put.
                kind => {
                    let put = fence.put(if kind == 4 { batch } else { Vec::new() }, None);
                    if random.below(2) == 0 {
                        put.await.unwrap();
                    }
                    let image = bench.home.path().join(step.to_string());
                    crash_copy::copy(&directory, &image);
                    drop(fence);
                    directory = image;
                    fences = Fences::new(directory.clone());
                    fence = fences.shard(&prefix("p"), 0).await.unwrap();
                    bench.restore(&mut fence).await;
                }
            }
        }

        drop(fence);
        let mut fence = fences.shard(&prefix("p"), 0).await.unwrap();
        bench.restore(&mut fence).await;
        for id in 0..30 {
            let key = key(id);
            assert_eq!(fence.get(&key).unwrap(), model.get(key.as_str()).cloned(), "seed {seed}, {key}");
        }
        assert_eq!(fence.entries(), model.len() as u64, "seed {seed}");
    }
}
