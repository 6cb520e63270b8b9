//! A run also reads the lists of a company that it is the first to see. If it cannot know all companies, it ends with the reason.

use model::{List, RunKind};
use simulator::{catalog::Resource, knobs::Effect, world::Place};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options, PARTITIONS};
use super::{all_of, sum};
use crate::support::{Result, Shared};

crate::tests! {
    real a_run_reads_new_companies_and_ends_if_it_cannot_know_all within 240;
}

const COMPANIES: u32 = 7;
const LISTS: [List; 2] = [List::Companies, List::Customers];

async fn a_run_reads_new_companies_and_ends_if_it_cannot_know_all(shared: &'static Shared) -> Result<()> {
    let options = Options {
        resources: &[Resource::Companies, Resource::Customers],
        settings: &[
            ("snapshot.lists", "companies,customers"),
            ("page.size", "5"),
            // The list of companies is read at the start, and then only on request.
            ("companies.refresh.interval.ms", "3600000"),
        ],
        ..Options::default()
    };
    let scene = EnrichScene::start(shared.into(), "lists-companies", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.accounts) = (COMPANIES, 4, 0);
        // Pages are smaller than requested, without notice; all companies are found nevertheless.
        settings.knobs.reads.max_page_size = 3;
    })
    .await?;
    let first = scene.run("first", RunKind::Snapshot, &[List::Customers]).await?;
    assert_eq!(
        (sum(&first, "lists"), sum(&first, "certified")),
        (COMPANIES.into(), COMPANIES.into()),
        "{first:#?}"
    );

    // A new company with customers, without events.
    scene.provider().turn(|knobs| knobs.delivery.lose = 1.0);
    let company = scene.create(Resource::Companies, None);
    let customers: Vec<Place> =
        (0..3).map(|_| scene.create(Resource::Customers, Some(company.index))).collect();
    scene.provider().turn(|knobs| knobs.delivery.lose = 0.0);
    let all = u64::from(COMPANIES) + 1;
    let shards = u64::from(PARTITIONS.unsigned_abs());
    let came = scene.run("came", RunKind::Snapshot, &LISTS).await?;

    assert_eq!((sum(&came, "lists"), sum(&came, "certified")), (all + shards, all + shards), "{came:#?}");
    let evidence = scene.evidence().await?;
    let last = evidence.last();
    for place in customers {
        assert_eq!(last[&scene.name(place)].origin, "snapshot", "{place:?}");
    }

    // The list of companies ignores page numbers: neither the directory nor the run can know all of them.
    scene.spoil([(Effect::FirstPage, all_of(List::Companies))]);
    let blind = scene.run("blind", RunKind::Repair, &LISTS).await?;
    scene.calm();

    println!("lists, companies: {:?}", blind[0]["reason"]);
    let known = sum(&blind, "certified");
    assert!(known >= COMPANIES.into() && known <= all, "{blind:#?}");
    // In each shard also the list of companies, and the companies that it may hide.
    assert_eq!(sum(&blind, "lists"), known + 2 * shards, "{blind:#?}");
    for shard in &blind {
        let reason = shard["reason"].as_str().unwrap_or_default();
        assert!(shard["state"] == "ended" && reason.contains("it repeats the page before it"), "{shard}");
    }
    check(&scene.evidence().await?).assert_sound();
    Ok(())
}
