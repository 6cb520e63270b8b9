//! The list of payroll companies: certified like any other, and only changed companies are written again.

use std::collections::BTreeMap;

use kafka::Admin;
use model::{CertificateMethod, List, RunKind, SchemaKind, Topic};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use serde_json::{Value, json};
use simulator::{
    catalog::{Kind, Resource},
    knobs::{Effect, FaultTarget, HttpStatus, LeftOut, ListOrder},
    reads::payroll_json,
};

use super::super::evidence;
use super::super::scene::{EnrichScene, Options, PARTITIONS, RECORDS};
use super::sum;
use crate::support::{Error, Result, Shared};

crate::tests! {
    real payroll_is_certified_and_only_changes_are_written_again within 240;
    real payroll_without_a_readable_time_rewrites_only_changes within 240;
    real payroll_waits_for_its_login_and_holds_up_nothing within 240;
    real payroll_alone_needs_no_accounting_login within 240;
}

const COMPANIES: usize = 80;
/// Companies of the accounting API.
const OTHERS: u32 = 4;

async fn payroll_is_certified_and_only_changes_are_written_again(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &[Resource::Customers], ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "lists-payroll", options, |settings| {
        (settings.world.companies, settings.world.payroll_companies) = (OTHERS, COMPANIES as u32);
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;
    scene.stop().await?;
    let settings = scene.fetching(&[("snapshot.lists", "customers,payroll"), ("page.size", "7")]);
    scene.stage.configure(RECORDS, &settings).await?;
    scene.resume().await?;

    // While payroll answers nonsense, other lists are read, and payroll is retried.
    let payroll = FaultTarget { path: Some("/payroll".to_owned()), ..FaultTarget::default() };
    scene.spoil([(Effect::Html { status: HttpStatus::OK }, payroll)]);
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
    certificates.retain(|_, one| one.scope.list == "payroll");
    let published = published(&scene).await?;
    assert_eq!(certificates.len(), PARTITIONS as usize);
    for (key, one) in &certificates {
        let found = (
            one.method,
            one.certified,
            one.counts.distinct,
            one.counts.missing_at_most,
            one.reading.page_base,
        );
        assert_eq!(
            found,
            (CertificateMethod::Counting, true, Some(COMPANIES as i64), Some(0), Some(1)),
            "{key}: {one:?}"
        );
    }
    let all = (COMPANIES + scene.living().len()) as u64;
    assert_eq!((sum(&first, "published"), published.len()), (all, COMPANIES), "{first:#?}");
    assert_eq!(last(&published), truth(&scene));

    let again = scene.run("again", RunKind::Snapshot, &[List::Payroll]).await?;
    assert_eq!((sum(&again, "published"), sum(&again, "certified")), (0, PARTITIONS as u64), "{again:#?}");

    // One is changed, one is new, and one is gone: it cannot be read by id, so the certificate names it and its record stays.
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
        .flat_map(|certificate| certificate.records.vanished)
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

    // An incremental run requests only changes since two days before the last certified run began. Enough records change that each page
    // shows one of them, so that the filter can be compared with the first page.
    let updated = (6..COMPANIES as u32).step_by(2);
    scene.provider().change(|world, clock| {
        for index in updated.clone() {
            assert!(world.act_payroll(Some(index), Kind::Updated, clock).is_some());
        }
        ((), Vec::new())
    });
    let since = scene.provider().gateway.request_count();
    scene.post_run(json!({ "id": "changed", "lists": ["payroll"], "incremental": true })).await?;
    let changed = scene.until_over("changed").await?;
    let requests = scene.provider().gateway.requests(since, usize::MAX).into_iter();
    let pages: Vec<String> =
        requests.map(|(_, request)| request.target).filter(|target| target.contains("/payroll")).collect();

    println!("lists, payroll: {} rows of what has changed; {pages:?}", sum(&changed, "rows"));
    // The first page without the filter shows whether the provider applies the filter.
    let plain = pages.iter().filter(|page| !page.contains("lastUpdate")).count();
    assert!(plain <= PARTITIONS as usize && plain < pages.len(), "{pages:?}");
    assert_eq!(sum(&changed, "published"), updated.len() as u64, "{changed:#?}");
    // A filtered list certifies nothing, and leaves the certificates of the last whole one in place.
    assert_eq!(sum(&changed, "certified"), 0, "{changed:#?}");
    assert_eq!(scene.certificates_of("changed").await?, BTreeMap::new());
    assert_eq!(scene.certificates_of("third").await?.len(), PARTITIONS as usize);
    let mut last = self::last(&self::published(&scene).await?);
    last.remove(&left[0]);
    assert_eq!(last, truth(&scene));

    scene.stop().await?;
    // The fences are lost. They are rebuilt from what was published, payroll's too, so that nothing is published twice.
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &scene.backend.bootstrap).create().unwrap();
    let fences = scene.topic(Topic::Fences);
    admin.delete_topics(&[&fences], &AdminOptions::new()).await.unwrap().pop().unwrap().unwrap();
    let kafka = Admin::Real(scene.kafka());
    scene
        .until("the fences gone", async || {
            Ok(kafka.partition_counts(&[&fences]).await.is_ok_and(|there| there.is_empty()))
        })
        .await?;
    let before = self::published(&scene).await?.len();
    scene.resume().await?;
    let rebuilt = scene.run("rebuilt", RunKind::Snapshot, &[List::Payroll]).await?;
    let published = self::published(&scene).await?.len();
    assert_eq!((sum(&rebuilt, "published"), published), (0, before), "{rebuilt:#?}");

    // Each task tries a filter that the provider refuses once in a run; here each has one shard.
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

async fn payroll_without_a_readable_time_rewrites_only_changes(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &[Resource::Customers], ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "lists-payroll-unversioned", options, |settings| {
        (settings.world.companies, settings.world.payroll_companies) = (OTHERS, 20);
        settings.knobs.reads.records.without_last_update = true;
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;
    scene.stop().await?;
    scene.stage.configure(RECORDS, &scene.fetching(&[("snapshot.lists", "payroll")])).await?;
    scene.resume().await?;

    let mut count = 0;
    for left_out in LeftOut::ALL {
        scene.provider().turn(|knobs| knobs.reads.records.left_out = left_out);
        scene.run(&format!("{left_out:?}"), RunKind::Snapshot, &[List::Payroll]).await?;
        let published = published(&scene).await?;

        // Another form of the member is another content; so each company is written once more.
        count += 20;
        assert_eq!((published.len(), last(&published)), (count, truth(&scene)), "{left_out:?}");
    }
    scene.run("again", RunKind::Snapshot, &[List::Payroll]).await?;
    assert_eq!(published(&scene).await?.len(), count, "nothing has changed");
    scene.provider().change(|world, clock| {
        assert!(world.act_payroll(Some(3), Kind::Updated, clock).is_some());
        ((), Vec::new())
    });
    scene.run("changed", RunKind::Snapshot, &[List::Payroll]).await?;
    assert_eq!(published(&scene).await?.len(), count + 1);
    // The time is back, which is newer than no time.
    scene.provider().turn(|knobs| knobs.reads.records.without_last_update = false);
    scene.run("timed", RunKind::Snapshot, &[List::Payroll]).await?;
    let published = published(&scene).await?;
    assert_eq!((published.len(), last(&published)), (count + 21, truth(&scene)));
    assert_eq!(evidence::letters(&scene).await?, []);
    Ok(())
}

async fn payroll_waits_for_its_login_and_holds_up_nothing(shared: &'static Shared) -> Result<()> {
    let settings = &[("snapshot.mode", "initial")];
    let options = Options { resources: &[Resource::Customers], settings, ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "payroll-waits", options, |settings| {
        (settings.world.companies, settings.world.payroll_companies) = (OTHERS, COMPANIES as u32);
    })
    .await?;

    // All other lists are certified, and log and REST say what payroll waits for.
    let initial = until_certified(&scene, "initial").await?;
    assert_eq!(initial["lists"], json!(["companies", "customers", "accounts"]));
    let waiting = snapshots(&scene, "").await?["waiting"].clone();
    let reason = waiting[0]["reason"].as_str().unwrap_or_default();
    assert_eq!(waiting[0]["list"], "payroll", "{waiting}");
    let command = format!("`tributary auth login payroll --connector {RECORDS}`");
    assert!(reason.starts_with("payroll waits for a login") && reason.contains(&command), "{reason}");
    let said = scene.stage.workers[0].said();
    assert!(said.contains("payroll waits for a login"), "it is not in the log");
    let named = json!({ "lists": ["payroll"] });
    let path = format!("/connectors/{RECORDS}/snapshots");
    let (status, answer) = scene.stage.ask(0, "POST", &path, Some(&named)).await?;
    assert_eq!((status, answer["message"].as_str()), (409, Some(reason)), "{answer}");
    scene.post_run(json!({ "id": "by-hand" })).await?;
    assert_eq!(until_certified(&scene, "by-hand").await?["lists"], initial["lists"]);
    assert!(published(&scene).await?.is_empty());

    // The login is all it takes.
    scene.stage.login_for("payroll", RECORDS).await?;
    let later = until_certified(&scene, "initial-payroll").await?;
    assert_eq!(later["lists"], json!(["payroll"]));
    assert_eq!(last(&published(&scene).await?), truth(&scene));
    assert!(snapshots(&scene, "").await?["waiting"].is_null());
    scene.post_run(json!({ "id": "whole" })).await?;
    let whole = until_certified(&scene, "whole").await?;
    assert_eq!(whole["lists"], json!(["companies", "customers", "accounts", "payroll"]));
    Ok(())
}

async fn payroll_alone_needs_no_accounting_login(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::prepare(shared.into(), "payroll-alone", &Options::default(), |settings| {
        (settings.world.companies, settings.world.payroll_companies) = (OTHERS, COMPANIES as u32);
    })
    .await?;
    let alone = [("snapshot.mode", "initial"), ("snapshot.lists", "payroll"), ("enrich.resources", "")];
    scene.stage.configure(RECORDS, &scene.fetching(&alone)).await?;

    // Without any login the task names the one it needs.
    let mut trace = String::new();
    scene
        .until("a task failed", async || {
            let path = format!("/connectors/{RECORDS}/status");
            let (_, status) = scene.stage.ask(0, "GET", &path, None).await?;
            let task = &status["tasks"][0];
            trace = task["trace"].as_str().unwrap_or_default().to_owned();
            Ok(task["state"] == "FAILED")
        })
        .await?;
    assert!(trace.contains(&format!("tributary auth login payroll --connector {RECORDS}")), "{trace}");

    scene.stage.login_for("payroll", RECORDS).await?;
    let initial = until_certified(&scene, "initial").await?;

    assert_eq!(initial["lists"], json!(["payroll"]));
    assert_eq!(last(&published(&scene).await?), truth(&scene));
    let requests = scene.provider().gateway.requests(0, usize::MAX).into_iter();
    let others: Vec<String> = requests
        .map(|(_, request)| request.target)
        .filter(|target| !target.starts_with("/payroll/"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Runs, or one of them, by REST.
async fn snapshots(scene: &EnrichScene, rest: &str) -> Result<Value> {
    let path = format!("/connectors/{RECORDS}/snapshots{rest}");
    match scene.stage.ask(0, "GET", &path, None).await? {
        (200, answer) => Ok(answer),
        (status, answer) => Err(Error(format!("{path}: {status} {answer}"))),
    }
}

/// Waits until a run is over and certified.
async fn until_certified(scene: &EnrichScene, id: &str) -> Result<Value> {
    let mut found = Value::Null;
    scene
        .until(&format!("run {id} certified"), async || {
            found = snapshots(scene, &format!("/{id}")).await?;
            Ok(found["certified"] == true)
        })
        .await?;
    Ok(found)
}

/// Every record of the topic.
pub(super) async fn published(scene: &EnrichScene) -> Result<Vec<Value>> {
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
pub(super) fn last(published: &[Value]) -> BTreeMap<u64, Value> {
    published.iter().map(|one| (one["companyCode"].as_u64().unwrap(), one.clone())).collect()
}

/// The provider's companies.
pub(super) fn truth(scene: &EnrichScene) -> BTreeMap<u64, Value> {
    let world = scene.provider().world();
    let rows = world.payroll(ListOrder::Created).into_iter();
    let shown: Vec<Value> = rows
        .map(|row| {
            serde_json::from_slice(&payroll_json(
                world.seed(),
                &row,
                simulator::reads::Shape::row(&scene.provider().knobs().reads),
            ))
            .unwrap()
        })
        .collect();
    last(&shown)
}
