//! The thread that renews the lease: it commits the claims of one partition after the other and waits for the responses.
//!
//! The coordinator accepts a commit only from a member of the current generation, and it counts as a heartbeat. So a success
//! proves that no partition was reassigned before the commit was sent, nor will be within a session from then.

use std::time::Duration;

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode as Code},
};

use base::boot_clock;

use super::{
    GroupOptions,
    ownership::{LeaseRenewal, Ownership},
    rebalance::MemberClient,
};
use crate::error::KafkaCause;

/// Longest time between two renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after a failed commit; during a rebalance every commit fails.
const RENEWAL_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Renews until `is_over`. One commit may take as long as a session.
pub(super) fn run(
    client: &MemberClient,
    ownership: &Ownership,
    options: &GroupOptions,
    is_over: impl Fn() -> bool,
) {
    let GroupOptions { topic, heartbeat, .. } = options;
    let mut renewing = false;
    while !is_over() {
        let Some(renewal) = ownership.next_renewal() else {
            ownership.sleep(RENEWAL_INTERVAL);
            continue;
        };
        let begun = boot_clock::now();
        let committed = commit(client, topic, &renewal);
        if is_over() {
            return;
        }
        // A client that has just lost its membership commits without one, which an empty group accepts.
        if committed.is_ok() && !client.assignment_lost() {
            ownership.renewed(&renewal, begun);
        }
        if let Err(error) = &committed {
            match KafkaCause::from(error.clone()).code() {
                Some(Code::UnknownMemberId) => ownership.end_lease(),
                Some(Code::RebalanceInProgress | Code::IllegalGeneration) => {
                    ownership.rebalancing(renewal.completed);
                }
                _ => {}
            }
            ownership.note_failure(format!("renew the lease by a commit to {topic}: {error}"));
        }
        let running = !ownership.left(boot_clock::now()).is_zero();
        if running != renewing {
            log_change(running, topic, committed.as_ref().err());
            renewing = running;
        }
        ownership.sleep(if committed.is_ok() {
            RENEWAL_INTERVAL.min(*heartbeat)
        } else {
            RENEWAL_RETRY_PAUSE
        });
    }
}

fn commit(client: &MemberClient, topic: &str, renewal: &LeaseRenewal) -> Result<(), KafkaError> {
    let mut list = TopicPartitionList::with_capacity(1);
    // After the claim, so that tools show no lag for partitions that are never read.
    list.add_partition_offset(topic, renewal.partition, Offset::Offset(renewal.claim + 1))?;
    client.commit(&list, CommitMode::Sync)
}

fn log_change(running: bool, topic: &str, error: Option<&KafkaError>) {
    if running {
        tracing::info!(topic, "lease acquired");
    } else {
        let error = error.map(tracing::field::display);
        tracing::warn!(topic, error, "lease expired; nothing is held until a renewal succeeds");
    }
}
