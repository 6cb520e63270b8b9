//! The list of payroll companies: read by key and proved so, and only what has changed is written again.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tributary::model::{List, Method, RunKind, SchemaKind, Topic};
use tributary::simulator::catalog::{Kind, Resource};
use tributary::simulator::knobs::{Effect, ListOrder, Status, Target};
use tributary::simulator::reads::payroll_json;

use super::super::evidence;
use super::super::scene::{Options, PARTITIONS, RECORDS, Scene};
use super::sum;
use crate::support::{Error, Result, Shared};

crate::tests! {
    real payroll_companies_are_read_by_key_and_proved_complete_and_only_changes_are_written_again within 240;
}

const COMPANIES: usize = 80;
/// Companies of the accounting API.
const OTHERS: u32 = 4;

async fn payroll_companies_are_read_by_key_and_proved_complete_and_only_changes_are_written_again(
    shared: &'static Shared,
) -> Result<()> {
    let options = Options { resources: &[Resource::Customers], ..Options::default() };
    let scene = Scene::start(shared.into(), "lists-payroll", options, |settings| {
        (settings.world.companies, settings.world.payroll_companies) = (OTHERS, COMPANIES as u32);
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;
    scene.stop().await?;
    let settings = scene.fetching(&[("snapshot.lists", "customers,payroll"), ("page.size", "7")]);
    scene.stage.configure(RECORDS, &settings).await?;
    scene.resume().await?;

    // While payroll answers nonsense, other lists are read; nobody gives it up.
    let payroll = Target { path: Some("/payroll".to_owned()), ..Target::default() };
    scene.spoil([(Effect::Html { status: Status::OK }, payroll)]);
    scene.ask_for("first", RunKind::Snapshot, &[List::Customers, List::Payroll]).await?;
    scene
        .until("the lists of customers over", async || {
            Ok(scene.certificates_of("first").await?.len() == OTHERS as usize)
        })
        .await?;
    assert!(!scene.is_over("first").await?, "payroll was given up");
    scene.calm();
    let first = scene.until_over("first").await?;
    let mut certificates = scene.certificates_of("first").await?;
    assert!(certificates.values().all(|one| one.certified), "{certificates:#?}");
    certificates.retain(|_, one| one.list == "payroll");
    let published = published(&scene).await?;
    assert_eq!(certificates.len(), PARTITIONS as usize);
    for (key, one) in &certificates {
        let told = (one.method, one.certified, one.distinct, one.missing_at_most);
        assert_eq!(told, (Method::Keyset, true, Some(COMPANIES as i64), Some(0)), "{key}: {one:?}");
    }
    let all = (COMPANIES + scene.living().len()) as u64;
    assert_eq!((sum(&first, "published"), published.len()), (all, COMPANIES), "{first:#?}");
    assert_eq!(last(&published), truth(&scene));

    let again = scene.run("again", RunKind::Snapshot, &[List::Payroll]).await?;
    assert_eq!((sum(&again, "published"), sum(&again, "certified")), (0, PARTITIONS as u64), "{again:#?}");

    // One is changed, one is new, and one has left: there is no way to ask for it, so it is named and stays.
    let before = truth(&scene);
    scene.provider().change(|world, clock| {
        for (index, kind) in [(Some(3), Kind::Updated), (None, Kind::Created), (Some(5), Kind::Deleted)] {
            assert!(world.act_payroll(index, kind, clock).is_some());
        }
        ((), Vec::new())
    });
    let third = scene.run("third", RunKind::Snapshot, &[List::Payroll]).await?;
    let after = truth(&scene);
    let left: Vec<u64> = before.keys().filter(|code| !after.contains_key(code)).copied().collect();
    let vanished: Vec<String> = scene
        .certificates_of("third")
        .await?
        .into_values()
        .flat_map(|certificate| certificate.vanished)
        .collect();
    let published = self::published(&scene).await?;

    println!(
        "lists, payroll: {} records of {COMPANIES} companies; {:?}",
        published.len(),
        certificates.values().next()
    );
    assert_eq!((sum(&third, "published"), published.len()), (2, COMPANIES + 2));
    assert_eq!((sum(&third, "vanished"), vanished), (1, vec![left[0].to_string()]));
    let mut last = last(&published);
    assert_eq!(last.remove(&left[0]), before.get(&left[0]).cloned());
    assert_eq!(last, after);

    // Only what has changed is asked for: since a day before the last run that was proved began.
    scene.provider().change(|world, clock| {
        assert!(world.act_payroll(Some(7), Kind::Updated, clock).is_some());
        ((), Vec::new())
    });
    let since = scene.provider().gateway.request_count();
    let asked = json!({ "id": "changed", "lists": ["payroll"], "incremental": true });
    let (status, answer) =
        scene.stage.ask(0, "POST", &format!("/connectors/{RECORDS}/snapshots"), Some(&asked)).await?;
    assert_eq!(status, 202, "{answer}");
    let changed = scene.until_over("changed").await?;
    let requests = scene.provider().gateway.requests(since, usize::MAX).into_iter();
    let pages: Vec<String> =
        requests.map(|(_, request)| request.target).filter(|target| target.contains("/payroll")).collect();

    println!("lists, payroll: {} rows of what has changed; {pages:?}", sum(&changed, "rows"));
    assert!(!pages.is_empty() && pages.iter().all(|page| page.contains("lastUpdate")), "{pages:?}");
    assert_eq!(sum(&changed, "published"), 1, "{changed:#?}");
    assert!((1..COMPANIES as u64).contains(&sum(&changed, "rows")), "{changed:#?}");
    let mut last = self::last(&self::published(&scene).await?);
    last.remove(&left[0]);
    assert_eq!(last, truth(&scene));

    // A filter that the provider does not take is tried once in a run by each task; here each has one shard.
    scene.stop().await?;
    let settings = scene.fetching(&[
        ("snapshot.lists", "payroll"),
        ("page.size", "7"),
        ("payroll.filter", "companyCode is 1"),
    ]);
    scene.stage.configure(RECORDS, &settings).await?;
    scene.resume().await?;
    let since = scene.provider().gateway.request_count();
    let refused = scene.run("refused", RunKind::Snapshot, &[List::Payroll]).await?;
    let requests = scene.provider().gateway.requests(since, usize::MAX).into_iter();
    let pages: Vec<String> =
        requests.map(|(_, request)| request.target).filter(|target| target.contains("/payroll")).collect();
    assert_eq!((pages.len(), sum(&refused, "certified")), (PARTITIONS as usize, 0), "{pages:?} {refused:#?}");
    Ok(())
}

/// Every record of the topic.
async fn published(scene: &Scene) -> Result<Vec<Value>> {
    let decoder = evidence::decoder(scene);
    let mut found = Vec::new();
    for record in evidence::read(scene, &scene.topic(Topic::PayrollCompanies)).await? {
        let value = record.value.as_ref().ok_or_else(|| Error("a payroll company was deleted".to_owned()))?;
        let decoded = decoder.decode(SchemaKind::PayrollCompany, value).await;
        let (_, value) = decoded.map_err(|error| Error(format!("decode a payroll company: {error}")))?;
        found.push(serde_json::from_str(&value.to_json()).unwrap());
    }
    Ok(found)
}

/// The last of each company.
fn last(published: &[Value]) -> BTreeMap<u64, Value> {
    published.iter().map(|one| (one["companyCode"].as_u64().unwrap(), one.clone())).collect()
}

/// What the provider has.
fn truth(scene: &Scene) -> BTreeMap<u64, Value> {
    let world = scene.provider().world();
    let rows = world.payroll(ListOrder::Created).into_iter();
    let shown: Vec<Value> = rows
        .map(|row| {
            serde_json::from_slice(&payroll_json(
                world.seed(),
                &row,
                tributary::simulator::reads::Shape::default(),
            ))
            .unwrap()
        })
        .collect();
    last(&shown)
}
