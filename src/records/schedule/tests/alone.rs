//! What cannot be read: whether that is everything, or a record alone.

use super::*;

#[test]
fn what_concerns_everything_holds_everything_back_and_gives_nothing_up() {
    let mut life = Life::new();
    for number in 0..5 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let (begun, end) = (life.now, life.now + 3_600 * SECOND);

    let reads = life.until(end, |now| {
        if now < begun + 3_000 * SECOND {
            Err(error(503, api::Cause::Server { again: None }))
        } else {
            Ok(json("r", 1))
        }
    });

    assert!(reads < 4_000, "{reads}");
    // Each was answered with another record in the end: no reason to give up, and none to wait for ever.
    assert_eq!((life.letters.len(), life.parked.len(), life.offset), (0, 5, 5));
}

#[test]
fn what_needs_a_person_stops_the_shard_and_loses_nothing() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    let ask = life.ask().unwrap();

    let stopped = life.read(&ask.subject, Err(error(401, api::Cause::Key)));

    assert!(stopped.is_err() && life.scheduler.ready() == 0);
    assert!(life.ask().is_some(), "it is there for whoever goes on");
}

#[test]
fn a_record_that_alone_fails_as_if_all_did_holds_up_no_other_and_is_given_up_at_the_horizon() {
    let mut life = Life::new();
    life.take(1, wanted(subject("bad"), 1, false), "bad");
    for number in 0..3 {
        life.take(number + 2, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let end = life.now + 30 * SECOND;
    let (mut reads, mut next) = (0, 4);
    while life.now < end {
        while let Some(ask) = life.ask() {
            reads += 1;
            let id = ask.subject.id.as_str().to_owned();
            let is_bad = id == "bad";
            let answer =
                if is_bad { Err(error(504, api::Cause::Server { again: None })) } else { Ok(json(&id, 1)) };
            life.read(&ask.subject, answer).unwrap();
        }
        while life.scheduler.ready() > 0 {
            life.commit();
        }
        // Others go on being answered.
        life.now += SECOND;
        next += 1;
        life.take(next, wanted(subject(&format!("n{next}")), 1, false), "e");
    }

    assert_eq!(life.parked.len(), 1, "{:?}", life.parked);
    assert!(reads < 60 && life.published.len() >= 30, "{reads}, {}", life.published.len());
    assert!(life.offset >= 30);
}

#[test]
fn a_record_that_fails_alone_in_its_shard_is_parked_and_given_up_once_others_are_answered_elsewhere() {
    let mut life = Life::new();
    life.take(1, wanted(subject("bad"), 1, false), "bad");
    let away = |_: i64| Err(error(504, api::Cause::Server { again: None }));

    // It may be the provider that is away, for as long as nobody is answered.
    life.until(life.now + 3_600 * SECOND, away);
    assert_eq!((life.offset, life.parked.len(), life.letters.len()), (0, 0, 0));

    let (alone, mut at) = (life.now, life.now);
    while life.letters.is_empty() {
        assert!(at < alone + 2 * rules().horizon, "it is tried for ever");
        at += 300 * SECOND;
        life.elsewhere += 1;
        life.until(at, away);
        life.now = life.now.max(at);
        assert_eq!(life.offset, 1, "it holds back its offset");
    }

    assert!(at >= alone + rules().horizon, "it was given up too early");
    assert_eq!(life.letters, [("bad".to_owned(), "enrich::Unreadable")]);
    assert_eq!((life.gaps.len(), life.parked.len(), life.scheduler.counts()), (1, 0, (0, 0)));
}

#[test]
fn a_record_that_fails_alone_is_given_up_though_its_shard_moves_more_often_than_that() {
    let mut life = Life::new();
    life.take(1, wanted(subject("bad"), 1, false), "bad");
    let (begun, mut at) = (life.now, life.now);
    while life.letters.is_empty() {
        assert!(at < begun + 2 * rules().horizon, "it is tried for ever");
        for _ in 0..12 {
            at += 300 * SECOND;
            life.elsewhere += 1;
            life.until(at, |_| Err(error(504, api::Cause::Server { again: None })));
            life.now = life.now.max(at);
        }
        life.crash();
    }

    assert!(at >= begun + rules().horizon, "it was given up too early");
    assert_eq!(life.letters, [("bad".to_owned(), "enrich::Unreadable")]);
}

#[test]
fn how_long_the_provider_was_away_is_not_held_against_a_record_that_fails_once_more_afterwards() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    let away = |_: i64| Err(error(503, api::Cause::Server { again: None }));
    let back = life.now + 2 * rules().horizon;
    // One that was sent before it went away is answered late.
    life.until(life.now + SECOND, away);
    life.elsewhere += 1;
    while life.now < back {
        let at = life.now + 3_600 * SECOND;
        life.until(at, away);
        life.now = at;
    }

    // Others are answered already.
    life.elsewhere += 1;
    life.until(life.now + 20 * SECOND, away);
    assert_eq!((life.letters.len(), life.parked.len(), life.offset), (0, 1, 1));

    life.until(life.now + 120 * SECOND, |_| Ok(json("r", 1)));
    assert_eq!(life.published, [(subject("r"), stamp(0, 1, Rank::ById, false))]);
    assert!(life.letters.is_empty() && life.parked.is_empty());
}

#[test]
fn a_record_whose_read_only_came_too_early_is_never_taken_to_fail_alone() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    let early = || api::Cause::Waited { what: ApiWait::Budget, left: None };

    for _ in 0..30 {
        let at = life.now + 60 * SECOND;
        life.elsewhere += 1;
        life.until(at, |_| Err(api::Error { status: None, ..error(429, early()) }));
        life.now = at;
    }

    assert_eq!((life.parked.len(), life.letters.len(), life.scheduler.counts()), (0, 0, (1, 0)));
}
