//! The thread that polls for the group and does nothing else: a late poll delays every other member's rebalance.

use std::{sync::Arc, thread, time::Duration};

use parking_lot::RwLock;
use rdkafka::{
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use base::{
    boot_clock,
    retry::{ErrorChain, Retry},
};

use super::{
    CONNECT_LIMIT, GroupOptions, MembershipOutage, lease,
    ownership::Ownership,
    rebalance::{MemberClient, RebalanceListener},
};
use crate::{
    Error, Kafka,
    client::{Settings, on_closing_thread},
    consumer::{self, find_topic},
    error::KafkaCause,
    poll_thread::POLL_EXTRA,
    role::{ClientRole, Isolation},
};

/// Timeout of one poll, and so the delay until a stop is noticed. Slightly more than whole milliseconds, for the reason in
/// [`poll_thread`](super::super::poll_thread).
const POLL_WAIT: Duration = Duration::from_millis(100).saturating_add(POLL_EXTRA);
/// Timeout of polls while the last renewal finishes.
const FINAL_POLL_WAIT: Duration = Duration::from_millis(10);

/// Time limit of a check whether Kafka answers, before a member rejoins.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How many successful checks in a row a rejoin needs, at first and at most.
const MIN_CHECKS: u32 = 3;
const MAX_CHECKS: u32 = 100;

/// The client, while it is a member. Readers must not keep it: dropping the last reference blocks, which only the polling
/// thread may do.
pub(super) type ClientSlot = Arc<RwLock<Option<Arc<MemberClient>>>>;

/// The arguments of the thread.
pub(super) struct MemberArgs {
    pub(super) kafka: Kafka,
    pub(super) options: GroupOptions,
    /// How long a member may be out of the group before it rejoins with a new client.
    pub(super) rejoin_after: Duration,
    pub(super) ownership: Arc<Ownership>,
    pub(super) slot: ClientSlot,
    pub(super) stop: CancellationToken,
}

/// Joins, reports that the topic was found, and polls until stopped.
pub(super) fn run(args: &MemberArgs, joined: oneshot::Sender<Result<(), Error>>) {
    // Runs however this thread ends, also by a panic: a member that does not poll must not hold anything.
    let over = ThreadEnd(args);
    let mut member = match join(args, CONNECT_LIMIT) {
        Err(error) => return drop(joined.send(Err(error))),
        Ok(member) => member,
    };
    if joined.send(Ok(())).is_ok() {
        let mut rejoin = RejoinBackoff::new(args.rejoin_after / MIN_CHECKS);
        while let Some(next) = serve(args, &member, &mut rejoin) {
            close_replaced(args, std::mem::replace(&mut member, next));
        }
    }
    // Otherwise another user of the slot might drop the client last, and block.
    args.slot.write().take();
    // Leaves the group after a last rebalance callback that revokes everything.
    drop(member);
    drop(over);
}

/// One client that takes part in the group.
struct GroupMember {
    client: Arc<MemberClient>,
    /// Cancelled once another client has taken its place.
    replaced: CancellationToken,
}

/// Polls and renews until stopped (`None`), or until another client has joined in its place.
fn serve(args: &MemberArgs, member: &GroupMember, rejoin: &mut RejoinBackoff) -> Option<GroupMember> {
    let (client, ownership, options) =
        (Arc::clone(&member.client), Arc::clone(&args.ownership), args.options.clone());
    let (stop, replaced) = (args.stop.clone(), member.replaced.clone());
    let is_over = move || stop.is_cancelled() || replaced.is_cancelled();
    let renewing = thread::Builder::new()
        .name("kafka-lease".into())
        .spawn(move || lease::run(&client, &ownership, &options, is_over));
    match renewing {
        Ok(renewing) => poll(args, &member.client, &renewing, rejoin),
        // Without a lease nothing can be held, so leave the group.
        Err(error) => {
            tracing::error!(%error, "cannot start the thread that renews the lease; leaving the group");
            args.ownership.note_failure(format!("cannot start the thread that renews the lease: {error}"));
            None
        }
    }
}

/// Closes a replaced member on another thread: closing leaves the group, or hangs if the client hangs.
fn close_replaced(args: &MemberArgs, member: GroupMember) {
    member.replaced.cancel();
    args.ownership.end();
    on_closing_thread(move || drop(member));
}

/// Decides when a member that is out of the group rejoins with a new client. librdkafka should rejoin by itself, but sometimes
/// does not: after the coordinator stopped just as the session ended, a member was seen to never send a request again.
///
/// Only time in which Kafka answers counts, measured in steps. Each wait is twice as long as the one before, so that members
/// do not keep restarting a slow group.
struct RejoinBackoff {
    step: Duration,
    /// How long the member must be out of the group before the next check.
    next_check: Duration,
    /// Successful checks in a row.
    answered_checks: u32,
    required_checks: u32,
}

impl RejoinBackoff {
    fn new(step: Duration) -> Self {
        Self { step, next_check: step, answered_checks: 0, required_checks: MIN_CHECKS }
    }

    /// Whether a check is due for a member that has been out of the group this long; `None` if it is in the group.
    fn is_check_due(&mut self, away: Option<Duration>) -> bool {
        if away.is_none() {
            *self = Self::new(self.step);
        }
        away.is_some_and(|away| away >= self.next_check)
    }

    /// Records a check; whether the member should rejoin now.
    fn is_exhausted(&mut self, away: Duration, has_answered: bool) -> bool {
        self.next_check = away + self.step;
        self.answered_checks = if has_answered { self.answered_checks + 1 } else { 0 };
        let is_over = self.answered_checks >= self.required_checks;
        if is_over {
            (self.answered_checks, self.required_checks) = (0, (self.required_checks * 2).min(MAX_CHECKS));
        }
        is_over
    }
}

/// Cleans up when the thread ends.
struct ThreadEnd<'a>(&'a MemberArgs);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        let MemberArgs { slot, ownership, stop, .. } = self.0;
        // Only still set after a panic; the group then notices when the session ends.
        slot.write().take();
        if thread::panicking() {
            ownership.note_failure("the thread that polls for the group panicked, see the log".to_owned());
        }
        ownership.end();
        stop.cancel();
    }
}

