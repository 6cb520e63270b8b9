//! Rules that look right but certify a list with a record that was never shown. A naive second implementation of the real rule never
//! does.

use std::collections::HashSet;

use super::*;

/// The mistake in the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trap {
    None,
    /// Records of earlier passes count as found although no later page shows them.
    FoundBefore,
    /// Passes that together show as many ids as there are rows.
    Union,
    /// A short first page is the whole list if page 2 of the requested size is empty.
    Clamped,
    /// The last page is the cut even if it is full.
    FullLast,
}

/// Request time of the page whose cut the rule certifies.
fn certified(passes: &[Vec<Seen>], size: u32, trap: Trap) -> Option<i64> {
    let ids = |pages: &[Seen]| -> HashSet<u128> {
        pages.iter().flat_map(|seen| seen.rows.iter().map(|row| row.id)).collect()
    };
    (0..passes.len()).find_map(|pass| {
        let pages = &passes[pass];
        let mut end = pages.iter().position(|seen| seen.rows.len() < size as usize)?;
        if trap == Trap::FullLast && pages[end].rows.is_empty() && end > 0 {
            end -= 1;
        }
        let cut = &pages[end];
        if trap == Trap::Clamped && end == 0 {
            return Some(cut.answer.sent);
        }
        let listed = size as usize * end + cut.rows.len();
        let read = ids(&pages[..=end]);
        let (earlier, later) = (passes[..pass].concat(), passes[pass + 1..].concat());
        if trap == Trap::Union {
            return (ids(&passes[..=pass].concat()).len() >= listed && pass > 0).then_some(cut.answer.sent);
        }
        let (shown_before, shown_later) = (ids(&earlier), ids(&later));
        let gone = read
            .iter()
            .filter(|id| !cut.rows.iter().any(|row| row.id == **id))
            .filter(|id| !shown_later.contains(*id))
            .count();
        let was_listed =
            |row: &&Row| row.changed_at < Some(cut.answer.sent) || shown_before.contains(&row.id);
        let mut found: HashSet<u128> =
            later.iter().flat_map(|seen| &*seen.rows).filter(was_listed).map(|row| row.id).collect();
        if trap == Trap::FoundBefore {
            found.extend(&shown_before);
        }
        found.retain(|id| !read.contains(id));
        (read.len() + found.len() >= listed + gone).then_some(cut.answer.sent)
    })
}

/// Passes over a small list with many changes; `None` if one of them does not end with an empty page.
fn passes(world: &mut World, size: u32, random: &mut Random) -> Option<Vec<Vec<Seen>>> {
    (0..3)
        .map(|_| {
            let mut pages: Vec<Seen> = Vec::new();
            for number in 1..30 {
                if random.chance(0.4) {
                    let place = random.below(1_000);
                    world.apply(match random.below(4) {
                        0 => Change::Insert(place),
                        1 => Change::Move(place, random.below(1_000)),
                        _ => Change::Delete(place),
                    });
                }
                world.now += SECOND;
                pages.push(world.page(number, size, &[], &[]));
                if let [.., before, last] = pages.as_slice()
                    && before.rows.len() < size as usize
                {
                    return last.rows.is_empty().then_some(pages);
                }
            }
            None
        })
        .collect()
}

/// Runs that a rule certifies: rightly, and although a record was missed.
fn judged(trap: Trap, clamp: usize) -> (u32, u32) {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..3_000 {
        let mut random = Random(seed);
        let mut world = World { clamp, ..World::of(4 + random.below(6)) };
        let size = 2 + u32::try_from(random.below(2)).unwrap() + if clamp == usize::MAX { 0 } else { 4 };
        let Some(passes) = passes(&mut world, size, &mut random) else { continue };
        if let Some(sent) = certified(&passes, size, trap) {
            let seen: HashSet<u128> =
                passes.iter().flatten().flat_map(|seen| &*seen.rows).map(|row| row.id).collect();
            let missed = world.truth[&sent].iter().any(|id| !seen.contains(id));
            *(if missed { &mut wrong } else { &mut right }) += 1;
        }
    }
    (right, wrong)
}

#[test]
fn plain_rule_never_certifies_an_unseen_record() {
    let (right, wrong) = judged(Trap::None, usize::MAX);

    assert!(right > 100, "{right}");
    assert_eq!(wrong, 0);
}

#[test]
fn records_shown_only_before_the_cut_are_not_found() {
    assert!(judged(Trap::FoundBefore, usize::MAX).1 > 0);
}

#[test]
fn union_of_passes_proves_nothing() {
    assert!(judged(Trap::Union, usize::MAX).1 > 0);
}

#[test]
fn full_last_page_is_not_the_cut() {
    assert!(judged(Trap::FullLast, usize::MAX).1 > 0);
}

#[test]
fn clamped_page_looks_like_the_end_and_is_detected() {
    assert!(judged(Trap::Clamped, 3).1 > 0);

    // The real reading on the same provider.
    for rows in 0..12 {
        let mut world = World { clamp: 3, ..World::of(rows) };
        let (reading, marks) = read(&mut world, settings(6, 4), 0, nothing);
        let verdict = reading.verdict().unwrap();

        assert!(verdict.certified, "{rows}: {verdict:?}");
        assert_eq!(world.missed(&marks, &reading), 0, "{rows}");
        assert_eq!(verdict.reading.page_size, if rows > 3 { 3 } else { 6 }, "{rows}");
    }
}
