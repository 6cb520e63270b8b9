//! Drawn providers, which vary what the API documentation leaves open: every record of the source is in its topic, certified lists
//! miss nothing, and no existing record is deleted.

use std::collections::BTreeSet;

use model::{List, RunKind};
use serde_json::Value;
use simulator::catalog::{Kind, Resource};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options, RECORDS};
use crate::support::command::{stderr, stdout, tributary};
use crate::support::drawn::{self, DrawnProvider};
use crate::support::{Result, Shared};

/// Limit for one provider, seconds.
const LIMIT: u64 = 120;
const PAYROLL: usize = 23;

crate::tests! {
    real every_record_of_a_drawn_provider_is_in_its_topic limit (LIMIT * u64::from(drawn::count()));
    real settings_that_a_probe_proposes_lead_to_certificates limit (LIMIT * u64::from(drawn::count()));
}

async fn every_record_of_a_drawn_provider_is_in_its_topic(shared: &'static Shared) -> Result<()> {
    drawn::try_all(|provider| holds(shared, provider)).await
}

async fn settings_that_a_probe_proposes_lead_to_certificates(shared: &'static Shared) -> Result<()> {
    drawn::try_all(|provider| certifies(shared, provider)).await
}

async fn certifies(shared: &'static Shared, provider: DrawnProvider) -> Result<()> {
    let resources = &[Resource::Companies, Resource::Customers, Resource::Accounts];
    let name = &provider.name;
    let options = Options { resources, ..Options::default() };
    let scene = EnrichScene::start(shared.into(), &format!("probed-{name}"), options, |settings| {
        provider.apply(settings);
        let world = &mut settings.world;
        (world.companies, world.customers, world.accounts) = (8, 12, 12);
        world.payroll_companies = PAYROLL as u32;
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;

    // With the grants that the worker has.
    let config = scene.stage.workers[0].config().display().to_string();
    let probe = ["probe", "--connector", RECORDS, "--config", &config, "--rate", "100", "--output", "json"];
    let output = tributary(&probe, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let proposed = report["settings"].as_object().unwrap().iter();
    let settings: Vec<_> = proposed.map(|(key, value)| (key.as_str(), value.as_str().unwrap())).collect();
    println!("drawn {name}: proposed {settings:?}");
    scene.stage.configure(RECORDS, &scene.fetching(&settings)).await?;
    scene.until_taken_over(&[0]).await?;
    let lists = [List::Companies, List::Customers, List::Accounts, List::Payroll];
    scene.run("probed", RunKind::Snapshot, &lists).await?;

    let certificates = scene.certificates_of("probed").await?;
    assert!(certificates.len() >= lists.len(), "{certificates:#?}");
    assert!(certificates.values().all(|one| one.certified), "{certificates:#?}");
    Ok(())
}

async fn holds(shared: &'static Shared, provider: DrawnProvider) -> Result<()> {
    let resources = &[Resource::Companies, Resource::Customers, Resource::Accounts, Resource::Journals];
    let lists = [("snapshot.lists", "companies,customers,accounts,payroll"), ("page.size", "10")];
    let options = Options { resources, settings: &lists, ..Options::default() };
    let name = &provider.name;
    let scene = EnrichScene::start(shared.into(), &format!("drawn-{name}"), options, |settings| {
        provider.apply(settings);
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
    let mut updated = BTreeSet::new();
    for (number, place) in places.iter().enumerate() {
        let [_, _, end, _] = place.resource.kinds();
        match number % 5 {
            0 => {
                scene.act(*place, Kind::Updated);
                updated.insert(*place);
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
    scene.post_run(serde_json::json!({ "id": "changed", "lists": ["payroll"], "incremental": true })).await?;
    scene.until_over("changed").await?;

    let certificates = scene.certificates_of("first").await?;
    let seen = scene.evidence().await?;
    let verdict = check(&seen);
    let certified = certificates.values().filter(|one| one.certified).count();
    println!("drawn {name}: {certified} of {} lists certified; {verdict}", certificates.len());
    verdict.assert_sound();
    let last = seen.last();
    for place in scene.living() {
        // Records without a list are published only if they have an event.
        if place.resource != Resource::Journals || updated.contains(&place) {
            assert!(last.contains_key(&scene.name(place)), "{place:?} is not in its topic");
        }
    }
    assert_eq!(certified, certificates.len(), "{certificates:#?}");
    let truth = super::payroll::truth(&scene);
    assert_eq!(truth.len(), PAYROLL + 1);
    assert_eq!(super::payroll::last(&super::payroll::published(&scene).await?), truth);
    Ok(())
}
