//! Apache Kafka Connect itself: if a check fails on it, the check is wrong.
//!
//! Its connector is the file source of Connect's distribution, which reads a file of three lines; a converter that accepts no text
//! makes its task fail.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{Subject, run};
use crate::support::connect::{Connect, Options};
use crate::support::{Broker, Error, Result, prefix, run_directory};

crate::tests! {
    disturbing kafka_connect_passes within 900 given "TRIBUTARY_TEST_CONNECT";
    disturbing kafka_connect_with_passwords_and_secrets_passes within 900 given "TRIBUTARY_TEST_CONNECT";
}

const CLASS: &str = "org.apache.kafka.connect.file.FileStreamSourceConnector";
const USER: &str = "operator";
const PASSWORD: &str = "a password: with §";

async fn kafka_connect_passes() -> std::result::Result<(), String> {
    let broker = Broker::start(crate::support::Options::default()).await.map_err(text)?;
    let connect = Connect::start(&broker.bootstrap(), Options::default()).await.map_err(text)?;
    let directory = run_directory::create("conformance").map_err(text)?;

    check(&connect, facts(&directory).map_err(text)?).await
}

async fn kafka_connect_with_passwords_and_secrets_passes() -> std::result::Result<(), String> {
    let directory = run_directory::create("conformance").map_err(text)?;
    let (secrets, topic) = (directory.join("secrets.properties"), prefix("secret"));
    write(&secrets, &format!("topic={topic}\n")).map_err(text)?;
    let broker = Broker::start(crate::support::Options::default()).await.map_err(text)?;
    let options = Options { user: Some((USER.to_owned(), PASSWORD.to_owned())), file_provider: true };
    let connect = Connect::start(&broker.bootstrap(), options).await.map_err(text)?;
    let mut facts = facts(&directory).map_err(text)?;
    facts["credentials"] = json!({ "user": USER, "password": PASSWORD });
    facts["provider"] = json!({
        "key": "topic",
        "reference": format!("${{file:{}:topic}}", secrets.display()),
        "secret": topic,
    });

    check(&connect, facts).await
}

async fn check(connect: &Connect, facts: Value) -> std::result::Result<(), String> {
    let report = run(&Subject::parse(&connect.url(), &facts.to_string())?).await;

    print!("{report}");
    report.into_result().map_err(|fault| connect.error(&fault).to_string())
}

fn facts(directory: &Path) -> Result<Value> {
    let (file, topic) = (directory.join("lines.txt"), prefix("conformance"));
    write(&file, "one\ntwo\nthree\n")?;
    Ok(json!({
        "config": {
            "connector.class": CLASS,
            "tasks.max": "1",
            "file": file,
            "topic": topic,
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
        },
        "topic": topic,
        "change": ["batch.size", "1000"],
        "failure": { "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter" },
        "password_key": "producer.override.ssl.key.password",
        "strict": true,
        "fresh": true,
    }))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|error| Error(format!("write {}: {error}", file.display())))
}

fn text(error: Error) -> String {
    error.to_string()
}
