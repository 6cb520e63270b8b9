//! The judge on made-up histories: each kind of fault is found.

use std::time::Duration;

use super::delivery::{Id, Maker};
use super::judge::{Appearance, DeliveryVerdict, judge};
use super::ledger::{Answer, Entry, Ledger};

crate::tests! {
    plain a_history_without_faults_is_sound_and_its_copies_are_counted;
    plain an_acknowledged_delivery_that_is_nowhere_is_lost;
    plain a_delivery_before_an_earlier_acknowledged_one_is_early;
    plain an_early_copy_counts_as_the_first_of_its_delivery;
    plain deliveries_that_overlap_may_appear_in_either_order;
    plain companies_have_no_order_among_each_other;
    plain an_unacknowledged_delivery_may_be_anywhere_or_missing;
    plain a_record_without_a_sender_is_foreign;
    plain a_record_with_another_key_content_or_place_is_found;
    plain an_answer_after_five_seconds_acknowledges_nothing;
    plain an_unanswered_sending_while_the_receiver_listens_is_found;
    plain a_delivery_shows_its_company_number_and_signature;
}

const A: Id = Id(1);
const B: Id = Id(2);
/// Longer than any of these tests has taken so far.
const LATER: Duration = Duration::from_secs(3600);

/// A delivery that was sent and acknowledged at these seconds.
fn entry(id: u128, company: Id, sent: u64, acknowledged: impl Into<Option<u64>>) -> Entry {
    let acknowledged = acknowledged.into().map(Duration::from_secs);
    Entry { id: Id(id), company, sent: Duration::from_secs(sent), acknowledged }
}

/// One sender of one company, all acknowledged: sent at 10, 20 …, acknowledged five seconds later.
fn sequence(count: u64) -> Vec<Entry> {
    (1..=count).map(|number| entry(number.into(), A, number * 10, number * 10 + 5)).collect()
}

fn log(company: Id, ids: &[u128]) -> Vec<Appearance> {
    let record = |(offset, id): (usize, &u128)| Appearance {
        id: Some(Id(*id)),
        key: Some(company),
        partition: 0,
        offset: offset as i64,
        intact: true,
    };
    ids.iter().enumerate().map(record).collect()
}

/// Lost, early, foreign, misplaced, damaged, scattered.
fn faults(verdict: &DeliveryVerdict) -> [u64; 6] {
    let DeliveryVerdict { lost, early, foreign, misplaced, damaged, scattered, .. } = verdict;
    [lost, early, foreign, misplaced, damaged, scattered].map(|faults| faults.count)
}

async fn a_history_without_faults_is_sound_and_its_copies_are_counted() {
    let verdict = judge(&sequence(4), &log(A, &[1, 2, 1, 2, 3, 4, 4]));

    assert!(verdict.is_sound(), "{verdict}");
    assert_eq!((verdict.acknowledged, verdict.records, verdict.copies), (4, 7, 3));
    assert!(verdict.to_string().contains("3 extra copies (428571 per million)"), "{verdict}");
}

async fn an_acknowledged_delivery_that_is_nowhere_is_lost() {
    let verdict = judge(&sequence(4), &log(A, &[1, 2, 4]));

    assert_eq!(faults(&verdict), [1, 0, 0, 0, 0, 0]);
    assert!(!verdict.is_sound());
    assert!(verdict.to_string().contains("\n  lost: Entry { id: Id(3)"), "{verdict}");
}

async fn a_delivery_before_an_earlier_acknowledged_one_is_early() {
    for (ids, early) in [
        (&[1, 3, 2, 4][..], 1),
        (&[4, 1, 2, 3], 1),
        (&[4, 3, 2, 1], 3),
        // Later copies do not change that.
        (&[1, 3, 2, 3, 4], 1),
    ] {
        let verdict = judge(&sequence(4), &log(A, ids));

        assert_eq!(faults(&verdict), [0, early, 0, 0, 0, 0], "{ids:?}: {verdict}");
    }
}

async fn an_early_copy_counts_as_the_first_of_its_delivery() {
    // 3 appears twice, first before 2.
    let verdict = judge(&sequence(3), &log(A, &[1, 3, 2, 3]));

    assert_eq!((verdict.early.count, verdict.copies), (1, 1));
}

async fn deliveries_that_overlap_may_appear_in_either_order() {
    let entries = [entry(1, A, 10, 30), entry(2, A, 20, 25), entry(3, A, 26, 40)];

    for ids in [[1, 2, 3], [2, 1, 3], [2, 3, 1]] {
        assert!(judge(&entries, &log(A, &ids)).is_sound(), "{ids:?}");
    }
    assert_eq!(judge(&entries, &log(A, &[3, 2, 1])).early.count, 1, "3 was sent after 2 was acknowledged");
}

async fn companies_have_no_order_among_each_other() {
    let entries = [entry(1, A, 10, 15), entry(2, B, 20, 25)];
    let found: Vec<_> = log(B, &[2]).into_iter().chain(log(A, &[1])).collect();

    assert!(judge(&entries, &found).is_sound());
}

