//! Records without a version or an id.

use model::Value;

use super::*;

/// A record without `sequenceVersion`.
fn unversioned_json(id: &str, content: &str) -> Bytes {
    format!(r#"{{"correlationId":"{id}","name":"{content}"}}"#).into()
}

fn unversioned_stamp(number: Option<u64>, content: &str) -> Stamp {
    let value =
        Value::from_resource_json(&unversioned_json("r", content), RESOURCE, &subject("r").company).unwrap();
    Stamp { version: value.version_or(number.map(version).as_ref()), ..stamp(0, 0, Rank::ById, false) }
}

/// Published stamps and number of reads after one event, starting from a fence entry.
fn published(
    stored: Option<Stamp>,
    asked: ReadRequest,
    answer: impl Fn(i64) -> Bytes,
) -> (Vec<Stamp>, u32, TestShard) {
    let mut shard = TestShard::new();
    shard.fences.extend(stored.map(|stored| (subject("r"), stored)));
    shard.take(1, asked, "e");
    let started = shard.now;
    let reads = shard.until(started + 60 * SECOND, |now| Ok(answer(now - started)));
    let stamps = shard.published.iter().map(|(_, stamp)| stamp.clone()).collect();
    (stamps, reads, shard)
}

#[test]
fn record_without_version_takes_that_of_its_event() {
    for body in [
        r#"{"name":"a"}"#,
        r#"{"correlationId":"r","name":"a"}"#,
        r#"{"correlationId":"","sequenceVersion":"","name":"a"}"#,
        r#"{"correlationId":null,"sequenceVersion":null,"name":"a"}"#,
        r#"{"correlationId":"r","sequenceVersion":"v5","name":"a"}"#,
    ] {
        let (stamps, reads, shard) =
            published(None, wanted(subject("r"), 5, false), |_| Bytes::from_static(body.as_bytes()));

        assert_eq!(
            stamps.iter().map(|one| one.version.number().cloned()).collect::<Vec<_>>(),
            [Some(version(5))]
        );
        // Once at once, and once more because a replica may lag.
        assert_eq!((reads, shard.offset, &shard.outcomes[..]), (2, 1, &[Outcome::Published][..]), "{body}");
        assert!(shard.letters.is_empty() && shard.parked.is_empty(), "{body}");
    }
}

#[test]
fn record_with_another_id_is_not_published() {
    let (stamps, _, shard) =
        published(None, wanted(subject("r"), 5, false), |_| unversioned_json("another", "a"));

    assert!(stamps.is_empty());
    assert_eq!(shard.parked.len(), 1);
}

#[test]
fn second_read_corrects_a_lagging_replica() {
    let stale_first = |since: i64| unversioned_json("r", if since < 4 * SECOND { "old" } else { "new" });
    for (stored, expected) in [
        // The old content is published already: nothing is written before the second read.
        (Some(unversioned_stamp(Some(4), "old")), vec![unversioned_stamp(Some(5), "new")]),
        // Different content cannot be distinguished from new content.
        (
            Some(unversioned_stamp(Some(4), "middle")),
            vec![unversioned_stamp(Some(5), "old"), unversioned_stamp(Some(5), "new")],
        ),
        (None, vec![unversioned_stamp(Some(5), "old"), unversioned_stamp(Some(5), "new")]),
    ] {
        let (stamps, reads, shard) = published(stored, wanted(subject("r"), 5, false), stale_first);

        assert_eq!((stamps, reads, shard.offset), (expected, 2, 1));
    }
}

#[test]
fn late_answer_does_not_count_as_the_second_read() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), unversioned_stamp(Some(4), "old"));
    shard.take(1, wanted(subject("r"), 5, false), "e");
    let ask = shard.ask().unwrap();
    // The answer of a lagging replica arrives after the delay.
    shard.now += 2 * rules().retry_longest;
    shard.read(&ask.subject, Ok(unversioned_json("r", "old"))).unwrap();

    shard.until(shard.now + 60 * SECOND, |_| Ok(unversioned_json("r", "new")));

    let stamps: Vec<_> = shard.published.iter().map(|(_, stamp)| stamp.clone()).collect();
    assert_eq!((stamps, shard.offset), (vec![unversioned_stamp(Some(5), "new")], 1));
}

#[test]
fn stale_event_publishes_new_content_at_the_stored_version() {
    let (stamps, _, shard) =
        published(Some(unversioned_stamp(Some(6), "a")), wanted(subject("r"), 5, false), |_| {
            unversioned_json("r", "b")
        });

    // This is no regression, so the epoch stays.
    assert_eq!((stamps, shard.offset), (vec![unversioned_stamp(Some(6), "b")], 1));
    assert!(shard.parked.is_empty());
}

#[test]
fn unchanged_record_moves_to_the_version_of_its_event() {
    let (stamps, reads, _) =
        published(Some(unversioned_stamp(Some(4), "a")), wanted(subject("r"), 5, false), |_| {
            unversioned_json("r", "a")
        });

    assert_eq!((stamps, reads), (vec![unversioned_stamp(Some(5), "a")], 2));
}

#[test]
fn content_decides_for_an_event_without_version() {
    for (stored, expected) in [
        (None, vec![unversioned_stamp(None, "a")]),
        (Some(unversioned_stamp(None, "a")), vec![]),
        (Some(unversioned_stamp(None, "b")), vec![unversioned_stamp(None, "a")]),
        (Some(unversioned_stamp(Some(7), "a")), vec![]),
        (Some(unversioned_stamp(Some(7), "b")), vec![unversioned_stamp(Some(7), "a")]),
        // A record with a version is not replaced by one that may be older.
        (Some(stamp(0, 7, Rank::ById, false)), vec![]),
    ] {
        let (stamps, _, shard) =
            published(stored.clone(), unversioned(subject("r"), false), |_| unversioned_json("r", "a"));

        assert_eq!((stamps, shard.offset), (expected, 1), "{stored:?}");
        assert!(shard.letters.is_empty() && shard.parked.is_empty());
    }
}

#[test]
fn older_event_replaces_nothing() {
    for stored in [unversioned_stamp(Some(7), "a"), stamp(0, 7, Rank::ById, false)] {
        let (stamps, _, shard) =
            published(Some(stored.clone()), wanted(subject("r"), 6, false), |_| unversioned_json("r", "a"));

        assert_eq!((stamps, shard.offset), (vec![], 1), "{stored:?}");
        assert!(shard.parked.is_empty(), "{stored:?}");
    }
}

#[test]
fn versioned_record_replaces_an_unversioned_one() {
    for (number, publishes) in [(6, false), (7, true), (8, true)] {
        let asked = wanted(subject("r"), number, false);
        let (stamps, _, _) = published(Some(unversioned_stamp(Some(7), "a")), asked, |_| json("r", number));

        let expected = if publishes { vec![stamp(0, number, Rank::ById, false)] } else { vec![] };
        assert_eq!(stamps, expected, "{number}");
    }
}

#[test]
fn deleted_record_on_a_lagging_replica_stays_deleted() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.fences.insert(subject("r"), unversioned_stamp(Some(4), "a"));
    shard.crash();
    shard.take(1, wanted(subject("r"), 5, true), "deleted");
    let started = shard.now;

    shard.until(started + 3 * rules().tombstone_confirm, |now| {
        if now < started + 60 * SECOND { Ok(unversioned_json("r", "b")) } else { Err(gone()) }
    });

    assert_eq!(shard.published, [(subject("r"), stamp(0, 5, Rank::ById, true))]);
    assert!(shard.parked.is_empty() && shard.letters.is_empty());
}
