//! `tributary events trace` on topics that the publish path has written: what it finds, what it says when it finds nothing, and how fast.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka::Producer;
use model::{
    AccountingEvent, AccountingResource, EncodedRecord, Moment, Origin, Outgoing, Reception, RecordMeta,
    Topic,
};
use serde_json::{Value, json};
use tributary::publish::Publisher;

use crate::support::command::{stderr, stdout, tributary};
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::topics::LIMIT;
use crate::support::{Result, Shared, lost};

crate::tests! {
    real events_of_all_resources_are_found_newest_last;
    real an_unknown_id_ends_with_exit_code_3;
    real events_before_since_are_not_read;
    real a_wait_ends_with_the_first_event;
    real a_record_that_cannot_be_decoded_is_named;
    real one_event_among_100_000_is_found_in_time within 180;
    plain invalid_arguments_end_with_exit_code_2;
}

const CUSTOMERS: AccountingResource = AccountingResource::Customers;
const INVOICES: AccountingResource = AccountingResource::InputInvoices;
const PROCESS: &str = "5c1d9f80-0003-4abc-8000-00000000000a";
const CONVERSATION: &str = "5c1d9f80-0002-4abc-8000-00000000000c";
/// What the command says before it waits.
const WAITING: &str = "no event yet";
const EVENTS: usize = 100_000;
/// For the command from its start to its end, in a build with optimizations.
const TRACE_LIMIT: Duration = Duration::from_secs(2);
const HOUR: i64 = 3_600_000_000;

struct EventScene {
    place: Place,
    config: String,
    publisher: Publisher,
    producer: Producer,
}

impl EventScene {
    async fn set(shared: &Shared, name: &str) -> Self {
        let place = Place::on(shared, name).unwrap();
        let topics = [CUSTOMERS, INVOICES].map(Topic::AccountingEvents);
        let publisher = place.open(&place.layout(topics)).await.unwrap();
        let config = place.state_dir.join("worker.properties");
        let lines = format!(
            "bootstrap.servers={}\nvalue.converter.schema.registry.url={}\nstate.dir={}\n",
            shared.bootstrap(),
            shared.registry(),
            place.state_dir.join("state").display()
        );
        fs::write(&config, lines).unwrap();
        let producer = place.producer();
        Self { config: config.display().to_string(), publisher, producer, place }
    }

    /// Runs `tributary events trace` on this prefix.
    async fn trace(&self, arguments: &[&str]) -> Output {
        let which = ["--config", &self.config, "--prefix", self.place.prefix.as_str()];
        tributary(&[&["events", "trace"], arguments, &which].concat(), &[]).await
    }

    async fn publish(&self, event: &Outgoing) {
        self.publisher.publish(event).await.unwrap();
    }
}

/// An event that was received this many microseconds ago.
fn event(resource: AccountingResource, company: &str, process: &str, ago: i64) -> Outgoing {
    let data = json!({
        "CorrelationId": "r-1", "Version": "03/14/2025 09:26:53.5897932", "SequenceVersion": "7",
        "SvcSourceInterface": "Api", "SvcProcessId": process, "SvcSourceAction": "Update",
    });
    let body = json!({
        "WebhookId": "0b7e3c7a-1f2d-4a5b-9c8d-1234567890ab", "OutgoingId": "o-1",
        "ConversationId": CONVERSATION, "TenantId": "tenant-1",
        "ExtraPartitionInformation": { "PartitionClientId": company, "UserName": "someone" },
        "EventType": { "AppName": "Svc", "Domain": "ACC", "EventType": "RecordUpdated" },
        "Timestamp": 638_774_908_135_897_932_i64, "JsonData": data.to_string(), "UserIdentifier": "user-1",
    });
    let reception = Reception { connector: "hooks", received_at: Moment::now().micros() - ago };
    let event = AccountingEvent::from_json(body.to_string().as_bytes(), resource, reception).unwrap();
    Outgoing::new(event.into(), RecordMeta::new("o-1", Origin::Webhook)).unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(output), stderr(output));
    stdout(output).lines().map(line).collect()
}

