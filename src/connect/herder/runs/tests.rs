use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::json;

use model::{CertificateMethod, Run, RunKind, RunProgress, ShardState};

use super::*;
use crate::{
    config::{Providers, connector::Snapshot},
    plugin::samples::{properties, record_config},
};

/// Runs of one connector, in memory.
#[derive(Debug)]
struct Kept(Mutex<ConnectorRuns>);

impl Kept {
    fn new(shards: i32) -> Self {
        Self(Mutex::new(ConnectorRuns { runs: Runs::default(), shards }))
    }

    fn with<T>(&self, look: impl FnOnce(&mut ConnectorRuns) -> T) -> T {
        look(&mut self.0.lock())
    }
}

#[async_trait]
impl RunStore for Kept {
    async fn read(&self, _: &TopicPrefix, _: &str) -> Result<ConnectorRuns, Error> {
        Ok(self.with(|stored| stored.clone()))
    }

    async fn newest(&self, _: &TopicPrefix, _: &str) -> Result<ConnectorRuns, Error> {
        Ok(self.with(|stored| stored.clone()))
    }

    async fn write(&self, _: &TopicPrefix, key: &Key, value: &Value) -> Result<(), Error> {
        let parts = Key::parts(key.as_str()).unwrap();
        let id = RunId::new(&*parts[2]).unwrap();
        self.with(|stored| match parts[0].as_str() {
            Run::KIND => drop(stored.runs.runs.insert(id, serde_json::from_value(value.clone()).unwrap())),
            RunCommand::KIND => {
                stored.runs.commands.insert(id, serde_json::from_value(value.clone()).unwrap());
            }
            other => panic!("{other}"),
        });
        Ok(())
    }

    fn waiting(&self, _: &RecordSource) -> BTreeMap<List, String> {
        BTreeMap::new()
    }

    async fn certificates(
        &self,
        _: &TopicPrefix,
        _: &CertificateFilter,
        _: Instant,
    ) -> Result<FoundCertificates, Error> {
        Ok(FoundCertificates::default())
    }
}

fn source(more: &[(&str, &str)]) -> RecordSource {
    let mut config = record_config();
    config.extend(properties(more));
    RecordSource::parse("records", &config, &Providers::new([])).unwrap().0
}

fn subject(store: &dyn RunStore) -> RunSubject<'_> {
    RunSubject { name: "records", target: TargetState::Running, source: source(&[]), store }
}

fn request(id: &str) -> RunRequest {
    RunRequest { id: Some(id.to_owned()), ..RunRequest::default() }
}

fn progress(run: &str, shard: i32, state: ShardState) -> RunProgress {
    serde_json::from_value(json!({
        "connector": "records", "run": run, "shard": shard, "state": state, "lists": 2, "ended": 2, "certified": 2,
        "requests": 7, "pages": 3, "rows": 4, "published": 5, "vanished": 6, "startedAt": 1_000_000, "updatedAt": 2_000_000,
        "endedAt": state.is_over().then_some(2_000_000),
    }))
    .unwrap()
}

fn refusal(result: Result<RunInfo, Error>) -> (u16, String) {
    let error = result.unwrap_err();
    (error.status(), error.to_string())
}

#[test]
fn request_defaults_to_the_configuration() {
    let configured = source(&[("snapshot.companies", "a,b")]).snapshot;

    let run = RunRequest::default().checked("records", &configured, &BTreeMap::new(), 7).unwrap();

    assert_eq!((run.id.as_str(), run.kind, run.incremental), ("snapshot-7", RunKind::Snapshot, false));
    assert_eq!((&run.lists, &run.companies), (&configured.lists, &configured.companies));
    assert_eq!((run.requested_by.as_str(), run.requested_at), ("rest", 7));
}

