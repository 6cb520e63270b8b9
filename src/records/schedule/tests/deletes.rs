//! Confirming deletes.

use super::*;

#[test]
fn tombstone_needs_two_spaced_answers_and_a_working_path() {
    for (knows_path, resource, tombstones) in
        [(true, RESOURCE, 1), (false, RESOURCE, 0), (true, AccountingResource::Customers, 0)]
    {
        let mut shard = TestShard::new();
        shard.fences.insert(subject_of(resource, "r"), stamp(0, 4, Rank::ById, false));
        if knows_path {
            shard.paths.insert(resource);
            shard.crash();
        }
        shard.take(1, wanted(subject_of(resource, "r"), 5, true), "e");
        let (started, end) = (shard.now, shard.now + 2 * rules().tombstone_confirm);

        shard.until(end, |_| Err(gone()));

        let found: Vec<&Stamp> = shard.published.iter().map(|(_, stamp)| stamp).collect();
        assert_eq!(found.len(), tombstones, "{resource:?} {knows_path}");
        if tombstones > 0 {
            assert_eq!(found, [&stamp(0, 5, Rank::ById, true)]);
            assert!(shard.now >= started + rules().tombstone_confirm);
        } else {
            assert_eq!(shard.parked.len(), 1);
        }
    }
}

#[test]
fn path_that_returns_another_record_confirms_no_delete() {
    let mut shard = TestShard::new();
    shard.fences.insert(subject("r"), stamp(0, 4, Rank::ById, false));
    shard.take(1, wanted(subject("r"), 5, true), "e");
    let (started, end) = (shard.now, shard.now + 3 * rules().tombstone_confirm);

    shard.until(end, |now| if now < started + SECOND { Ok(json("other", 6)) } else { Err(gone()) });

    assert!(shard.published.is_empty(), "{:?}", shard.published);
    assert_eq!(shard.parked.len(), 1);
}

#[test]
fn record_that_reappears_before_confirmation_is_kept() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    shard.take(1, wanted(subject("r"), 5, true), "e");
    let (started, end) = (shard.now, shard.now + 2 * rules().tombstone_confirm);

    shard.until(end, |now| if now < started + SECOND { Err(gone()) } else { Ok(json("r", 6)) });

    assert_eq!(shard.published, [(subject("r"), stamp(0, 6, Rank::ById, false))]);
}

#[test]
fn lagging_replica_does_not_settle_a_delete_at_same_version() {
    for (answers, is_deleted) in [(30 * SECOND, true), (i64::MAX, false)] {
        let mut shard = TestShard::new();
        shard.fences.insert(subject("r"), stamp(0, 5, Rank::ById, false));
        shard.paths.insert(RESOURCE);
        shard.crash();
        shard.take(1, wanted(subject("r"), 5, true), "e");
        let (started, end) = (shard.now, shard.now + 3 * rules().tombstone_confirm);

        shard.until(end, |now| if now - started < answers { Ok(json("r", 5)) } else { Err(gone()) });

        let found: Vec<&Stamp> = shard.published.iter().map(|(_, stamp)| stamp).collect();
        let expected = stamp(0, 5, Rank::ById, true);
        assert_eq!(found, if is_deleted { vec![&expected] } else { vec![] });
        assert!(shard.parked.is_empty() && shard.letters.is_empty(), "{:?}", shard.parked);
        assert_eq!(shard.offset, 1);
    }
}

#[test]
fn only_an_api_404_after_a_delete_event_deletes() {
    let by_gateway = || error(404, api::Cause::NotFound { by: AnsweredBy::Gateway });
    let unclear = || error(404, api::Cause::NotFound { by: AnsweredBy::Unknown });
    let answers: [(bool, fn() -> api::Error); 2] = [(true, by_gateway), (true, unclear)];
    for (is_delete, answer) in answers.into_iter().chain([(false, gone as fn() -> api::Error)]) {
        let mut shard = TestShard::new();
        shard.paths.insert(RESOURCE);
        shard.crash();
        shard.take(1, wanted(subject("r"), 5, is_delete), "e");
        let end = shard.now + 2 * rules().horizon;

        shard.until(end, |_| Err(answer()));

        assert!(shard.published.is_empty(), "{:?}", shard.published);
        assert_eq!((shard.letters.len(), shard.gaps.len()), (1, 1));
    }
}