async fn an_unacknowledged_delivery_may_be_anywhere_or_missing() {
    let entries = [entry(1, A, 10, 15), entry(2, A, 20, None), entry(3, A, 30, 35), entry(4, A, 40, None)];

    let verdict = judge(&entries, &log(A, &[1, 3, 2]));

    assert!(verdict.is_sound(), "{verdict}");
    assert_eq!((verdict.sent, verdict.acknowledged, verdict.unacknowledged), (4, 2, 1));
}

async fn a_record_without_a_sender_is_foreign() {
    let mut found = log(A, &[1, 2, 9]);
    found[1].id = None;

    let verdict = judge(&sequence(1), &found);

    assert_eq!(faults(&verdict), [0, 0, 2, 0, 0, 0]);
}

async fn a_record_with_another_key_content_or_place_is_found() {
    let mut found = log(A, &[1, 2, 3, 4]);
    found[0].key = Some(B);
    found[1].intact = false;
    found[3].partition = 7;

    let verdict = judge(&sequence(4), &found);

    // Misplaced and damaged records count as missing.
    assert_eq!(faults(&verdict), [2, 0, 0, 1, 1, 1]);
}

async fn an_answer_after_five_seconds_acknowledges_nothing() {
    let (ledger, secs) = (Ledger::new(), Duration::from_secs);
    let status =
        |status, took, own| Answer::Status { status, took: secs(took), own: secs(own), proper: true };
    let late = ledger.sent(Id(1), A);
    let slow = ledger.sent(Id(1), A);
    let refused = ledger.sent(Id(2), A);
    let taken = ledger.sent(Id(3), A);

    assert!(!ledger.answered(late, status(200, 5, 1)));
    assert!(!ledger.answered(slow, status(200, 6, 5)));
    assert!(!ledger.answered(refused, status(503, 1, 1)));
    assert!(!ledger.answered(taken, Answer::Broken(Duration::ZERO)));
    assert!(ledger.answered(taken, status(200, 4, 4)));

    let acknowledged: Vec<bool> = ledger.entries().iter().map(|entry| entry.acknowledged.is_some()).collect();
    assert_eq!(acknowledged, [false, false, false, true]);
    let figures = ledger.figures();
    assert_eq!((figures.late, figures.slow, figures.broken), (2, 1, 1));
    assert_eq!((figures.status(200), figures.status(503)), (3, 1));
    assert_eq!(figures.worst(), secs(6));
}

async fn an_unanswered_sending_while_the_receiver_listens_is_found() {
    let ledger = Ledger::new();
    let unanswered = |answer| {
        let before = ledger.figures().unanswered;
        ledger.answered(ledger.sent(Id(1), A), answer);
        ledger.figures().unanswered - before
    };
    let none = Duration::ZERO;

    assert_eq!([unanswered(Answer::Refused(none)), unanswered(Answer::Broken(none))], [1, 1]);
    ledger.receiver_stops();
    assert_eq!([unanswered(Answer::Refused(none)), unanswered(Answer::Broken(LATER))], [0, 0]);
    ledger.receiver_listens();
    // Sent while the receiver was stopped, then after that.
    assert_eq!([unanswered(Answer::Broken(LATER)), unanswered(Answer::Refused(LATER))], [0, 0]);
    assert_eq!([unanswered(Answer::Broken(none)), unanswered(Answer::Refused(none))], [1, 1]);
    let figures = ledger.figures();
    assert_eq!((figures.refused, figures.broken, figures.unanswered), (4, 4, 4));
}

/// The signature was computed by `openssl dgst -sha256 -hmac`.
async fn a_delivery_shows_its_company_number_and_signature() {
    let maker = Maker::new("an-oracle-signs-with-this", 7);

    let delivery = maker.delivery(3, 42);

    assert_eq!(Id::parse(&delivery.id.text()), Some(delivery.id));
    assert_eq!(maker.made(delivery.id), Some((3, 42)));
    assert_eq!(Maker::new("an-oracle-signs-with-this", 8).made(delivery.id), None);
    let body: serde_json::Value = serde_json::from_slice(&delivery.body).unwrap();
    assert_eq!(body["OutgoingId"], "00000007-0000-0003-0000-00000000002a");
    let company = body["ExtraPartitionInformation"]["PartitionClientId"].as_str().unwrap();
    assert_eq!(Id::parse(company.as_bytes()), Some(delivery.company));
    let data = body["JsonData"].as_str().unwrap();
    assert_eq!(data.as_bytes(), maker.data(3, 42));
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["SequenceVersion"], "000000000000000042");
    assert_eq!(
        std::str::from_utf8(&delivery.signature).unwrap(),
        "sha256=CBA011B4357733BA6E72A991306B157A990904F7F9B639A3C9C99E61F8D9DCC9"
    );
    for wrong in ["", "00000007-0000-0003-0000-00000000002", "+0000007-0000-0003-0000-00000000002a"] {
        assert_eq!(Id::parse(wrong.as_bytes()), None, "{wrong:?}");
    }
}
