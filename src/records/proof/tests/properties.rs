//! Properties under arbitrary changes of a list.

use proptest::{collection::vec, prelude::*};

use super::*;

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Head),
        Just(Change::Tail),
        any::<usize>().prop_map(Change::Insert),
        any::<usize>().prop_map(Change::Delete),
        any::<usize>().prop_map(Change::Delete),
        (any::<usize>(), any::<usize>()).prop_map(|(from, to)| Change::Move(from, to)),
        any::<usize>().prop_map(Change::Update),
    ]
}

/// Changes between pages, and before and after their cuts. Most pages are quiet, or nothing would be proved.
fn any_history() -> impl Strategy<Value = Vec<[Vec<Change>; 3]>> {
    let some = || prop_oneof![6 => Just(Vec::new()), 2 => vec(any_change(), 1..3)];
    vec([some(), some(), some()], 0..60)
}

#[derive(Debug, Clone)]
struct Case {
    world: World,
    settings: Settings,
    pause: i64,
}

fn any_case() -> impl Strategy<Value = Case> {
    let world = (0_usize..40, -3_600 * SECOND..3_600 * SECOND, any::<bool>(), any::<bool>(), 1_usize..60);
    let reading = (1_u32..12, 1_u32..7, prop_oneof![Just(0), Just(400 * SECOND)]);
    (world, reading).prop_map(|((rows, ahead, dates, totals, clamp), (size, passes, pause))| {
        let mut world = World::of(rows);
        // Without `Date` the provider's clock must be within the allowed skew.
        let ahead = if dates { ahead } else { ahead % (300 * SECOND) };
        for row in &mut world.list {
            row.changed_at = row.changed_at.map(|at| at + ahead);
        }
        let clamp = if clamp < 15 { clamp } else { usize::MAX };
        (world.ahead, world.dates, world.totals, world.clamp) = (ahead, dates, totals, clamp);
        Case { world, settings: settings(size, passes), pause }
    })
}

fn run(case: Case, history: Vec<[Vec<Change>; 3]>) -> (World, Reading, Vec<Seen>) {
    let Case { mut world, settings, pause } = case;
    let mut history = history.into_iter();
    let next = || history.next().unwrap_or_default();
    let (reading, marks) = read(&mut world, settings, pause, next);
    (world, reading, marks)
}

fn cases() -> u32 {
    crate::cycles::cycles("PROPERTIES", 400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn certified_lists_were_shown_in_full(case in any_case(), history in any_history()) {
        let (world, reading, marks) = run(case, history);
        let verdict = reading.verdict().unwrap();

        if verdict.certified {
            prop_assert_eq!(world.missed(&marks, &reading), 0);
            prop_assert_eq!(verdict.counts.missing_at_most, Some(0));
        }
    }

    #[test]
    fn bound_on_missing_records_holds(case in any_case(), history in any_history()) {
        let (world, reading, marks) = run(case, history);

        if let Some(most) = reading.verdict().unwrap().counts.missing_at_most {
            prop_assert!(world.missed(&marks, &reading) as i64 <= most);
        }
    }

    #[test]
    fn restored_reading_reaches_the_same_verdict(
        case in any_case(), history in any_history(), at: prop::sample::Index,
    ) {
        let settings = case.settings.clone();
        let (world, reading, marks) = run(case, history);
        let (before, behind) = marks.split_at(at.index(marks.len() + 1));

        let kept = before.iter().map(|seen| Seen::parse(&seen.to_json()).unwrap());
        let mut restored = Reading::restore(settings, kept).unwrap();
        behind.iter().for_each(|seen| restored.look(seen).unwrap());

        prop_assert_eq!(restored.verdict(), reading.verdict());
        prop_assert_eq!(restored.progress(), reading.progress());
        for id in 1..=world.next_id {
            prop_assert_eq!(restored.has_shown(id), reading.has_shown(id));
        }
    }

    #[test]
    fn static_list_is_certified_within_two_passes(
        rows in 0_usize..60, size in 1_u32..20, dates: bool, totals: bool,
    ) {
        let mut world = World { dates, totals, ..World::of(rows) };
        let (reading, _) = read(&mut world, settings(size, 4), 0, nothing);

        let verdict = reading.verdict().unwrap();
        prop_assert!(verdict.certified, "{verdict:?}");
        prop_assert!(verdict.reading.passes <= 2);
        prop_assert_eq!(verdict.counts.listed, Some(rows as i64));
        prop_assert_eq!(verdict.method, if rows < size as usize { CertificateMethod::Single } else { CertificateMethod::Counting });
    }
}

#[test]
fn enough_random_cases_are_certified() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};

    // Otherwise the properties above would be vacuous.
    let mut runner = TestRunner::deterministic();
    let mut certified = 0;
    for _ in 0..200 {
        let tree = (any_case(), any_history()).new_tree(&mut runner).unwrap();
        let (case, history) = tree.current();
        certified += usize::from(run(case, history).1.verdict().unwrap().certified);
    }
    assert!(certified > 60, "{certified} of 200");
}
