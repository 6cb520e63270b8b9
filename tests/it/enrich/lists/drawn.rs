//! Providers that are drawn: whatever the document leaves open, every record of the source is in its topic, what is certified misses
//! nothing, and nothing is deleted that is there.
//!
//! The gate runs the strict provider and one whose seed is the day. `TRIBUTARY_TEST_CYCLES` says how many there are, and
//! `TRIBUTARY_TEST_SEED` where they begin: a failure prints both.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use tributary::model::{List, RunKind, Topic};
use tributary::simulator::catalog::{Kind, Resource};
use tributary::simulator::knobs::{Knobs, ListOrder};

use super::super::checker::check;
use super::super::evidence;
use super::super::scene::{Options, RECORDS, Scene};
use crate::support::harness::Test;
use crate::support::{Error, Result, Shared, cycles};

/// Providers beside the strict one.
const DRAWN: u32 = 1;
/// What one may take, seconds.
const LIMIT: u64 = 120;
const PAYROLL: usize = 23;

/// All tests of this module.
pub(crate) fn tests() -> Vec<Test> {
    let name = concat!(module_path!(), "::every_record_of_a_drawn_provider_is_in_its_topic");
    let limit = LIMIT * u64::from(cycles(DRAWN) + 1);
    vec![Test::real(name, every_record_of_a_drawn_provider_is_in_its_topic).within(limit)]
}

async fn every_record_of_a_drawn_provider_is_in_its_topic(shared: &'static Shared) -> Result<()> {
    let first = seed();
    holds(shared, "strict", Knobs::default()).await?;
    for seed in first..first + u64::from(cycles(DRAWN)) {
        let held = holds(shared, &seed.to_string(), Knobs::drawn(seed)).await;
        held.map_err(|error| {
            let again = "cargo test --test it enrich::lists::drawn";
            Error(format!("repeat with TRIBUTARY_TEST_SEED={seed} {again}: {error}"))
        })?;
    }
    println!("drawn: the strict provider and {} drawn ones from seed {first}", cycles(DRAWN));
    Ok(())
}

/// As it was set, or the day.
fn seed() -> u64 {
    let set = std::env::var("TRIBUTARY_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let day = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    set.unwrap_or_else(day)
}

async fn holds(shared: &'static Shared, name: &str, knobs: Knobs) -> Result<()> {
    let resources = &[Resource::Companies, Resource::Customers, Resource::Accounts, Resource::Journals];
    let lists = [("snapshot.lists", "companies,customers,accounts,payroll"), ("page.size", "10")];
    let options = Options { resources, settings: &lists, ..Options::default() };
    let scene = Scene::start(shared.into(), &format!("drawn-{name}"), options, |settings| {
        let kept = settings.knobs.clone();
        settings.knobs = knobs;
        // How deliveries reach the worker, and how long it may be away, are the scene's.
        settings.knobs.delivery = kept.delivery;
        settings.knobs.accounting.retries = kept.accounting.retries;
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
    for (number, place) in places.iter().enumerate() {
        let [_, _, end, _] = place.resource.kinds();
        match number % 5 {
            0 => _ = scene.act(*place, Kind::Updated),
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
        if place.resource != Resource::Journals {
            assert!(last.contains_key(&scene.name(place)), "{place:?} is not in its topic");
        }
    }
    assert_eq!(certified, certificates.len(), "{certificates:#?}");
    let world = scene.provider().world().payroll(ListOrder::Created).len();
    let topic = evidence::read(&scene, &scene.topic(Topic::PayrollCompanies)).await?;
    let published: BTreeSet<_> = topic.iter().map(|record| record.key.clone()).collect();
    assert_eq!((world, published.len()), (PAYROLL + 1, PAYROLL + 1));
    Ok(())
}
