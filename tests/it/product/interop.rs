//! Published records, read by other clients: Kafka's console consumer, and confluent-kafka and fastavro on Python.
//!
//! Python needs `TRIBUTARY_TEST_PYTHON`, which names an interpreter with both; `tests/peers/interop/environment` makes one, and
//! `tests/peers/interop/run` and the gate use it. One script gets the expected records as JSON and compares every field, the other is
//! the example for our users.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kafka::Ack;
use model::{AccountingResource, CompanyId, Origin, Outgoing, RecordId, RecordMeta, Topic};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::broker::tool;
use crate::support::examples::{COMPANY, Example, Placed, one_of_everything};
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::{Error, Result, Shared, run_directory};

crate::tests! {
    real a_reader_in_another_language_finds_every_field given "TRIBUTARY_TEST_PYTHON";
    real the_example_shows_what_is_there_and_what_one_company_has given "TRIBUTARY_TEST_PYTHON";
    real the_example_follows_a_topic_until_it_is_interrupted given "TRIBUTARY_TEST_PYTHON";
    real kafkas_own_console_shows_keys_versions_and_tombstones;
}

const LIMIT: Duration = Duration::from_secs(50);

async fn a_reader_in_another_language_finds_every_field(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "interop")?;
    let tombstone = tombstone();
    let examples = one_of_everything();
    let topics: BTreeSet<Topic> =
        examples.iter().map(|example| example.outgoing.topic).chain([tombstone.topic]).collect();
    let publisher = place.open(&place.layout(topics)).await.unwrap();
    let mut expectations = Vec::new();
    for outgoing in examples.iter().map(|example| &example.outgoing).chain([&tombstone]) {
        let ack = publisher.publish(outgoing).await.unwrap();
        expectations.push(expectation(&place, outgoing, ack));
    }
    let directory = run_directory::create("interop")?;
    let (file, log) = (directory.join("expectations.json"), directory.join("output.log"));
    fs::write(&file, json!(expectations).to_string()).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/interop/read_back.py");
    let mut python = Command::new(std::env::var_os("TRIBUTARY_TEST_PYTHON").unwrap());
    python.arg(script).args([shared.bootstrap(), shared.registry()]).arg(&file);
    let process = Process::spawn("read_back.py", python, &log)?;
    let status = process.wait(LIMIT).await?;

    if !status.success() {
        return Err(process.error(&format!("read back in Python: {status}")));
    }
    let output =
        fs::read_to_string(&log).map_err(|error| Error(format!("read {}: {error}", log.display())))?;
    assert!(output.starts_with(&format!("{} records, ", expectations.len())), "{output}");
    print!("read back in Python: {output}");
    Ok(())
}

const INVOICES: AccountingResource = AccountingResource::InputInvoices;
/// Of the example that is deleted here.
const INVOICE: &str = "inv-77";

/// Everything is published, and then an invoice deleted.
async fn publish(place: &Place) {
    let examples = one_of_everything();
    let topics: BTreeSet<Topic> = examples.iter().map(|example| example.outgoing.topic).collect();
    let publisher = place.open(&place.layout(topics)).await.unwrap();
    for example in &examples {
        publisher.publish(&example.outgoing).await.unwrap();
    }
    publisher.publish(&deleted_invoice()).await.unwrap();
}

fn deleted_invoice() -> Outgoing {
    let (company, id) = (CompanyId::new(COMPANY).unwrap(), RecordId::new(INVOICE).unwrap());
    Outgoing::tombstone(INVOICES, &company, &id, RecordMeta::new("o-6", Origin::Enrichment)).unwrap()
}

async fn the_example_shows_what_is_there_and_what_one_company_has(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "example")?;
    publish(&place).await;
    let customers = one_of_everything().into_iter().find(|one| one.topic == "accounting.customers").unwrap();

    let table = example(shared, "table", &[&place.name(customers.outgoing.topic)]).await?;
    let invoices = example(shared, "table", &[&place.name(Topic::AccountingRecords(INVOICES))]).await?;
    let company = example(shared, "company", &[place.prefix.as_str(), COMPANY]).await?;

    assert_eq!(table.len(), 1, "{table:#?}");
    assert_eq!((&table[0]["key"], &table[0]["version"]), (&json!(customers.key), &json!(customers.version)));
    assert_eq!(table[0]["value"]["correlationId"], "cus:1/2", "{table:#?}");
    assert!(invoices.is_empty(), "the table has what was deleted: {invoices:#?}");
    let is_told =
        |one: &&Example| matches!(one.placed, Placed::By(COMPANY)) && one.topic.starts_with("accounting.");
    let told = one_of_everything().iter().filter(is_told).count();
    let (gone, there): (Vec<&Value>, Vec<&Value>) = company.iter().partition(|one| one["value"].is_null());
    assert_eq!((there.len(), gone.len()), (told, 1), "{company:#?}");
    assert_eq!(gone[0]["key"], format!("{COMPANY}/{INVOICE}"));
    Ok(())
}

