use std::collections::{HashMap, HashSet};

use super::*;
use crate::simulator::{clock::SECOND, knobs::Churn};

const NOW: Ticks = Ticks(17_000_000_000_000_000);
const VIEW: View = View { as_of: None, disabled: DisabledShows::Everywhere, order: ListOrder::Created };

fn world(settings: &WorldSettings) -> (World, Clock) {
    let clock = Clock::new(Some(NOW));
    (World::new(settings, &clock), clock)
}

fn small() -> WorldSettings {
    WorldSettings { companies: 4, customers: 5, accounts: 3, others: 1, ..WorldSettings::default() }
}

fn all(world: &World) -> Vec<(Place, Row)> {
    Resource::ALL.into_iter().flat_map(|resource| world.records(resource)).collect()
}

fn customer(company: u32, index: u32) -> Place {
    Place { resource: Resource::Customers, company: Some(company), index }
}

fn company(index: u32) -> Place {
    Place { resource: Resource::Companies, company: None, index }
}

fn indexes(slice: &Slice) -> Vec<u32> {
    slice.rows.iter().map(|(place, _)| place.index).collect()
}

#[test]
fn a_row_is_no_larger_for_being_undoable() {
    assert_eq!(size_of::<Row>(), 24);
    assert_eq!(size_of::<Option<Row>>(), 24);
}

#[test]
fn the_first_world_has_the_sizes_asked_for_dated_before_now() {
    let tenant_resources = [Resource::Persons, Resource::Customers, Resource::Companies].into();
    let (world, _) = world(&WorldSettings { tenant_resources, ..small() });

    let count = |resource| world.records(resource).count();
    let counts = [Resource::Companies, Resource::Customers, Resource::Accounts, Resource::Charges].map(count);
    assert_eq!(counts, [4, 20, 12, 4]);
    let persons: Vec<_> = world.records(Resource::Persons).map(|(place, _)| place).collect();
    assert_eq!(persons, [Place { resource: Resource::Persons, company: None, index: 0 }]);
    for (place, row) in all(&world) {
        assert_eq!((row.revision, row.state), (0, RecordState::Enabled));
        assert!(row.changed < NOW && row.changed > NOW.minus(std::time::Duration::from_secs(731 * 86_400)));
        assert_eq!(world.find(place.resource, &world.id(place)), Some((place, row)));
    }
}

#[test]
fn the_first_sequences_follow_the_dates_within_what_the_counter_covers() {
    for scope in [SequenceScope::Company, SequenceScope::Service] {
        let (world, _) = world(&WorldSettings { sequence: scope, ..small() });
        let mut by_counter: HashMap<Option<u32>, Vec<Row>> = HashMap::new();

        for (place, row) in all(&world) {
            let owner = if place.resource == Resource::Companies { Some(place.index) } else { place.company };
            by_counter.entry(owner.filter(|_| scope == SequenceScope::Company)).or_default().push(row);
        }

        for mut rows in by_counter.into_values() {
            rows.sort_by_key(|row| row.changed);
            assert!(rows.is_sorted_by(|a, b| a.sequence < b.sequence), "{scope:?}");
        }
    }
}

#[test]
fn each_scope_raises_its_own_counter() {
    let next = |scope| {
        let (mut world, clock) = world(&WorldSettings { sequence: scope, ..small() });
        let before = world.row(customer(1, 0)).unwrap().sequence;
        let mut act = |place| world.act(place, Kind::Updated, &clock).unwrap().row.sequence;
        let [first, other, elsewhere] = [customer(1, 0), customer(1, 1), customer(2, 0)].map(&mut act);
        (first - before, other.wrapping_sub(first), elsewhere.wrapping_sub(other))
    };

    let (own, other, _) = next(SequenceScope::Record);
    assert_eq!(own, 1);
    assert_ne!(other, 1);
    let (_, other, elsewhere) = next(SequenceScope::Company);
    assert_eq!(other, 1);
    assert_ne!(elsewhere, 1);
    let (_, other, elsewhere) = next(SequenceScope::Service);
    assert_eq!((other, elsewhere), (1, 1));
}

