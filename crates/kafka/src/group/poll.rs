//! The thread that polls for the group, and does nothing else: whoever is late here holds up every other member.

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
    CONNECT_LIMIT, MembershipOutage, Options, lease,
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

/// The longest one poll waits: how late a stop may be noticed. A little more than whole milliseconds, for the reason in
/// [`poll_thread`](super::super::poll_thread).
const POLL_WAIT: Duration = Duration::from_millis(100).saturating_add(POLL_EXTRA);
/// As long as a renewal is still under way at the end, events are served in steps of this length.
const FINAL_POLL_WAIT: Duration = Duration::from_millis(10);

/// The most that Kafka is asked whether it is there, for a member that may have to join anew.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How often it has to have answered before that, at first and at most.
const MIN_CHECKS: u32 = 3;
const MAX_CHECKS: u32 = 100;

/// Where others find the client for as long as it is a member. Whoever looks must not keep it: ending it blocks, and is
/// for the thread that polls.
pub(super) type ClientSlot = Arc<RwLock<Option<Arc<MemberClient>>>>;

/// What the thread is to do.
pub(super) struct MemberArgs {
    pub(super) kafka: Kafka,
    pub(super) options: Options,
    /// How long the group may not count on the member before it joins anew.
    pub(super) rejoin_after: Duration,
    pub(super) ownership: Arc<Ownership>,
    pub(super) slot: ClientSlot,
    pub(super) stop: CancellationToken,
}

/// Joins, reports that the topic was found, and polls until stopped.
pub(super) fn run(args: &MemberArgs, joined: oneshot::Sender<Result<(), Error>>) {
    // Whatever ends this thread, a fault of the program too: nothing may be held by a member that does not poll.
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
    // In any case, or whoever lets go of the slot last would end the client.
    args.slot.write().take();
    // Tells the group, after a last call of ours to give everything back.
    drop(member);
    drop(over);
}

/// One client that takes part in the group.
struct GroupMember {
    client: Arc<MemberClient>,
    /// Cancelled once another client has taken its place.
    replaced: CancellationToken,
}

/// Polls and renews until stopped (`None`), or until another client has joined in this one's place.
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
        // Without leases nothing may be held: better not be a member.
        Err(error) => {
            tracing::error!(%error, "no thread to renew the lease on");
            args.ownership.note_failure(format!("no thread to renew the lease on: {error}"));
            None
        }
    }
}

/// Ends a replaced member aside: that tells the group, or hangs where the client hung before.
fn close_replaced(args: &MemberArgs, member: GroupMember) {
    member.replaced.cancel();
    args.ownership.end();
    on_closing_thread(move || drop(member));
}

/// How long a member that the group does not count on is left to librdkafka, which has to bring it back by itself, and now and then
/// does not: after a coordinator that went away just as the session ended, a member has been seen to ask nobody for anything ever again.
///
/// Only time in which Kafka answers counts, looked for in steps. Each next time is twice as long: a group that takes long must not be
/// begun anew by its members again and again.
struct RejoinBackoff {
    step: Duration,
    /// How long it has to be away before the next look.
    next_check: Duration,
    /// Looks at which Kafka has answered, one after the other.
    answered_checks: u32,
    required_checks: u32,
}

impl RejoinBackoff {
    fn new(step: Duration) -> Self {
        Self { step, next_check: step, answered_checks: 0, required_checks: MIN_CHECKS }
    }

    /// Whether to look now at a member that has been away for so long; `None`: it is not.
    fn is_check_due(&mut self, away: Option<Duration>) -> bool {
        if away.is_none() {
            *self = Self::new(self.step);
        }
        away.is_some_and(|away| away >= self.next_check)
    }

