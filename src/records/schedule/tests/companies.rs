//! Unknown companies, failing companies, and fairness between companies.

use super::*;

struct FixedState(Cell<u32>, CompanyState);

impl Companies for FixedState {
    fn state(&self, _: &CompanyId) -> CompanyState {
        self.1
    }

    fn ask(&self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn unlisted_company_is_foreign_only_after_a_later_list() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 1, false), "e");
    for state in [CompanyState::Unread, CompanyState::Absent { since: shard.now - 1 }] {
        let companies = FixedState(Cell::new(0), state);
        assert!(shard.scheduler.next_read(&companies, shard.now).is_none());
        assert_eq!(companies.0.get(), 1);
        assert!(shard.scheduler.ready() == 0);
        shard.now += SECOND;
    }

    // Listed again, but too soon: a replica may lag.
    shard.now += SECOND;
    let since = shard.now;
    assert!(
        shard
            .scheduler
            .next_read(&FixedState(Cell::new(0), CompanyState::Absent { since }), shard.now)
            .is_none()
    );
    assert!(shard.scheduler.ready() == 0);

    shard.now += rules().parked_first;
    let since = shard.now;
    assert!(
        shard
            .scheduler
            .next_read(&FixedState(Cell::new(0), CompanyState::Absent { since }), shard.now)
            .is_none()
    );
    shard.commit();

    assert_eq!(shard.letters, [("e".to_owned(), "enrich::Foreign")]);
    assert_eq!((shard.offset, &shard.outcomes[..]), (1, &[Outcome::Foreign][..]));
}

#[test]
fn failing_company_yields_its_turns() {
    let mut shard = TestShard::new();
    let other = Subject { company: CompanyId::new("d").unwrap(), ..subject("r") };
    for number in 0..50 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    shard.take(51, wanted(other.clone(), 1, false), "e");

    let first: Vec<NextRead> = std::iter::from_fn(|| shard.ask()).collect();

    assert_eq!(first.len(), 5, "four of one company, one of the other");
    assert!(first.iter().position(|ask| ask.subject == other).unwrap() <= 1);
    for ask in &first {
        let answer = if ask.subject == other {
            Ok(json("r", 1))
        } else {
            Err(error(403, api::Cause::Forbidden { by: AnsweredBy::Api }))
        };
        shard.read(&ask.subject, answer).unwrap();
    }
    assert!(shard.ask().is_none(), "the company backs off");
    shard.commit();
    assert_eq!(shard.published.len(), 1);
}

#[test]
fn all_events_of_a_foreign_company_are_settled() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 1, false), "e");
    shard.now += rules().parked_first + SECOND;
    let since = shard.now;
    let companies = FixedState(Cell::new(0), CompanyState::Absent { since });
    assert!(shard.scheduler.next_read(&companies, shard.now).is_none());

    shard.take(2, wanted(subject("r"), 2, false), "e");
    shard.commit();
    shard.now += rules().parked_first + SECOND;
    let companies = FixedState(Cell::new(0), CompanyState::Absent { since: shard.now });
    assert!(shard.scheduler.next_read(&companies, shard.now).is_none());
    shard.commit();

    assert_eq!((shard.offset, shard.letters.len()), (2, 2));
}

#[test]
fn one_company_cannot_use_all_parking_space() {
    let mut shard = TestShard::new();
    for number in 0..600 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let end = shard.now + 100 * SECOND;

    shard.until(end, |_| Err(error(400, api::Cause::Refused)));

    assert_eq!((shard.parked.len(), shard.letters.len(), shard.gaps.len()), (125, 475, 475));
    assert_eq!(shard.offset, 600);
    assert!(!shard.scheduler.is_full());
}

#[test]
fn unconfirmed_and_braked_deletes_are_never_given_up() {
    let mut shard = TestShard::new();
    shard.paths.insert(RESOURCE);
    shard.crash();
    for number in 0..300 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, true), "e");
    }
    let end = shard.now + 2 * rules().tombstone_confirm;

    shard.until(end, |_| Err(gone()));

    assert!(shard.letters.is_empty() && shard.gaps.is_empty(), "{:?}", shard.letters);
    let braked = shard.parked.values().filter(|parked| parked.cause == ParkCause::Braked).count();
    assert_eq!((shard.parked.len(), braked), (250, 250), "all above the daily limit of 50");
}

#[test]
fn queued_records_are_never_given_up() {
    let mut shard = TestShard::new();
    for number in 0..600 {
        shard.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let under_way = std::iter::from_fn(|| shard.ask()).count();
    for _ in 0..3 {
        shard.now += 11 * SECOND;
        shard.scheduler.park_late(shard.now);
        while shard.scheduler.ready() > 0 {
            shard.commit();
        }
        // Records that are due are queued again.
        assert!(shard.ask().is_none());
    }

    assert_eq!((under_way, shard.parked.len(), shard.letters.len()), (4, 500, 0));
    assert_eq!(shard.scheduler.counts(), (100, 500), "100 hold back their offsets");
}

#[test]
fn unread_company_list_does_not_hold_offsets_forever() {
    let mut shard = TestShard::new();
    shard.take(1, wanted(subject("r"), 1, false), "e");
    let companies = FixedState(Cell::new(0), CompanyState::Unread);
    let end = shard.now + 12 * SECOND;
    while shard.now < end {
        assert!(shard.scheduler.next_read(&companies, shard.now).is_none());
        if shard.scheduler.ready() > 0 {
            shard.commit();
        }
        shard.now += SECOND / 5;
    }

    assert_eq!((shard.offset, shard.letters.len()), (1, 0));
    assert_eq!(shard.parked[&subject("r")].cause, ParkCause::Company);
    assert!(companies.0.get() > 10, "the list is requested");
}
