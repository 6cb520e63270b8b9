//! The world against a model that keeps every state of every record and sorts whenever it is asked.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// All states of each record, oldest first.
struct Model {
    timelines: BTreeMap<Place, Vec<WorldRow>>,
}

/// What a test does to the world; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Act {
    Create(Resource, u32),
    Change(usize, Kind),
    Restore(u32, usize),
    Step,
    Churn(u32),
}

const COMPANIES: u32 = 3;

fn settings() -> WorldSettings {
    WorldSettings {
        seed: 5,
        companies: COMPANIES,
        customers: 18,
        accounts: 2,
        others: 1,
        tenant_resources: [Resource::Persons].into(),
        // More than any test changes, so that the model need not forget.
        history: 1_000,
        ..WorldSettings::default()
    }
}

impl Model {
    fn new(world: &World) -> Self {
        let timelines = Resource::ALL
            .into_iter()
            .flat_map(|resource| world.records(resource))
            .map(|(place, row)| (place, vec![row]))
            .collect();
        Self { timelines }
    }

    fn apply(&mut self, change: &RecordChange) {
        let timeline = self.timelines.entry(change.place).or_default();
        match change.kind {
            Kind::ErrorOccurred => assert_eq!(timeline.last(), Some(&change.row)),
            kind => {
                assert_eq!(kind == Kind::Created, timeline.is_empty());
                assert!(timeline.last().is_none_or(|last| last.sequence < change.row.sequence));
                assert!(timeline.last().is_none_or(|last| last.changed < change.row.changed));
                timeline.push(change.row);
            }
        }
    }

    fn restore(&mut self, company: CompanyNumber, to: Ticks) {
        for (_, timeline) in self.timelines.iter_mut().filter(|(place, _)| owner(place) == Some(company)) {
            timeline.retain(|row| row.changed <= to);
        }
        self.timelines.retain(|_, timeline| !timeline.is_empty());
    }

    fn at(&self, place: &Place, as_of: Option<Ticks>) -> Option<WorldRow> {
        let states = self.timelines.get(place)?;
        let row = *states.iter().rfind(|row| as_of.is_none_or(|moment| row.changed <= moment))?;
        let reachable = place.company.is_none_or(|company| {
            self.at(&Place { resource: Resource::Companies, company: None, index: company }, as_of).is_some()
        });
        (reachable && row.state != RecordState::Deleted).then_some(row)
    }

    fn list(&self, list: List, view: &WorldView) -> Vec<(Place, WorldRow)> {
        let (resource, company) = list;
        let mut rows: Vec<(Place, WorldRow)> = self
            .timelines
            .keys()
            .filter(|place| place.resource == resource && place.company == company)
            .filter_map(|place| self.at(place, view.as_of).map(|row| (*place, row)))
            .filter(|(_, row)| {
                view.disabled == DisabledShows::Everywhere || row.state != RecordState::Disabled
            })
            .collect();
        match view.order {
            // The scattered order is the world's own; the caller compares without it.
            ListOrder::Created | ListOrder::Scattered => rows.sort_by_key(|(place, _)| place.index),
            ListOrder::Newest => rows.sort_by_key(|(place, _)| std::cmp::Reverse(place.index)),
            ListOrder::Changed => rows.sort_by_key(|(_, row)| row.changed),
        }
        rows
    }

    fn moments(&self) -> Vec<Ticks> {
        let mut moments: Vec<Ticks> = self.timelines.values().flatten().map(|row| row.changed).collect();
        moments.sort_unstable();
        moments
    }
}

fn owner(place: &Place) -> Option<CompanyNumber> {
    if place.resource == Resource::Companies { Some(place.index) } else { place.company }
}

fn acts() -> impl Strategy<Value = Act> {
    let resource = prop::sample::select(vec![
        Resource::Customers,
        Resource::Accounts,
        Resource::Companies,
        Resource::Persons,
    ]);
    let kind = prop::sample::select(vec![
        Kind::Updated,
        Kind::Updated,
        Kind::Disabled,
        Kind::Deleted,
        Kind::ErrorOccurred,
        Kind::Created,
    ]);
    prop_oneof![
        3 => (resource, 0..COMPANIES + 2).prop_map(|(resource, company)| Act::Create(resource, company)),
        8 => (any::<usize>(), kind).prop_map(|(at, kind)| Act::Change(at, kind)),
        1 => (0..COMPANIES + 2, any::<usize>()).prop_map(|(company, at)| Act::Restore(company, at)),
        2 => Just(Act::Step),
        1 => (0..COMPANIES + 2).prop_map(Act::Churn),
    ]
}

