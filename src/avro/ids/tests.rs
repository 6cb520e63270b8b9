use std::{fs, os::unix::fs::PermissionsExt};

use reqwest::Method;
use tempfile::TempDir;

use base::retry::Retry;

use super::*;
use crate::avro::tests::stub::{StubFault, StubRegistry};

fn customers() -> ValueSubject {
    ValueSubject::values_of("acme.accounting.customers", SchemaKind::Customer)
}

fn accounts() -> ValueSubject {
    ValueSubject::values_of("acme.accounting.accounts", SchemaKind::Account)
}

async fn open(stub: &StubRegistry, directory: &TempDir) -> Ids {
    Ids::open(Registry::new(&stub.config()).unwrap(), directory.path()).await
}

fn posts(stub: &StubRegistry, subject: &ValueSubject) -> usize {
    let path = format!("subjects/{}/versions", subject.name());
    stub.seen().iter().filter(|seen| seen.method == Method::POST && seen.path == path).count()
}

#[tokio::test]
async fn prepared_subject_is_not_requested_again() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.add("another-value", "\"string\"");
    let ids = open(&stub, &directory).await;

    ids.prepare(&[customers()]).await.unwrap();
    let asked = stub.seen().len();
    ids.prepare(&[customers()]).await.unwrap();

    assert_eq!(ids.slot(&customers()).id(), Some(2));
    assert_eq!(stub.seen().len(), asked);
    assert_eq!(ids.unconfirmed(), 0);
}

#[tokio::test]
async fn concurrent_callers_share_one_registration() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    let ids = open(&stub, &directory).await;
    let subjects = [customers()];

    let prepared = futures::future::join_all((0..20).map(|_| ids.prepare(&subjects))).await;

    assert!(prepared.iter().all(Result::is_ok), "{prepared:?}");
    assert_eq!(ids.slot(&customers()).id(), Some(1));
    assert_eq!(posts(&stub, &customers()), 1);
}

#[tokio::test]
async fn concurrent_callers_share_one_failure_without_caching_it() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.fault(None, "", StubFault::status(503, ""));
    let ids = open(&stub, &directory).await;
    let subjects = [customers()];

    let prepared = futures::future::join_all((0..20).map(|_| ids.prepare(&subjects))).await;
    let asked = stub.seen().len();
    stub.heal();
    ids.prepare(&subjects).await.unwrap();

    assert!(prepared.iter().all(|result| matches!(result, Err(Error::Unavailable { .. }))), "{prepared:?}");
    assert_eq!(asked, 1);
    assert_eq!(ids.slot(&customers()).id(), Some(1));
}

#[tokio::test]
async fn cancelled_caller_does_not_block_the_next() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.fault(None, "", StubFault::Silence);
    let ids = open(&stub, &directory).await;
    let subjects = [customers()];
    {
        let mut given_up = Box::pin(ids.prepare(&subjects));
        assert!(futures::poll!(&mut given_up).is_pending());
    }
    stub.heal();

    ids.prepare(&subjects).await.unwrap();

    assert_eq!(ids.slot(&customers()).id(), Some(1));
}

#[tokio::test]
async fn restart_without_the_registry_uses_ids_on_disk() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.add("another-value", "\"string\"");
    open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
    stub.fault(None, "", StubFault::status(500, ""));

    let restarted = open(&stub, &directory).await;
    restarted.prepare(&[customers()]).await.unwrap();

    assert_eq!((restarted.slot(&customers()).id(), restarted.unconfirmed()), (Some(2), 1));
    restarted.refresh().await.unwrap();
    assert_eq!((restarted.slot(&customers()).id(), restarted.unconfirmed()), (Some(2), 1), "no answer");
}

#[tokio::test]
async fn returning_registry_confirms_or_replaces_ids() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
    let path = directory.path().join("schema-ids.json");
    let other = fs::read_to_string(&path).unwrap().replace("\"id\": 1", "\"id\": 77");
    fs::write(&path, other).unwrap();
    stub.fault(None, "", StubFault::status(500, ""));
    let restarted = open(&stub, &directory).await;
    restarted.prepare(&[customers()]).await.unwrap();
    assert_eq!(restarted.slot(&customers()).id(), Some(77));

    stub.heal();
    restarted.refresh().await.unwrap();

    assert_eq!(restarted.slot(&customers()).id(), Some(1));
    assert_eq!(restarted.unconfirmed(), 0);
}

#[tokio::test]
async fn without_an_id_on_disk_the_error_is_retriable() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.fault(None, "", StubFault::status(500, ""));
    let ids = open(&stub, &directory).await;

    let error = ids.prepare(&[customers()]).await.unwrap_err();

    assert_eq!(error.retry(), Retry::Later);
    assert_eq!(ids.slot(&customers()).id(), None);
}

#[tokio::test]
async fn id_on_disk_is_not_used_after_a_refusal() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
    stub.fault(None, "", StubFault::status(401, ""));

    let error = open(&stub, &directory).await.prepare(&[customers()]).await.unwrap_err();

    assert!(matches!(error, Error::Unauthorised { .. }), "{error:?}");
}

#[tokio::test]
async fn foreign_answer_keeps_known_ids_and_is_final_without_one() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
    for fault in [StubFault::status(200, "<html>maintenance</html>"), StubFault::status(404, "no such route")]
    {
        stub.fault(None, "", fault);
        let ids = open(&stub, &directory).await;

        ids.prepare(&[customers()]).await.unwrap();
        let unknown = ids.prepare(&[accounts()]).await.unwrap_err();

        assert_eq!(ids.slot(&customers()).id(), Some(1));
        assert_eq!(unknown.retry(), Retry::Never, "{unknown}");
        stub.heal();
    }
}

