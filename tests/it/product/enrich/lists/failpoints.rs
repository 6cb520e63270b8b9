//! The worker dies between two steps of writing a list: what is certified after it is what a calm run certifies.

use std::collections::BTreeSet;

use model::{AccountingResource, List, RunKind, Topic};
use simulator::{
    catalog::Resource,
    knobs::{Effect, HttpStatus},
};
use tributary::avro::embedded::EmbeddedRegistry;

use super::super::evidence::parked;
use super::super::input::limit;
use super::super::scene::{EnrichScene, Options};
use super::{all_of, sum};
use crate::support::stage::Backend;
use crate::support::{Error, Result, Shared, breakable};

crate::tests! {
    disturbing refused_row_is_counted_before_its_page_is_marked within 240;
    real thin_rows_are_read_before_their_page_is_marked within 240;
}

const COMPANIES: u32 = 2;

/// Kafka refuses every row, and the worker dies before it has written how many. Without the count a list whose last page is marked
/// as read would look complete.
async fn refused_row_is_counted_before_its_page_is_marked() -> Result<()> {
    let broker = breakable::take().await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let backend = Backend { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    let options = Options {
        properties: &[("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300")],
        settings: &[("snapshot.lists", "customers")],
        ..Options::default()
    };
    let mut scene = EnrichScene::start(backend, "lists-failpoints", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.others) = (COMPANIES, 2, 0);
    })
    .await?;
    let topic = scene.topic(Topic::AccountingRecords(AccountingResource::Customers));
    // Nothing can be read of the lists until the worker that will die is there.
    scene.spoil([(Effect::Html { status: HttpStatus::OK }, all_of(List::Customers))]);
    scene.ask_for("refused", RunKind::Snapshot, &[List::Customers]).await?;
    scene.stage.workers[0].kill();
    let since = scene.provider().gateway.request_count();
    scene.stage.workers[0].start_again_to_die("lists.refused").await?;
    scene.stage.reach(0)?;
    // A task checks its topics when it starts, so the limit comes after that. Smaller than any customer with its headers.
    scene.until("pages asked for", async || Ok(!scene.pages(List::Customers, since).is_empty())).await?;
    limit(&scene, &topic, Some("250")).await?;

    scene.calm();
    scene.stage.workers[0].dead().await?;
    limit(&scene, &topic, None).await?;
    scene.stage.workers[0].start_again().await?;
    scene.stage.reach(0)?;
    let progress = scene.until_over("refused").await?;

    let certified = sum(&progress, "certified");
    let evidence = scene.evidence().await?;
    let published: BTreeSet<_> =
        evidence.lines[&AccountingResource::Customers].iter().map(|line| line.key.clone()).collect();
    let living = scene.living().iter().filter(|place| place.resource == Resource::Customers).count();
    println!("lists, fail points: {certified} certified, {} of {living} records published", published.len());
    assert_eq!(sum(&progress, "ended"), u64::from(COMPANIES), "{progress:#?}");
    assert!(certified == 0 || published.len() == living, "certified without its records: {progress:#?}");
    Ok(())
}

/// The worker dies once rows have asked for their records and before their page is marked. Nothing is kept of what they asked for: the
/// next worker reads the page again.
async fn thin_rows_are_read_before_their_page_is_marked(shared: &'static Shared) -> Result<()> {
    let options = Options {
        settings: &[("snapshot.lists", "customers"), ("snapshot.rows", "thin")],
        ..Options::default()
    };
    let mut scene = EnrichScene::start(shared.into(), "lists-requests", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.others) = (COMPANIES, 2, 0);
        settings.knobs.reads.thin_rows = true;
    })
    .await?;
    // Nothing can be read of the lists until the worker that will die is there.
    scene.spoil([(Effect::Html { status: HttpStatus::OK }, all_of(List::Customers))]);
    scene.ask_for("thin", RunKind::Snapshot, &[List::Customers]).await?;
    scene.stage.workers[0].kill();
    scene.stage.workers[0].start_again_to_die("lists.requests.waiting").await?;
    scene.calm();
    scene.stage.workers[0].dead().await?;
    let waiting = parked(&scene).await?;
    scene.stage.workers[0].start_again().await?;
    scene.stage.reach(0)?;
    let progress = scene.until_over("thin").await?;

    let evidence = scene.evidence().await?;
    let lines = &evidence.lines[&AccountingResource::Customers];
    let living = scene.living().iter().filter(|place| place.resource == Resource::Customers).count();
    assert!(waiting.is_empty(), "{waiting:?}");
    assert_eq!(sum(&progress, "certified"), u64::from(COMPANIES), "{progress:#?}");
    assert_eq!(lines.len(), living, "each record once");
    Ok(())
}
