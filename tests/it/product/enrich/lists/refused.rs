//! Lists that are refused, empty or not offered: no record is deleted, and the certificate has the reason.

use model::{List, RunKind};
use simulator::{
    catalog::Resource,
    knobs::{Effect, FaultTarget, HttpStatus},
};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options, PARTITIONS};
use super::{LISTED, LISTS, all_of, sum};
use crate::support::{Result, Shared};

crate::tests! {
    real refused_or_empty_lists_delete_nothing_and_mass_deletes_wait within 240;
}

/// Customers of each company: more than may be missing without the run waiting.
const CUSTOMERS: u32 = 60;
/// An empty list.
const EMPTY: Effect = Effect::Oversized { bytes: 2, status: HttpStatus::OK };

async fn refused_or_empty_lists_delete_nothing_and_mass_deletes_wait(shared: &'static Shared) -> Result<()> {
    let options = Options {
        resources: &LISTED,
        settings: &[("snapshot.mode", "initial"), ("snapshot.lists", "companies,customers,accounts")],
        ..Options::default()
    };
    let scene = EnrichScene::start(shared.into(), "lists-refused", options, |settings| {
        (settings.world.companies, settings.world.customers) = (4, CUSTOMERS);
    })
    .await?;
    let first = scene.until_over("initial").await?;
    assert_eq!(sum(&first, "certified"), sum(&first, "lists"), "{first:#?}");
    let before = scene.evidence().await?.published();

    // Everything is refused.
    let forbidden = Effect::Status(HttpStatus::FORBIDDEN);
    let everything = (0..4).map(|company| scene.company(company)).chain([all_of(List::Companies)]);
    scene.spoil(everything.map(|on| (forbidden.clone(), on)));
    let refused = scene.run("refused", RunKind::Snapshot, &LISTS).await?;
    assert_eq!(
        (sum(&refused, "certified"), sum(&refused, "ended")),
        (0, 8 + PARTITIONS as u64),
        "{refused:#?}"
    );
    for (key, one) in scene.certificates_of("refused").await? {
        assert!(
            !one.certified && one.reason.as_ref().is_some_and(|why| why.contains("403")),
            "{key}: {one:?}"
        );
    }

    // Two companies seem to have lost all their customers, one of them also by id; a third is refused; there is no list of accounts,
    // and that of companies is empty.
    let by_id = FaultTarget { path: Some(format!("{}/", Resource::Customers.prefix())), ..scene.company(0) };
    scene.spoil([
        (Effect::UnknownPath, all_of(List::Accounts)),
        (EMPTY, all_of(List::Companies)),
        (EMPTY, scene.list_of(0, List::Customers)),
        (Effect::Status(HttpStatus::new(404).unwrap()), by_id),
        (EMPTY, scene.list_of(1, List::Customers)),
        (forbidden, scene.company(2)),
    ]);
    scene.ask_for("empty", RunKind::Snapshot, &LISTS).await?;
    scene
        .until("two lists that wait, and all others over", async || {
            Ok(scene.certificates_of("empty").await?.len() == 6 + PARTITIONS as usize
                && braked(&scene).await? == 2.0)
        })
        .await?;
    let waiting: Vec<_> =
        scene.progress("empty").await?.into_values().filter(|one| one["state"] == "paused").collect();
    assert!(!waiting.is_empty());
    for one in &waiting {
        let reason = one["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("60 known records are not in the list of customers"), "{one}");
    }
    scene.resume_run("empty").await?;
    let ended = scene.until_over("empty").await?;

    let certificates = scene.certificates_of("empty").await?;
    for company in 0..4 {
        let accounts = scene.certificate(company, List::Accounts).await?;
        let why = accounts.reason.clone().unwrap_or_default();
        assert!(!accounts.certified && (company == 2 || why.starts_with("not offered")), "{accounts:?}");
    }
    for (company, certified, vanished, unlisted) in
        [(0, true, CUSTOMERS, 0), (1, true, 0, CUSTOMERS), (2, false, 0, 0), (3, true, 0, 0)]
    {
        let customers = scene.certificate(company, List::Customers).await?;
        let found = (customers.certified, customers.records.vanished_count, customers.records.unlisted);
        assert_eq!(found, (certified, vanished.into(), unlisted.into()), "{company}: {customers:?}");
        assert_eq!(customers.records.vanished.len(), vanished as usize);
    }
    let unlisted: i64 = certificates
        .values()
        .filter(|one| one.scope.list == "companies")
        .map(|one| one.records.unlisted)
        .sum();
    // The third company is refused by its id as well, which is read in its own context.
    assert_eq!((unlisted, sum(&ended, "vanished")), (3, CUSTOMERS.into()), "{ended:#?}");

    scene.calm();
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let verdict = check(&evidence);
    println!(
        "lists, refused: {} waited for a person; {} certificates; {verdict}",
        waiting.len(),
        certificates.len()
    );
    verdict.assert_sound();
    // Records that are found by id but in no list are published once more, now from the read by id.
    let by_id = CUSTOMERS as usize + 3;
    assert_eq!((evidence.tombstones(), evidence.published()), (0, before + by_id));
    Ok(())
}

/// How often a run was paused because too many records were missing.
async fn braked(scene: &EnrichScene) -> Result<f64> {
    let counted = scene.stage.metric(0, "tributary_snapshot_braked_total").await?;
    Ok(counted.iter().map(|(_, count)| count).sum())
}
