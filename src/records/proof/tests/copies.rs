//! Pages from lagging replicas break an assumption of counting: their cut is before their request. So a list may be certified although
//! a record that was always listed was never shown. With pages from the list itself that never happens.

use super::*;

/// The origin of pages.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The list itself.
    List,
    /// One replica that always lags by this number of pages.
    Copy(usize),
    /// Several replicas that lag by at most this number of pages; any of them answers.
    Copies(usize),
}

/// A page of a replica.
fn page_of(world: &mut World, copy: Vec<Row>, number: u32, size: u32) -> Seen {
    let list = std::mem::replace(&mut world.list, copy);
    let seen = world.page(number, size, &[], &[]);
    world.list = list;
    seen
}

/// Shows a reading the next page, of a replica or of the list itself.
fn look(reading: &mut Reading, world: &mut World, copy: Option<&[Row]>) {
    let ReadingStep::Page { number, size, .. } = reading.want() else { panic!("{:?}", reading.verdict()) };
    world.now += 60 * SECOND;
    let shown = copy.map_or_else(|| world.list.clone(), <[Row]>::to_vec);
    let seen = page_of(world, shown, number, size);
    reading.look(&seen).unwrap();
}

fn is_certified(reading: &Reading) -> bool {
    reading.verdict().is_some_and(|verdict| verdict.certified)
}

/// Number of lists certified while records are added, and with `leaves` deleted; and how many of them had a record that was always
/// listed and never shown.
fn judged(source: Source, leaves: bool) -> (u32, u32) {
    let (mut certified, mut deceived) = (0, 0);
    for seed in 0..1_000 {
        let mut random = Random(seed);
        let rows = 4 + random.below(6);
        let mut world = World::of(rows);
        let size = 2 + u32::try_from(random.below(2)).unwrap();
        let (mut reading, mut past) = (Reading::new(settings(size, 6)), vec![world.list.clone()]);
        while let ReadingStep::Page { number, size, .. } = reading.want() {
            // One page per minute, so that the clock margin is short compared with the changes.
            world.now += 30 * SECOND;
            if random.chance(0.4) {
                let (place, goes) = (random.below(1_000), leaves && random.chance(0.5));
                world.apply(if goes { Change::Delete(place) } else { Change::Insert(place) });
            }
            world.now += 30 * SECOND;
            past.push(world.list.clone());
            let behind = match source {
                Source::List => 0,
                Source::Copy(pages) => pages,
                Source::Copies(pages) => random.below(pages + 1),
            };
            let copy = past[past.len().saturating_sub(1 + behind)].clone();
            let seen = page_of(&mut world, copy, number, size);
            reading.look(&seen).unwrap();
        }
        if is_certified(&reading) {
            certified += 1;
            let mut stayed = world.list.iter().filter(|row| row.id <= rows as u128);
            deceived += u32::from(stayed.any(|row| !reading.has_shown(row.id)));
        }
    }
    (certified, deceived)
}

#[test]
fn deleted_record_on_a_copy_hides_an_unseen_record() {
    let (mut world, mut reading) = (World::of(3), Reading::new(settings(2, 4)));
    let before = world.list.clone();
    look(&mut reading, &mut world, None);
    // The third record moves to the first page, and the second page is empty.
    world.apply(Change::Delete(0));
    look(&mut reading, &mut world, None);
    look(&mut reading, &mut world, None);
    let mut honest = reading.clone();

    look(&mut honest, &mut world.clone(), None);
    look(&mut reading, &mut world, Some(&before));

    assert!(is_certified(&honest) && honest.has_shown(3));
    assert!(is_certified(&reading) && !reading.has_shown(3), "wrongly certified");
}

#[test]
fn copy_without_a_new_record_hides_another_record() {
    let (mut world, mut reading) = (World::of(3), Reading::new(settings(2, 4)));
    let before = world.list.clone();
    world.apply(Change::Head);

    // 4 and 1; then 3, where the list itself has 2 and 3; then nothing; then 4 and 1 again.
    for copy in [None, Some(&before[..]), None, None] {
        look(&mut reading, &mut world, copy);
    }

    assert!(is_certified(&reading) && !reading.has_shown(2));
}

#[test]
fn lagging_copies_deceive_and_the_list_itself_never_does() {
    for (source, leaves, deceives) in [
        (Source::List, true, false),
        (Source::List, false, false),
        // One replica never goes back in time: without deletions, a record only moves to later pages.
        (Source::Copy(2), false, false),
        (Source::Copy(2), true, true),
        (Source::Copies(4), true, true),
        (Source::Copies(4), false, true),
    ] {
        let (certified, deceived) = judged(source, leaves);

        assert!(certified > 500, "{source:?}: {certified}");
        assert_eq!(deceived > 0, deceives, "{source:?}, leaves: {leaves}: {deceived} of {certified}");
    }
}
