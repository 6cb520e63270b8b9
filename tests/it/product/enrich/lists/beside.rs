//! Lists that are read beside events: every record is published and certified, and reading them again writes nothing.

use model::RunKind;
use simulator::{
    catalog::{Kind, Resource},
    knobs::{Churn, ListOrder},
};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options, PARTITIONS};
use super::{LISTED, LISTS, sum};
use crate::support::{Result, Shared};

crate::tests! {
    real lists_are_certified_beside_events_and_rereads_write_nothing within 240;
}

/// Reads lists from the start.
const SETTINGS: [(&str, &str); 3] =
    [("snapshot.mode", "initial"), ("snapshot.lists", "companies,customers,accounts"), ("page.size", "5")];

async fn lists_are_certified_beside_events_and_rereads_write_nothing(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &LISTED, settings: &SETTINGS, ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "lists", options, |settings| {
        settings.knobs.reads.order = ListOrder::Scattered;
    })
    .await?;
    for place in scene.living().iter().filter(|place| place.index % 3 == 1) {
        scene.act(*place, Kind::Updated);
    }

    let progress = scene.until_over("initial").await?;
    scene.quiesce().await?;

    let evidence = scene.evidence().await?;
    let verdict = check(&evidence);
    let certificates = scene.certificates().await?;
    println!("lists: {verdict}; {} certificates; {progress:#?}", certificates.len());
    verdict.assert_sound();
    let last = evidence.last();
    for place in scene.living() {
        assert!(last.contains_key(&scene.name(place)), "{place:?} is not there");
    }
    for (key, certificate) in &certificates {
        assert!(certificate.certified, "{key}: {certificate:?}");
        assert_eq!(certificate.records.vanished_count, 0, "{key}");
    }
    let companies = scene.living().iter().filter(|place| place.resource == Resource::Companies).count();
    assert_eq!(certificates.len(), 2 * companies + PARTITIONS as usize);
    assert_eq!(sum(&progress, "certified"), sum(&progress, "lists"));

    // Again, and nothing has changed.
    let before = evidence.published();
    let again = scene.run("again", RunKind::Snapshot, &LISTS).await?;
    assert_eq!((sum(&again, "published"), sum(&again, "certified")), (0, sum(&again, "lists")), "{again:#?}");
    assert_eq!(scene.evidence().await?.published(), before);

    // While the lists change, the topics still match the provider.
    scene.provider().turn(|knobs| {
        knobs.reads.churn = Churn { inserts: 0.3, deletes: 0.0, updates: 0.5 };
    });
    let drift = scene.run("drift", RunKind::Snapshot, &LISTS[1..]).await?;
    scene.provider().turn(|knobs| knobs.reads.churn = Churn::default());
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let verdict = check(&evidence);
    println!(
        "lists, drifting: {verdict}; {} of {} certified",
        sum(&drift, "certified"),
        sum(&drift, "lists")
    );
    verdict.assert_sound();
    Ok(())
}
