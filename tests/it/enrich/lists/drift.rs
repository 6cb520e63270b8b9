//! Lists that change while they are read: what is proved complete is, and what is not says so.

use std::collections::BTreeSet;

use tributary::model::{List, RunKind};
use tributary::simulator::catalog::Resource;
use tributary::simulator::knobs::{Churn, DisabledShows, ListOrder};
use tributary::simulator::world::{Place, RecordState};

use super::super::checker::check;
use super::super::load::living;
use super::super::scene::{Options, Scene};
use super::sum;
use crate::support::{Result, Shared};

crate::tests! {
    real nothing_is_missing_of_a_certified_list_whatever_came_went_and_moved_while_it_was_read within 240;
}

const COMPANIES: u32 = 8;

async fn nothing_is_missing_of_a_certified_list_whatever_came_went_and_moved_while_it_was_read(
    shared: &'static Shared,
) -> Result<()> {
    let options = Options {
        resources: &[Resource::Customers],
        settings: &[("snapshot.lists", "companies,customers"), ("page.size", "20")],
        ..Options::default()
    };
    let scene = Scene::start(shared.into(), "lists-drift", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.accounts) = (COMPANIES, 200, 0);
        settings.world.others = 0;
        let reads = &mut settings.knobs.reads;
        // What changes goes to the end, and what is disabled goes.
        (reads.order, reads.disabled) = (ListOrder::Changed, DisabledShows::ById);
    })
    .await?;
    let before: BTreeSet<Place> = listed(&scene).collect();

    scene.provider().turn(|knobs| {
        knobs.reads.churn = Churn { inserts: 0.3, deletes: 0.05, updates: 0.6 };
    });
    let progress = scene.run("drift", RunKind::Snapshot, &[List::Customers]).await?;
    scene.provider().turn(|knobs| knobs.reads.churn = Churn::default());
    // All that was there from the first page to the last, told of or not.
    let throughout: Vec<Place> = listed(&scene).filter(|place| before.contains(place)).collect();
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let verdict = check(&evidence);
    let told: BTreeSet<&String> = evidence.events.iter().filter_map(|event| event.key.as_ref()).collect();
    let certificates = scene.certificates().await?;
    let certified = certificates.values().filter(|one| one.certified);
    let certified: BTreeSet<String> =
        certified.filter_map(|one| Some(one.company_id.as_ref()?.to_string())).collect();

    let last = evidence.last();
    let (mut held, mut missing) = (0, Vec::new());
    let mut open = 0;
    for place in throughout {
        let name = scene.name(place);
        let is_there = last.contains_key(&name);
        if certified.contains(&scene.provider().world().company_id(place.company.unwrap())) {
            held += usize::from(!told.contains(&name.1));
            missing.extend((!is_there).then_some(name));
        } else {
            open += usize::from(!is_there);
        }
    }
    println!(
        "lists, drift: {} of {} certified, {} passes; {held} records of theirs nobody told of; {} changes told; of the others {open} \
         are missing; {verdict}",
        certified.len(),
        certificates.len(),
        certificates.values().map(|one| one.passes).sum::<i32>(),
        evidence.events.len()
    );
    verdict.assert_sound();
    assert_eq!(missing, [], "of certified lists");
    assert!(!certified.is_empty() && held > 100, "{certificates:#?}");
    // The list of companies is read as well, and grows by that.
    assert_eq!(certificates.len() as u64, sum(&progress, "ended"));
    assert!(certificates.len() as u64 >= COMPANIES.into());
    for one in certificates.values().filter(|one| !one.certified) {
        assert!(one.reason.is_some() && one.missing_at_most != Some(0), "{one:?}");
    }
    Ok(())
}

/// What lists show.
fn listed(scene: &Scene) -> impl Iterator<Item = Place> {
    let world = scene.provider().world();
    let disabled: BTreeSet<Place> = world
        .records(Resource::Customers)
        .filter(|(_, row)| row.state == RecordState::Disabled)
        .map(|(place, _)| place)
        .collect();
    drop(world);
    living(scene.provider(), Resource::Customers).into_iter().filter(move |place| !disabled.contains(place))
}
