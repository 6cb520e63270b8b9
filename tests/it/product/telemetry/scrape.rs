//! What `/metrics` of a worker shows of its connectors: under the names that dashboards use, and only while they exist.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::exposition::Exposition;
use crate::support::tributary::Tributary;
use crate::support::{Error, Result, Shared, prefix};

crate::tests! {
    real scrape_shows_only_existing_connectors within 120;
}

const LIMIT: Duration = Duration::from_secs(30);

/// A worker and a client for it.
struct ScrapedWorker {
    worker: Tributary,
    client: reqwest::Client,
}

impl ScrapedWorker {
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Result<String> {
        let failed = |error: reqwest::Error| self.worker.error(&format!("{method} {path}: {error}"));
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.worker.url()));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.map_err(failed)?.error_for_status().map_err(failed)?;
        answer.text().await.map_err(failed)
    }

    async fn create(&self, name: &str, topic: &str, settings: &[(&str, &str)]) -> Result<()> {
        let mut config = json!({ "connector.class": "TestSource", "topic": topic, "tasks.max": "1" });
        for (key, value) in settings {
            config[*key] = json!(value);
        }
        self.send("PUT", &format!("/connectors/{name}/config"), Some(config)).await.map(drop)
    }

    /// Scrapes until the page satisfies a condition.
    async fn scrape(&self, wished: impl Fn(&Exposition) -> bool) -> Result<Exposition> {
        let end = Instant::now() + LIMIT;
        loop {
            let text = self.send("GET", "/metrics", None).await?;
            let page = Exposition::parse(&text).map_err(Error)?;
            if wished(&page) {
                return Ok(page);
            }
            if Instant::now() > end {
                return Err(self.worker.error(&format!("not within {LIMIT:?}:\n{text}")));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn scrape_shows_only_existing_connectors(shared: &'static Shared) -> Result<()> {
    let worker = Tributary::start(shared.bootstrap(), "scrape", &[]).await?;
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(15)).build();
    let scraped = ScrapedWorker { worker, client: client.map_err(|error| Error(error.to_string()))? };
    let topic = prefix("scrape");
    scraped.create("works", &topic, &[]).await?;
    scraped.create("fails", &topic, &[("fail.after", "1")]).await?;
    scraped.create("rests", &topic, &[]).await?;

    let status = |connector: &str, status: &str| {
        format!("kafka_connect_connector_status{{connector={connector},status={status},task=0}}")
    };
    // A connector that is paused before it has tasks gets none.
    scraped.scrape(|page| page.value(&status("rests", "running")) == Some(1.0)).await?;
    scraped.send("PUT", "/connectors/rests/pause", None).await?;
    let written = "kafka_connect_source_task_source_record_write_total{connector=works,task=0}";
    let page = scraped
        .scrape(|page| {
            let states = [("works", "running"), ("fails", "failed"), ("rests", "paused")];
            states.iter().all(|(name, state)| page.value(&status(name, state)) == Some(1.0))
                && page.value(written).is_some_and(|count| count > 0.0)
        })
        .await?;

    for (series, expected) in [
        ("kafka_connect_connector_task_status{connector=fails,status=failed,task=0}", 1.0),
        ("kafka_connect_connector_status{connector=works,status=running}", 1.0),
        ("kafka_connect_connector_connector_class{connector=works,connector_class=TestSource}", 1.0),
        ("kafka_connect_connector_connector_type{connector=works,connector_type=source}", 1.0),
        ("kafka_connect_worker_connector_count{}", 3.0),
        ("kafka_connect_worker_task_count{}", 3.0),
        ("kafka_connect_worker_connector_failed_task_count{connector=fails}", 1.0),
        ("kafka_connect_worker_connector_paused_task_count{connector=rests}", 1.0),
        ("kafka_connect_coordinator_assigned_tasks{}", 3.0),
        ("kafka_connect_task_error_total_record_failures{connector=fails,task=0}", 1.0),
        ("kafka_connect_task_error_total_record_failures{connector=works,task=0}", 0.0),
        ("kafka_connect_connector_task_offset_commit_success_percentage{connector=works,task=0}", 1.0),
        ("tributary_tasks{state=failed}", 1.0),
        ("tributary_group_partitions{}", 8.0),
        ("tributary_tail_silence_seconds{topic=config}", 0.0),
    ] {
        assert_eq!(page.value(series), Some(expected), "{series}");
    }
    for series in [
        "kafka_connect_worker_rebalance_completed_rebalances_total{}",
        "kafka_connect_worker_task_startup_success_total{}",
        "kafka_connect_source_task_transaction_size_avg{connector=works,task=0}",
        "kafka_connect_connector_task_running_ratio{connector=works,task=0}",
        "tributary_task_last_record_timestamp_seconds{connector=works,task=0}",
        "tributary_group_lease_seconds{}",
        "tributary_rest_requests_total{route=/connectors/{name}/config,status=2xx}",
        "tributary_rest_requests_total{route=/connectors/{name}/pause,status=2xx}",
        "tributary_rest_requests_total{route=/metrics,status=2xx}",
    ] {
        // The page that shows a request may be the answer to it.
        let least = if series.contains("/metrics") { 0.0 } else { f64::MIN_POSITIVE };
        assert!(page.value(series).is_some_and(|value| value >= least), "{series}: {:?}", page.value(series));
    }

    scraped.send("DELETE", "/connectors/fails", None).await?;
    let page = scraped.scrape(|page| page.naming("connector=fails").is_empty()).await?;
    assert_eq!(page.value("kafka_connect_worker_connector_count{}"), Some(2.0));
    assert_eq!(page.value("tributary_tasks{state=failed}"), Some(0.0));
    assert!(!page.naming("connector=works").is_empty());
    Ok(())
}
