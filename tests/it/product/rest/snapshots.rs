//! Runs and certificates over HTTP, on real Kafka: accepted and refused requests, and the progress of shards, which the tests write.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;

use base::metrics::live::ScrapePage;
use kafka::{Admin, Producer};
use model::{
    Certificate, CertificateMethod, CompanyId, List, Origin, Outgoing, RecordMeta, Run, RunCommand, RunId,
    RunProgress, ShardState, Topic,
};
use serde_json::{Value, json};
use tributary::{
    avro::Registry, config, logins::Grants, publish::open_state, state::state_topic::StateTopics,
    worker::snapshots::WorkerSnapshots,
};

use super::worker::{Answer, Group, Worker, config as connector};
use crate::support::place::{PARTITIONS, Place};
use crate::support::topics::record;
use crate::support::{Result, Shared};

crate::tests! {
    real a_request_is_taken_once_however_often_it_is_sent;
    real an_impossible_run_is_refused_with_the_reason;
    real a_run_shows_what_its_shards_write_and_ends_with_the_last;
    real an_order_applies_until_the_run_ends;
    real the_newest_certificate_of_each_list_is_read_from_its_topic;
    real without_a_state_topic_there_are_no_runs_and_none_can_start;
}

/// A worker with a connector `records`, and the topics of its prefix.
struct SnapshotScene {
    worker: Worker,
    place: Place,
    state_topics: StateTopics,
    producer: Producer,
}

impl SnapshotScene {
    async fn new(shared: &'static Shared, name: &str) -> Result<Self> {
        let scene = Self::without_topics(shared, name).await?;
        let layout = scene.place.layout([Topic::State]);
        open_state(&layout, &scene.place.admin).await.unwrap();
        Ok(scene)
    }

    async fn without_topics(shared: &'static Shared, name: &str) -> Result<Self> {
        let place = Place::on(shared, name)?;
        let settings = settings(shared, &place);
        let own = Arc::new(config::Worker::load(None, settings).unwrap().config);
        let state_topics = StateTopics::new(own, Admin::Real(place.kafka.clone()));
        let registry = Registry::new(&place.registry).unwrap();
        let desk = {
            let (kafka, admin) = (place.kafka.clone(), place.admin.clone());
            // Without a key no grant can be read, so payroll waits.
            WorkerSnapshots::new(state_topics.clone(), Grants::default(), kafka, admin, registry)
        };
        let worker = Group::new(shared.bootstrap(), name).snapshotting(desk).await;
        let mut config = connector(place.prefix.as_str());
        config["snapshot.lists"] = json!("companies,customers,payroll");
        let created = worker.ask("PUT", "/connectors/records/config", Some(config)).await;
        assert_eq!(created.status, 201, "{created:?}");
        let producer = place.producer();
        Ok(Self { worker, place, state_topics, producer })
    }

    async fn post(&self, body: Value) -> Answer {
        self.worker.ask("POST", "/connectors/records/snapshots", Some(body)).await
    }

    async fn order(&self, run: &str, order: &str) -> Answer {
        self.worker.ask("PUT", &format!("/connectors/records/snapshots/{run}/{order}"), None).await
    }

    /// Writes the progress of a shard.
    async fn progress(&self, progress: &RunProgress) {
        let topic: Arc<str> = self.place.name(Topic::State).into();
        let value = serde_json::to_vec(progress).unwrap();
        let record = record(&topic, progress.of.shard, progress.key().as_str(), value);
        self.producer.send(record).unwrap().await.unwrap();
    }

    /// Values under a key of the state topic, oldest first.
    async fn written(&self, key: &str) -> Vec<Value> {
        let all = self.place.read(&self.place.name(Topic::State)).await;
        let fitting = all.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes()));
        fitting.map(|record| serde_json::from_slice(record.value.as_deref().unwrap()).unwrap()).collect()
    }
}