#[test]
fn refused_request_says_why_and_what_to_do() {
    let lists = ("snapshot.lists", "companies,customers,accounts");
    let configured = source(&[("snapshot.companies", "a,b"), lists]).snapshot;
    let empty = Snapshot { lists: BTreeSet::new(), ..configured.clone() };
    let base = RunRequest::default();
    let some = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    let table = [
        (RunRequest { id: Some(String::new()), ..base.clone() }, &configured, "id must have 1 to 100"),
        (RunRequest { id: Some("x".repeat(101)), ..base.clone() }, &configured, "id must have 1 to 100"),
        (request("repair/1"), &configured, "id must have 1 to 100"),
        (request("initial"), &configured, "requests itself"),
        (request("initial-payroll"), &configured, "requests itself"),
        (request("schedule-2026"), &configured, "requests itself"),
        (
            RunRequest { kind: Some("repair".into()), ..base.clone() },
            &configured,
            "kind must be snapshot or verify",
        ),
        (
            RunRequest { lists: some(&["suppliers"]), ..base.clone() },
            &configured,
            "companies, customers, accounts",
        ),
        (
            RunRequest { lists: some(&["payroll"]), ..base.clone() },
            &configured,
            "list payroll is not in snapshot.lists of connector records (companies, customers, accounts)",
        ),
        (RunRequest { lists: some(&[]), ..base.clone() }, &configured, "lists is empty"),
        (base.clone(), &empty, "lists is empty"),
        (RunRequest { companies: some(&[]), ..base.clone() }, &configured, "companies is empty"),
        (RunRequest { companies: some(&["c"]), ..base.clone() }, &configured, "not in snapshot.companies"),
        (
            RunRequest { incremental: true, ..base.clone() },
            &configured,
            "incremental is for the list payroll",
        ),
    ];

    for (request, configured, expected) in table {
        let error = request.clone().checked("records", configured, &BTreeMap::new(), 7).unwrap_err();
        assert_eq!(error.status(), 400);
        assert!(error.to_string().contains(expected), "{request:?}: {error}");
    }
}

#[tokio::test]
async fn same_request_is_same_run_and_another_is_refused() {
    let kept = Kept::new(2);
    let subject = subject(&kept);
    let lists = Some(vec!["customers".to_owned()]);
    let other = RunRequest {
        kind: Some("verify".to_owned()),
        lists,
        companies: Some(["a", "b", "c", "d"].map(str::to_owned).to_vec()),
        ..request("r")
    };

    let first = subject.start(request("r"), 1).await.unwrap();
    let again = subject.start(request("r"), 2).await.unwrap();
    let refused = refusal(subject.start(other, 3).await);

    assert_eq!((first.state, first.certified, first.shards.total), ("waiting", None, 2));
    assert_eq!(first, again);
    let expected = "run r of connector records exists and differs from this request: its kind is snapshot, not verify, \
                    its lists are companies, customers, accounts, payroll, not customers, its companies are all, not a, b, c, \
                    1 more; choose another id";
    assert_eq!(refused, (409, expected.to_owned()));
}

#[tokio::test]
async fn same_request_is_same_run_after_a_configuration_change() {
    let kept = Kept::new(2);
    let first = subject(&kept).start(request("r"), 1).await.unwrap();
    let changed = source(&[("snapshot.lists", "customers"), ("snapshot.companies", "a,b")]);
    let later = RunSubject { source: changed, ..subject(&kept) };
    let named = RunRequest { lists: Some(vec!["customers".to_owned()]), ..request("r") };

    let again = later.start(request("r"), 2).await.unwrap();
    let refused = refusal(later.start(named, 3).await);

    assert_eq!(again, first);
    let expected = "run r of connector records exists and differs from this request: its lists are companies, customers, \
                    accounts, payroll, not customers; choose another id";
    assert_eq!(refused, (409, expected.to_owned()));
}

