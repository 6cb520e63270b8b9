//! What we publish, read by clients we did not write: confluent-kafka and fastavro, on Python.
//!
//! Only where `TRIBUTARY_TEST_PYTHON` names an interpreter that has both; `tests/interop/run` makes one and
//! runs this. The script gets what must be found as JSON and compares every field.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tributary::kafka::Ack;
use tributary::model::{AccountingResource, CompanyId, Meta, Origin, Outgoing, RecordId, Topic};

use crate::support::examples::{COMPANY, one_of_everything};
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::{Error, Result, Shared, run_directory};

crate::tests! {
    real a_reader_in_another_language_finds_every_field given "TRIBUTARY_TEST_PYTHON";
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

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/read_back.py");
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
        "value": outgoing.value,
    })
}

fn tombstone() -> Outgoing {
    let (company, id) = (CompanyId::new(COMPANY).unwrap(), RecordId::new("charge/1").unwrap());
    Outgoing::tombstone(AccountingResource::Charges, &company, &id, Meta::new("o-5", Origin::Repair)).unwrap()
}
