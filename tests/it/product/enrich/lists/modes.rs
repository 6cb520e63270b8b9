//! When lists are read without a request: by `snapshot.mode`, and by schedule.

use serde_json::{Value, json};
use simulator::catalog::{Kind, Resource};

use super::super::scene::{EnrichScene, Options, RECORDS};
use crate::support::{Error, Result, Shared};

crate::tests! {
    real lists_are_read_when_the_mode_says_so_and_again_by_schedule within 300;
}

async fn lists_are_read_when_the_mode_says_so_and_again_by_schedule(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &[Resource::Customers], ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "lists-modes", options, |_| {}).await?;
    let turn = async |settings: &[(&str, &str)]| {
        let all: Vec<_> = [("snapshot.lists", "customers")].iter().chain(settings).copied().collect();
        scene.stage.configure(RECORDS, &scene.fetching(&all)).await
    };

    // Never.
    scene.warm().await?;
    assert_eq!(runs(&scene).await?, Vec::<Value>::new());

    // Once.
    turn(&[("snapshot.mode", "initial")]).await?;
    let initial = until_certified(&scene, "initial").await?;
    assert_eq!(initial["id"], "initial");

    // At the start, and whenever the schedule says so: every minute.
    turn(&[("snapshot.mode", "always"), ("snapshot.schedule", "* * * * *")]).await?;
    let started = until_certified(&scene, "start").await?;
    let scheduled = until_certified(&scene, "schedule").await?;
    for run in [&started, &scheduled] {
        assert_eq!((&run["published"], &run["lists"]), (&json!(0), &json!(["customers"])), "{run}");
    }

    // Once and then no more: later events are not processed, and a requested list shows the change.
    scene.stop().await?;
    turn(&[("snapshot.mode", "initial_only")]).await?;
    scene.resume().await?;
    let (known, before) = (runs(&scene).await?, scene.outcomes().await?);
    let changed = scene.living()[0];
    let version = scene.act(changed, Kind::Updated);
    scene.provider().deliveries.idle().await;
    scene.post_run(json!({ "id": "by-hand" })).await?;
    let by_hand = until_certified(&scene, "rest").await?;
    let last = scene.evidence().await?.last()[&scene.name(changed)].version;

    println!("lists, modes: {}, {}, {} and {}", initial["id"], started["id"], scheduled["id"], by_hand["id"]);
    assert_eq!((&by_hand["published"], last), (&json!(1), Some(version)), "{by_hand}");
    assert_eq!(runs(&scene).await?.len(), known.len() + 1);
    assert_eq!(scene.outcomes().await?, before, "an event was followed");
    Ok(())
}

/// Every run.
async fn runs(scene: &EnrichScene) -> Result<Vec<Value>> {
    let (status, answer) =
        scene.stage.ask(0, "GET", &format!("/connectors/{RECORDS}/snapshots"), None).await?;
    let runs = answer["snapshots"].as_array().filter(|_| status == 200).cloned();
    runs.ok_or_else(|| Error(format!("runs: {status} {answer}")))
}

/// Waits until a run with this requester is over and certified.
async fn until_certified(scene: &EnrichScene, by: &str) -> Result<Value> {
    let mut found = None;
    scene
        .until(&format!("a run by {by} certified"), async || {
            let is_it = |run: &Value| run["requestedBy"] == by && run["certified"] == true;
            found = runs(scene).await?.into_iter().find(is_it);
            Ok(found.is_some())
        })
        .await?;
    found.ok_or_else(|| Error(format!("no run by {by}")))
}
