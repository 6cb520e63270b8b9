//! Gaps that lists repair: a certified list closes a gap; without a list only known records are read again.

use std::collections::BTreeMap;

use model::{AccountingResource, Gap, GapCause, GapState, List, Moment, Repair, Target};
use serde_json::{Value, json};
use simulator::{catalog::Resource, world::Place};

use super::super::scene::{EnrichScene, HOOKS, Options, RECORDS};
use crate::support::{Error, Result, Shared};

crate::tests! {
    real a_certified_list_or_a_reread_of_known_records_closes_a_gap within 240;
}

async fn a_certified_list_or_a_reread_of_known_records_closes_a_gap(shared: &'static Shared) -> Result<()> {
    let options = Options {
        settings: &[("snapshot.lists", "companies,customers"), ("page.size", "3")],
        ..Options::default()
    };
    let scene = EnrichScene::start(shared.into(), "lists-gaps", options, |_| {}).await?;
    let all = scene.living();
    scene.update(&all);
    scene.quiesce().await?;

    // Without events: in each company a known record of either resource changes, and a customer is new.
    let from = Moment::now().micros();
    scene.provider().turn(|knobs| knobs.delivery.lose = 1.0);
    let lost: Vec<Place> = all.into_iter().filter(|place| place.index == 1).collect();
    scene.update(&lost);
    let created: Vec<Place> =
        (0..3).map(|company| scene.create(Resource::Customers, Some(company))).collect();
    scene.settle().await?;
    scene.provider().turn(|knobs| knobs.delivery.lose = 0.0);
    let before = scene.evidence().await?;
    for (resource, opened) in [(AccountingResource::Customers, 1), (AccountingResource::Journals, 2)] {
        open_gap(&scene, HOOKS, resource, from, opened).await?;
    }
    // One that the `RecordSource` opened.
    open_gap(&scene, RECORDS, AccountingResource::Customers, from, 3).await?;
    let (mut of_hooks, mut of_records) = (BTreeMap::new(), BTreeMap::new());
    scene
        .until("all gaps ended", async || {
            (of_hooks, of_records) = (states(&scene, HOOKS, 2).await?, states(&scene, RECORDS, 1).await?);
            Ok(of_hooks.values().chain(of_records.values()).all(|state| state != "open"))
        })
        .await?;

    let customers =
        scene.certificates().await?.into_values().filter(|one| one.scope.list == List::Customers.name());
    let customers: Vec<_> = customers.collect();
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let verdict = super::super::checker::check(&evidence);
    let written: BTreeMap<&str, usize> =
        evidence.lines.values().flatten().fold(BTreeMap::new(), |mut counts, line| {
            *counts.entry(&*line.origin).or_default() += 1;
            counts
        });

    println!(
        "lists, gaps: {of_hooks:?}; {} certificates; written by {written:?}; {verdict}",
        customers.len()
    );
    let state = |state: GapState| state.name().to_owned();
    let expected = [("customers", GapState::Closed), ("journals", GapState::RepairedKnown)];
    let expected = expected.map(|(of, is)| (format!("accounting/{of}"), state(is)));
    assert_eq!(
        of_records,
        BTreeMap::from([expected[0].clone()]),
        "a connector shows its own gaps and no others"
    );
    assert_eq!(of_hooks, expected.into());
    assert!(customers.len() == 3 && customers.iter().all(|one| one.certified), "{customers:?}");
    verdict.assert_sound();
    let last = evidence.last();
    for place in lost.iter().chain(&created) {
        assert_eq!(last[&scene.name(*place)].origin, "repair", "{place:?}");
    }
    assert_eq!(
        evidence.published(),
        before.published() + lost.len() + created.len(),
        "more was written than was lost"
    );
    Ok(())
}

/// Opens a gap and requests its repair, as the reconciler does.
async fn open_gap(
    scene: &EnrichScene,
    connector: &str,
    resource: AccountingResource,
    from: i64,
    opened: i64,
) -> Result<()> {
    let now = Moment::now().micros();
    let gap = Gap {
        connector: connector.to_owned(),
        cause: GapCause::Lost,
        target: Some(Target::Accounting(resource)),
        company: None,
        from,
        to: Some(now),
        detail: "it was lost on purpose".to_owned(),
        opened_at: from + opened,
        worker: "test".to_owned(),
        state: GapState::Open,
    };
    let repair = Repair::of(&gap, now, now);
    scene.put(&gap.key(), &json!(gap)).await?;
    scene.put(&repair.key(), &json!(repair)).await
}

/// The state of each gap of a connector by target; an error unless there are `count` of them.
async fn states(scene: &EnrichScene, connector: &str, count: usize) -> Result<BTreeMap<String, String>> {
    let (status, answer) =
        scene.stage.ask(0, "GET", &format!("/connectors/{connector}/gaps?all=true"), None).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let gaps = answer.as_array().into_iter().flatten();
    let found: BTreeMap<_, _> = gaps.map(|gap| (text(&gap["target"]), text(&gap["state"]))).collect();
    if status == 200 && found.len() == count {
        Ok(found)
    } else {
        Err(Error(format!("gaps: {status} {answer}")))
    }
}
