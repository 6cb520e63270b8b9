//! Cost of a forged delivery of 1 MiB, by receiving address.

use std::time::Duration;

use tributary::avro::embedded::EmbeddedRegistry;

use crate::oracle::senders;
use crate::receiver::Receiver;
use crate::support::{Broker, Error, Options, Result};

/// Size of each body.
const BYTES: usize = 1 << 20;
/// Requests to each address; enough because processor time is counted in hundredths of a second.
const REQUESTS: u32 = 200;
/// Largest allowed ratio of an invoicing to an accounting delivery.
const MAX_COST_RATIO: f64 = 2.0;
/// A signature that no secret produced.
const FORGED: &str = "sha256=0000000000000000000000000000000000000000000000000000000000000000";

/// Sends forged deliveries to a worker with a hook for each resource and two secrets each, and prints their cost. Returns
/// whether an invoicing delivery costs at most twice an accounting one.
pub(crate) async fn measure() -> Result<bool> {
    let broker = Broker::start(Options::default()).await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let connector = [
        ("invoicing.hooks", "all"),
        ("invoicing.secret", "the invoicing secret of today, long enough"),
        ("invoicing.secret.previous", "the invoicing secret before it, long enough"),
    ];
    let receiver = Receiver::ours_with(&broker.bootstrap(), registry.url().as_str(), false, &connector)?;
    let worker = receiver.worker().ok_or_else(|| Error("there is no worker".to_owned()))?;
    worker.until("the connector to be received", async || worker.is_received().await).await?;

    let accounting = receiver.target.url.clone();
    let base = accounting.split("/webhooks/").next().unwrap_or_default();
    let shared = format!("{base}/api/webhooks/incoming/Invoicing");
    let own = format!("{shared}/customer-created");
    let mut costs = Vec::new();
    println!("\nforged deliveries of {BYTES} bytes, {REQUESTS} to each address");
    for (name, url) in
        [("accounting", accounting), ("invoicing, own address", own), ("invoicing, shared", shared)]
    {
        let cost = cost(&receiver, &url).await.as_secs_f64() * 1_000.0 / f64::from(REQUESTS);
        println!("{name:<24} {cost:>7.2} ms of processor time each");
        costs.push(cost);
    }
    Ok(costs[1..].iter().all(|cost| *cost <= MAX_COST_RATIO * costs[0]))
}

/// Processor time of all requests to one address.
async fn cost(receiver: &Receiver, url: &str) -> Duration {
    let client = senders::client(&receiver.target, true);
    let body = vec![b' '; BYTES];
    let before = receiver.usage.processor_time();
    for number in 0..REQUESTS {
        let [.., third, fourth] = number.to_be_bytes();
        let request = client
            .post(url)
            .header("svc-webhook-signature", FORGED)
            .header("ms-signature", FORGED)
            // A new source for each request, so that none is refused because of the ones before it.
            .header("x-forwarded-for", format!("198.51.{third}.{fourth}"))
            .body(body.clone());
        // A request that is refused before its body is read may end without an answer.
        request.send().await.ok();
    }
    receiver.usage.processor_time().saturating_sub(before)
}
