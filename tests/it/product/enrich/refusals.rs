//! Records that cannot be read and are not deleted: no tombstone, whatever the reason, and all records are read once it is over.

use std::collections::BTreeMap;

use serde_json::json;
use simulator::{
    catalog::{Kind, Resource},
    clock::ticks,
    knobs::{Effect, Fault, FaultTarget, HttpStatus},
    world::Place,
};

use super::checker::{RecordName, check};
use super::evidence::{gaps, lines, parked, tombstones};
use super::scene::{CONFIRM, EnrichScene, HOOKS, Options, RECORDS};
use crate::support::{Result, Shared};

crate::tests! {
    real a_lagging_replica_loses_no_record_and_makes_no_tombstone within 240;
    real an_unknown_gateway_path_makes_no_tombstone within 240;
    real a_refused_company_keeps_its_records_and_blocks_no_other within 240;
    real a_refused_grant_makes_no_tombstone_and_recovers_fully within 240;
    real an_ended_login_fails_tasks_with_a_remedy_and_loses_no_event within 240;
    real an_unreadable_record_is_a_dead_letter_and_gap_at_the_horizon within 240;
}

/// Longer than any retry lasts here.
const LAG: u64 = 3_600_000;

fn journals() -> Options<'static> {
    Options { resources: &[Resource::Journals, Resource::Customers], ..Options::default() }
}

async fn a_lagging_replica_loses_no_record_and_makes_no_tombstone(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::start(shared.into(), "enrich-lag", journals(), |_| {}).await?;
    scene.warm().await?;

    scene.provider().turn(|knobs| knobs.reads.replica_lag = LAG);
    let since = scene.provider().gateway.request_count();
    let first = scene.living();
    let mut changed: Vec<Place> = first.iter().filter(|place| place.index == 1).copied().collect();
    scene.update(&changed);
    // The replica does not know these yet, and answers as for deleted records.
    changed.extend((0..3).map(|company| scene.create(Resource::Journals, Some(company))));
    let deleted: Vec<Place> =
        first.into_iter().filter(|place| place.index == 0 && place.resource == Resource::Journals).collect();
    for place in &deleted {
        scene.act(*place, Kind::Deleted);
    }
    scene.settle().await?;
    scene.until_read_for_long(&changed, since).await?;
    let (waiting, during) = (parked(&scene).await?.len(), tombstones(&scene).await?);
    scene.calm();
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    println!("enrich, lag: {waiting} were parked behind a replica of an hour ago");
    assert!(waiting >= changed.len(), "{waiting}");
    assert_eq!((during, evidence.tombstones()), (0, deleted.len()));
    evidence.assert_clean();
    Ok(())
}

async fn an_unknown_gateway_path_makes_no_tombstone(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::start(shared.into(), "enrich-gateway", journals(), |_| {}).await?;
    scene.warm().await?;
    let journals: Vec<Place> =
        scene.living().into_iter().filter(|place| place.resource == Resource::Journals).collect();

    let ids =
        journals.iter().map(|place| FaultTarget { ending: Some(scene.id(*place)), ..FaultTarget::default() });
    fail(&scene, &Effect::UnknownPath, ids);
    let since = scene.provider().gateway.request_count();
    for place in &journals {
        let kind = if place.index == 0 { Kind::Deleted } else { Kind::Updated };
        scene.act(*place, kind);
    }
    let customers = scene.living().into_iter().filter(|place| place.resource == Resource::Customers);
    scene.update(&customers.collect::<Vec<_>>());
    scene.settle().await?;
    scene.until_read_for_long(&journals, since).await?;
    let during = tombstones(&scene).await?;
    scene.calm();
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    assert_eq!(during, 0, "an answer of the gateway was taken for one of the API");
    assert_eq!(evidence.tombstones(), journals.iter().filter(|place| place.index == 0).count());
    evidence.assert_clean();
    Ok(())
}

async fn a_refused_company_keeps_its_records_and_blocks_no_other(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::start(shared.into(), "enrich-revoked", journals(), |_| {}).await?;
    scene.warm().await?;

    for status in [404, 403] {
        let company = scene.provider().world().company_id(0);
        let status = HttpStatus::new(status).unwrap();
        fail(
            &scene,
            &Effect::Status(status),
            [FaultTarget { company: Some(company), ..FaultTarget::default() }],
        );
        let since = scene.provider().gateway.request_count();
        let living = scene.living();
        let (refused, others): (Vec<Place>, Vec<Place>) =
            living.iter().partition(|place| place.company == Some(0));
        scene.update(&living);
        scene.settle().await?;
        until_refused_for_long(&scene, since).await?;
        let during = parked(&scene).await?.len();
        let seen = versions(&scene).await?;
        scene.calm();
        scene.quiesce().await?;
        let evidence = scene.evidence().await?;

        println!("enrich, revoked: {during} of {} were parked at {status:?}", refused.len());
        assert_eq!(during, refused.len(), "{status:?}");
        for place in others {
            let version = evidence.fences[&scene.name(place)].version;
            assert_eq!(seen.get(&scene.name(place)), Some(&version), "{place:?} waited for another company");
        }
        assert_eq!(evidence.tombstones(), 0, "{status:?}");
        evidence.assert_clean();
    }
    Ok(())
}

