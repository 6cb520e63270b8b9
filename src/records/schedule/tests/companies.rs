//! Companies that are not known, that fail, and that leave room for others.

use super::*;

struct Nobody(Cell<u32>, CompanyState);

impl Companies for Nobody {
    fn state(&self, _: &CompanyId) -> CompanyState {
        self.1
    }

    fn ask(&self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn a_company_that_is_not_listed_is_asked_for_and_foreign_only_after_a_later_list() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    for state in [CompanyState::Unread, CompanyState::Absent { since: life.now - 1 }] {
        let nobody = Nobody(Cell::new(0), state);
        assert!(life.scheduler.next_read(&nobody, life.now).is_none());
        assert_eq!(nobody.0.get(), 1);
        assert!(life.scheduler.ready() == 0);
        life.now += SECOND;
    }

    // Read again since, and not for long enough: a replica may be behind.
    life.now += SECOND;
    let since = life.now;
    assert!(
        life.scheduler.next_read(&Nobody(Cell::new(0), CompanyState::Absent { since }), life.now).is_none()
    );
    assert!(life.scheduler.ready() == 0);

    life.now += rules().parked_first;
    let since = life.now;
    assert!(
        life.scheduler.next_read(&Nobody(Cell::new(0), CompanyState::Absent { since }), life.now).is_none()
    );
    life.commit();

    assert_eq!(life.letters, [("e".to_owned(), "enrich::Foreign")]);
    assert_eq!((life.offset, &life.outcomes[..]), (1, &[Outcome::Foreign][..]));
}

#[test]
fn a_company_that_fails_leaves_the_turns_to_others() {
    let mut life = Life::new();
    let other = Subject { company: CompanyId::new("d").unwrap(), ..subject("r") };
    for number in 0..50 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    life.take(51, wanted(other.clone(), 1, false), "e");

    let first: Vec<NextRead> = std::iter::from_fn(|| life.ask()).collect();

    assert_eq!(first.len(), 5, "four of the one, and the other");
    assert!(first.iter().position(|ask| ask.subject == other).unwrap() <= 1);
    for ask in &first {
        let answer = if ask.subject == other {
            Ok(json("r", 1))
        } else {
            Err(error(403, api::Cause::Forbidden { by: AnsweredBy::Api }))
        };
        life.read(&ask.subject, answer).unwrap();
    }
    assert!(life.ask().is_none(), "the company is left alone for a while");
    life.commit();
    assert_eq!(life.published.len(), 1);
}

#[test]
fn events_of_a_company_that_turns_out_foreign_are_all_settled() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    life.now += rules().parked_first + SECOND;
    let since = life.now;
    let nobody = Nobody(Cell::new(0), CompanyState::Absent { since });
    assert!(life.scheduler.next_read(&nobody, life.now).is_none());

    life.take(2, wanted(subject("r"), 2, false), "e");
    life.commit();
    life.now += rules().parked_first + SECOND;
    let nobody = Nobody(Cell::new(0), CompanyState::Absent { since: life.now });
    assert!(life.scheduler.next_read(&nobody, life.now).is_none());
    life.commit();

    assert_eq!((life.offset, life.letters.len()), (2, 2));
}

#[test]
fn one_company_leaves_room_for_what_others_park() {
    let mut life = Life::new();
    for number in 0..600 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let end = life.now + 100 * SECOND;

    life.until(end, |_| Err(error(400, api::Cause::Refused)));

    assert_eq!((life.parked.len(), life.letters.len(), life.gaps.len()), (125, 475, 475));
    assert_eq!(life.offset, 600);
    assert!(!life.scheduler.is_full());
}

#[test]
fn deletes_that_wait_for_their_confirmation_or_a_person_are_never_given_up() {
    let mut life = Life::new();
    life.paths.insert(LANE);
    life.crash();
    for number in 0..300 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, true), "e");
    }
    let end = life.now + 2 * rules().tombstone_confirm;

    life.until(end, |_| Err(gone()));

    assert!(life.letters.is_empty() && life.gaps.is_empty(), "{:?}", life.letters);
    let braked = life.parked.values().filter(|parked| parked.cause == Cause::Braked).count();
    assert_eq!((life.parked.len(), braked), (250, 250), "but for as many as a day may have");
}

#[test]
fn what_only_waits_for_its_turn_is_never_given_up() {
    let mut life = Life::new();
    for number in 0..600 {
        life.take(number + 1, wanted(subject(&format!("r{number}")), 1, false), "e");
    }
    let under_way = std::iter::from_fn(|| life.ask()).count();
    for _ in 0..3 {
        life.now += 11 * SECOND;
        life.scheduler.park_late(life.now);
        while life.scheduler.ready() > 0 {
            life.commit();
        }
        // Those that are due stand in line again.
        assert!(life.ask().is_none());
    }

    assert_eq!((under_way, life.parked.len(), life.letters.len()), (4, 500, 0));
    assert_eq!(life.scheduler.counts(), (100, 500), "the others hold back their offsets");
}

#[test]
fn events_of_companies_that_nobody_can_tell_of_do_not_hold_back_their_offsets_for_ever() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 1, false), "e");
    let nobody = Nobody(Cell::new(0), CompanyState::Unread);
    let end = life.now + 12 * SECOND;
    while life.now < end {
        assert!(life.scheduler.next_read(&nobody, life.now).is_none());
        if life.scheduler.ready() > 0 {
            life.commit();
        }
        life.now += SECOND / 5;
    }

    assert_eq!((life.offset, life.letters.len()), (1, 0));
    assert_eq!(life.parked[&subject("r")].cause, Cause::Company);
    assert!(nobody.0.get() > 10, "the list is asked for");
}
