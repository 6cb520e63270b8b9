//! One broker behind a proxy: its outages only delay records.

use std::time::Duration;

use kafka::{Kafka, watermarks};
use tokio::time::timeout;

use super::{length, publishing::Publishing};
use crate::support::topics::{LIMIT, PARTITIONS};
use crate::support::{Result, breakable, cycles, prefix};

crate::tests! {
    disturbing a_frozen_broker_only_delays_records within 180;
    disturbing a_killed_and_restarted_broker_only_delays_records within 180;
    disturbing a_stalled_network_only_delays_records within 180;
    disturbing held_back_answers_only_delay_acknowledgements within 180;
    disturbing answers_lost_with_their_connections_repeat_no_record within 180;
}

async fn a_frozen_broker_only_delays_records() -> Result<()> {
    let broker = breakable::take().await?;
    let mut publishing =
        Publishing::start(Kafka::plaintext(broker.bootstrap()), &prefix("outage-frozen")).await;

    broker.pause()?;
    publishing.outage(length()).await;
    broker.resume()?;

    publishing.finish("frozen broker").await;
    Ok(())
}

async fn a_killed_and_restarted_broker_only_delays_records() -> Result<()> {
    let mut broker = breakable::take().await?;
    let mut publishing =
        Publishing::start(Kafka::plaintext(broker.bootstrap()), &prefix("outage-killed")).await;

    broker.kill();
    publishing.outage(length()).await;
    broker.restart().await?;

    publishing.finish("killed broker").await;
    Ok(())
}

async fn a_stalled_network_only_delays_records() -> Result<()> {
    let broker = breakable::take().await?;
    let mut publishing =
        Publishing::start(Kafka::plaintext(broker.bootstrap()), &prefix("outage-stalled")).await;

    broker.proxy()?.stall();
    publishing.outage(length()).await;
    broker.proxy()?.heal();

    publishing.finish("stalled network").await;
    Ok(())
}

async fn held_back_answers_only_delay_acknowledgements() -> Result<()> {
    let broker = breakable::take().await?;
    let mut publishing =
        Publishing::start(Kafka::plaintext(broker.bootstrap()), &prefix("outage-answers")).await;

    broker.proxy()?.stall_responses();
    publishing.outage(length()).await;
    broker.proxy()?.heal();

    publishing.finish("held back answers").await;
    Ok(())
}

/// The dangerous moment: the broker has a batch, its answer is lost with the connection, and the batch is sent again.
async fn answers_lost_with_their_connections_repeat_no_record() -> Result<()> {
    let broker = breakable::take().await?;
    let past_proxy = Kafka::plaintext(broker.bootstrap_past_proxy());
    let topic = prefix("outage-cut");
    let mut publishing = Publishing::start(Kafka::plaintext(broker.bootstrap()), &topic).await;

    let (wanted, mut lost) = (cycles("LOSSES", 1), 0);
    // If the held answer belongs to another request, the records wait behind it and no acknowledgement is lost.
    for _ in 0..wanted * 10 {
        publishing.flush().await;
        broker.proxy()?.stall_responses();
        publishing.send(500);
        lost += u32::from(has_more_than(&past_proxy, &topic, publishing.acknowledged()).await);
        broker.proxy()?.cut();
        publishing.outage(Duration::from_millis(200)).await;
        broker.proxy()?.heal();
        if lost == wanted {
            break;
        }
    }
    assert_eq!(lost, wanted, "acknowledgements were lost in too few rounds");

    publishing.finish("lost answers").await;
    Ok(())
}

/// Whether the broker gets more than `count` records within a time that is long if nothing holds them back.
async fn has_more_than(kafka: &Kafka, topic: &str, count: usize) -> bool {
    let partitions: Vec<i32> = (0..PARTITIONS).collect();
    let grown = async {
        loop {
            let watermarks = watermarks(kafka, topic, &partitions, LIMIT).await.unwrap();
            if watermarks.values().map(|(_, high)| *high as usize).sum::<usize>() > count {
                return;
            }
        }
    };
    timeout(Duration::from_secs(5), grown).await.is_ok()
}