async fn a_refused_grant_makes_no_tombstone_and_recovers_fully(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::start(shared.into(), "enrich-grant", journals(), |_| {}).await?;
    scene.warm().await?;

    let of_company = |number| {
        let company = Some(scene.provider().world().company_id(number));
        FaultTarget { company, ..FaultTarget::default() }
    };
    let list = FaultTarget { path: Some(Resource::Companies.prefix()), ..FaultTarget::default() };
    fail(&scene, &Effect::Status(HttpStatus::FORBIDDEN), (0..3).map(of_company).chain([list]));
    let since = scene.provider().gateway.request_count();
    for place in scene.living() {
        let is_deleted = place.resource == Resource::Journals && place.index == 0;
        scene.act(place, if is_deleted { Kind::Deleted } else { Kind::Updated });
    }
    until_refused_for_long(&scene, since).await?;
    let during = tombstones(&scene).await?;
    scene.calm();
    // A person restarts the failed tasks.
    scene.command("POST", "restart?includeTasks=true&onlyFailed=true", None, &[202, 204]).await?;
    scene.until_taken_over(&[0]).await?;
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    assert_eq!(during, 0);
    assert_eq!(evidence.tombstones(), 3, "one of each company");
    evidence.assert_clean();
    Ok(())
}

async fn an_ended_login_fails_tasks_with_a_remedy_and_loses_no_event(shared: &'static Shared) -> Result<()> {
    // The worker notices the end of the login when the token is due and a request needs it.
    let options = Options { settings: &[("companies.refresh.interval.ms", "2000")], ..journals() };
    let scene = EnrichScene::start(shared.into(), "enrich-login", options, |settings| {
        settings.knobs.identity.access_seconds = 8;
    })
    .await?;
    scene.warm().await?;

    let provider = scene.provider();
    provider.identity.revoke_all(provider.clock.now());
    let mut traces = Vec::new();
    scene
        .until("every task failed", async || {
            let (_, status) =
                scene.stage.ask(0, "GET", &format!("/connectors/{RECORDS}/status"), None).await?;
            let tasks = status["tasks"].as_array().cloned().unwrap_or_default();
            let failed = tasks.iter().filter(|task| task["state"] == "FAILED");
            traces = failed.map(|task| task["trace"].as_str().unwrap_or_default().to_owned()).collect();
            Ok(!tasks.is_empty() && traces.len() == tasks.len())
        })
        .await?;
    let before = tombstones(&scene).await?;
    for place in scene.living() {
        let is_deleted = place.resource == Resource::Journals && place.index == 0;
        scene.act(place, if is_deleted { Kind::Deleted } else { Kind::Updated });
    }
    // The remedy of the message, and nothing else.
    scene.stage.login(HOOKS).await?;
    scene.until_taken_over(&[0]).await?;
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    for trace in &traces {
        let command = format!("run `tributary auth login accounting --connector {RECORDS}`");
        assert!(trace.contains("LoginNeeded") && trace.contains(&command), "{trace}");
    }
    assert_eq!((before, evidence.tombstones()), (0, 3), "one of each company");
    evidence.assert_clean();
    Ok(())
}

async fn an_unreadable_record_is_a_dead_letter_and_gap_at_the_horizon(shared: &'static Shared) -> Result<()> {
    let options = Options { settings: &[("enrich.horizon.ms", "4000")], ..journals() };
    let scene = EnrichScene::start(shared.into(), "enrich-horizon", options, |_| {}).await?;
    scene.warm().await?;
    let living = scene.living();
    let broken = *living.iter().find(|place| place.resource == Resource::Journals).unwrap();

    let always = FaultTarget { ending: Some(scene.id(broken)), ..FaultTarget::default() };
    fail(&scene, &Effect::Status(HttpStatus::SERVER_ERROR), [always]);
    scene.update(&living);
    scene.quiesce().await?;
    let gaps = gaps(&scene, RECORDS).await?;
    scene.calm();
    let evidence = scene.evidence().await?;

    check(&evidence).assert_sound();
    let newest = evidence.events.iter().rev().find(|event| event.key.as_ref() == Some(&scene.name(broken).1));
    let letters: Vec<_> = evidence.letters.iter().map(|letter| letter.position.as_ref()).collect();
    assert_eq!(letters, [newest.map(|event| &event.position)], "{:?}", evidence.letters);
    let causes: Vec<_> = gaps.iter().map(|gap| (&gap["cause"], &gap["target"])).collect();
    assert_eq!(causes, [(&json!("unreadable"), &json!("accounting/journals"))], "{gaps:?}");
    assert_eq!(evidence.tombstones(), 0);
    Ok(())
}

/// Has the provider answer these requests with this effect. None of them concerns subscriptions, which are not under test.
fn fail(scene: &EnrichScene, effect: &Effect, on: impl IntoIterator<Item = FaultTarget>) {
    let fault = |on| Fault { on, effect: effect.clone(), share: 1.0, times: None, skip: 0 };
    scene.provider().set_faults(on.into_iter().map(fault).collect());
}

/// Waits until requests have been refused for three times [`CONFIRM`].
async fn until_refused_for_long(scene: &EnrichScene, since: u64) -> Result<()> {
    let long = async || {
        let requests = scene.provider().gateway.requests(since, usize::MAX);
        let mut refused = requests.iter().filter(|(_, request)| request.fault.is_some());
        let first = refused.next().map(|(_, request)| request.at.0);
        let last = refused.next_back().map(|(_, request)| request.at.0);
        Ok(first.zip(last).is_some_and(|(first, last)| last - first > ticks(3 * CONFIRM)))
    };
    scene.until("refused repeatedly", long).await
}

/// The last version of each key so far.
async fn versions(scene: &EnrichScene) -> Result<BTreeMap<RecordName, u64>> {
    let lines = lines(scene).await?.into_iter();
    let each = lines.flat_map(|(resource, lines)| lines.into_iter().map(move |line| (resource, line)));
    Ok(each.filter_map(|(resource, line)| Some(((resource, line.key), line.version?))).collect())
}
