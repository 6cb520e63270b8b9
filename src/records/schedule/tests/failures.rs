//! Failing reads: outages, and records that fail alone.

use super::*;

#[test]
fn outage_pauses_all_reads_and_gives_up_nothing() {
    let mut shard = TestShard::new();
    for number in 0..5 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let (started, end) = (shard.now, shard.now + 3_600 * SECOND);

    let reads = shard.until(end, |now| {
        if now < started + 3_000 * SECOND {
            Err(error(503, api::Cause::Server { again: None }))
        } else {
            Ok(json("r", 1))
        }
    });

    assert!(reads < 4_000, "{reads}");
    // In the end each read returned a different record: parked, neither given up nor held forever.
    assert_eq!((shard.letters.len(), shard.parked.len(), shard.offset), (0, 5, 5));
}

#[test]
fn blocked_shard_loses_nothing() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 1, false), "e");
    let ask = shard.ask().unwrap();

    let stopped = shard.read(&ask.subject, Err(error(401, api::Cause::Key)));

    assert!(stopped.is_err() && shard.scheduler.ready() == 0);
    assert!(shard.ask().is_some(), "the read is still due");
}

#[test]
fn lone_failing_record_is_parked_and_delays_no_other() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("bad"), 1, false), "bad");
    for number in 0..3 {
        shard.take(number + 2, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let end = shard.now + 30 * SECOND;
    let (mut reads, mut next) = (0, 4);
    while shard.now < end {
        while let Some(ask) = shard.ask() {
            reads += 1;
            let id = ask.subject.id.as_str().to_owned();
            let is_bad = id == "bad";
            let answer =
                if is_bad { Err(error(504, api::Cause::Server { again: None })) } else { Ok(json(&id, 1)) };
            shard.read(&ask.subject, answer).unwrap();
        }
        while shard.scheduler.ready() > 0 {
            shard.commit();
        }
        // Reads of other records still succeed.
        shard.now += SECOND;
        next += 1;
        shard.take(next, wanted(subject(&format!("n{next}")), 1, false), "e");
    }

    assert_eq!(shard.parked.len(), 1, "{:?}", shard.parked);
    assert!(reads < 60 && shard.published.len() >= 30, "{reads}, {}", shard.published.len());
    assert!(shard.offset >= 30);
}

#[test]
fn record_is_given_up_while_only_other_shards_get_answers() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("bad"), 1, false), "bad");
    let away = |_: i64| Err(error(504, api::Cause::Server { again: None }));

    // While no read is answered, the provider may be down.
    shard.until(shard.now + 3_600 * SECOND, away);
    assert_eq!((shard.offset, shard.parked.len(), shard.letters.len()), (0, 0, 0));

    let (alone, mut at) = (shard.now, shard.now);
    while shard.letters.is_empty() {
        assert!(at < alone + 2 * rules().horizon, "it is retried forever");
        at += 300 * SECOND;
        shard.elsewhere += 1;
        shard.until(at, away);
        shard.now = shard.now.max(at);
        assert_eq!(shard.offset, 1, "it holds back its offset");
    }

    assert!(at >= alone + rules().horizon, "it was given up too early");
    assert_eq!(shard.letters, [("bad".to_owned(), "enrich::Unreadable")]);
    assert_eq!((shard.gaps.len(), shard.parked.len(), shard.scheduler.counts()), (1, 0, (0, 0)));
}

#[test]
fn shard_moves_do_not_restart_the_horizon() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("bad"), 1, false), "bad");
    let (started, mut at) = (shard.now, shard.now);
    while shard.letters.is_empty() {
        assert!(at < started + 2 * rules().horizon, "it is retried forever");
        for _ in 0..12 {
            at += 300 * SECOND;
            shard.elsewhere += 1;
            shard.until(at, |_| Err(error(504, api::Cause::Server { again: None })));
            shard.now = shard.now.max(at);
        }
        shard.crash();
    }

    assert!(at >= started + rules().horizon, "it was given up too early");
    assert_eq!(shard.letters, [("bad".to_owned(), "enrich::Unreadable")]);
}

#[test]
fn outage_does_not_count_toward_the_horizon_of_a_record() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 1, false), "e");
    let away = |_: i64| Err(error(503, api::Cause::Server { again: None }));
    let back = shard.now + 2 * rules().horizon;
    // A request sent before the outage is answered late.
    shard.until(shard.now + SECOND, away);
    shard.elsewhere += 1;
    while shard.now < back {
        let at = shard.now + 3_600 * SECOND;
        shard.until(at, away);
        shard.now = at;
    }

    // Other reads succeed again.
    shard.elsewhere += 1;
    shard.until(shard.now + 20 * SECOND, away);
    assert_eq!((shard.letters.len(), shard.parked.len(), shard.offset), (0, 1, 1));

    shard.until(shard.now + 120 * SECOND, |_| Ok(json("r", 1)));
    assert_eq!(shard.published, [(subject("r"), stamp(0, 1, Rank::ById, false))]);
    assert!(shard.letters.is_empty() && shard.parked.is_empty());
}

#[test]
fn early_reads_never_count_as_failing_alone() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 1, false), "e");
    let early = || api::Cause::Waited { what: ApiWait::Budget, left: None };

    for _ in 0..30 {
        let at = shard.now + 60 * SECOND;
        shard.elsewhere += 1;
        shard.until(at, |_| Err(api::Error { status: None, ..error(429, early()) }));
        shard.now = at;
    }

    assert_eq!((shard.parked.len(), shard.letters.len(), shard.scheduler.counts()), (0, 0, (1, 0)));
}
