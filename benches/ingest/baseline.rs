//! The baseline: a straightforward receiver that checks the signature, produces, awaits the acknowledgement and answers 200.
//!
//! axum and rdkafka, `acks=all`, idempotent, no linger, keyed by company so that a company stays in order; the body goes to
//! the topic unchanged. It has no spool, no deadline, no schema and no deduplication: while the broker is away it answers
//! nothing, and a kill loses the deliveries in memory, none of which it has acknowledged.

use std::time::Duration;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use hmac::{Hmac, KeyInit, Mac};
use rdkafka::{
    ClientConfig,
    producer::{FutureProducer, FutureRecord},
};
use serde::Deserialize;
use sha2::Sha256;
use tokio::net::TcpListener;

use crate::oracle::{delivery::SIGNATURE_HEADER, worker::SECRET};

/// Environment variable that makes the process a baseline receiver; its value is the bootstrap servers.
pub(crate) const BASELINE: &str = "TRIBUTARY_BENCH_BASELINE";
/// Topic that it writes to.
pub(crate) const TOPIC: &str = "baseline.accounting.customers.events";
/// Prefix of the line that prints its address.
pub(crate) const LISTENS: &str = "listens on ";

#[derive(Clone)]
struct Receiver {
    producer: FutureProducer,
    mac: Hmac<Sha256>,
}

/// The fields of the envelope that it needs.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    extra_partition_information: Partition<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Partition<'a> {
    partition_client_id: &'a str,
}

pub(crate) fn serve(bootstrap: &str) {
    let producer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", "0")
        .set("partitioner", "murmur2_random")
        .create()
        .unwrap();
    let mac = Hmac::new_from_slice(SECRET.as_bytes()).unwrap();
    let router = Router::new()
        .route("/webhooks/accounting/{connector}", post(receive))
        .with_state(Receiver { producer, mac });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{LISTENS}{}", listener.local_addr().unwrap());
        axum::serve(listener, router).await.unwrap();
    });
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let signature = headers.get(SIGNATURE_HEADER).and_then(|value| decode(value.as_bytes()));
    let Some(signature) = signature else { return StatusCode::UNAUTHORIZED };
    let mut mac = receiver.mac.clone();
    mac.update(&body);
    if mac.verify_slice(&signature).is_err() {
        return StatusCode::UNAUTHORIZED;
    }
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(&body) else { return StatusCode::BAD_REQUEST };
    let key = envelope.extra_partition_information.partition_client_id;
    let record = FutureRecord::to(TOPIC).key(key).payload(&body[..]);
    match receiver.producer.send(record, Duration::from_secs(5)).await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn decode(header: &[u8]) -> Option<[u8; 32]> {
    let digits = std::str::from_utf8(header.strip_prefix(b"sha256=")?).ok()?;
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}
