//! Topics that are verified against their lists: each difference is counted once, and repaired on request.

use std::collections::BTreeMap;
use std::time::Instant;

use model::{AccountingResource, Difference, Topic};
use serde_json::{Value, json};
use simulator::{
    catalog::{Kind, Resource},
    knobs::DisabledShows,
};
use tokio::time::sleep;

use super::super::evidence;
use super::super::scene::{EnrichScene, Options, RECORDS};
use super::{LISTED, sum};
use crate::support::stage::{LIMIT, STEP};
use crate::support::{Error, Result, Shared, lost};

crate::tests! {
    real verify_counts_each_difference_once_and_repairs_on_request within 240;
}

/// Rows of a sample.
const SAMPLE: u64 = 4;

async fn verify_counts_each_difference_once_and_repairs_on_request(shared: &'static Shared) -> Result<()> {
    let options = Options {
        resources: &LISTED,
        settings: &[
            ("snapshot.mode", "initial"),
            ("snapshot.lists", "companies,customers,accounts"),
            ("page.size", "5"),
        ],
        ..Options::default()
    };
    let scene = EnrichScene::start(shared.into(), "lists-verify", options, |settings| {
        settings.world.customers = 12;
    })
    .await?;
    scene.until_over("initial").await?;
    scene.warm().await?;
    let before = scene.evidence().await?.lines;
    let certificates = scene.certificates().await?;

    let healthy = scene.verify("healthy", json!({})).await?;

    assert_eq!(counts(&healthy, "differences"), BTreeMap::new());
    assert_eq!(sum(&healthy, "contents"), sum(&healthy, "rows"), "every row is compared in full");
    scene.assert_measured(&[]).await?;

    // Changes without events.
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
    let expected: BTreeMap<_, _> =
        [("behind".to_owned(), changed.len() as u64), ("missing".to_owned(), 2)].into();

    let sick = scene.verify("sick", json!({})).await?;
    let sampled = scene.verify("sampled", json!({ "sample": SAMPLE })).await?;

    assert_eq!(counts(&sick, "differences"), expected, "{sick:#?}");
    let found = counts(&sampled, "differences");
    assert!(found.iter().all(|(kind, count)| *count <= expected[kind]), "{found:?}");
    let lists = sum(&sampled, "lists");
    assert!((lists..=lists * SAMPLE).contains(&sum(&sampled, "rows")), "{sampled:#?}");
    assert_eq!((sum(&sampled, "certified"), sum(&sampled, "unread")), (0, 0), "a sample proves nothing");
    assert_eq!(
        (sum(&sick, "published") + sum(&sampled, "published"), scene.evidence().await?.lines),
        (0, before),
        "verifying has written"
    );
    assert_eq!(scene.certificates().await?, certificates, "verifying certifies nothing");

    let repaired = scene.verify("repaired", json!({ "repair": true })).await?;
    // From now on the list does not show disabled records.
    scene.provider().turn(|knobs| knobs.reads.disabled = DisabledShows::ById);
    let well = scene.verify("well", json!({})).await?;
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let verdict = super::super::checker::check(&evidence);

    println!(
        "lists, verify: {:?} of {} rows, {found:?} of {} in a sample; {verdict}",
        counts(&sick, "differences"),
        sum(&sick, "rows"),
        sum(&sampled, "rows")
    );
    assert_eq!(counts(&repaired, "repaired"), expected, "{repaired:#?}");
    assert_eq!(
        (counts(&repaired, "differences"), sum(&repaired, "published")),
        (BTreeMap::new(), changed.len() as u64 + 2)
    );
    assert_eq!(evidence.last()[&scene.name(changed[0])].origin, "repair");
    assert_eq!((counts(&well, "differences"), sum(&well, "disabled")), (BTreeMap::new(), 1), "{well:#?}");
    verdict.assert_sound();

    // A foreign write to the topic, which the fence does not know.
    scene.spoil_topic().await?;
    let spoilt = scene.verify("spoilt", json!({})).await?;
    scene.assert_measured(&[(Difference::Content, 1.0)]).await?;
    let again = scene.verify("again", json!({ "repair": true })).await?;
    let clean = scene.verify("clean", json!({})).await?;

    let one = BTreeMap::from([("content".to_owned(), 1)]);
    assert_eq!((counts(&spoilt, "differences"), counts(&again, "repaired")), (one.clone(), one));
    assert_eq!(
        (counts(&again, "differences"), counts(&clean, "differences")),
        (BTreeMap::new(), BTreeMap::new())
    );
    scene.assert_measured(&[]).await?;

    // Keys that the source never had: of an existing company, of an unknown one, and malformed.
    let strangers = scene.add_strangers().await?;
    let foreign = scene.verify("foreign", json!({ "repair": true })).await?;
    let sampled = scene.verify("foreign-sampled", json!({ "sample": SAMPLE })).await?;

    assert_eq!(counts(&foreign, "differences"), BTreeMap::from([("foreign".to_owned(), strangers)]));
    assert_eq!(
        (counts(&foreign, "repaired"), counts(&sampled, "differences")),
        (BTreeMap::new(), BTreeMap::new())
    );
    scene.assert_measured(&[]).await
}

