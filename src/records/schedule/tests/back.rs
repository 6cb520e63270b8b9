//! When it is believed that the provider went back.

use super::*;

#[test]
fn a_provider_that_went_back_is_believed_once_nothing_else_was_read_for_long_enough() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, end) = (life.now, life.now + 2 * rules().epoch_confirm);

    let reads = life.until(end, |_| Ok(json("r", 51)));

    assert_eq!(life.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
    assert!(life.now >= begun + rules().epoch_confirm && (3..8).contains(&reads), "{reads}");
    // From there on it goes on as before.
    life.take(2, wanted(subject("r"), 52, false), "e");
    life.until(end + SECOND, |_| Ok(json("r", 52)));
    assert_eq!(life.published.last(), Some(&(subject("r"), stamp(1, 52, Rank::ById, false))));
}

#[test]
fn one_read_that_shows_what_was_published_ends_the_suspicion() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, end) = (life.now, life.now + 2 * rules().epoch_confirm);

    life.until(end, |now| Ok(json("r", if now < begun + rules().epoch_confirm / 2 { 99 } else { 100 })));

    assert!(life.published.is_empty() && life.parked.is_empty());
}

#[test]
fn a_row_that_shows_what_was_published_begins_the_suspicion_anew_also_for_the_next_owner() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, half) = (life.now, rules().epoch_confirm / 2);
    life.until(begun + half, |_| Ok(json("r", 51)));
    assert!(life.scheduler.is_suspected(&subject("r")) && life.parked[&subject("r")].below_since.is_some());

    life.scheduler.not_below(&subject("r"));
    life.commit();
    assert!(!life.scheduler.is_suspected(&subject("r")));
    assert_eq!(life.parked[&subject("r")].below_since, None);

    life.crash();
    let shown_at = life.now;
    life.until(begun + rules().epoch_confirm + SECOND, |_| Ok(json("r", 51)));
    assert_eq!(life.published, [], "it is not believed as if no row had shown it");
    life.until(shown_at + 3 * rules().epoch_confirm, |_| Ok(json("r", 51)));
    assert_eq!(life.published, [(subject("r"), stamp(1, 51, Rank::ById, false))]);
}

#[test]
fn what_is_to_be_published_under_the_next_epoch_is_not_once_a_row_shows_what_was_published() {
    let mut life = Life::new();
    life.fences.insert(subject("r"), stamp(0, 100, Rank::ById, false));
    life.take(1, wanted(subject("r"), 51, false), "e");
    let (begun, confirm) = (life.now, rules().epoch_confirm);
    life.until(begun + confirm - SECOND, |_| Ok(json("r", 51)));
    life.now = begun + 2 * confirm;
    let ask = life.ask().unwrap();
    life.read(&ask.subject, Ok(json("r", 51))).unwrap();
    assert!(life.scheduler.ready() > 0);

    life.scheduler.not_below(&subject("r"));
    while life.scheduler.ready() > 0 {
        life.commit();
    }

    assert_eq!(life.published, []);
    assert_eq!(life.outcomes.last(), Some(&Outcome::Stale));
    assert!(life.parked.is_empty() && life.scheduler.counts() == (0, 0));
}

#[test]
fn whether_the_provider_went_back_holds_back_no_offset() {
    let mut life = Life::new();
    life.take(1, wanted(subject("r"), 9, false), "first");
    life.until(life.now + SECOND, |_| Ok(json("r", 9)));
    life.take(2, wanted(subject("r"), 4, false), "before");
    life.until(life.now + SECOND, |_| Ok(json("r", 4)));
    assert_eq!((life.offset, life.parked.len()), (2, 1), "it is suspected");

    life.take(3, wanted(subject("r"), 5, false), "again");
    while life.scheduler.ready() > 0 {
        life.commit();
    }

    assert_eq!(life.offset, 3);
    assert_eq!(life.published.len(), 1);
}
