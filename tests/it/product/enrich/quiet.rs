//! A provider without faults: whatever changes in any of the nineteen resources, the topics match the provider.

use simulator::catalog::{Kind, Resource};

use super::checker::{self, Evidence, check};
use super::scene::{EnrichScene, Options, ours};
use crate::support::{Result, Shared};

crate::tests! {
    real every_record_of_all_nineteen_resources_matches_the_provider within 240;
}

/// Consecutive changes of one record, which one read may cover.
const BURST: usize = 5;
/// Its records belong to no company: their events name none, and reads have `context: none`.
const TENANT_WIDE: Resource = Resource::IntegrationFiles;

async fn every_record_of_all_nineteen_resources_matches_the_provider(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &Resource::ALL, ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "enrich-quiet", options, |settings| {
        settings.world.tenant_resources.insert(TENANT_WIDE);
    })
    .await?;

    let (mut ended, mut deletes) = (Vec::new(), 0);
    let first = scene.living();
    for place in first.iter().filter(|place| place.index == 0) {
        for _ in 0..BURST {
            scene.act(*place, Kind::Updated);
        }
        scene.act(*place, Kind::ErrorOccurred);
        if place.resource != Resource::Companies {
            scene.create(place.resource, place.company);
        }
    }
    for place in first.iter().filter(|place| place.index == 1 && place.resource != Resource::Companies) {
        let [_, _, end, _] = place.resource.kinds();
        scene.act(*place, end);
        ended.push((*place, end));
        deletes += usize::from(end == Kind::Deleted);
    }
    // The worker does not know this company when its records come.
    let company = scene.create(Resource::Companies, None).index;
    for resource in [Resource::Customers, Resource::Accounts, Resource::Journals, Resource::Persons] {
        let place = scene.create(resource, Some(company));
        scene.act(place, Kind::Updated);
    }
    scene.quiesce().await?;
    let reads = reads(&scene);
    let evidence = scene.evidence().await?;
    let verdict = check(&evidence);
    let outcomes = scene.outcomes().await?;

    println!("enrich, quiet: {verdict}; {reads} reads by id; {outcomes:?}");
    verdict.assert_sound();
    assert!(evidence.letters.is_empty(), "{:?}", evidence.letters);
    assert_eq!(evidence.tombstones(), deletes);
    let last = evidence.last();
    for (place, _) in ended.iter().filter(|(_, end)| *end == Kind::Disabled) {
        let value = last[&scene.name(*place)].value.as_ref();
        assert_eq!(value.map(|value| &value["state"]), Some(&"Disabled".into()), "{place:?}");
    }
    let tenant = format!("{}/", scene.provider().settings.tenant);
    assert!(last.keys().any(|(resource, key)| *resource == ours(TENANT_WIDE) && key.starts_with(&tenant)));
    // Each event has one outcome.
    let ends: u64 = outcomes.iter().filter(|(outcome, _)| *outcome != "parked").map(|(_, count)| count).sum();
    assert_eq!(ends, evidence.events.len() as u64, "{outcomes:?}");
    assert_eq!(outcomes.get("filtered").copied().unwrap_or(0), silent(&evidence), "{outcomes:?}");
    Ok(())
}

/// Events that require no read.
fn silent(evidence: &Evidence) -> u64 {
    evidence.events.iter().filter(|event| event.kind == checker::EventClass::Silent).count() as u64
}

/// Requests for single records so far.
fn reads(scene: &EnrichScene) -> usize {
    let prefixes: Vec<String> = scene.resources.iter().map(|one| format!("{}/", one.prefix())).collect();
    let requests = scene.provider().gateway.requests(0, usize::MAX);
    let by_id = requests.iter().filter(|(_, request)| {
        request.method == "GET"
            && !request.target.contains('?')
            && prefixes.iter().any(|prefix| request.target.starts_with(&**prefix))
            && !request.target.contains("webhook")
    });
    by_id.count()
}
