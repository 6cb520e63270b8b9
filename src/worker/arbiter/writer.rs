//! The task that writes: one transaction after the other, each for all who wait.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Trouble,
    draft::{Draft, Ending, Message, Outcome, Turn},
};
use crate::{
    kafka::{self, Failure, ShardProducer, Shards},
    model::EncodedRecord,
    retry::{Backoff, Policy, Retry},
    worker::state::{
        Tail,
        configs::{Configs, WRITE_HEADER, Write},
        write_id,
    },
};

/// Rounds one edit takes part in before it gives way for good.
const ATTEMPTS: u32 = 32;
/// Waits between rounds that failed, and the longest a rival is waited for that has taken the id: a few times what a write
/// needs.
const BETWEEN: Policy =
    Policy { first: Duration::from_millis(60), longest: Duration::from_millis(800), total: None };
/// Spreads those whom the same rival has kept from writing.
const SPREAD: Duration = Duration::from_millis(30);
/// Edits of one transaction.
const BATCH: usize = 64;
/// Records of one transaction, after which no further edit is taken in.
const BATCH_RECORDS: usize = 2048;
/// The longest somebody may take for a decision once it is their turn: only a thread that is blocked needs longer.
const TURN: Duration = Duration::from_secs(1);
/// The wait for those who have not taken their turn.
const LATE: Duration = Duration::from_millis(20);
/// How much longer a round may take than the last of those who wait for it.
const BEYOND: Duration = Duration::from_millis(250);
/// Of the config topic, which has but one.
const PARTITION: i32 = 0;

/// An edit that waits for its turn.
pub(super) struct Request {
    /// When its caller gives up.
    pub(super) end: Instant,
    pub(super) turns: mpsc::Sender<Message>,
}

/// See the module's head.
pub(super) struct Writer {
    configs: Tail<Configs>,
    shards: Shards,
    transactional_id: Arc<str>,
    trouble: Trouble,
    /// The transactional id, for as long as it is ours as far as we know.
    held: Option<Held>,
    unsure: Option<Unsure>,
    backoff: Backoff,
}

/// The transactional id in our hands.
struct Held {
    producer: ShardProducer,
    /// The last write when it came into our hands, or our own since. Once another is read the id is a rival's.
    last: Option<Bytes>,
}

/// A transaction whose outcome is not known, and whose it is.
struct Unsure {
    id: Bytes,
    members: Vec<Decided>,
}

struct Member {
    request: Request,
    attempts: u32,
}

/// One that has decided and waits for the outcome.
struct Decided {
    member: Member,
    outcome: oneshot::Sender<Outcome>,
}

impl Writer {
    pub(super) fn new(
        configs: Tail<Configs>,
        shards: Shards,
        transactional_id: Arc<str>,
        trouble: Trouble,
    ) -> Self {
        let backoff = Backoff::new(BETWEEN, seed());
        Self { configs, shards, transactional_id, trouble, held: None, unsure: None, backoff }
    }

