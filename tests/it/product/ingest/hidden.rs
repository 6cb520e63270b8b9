//! Secrets stay secret in a worker that logs at `trace`.
//!
//! Its log, its metrics, its health and the answers of its REST API contain no secret, no signature and no part of a body; nor do the
//! headers of dead letters, whose bodies are the original ones. Its disk has the bodies, and no secret or signature.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use kafka::ConsumerRecord;
use model::{AccountingResource, InvoicingEntity, Topic};
use serde_json::json;

use super::cluster::{CONNECTOR, IngestCluster, IngestWorker, until};
use super::delivery::{hex, hmac};
use crate::support::{Result, Shared};

crate::tests! {
    real no_secret_signature_or_body_is_in_a_workers_output within 240;
}

const ACCOUNTING: &str = "for-accounting-alone-7Qx2";
const PREVIOUS: &str = "for-accounting-before-8Ry3";
const INVOICING: &str = "for-invoicing-alone-and-long-enough-9Sz4";
const PREVIOUS_INVOICING: &str = "for-invoicing-before-and-long-enough-1Ta5";
/// In a file for a moment; too short for a valid secret.
const SHORT: &str = "short-2Ub6";
/// Written into configurations that are refused or only validated.
const LITERAL: &str = "written-out-literally-3Vc7";
const HOOK: &str = "Customer:Created";
/// In every body.
const MARK: &str = "in-bodies-alone-4Wd8";

async fn no_secret_signature_or_body_is_in_a_workers_output(shared: &'static Shared) -> Result<()> {
    let mut cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-hidden")?;
    cluster.set("log.filter", "trace");
    let worker = cluster.start().await?;
    let secrets = worker.directory.join("secrets");
    fs::create_dir(&secrets).unwrap();
    let write = |name: &str, secret: &str| fs::write(secrets.join(name), secret).unwrap();
    write("a", ACCOUNTING);
    write("b", PREVIOUS);
    write("c", INVOICING);
    write("d", PREVIOUS_INVOICING);
    let mut config = cluster.connector();
    for (key, name) in [
        ("accounting.secret", "a"),
        ("accounting.secret.previous", "b"),
        ("invoicing.secret", "c"),
        ("invoicing.secret.previous", "d"),
    ] {
        config[key] = format!("${{dir:{}:{name}}}", secrets.display()).into();
    }
    config["invoicing.hooks"] = HOOK.into();
    config["body.limit.bytes"] = "4096".into();
    worker.change("PUT", "/config", Some(&config)).await;
    worker.until_received(Some("RUNNING")).await;

    let mut sender = HiddenSender { worker: &worker, hidden: Vec::new() };
    for secret in [ACCOUNTING, PREVIOUS, INVOICING, PREVIOUS_INVOICING, SHORT, LITERAL] {
        sender.hide(secret.as_bytes());
    }
    let hooks = [INVOICING, PREVIOUS_INVOICING].map(|master| hex(&hmac(master.as_bytes(), HOOK.as_bytes())));
    for hook in &hooks {
        sender.hide(hook.as_bytes());
    }
    let (ours, unread) =
        (format!("/webhooks/accounting/{CONNECTOR}"), format!("{{\"UserName\":\"{MARK}\", "));
    let theirs = "/api/webhooks/incoming/Invoicing";
    let acknowledge = json!({ "WebhookId": "1", "EventType": { "Resource": "Customers", "EventType": "Acknowledge" }, "UserName": MARK });
    let notification = |id: u32| {
        json!({
            "Entity": "Customer", "EntityId": id.to_string(), "TenantId": "42", "User": MARK, "Changes": [],
        })
    };
    let oversized = event("too large", &"x".repeat(5_000));
    for (what, path, secret, body, expected) in [
        ("accounting", &*ours, ACCOUNTING, event("1", ""), 200),
        ("signed with the secret before", &*ours, PREVIOUS, event("2", ""), 200),
        ("forged", &*ours, LITERAL, event("3", ""), 401),
        ("to an unknown connector", "/webhooks/accounting/others", ACCOUNTING, event("4", ""), 401),
        ("unreadable", &*ours, ACCOUNTING, unread.clone(), 200),
        ("no object", &*ours, ACCOUNTING, format!("\"{MARK}\""), 200),
        ("too large", &*ours, ACCOUNTING, oversized, 413),
        ("a question", &*ours, ACCOUNTING, acknowledge.to_string(), 200),
        ("invoicing", theirs, &*hooks[0], notification(1).to_string(), 200),
        ("invoicing, the secret before", theirs, &*hooks[1], notification(2).to_string(), 200),
        ("invoicing, forged", theirs, INVOICING, notification(3).to_string(), 401),
        ("invoicing, unreadable", theirs, &*hooks[0], format!("{unread} "), 200),
    ] {
        assert_eq!(sender.send(path, secret, body).await, expected, "{what}");
    }
    let events = async || {
        let accounting = cluster.read(Topic::AccountingEvents(AccountingResource::Customers)).await.len();
        accounting + cluster.read(Topic::InvoicingEvents(InvoicingEntity::Customer)).await.len()
    };
    assert!(until(async || events().await >= 4).await, "{} events", events().await);
    let mut letters = Vec::new();
    // A slow worker may write copies.
    let bodies = |letters: &[ConsumerRecord]| {
        letters.iter().map(|letter| letter.value.clone()).collect::<HashSet<_>>()
    };
    let written = until(async || {
        letters = cluster.read(Topic::DeadLetters).await;
        bodies(&letters).len() >= 3
    });
    assert!(written.await, "{letters:?}");
    assert_eq!(bodies(&letters).len(), 3, "{letters:?}");

    worker.change("PUT", "/pause", None).await;
    worker.until_received(Some("PAUSED")).await;
    assert_eq!(sender.send(&ours, ACCOUNTING, event("5", "")).await, 200);
    assert_eq!(worker.health().await.1["ingest"]["spool"]["entries"], 1);
    write("a", SHORT);
    let fault = async || worker.health().await.1["ingest"]["faults"][CONNECTOR].is_string();
    assert!(until(fault).await, "{}", worker.health().await.1);

    let mut literal = config.clone();
    literal["name"] = "literal".into();
    literal["accounting.secret"] = LITERAL.into();
    literal["invoicing.secret"] = LITERAL.into();
    let mut said = vec![("a refused configuration", {
        let short = json!({ "name": "short", "config": { "connector.class": "WebhookSource", "accounting.secret": SHORT } });
        worker.text("POST", "/connectors", Some(&short)).await
    })];
    let validate = "/connector-plugins/WebhookSource/config/validate";
    said.push(("a validation", worker.text("PUT", validate, Some(&literal)).await));
    for path in [
        "/connectors?expand=info&expand=status",
        "/connectors/hooks",
        "/connectors/hooks/config",
        "/connectors/hooks/status",
        "/connectors/hooks/tasks",
        "/admin/loggers",
        "/health",
        "/metrics",
    ] {
        said.push((path, worker.text("GET", path, None).await));
    }
    let state = worker.directory.join("state");
    let mut files = Vec::new();
    read_all(&state, &mut files);
    let hidden = sender.hidden;
    said.push(("the log", worker.stop().await?));
    read_all(&state, &mut files);

    for (source, text) in &said {
        assert!(!text.is_empty(), "{source} says nothing");
        find(&hidden, source, text);
        assert!(!text.contains(MARK), "part of a body is in {source}");
    }
    let log = &said.last().unwrap().1;
    for known in ["TRACE", "a delivery was verified", "a request was refused", "sending to the dead letters"]
    {
        assert!(log.contains(known), "the log is not complete: {known}");
    }
    for letter in &letters {
        let body = String::from_utf8_lossy(letter.value.as_deref().unwrap());
        assert!(body.contains(MARK), "a dead letter is not the original");
        for (name, value) in &letter.headers {
            let value = String::from_utf8_lossy(value);
            find(&hidden, name, &value);
            assert!(!value.contains(MARK), "part of a body is in {name}");
        }
    }
    assert!(files.iter().any(|(_, text)| text.contains(MARK)), "no delivery is in the spool");
    for (name, text) in &files {
        find(&hidden, name, text);
    }
    Ok(())
}

