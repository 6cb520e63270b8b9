//! One broker behind a proxy: its outages only delay records.

use std::time::Duration;

use kafka::{Kafka, watermarks};
use tokio::time::timeout;

use super::{length, publishing::Publishing};
use crate::support::topics::{LIMIT, PARTITIONS};
use crate::support::{Broker, Proxy, Result, breakable, cycles, prefix};

crate::tests! {
    disturbing a_frozen_broker_only_delays_records within 180;
    disturbing a_killed_and_restarted_broker_only_delays_records within 180;
    disturbing a_stalled_network_only_delays_records within 180;
    disturbing held_back_answers_only_delay_acknowledgements within 180;
    disturbing answers_lost_with_their_connections_repeat_no_record within 180;
}

async fn a_frozen_broker_only_delays_records() -> Result<()> {
    only_delays("outage-frozen", async |broker| broker.pause(), async |broker| broker.resume()).await
}

async fn a_killed_and_restarted_broker_only_delays_records() -> Result<()> {
    let kill = async |broker: &mut Broker| {
        broker.kill();
        Ok(())
    };
    only_delays("outage-killed", kill, async |broker| broker.restart().await).await
}

async fn a_stalled_network_only_delays_records() -> Result<()> {
    let stall = async |broker: &mut Broker| broker.proxy().map(Proxy::stall);
    only_delays("outage-stalled", stall, async |broker| broker.proxy().map(Proxy::heal)).await
}

async fn held_back_answers_only_delay_acknowledgements() -> Result<()> {
    let hold = async |broker: &mut Broker| broker.proxy().map(Proxy::stall_responses);
    only_delays("outage-answers", hold, async |broker| broker.proxy().map(Proxy::heal)).await
}

/// Publishes through an outage between `begin` and `end`.
async fn only_delays(
    name: &str,
    begin: impl AsyncFnOnce(&mut Broker) -> Result<()>,
    end: impl AsyncFnOnce(&mut Broker) -> Result<()>,
) -> Result<()> {
    let mut broker = breakable::take().await?;
    let mut publishing = Publishing::start(Kafka::plaintext(broker.bootstrap()), &prefix(name)).await;

    begin(&mut broker).await?;
    publishing.outage(length()).await;
    end(&mut broker).await?;

    publishing.finish(name).await;
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