fn settings(shared: &Shared, place: &Place) -> Vec<(OsString, OsString)> {
    let mut settings = vec![
        ("CONNECT_BOOTSTRAP_SERVERS".to_owned(), shared.bootstrap().to_owned()),
        ("CONNECT_GROUP_ID".to_owned(), place.prefix.to_string()),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL".to_owned(), shared.registry().to_owned()),
        ("CONNECT_STATE_DIR".to_owned(), place.state_dir.display().to_string()),
    ];
    for topic in ["CONFIG", "OFFSET", "STATUS", "WORK", "GRANT"] {
        let name = format!("{}-{}", place.prefix, topic.to_lowercase());
        settings.push((format!("CONNECT_{topic}_STORAGE_TOPIC"), name));
    }
    settings.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

fn id(text: &str) -> RunId {
    RunId::new(text).unwrap()
}

fn progress(run: &str, shard: i32, state: ShardState) -> RunProgress {
    let ended = if state.is_over() { 2 } else { 1 };
    serde_json::from_value(json!({
        "connector": "records", "run": run, "shard": shard, "state": state, "lists": 2, "ended": ended, "certified": ended,
        "requests": 4, "pages": 3, "rows": 100, "published": 10, "vanished": 1, "differences": { "missing": 2 },
        "contents": 90,
        "current": [{ "company": "a", "list": "customers", "pass": 1, "pages": 1, "rows": 50, "of": 80 }],
        "startedAt": 1_000_000 + shard, "updatedAt": 2_000_000, "endedAt": state.is_over().then_some(3_000_000),
    }))
    .unwrap()
}

async fn a_request_is_taken_once_however_often_it_is_sent(shared: &'static Shared) -> Result<()> {
    let scene = SnapshotScene::new(shared, "run-asked").await?;
    let asked =
        json!({ "id": "nightly:1", "kind": "verify", "lists": ["customers"], "companies": ["a", "b"] });

    let first = scene.post(asked.clone()).await;
    let again = scene.post(asked).await;
    let other =
        scene.post(json!({ "id": "nightly:1", "lists": ["customers"], "companies": ["a", "b"] })).await;
    let plain = scene.worker.send("POST", "/connectors/records/snapshots", &[], None).await;

    assert_eq!(first.status, 202, "{first:?}");
    let requested_at = first.body["requestedAt"].clone();
    let expected = json!({
        "id": "nightly:1", "kind": "verify", "lists": ["customers"], "companies": ["a", "b"], "incremental": false,
        "sample": null, "repair": false, "requestedBy": "rest", "requestedAt": requested_at, "state": "waiting",
        "shards": { "total": PARTITIONS, "ended": 0 }, "collections": { "total": 0, "ended": 0, "certified": 0 },
        "requests": 0, "budget": 10.0, "pages": 0, "rows": 0, "published": 0, "vanished": 0, "differences": {}, "repaired": {},
        "contents": 0, "disabled": 0, "unread": 0, "certified": null, "current": [], "waiting": first.body["waiting"],
    });
    assert_eq!(first.body, expected);
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert_eq!(other.status, 409);
    assert!(other.message().ends_with("its kind is verify, not snapshot; choose another id"), "{other:?}");
    assert_eq!(plain.status, 202, "{plain:?}");
    assert_eq!(plain.body["lists"], json!(["companies", "customers"]));
    let listed = scene.worker.get("/connectors/records/snapshots").await.body;
    for shown in [&first.body, &plain.body, &listed] {
        let [waits] = &shown["waiting"].as_array().unwrap()[..] else { panic!("{shown}") };
        assert_eq!(waits["list"], "payroll");
        assert!(waits["reason"].as_str().unwrap().starts_with("payroll waits for a login"), "{waits}");
    }
    let ids: Vec<&Value> = listed["snapshots"].as_array().unwrap().iter().map(|run| &run["id"]).collect();
    assert_eq!(ids, [&plain.body["id"], &json!("nightly:1")]);
    let written = scene.written(Run::key_of("records", &id("nightly:1")).as_str()).await;
    assert_eq!(written.len(), 1, "{written:?}");
    let run: Run = serde_json::from_value(written[0].clone()).unwrap();
    assert_eq!((run.lists, run.requested_by.as_str()), (BTreeSet::from([List::Customers]), "rest"));
    Ok(())
}

async fn an_impossible_run_is_refused_with_the_reason(shared: &'static Shared) -> Result<()> {
    let scene = SnapshotScene::new(shared, "run-refused").await?;
    let hooks = json!({
        "connector.class": "WebhookSource", "topic.prefix": "other", "accounting.resources": "customers",
        "accounting.secret": "0123456789abcdef", "subscriptions.manage": "false",
    });
    let created = scene.worker.ask("PUT", "/connectors/hooks/config", Some(hooks)).await;
    assert_eq!(created.status, 201, "{created:?}");

    let table = [
        (json!({ "lists": ["suppliers"] }), 400, "companies, customers, accounts, payroll"),
        (json!({ "lists": ["payroll"] }), 409, "payroll waits for a login"),
        (json!({ "lists": "customers" }), 400, "lists must be a JSON array of texts"),
        (json!({ "companies": [7] }), 400, "companies must be a JSON array of texts"),
        (json!({ "sample": 10 }), 400, "sample and repair are for the kind verify"),
        (json!({ "repair": true }), 400, "sample and repair are for the kind verify"),
        (json!({ "kind": "verify", "sample": 0 }), 400, "sample must be a number from 1 to 100000"),
        (json!({ "kind": "verify", "sample": "ten" }), 400, "sample must be a whole number of rows"),
        (json!({ "kind": "verify", "repair": 1 }), 400, "repair must be true or false"),
        (json!({ "incremental": "yes" }), 400, "incremental must be true or false"),
        (json!({ "list": ["customers"] }), 400, "Unrecognized field \"list\""),
        (json!([]), 400, "must be a JSON object"),
    ];
    for (body, status, expected) in table {
        let refused = scene.post(body.clone()).await;
        assert_eq!(refused.status, status, "{body}: {refused:?}");
        assert!(refused.message().contains(expected), "{body}: {refused:?}");
    }
    for (path, status, expected) in [
        ("unknown", 404, "Connector unknown not found"),
        ("hooks", 400, "Connector hooks is a WebhookSource: only a RecordSource reads lists"),
    ] {
        let asked = scene.worker.ask("POST", &format!("/connectors/{path}/snapshots"), None).await;
        let listed = scene.worker.get(&format!("/connectors/{path}/snapshots")).await;
        let proved = scene.worker.get(&format!("/connectors/{path}/certificates")).await;
        for refused in [asked, listed, proved] {
            assert_eq!(refused.status, status, "{refused:?}");
            assert!(refused.message().starts_with(expected), "{refused:?}");
        }
    }
    assert_eq!(scene.worker.ask("PUT", "/connectors/records/stop", None).await.status, 204);
    let stopped = scene.post(json!({})).await;
    assert_eq!(stopped.status, 409);
    assert!(stopped.message().starts_with("Connector records is STOPPED"), "{stopped:?}");
    let listed = scene.worker.get("/connectors/records/snapshots").await;
    assert_eq!((listed.status, &listed.body["snapshots"]), (200, &json!([])), "nothing was written");
    Ok(())
}

async fn a_run_shows_what_its_shards_write_and_ends_with_the_last(shared: &'static Shared) -> Result<()> {
    let scene = SnapshotScene::new(shared, "run-progress").await?;
    let path = "/connectors/records/snapshots/r";
    assert_eq!(scene.post(json!({ "id": "r", "kind": "verify" })).await.status, 202);

    scene.progress(&progress("r", 0, ShardState::Running)).await;
    let running = scene.worker.until(path, |answer| answer.body["state"] == "running").await.body;
    scene.progress(&progress("r", 0, ShardState::Ended)).await;
    scene.progress(&progress("r", 1, ShardState::Ended)).await;
    let almost = scene.worker.until(path, |answer| answer.body["shards"]["ended"] == 2).await.body;
    scene.progress(&progress("r", 2, ShardState::Ended)).await;
    let ended = scene.worker.until(path, |answer| answer.body["state"] == "ended").await.body;

    assert_eq!(running["collections"], json!({ "total": 2, "ended": 1, "certified": 1 }));
    assert_eq!(running["startedAt"], "1970-01-01T00:00:01.000Z");
    assert_eq!(
        running["current"],
        json!([{ "company": "a", "list": "customers", "pass": 1, "pages": 1, "rows": 50, "of": 80 }])
    );
    assert_eq!((&almost["state"], &almost["certified"]), (&json!("running"), &Value::Null));
    assert_eq!(ended["collections"], json!({ "total": 6, "ended": 6, "certified": 6 }));
    assert_eq!((&ended["certified"], &ended["rows"]), (&json!(true), &json!(300)));
    assert_eq!((&ended["differences"], &ended["current"]), (&json!({ "missing": 6 }), &json!([])));
    assert_eq!(ended["endedAt"], "1970-01-01T00:00:03.000Z");
    let unknown = scene.worker.get("/connectors/records/snapshots/unknown").await;
    assert_eq!((unknown.status, unknown.message()), (404, "Connector records has no run unknown"));

    let mut page = ScrapePage::default();
    scene.state_topics.measure(&mut page);
    let page = page.to_string();
    for line in [
        r#"tributary_snapshot_state{connector="records",state="ended"} 1"#,
        r#"tributary_snapshot_collections_remaining{connector="records"} 0"#,
        r#"tributary_reconcile_mismatch_records{connector="records",kind="missing"} 6"#,
        r#"tributary_reconcile_mismatch_records{connector="records",kind="behind"} 0"#,
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    Ok(())
}

async fn an_order_applies_until_the_run_ends(shared: &'static Shared) -> Result<()> {
    let scene = SnapshotScene::new(shared, "run-ordered").await?;
    assert_eq!(scene.post(json!({ "id": "r" })).await.status, 202);

    let paused = scene.order("r", "pause").await;
    let resumed = scene.order("r", "resume").await;
    let stopped = scene.order("r", "stop").await;
    let late = scene.order("r", "resume").await;

    assert_eq!([&paused, &resumed, &stopped, &late].map(|answer| answer.status), [202, 202, 202, 409]);
    assert_eq!(paused.body["reason"], "pause requested; not every shard has paused");
    assert_eq!(resumed.body.get("reason"), None);
    assert_eq!(stopped.body["reason"], "stop requested; not every shard has stopped");
    let orders = scene.written(RunCommand::key("records", &id("r")).as_str()).await;
    let wanted: Vec<&Value> = orders.iter().map(|order| &order["wanted"]).collect();
    assert_eq!(wanted, ["paused", "running", "stopped"]);

    for shard in 0..PARTITIONS {
        let reason = Some("stopped by request".to_owned());
        scene.progress(&RunProgress { reason, ..progress("r", shard, ShardState::Stopped) }).await;
    }
    let over = scene
        .worker
        .until("/connectors/records/snapshots/r", |answer| answer.body["state"] == "stopped")
        .await;
    let reason = json!("stopped by request");
    assert_eq!((&over.body["certified"], &over.body["reason"]), (&json!(false), &reason));
    Ok(())
}

async fn the_newest_certificate_of_each_list_is_read_from_its_topic(shared: &'static Shared) -> Result<()> {
    let scene = SnapshotScene::new(shared, "run-proved").await?;
    let layout = scene.place.layout([Topic::Certificates]);
    let publisher = scene.place.open(&layout).await.unwrap();
    let of = |run: &str, company: &str, list: &str, ended_at: i64, certified: bool| {
        let company = CompanyId::new(company).unwrap();
        let mut one = Certificate::of_company("records", id(run), list, company, 1_000_000);
        one.certified = certified;
        one.method = if certified { CertificateMethod::Counting } else { CertificateMethod::None };
        one.reason = (!certified).then(|| "it drifts".to_owned());
        one.counts.cut_after = Some(1_500_000);
        one.reading.ended_at = ended_at;
        one
    };
    let mut foreign = of("r2", "z", "customers", 9_000_000, true);
    foreign.scope.connector = "another".to_owned();
    let mut payroll = Certificate::of_shard("records", id("r2"), "payroll", 2, 1_000_000);
    payroll.reading.ended_at = 5_000_000;
    let certificates = [
        of("r1", "a", "customers", 2_000_000, false),
        of("r1", "b", "customers", 2_000_000, false),
        of("r2", "a", "customers", 3_000_000, true),
        of("r2", "a", "companies", 4_000_000, true),
        payroll,
        foreign,
    ];
    for certificate in certificates {
        let outgoing = Outgoing::new(certificate.into(), RecordMeta::new("c", Origin::Snapshot)).unwrap();
        publisher.publish(&outgoing).await.unwrap();
    }
    let read =
        async |query: &str| scene.worker.get(&format!("/connectors/records/certificates{query}")).await;
    let names = |answer: &Answer| -> Vec<String> {
        assert_eq!(answer.status, 200, "{answer:?}");
        let all = answer.body["certificates"].as_array().unwrap();
        let owner = |one: &Value| one["companyId"].as_str().map_or("~".to_owned(), str::to_owned);
        all.iter()
            .map(|one| {
                format!("{}/{}/{}", owner(one), one["list"].as_str().unwrap(), one["run"].as_str().unwrap())
            })
            .collect()
    };

    let all = read("").await;
    assert_eq!(names(&all), ["~/payroll/r2", "a/companies/r2", "a/customers/r2", "b/customers/r1"]);
    assert_eq!(all.body["truncated"], false);
    let newest = &all.body["certificates"][2];
    assert_eq!(
        (&newest["endedAt"], &newest["cutAfter"]),
        (&json!("1970-01-01T00:00:03.000Z"), &json!("1970-01-01T00:00:01.500Z"))
    );
    assert_eq!((&newest["method"], &newest["certified"]), (&json!("counting"), &json!(true)));
    assert_eq!(names(&read("?company=a").await), ["a/companies/r2", "a/customers/r2"]);
    assert_eq!(names(&read("?list=customers").await), ["a/customers/r2", "b/customers/r1"]);
    assert_eq!(names(&read("?run=r1").await), ["b/customers/r1"], "the older certificate of a is replaced");
    assert_eq!(names(&read("?uncertified=true").await), ["~/payroll/r2", "b/customers/r1"]);
    let some = read("?limit=1").await;
    assert_eq!((names(&some), &some.body["truncated"]), (vec!["~/payroll/r2".to_owned()], &json!(true)));
    for bad in ["?limit=0", "?limit=x", "?list=suppliers"] {
        assert_eq!(read(bad).await.status, 400, "{bad}");
    }
    Ok(())
}

async fn without_a_state_topic_there_are_no_runs_and_none_can_start(shared: &'static Shared) -> Result<()> {
    let scene = SnapshotScene::without_topics(shared, "run-early").await?;

    let listed = scene.worker.get("/connectors/records/snapshots").await;
    let proved = scene.worker.get("/connectors/records/certificates").await;
    let asked = scene.post(json!({})).await;

    assert_eq!((listed.status, &listed.body["snapshots"]), (200, &json!([])));
    assert_eq!((proved.status, proved.body), (200, json!({ "certificates": [], "truncated": false })));
    assert_eq!(asked.status, 409);
    assert!(
        asked.message().contains("does not exist yet; the tasks of connector records create it"),
        "{asked:?}"
    );
    Ok(())
}