/// Sends deliveries, and remembers their secrets and signatures.
struct HiddenSender<'a> {
    worker: &'a IngestWorker,
    hidden: Vec<String>,
}

impl HiddenSender<'_> {
    async fn send(&mut self, path: &str, secret: &str, body: String) -> u16 {
        let digest = hmac(secret.as_bytes(), body.as_bytes());
        self.hide(&digest);
        let header = if path.starts_with("/api") { "ms-signature" } else { "svc-webhook-signature" };
        let signature = format!("sha256={}", hex(&digest).to_uppercase());
        self.worker.post(path).header(header, signature).body(body).send().await.unwrap().status().as_u16()
    }

    /// These bytes in every way they may be written.
    fn hide(&mut self, bytes: &[u8]) {
        let listed = format!("{bytes:?}");
        self.hidden.extend([
            hex(bytes),
            hex(bytes).to_uppercase(),
            STANDARD_NO_PAD.encode(bytes),
            URL_SAFE_NO_PAD.encode(bytes),
            listed.trim_matches(['[', ']']).to_owned(),
        ]);
        self.hidden.extend(str::from_utf8(bytes).map(str::to_owned));
    }
}

/// The body of an event that is as much longer as asked.
fn event(id: &str, more: &str) -> String {
    json!({
        "OutgoingId": id, "TenantId": "17", "More": more,
        "ExtraPartitionInformation": { "PartitionClientId": "company:1:CM:a", "UserName": MARK },
        "EventType": { "AppName": "Svc", "Domain": "ACC", "Resource": "Customers", "EventType": "CustomerUpdated" },
        "JsonData": json!({ "CorrelationId": "customer:1", "SequenceVersion": "7" }).to_string(),
    })
    .to_string()
}

/// # Panics
/// Something that is hidden is there.
fn find(hidden: &[String], source: &str, text: &str) {
    for one in hidden {
        let Some(at) = text.find(one) else { continue };
        let line = text[..at].matches('\n').count();
        let line = text.lines().nth(line).unwrap_or_default();
        panic!("{one} is in {source}: {}", line.chars().take(500).collect::<String>());
    }
}

/// Every file below, by name.
fn read_all(directory: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, files);
        } else if let Ok(bytes) = fs::read(&path) {
            // One that was removed meanwhile is in none of them.
            files.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
}