#[test]
fn too_many_deletes_in_a_day_wait_for_an_operator() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    for number in 0..60 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    let end = shard.now + 3 * rules().tombstone_confirm;

    shard.until(end, |_| Err(gone()));

    assert_eq!((shard.published.len(), shard.parked.len()), (50, 10));
    assert!(shard.parked.values().all(|parked| parked.cause == ParkCause::Braked));
    assert_eq!(shard.offset, 60);
}

#[test]
fn deletes_up_to_the_daily_limit_do_not_brake_later_days() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    for number in 0..50 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    shard.until(shard.now + 3 * rules().tombstone_confirm, |_| Err(gone()));
    assert_eq!((shard.published.len(), shard.parked.len()), (50, 0));

    shard.now += 2 * 86_400 * SECOND;
    shard.take(51, wanted(subject("later"), 5, true), "e");
    shard.until(shard.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

    assert_eq!((shard.published.len(), shard.parked.len()), (51, 0));
}

#[test]
fn braked_deletes_stay_braked_on_the_next_day() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    for number in 0..51 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    shard.until(shard.now + 3 * rules().tombstone_confirm, |_| Err(gone()));
    shard.until(shard.now + 2 * 86_400 * SECOND, |_| Err(gone()));

    assert_eq!((shard.published.len(), shard.parked.len()), (50, 1));
}

#[test]
fn change_after_a_delete_is_awaited_and_prevents_a_tombstone() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    shard.take(1, wanted(subject("r"), 6, false), "again there");
    shard.take(2, wanted(subject("r"), 5, true), "deleted");
    let (started, end) = (shard.now, shard.now + 5 * rules().tombstone_confirm);

    // A replica lags longer than the confirmation takes.
    shard.until(end, |now| {
        if now < started + 3 * rules().tombstone_confirm { Err(gone()) } else { Ok(json("r", 6)) }
    });

    assert_eq!(shard.published, [(subject("r"), stamp(0, 6, Rank::ById, false))]);
}

#[test]
fn unversioned_delete_during_a_read_needs_its_own_read() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 5, false), "changed");
    let ask = shard.ask().unwrap();
    shard.take(2, unversioned(subject("r"), true), "deleted");
    shard.read(&ask.subject, Ok(json("r", 5))).unwrap();
    while shard.scheduler.ready() > 0 {
        shard.commit();
    }
    assert_eq!((shard.offset, shard.published.len()), (1, 1));

    shard.until(shard.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

    assert_eq!(shard.published.last(), Some(&(subject("r"), stamp(0, 5, Rank::ById, true))));
    assert_eq!((shard.offset, shard.parked.len()), (2, 0));
}

#[test]
fn lagging_replica_does_not_settle_a_delete_of_a_parked_record() {
    for deleted in [wanted(subject("r"), 5, true), unversioned(subject("r"), true)] {
        let mut shard = TestShard::new();
        shard.take(1, wanted(subject("r"), 5, false), "changed");
        shard.until(shard.now + 3_600 * SECOND, |_| Err(error(400, api::Cause::Refused)));
        assert_eq!((shard.offset, shard.parked.len()), (1, 1));

        shard.take(2, deleted, "deleted");
        shard.until(shard.now + 60 * SECOND, |_| Ok(json("r", 5)));
        assert_eq!(shard.published, [(subject("r"), stamp(0, 5, Rank::ById, false))]);
        shard.until(shard.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

        assert_eq!(shard.published.last(), Some(&(subject("r"), stamp(0, 5, Rank::ById, true))));
        assert!(shard.parked.is_empty() && shard.letters.is_empty(), "{:?}", shard.parked);
        assert_eq!(shard.offset, 2);
    }
}

#[test]
fn second_delete_of_a_restored_record_is_a_new_delete() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    shard.take(1, wanted(subject("r"), 3, true), "deleted");
    shard.take(2, wanted(subject("r"), 5, false), "there again");
    shard.until(shard.now + 3_600 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert_eq!(shard.parked[&subject("r")].floor, Some(version(5)));

    shard.take(3, wanted(subject("r"), 5, true), "deleted again");
    shard.until(shard.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

    assert_eq!(shard.published, [(subject("r"), stamp(0, 5, Rank::ById, true))]);
    assert_eq!((shard.offset, shard.parked.len()), (3, 0));
}
