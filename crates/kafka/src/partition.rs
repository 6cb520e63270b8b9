//! The partition of a key, computed as the Java client does.
//!
//! All records of a company are in one partition of every keyed topic, and consumers in any language must find them there.
//! So the hash is Kafka's: murmur2 with the Java client's seed, made positive by clearing the sign bit (not by `abs`, which
//! would move about half of all keys), modulo the partition count.

/// The partition of `key` among `partitions`. A count below 1 counts as 1: a topic has at least one partition.
#[must_use]
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    // Clearing the sign bit leaves 31 bits, so the cast cannot change the number.
    (murmur2(key) & 0x7fff_ffff) as i32 % partitions.max(1)
}

/// Austin Appleby's murmur2, 32 bits, as `org.apache.kafka.common.utils.Utils.murmur2` writes it.
#[must_use]
pub fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const MULTIPLIER: u32 = 0x5bd1_e995;

    let (words, tail) = data.as_chunks::<4>();
    // Java's lengths are 32 bits; a longer key cannot exist in Kafka.
    let mut hash = words.iter().fold(SEED ^ data.len() as u32, |hash, word| {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        mixed ^= mixed >> 24;
        hash.wrapping_mul(MULTIPLIER) ^ mixed.wrapping_mul(MULTIPLIER)
    });
    if !tail.is_empty() {
        let rest = tail.iter().rev().fold(0, |rest, byte| rest << 8 | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_the_java_clients_tests() {
        let vectors = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];

        for (key, hash) in vectors {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn negative_hash_loses_its_sign_bit_as_in_java() {
        // -973932308 & 0x7fffffff is 1173551340; abs would give 973932308, and partition 8 instead of 0.
        assert_eq!(partition_of(b"21", 12), 0);
        assert_eq!(partition_of(b"21", 12), 1_173_551_340 % 12);
        assert_ne!(partition_of(b"21", 12), 973_932_308 % 12);
    }

    #[test]
    fn librdkafkas_murmur2_partitioner_agrees() {
        let names = (0..500).map(|n| format!("company-{n}/{}", n * 7919).into_bytes());
        let short = (0..9).map(|length| vec![0xff; length]);

        for key in names.chain(short) {
            let partition = partition_of(&key, 12);
            assert!((0..12).contains(&partition), "{key:?}");
            assert_eq!(partition, crate::sys::murmur2_partition(&key, 12), "{key:?}");
        }
    }
}
