//! Lists that change while they are read: a certified list is complete, and any other says why it is not certified.

use std::collections::BTreeSet;

use model::{List, RunKind};
use simulator::{
    catalog::Resource,
    knobs::{Churn, DisabledShows, ListOrder},
};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options};
use super::sum;
use crate::support::{Result, Shared};

crate::tests! {
    real a_certified_list_misses_nothing_while_records_move within 240;
}

const COMPANIES: u32 = 8;

async fn a_certified_list_misses_nothing_while_records_move(shared: &'static Shared) -> Result<()> {
    let options = Options {
        resources: &[Resource::Customers],
        settings: &[("snapshot.lists", "companies,customers"), ("page.size", "20")],
        ..Options::default()
    };
    let scene = EnrichScene::start(shared.into(), "lists-drift", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.accounts) = (COMPANIES, 200, 0);
        settings.world.others = 0;
        let reads = &mut settings.knobs.reads;
        // Changed records move to the end, and disabled ones disappear.
        (reads.order, reads.disabled) = (ListOrder::Changed, DisabledShows::ById);
    })
    .await?;
    let before = scene.listed();

    scene.provider().turn(|knobs| {
        knobs.reads.churn = Churn { inserts: 0.3, deletes: 0.05, updates: 0.6 };
    });
    let progress = scene.run("drift", RunKind::Snapshot, &[List::Customers]).await?;
    scene.provider().turn(|knobs| knobs.reads.churn = Churn::default());
    scene.quiesce().await?;
    let mut evidence = scene.evidence().await?;
    let certificates = scene.certificates().await?;
    let throughout = before.places.intersection(&scene.listed().places).count();
    evidence.certified = scene.owed(&certificates, &[before]);
    let verdict = check(&evidence);
    let keys: BTreeSet<&String> = evidence.events.iter().filter_map(|event| event.key.as_ref()).collect();
    let without_event = evidence.certified.iter().filter(|(_, key)| !keys.contains(key)).count();
    let certified =
        certificates.values().filter(|one| one.certified && one.scope.company_id.is_some()).count();

    println!(
        "lists, drift: {certified} of {} certified, {} passes; they must show {} of the {throughout} records that were there throughout, \
         {without_event} of them without an event; {} events; {verdict}",
        certificates.len(),
        certificates.values().map(|one| one.reading.passes).sum::<i32>(),
        evidence.certified.len(),
        evidence.events.len()
    );
    verdict.assert_sound();
    assert!(certified > 0 && without_event > 100, "{certificates:#?}");
    // The list of companies is read as well, which adds to the certificates.
    assert_eq!(certificates.len() as u64, sum(&progress, "ended"));
    assert!(certificates.len() as u64 >= COMPANIES.into());
    for one in certificates.values().filter(|one| !one.certified) {
        assert!(one.reason.is_some() && one.counts.missing_at_most != Some(0), "{one:?}");
    }
    Ok(())
}
