//! When a delete is believed.

use super::*;

#[test]
fn a_delete_is_believed_after_two_answers_far_enough_apart_and_only_where_the_path_answers() {
    for (knows_path, resource, tombstones) in
        [(true, LANE, 1), (false, LANE, 0), (true, AccountingResource::Customers, 0)]
    {
        let mut life = Life::new();
        life.fences.insert(subject_of(resource, "r"), stamp(0, 4, Rank::ById, false));
        if knows_path {
            life.paths.insert(resource);
            life.crash();
        }
        life.take(1, wanted(subject_of(resource, "r"), 5, true), "e");
        let (begun, end) = (life.now, life.now + 2 * rules().tombstone_confirm);

        life.until(end, |_| Err(gone()));

        let found: Vec<&Stamp> = life.published.iter().map(|(_, stamp)| stamp).collect();
        assert_eq!(found.len(), tombstones, "{resource:?} {knows_path}");
        if tombstones > 0 {
            assert_eq!(found, [&stamp(0, 5, Rank::ById, true)]);
            assert!(life.now >= begun + rules().tombstone_confirm);
        } else {
            assert_eq!(life.parked.len(), 1);
        }
    }
}

#[test]
fn a_record_that_comes_back_before_the_second_answer_is_not_deleted() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    life.take(1, wanted(subject("r"), 5, true), "e");
    let (begun, end) = (life.now, life.now + 2 * rules().tombstone_confirm);

    life.until(end, |now| if now < begun + SECOND { Err(gone()) } else { Ok(json("r", 6)) });

    assert_eq!(life.published, [(subject("r"), stamp(0, 6, Rank::ById, false))]);
}

#[test]
fn a_delete_that_is_told_at_the_published_version_is_not_settled_by_a_replica_that_has_not_heard_of_it() {
    for (answers, is_deleted) in [(30 * SECOND, true), (i64::MAX, false)] {
        let mut life = Life::new();
        life.fences.insert(subject("r"), stamp(0, 5, Rank::ById, false));
        life.paths.insert(LANE);
        life.crash();
        life.take(1, wanted(subject("r"), 5, true), "e");
        let (begun, end) = (life.now, life.now + 3 * rules().tombstone_confirm);

        life.until(end, |now| if now - begun < answers { Ok(json("r", 5)) } else { Err(gone()) });

        let found: Vec<&Stamp> = life.published.iter().map(|(_, stamp)| stamp).collect();
        let expected = stamp(0, 5, Rank::ById, true);
        assert_eq!(found, if is_deleted { vec![&expected] } else { vec![] });
        assert!(life.parked.is_empty() && life.letters.is_empty(), "{:?}", life.parked);
        assert_eq!(life.offset, 1);
    }
}

#[test]
fn neither_the_gateway_nor_an_event_of_another_kind_deletes_anything() {
    let by_gateway = || error(404, api::Cause::NotFound { by: AnsweredBy::Gateway });
    let unclear = || error(404, api::Cause::NotFound { by: AnsweredBy::Unknown });
    let answers: [(bool, fn() -> api::Error); 2] = [(true, by_gateway), (true, unclear)];
    for (is_delete, answer) in answers.into_iter().chain([(false, gone as fn() -> api::Error)]) {
        let mut life = Life::new();
        life.paths.insert(LANE);
        life.crash();
        life.take(1, wanted(subject("r"), 5, is_delete), "e");
        let end = life.now + 2 * rules().horizon;

        life.until(end, |_| Err(answer()));

        assert!(life.published.is_empty(), "{:?}", life.published);
        assert_eq!((life.letters.len(), life.gaps.len()), (1, 1));
    }
}

#[test]
fn too_many_deletes_in_a_day_wait_for_a_person() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    for number in 0..60 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    let end = life.now + 3 * rules().tombstone_confirm;

    life.until(end, |_| Err(gone()));

    assert_eq!((life.published.len(), life.parked.len()), (50, 10));
    assert!(life.parked.values().all(|parked| parked.cause == Cause::Braked));
    assert_eq!(life.offset, 60);
}

