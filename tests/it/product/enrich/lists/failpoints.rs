//! The worker dies between two steps of writing a list: what is certified after it is what a calm run certifies.

use model::{List, RunKind, Topic};
use simulator::knobs::{Effect, Status};
use tributary::avro::embedded::EmbeddedRegistry;

use super::super::input::limit;
use super::super::scene::{EnrichScene, Options};
use super::all_of;
use crate::support::stage::Backend;
use crate::support::{Error, Result, breakable};

crate::tests! {
    disturbing refused_row_is_counted_before_its_page_is_marked within 240;
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
    // Smaller than any customer with its headers.
    limit(&scene, &scene.topic(Topic::AccountingRecords(model::AccountingResource::Customers)), "250")
        .await?;
    // Nothing can be read of the lists until the worker that will die is there.
    scene.spoil([(Effect::Html { status: Status::OK }, all_of(List::Customers))]);
    scene.ask_for("refused", RunKind::Snapshot, &[List::Customers]).await?;

    scene.stage.workers[0].kill();
    scene.calm();
    scene.stage.workers[0].start_again_to_die("lists.refused").await?;
    scene.stage.reach(0)?;
    scene.stage.workers[0].dead().await?;
    scene.stage.workers[0].start_again().await?;
    scene.stage.reach(0)?;
    let progress = scene.until_over("refused").await?;

    let certificates = scene.certificates_of("refused").await?;
    println!("lists, fail points: {certificates:#?}");
    assert_eq!(certificates.len(), COMPANIES as usize, "{progress:#?}");
    for (key, one) in &certificates {
        assert!(!one.certified && one.reason.is_some(), "{key} is certified without its records: {one:?}");
    }
    Ok(())
}
