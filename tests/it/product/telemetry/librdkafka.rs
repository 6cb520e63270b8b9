//! librdkafka's log lines arrive in the product's logs, and its statistics in the product's metrics.

use crate::support::visit::{RECORD_BYTES, RECORDS, Visit};
use crate::support::{Result, Shared};

crate::tests! {
    real librdkafka_logs_and_statistics_are_exported;
}

async fn librdkafka_logs_and_statistics_are_exported(shared: &'static Shared) -> Result<()> {
    // A producer's setting for all clients: librdkafka warns about it in a consumer.
    let odd = ("queue.buffering.backpressure.threshold", "1");
    let settings = [("statistics.interval.ms", "100"), ("debug", "protocol"), odd];
    let visit = Visit::new(shared.bootstrap(), &settings);

    let report = visit.run().await?;

    assert!(report.is_well(), "{}", report.0);
    let lines: Vec<serde_json::Value> =
        report.0.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let logged = |client: &str, level: &str, text: &str| {
        lines.iter().any(|line| {
            let fields = &line["fields"];
            let message = fields["message"].as_str().unwrap_or_default();
            line["level"] == level && fields["client"] == client && message.contains(text)
        })
    };
    assert!(logged("consumer", "WARN", odd.0), "{}", report.0);
    for client in ["producer", "consumer", "transactional"] {
        assert!(logged(client, "DEBUG", "MetadataRequest"), "{client}: {}", report.0);
    }
    let metric = |name: &str| {
        let name = format!(r#"tributary_kafka_{name}{{client="producer"}} "#);
        let found = report.0.lines().find_map(|line| line.strip_prefix(&name));
        found.unwrap_or_else(|| panic!("no {name}")).parse::<f64>().unwrap()
    };
    assert!(metric("sent_bytes_total") > (RECORDS * RECORD_BYTES) as f64, "{}", metric("sent_bytes_total"));
    assert!(metric("received_bytes_total") > 0.0);
    assert_eq!(metric("brokers_up"), 1.0);
    Ok(())
}