#[test]
fn a_day_with_as_many_deletes_as_may_be_holds_back_none_of_another_day() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    for number in 0..50 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    life.until(life.now + 3 * rules().tombstone_confirm, |_| Err(gone()));
    assert_eq!((life.published.len(), life.parked.len()), (50, 0));

    life.now += 2 * 86_400 * SECOND;
    life.take(51, wanted(subject("later"), 5, true), "e");
    life.until(life.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

    assert_eq!((life.published.len(), life.parked.len()), (51, 0));
}

#[test]
fn deletes_that_were_held_back_stay_so_on_another_day() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    for number in 0..51 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 5, true), "e");
    }
    life.until(life.now + 3 * rules().tombstone_confirm, |_| Err(gone()));
    life.until(life.now + 2 * 86_400 * SECOND, |_| Err(gone()));

    assert_eq!((life.published.len(), life.parked.len()), (50, 1));
}

#[test]
fn what_is_told_after_a_delete_is_waited_for_and_no_delete_stands_for_it() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    life.take(1, wanted(subject("r"), 6, false), "again there");
    life.take(2, wanted(subject("r"), 5, true), "deleted");
    let (begun, end) = (life.now, life.now + 5 * rules().tombstone_confirm);

    // A replica that lags longer than two answers are apart.
    life.until(
        end,
        |now| {
            if now < begun + 3 * rules().tombstone_confirm { Err(gone()) } else { Ok(json("r", 6)) }
        },
    );

    assert_eq!(life.published, [(subject("r"), stamp(0, 6, Rank::ById, false))]);
}

#[test]
fn a_delete_without_a_version_that_comes_while_its_record_is_read_leads_to_a_read_of_its_own() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 5, false), "changed");
    let ask = life.ask().unwrap();
    life.take(2, unversioned(subject("r"), true), "deleted");
    life.read(&ask.subject, Ok(json("r", 5))).unwrap();
    while life.scheduler.ready() > 0 {
        life.commit();
    }
    assert_eq!((life.offset, life.published.len()), (1, 1));

    life.until(life.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

    assert_eq!(life.published.last(), Some(&(subject("r"), stamp(0, 5, Rank::ById, true))));
    assert_eq!((life.offset, life.parked.len()), (2, 0));
}

#[test]
fn a_delete_of_a_record_that_has_waited_for_long_is_not_settled_by_a_replica_that_has_not_heard_of_it() {
    for deleted in [wanted(subject("r"), 5, true), unversioned(subject("r"), true)] {
        let mut life = Life::new();
        life.take(1, wanted(subject("r"), 5, false), "changed");
        life.until(life.now + 3_600 * SECOND, |_| Err(error(400, api::Cause::Refused)));
        assert_eq!((life.offset, life.parked.len()), (1, 1));

        life.take(2, deleted, "deleted");
        life.until(life.now + 60 * SECOND, |_| Ok(json("r", 5)));
        assert_eq!(life.published, [(subject("r"), stamp(0, 5, Rank::ById, false))]);
        life.until(life.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

        assert_eq!(life.published.last(), Some(&(subject("r"), stamp(0, 5, Rank::ById, true))));
        assert!(life.parked.is_empty() && life.letters.is_empty(), "{:?}", life.parked);
        assert_eq!(life.offset, 2);
    }
}

#[test]
fn a_second_delete_of_a_record_that_came_back_is_not_taken_for_the_first() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    life.take(1, wanted(subject("r"), 3, true), "deleted");
    life.take(2, wanted(subject("r"), 5, false), "there again");
    life.until(life.now + 3_600 * SECOND, |_| Err(error(400, api::Cause::Refused)));
    assert_eq!(life.parked[&subject("r")].floor, Some(version(5)));

    life.take(3, wanted(subject("r"), 5, true), "deleted again");
    life.until(life.now + 3 * rules().tombstone_confirm, |_| Err(gone()));

    assert_eq!(life.published, [(subject("r"), stamp(0, 5, Rank::ById, true))]);
    assert_eq!((life.offset, life.parked.len()), (3, 0));
}
