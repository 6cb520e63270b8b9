//! The partitions the group assigns and revokes, as librdkafka reports them on the polling thread.

use std::sync::Arc;

use rdkafka::{
    TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance},
};
use tokio_util::sync::CancellationToken;

use super::ownership::Ownership;
use crate::{context::ClientCallbacks, sys};

/// A consumer with a rebalance listener.
pub(super) type MemberClient = BaseConsumer<ClientCallbacks<RebalanceListener>>;

/// Reports assigned and revoked partitions to the ownership.
pub(super) struct RebalanceListener {
    pub(super) ownership: Arc<Ownership>,
    pub(super) group: String,
    /// Cancelled once another client has replaced this one; its rebalances are then ignored.
    pub(super) replaced: CancellationToken,
}

impl ConsumerContext for ClientCallbacks<RebalanceListener> {
    fn pre_rebalance(&self, consumer: &MemberClient, rebalance: &Rebalance<'_>) {
        let RebalanceListener { ownership, group, replaced } = &self.own;
        let Rebalance::Revoke(partitions) = rebalance else { return };
        if replaced.is_cancelled() {
            return;
        }
        ownership.revoked(numbers(partitions));
        if consumer.assignment_lost() {
            ownership.lost();
        }
        if partitions.count() > 0 {
            tracing::info!(group, partitions = ?numbers(partitions), "partitions revoked");
        }
    }

    fn post_rebalance(&self, consumer: &MemberClient, rebalance: &Rebalance<'_>) {
        let RebalanceListener { ownership, group, replaced } = &self.own;
        let Rebalance::Assign(partitions) = rebalance else { return };
        if replaced.is_cancelled() {
            return;
        }
        if partitions.count() > 0 {
            tracing::info!(group, partitions = ?numbers(partitions), "partitions assigned");
            // Harmless: records of a partition that is not paused are fetched and dropped.
            if let Err(error) = consumer.pause(partitions) {
                tracing::debug!(group, %error, "cannot pause the partitions; their records are fetched and dropped");
            }
        }
        ownership.rebalanced(sys::group_generation(consumer.client()), numbers(partitions));
    }
}

/// The partition numbers; the group has only one topic.
fn numbers(partitions: &TopicPartitionList) -> Vec<i32> {
    partitions.elements().iter().map(|element| element.partition()).collect()
}
