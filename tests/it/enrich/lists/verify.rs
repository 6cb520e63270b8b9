//! Topics that are compared with their lists: what differs is counted and left as it is.

use std::collections::BTreeMap;

use serde_json::Value;
use tributary::model::RunKind;
use tributary::simulator::catalog::{Kind, Resource};

use super::super::scene::{Options, Scene};
use super::{LISTED, LISTS, sum};
use crate::support::{Result, Shared};

crate::tests! {
    real what_differs_between_lists_and_topics_is_counted_and_only_a_snapshot_mends_it within 240;
}

async fn what_differs_between_lists_and_topics_is_counted_and_only_a_snapshot_mends_it(
    shared: &'static Shared,
) -> Result<()> {
    let options = Options {
        resources: &LISTED,
        settings: &[
            ("snapshot.mode", "initial"),
            ("snapshot.lists", "companies,customers,accounts"),
            ("page.size", "5"),
        ],
        ..Options::default()
    };
    let scene = Scene::start(shared.into(), "lists-verify", options, |settings| {
        settings.world.customers = 12;
    })
    .await?;
    scene.until_over("initial").await?;
    scene.warm().await?;
    let before = scene.evidence().await?.lines;
    let certificates = scene.certificates().await?;

    let healthy = scene.run("healthy", RunKind::Verify, &LISTS).await?;
    assert_eq!(differences(&healthy), BTreeMap::new());

    // Nobody hears of these.
    scene.provider().turn(|knobs| knobs.delivery.lose = 1.0);
    let changed: Vec<_> = scene
        .living()
        .into_iter()
        .filter(|place| place.index == 2 && place.resource != Resource::Companies)
        .collect();
    scene.update(&changed);
    scene.act(changed[0], Kind::Disabled);
    for company in 0..2 {
        scene.create(Resource::Customers, Some(company));
    }
    scene.settle().await?;
    scene.provider().turn(|knobs| knobs.delivery.lose = 0.0);
    let sick = scene.run("sick", RunKind::Verify, &LISTS).await?;

    let expected = [("behind".to_owned(), changed.len() as u64), ("missing".to_owned(), 2)];
    assert_eq!(differences(&sick), expected.into(), "{sick:#?}");
    assert_eq!(
        (sum(&sick, "published"), scene.evidence().await?.lines),
        (0, before),
        "comparing has written"
    );
    assert_eq!(scene.certificates().await?, certificates, "comparing proves nothing of what is published");

    let mended = scene.run("mended", RunKind::Snapshot, &LISTS).await?;
    let well = scene.run("well", RunKind::Verify, &LISTS).await?;
    scene.quiesce().await?;
    let verdict = scene.verdict().await?;

    println!(
        "lists, verify: {:?} of {} rows, then {:?}; {verdict}",
        differences(&sick),
        sum(&sick, "rows"),
        differences(&well)
    );
    assert_eq!(sum(&mended, "published"), changed.len() as u64 + 2);
    assert_eq!(differences(&well), BTreeMap::new());
    verdict.assert_sound();
    Ok(())
}

/// By kind, of all shards together.
fn differences(progress: &[Value]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (kind, count) in progress.iter().filter_map(|one| one["differences"].as_object()).flatten() {
        *found.entry(kind.clone()).or_default() += count.as_u64().unwrap();
    }
    found
}