impl EnrichScene {
    /// Requests a verification of all configured lists by REST until the worker accepts it, and waits for its end.
    async fn verify(&self, id: &str, more: Value) -> Result<Vec<Value>> {
        let mut body = json!({ "id": id, "kind": "verify" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let path = format!("/connectors/{RECORDS}/snapshots");
        let began = Instant::now();
        loop {
            match self.stage.ask(0, "POST", &path, Some(&body)).await? {
                (202, _) => return self.until_over(id).await,
                (503, _) if lost::fair(began) < LIMIT => sleep(STEP).await,
                (status, answer) => return Err(Error(format!("verify: {status} {answer}"))),
            }
        }
    }

    /// Writes one customer's record under the key of another.
    async fn spoil_topic(&self) -> Result<()> {
        let topic = self.topic(Topic::AccountingRecords(AccountingResource::Customers));
        let records = evidence::read(self, &topic).await?;
        let [one, other] = [&records[0], &records[1]];
        let (key, value) = (one.key.clone().unwrap(), other.value.clone().unwrap());
        assert_ne!(Some(&key), other.key.as_ref());
        self.produce(&topic, one.partition, &key, &value).await?;
        Ok(())
    }

    /// Writes a customer's record under keys that the source never had; the number of keys.
    async fn add_strangers(&self) -> Result<u64> {
        let topic = self.topic(Topic::AccountingRecords(AccountingResource::Customers));
        let records = evidence::read(self, &topic).await?;
        let (key, value) = (records[0].key.clone().unwrap(), records[0].value.clone().unwrap());
        let key = String::from_utf8(key.to_vec()).unwrap();
        let company = key.split('/').next().unwrap();
        let partitions = records.iter().map(|record| record.partition).max().unwrap_or_default();
        let keys = [format!("{company}/made-up"), "made-up/made-up".to_owned(), "made up".to_owned()];
        for (key, partition) in keys.iter().zip([records[0].partition, 0, partitions]) {
            self.produce(&topic, partition, key.as_bytes(), &value).await?;
        }
        Ok(keys.len() as u64)
    }

    /// Waits until every kind has a series, and only these are not 0.
    async fn assert_measured(&self, found: &[(Difference, f64)]) -> Result<()> {
        let expected: BTreeMap<String, f64> = Difference::ALL
            .into_iter()
            .map(|kind| {
                let count = found.iter().find(|(one, _)| *one == kind).map_or(0.0, |(_, count)| *count);
                (kind.name().to_owned(), count)
            })
            .collect();
        let mut measured = BTreeMap::new();
        let shown = self
            .until("measured", async || {
                let all = self.stage.metric(0, "tributary_reconcile_mismatch_records").await?;
                let kind =
                    |labels: &str| labels.split("kind=\"").nth(1)?.split('"').next().map(str::to_owned);
                measured = all.iter().filter_map(|(labels, count)| Some((kind(labels)?, *count))).collect();
                Ok(measured == expected)
            })
            .await;
        shown.map_err(|error| Error(format!("{error}: {measured:?}")))
    }
}

/// The sums of a member over all shards, by kind.
fn counts(progress: &[Value], member: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (kind, count) in progress.iter().filter_map(|one| one[member].as_object()).flatten() {
        *found.entry(kind.clone()).or_default() += count.as_u64().unwrap();
    }
    found
}