#[test]
fn the_same_seed_and_calls_give_the_same_world_and_another_seed_another() {
    let run = |seed| {
        let (mut world, clock) = world(&WorldSettings { seed, ..small() });
        let changes: Vec<String> = (0..500).map(|_| format!("{:?}", world.step(&clock))).collect();
        world.churn(List::Customers(1), &Churn { inserts: 1.5, deletes: 1.5, updates: 1.5 }, &clock);
        let ids: Vec<String> = all(&world).iter().map(|(place, _)| world.id(*place)).collect();
        (changes, all(&world), ids, world.payroll(ListOrder::Scattered))
    };

    let (first, again, other) = (run(1), run(1), run(2));

    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
    assert!(first.2.iter().collect::<HashSet<_>>().is_disjoint(&other.2.iter().collect()));
    assert_ne!(first.3, other.3);
}

#[test]
fn steps_reach_everything_update_most_favour_few_companies_and_keep_the_size() {
    let (mut world, clock) = world(&WorldSettings { companies: 100, ..small() });
    let first = world.living;
    let mut kinds: HashMap<Kind, u32> = HashMap::new();
    let mut resources: HashMap<Resource, u32> = HashMap::new();
    let (mut early, mut of_companies, mut payroll, mut invoicing) = (0, 0, 0, 0);

    for number in 0..25_000 {
        assert_eq!(world.changes(), number);
        match world.step(&clock) {
            Change::Record(change) => {
                *kinds.entry(change.kind).or_default() += 1;
                *resources.entry(change.place.resource).or_default() += 1;
                of_companies += u32::from(change.place.company.is_some());
                early += u32::from(change.place.company.is_some_and(|company| company < 10));
            }
            Change::Payroll => payroll += 1,
            Change::Invoicing(_) => invoicing += 1,
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

    let Change::Record(change) = world.step(&clock) else { panic!("not a record") };

    assert_eq!((change.place, change.kind), (company(0), Kind::Created));
    for _ in 0..200 {
        assert!(matches!(world.step(&clock), Change::Record(_)));
    }
}

#[test]
fn a_world_without_room_keeps_changing_and_makes_nothing() {
    let (mut world, clock) = world(&small());
    world.room = 0;
    let before = all(&world).len();

    for _ in 0..500 {
        world.step(&clock);
    }

    assert_eq!(all(&world).len(), before);
    assert!(world.create(Resource::Customers, Some(0), &clock).is_none());
    assert!(world.act_payroll(None, Kind::Created, &clock).is_none());
    assert!(world.act_invoicing(0, Entity::Customer, Action::Created, &clock).is_none());
}

#[test]
fn what_is_new_or_changed_lands_where_each_order_puts_it() {
    let list = List::Customers(0);
    let after = |order| {
        let (mut world, clock) = world(&small());
        let view = View { order, ..VIEW };
        let before = indexes(&world.slice(list, 0, 99, &view));
        world.act(customer(0, 1), Kind::Updated, &clock).unwrap();
        let changed = indexes(&world.slice(list, 0, 99, &view));
        world.create(Resource::Customers, Some(0), &clock).unwrap();
        (before, changed, indexes(&world.slice(list, 0, 99, &view)))
    };

    assert_eq!(after(ListOrder::Created).2, [0, 1, 2, 3, 4, 5]);
    assert_eq!(after(ListOrder::Newest).2, [5, 4, 3, 2, 1, 0]);
    assert_eq!(after(ListOrder::Changed), (vec![0, 1, 2, 3, 4], vec![0, 2, 3, 4, 1], vec![0, 2, 3, 4, 1, 5]));
    let (before, changed, created) = after(ListOrder::Scattered);
    assert_eq!(before, changed);
    assert_eq!(before, created.iter().copied().filter(|&index| index != 5).collect::<Vec<_>>());
    assert_ne!(before, [0, 1, 2, 3, 4]);
}

#[test]
fn new_records_of_a_scattered_list_come_anywhere() {
    let (mut world, clock) = world(&WorldSettings { customers: 50, ..small() });
    let view = View { order: ListOrder::Scattered, ..VIEW };

    let places: HashSet<usize> = (0..20)
        .map(|_| {
            let new = world.create(Resource::Customers, Some(0), &clock).unwrap().place.index;
            let slice = world.slice(List::Customers(0), 0, 99, &view);
            indexes(&slice).iter().position(|&index| index == new).unwrap() * 4 / slice.rows.len()
        })
        .collect();

    assert_eq!(places.len(), 4, "not in every quarter of the list: {places:?}");
}

#[test]
fn a_deleted_company_takes_its_records_out_of_reach_without_a_word() {
    let (mut world, clock) = world(&small());
    let id = world.id(customer(1, 0));
    let company_id = world.id(company(1));

    world.act(company(1), Kind::Deleted, &clock).unwrap();

    assert_eq!((world.company(&company_id), world.company_lives(1)), (Some(1), false));
    assert_eq!(world.record(Resource::Customers, Some(1), &id, &VIEW), None);
    assert_eq!(world.slice(List::Customers(1), 0, 9, &VIEW).total, 0);
    assert!(world.act(customer(1, 0), Kind::Updated, &clock).is_none());
    assert!(world.create(Resource::Customers, Some(1), &clock).is_none());
    let churn = Churn { inserts: 3.0, deletes: 3.0, updates: 3.0 };
    assert!(world.churn(List::Customers(1), &churn, &clock).is_empty());
    assert_eq!(world.find(Resource::Customers, &id).unwrap().1.state, RecordState::Deleted);
    let then = View { as_of: Some(NOW.minus(std::time::Duration::from_secs(1))), ..VIEW };
    assert_eq!(world.slice(List::Customers(1), 0, 9, &then).total, 5);
    assert!(world.company_lived(1, then.as_of));
}

#[test]
fn a_restore_brings_back_the_exact_rows_and_versions_then_come_again_with_other_content() {
    let (mut world, clock) = world(&small());
    world.act(customer(1, 0), Kind::Updated, &clock).unwrap();
    let before = all(&world);
    let moment = clock.now();
    clock.advance(SECOND);
    let first_life = world.act(customer(1, 0), Kind::Updated, &clock).unwrap().row;
    world.act(customer(1, 1), Kind::Disabled, &clock).unwrap();
    world.act(Place { resource: Resource::Charges, ..customer(1, 0) }, Kind::Deleted, &clock).unwrap();
    let created = world.create(Resource::Customers, Some(1), &clock).unwrap().place;
    world.act(company(1), Kind::Deleted, &clock).unwrap();
    world.act(customer(2, 0), Kind::Updated, &clock).unwrap();
    let changes = world.changes();

    let count = world.restore(1, moment);

    assert_eq!((count, world.changes()), (5, changes));
    let is_other = |(place, _): &(Place, Row)| *place != customer(2, 0);
    assert_eq!(
        all(&world).into_iter().filter(is_other).collect::<Vec<_>>(),
        before.into_iter().filter(is_other).collect::<Vec<_>>()
    );
    assert_eq!(world.row(customer(2, 0)).unwrap().revision, 1);
    assert_eq!(world.find(Resource::Customers, &world.id(created)), None);
    assert_eq!(world.restore(1, moment), 0);
    assert_eq!(world.history.states(customer(1, 0)).count(), 1, "what was undone is still remembered");
    let second_life = world.act(customer(1, 0), Kind::Updated, &clock).unwrap().row;
    assert_eq!(
        (first_life.sequence, first_life.revision),
        (second_life.sequence, second_life.revision),
        "the version does not come again"
    );
    let content = |row| world.naming().content(customer(1, 0), row);
    assert_ne!(content(&first_life), content(&second_life));
    assert_ne!(world.create(Resource::Customers, Some(1), &clock).unwrap().place, created);
}

#[test]
fn history_keeps_no_more_states_than_set_and_a_restore_ends_at_the_oldest() {
    let (mut world, clock) = world(&WorldSettings { history: 2, ..small() });
    let first = world.row(customer(0, 0)).unwrap();
    for _ in 0..5 {
        world.act(customer(0, 0), Kind::Updated, &clock).unwrap();
    }
    let id = world.id(customer(0, 0));
    let then = View { as_of: Some(first.changed), ..VIEW };

    let stale = world.record(Resource::Customers, Some(0), &id, &then).unwrap().1;
    let count = world.restore(0, first.changed);

    assert_eq!(stale.revision, 3);
    assert_eq!(world.row(customer(0, 0)).unwrap(), stale);
    assert!(count >= 1);
    assert_eq!(world.restore(99, first.changed), 0);
}

#[test]
fn churn_happens_as_often_as_its_averages_and_ends_records_as_their_resource_does() {
    let (mut world, clock) = world(&WorldSettings { companies: 300, customers: 300, ..small() });
    let churn = Churn { inserts: 0.3, deletes: 0.5, updates: 2.0 };
    let mut count = |list| {
        let mut kinds: HashMap<Kind, u32> = HashMap::new();
        for change in (0..200).flat_map(|_| world.churn(list, &churn, &clock)) {
            *kinds.entry(change.kind).or_default() += 1;
        }
        kinds
    };

    let (customers, companies) = (count(List::Customers(3)), count(List::Companies));

    assert_eq!(customers[&Kind::Updated], 400);
    assert!((40..80).contains(&customers[&Kind::Created]), "{customers:?}");
    assert!((75..125).contains(&customers[&Kind::Disabled]), "{customers:?}");
    assert!((75..125).contains(&companies[&Kind::Deleted]), "{companies:?}");
    assert_eq!(companies.get(&Kind::Disabled), None);
}

#[test]
fn churn_brings_no_disabled_record_back() {
    let (mut world, clock) = world(&WorldSettings { customers: 30, ..small() });
    for index in 0..28 {
        world.act(customer(0, index), Kind::Disabled, &clock).unwrap();
    }
    let churn = Churn { updates: 3.0, deletes: 0.1, ..Churn::default() };

    let changes: Vec<_> = (0..50).flat_map(|_| world.churn(List::Customers(0), &churn, &clock)).collect();

    assert!(changes.iter().any(|change| change.kind == Kind::Updated));
    assert!(changes.iter().all(|change| change.place.index >= 28), "{changes:?}");
    assert_eq!(world.table(Resource::Customers, Some(0)).unwrap().enabled(), 0, "both left in the end");
}

#[test]
fn payroll_companies_come_change_and_go_in_whole_milliseconds() {
    let (mut world, clock) = world(&small());
    clock.advance(12_345);
    let first = world.payroll(ListOrder::Created);

    let updated = world.act_payroll(Some(3), Kind::Updated, &clock).unwrap();
    world.act_payroll(Some(0), Kind::Deleted, &clock).unwrap();
    let added = world.act_payroll(None, Kind::Created, &clock).unwrap();

    assert!(first.iter().chain([&updated]).all(|row| row.updated.0 % 10_000 == 0));
    assert_eq!((updated.revision, added.index, added.revision), (1, 10, 0));
    let list = |order| world.payroll(order).iter().map(|row| row.index).collect::<Vec<_>>();
    assert_eq!(list(ListOrder::Created), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(list(ListOrder::Newest), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(list(ListOrder::Changed)[8..], [3, 10]);
    assert_eq!(world.payroll_at(ListOrder::Created, Some(Ticks(NOW.0 - SECOND))), first);
    for (index, kind) in [(Some(0), Kind::Updated), (Some(99), Kind::Updated), (None, Kind::Disabled)] {
        assert_eq!(world.act_payroll(index, kind, &clock), None);
    }
    let churn = Churn { inserts: 2.0, deletes: 1.0, updates: 1.0 };
    world.churn_payroll(&churn, &clock);
    assert_eq!(world.payroll(ListOrder::Created).len(), 11);
}

#[test]
fn a_slice_of_payroll_is_that_part_of_the_whole_list() {
    let (mut world, clock) = world(&WorldSettings { payroll_companies: 9, ..small() });
    let compare = |world: &World| {
        for order in [ListOrder::Created, ListOrder::Newest, ListOrder::Scattered, ListOrder::Changed] {
            for as_of in [None, Some(NOW), Some(NOW.minus(std::time::Duration::from_secs(1)))] {
                let whole = world.payroll_at(order, as_of);
                for (offset, limit) in [(0, 4), (4, 4), (8, 4), (0, 99), (99, 4), (u64::MAX, usize::MAX)] {
                    let from = usize::try_from(offset).unwrap().min(whole.len());
                    let expected: Vec<_> = whole[from..].iter().take(limit).copied().collect();

                    let slice = world.payroll_slice(offset, limit, order, as_of);

                    assert_eq!(slice, (expected, whole.len() as u64), "{order:?} {as_of:?} {offset} {limit}");
                }
            }
        }
    };

    compare(&world);
    clock.advance(SECOND);
    for (index, kind) in
        [(Some(0), Kind::Deleted), (Some(5), Kind::Deleted), (Some(2), Kind::Updated), (None, Kind::Created)]
    {
        world.act_payroll(index, kind, &clock).unwrap();
        compare(&world);
    }
}

#[test]
fn invoicing_entities_come_change_and_go_as_their_kind_offers() {
    let (mut world, clock) = world(&WorldSettings { invoicing_entities: 1, ..small() });
    let mut act = |company, entity, action| world.act_invoicing(company, entity, action, &clock);

    let updated = act(0, Entity::Due, Action::Updated).unwrap();
    let created = act(0, Entity::Due, Action::Created).unwrap();
    let deleted =
        [act(0, Entity::Due, Action::Deleted).unwrap(), act(0, Entity::Due, Action::Deleted).unwrap()];

    assert_eq!((updated.revision, created.revision), (1, 0));
    let ids = [&updated, &created].map(|change| change.id.clone());
    assert_eq!(deleted.into_iter().map(|change| change.id).collect::<HashSet<_>>(), ids.into());
    assert!(act(0, Entity::Due, Action::Updated).is_none());
    assert!(act(1, Entity::Bank, Action::Updated).is_none());
    assert!(act(0, Entity::CompanyData, Action::Created).is_none());
    assert!(act(0, Entity::CompanyData, Action::Deleted).is_none());
    assert_eq!(act(0, Entity::CompanyData, Action::Updated).unwrap().number, 4);
}

/// Prints bytes a record; run it alone: `cargo test --lib -- --ignored --nocapture a_million_records`.
#[test]
#[ignore = "measures the process, so nothing else may run in it"]
fn a_million_records_stay_below_a_hundred_megabytes() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
    };
    let shape = |companies, customers, accounts, others| WorldSettings {
        companies,
        customers,
        accounts,
        others,
        ..WorldSettings::default()
    };
    // One large company; a usual spread; every resource of each company with two records; mostly companies.
    let mut kept = Vec::new();
    for settings in
        [shape(1, 1_000_000, 0, 0), shape(25_000, 20, 20, 0), shape(27_000, 2, 2, 2), shape(500_000, 1, 0, 0)]
    {
        let before = resident();
        let (mut world, _) = world(&settings);
        let view = View { order: ListOrder::Scattered, ..VIEW };
        for company in 0..settings.companies {
            assert_eq!(world.slice(List::Customers(company), 0, 1, &view).rows.len(), 1);
        }

        let bytes = resident() - before;

        let (companies, customers) = (settings.companies, settings.customers);
        println!("{companies} companies, {customers} customers: {} records, {bytes} bytes", world.living);
        assert!(bytes * 1_000_000 / world.living < 100_000_000);
        // Or the next would be given the same memory again, and seem to need none.
        kept.push(world);
    }
}
