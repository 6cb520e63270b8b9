//! The worker dies at each step between a delivery and its answer: afterwards every acknowledged delivery is in the topic, in
//! order.
//!
//! Senders keep sending, and each worker starts on the disk of the one that died. While the broker is unreachable every delivery
//! is spooled; the last worker dies while it drains the spool.

use super::stage::ReceiverStage;
use crate::support::{Error, Result};

crate::tests! {
    disturbing no_acknowledged_delivery_is_lost_at_any_failpoint within 240;
}

const COMPANIES: u32 = 24;

/// The fail points, and whether the worker reaches the broker. The counts let many deliveries pass, so that others are in flight.
const FAILPOINTS: [(&str, bool); 5] = [
    // Handed to the producer; Kafka has not acknowledged it.
    ("intake.sent:100", true),
    // Kafka acknowledged it; the sender has no answer.
    ("intake.published:100", true),
    // Queued for the spool; not written.
    ("spool.before:20", false),
    // Synced in the spool; the sender has no answer.
    ("intake.spooled:100", false),
    // Kafka acknowledged it; the spool still has it.
    ("spool.drained:5", true),
];

async fn no_acknowledged_delivery_is_lost_at_any_failpoint() -> Result<()> {
    let mut stage = ReceiverStage::start("places", &[]).await?;
    let senders = stage.senders(COMPANIES);
    stage.until_acknowledged(u64::from(COMPANIES)).await?;
    stage.worker.kill();

    for (failpoint, reaches_broker) in FAILPOINTS {
        let proxy = stage.broker.proxy()?;
        if reaches_broker {
            proxy.heal();
        } else {
            proxy.cut();
        }
        stage.worker.start_again_to_die(failpoint)?;
        let died = stage.worker.dead().await;
        died.map_err(|error| Error(format!("{failpoint}, {}: {error}", stage.ledger.figures())))?;
    }
    stage.worker.start_again()?;
    stage.until_acknowledged(u64::from(COMPANIES)).await?;
    senders.stop().await;
    let verdict = stage.verdict().await?;

    let figures = stage.ledger.figures();
    println!("intake: a worker died at {} fail points: {verdict}; {figures}", FAILPOINTS.len());
    verdict.check();
    assert_eq!((figures.late, figures.improper), (0, 0), "{figures}");
    Ok(())
}
