//! Providers that are drawn: whatever the document leaves open, every record of the source is in its topic, what is certified misses
//! nothing, and nothing is deleted that is there.

use std::collections::BTreeSet;

use model::{List, RunKind};
use simulator::catalog::{Kind, Resource};

use super::super::checker::check;
use super::super::scene::{Options, RECORDS, Scene};
use crate::support::drawn::{self, Drawn};
use crate::support::harness::Test;
use crate::support::{Result, Shared};

/// What one may take, seconds.
const LIMIT: u64 = 120;
const PAYROLL: usize = 23;

/// All tests of this module.
pub(crate) fn tests() -> Vec<Test> {
    let name = concat!(module_path!(), "::every_record_of_a_drawn_provider_is_in_its_topic");
    let limit = LIMIT * u64::from(drawn::count());
    vec![Test::real(name, every_record_of_a_drawn_provider_is_in_its_topic).within(limit)]
}

async fn every_record_of_a_drawn_provider_is_in_its_topic(shared: &'static Shared) -> Result<()> {
    drawn::try_all(|provider| holds(shared, provider)).await
}

async fn holds(shared: &'static Shared, provider: Drawn) -> Result<()> {
    let resources = &[Resource::Companies, Resource::Customers, Resource::Accounts, Resource::Journals];
    let lists = [("snapshot.lists", "companies,customers,accounts,payroll"), ("page.size", "10")];
    let options = Options { resources, settings: &lists, ..Options::default() };
    let name = &provider.name;
    let scene = Scene::start(shared.into(), &format!("drawn-{name}"), options, |settings| {
        provider.turn(settings);
        let world = &mut settings.world;
        (world.companies, world.customers, world.accounts) = (3, 12, 7);
        world.payroll_companies = PAYROLL as u32;
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;
    let places: BTreeSet<_> = scene.living().into_iter().collect();
    scene
        .run("first", RunKind::Snapshot, &[List::Companies, List::Customers, List::Accounts, List::Payroll])
        .await?;

    // Records are changed, made, disabled and deleted, and an incremental run reads payroll.
    let mut told = BTreeSet::new();
    for (number, place) in places.iter().enumerate() {
        let [_, _, end, _] = place.resource.kinds();
        match number % 5 {
            0 => {
                scene.act(*place, Kind::Updated);
                told.insert(*place);
            }
            1 if place.resource != Resource::Companies => _ = scene.act(*place, end),
            _ => {}
        }
    }
    scene.provider().change(|world, clock| {
        for (index, kind) in [(Some(3), Kind::Updated), (None, Kind::Created)] {
            assert!(world.act_payroll(index, kind, clock).is_some());
        }
        ((), Vec::new())
    });
    scene.quiesce().await?;
    let asked = serde_json::json!({ "id": "changed", "lists": ["payroll"], "incremental": true });
    let path = format!("/connectors/{RECORDS}/snapshots");
    let (status, answer) = scene.stage.ask(0, "POST", &path, Some(&asked)).await?;
    assert_eq!(status, 202, "{answer}");
    scene.until_over("changed").await?;

    let certificates = scene.certificates_of("first").await?;
    let seen = scene.evidence().await?;
    let verdict = check(&seen);
    let certified = certificates.values().filter(|one| one.certified).count();
    println!("drawn {name}: {certified} of {} lists certified; {verdict}", certificates.len());
    verdict.assert_sound();
    let last = seen.last();
    for place in scene.living() {
        // What no list shows is told of by events alone.
        if place.resource != Resource::Journals || told.contains(&place) {
            assert!(last.contains_key(&scene.name(place)), "{place:?} is not in its topic");
        }
    }
    assert_eq!(certified, certificates.len(), "{certificates:#?}");
    let truth = super::payroll::truth(&scene);
    assert_eq!(truth.len(), PAYROLL + 1);
    assert_eq!(super::payroll::last(&super::payroll::published(&scene).await?), truth);
    Ok(())
}