#[tokio::test]
async fn run_needs_a_running_connector_a_topic_and_a_free_place() {
    let (kept, absent) = (Kept::new(1), Kept::new(0));
    let running = subject(&kept);
    let stopped = RunSubject { target: TargetState::Stopped, ..subject(&kept) };

    assert!(refusal(stopped.start(request("r"), 1).await).1.starts_with("Connector records is STOPPED"));
    assert!(refusal(subject(&absent).start(request("r"), 1).await).1.contains("does not exist yet"));
    for number in 0..MAX_OPEN_RUNS {
        running.start(request(&format!("r{number}")), 1).await.unwrap();
    }
    let one_more = refusal(running.start(request("more"), 1).await);
    assert_eq!(one_more.0, 409);
    assert!(one_more.1.contains("has 20 runs that are not over"), "{one_more:?}");
    assert!(running.start(request("r3"), 1).await.is_ok(), "it is there already");
    kept.with(|stored| {
        let ended = progress("r0", 0, ShardState::Ended);
        stored.runs.progress.insert((ended.of.run.clone(), 0), ended);
    });
    assert!(running.start(request("more"), 1).await.is_ok());
}

#[tokio::test]
async fn run_is_paused_resumed_and_stopped_until_it_is_over() {
    let kept = Kept::new(1);
    let subject = subject(&kept);
    subject.start(request("r"), 1).await.unwrap();
    let wanted = || kept.with(|stored| stored.runs.wanted(&RunId::new("r").unwrap()));

    let paused = subject.command("r", DesiredRunState::Paused, 2).await.unwrap();
    assert_eq!(
        (wanted(), paused.reason.as_deref()),
        (DesiredRunState::Paused, Some("pause requested; not every shard has paused"))
    );
    subject.command("r", DesiredRunState::Running, 3).await.unwrap();
    assert_eq!(wanted(), DesiredRunState::Running);
    subject.command("r", DesiredRunState::Stopped, 4).await.unwrap();
    subject.command("r", DesiredRunState::Stopped, 5).await.unwrap();
    assert_eq!(
        kept.with(|stored| stored.runs.commands.values().next().unwrap().at),
        4,
        "the same command is not written again"
    );
    let resumed = refusal(subject.command("r", DesiredRunState::Running, 6).await);
    assert!(resumed.0 == 409 && resumed.1.contains("is being stopped"), "{resumed:?}");
    kept.with(|stored| {
        let stopped = progress("r", 0, ShardState::Stopped);
        stored.runs.progress.insert((stopped.of.run.clone(), 0), stopped);
    });
    let over = refusal(subject.command("r", DesiredRunState::Stopped, 7).await);
    assert!(over.0 == 409 && over.1.contains("is over (stopped)"), "{over:?}");
    let unknown = refusal(subject.command("absent", DesiredRunState::Stopped, 7).await);
    assert_eq!(unknown, (404, "Connector records has no run absent".to_owned()));
}

#[test]
fn run_json_has_sums_and_readable_times() {
    let mut stored = ConnectorRuns { runs: Runs::default(), shards: 1 };
    let configured = source(&[]).snapshot;
    for (id, at) in [("old", 1), ("new", 2_000_000)] {
        let run = request(id).checked("records", &configured, &BTreeMap::new(), at).unwrap();
        stored.runs.runs.insert(run.id.clone(), run);
    }
    let ended = progress("new", 0, ShardState::Ended);
    stored.runs.progress.insert((ended.of.run.clone(), 0), ended);

    let all = serde_json::to_value(view::runs(&stored, waiting())).unwrap();
    let one =
        serde_json::to_value(view::detailed(&stored, &RunId::new("new").unwrap(), 12.5, waiting())).unwrap();

    let expected = json!({
        "id": "new", "kind": "snapshot", "lists": ["companies", "customers", "accounts", "payroll"], "companies": null,
        "incremental": false, "sample": null, "repair": false, "requestedBy": "rest", "requestedAt": "1970-01-01T00:00:02.000Z", "state": "ended",
        "startedAt": "1970-01-01T00:00:01.000Z", "updatedAt": "1970-01-01T00:00:02.000Z",
        "endedAt": "1970-01-01T00:00:02.000Z", "shards": {"total": 1, "ended": 1},
        "collections": {"total": 2, "ended": 2, "certified": 2}, "requests": 7, "pages": 3, "rows": 4, "published": 5, "vanished": 6,
        "differences": {}, "repaired": {}, "contents": 0, "disabled": 0, "unread": 0, "certified": true,
    });
    assert_eq!(all["snapshots"][0], expected);
    assert_eq!(all["snapshots"][1]["id"], "old");
    assert_eq!((&one["current"], &one["pages"], &one["budget"]), (&json!([]), &json!(3), &json!(12.5)));
    let waits = json!([{ "list": "payroll", "reason": "log in" }]);
    assert_eq!((&all["waiting"], &one["waiting"]), (&waits, &waits));
}