fn join(args: &MemberArgs, limit: Duration) -> Result<GroupMember, Error> {
    let MemberArgs { kafka, options, .. } = args;
    let role = ClientRole::Member {
        group: options.group.as_str().into(),
        session: options.session,
        heartbeat: options.heartbeat,
    };
    let settings = Settings::new(kafka, &role)?;
    let replaced = CancellationToken::new();
    let client: Arc<MemberClient> = settings.create(RebalanceListener {
        ownership: Arc::clone(&args.ownership),
        group: options.group.clone(),
        replaced: replaced.clone(),
    })?;
    settings.hand_token(client.client())?;
    find_topic(&client, &options.topic, limit)?;
    let action = || format!("join group {} for topic {}", options.group, options.topic);
    client.subscribe(&[&options.topic]).map_err(|error| Error::request(action(), error))?;
    *args.slot.write() = Some(Arc::clone(&client));
    Ok(GroupMember { client, replaced })
}

fn poll(
    args: &MemberArgs,
    client: &MemberClient,
    renewing: &thread::JoinHandle<()>,
    rejoin: &mut RejoinBackoff,
) -> Option<GroupMember> {
    let MemberArgs { ownership, stop, .. } = args;
    let mut last = None;
    // Without a lease nothing can be held, so the member must not stay in the group.
    while !stop.is_cancelled() && !renewing.is_finished() {
        ownership.polling(boot_clock::now());
        if let Some(Err(error)) = client.poll(POLL_WAIT) {
            report(args, error, &mut last);
        }
        // Records that arrive before a partition is paused are dropped.
        let away = ownership.outage(true, boot_clock::now()).filter(|outage| !outage.joined);
        if rejoin.is_check_due(away.as_ref().map(|outage| outage.lasted))
            && let Some(away) = away
            && rejoin.is_exhausted(away.lasted, is_kafka_reachable(args))
            && let Some(next) = join_again(args, &away)
        {
            return Some(next);
        }
    }
    if !stop.is_cancelled() {
        tracing::error!(
            group = args.options.group,
            "the thread that renews the lease panicked; leaving the group"
        );
        ownership.note_failure("the thread that renews the lease panicked, see the log".to_owned());
    }
    ownership.wake();
    // The renewing thread must not drop the client last. Its commit has a timeout.
    while !renewing.is_finished() {
        drop(client.poll(FINAL_POLL_WAIT));
    }
    None
}

/// Whether Kafka answers. The member's client may have lost all brokers, so another one asks.
fn is_kafka_reachable(args: &MemberArgs) -> bool {
    let role = ClientRole::Query(Isolation::ReadCommitted);
    consumer::ask(&args.kafka, &role, |client| find_topic(client, &args.options.topic, ASK_LIMIT)).is_ok()
}

/// Joins with a new client in place of one that does not recover.
fn join_again(args: &MemberArgs, away: &MembershipOutage) -> Option<GroupMember> {
    let group = &args.options.group;
    let (lasted, reason) = (away.lasted, away.reason.as_deref());
    tracing::warn!(
        group,
        ?lasted,
        reason,
        "Kafka answers but this member has not rejoined its group; rejoining with a new client"
    );
    match join(args, ASK_LIMIT) {
        Ok(member) => Some(member),
        Err(error) => {
            tracing::warn!(group, error = %ErrorChain(&error), "cannot rejoin the group; retrying");
            None
        }
    }
}

/// Logs an error. librdkafka continues after all of them; a repeated one is logged at debug level.
fn report(args: &MemberArgs, error: KafkaError, last: &mut Option<Code>) {
    let GroupOptions { group, topic, .. } = &args.options;
    let code = KafkaCause::from(error.clone()).code();
    let error = Error::request(format!("take part in group {group}"), error);
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    if error.retry() == Retry::Later || *last == code {
        tracing::debug!(group, topic, error = %error, source, "temporary group error");
    } else {
        tracing::error!(group, topic, error = %error, source, "this worker cannot take part in its group");
    }
    *last = code;
    args.ownership.note_failure(ErrorChain(&error).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which a member that is out of the group from second 0 rejoins, if Kafka answers in these seconds.
    fn joins(rejoin: &mut RejoinBackoff, answers: impl Fn(u64) -> bool) -> Vec<u64> {
        let joins = |second: &u64| {
            let away = Duration::from_secs(*second);
            rejoin.is_check_due(Some(away)) && rejoin.is_exhausted(away, answers(*second))
        };
        (0..100).filter(joins).collect()
    }

    #[test]
    fn rejoin_interval_doubles_each_time() {
        let mut rejoin = RejoinBackoff::new(Duration::from_secs(3));
        assert_eq!(joins(&mut rejoin, |_| true), [9, 27, 63]);
        assert!(!rejoin.is_check_due(None));
        assert_eq!(joins(&mut rejoin, |_| true), [9, 27, 63], "it was back in the group meanwhile");
    }

    #[test]
    fn no_rejoin_before_kafka_has_answered_for_a_while() {
        let mut rejoin = RejoinBackoff::new(Duration::from_secs(3));
        assert_eq!(joins(&mut rejoin, |second| second > 50), [57, 75]);
        let mut rejoin = RejoinBackoff::new(Duration::from_secs(3));
        assert!(joins(&mut rejoin, |second| second % 9 > 0).is_empty());
    }
}
