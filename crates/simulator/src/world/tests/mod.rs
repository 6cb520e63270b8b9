use std::collections::HashMap;

use super::*;

mod model;

use crate::knobs::Churn;

const NOW: Ticks = Ticks(17_000_000_000_000_000);
const VIEW: WorldView =
    WorldView { as_of: None, disabled: DisabledShows::Everywhere, order: ListOrder::Created };

fn world(settings: &WorldSettings) -> (World, Clock) {
    let clock = Clock::new(Some(NOW));
    (World::new(settings, &clock), clock)
}

fn small() -> WorldSettings {
    WorldSettings { companies: 4, customers: 5, accounts: 3, others: 1, ..WorldSettings::default() }
}

fn all(world: &World) -> Vec<(Place, WorldRow)> {
    Resource::ALL.into_iter().flat_map(|resource| world.records(resource)).collect()
}

fn customer(company: u32, index: u32) -> Place {
    Place { resource: Resource::Customers, company: Some(company), index }
}

fn company(index: u32) -> Place {
    Place { resource: Resource::Companies, company: None, index }
}

#[test]
fn a_row_is_no_larger_for_being_undoable() {
    assert_eq!(size_of::<WorldRow>(), 24);
    assert_eq!(size_of::<Option<WorldRow>>(), 24);
}

#[test]
fn initial_sequences_follow_the_dates() {
    let (world, _) = world(&small());
    let mut by_counter: HashMap<Option<u32>, Vec<WorldRow>> = HashMap::new();

    for (place, row) in all(&world) {
        let owner = if place.resource == Resource::Companies { Some(place.index) } else { place.company };
        by_counter.entry(owner).or_default().push(row);
    }

    for mut rows in by_counter.into_values() {
        rows.sort_by_key(|row| row.changed);
        assert!(rows.is_sorted_by(|a, b| a.sequence < b.sequence));
    }
}

#[test]
fn steps_reach_everything_and_keep_the_size() {
    let (mut world, clock) = world(&WorldSettings { companies: 100, ..small() });
    let first = world.living;
    let mut kinds: HashMap<Kind, u32> = HashMap::new();
    let mut resources: HashMap<Resource, u32> = HashMap::new();
    let (mut early, mut of_companies, mut payroll, mut invoicing) = (0, 0, 0, 0);

    for number in 0..25_000 {
        assert_eq!(world.changes(), number);
        match world.step(&clock) {
            WorldChange::Record(change) => {
                *kinds.entry(change.kind).or_default() += 1;
                *resources.entry(change.place.resource).or_default() += 1;
                of_companies += u32::from(change.place.company.is_some());
                early += u32::from(change.place.company.is_some_and(|company| company < 10));
            }
            WorldChange::Payroll => payroll += 1,
            WorldChange::Invoicing(_) => invoicing += 1,
        }
        assert!((first / 2..=first * 2).contains(&world.living), "{}", world.living);
    }

    let count = |kind| kinds.get(&kind).copied().unwrap_or(0);
    assert!(count(Kind::Updated) > count(Kind::Created), "{kinds:?}");
    assert!(count(Kind::Created) > count(Kind::Disabled) + count(Kind::Deleted), "{kinds:?}");
    assert!(count(Kind::Disabled) > 0 && count(Kind::Deleted) > 0, "{kinds:?}");
    assert_eq!(resources.len(), Resource::ALL.len());
    assert!(resources[&Resource::Customers] > resources[&Resource::Accounts]);
    assert!(resources[&Resource::Accounts] > 3 * resources[&Resource::Companies]);
    assert!(early * 5 > of_companies * 2, "a tenth of the companies got {early} of {of_companies}");
    assert!(payroll > 500 && invoicing > 500, "{payroll} {invoicing}");
}

#[test]
fn a_shrunken_world_grows_back_to_half_its_size() {
    let (mut world, clock) = world(&WorldSettings { companies: 20, ..small() });
    let first = world.living;
    for number in 1..20 {
        world.act(company(number), Kind::Deleted, &clock).unwrap();
    }
    assert!(world.living * 4 < first);

    for _ in 0..first {
        world.step(&clock);
    }

    assert!(world.living * 2 >= first, "{} of {first}", world.living);
}

#[test]
fn an_empty_world_begins_with_a_company() {
    let nothing = WorldSettings {
        companies: 0,
        payroll_companies: 0,
        invoicing_companies: 0,
        ..WorldSettings::default()
    };
    let (mut world, clock) = world(&nothing);

    let WorldChange::Record(change) = world.step(&clock) else { panic!("not a record") };

    assert_eq!((change.place, change.kind), (company(0), Kind::Created));
    for _ in 0..200 {
        assert!(matches!(world.step(&clock), WorldChange::Record(_)));
    }
}

#[test]
fn a_restore_ends_at_the_oldest_state_kept() {
    let (mut world, clock) = world(&WorldSettings { history: 2, ..small() });
    let first = world.row(customer(0, 0)).unwrap();
    for _ in 0..5 {
        world.act(customer(0, 0), Kind::Updated, &clock).unwrap();
    }
    let id = world.id(customer(0, 0));
    let then = WorldView { as_of: Some(first.changed), ..VIEW };

    let stale = world.record(Resource::Customers, Some(0), &id, &then).unwrap().1;
    let count = world.restore(0, first.changed);

    assert_eq!(stale.revision, 3);
    assert_eq!(world.row(customer(0, 0)).unwrap(), stale);
    assert!(count >= 1);
    assert_eq!(world.restore(99, first.changed), 0);
}

#[test]
fn churn_happens_as_often_as_its_averages() {
    let (mut world, clock) = world(&WorldSettings { companies: 300, customers: 300, ..small() });
    let churn = Churn { inserts: 0.3, deletes: 0.5, updates: 2.0 };
    let mut count = |list| {
        let mut kinds: HashMap<Kind, u32> = HashMap::new();
        for change in (0..200).flat_map(|_| world.churn(list, &churn, &clock)) {
            *kinds.entry(change.kind).or_default() += 1;
        }
        kinds
    };

    let (customers, companies) = (count((Resource::Customers, Some(3))), count((Resource::Companies, None)));

    assert_eq!(customers[&Kind::Updated], 400);
    assert!((40..80).contains(&customers[&Kind::Created]), "{customers:?}");
    assert!((75..125).contains(&customers[&Kind::Disabled]), "{customers:?}");
    assert!((75..125).contains(&companies[&Kind::Deleted]), "{companies:?}");
    assert_eq!(companies.get(&Kind::Disabled), None);
}

#[test]
fn churn_enables_no_disabled_record() {
    let (mut world, clock) = world(&WorldSettings { customers: 30, ..small() });
    for index in 0..28 {
        world.act(customer(0, index), Kind::Disabled, &clock).unwrap();
    }
    let churn = Churn { updates: 3.0, deletes: 0.1, ..Churn::default() };

    let changes: Vec<_> =
        (0..50).flat_map(|_| world.churn((Resource::Customers, Some(0)), &churn, &clock)).collect();

    assert!(changes.iter().any(|change| change.kind == Kind::Updated));
    assert!(changes.iter().all(|change| change.place.index >= 28), "{changes:?}");
    assert_eq!(world.table(Resource::Customers, Some(0)).unwrap().enabled(), 0, "both left in the end");
}