async fn events_of_all_resources_are_found_newest_last(shared: &'static Shared) {
    let scene = EventScene::set(shared, "events-all").await;
    scene.publish(&event(INVOICES, "second", PROCESS, HOUR)).await;
    scene.publish(&event(CUSTOMERS, "first", PROCESS, 2 * HOUR)).await;
    scene.publish(&event(CUSTOMERS, "first", "another", 0)).await;

    let by_process = lines(&scene.trace(&[PROCESS, "--json"]).await);
    let by_conversation = lines(&scene.trace(&[CONVERSATION, "--output", "json"]).await);
    let newest = scene.trace(&[CONVERSATION, "--limit", "1"]).await;

    let found: Vec<_> = by_process
        .iter()
        .map(|event| ["resource", "company", "outcome", "matched"].map(|name| event[name].as_str().unwrap()))
        .collect();
    let expected =
        [["customers", "first", "updated", "process"], ["input-invoices", "second", "updated", "process"]];
    assert_eq!(found, expected);
    assert_eq!(by_conversation.len(), 3, "{by_conversation:?}");
    let printed = stdout(&newest);
    assert_eq!(newest.status.code(), Some(0), "{}", stderr(&newest));
    assert!(printed.lines().nth(1).is_some_and(|line| line.contains("  first  ")), "{printed}");
    assert!(printed.ends_with("\n2 older events are not shown; raise --limit, or bound them with --since\n"));
}

async fn an_unknown_id_ends_with_exit_code_3(shared: &'static Shared) {
    let scene = EventScene::set(shared, "events-none").await;
    let empty = scene.trace(&[PROCESS]).await;
    scene.publish(&event(CUSTOMERS, "first", PROCESS, 0)).await;
    scene.publish(&event(INVOICES, "second", PROCESS, 0)).await;

    // The id of a record, which both events have, is not the id of a write.
    let record = scene.trace(&["r-1", "--json"]).await;
    let foreign = [
        "events",
        "trace",
        PROCESS,
        "--config",
        &scene.config,
        "--prefix",
        &format!("{}-other", scene.place.prefix),
    ];
    let foreign = tributary(&foreign, &[]).await;

    assert_eq!((empty.status.code(), record.status.code()), (Some(3), Some(3)), "{}", stderr(&record));
    assert!(stderr(&empty).contains("searched 0 records of "), "{}", stderr(&empty));
    let said = stderr(&record);
    assert!(said.starts_with("no event has the SvcProcessId or ConversationId r-1: "), "{said}");
    let topics = [CUSTOMERS, INVOICES].map(|resource| scene.place.name(Topic::AccountingEvents(resource)));
    assert!(said.contains("searched 2 records from ") && said.contains(&topics.join(", ")), "{said}");
    assert!(said.contains("\nremedy: ") && stdout(&record).is_empty(), "{said}");
    assert_eq!(foreign.status.code(), Some(1));
    assert!(stderr(&foreign).contains("has no accounting event topic"), "{}", stderr(&foreign));
}

async fn events_before_since_are_not_read(shared: &'static Shared) {
    let scene = EventScene::set(shared, "events-since").await;
    // Of one company, so of one partition; the other partitions have nothing since then.
    scene.publish(&event(CUSTOMERS, "first", PROCESS, 3 * HOUR)).await;
    scene.publish(&event(CUSTOMERS, "first", "another", 0)).await;

    let all = scene.trace(&[PROCESS, "--json"]).await;
    let since = scene.trace(&[PROCESS, "--since", "2h"]).await;
    let nothing = scene.trace(&[PROCESS, "--since", "2999-01-01T00:00:00Z"]).await;

    assert_eq!(lines(&all).len(), 1);
    assert_eq!(since.status.code(), Some(3), "{}", stdout(&since));
    assert!(stderr(&since).contains("searched 1 record from "), "{}", stderr(&since));
    assert!(stderr(&nothing).contains("searched 0 records of "), "{}", stderr(&nothing));
}

async fn a_wait_ends_with_the_first_event(shared: &'static Shared) -> Result<()> {
    let scene = EventScene::set(shared, "events-wait").await;
    scene.publish(&event(CUSTOMERS, "first", "another", 0)).await;
    let began = Instant::now();
    let in_vain = scene.trace(&[PROCESS, "--wait", "1s"]).await;
    let waited = began.elapsed();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    let prefix = scene.place.prefix.as_str();
    command.args(["events", "trace", PROCESS, "--wait", "2h", "--config", &scene.config, "--prefix", prefix]);
    command.env_clear();
    let process = Process::spawn("trace", command, &scene.place.state_dir.join("trace.log"))?;
    process.ready(LIMIT, async || process.said().contains(WAITING)).await?;

    scene.publish(&event(INVOICES, "second", PROCESS, 0)).await;
    let status = process.wait(LIMIT).await?;

    assert_eq!(in_vain.status.code(), Some(3), "{}", stdout(&in_vain));
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(stderr(&in_vain).contains("searched 1 record from "), "read again: {}", stderr(&in_vain));
    assert_eq!(status.code(), Some(0), "{}", process.said());
    assert!(process.said().contains("  input-invoices  "), "{}", process.said());
    Ok(())
}