fn perform(act: &Act, world: &mut World, model: &mut Model, clock: &Clock) {
    let changes = match *act {
        Act::Create(resource, company) => {
            let company = (!world.is_tenant_wide(resource)).then_some(company);
            world.create(resource, company, clock).into_iter().collect()
        }
        Act::Change(at, kind) => {
            let place = *model.timelines.keys().nth(at % model.timelines.len()).unwrap();
            let lives = model.at(&place, None).is_some();
            let change = world.act(place, kind, clock);
            let state = model.timelines[&place].last().unwrap().state;
            let offered = place.resource.kinds().contains(&kind)
                && kind != Kind::Created
                && (kind, state) != (Kind::Disabled, RecordState::Disabled);
            assert_eq!(change.is_some(), lives && offered, "{place:?} {kind:?}");
            change.into_iter().collect()
        }
        Act::Restore(company, at) => {
            let moments = model.moments();
            let to = moments[at % moments.len()];
            world.restore(company, to);
            model.restore(company, to);
            Vec::new()
        }
        Act::Step => match world.step(clock) {
            WorldChange::Record(change) => vec![change],
            WorldChange::Payroll | WorldChange::Invoicing(_) => Vec::new(),
        },
        Act::Churn(company) => {
            let churn = crate::knobs::Churn { inserts: 0.7, deletes: 0.7, updates: 0.7 };
            world.churn((Resource::Customers, Some(company)), &churn, clock)
        }
    };
    for change in &changes {
        model.apply(change);
    }
}

fn compare(world: &World, model: &Model, view: &WorldView) {
    let lists = (0..COMPANIES + 2)
        .flat_map(|company| [(Resource::Customers, Some(company)), (Resource::Accounts, Some(company))]);
    for list in lists.chain([(Resource::Companies, None)]) {
        let expected = model.list(list, view);
        let (mut rows, total) = world.slice(list, 0, usize::MAX, view);
        let (middle, middle_total) = world.slice(list, 1, 2, view);

        assert_eq!(total, expected.len() as u64);
        assert_eq!(middle_total, total);
        assert_eq!(middle, rows.iter().skip(1).take(2).copied().collect::<Vec<_>>());
        assert!(world.slice(list, total, 5, view).0.is_empty());
        if view.order == ListOrder::Scattered {
            rows.sort_by_key(|(place, _)| place.index);
        }
        assert_eq!(rows, expected, "{list:?} {view:?}");
    }
    for place in model.timelines.keys() {
        let id = world.id(*place);
        let hidden = view.disabled == DisabledShows::Nowhere;
        let expected = model
            .at(place, view.as_of)
            .filter(|row| !(hidden && row.state == RecordState::Disabled))
            .map(|row| (*place, row));

        assert_eq!(world.record(place.resource, place.company, &id, view), expected);
        assert_eq!(world.record(place.resource, Some(77), &id, view), None);
        assert_eq!(world.find(place.resource, &id).map(|(found, _)| found), Some(*place));
    }
    let living = model.timelines.keys().filter(|place| model.at(place, None).is_some()).count();
    assert_eq!(world.living, living as u64);
    let known = Resource::ALL.into_iter().flat_map(|resource| world.records(resource)).count();
    assert_eq!(known, model.timelines.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_world_agrees_with_a_model_that_keeps_every_state(
        acts in prop::collection::vec(acts(), 1..60),
        order in prop::sample::select(vec![
            ListOrder::Created, ListOrder::Newest, ListOrder::Scattered, ListOrder::Changed,
        ]),
        disabled in prop::sample::select(vec![
            DisabledShows::Everywhere, DisabledShows::ById, DisabledShows::Nowhere,
        ]),
        moment in any::<usize>(),
    ) {
        let clock = Clock::new(Some(Ticks(1_000_000_000_000_000)));
        let mut world = World::new(&settings(), &clock);
        let mut model = Model::new(&world);

        for act in &acts {
            perform(act, &mut world, &mut model, &clock);
            compare(&world, &model, &WorldView { as_of: None, disabled, order });
        }

        let moments = model.moments();
        for moment in [moments[moment % moments.len()], Ticks(moments[moments.len() - 1].0 - 1)] {
            compare(&world, &model, &WorldView { as_of: Some(moment), disabled, order });
        }
    }
}
