//! How writes at the provider ended, from the signed delivery to `tributary events trace` and the metric.

use std::process::Output;

use serde_json::{Value, json};

use super::cluster::{CONNECTOR, IngestCluster};
use super::delivery::{Delivery, WriteIds};
use crate::support::command::{stderr, stdout, tributary};
use crate::support::{Result, Shared};

crate::tests! {
    real a_write_is_traced_by_process_and_conversation_id within 120;
}

const COMPANY: &str = "company:1:CM:a";
const CONVERSATION: &str = "5c1d9f80-0002-4abc-8000-00000000000c";
const CREATED: WriteIds =
    WriteIds { process: "5c1d9f80-0003-4abc-8000-00000000000a", conversation: CONVERSATION };
const FAILED: WriteIds =
    WriteIds { process: "5c1d9f80-0003-4abc-8000-00000000000b", conversation: CONVERSATION };

async fn a_write_is_traced_by_process_and_conversation_id(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-outcomes")?;
    let worker = cluster.start().await?;
    worker.change("PUT", "/config", Some(&cluster.connector())).await;
    worker.until_received(Some("RUNNING")).await;
    let failed = Delivery::outcome("failed", COMPANY, "ErrorOccurred", FAILED);
    for delivery in [
        &Delivery::outcome("created", COMPANY, "CustomerCreated", CREATED),
        &failed,
        &Delivery::change("other", COMPANY, 8),
        // Repeated by the provider: published and counted once.
        &failed,
    ] {
        assert_eq!(worker.deliver(delivery).await, 200);
    }
    cluster.until_published(&["created", "failed", "other"]).await;
    let config = worker.directory.join("worker.properties").display().to_string();
    let trace = async |arguments: &[&str]| {
        tributary(&[&["events", "trace", "--config", &config], arguments].concat(), &[]).await
    };
    let prefix = cluster.topics.prefix.as_str();

    let by_process = trace(&[&FAILED.process.to_uppercase(), "--prefix", prefix, "--json"]).await;
    let by_conversation = trace(&[CONVERSATION, "--connector", CONNECTOR, "--json"]).await;
    let table = trace(&[CONVERSATION, "--prefix", prefix]).await;
    let page = worker.text("GET", "/metrics", None).await;

    let [error] = &lines(&by_process)[..] else { panic!("{}{}", stdout(&by_process), stderr(&by_process)) };
    assert_eq!(by_process.status.code(), Some(0));
    for (member, expected) in [
        ("resource", json!("customers")),
        ("company", json!(COMPANY)),
        ("outcome", json!("error")),
        ("event", json!("ErrorOccurred")),
        ("record", json!("customer:1")),
        ("sequence", Value::Null),
        ("process", json!(FAILED.process)),
        ("conversation", json!(CONVERSATION)),
        ("matched", json!("process")),
        ("error", json!({ "ErrorCode": 409, "ErrorMessage": "the code exists" })),
        ("id", json!("failed")),
        ("topic", json!(format!("{prefix}.accounting.customers.events"))),
    ] {
        assert_eq!(error[member], expected, "{member}: {error}");
    }
    let outcomes: Vec<_> = lines(&by_conversation)
        .iter()
        .map(|event| ["outcome", "process", "matched", "sequence"].map(|name| event[name].clone()))
        .collect();
    let created = ["created", CREATED.process, "conversation", "7"].map(Value::from);
    let failed = [json!("error"), json!(FAILED.process), json!("conversation"), Value::Null];
    assert_eq!(outcomes, [created, failed], "{}", stderr(&by_conversation));
    let printed = stdout(&table);
    assert_eq!(printed.lines().count(), 7, "head, two events, a blank and the error: {printed}");
    assert!(printed.contains("\n  ErrorCode: 409\n  ErrorMessage: the code exists\n"), "{printed}");
    for (outcome, expected) in [("created", "1"), ("error", "1"), ("updated", "1"), ("deleted", "0")] {
        assert_eq!(count(&page, outcome), Some(expected), "{outcome}");
    }
    Ok(())
}

fn lines(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of customers with this outcome that a worker has counted.
fn count<'a>(page: &'a str, outcome: &str) -> Option<&'a str> {
    let labels = [r#"entity="customers""#.to_owned(), format!(r#"outcome="{outcome}""#)];
    let mut series = page.lines().filter(|line| line.starts_with("tributary_accounting_events_total{"));
    let found = series.find(|line| labels.iter().all(|label| line.contains(label)))?;
    found.rsplit(' ').next()
}
