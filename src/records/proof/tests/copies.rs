//! Pages that come from copies of a list which are behind: they are no cuts of the list while they were asked for, which is what
//! counting assumes. So a list may be certified though a record that was in it all the time was never shown. Where pages come from
//! the list itself that never happens.

use super::*;

/// Where pages come from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The list itself.
    List,
    /// One copy, which is always so many pages behind.
    Copy(usize),
    /// Several, each at most so many pages behind; any of them answers.
    Copies(usize),
}

/// A page as a copy has it.
fn page_of(world: &mut World, copy: Vec<Row>, number: u32, size: u32) -> Seen {
    let list = std::mem::replace(&mut world.list, copy);
    let seen = world.page(number, size, &[], &[]);
    world.list = list;
    seen
}

/// Shows a reading the next page: that of a copy, or of the list as it is.
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

/// Lists that are certified while records come, and some leave; and those of them that had a record all the time which no page showed.
fn judged(source: Source, leaves: bool) -> (u32, u32) {
    let (mut certified, mut deceived) = (0, 0);
    for seed in 0..1_000 {
        let mut random = Random(seed);
        let rows = 4 + random.below(6);
        let mut world = World::of(rows);
        let size = 2 + u32::try_from(random.below(2)).unwrap();
        let (mut reading, mut past) = (Reading::new(settings(size, 6)), vec![world.list.clone()]);
        while let ReadingStep::Page { number, size, .. } = reading.want() {
            // A page a minute, so that the margin between clocks is short beside what happens.
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
    // The third record is on the first page from now on, and nothing is on the second.
    world.apply(Change::Delete(0));
    look(&mut reading, &mut world, None);
    look(&mut reading, &mut world, None);
    let mut honest = reading.clone();

    look(&mut honest, &mut world.clone(), None);
    look(&mut reading, &mut world, Some(&before));

    assert!(is_certified(&honest) && honest.has_shown(3));
    assert!(is_certified(&reading) && !reading.has_shown(3), "it was taken for proved");
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
        // Time never goes back on one copy: as long as nothing leaves, what is pushed on comes on a later page.
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
