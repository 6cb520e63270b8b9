//! A worker without Kafka: its health, and how long requests wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tributary::{
    config,
    plugin::Plugins,
    worker::{Process, Service},
};

use super::process::client;
use crate::support::{lost, run_directory};

crate::tests! {
    plain a_worker_without_kafka_is_starting_and_requests_wait within 60;
}

async fn a_worker_without_kafka_is_starting_and_requests_wait() {
    let (address, stop, running) = start("listeners=http://127.0.0.1:0\n").await;
    let (url, client) = (format!("http://{address}"), client());
    let ask = async |method: &str, path: &str| {
        let method: Method = method.parse().unwrap();
        let answer = client.request(method, format!("{url}{path}")).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    };

    let asked = Instant::now();
    let waiting = async { (ask("GET", "/connectors").await, asked.elapsed()) };
    let meanwhile = async {
        let table = [
            ("GET", "/health", 503, "starting"),
            ("GET", "/health/", 503, "starting"),
            ("HEAD", "/health", 503, ""),
            ("POST", "/health", 405, "HTTP 405 Method Not Allowed"),
            ("GET", "/health/live", 200, "alive"),
            ("GET", "/health/ready/", 503, "starting"),
            ("DELETE", "/metrics", 405, "HTTP 405 Method Not Allowed"),
        ];
        for (method, path, status, told) in table {
            let (found, body) = ask(method, path).await;
            assert_eq!(found, status, "{method} {path}: {body}");
            assert!(body.contains(told) && body.is_empty() == told.is_empty(), "{method} {path}: {body}");
        }
        asked.elapsed()
    };
    let (((status, body), waited), at_once) = tokio::join!(waiting, meanwhile);

    assert_eq!(status, 503, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error_code"], 503);
    assert!(body["message"].as_str().unwrap().contains("still starting up"), "{body}");
    assert!(waited > Duration::from_secs(5), "it was answered after {waited:?}");
    assert!(at_once < waited, "what is known at once waited as well");
    stop.cancel();
    lost::timeout(Duration::from_secs(30), running).await.unwrap().unwrap().unwrap();
}

pub(super) type Running = tokio::task::JoinHandle<Result<(), tributary::worker::Error>>;

/// A worker in this process with these lines of properties, for a Kafka that is nowhere, and its address.
pub(super) async fn start(lines: &str) -> (SocketAddr, CancellationToken, Running) {
    start_at(lines, |service| service.addresses()[0]).await
}

/// The same with the address that `of` finds.
pub(super) async fn start_at(
    lines: &str,
    of: impl FnOnce(&Service) -> SocketAddr,
) -> (SocketAddr, CancellationToken, Running) {
    let directory = run_directory::create("starting").unwrap();
    let properties = directory.join("worker.properties");
    let lines = format!(
        "bootstrap.servers=127.0.0.1:1\nstate.dir={}\n\
         value.converter.schema.registry.url=http://127.0.0.1:9\n{lines}",
        directory.join("state").display()
    );
    std::fs::write(&properties, lines).unwrap();
    let worker = Arc::new(config::Worker::load(Some(&properties), []).unwrap().config);
    let process = Process {
        loggers: crate::product::rest::log_levels(),
        metrics: Arc::new(String::new),
        plugins: Plugins::of(&worker, true),
        adopt: false,
        embedded: None,
    };
    let service = Service::bind(worker, &process).await.unwrap();
    let address = of(&service);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { service.run(&process, stopped).await });
    (address, stop, running)
}