#[tokio::test]
async fn a_registry_that_gained_an_address_keeps_its_ids() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
    stub.fault(None, "", StubFault::status(503, ""));
    let mut config = stub.config();
    config.urls.push("http://127.0.0.1:1/".parse().unwrap());

    let ids = Ids::open(Registry::new(&config).unwrap(), directory.path()).await;
    ids.prepare(&[customers()]).await.unwrap();

    assert_eq!(ids.slot(&customers()).id(), Some(1));
}

#[tokio::test]
async fn one_permanent_error_makes_the_list_permanent() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.fault(None, &customers().name(), StubFault::status(401, ""));
    stub.fault(None, &accounts().name(), StubFault::status(503, ""));
    let companies = ValueSubject::values_of("acme.accounting.companies", SchemaKind::Company);
    let ids = open(&stub, &directory).await;

    let error = ids.prepare(&[customers(), accounts(), companies.clone()]).await.unwrap_err();

    let shown = error.to_string();
    assert!(shown.contains(&customers().name()) && shown.contains(&accounts().name()), "{shown}");
    assert!(!shown.contains(&companies.name()), "{shown}");
    assert_eq!(error.retry(), Retry::Never);
    assert_eq!(ids.slot(&companies).id(), Some(1));
}

#[tokio::test]
async fn silent_registry_costs_one_timeout_for_all_subjects() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    stub.fault(None, "", StubFault::Silence);
    let mut config = stub.config();
    config.timeout = std::time::Duration::from_millis(50);
    let ids = Ids::open(Registry::new(&config).unwrap(), directory.path()).await;
    let subjects: Vec<_> =
        (0..40).map(|n| ValueSubject::values_of(format!("topic-{n}"), SchemaKind::Record)).collect();

    let error = ids.prepare(&subjects).await.unwrap_err();

    assert!(matches!(&error, Error::Several(all) if all.len() == 40), "{error}");
    assert_eq!(error.retry(), Retry::Later);
    assert!(stub.seen().len() < 2 * MAX_CONCURRENT_REGISTRATIONS, "{} requests", stub.seen().len());
}

#[tokio::test]
async fn ids_of_another_registry_are_never_used() {
    let (first, second) = (StubRegistry::start().await, StubRegistry::start().await);
    let directory = tempfile::tempdir().unwrap();
    open(&first, &directory).await.prepare(&[customers()]).await.unwrap();
    second.fault(None, "", StubFault::status(500, ""));

    let error = open(&second, &directory).await.prepare(&[customers()]).await.unwrap_err();

    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn id_of_another_schema_text_is_never_used() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
    let path = directory.path().join("schema-ids.json");
    let fingerprint = schemas::embedded(SchemaKind::Customer).unwrap().fingerprint.to_string();
    let other = fs::read_to_string(&path).unwrap().replace(&fingerprint, &"0".repeat(64));
    fs::write(&path, other).unwrap();
    stub.fault(None, "", StubFault::status(500, ""));

    let result = open(&stub, &directory).await.prepare(&[customers()]).await;

    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

#[tokio::test]
async fn unreadable_state_file_is_replaced_by_a_private_one() {
    for content in ["{torn", r#"{"registry":[],"ids":[]}"#, &" ".repeat(5 * 1024 * 1024)] {
        let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
        let path = directory.path().join("schema-ids.json");
        fs::write(&path, content).unwrap();
        fs::write(directory.path().join("schema-ids.json.tmp"), "left over").unwrap();

        open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();

        let written: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(written["ids"][customers().name()][0]["id"], 1);
        assert_eq!(written["registry"][0], stub.url().as_str());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the temporary file is gone");
    }
}

#[tokio::test]
async fn unwritable_state_directory_does_not_lose_ids() {
    let stub = StubRegistry::start().await;
    let ids = Ids::open(Registry::new(&stub.config()).unwrap(), Path::new("/nonexistent/state")).await;

    ids.prepare(&[customers()]).await.unwrap();

    assert_eq!(ids.slot(&customers()).id(), Some(1));
}

#[test]
fn every_outcome_is_counted_once_under_its_own_label() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let shown = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    // All tasks of this runtime are on this thread, so all of them meet this recorder.
    ::metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
            open(&stub, &directory).await.prepare(&[customers()]).await.unwrap();
            stub.fault(None, "", StubFault::status(500, ""));
            open(&stub, &directory).await.prepare(&[customers(), accounts()]).await.unwrap_err();
            stub.fault(None, "", StubFault::status(401, ""));
            open(&stub, &directory).await.prepare(&[customers()]).await.unwrap_err();
            stub.heal();
            stub.add(&accounts().name(), r#"{"type":"record","name":"Other","fields":[]}"#);
            stub.fault(None, "compatibility", StubFault::status(200, r#"{"is_compatible":false}"#));
            open(&stub, &directory).await.prepare(&[accounts()]).await.unwrap_err();
        });
    });

    let text = shown.render();
    for outcome in ["registered", "cached", "unavailable", "unauthorised", "incompatible"] {
        let line = format!("tributary_schema_registrations_total{{outcome=\"{outcome}\"}} 1");
        assert!(text.contains(&line), "{line} is missing in:\n{text}");
    }
}