    /// Whether it has lasted long enough, now that Kafka has answered, or not.
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

/// The end of the thread.
struct ThreadEnd<'a>(&'a MemberArgs);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        let MemberArgs { slot, ownership, stop, .. } = self.0;
        // Still there after a fault only: the group then learns of it by the session.
        slot.write().take();
        if thread::panicking() {
            ownership.note_failure("the thread that polls for the group has a fault, see the log".to_owned());
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
    // Without leases nothing may be held, so neither may the group count on us.
    while !stop.is_cancelled() && !renewing.is_finished() {
        ownership.polling(boot_clock::now());
        if let Some(Err(error)) = client.poll(POLL_WAIT) {
            report(args, error, &mut last);
        }
        // What is read before a partition is paused is nobody's.
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
        tracing::error!(group = args.options.group, "the thread that renews the lease has ended by itself");
        ownership.note_failure("the thread that renews the lease has a fault, see the log".to_owned());
    }
    ownership.wake();
    // Its commit must not be the last to know the client. Commits have limits of their own.
    while !renewing.is_finished() {
        drop(client.poll(FINAL_POLL_WAIT));
    }
    None
}

/// Whether Kafka is there. The member itself may have lost isolation of it, so another client asks.
fn is_kafka_reachable(args: &MemberArgs) -> bool {
    let role = ClientRole::Query(Isolation::ReadCommitted);
    consumer::ask(&args.kafka, &role, |client| find_topic(client, &args.options.topic, ASK_LIMIT)).is_ok()
}

/// Another member in the place of one that does not come back.
fn join_again(args: &MemberArgs, away: &MembershipOutage) -> Option<GroupMember> {
    let group = &args.options.group;
    let (lasted, reason) = (away.lasted, away.reason.as_deref());
    tracing::warn!(
        group,
        ?lasted,
        reason,
        "Kafka is there and the group has not taken this member back: it joins anew"
    );
    match join(args, ASK_LIMIT) {
        Ok(member) => Some(member),
        Err(error) => {
            tracing::warn!(group, error = %ErrorChain(&error), "the member cannot join anew");
            None
        }
    }
}

/// librdkafka goes on by itself after all of them; the same one again is no news.
fn report(args: &MemberArgs, error: KafkaError, last: &mut Option<Code>) {
    let Options { group, topic, .. } = &args.options;
    let code = KafkaCause::from(error.clone()).code();
    let error = Error::request(format!("take part in group {group}"), error);
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    if error.retry() == Retry::Later || *last == code {
        tracing::debug!(group, topic, error = %error, source, "the group is held up");
    } else {
        tracing::error!(group, topic, error = %error, source, "the group cannot share its work");
    }
    *last = code;
    args.ownership.note_failure(ErrorChain(&error).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a member joins anew that is away from the beginning, while Kafka answers in these seconds.
    fn joins(rejoin: &mut RejoinBackoff, answers: impl Fn(u64) -> bool) -> Vec<u64> {
        let joins = |second: &u64| {
            let away = Duration::from_secs(*second);
            rejoin.is_check_due(Some(away)) && rejoin.is_exhausted(away, answers(*second))
        };
        (0..100).filter(joins).collect()
    }

    #[test]
    fn a_member_that_stays_away_joins_anew_each_time_after_twice_as_long() {
        let mut rejoin = RejoinBackoff::new(Duration::from_secs(3));
        assert_eq!(joins(&mut rejoin, |_| true), [9, 27, 63]);
        assert!(!rejoin.is_check_due(None));
        assert_eq!(joins(&mut rejoin, |_| true), [9, 27, 63], "it has been back meanwhile");
    }

    #[test]
    fn nobody_joins_anew_before_kafka_has_been_there_for_a_while() {
        let mut rejoin = RejoinBackoff::new(Duration::from_secs(3));
        assert_eq!(joins(&mut rejoin, |second| second > 50), [57, 75]);
        let mut rejoin = RejoinBackoff::new(Duration::from_secs(3));
        assert!(joins(&mut rejoin, |second| second % 9 > 0).is_empty());
    }
}
