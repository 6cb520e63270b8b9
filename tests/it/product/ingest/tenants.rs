//! `tributary subscriptions tenants` on the topics that a worker has filled.

use std::fs;

use model::{InvoicingEntity, Topic};
use serde_json::{Value, json};

use super::cluster::{CONNECTOR, IngestCluster, IngestWorker, SECRET, until};
use super::delivery::{Delivery, hex, hmac, signature};
use crate::support::command::{stderr, stdout, tributary};
use crate::support::{Result, Shared};

crate::tests! {
    real tenants_are_proposed_for_the_company_that_events_show within 180;
}

const MASTER: &str = "0123456789abcdef0123456789abcdef";
/// Tenants of notifications.
const TENANTS: [&str; 4] = ["tenant-one", "tenant-two", "tenant-new", "tenant-known"];
/// Tenants and companies of accounting events.
const COMPANIES: [(&str, &str); 4] =
    [("tenant-one", "acc:1"), ("tenant-one", "acc:1"), ("tenant-two", "acc:2"), ("tenant-two", "acc:3")];

async fn notify(worker: &IngestWorker, tenant: &str) -> u16 {
    let body =
        json!({ "Entity": "Customer", "EntityId": "7", "TenantId": tenant, "Changes": [] }).to_string();
    let secret = hex(&hmac(MASTER.as_bytes(), b"Customer:Created"));
    let request = worker.post("/api/webhooks/incoming/Invoicing/customer-created");
    let request = request.header("ms-signature", signature(&secret, &body)).body(body);
    request.send().await.unwrap().status().as_u16()
}

async fn account(worker: &IngestWorker, id: &str, tenant: &str, company: &'static str) -> u16 {
    let mut body: Value = serde_json::from_str(&Delivery::change(id, company, 7).body()).unwrap();
    body["TenantId"] = tenant.into();
    let body = body.to_string();
    let request = worker.post(&format!("/webhooks/accounting/{CONNECTOR}/customers"));
    let request = request.header("svc-webhook-signature", signature(SECRET, &body)).body(body);
    request.send().await.unwrap().status().as_u16()
}

async fn tenants_are_proposed_for_the_company_that_events_show(shared: &'static Shared) -> Result<()> {
    let cluster = IngestCluster::at(shared.bootstrap(), shared.registry(), "ingest-tenants")?;
    let worker = cluster.start().await?;
    let mut config = cluster.connector();
    config["invoicing.hooks"] = "Customer:Created".into();
    config["invoicing.secret"] = MASTER.into();
    config["invoicing.tenants"] = "tenant-known=acc:9".into();
    worker.change("PUT", "/config", Some(&config)).await;
    worker.until_received(Some("RUNNING")).await;
    for tenant in TENANTS.into_iter().chain(["tenant-one"]) {
        assert_eq!(notify(&worker, tenant).await, 200, "{tenant}");
    }
    for (number, (tenant, company)) in COMPANIES.into_iter().enumerate() {
        assert_eq!(account(&worker, &format!("delivery-{number}"), tenant, company).await, 200, "{tenant}");
    }
    let events = Topic::InvoicingEvents(InvoicingEntity::Customer);
    let published = until(async || {
        cluster.read(events).await.len() == 5 && cluster.published().await.len() == COMPANIES.len()
    });
    assert!(published.await, "{}", worker.said());

    let (file, properties) =
        (worker.directory.join("hooks.json"), worker.directory.join("worker.properties"));
    let document = json!({ "name": CONNECTOR, "config": config });
    fs::write(&file, document.to_string()).unwrap();
    let (file, properties) = (file.display().to_string(), properties.display().to_string());
    let ask = async |more: &[&str]| {
        let arguments = ["subscriptions", "tenants", &*file, "--config", &*properties];
        let output = tributary(&[&arguments, more].concat(), &[]).await;
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let table = ask(&[]).await;
    let found: Value = serde_json::from_str(&ask(&["--output", "json"]).await).unwrap();
    let later: Value =
        serde_json::from_str(&ask(&["--since", "2999-01-01T00:00:00Z", "--json"]).await).unwrap();

    let line = "\ninvoicing.tenants=tenant-known=acc:9,tenant-one=acc:1\n";
    assert!(table.starts_with("TENANT") && table.contains(line), "{table}");
    let row = |tenant: &str| {
        let rows = found["tenants"].as_array().unwrap();
        rows.iter().find(|row| row["tenant"] == tenant).unwrap_or_else(|| panic!("{tenant}: {found}"))
    };
    let one = row("tenant-one");
    assert_eq!(
        (&one["events"], &one["proposal"], &one["company"]),
        (&json!(2), &json!("acc:1"), &Value::Null)
    );
    assert_eq!(one["entities"], json!(["customer"]));
    assert_eq!(
        (&row("tenant-two")["proposal"], &row("tenant-new")["proposal"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(row("tenant-two")["companies"], json!(["acc:2", "acc:3"]));
    assert_eq!(row("tenant-known")["company"], "acc:9");
    assert_eq!((&later["tenants"], &later["setting"]), (&json!([]), &Value::Null), "all are older");
    Ok(())
}