async fn the_example_follows_a_topic_until_it_is_interrupted(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "follow")?;
    let invoices = Topic::AccountingRecords(INVOICES);
    let publisher = place.open(&place.layout([invoices])).await.unwrap();
    let invoice = one_of_everything().into_iter().find(|one| one.outgoing.topic == invoices).unwrap();
    let log = run_directory::create("follow")?.join("output.log");
    let python = consume(&["-c", INTERRUPTIBLE], shared, "follow", &[&place.name(invoices)]);
    let follow = Process::spawn("consume.py follow", python, &log)?;
    let lines = || -> Vec<Value> {
        follow.said().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };

    publisher.publish(&invoice.outgoing).await.unwrap();
    follow.ready(LIMIT, async || !lines().is_empty()).await?;
    // The example is waiting for new records by now.
    publisher.publish(&deleted_invoice()).await.unwrap();
    follow.ready(LIMIT, async || lines().len() > 1).await?;
    follow.signal(Signal::INT)?;
    let status = follow.wait(LIMIT).await?;

    assert_eq!(status.code(), Some(0), "{status}: {}", follow.said());
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_eq!(
        (&lines[0]["key"], &lines[0]["version"]),
        (&json!(invoice.key), &json!(invoice.version)),
        "{lines:#?}"
    );
    assert!(lines[0]["value"].is_object(), "{lines:#?}");
    assert_eq!((&lines[1]["key"], &lines[1]["value"]), (&json!(invoice.key), &Value::Null), "{lines:#?}");
    Ok(())
}

/// Runs a script that handles SIGINT: processes that a shell starts in the background, and their children, ignore it otherwise.
const INTERRUPTIBLE: &str = "\
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
";

/// The output of the example for our users.
async fn example(shared: &Shared, way: &str, arguments: &[&str]) -> Result<Vec<Value>> {
    let log = run_directory::create("example")?.join("output.log");
    let process = Process::spawn("consume.py", consume(&[], shared, way, arguments), &log)?;
    let status = process.wait(LIMIT).await?;
    let output =
        fs::read_to_string(&log).map_err(|error| Error(format!("read {}: {error}", log.display())))?;
    if !status.success() {
        return Err(process.error(&format!("consume.py {way}: {status}")));
    }
    Ok(output.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The example for our users, with options of Python before it.
fn consume(options: &[&str], shared: &Shared, way: &str, arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/consume.py");
    let mut python = Command::new(std::env::var_os("TRIBUTARY_TEST_PYTHON").unwrap());
    python.args(options).arg(script).args([way, shared.bootstrap(), shared.registry()]).args(arguments);
    python
}

async fn kafkas_own_console_shows_keys_versions_and_tombstones(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "console")?;
    publish(&place).await;
    let topic = place.name(Topic::AccountingRecords(INVOICES));

    // As in the README, but it ends.
    let printed = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        &[
            "--bootstrap-server",
            shared.bootstrap(),
            "--topic",
            &topic,
            "--from-beginning",
            "--isolation-level",
            "read_committed",
            "--formatter-property",
            "print.key=true",
            "--formatter-property",
            "print.headers=true",
            "--formatter-property",
            "null.literal=TOMBSTONE",
            "--max-messages",
            "2",
        ],
    )
    .await?;

    let key = format!("{COMPANY}/{INVOICE}");
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains(&key)).collect();
    assert!(lines.iter().any(|line| line.contains("tributary.version:42")), "{printed}");
    assert!(lines.iter().any(|line| line.ends_with(&format!("{key}\tTOMBSTONE"))), "{printed}");
    Ok(())
}

fn expectation(place: &Place, outgoing: &Outgoing, ack: Ack) -> serde_json::Value {
    let headers: Vec<_> = outgoing
        .headers()
        .into_iter()
        .map(|(name, text)| (name, String::from_utf8(text.to_vec()).unwrap()))
        .collect();
    json!({
        "topic": place.name(outgoing.topic),
        "partition": ack.partition,
        "offset": ack.offset,
        "key": outgoing.key.as_str(),
        "headers": headers,
        "timestamp": outgoing.timestamp_ms,
        "schema": outgoing.value.as_ref().map(|value| format!("io.tributary.{}", value.schema())),
        "value": outgoing.value.as_deref(),
    })
}

fn tombstone() -> Outgoing {
    let (company, id) = (CompanyId::new(COMPANY).unwrap(), RecordId::new("charge/1").unwrap());
    Outgoing::tombstone(AccountingResource::Charges, &company, &id, RecordMeta::new("o-5", Origin::Repair))
        .unwrap()
}