    /// Writes until nobody is left who could ask.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut waiting = VecDeque::new();
        loop {
            waiting.retain(Member::is_there);
            self.unsure.take_if(|unsure| !unsure.members.iter().any(|one| one.member.is_there()));
            if waiting.is_empty() && self.unsure.is_none() {
                // What went wrong before is no concern of the next.
                self.calm();
                match requests.recv().await {
                    Some(request) => waiting.push_back(Member { request, attempts: 0 }),
                    None => return,
                }
            }
            let unsure = self.unsure.iter().flat_map(|unsure| unsure.members.iter().map(|one| &one.member));
            let end = unsure.chain(&waiting).map(|member| member.request.end).max();
            let end = end.unwrap_or_else(Instant::now);
            // All whom it might concern have left by then. What was under way is dropped, and the id taken anew.
            timeout_at(end + BEYOND, self.round(end, &mut waiting, &mut requests)).await.ok();
        }
    }

    /// One attempt at one transaction.
    async fn round(
        &mut self,
        end: Instant,
        waiting: &mut VecDeque<Member>,
        requests: &mut mpsc::Receiver<Request>,
    ) {
        // Taken out: a round that is dropped from here on leaves nothing behind that might not be as it seems.
        let kept = self.held.take();
        let kept =
            kept.filter(|kept| self.configs.read(|configs| configs.last_write() == kept.last.as_ref()));
        let is_kept = kept.is_some();
        let mut held = match kept {
            Some(kept) => kept,
            None => match self.take(end).await {
                Ok(taken) => taken,
                Err(error) => {
                    for member in waiting.iter_mut() {
                        member.attempts += 1;
                    }
                    return self.fail(error, waiting).await;
                }
            },
        };
        // Every transaction before is decided and read, also one of ours that nobody could tell the outcome of.
        self.settle_unsure(waiting);
        while waiting.len() < BATCH
            && let Ok(request) = requests.try_recv()
        {
            waiting.push_back(Member { request, attempts: 0 });
        }
        let (draft, members) = self.decide(waiting).await;
        if members.is_empty() {
            self.held = Some(held);
            if !waiting.is_empty() {
                sleep(LATE).await;
            }
            return self.retire(waiting);
        }
        if draft.writes.is_empty() {
            if !is_kept || self.is_still_ours(&held, end).await {
                done(members);
                self.held = Some(held);
                self.calm();
            } else {
                again(members, waiting);
                self.retire(waiting);
            }
            return;
        }
        let id = write_id();
        let records = self.records(draft, &id);
        // From here on only the outcome of this one matters.
        self.trouble.set(None);
        match held.producer.commit(records).await {
            Ok(()) => {
                // Only with all of it read may the next write decide.
                self.read_back(&id).await;
                done(members);
                held.last = Some(id);
                self.held = Some(held);
                self.calm();
            }
            Err(Failure::Aborted { source }) => {
                self.held = Some(held);
                again(members, waiting);
                self.fail(source, waiting).await;
            }
            // A fenced write may be in the log too: its commit was answered, the answer lost, and then a rival came.
            Err(Failure::Rebuilt { source } | Failure::Fenced { source } | Failure::Over { source }) => {
                self.unsure = Some(Unsure { id, members });
                // Whatever it was, the next round takes the id anew.
                self.pause(source, held.last.as_ref()).await;
            }
        }
    }

    /// Takes the id, so that no write is under way any more, and reads what all of them have left.
    async fn take(&self, end: Instant) -> Result<Held, kafka::Error> {
        let mut producer = self.shards.take(Arc::clone(&self.transactional_id), Arc::new(|| true)).await?;
        self.configs.read_settled(&mut producer, &[PARTITION], &[], left(end)).await?;
        Ok(Held { producer, last: self.configs.read(|configs| configs.last_write().cloned()) })
    }

    /// Tells those whose transaction is in the log, and lets the others decide again.
    fn settle_unsure(&mut self, waiting: &mut VecDeque<Member>) {
        let Some(Unsure { id, members }) = self.unsure.take() else { return };
        if self.configs.read(|configs| configs.has_write(&id)) {
            done(members);
        } else {
            again(members, waiting);
            self.retire(waiting);
        }
    }

    /// Gives everybody who waits a turn, one after the other.
    async fn decide(&self, waiting: &mut VecDeque<Member>) -> (Draft, Vec<Decided>) {
        let mut draft = Draft::new(self.configs.clone());
        let mut members = Vec::new();
        let mut late = Vec::new();
        while draft.writes.len() < BATCH_RECORDS
            && let Some(mut member) = waiting.pop_front()
        {
            member.attempts += 1;
            let before = draft.decisions;
            let (turn, mut given) = Turn::new(draft);
            // Full where an earlier turn has not been taken yet, closed where nobody waits any more.
            if member.request.turns.try_send(Message::Turn(turn)).is_ok() {
                timeout(TURN, &mut given.decided).await.ok();
            }
            // Nobody else ever takes it out.
            draft = given.take_back().unwrap_or_else(|| Draft::new(self.configs.clone()));
            if draft.decisions > before {
                members.push(Decided { member, outcome: given.outcome });
            } else {
                late.push(member);
            }
        }
        waiting.extend(late);
        (draft, members)
    }

    /// Nobody wrote, so the broker will not say whether a rival has come since the id was taken: look.
    async fn is_still_ours(&mut self, held: &Held, end: Instant) -> bool {
        match self.configs.read_to_end(left(end)).await {
            Ok(()) => self.configs.read(|configs| configs.last_write() == held.last.as_ref()),
            Err(error) => {
                self.pause(error, None).await;
                false
            }
        }
    }

    /// After a failure that left nothing in the log: all wait for the next round, as far as one may help.
    async fn fail(&mut self, error: kafka::Error, waiting: &mut VecDeque<Member>) {
        let is_final = error.retry() == Retry::Never && !matches!(error, kafka::Error::Fenced { .. });
        if is_final {
            for member in waiting.drain(..) {
                member.end(Ending::Failed(error.clone()));
            }
            let unsure = self.unsure.take().map_or_else(Vec::new, |unsure| unsure.members);
            for Decided { outcome, .. } in unsure {
                outcome.send(Outcome::Over(Ending::Failed(error.clone()))).ok();
            }
            return;
        }
        let last = self.configs.read(|configs| configs.last_write().cloned());
        self.pause(error, last.as_ref()).await;
        self.retire(waiting);
    }

    /// Waits before the next round; for a rival that has taken the id until its write is there, and not much longer. `last`
    /// is the last write that was known before.
    async fn pause(&mut self, error: kafka::Error, last: Option<&Bytes>) {
        tracing::debug!(%error, "a write to the config topic has to be tried again");
        let is_rival = matches!(error, kafka::Error::Fenced { .. });
        self.trouble.set(Some(error));
        let Some(wait) = self.backoff.next_wait(Retry::Later) else { return };
        if !is_rival {
            return sleep(wait).await;
        }
        // Who took it at once from a rival would keep that from writing, and be kept from it in turn.
        let mut changes = self.configs.changes();
        let written = async {
            while self.configs.read(|configs| configs.last_write() == last) && changes.changed().await.is_ok()
            {
            }
        };
        timeout(wait.max(BETWEEN.longest / 2), written).await.ok();
        sleep(SPREAD.mul_f64(chance())).await;
    }

    /// Lets those go who have tried often enough.
    fn retire(&self, waiting: &mut VecDeque<Member>) {
        for member in std::mem::take(waiting) {
            if member.attempts < ATTEMPTS {
                waiting.push_back(member);
                continue;
            }
            let attempts = member.attempts;
            member.end(match self.trouble.get() {
                // Nobody was in the way.
                Some(error) if !matches!(error, kafka::Error::Fenced { .. }) => Ending::Failed(error),
                _ => Ending::Conflict { attempts },
            });
        }
    }

    /// All is well again.
    fn calm(&mut self) {
        self.trouble.set(None);
        self.backoff.reset();
    }

    /// Waits until the own tail has read a transaction that is committed. The round's limit bounds it.
    async fn read_back(&self, id: &Bytes) {
        let mut changes = self.configs.changes();
        // The tail lives as long as we do, and so does its signal.
        while !self.configs.read(|configs| configs.has_write(id)) && changes.changed().await.is_ok() {}
    }

    /// Records of other topics first: the id is on the last record.
    fn records(&self, draft: Draft, id: &Bytes) -> Vec<EncodedRecord> {
        let record = |(key, value): &Write| EncodedRecord {
            topic: Arc::clone(self.configs.topic()),
            partition: PARTITION,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: value.as_ref().map(|value| Bytes::from(value.to_string())),
            headers: Vec::new(),
            timestamp_ms: None,
        };
        let mut records = draft.along;
        records.extend(draft.writes.iter().map(record));
        if let Some(record) = records.last_mut() {
            record.headers.push((WRITE_HEADER, id.clone()));
        }
        records
    }
}

impl Member {
    fn is_there(&self) -> bool {
        !self.request.turns.is_closed()
    }

    fn end(self, ending: Ending) {
        // Nobody waits any more, or there is a turn before it that was not taken: its end says the same.
        self.request.turns.try_send(Message::Over(ending)).ok();
    }
}

fn done(members: Vec<Decided>) {
    for Decided { outcome, .. } in members {
        // A caller that has left has had its answer.
        outcome.send(Outcome::Done).ok();
    }
}

/// Back to the front, in their order.
fn again(members: Vec<Decided>, waiting: &mut VecDeque<Member>) {
    for Decided { member, outcome } in members.into_iter().rev() {
        drop(outcome);
        waiting.push_front(member);
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Spreads rivals that begin at the same moment.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    (now as u64).rotate_left(32) ^ u64::from(std::process::id())
}

/// Between 0 and 1.
fn chance() -> f64 {
    let mixed = seed().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    mixed as f64 / f64::from(u32::MAX)
}
