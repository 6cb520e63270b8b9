//! Rows with only some members of the record: the whole record is published nevertheless.

use futures::future::try_join_all;
use model::RunKind;
use simulator::knobs::{Effect, Fault, FaultTarget, HttpStatus};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options};
use super::{LISTED, LISTS, sum};
use crate::support::{Result, Shared};

crate::tests! {
    real partial_rows_publish_the_whole_record_exactly_once within 240;
}

async fn partial_rows_publish_the_whole_record_exactly_once(shared: &'static Shared) -> Result<()> {
    // Both at once: most of the time is waiting.
    try_join_all([false, true].map(|unreadable| Box::pin(reads_thin_rows(shared, unreadable)))).await?;
    Ok(())
}

/// Reads the lists of a provider twice; where customers are unreadable, the first reads of single customers fail.
async fn reads_thin_rows(shared: &'static Shared, unreadable: bool) -> Result<()> {
    let options = Options {
        resources: &LISTED,
        settings: &[
            ("snapshot.mode", "initial"),
            ("snapshot.lists", "companies,customers,accounts"),
            ("snapshot.rows", "probe"),
            ("page.size", "5"),
        ],
        ..Options::default()
    };
    let name = if unreadable { "lists-unread" } else { "lists-thin" };
    let scene = EnrichScene::start(shared.into(), name, options, |settings| {
        settings.knobs.reads.thin_rows = true;
        let on =
            FaultTarget { path: Some("/accounting/api/customers/".to_owned()), ..FaultTarget::default() };
        let effect = Effect::Status(HttpStatus::SERVER_ERROR);
        let times = Some(if unreadable { 40 } else { 0 });
        settings.knobs.faults = vec![Fault { on, effect, share: 1.0, times, skip: 0 }];
    })
    .await?;

    let progress = scene.until_over("initial").await?;
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let again = scene.run("again", RunKind::Snapshot, &LISTS).await?;
    scene.quiesce().await?;
    let after = scene.evidence().await?;

    let verdict = check(&after);
    println!("{name}: {verdict}");
    verdict.assert_sound();
    let last = evidence.last();
    for place in scene.living() {
        assert!(last.contains_key(&scene.name(place)), "{place:?} is not there");
    }
    assert_eq!(sum(&progress, "certified"), sum(&progress, "lists"), "{progress:#?}");
    assert_eq!(sum(&again, "certified"), sum(&again, "lists"), "{again:#?}");
    assert_eq!((sum(&again, "published"), after.lines), (0, evidence.lines.clone()));
    Ok(())
}