fn waiting() -> BTreeMap<List, String> {
    BTreeMap::from([(List::Payroll, "log in".to_owned())])
}

#[test]
fn waiting_list_is_left_out_unless_named() {
    let (all, alone) = (source(&[]).snapshot, source(&[("snapshot.lists", "payroll")]).snapshot);
    let ask = |request: RunRequest, configured: &Snapshot| {
        let run = request.checked("records", configured, &waiting(), 7);
        run.map(|run| run.lists).map_err(|error| (error.status(), error.to_string()))
    };
    let payroll = || RunRequest { lists: Some(vec!["payroll".to_owned()]), ..RunRequest::default() };
    let refused = Err((409, "log in".to_owned()));

    let readable = BTreeSet::from([List::Companies, List::Customers, List::Accounts]);
    assert_eq!(ask(RunRequest::default(), &all), Ok(readable));
    assert_eq!(ask(payroll(), &all), refused);
    assert_eq!(ask(RunRequest { incremental: true, ..RunRequest::default() }, &all), refused);
    assert_eq!(ask(RunRequest::default(), &alone), refused);
}

#[test]
fn certificates_are_shown_newest_first_up_to_the_limit() {
    let one = |company: &str, ended_at: i64| {
        let (run, company) = (RunId::new("r").unwrap(), CompanyId::new(company).unwrap());
        let mut one = Certificate::of_company("records", run, "customers", company, 1);
        (one.reading.ended_at, one.method) = (ended_at, CertificateMethod::Counting);
        one
    };
    let found = || FoundCertificates {
        found: vec![one("a", 1_000_000), one("b", 3_000_000), one("c", 2_000_000)],
        truncated: false,
    };

    let all = view::certificates(found(), 3);
    let some = view::certificates(found(), 2);

    let companies: Vec<&Value> = all.certificates.iter().map(|one| &one["companyId"]).collect();
    assert_eq!(companies, [&json!("b"), &json!("c"), &json!("a")]);
    let first = &all.certificates[0];
    assert_eq!(
        (&first["endedAt"], &first["method"]),
        (&json!("1970-01-01T00:00:03.000Z"), &json!("counting"))
    );
    assert_eq!(first["cutAfter"], Value::Null);
    assert_eq!((all.truncated, some.truncated, some.certificates.len()), (false, true, 2));
}

#[test]
fn invalid_certificate_queries_are_refused() {
    let kept = Kept::new(1);
    let subject = subject(&kept);
    let limit =
        |limit: &str| CertificateQuery { limit: Some(limit.to_owned()), ..CertificateQuery::default() };

    let (filter, default) = subject.filter(CertificateQuery::default()).unwrap();

    assert_eq!((filter.connector.as_str(), default), ("records", 1000));
    assert_eq!(subject.filter(limit("10000")).unwrap().1, 10_000);
    for bad in ["0", "10001", "-1", "many"] {
        assert_eq!(
            subject.filter(limit(bad)).unwrap_err().to_string(),
            "limit must be a number from 1 to 10000"
        );
    }
    let list = CertificateQuery { list: Some("suppliers".to_owned()), ..CertificateQuery::default() };
    assert_eq!(subject.filter(list).unwrap_err().status(), 400);
}
