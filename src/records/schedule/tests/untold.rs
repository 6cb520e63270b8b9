//! Records that do not tell their version, or their id.

use model::Value;

use super::*;

/// A record without `sequenceVersion`.
fn untold_json(id: &str, content: &str) -> Bytes {
    format!(r#"{{"correlationId":"{id}","name":"{content}"}}"#).into()
}

fn untold(told: Option<u64>, content: &str) -> Stamp {
    let value = Value::from_resource_json(&untold_json("r", content), LANE, &subject("r").company).unwrap();
    Stamp { version: value.version_or(told.map(version).as_ref()), ..stamp(0, 0, Rank::ById, false) }
}

/// The stamps that were published after what is stored, and how often it was read.
fn published(
    stored: Option<Stamp>,
    asked: ReadRequest,
    answer: impl Fn(i64) -> Bytes,
) -> (Vec<Stamp>, u32, Life) {
    let mut life = Life::new();
    life.fences.extend(stored.map(|stored| (subject("r"), stored)));
    life.take(1, asked, "e");
    let begun = life.now;
    let reads = life.until(begun + 60 * SECOND, |now| Ok(answer(now - begun)));
    let stamps = life.published.iter().map(|(_, stamp)| stamp.clone()).collect();
    (stamps, reads, life)
}

#[test]
fn a_record_without_version_has_that_of_its_event() {
    for body in [
        r#"{"name":"a"}"#,
        r#"{"correlationId":"r","name":"a"}"#,
        r#"{"correlationId":"","sequenceVersion":"","name":"a"}"#,
        r#"{"correlationId":null,"sequenceVersion":null,"name":"a"}"#,
        r#"{"correlationId":"r","sequenceVersion":"v5","name":"a"}"#,
    ] {
        let (stamps, reads, life) =
            published(None, wanted(subject("r"), 5, false), |_| Bytes::from_static(body.as_bytes()));

        assert_eq!(
            stamps.iter().map(|one| one.version.number().cloned()).collect::<Vec<_>>(),
            [Some(version(5))]
        );
        // At once, and once more in case that a replica was behind.
        assert_eq!((reads, life.offset, &life.outcomes[..]), (2, 1, &[Outcome::Published][..]), "{body}");
        assert!(life.letters.is_empty() && life.parked.is_empty(), "{body}");
    }
}

#[test]
fn a_record_with_another_id_is_not_published() {
    let (stamps, _, life) = published(None, wanted(subject("r"), 5, false), |_| untold_json("another", "a"));

    assert!(stamps.is_empty());
    assert_eq!(life.parked.len(), 1);
}

#[test]
fn a_replica_that_is_behind_is_corrected_by_the_second_read() {
    let stale_first = |since: i64| untold_json("r", if since < 4 * SECOND { "old" } else { "new" });
    for (stored, expected) in [
        // It shows what was published before: nothing is written until it is read once more.
        (Some(untold(Some(4), "old")), vec![untold(Some(5), "new")]),
        // It shows something else, which nothing tells from what is new.
        (Some(untold(Some(4), "middle")), vec![untold(Some(5), "old"), untold(Some(5), "new")]),
        (None, vec![untold(Some(5), "old"), untold(Some(5), "new")]),
    ] {
        let (stamps, reads, life) = published(stored, wanted(subject("r"), 5, false), stale_first);

        assert_eq!((stamps, reads, life.offset), (expected, 2, 1));
    }
}

#[test]
fn an_answer_that_comes_late_is_no_second_read() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), untold(Some(4), "old"));
    life.take(1, wanted(subject("r"), 5, false), "e");
    let ask = life.ask().unwrap();
    // It was cut by a replica that was behind, and arrives after the wait.
    life.now += 2 * rules().retry_longest;
    life.read(&ask.subject, Ok(untold_json("r", "old"))).unwrap();

    life.until(life.now + 60 * SECOND, |_| Ok(untold_json("r", "new")));

    let stamps: Vec<_> = life.published.iter().map(|(_, stamp)| stamp.clone()).collect();
    assert_eq!((stamps, life.offset), (vec![untold(Some(5), "new")], 1));
}

#[test]
fn an_event_from_before_brings_what_is_there_now_at_the_version_that_was_published() {
    let (stamps, _, life) =
        published(Some(untold(Some(6), "a")), wanted(subject("r"), 5, false), |_| untold_json("r", "b"));

    // The provider did not go back: there is no new epoch.
    assert_eq!((stamps, life.offset), (vec![untold(Some(6), "b")], 1));
    assert!(life.parked.is_empty());
}

#[test]
fn a_record_that_looks_the_same_moves_to_the_version_of_its_event() {
    let (stamps, reads, _) =
        published(Some(untold(Some(4), "a")), wanted(subject("r"), 5, false), |_| untold_json("r", "a"));

    assert_eq!((stamps, reads), (vec![untold(Some(5), "a")], 2));
}

#[test]
fn content_decides_for_an_event_without_version() {
    for (stored, expected) in [
        (None, vec![untold(None, "a")]),
        (Some(untold(None, "a")), vec![]),
        (Some(untold(None, "b")), vec![untold(None, "a")]),
        (Some(untold(Some(7), "a")), vec![]),
        (Some(untold(Some(7), "b")), vec![untold(Some(7), "a")]),
        // What tells its own version is not replaced by what may be older.
        (Some(stamp(0, 7, Rank::ById, false)), vec![]),
    ] {
        let (stamps, _, life) =
            published(stored.clone(), unversioned(subject("r"), false), |_| untold_json("r", "a"));

        assert_eq!((stamps, life.offset), (expected, 1), "{stored:?}");
        assert!(life.letters.is_empty() && life.parked.is_empty());
    }
}

#[test]
fn an_older_event_replaces_nothing() {
    for stored in [untold(Some(7), "a"), stamp(0, 7, Rank::ById, false)] {
        let (stamps, _, life) =
            published(Some(stored.clone()), wanted(subject("r"), 6, false), |_| untold_json("r", "a"));

        assert_eq!((stamps, life.offset), (vec![], 1), "{stored:?}");
        assert!(life.parked.is_empty(), "{stored:?}");
    }
}

#[test]
fn a_record_that_tells_its_version_again_replaces_one_that_did_not() {
    for (number, publishes) in [(6, false), (7, true), (8, true)] {
        let asked = wanted(subject("r"), number, false);
        let (stamps, _, _) = published(Some(untold(Some(7), "a")), asked, |_| json("r", number));

        let expected = if publishes { vec![stamp(0, number, Rank::ById, false)] } else { vec![] };
        assert_eq!(stamps, expected, "{number}");
    }
}

#[test]
fn a_deleted_record_that_a_replica_still_shows_stays_as_it_is() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.fences.insert(subject("r"), untold(Some(4), "a"));
    life.crash();
    life.take(1, wanted(subject("r"), 5, true), "deleted");
    let begun = life.now;

    life.until(begun + 3 * rules().tombstone_confirm, |now| {
        if now < begun + 60 * SECOND { Ok(untold_json("r", "b")) } else { Err(gone()) }
    });

    assert_eq!(life.published, [(subject("r"), stamp(0, 5, Rank::ById, true))]);
    assert!(life.parked.is_empty() && life.letters.is_empty());
}