async fn a_record_that_cannot_be_decoded_is_named(shared: &'static Shared) {
    let scene = EventScene::set(shared, "events-foreign").await;
    let whole = scene.publisher.preparer().prepare(&event(CUSTOMERS, "first", PROCESS, 0)).unwrap();
    let mut cut = whole.clone();
    cut.value = cut.value.map(|value| value.slice(..value.len() - 1));
    let ack = scene.producer.send(cut).unwrap().await.unwrap();

    let alone = scene.trace(&[PROCESS]).await;
    scene.producer.send(whole).unwrap().await.unwrap();
    let beside = scene.trace(&[PROCESS, "--json"]).await;

    let place =
        format!("{} {}@{}", scene.place.name(Topic::AccountingEvents(CUSTOMERS)), ack.partition, ack.offset);
    for output in [&alone, &beside] {
        assert!(stderr(output).contains(&format!("{place} contains the id and cannot be decoded: ")));
    }
    assert_eq!(alone.status.code(), Some(1), "{}", stderr(&alone));
    assert_eq!(lines(&beside).len(), 1);
}

async fn one_event_among_100_000_is_found_in_time(shared: &'static Shared) {
    const WANTED: usize = 77_777;
    let scene = EventScene::set(shared, "events-many").await;
    let id = |number: usize| format!("{number:08x}-0003-4abc-8000-00000000000a");
    // Encoded once for each company: only the ids differ, which have one length.
    let templates: Vec<EventTemplate> = (0..20)
        .flat_map(|number| [CUSTOMERS, INVOICES].map(|resource| (resource, format!("company-{number}"))))
        .map(|(resource, company)| {
            let outgoing = event(resource, &company, PROCESS, 0);
            EventTemplate::of(scene.publisher.preparer().prepare(&outgoing).unwrap())
        })
        .collect();
    for first in (0..EVENTS).step_by(5_000) {
        let send = |number: usize| {
            let record = templates[number % templates.len()].with(&id(number));
            scene.producer.send(record).unwrap()
        };
        for delivery in (first..first + 5_000).map(send).collect::<Vec<_>>() {
            delivery.await.unwrap();
        }
    }

    let began = Instant::now();
    let found = scene.trace(&[&id(WANTED), "--json"]).await;
    let took = lost::promised(began);
    let missing = scene.trace(&[&id(EVENTS)]).await;

    let found = lines(&found);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["process"], &found[0]["matched"]), (&json!(id(WANTED)), &json!("process")));
    assert_eq!(missing.status.code(), Some(3));
    assert!(stderr(&missing).contains("searched 100000 records from "), "{}", stderr(&missing));
    println!("one event among {EVENTS} was traced in {took:?}");
    if !cfg!(debug_assertions) {
        assert!(took < TRACE_LIMIT, "{took:?}");
    }
}

/// A record whose process id can be replaced.
struct EventTemplate {
    record: EncodedRecord,
    /// Where the id is: in `jsonData` and in `svcProcessId`.
    places: Vec<usize>,
}

impl EventTemplate {
    fn of(record: EncodedRecord) -> Self {
        let value = record.value.as_deref().unwrap();
        let windows = value.windows(PROCESS.len()).enumerate();
        let places: Vec<usize> =
            windows.filter(|(_, window)| *window == PROCESS.as_bytes()).map(|(place, _)| place).collect();
        assert_eq!(places.len(), 2, "an Avro string is not stored as it is");
        Self { record, places }
    }

    fn with(&self, id: &str) -> EncodedRecord {
        let mut value = self.record.value.as_deref().unwrap().to_vec();
        for place in &self.places {
            value[*place..*place + PROCESS.len()].copy_from_slice(id.as_bytes());
        }
        EncodedRecord { value: Some(Bytes::from(value)), ..self.record.clone() }
    }
}

async fn invalid_arguments_end_with_exit_code_2() {
    for arguments in [
        &[][..],
        &[""],
        &[PROCESS, "--prefix", "a", "--connector", "b"],
        &[PROCESS, "--prefix", "a b", "--config", "/no/such/file"],
        &[PROCESS, "--since", "yesterday"],
        &[PROCESS, "--wait", "soon"],
        &[PROCESS, "--limit", "0"],
    ] {
        let output = tributary(&[&["events", "trace"], arguments].concat(), &[]).await;

        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}
