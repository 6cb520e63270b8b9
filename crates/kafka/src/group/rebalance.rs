//! What the group assigns to a member and revokes from it, as librdkafka reports it on the thread that polls.

use std::sync::Arc;

use rdkafka::{
    TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance},
};
use tokio_util::sync::CancellationToken;

use super::ownership::Ownership;
use crate::{context::Context, sys};

/// A client that reports its rebalances.
pub(super) type MemberClient = BaseConsumer<Context<RebalanceListener>>;

/// Tells the ownership what the group assigns and revokes.
pub(super) struct RebalanceListener {
    pub(super) ownership: Arc<Ownership>,
    pub(super) group: String,
    /// Cancelled once another member has taken this one's place; its rebalances no longer count.
    pub(super) replaced: CancellationToken,
}

impl ConsumerContext for Context<RebalanceListener> {
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
            // Records of a partition that is not paused are fetched and dropped, nothing worse.
            if let Err(error) = consumer.pause(partitions) {
                tracing::debug!(group, %error, "partitions are not paused");
            }
        }
        ownership.rebalanced(sys::group_generation(consumer.client()), numbers(partitions));
    }
}

/// There is one topic only.
fn numbers(partitions: &TopicPartitionList) -> Vec<i32> {
    partitions.elements().iter().map(|element| element.partition()).collect()
}
