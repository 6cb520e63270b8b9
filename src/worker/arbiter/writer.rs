//! The task that writes: one transaction after the other, each for all who wait.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};

use base::retry::{Backoff, Policy, Retry};
use kafka::{Failure, Place, ShardProducer, Shards, Waits};
use model::EncodedRecord;

use super::{
    PARTITION, Trouble,
    draft::{Draft, Ending, Outcome, Turn},
    member::{Decided, Member, Request, Unsure, again, done},
};
use crate::worker::state::{
    Tail,
    configs::{Configs, WRITE_HEADER, Write},
    write_id,
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
/// How much longer one may take that has begun to decide; then the others decide without it.
const DECISION: Duration = Duration::from_secs(3);
/// How long transactions of others are given to end, where the id has just been taken and none of ours can be under way.
const PATIENCE: Duration = Duration::from_millis(100);
/// The wait for those who have not taken their turn.
const LATE: Duration = Duration::from_millis(20);
/// How much longer a round may take than the last of those who wait for it.
const BEYOND: Duration = Duration::from_millis(250);
/// See the module's head.
pub(super) struct Writer {
    configs: Tail<Configs>,
    /// Where else records are written.
    beside: Vec<Place>,
    shards: Shards,
    transactional_id: Arc<str>,
    trouble: Trouble,
    /// Something of ours may hang beside the config topic: what became of the last write there is not known.
    doubt: bool,
    /// The transactional id, for as long as it is ours as far as we know.
    held: Option<Held>,
    unsure: Option<Unsure>,
    backoff: Backoff,
}

/// The transactional id in our hands.
struct Held {
    producer: ShardProducer,
    /// Nothing of an earlier owner hangs beside the config topic.
    looked: bool,
    /// The last write when it came into our hands, or our own since. Once another is read the id is a rival's.
    last: Option<Bytes>,
}

impl Writer {
    pub(super) fn new(
        configs: Tail<Configs>,
        beside: Vec<Place>,
        shards: Shards,
        transactional_id: Arc<str>,
        trouble: Trouble,
    ) -> Self {
        let backoff = Backoff::new(BETWEEN, seed());
        // Of what happened before this process nothing is known.
        let doubt = true;
        Self { configs, beside, shards, transactional_id, trouble, doubt, held: None, unsure: None, backoff }
    }

    /// Writes until nobody is left who could ask.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut waiting = VecDeque::new();
        loop {
            waiting.retain(Member::is_there);
            self.unsure.take_if(|unsure| !unsure.is_awaited());
            if waiting.is_empty() && self.unsure.is_none() {
                // What went wrong before is no concern of the next.
                self.calm();
                match requests.recv().await {
                    Some(request) => waiting.push_back(Member::new(request)),
                    None => return,
                }
            }
            // All whom it might concern have left by then. What was under way is dropped, and the id taken anew.
            let end = self.end(&waiting);
            let holding = timeout_at(end + BEYOND, self.hold(end, &mut waiting)).await;
            let Ok(Some(held)) = holding else { continue };
            // Every transaction before is decided and read, also one of ours that nobody could tell the outcome of.
            self.settle_unsure(&mut waiting);
            while waiting.len() < BATCH
                && let Ok(request) = requests.try_recv()
            {
                waiting.push_back(Member::new(request));
            }
            // Those who came meanwhile may have more time.
            let end = self.end(&waiting);
            timeout_at(end + BEYOND, self.round(held, end, &mut waiting)).await.ok();
        }
    }

    /// When the last of those who wait gives up.
    fn end(&self, waiting: &VecDeque<Member>) -> Instant {
        let unsure = self.unsure.iter().flat_map(|unsure| unsure.members.iter().map(|one| &one.member));
        let end = unsure.chain(waiting).map(|member| member.request.end).max();
        end.unwrap_or_else(Instant::now)
    }

    /// The id in our hands, with everything before it read; and whether it was there already.
    async fn hold(&mut self, end: Instant, waiting: &mut VecDeque<Member>) -> Option<(Held, bool)> {
        let is_thorough = waiting.iter().any(|member| member.request.thorough);
        // Taken out: a round that is dropped from here on leaves nothing behind that might not be as it seems.
        let kept = self.held.take().filter(|kept| {
            !is_thorough && self.configs.read(|configs| configs.last_write() == kept.last.as_ref())
        });
        if let Some(kept) = kept {
            return Some((kept, true));
        }
        match self.take(end, is_thorough || self.doubt).await {
            Ok(taken) => Some((taken, false)),
            Err(error) => {
                for member in waiting.iter_mut() {
                    member.attempts += 1;
                }
                self.fail(error, waiting).await;
                None
            }
        }
    }

    /// One attempt at one transaction.
    async fn round(
        &mut self,
        (mut held, is_kept): (Held, bool),
        end: Instant,
        waiting: &mut VecDeque<Member>,
    ) {
        if is_kept && waiting.iter().any(|member| member.request.thorough) {
            // Came after the look at who waits: the next round takes the id anew.
            return;
        }
        let (draft, members) = self.decide(waiting).await;
        if members.is_empty() {
            self.held = Some(held);
            if !waiting.is_empty() {
                sleep(LATE).await;
            }
            return self.retire(waiting);
        }
        let is_thorough = members.iter().any(|one| one.member.request.thorough);
        if !held.looked && (is_thorough || !draft.along.is_empty()) {
            if let Err(error) = self.read(&mut held.producer, true, end).await {
                again(members, waiting);
                return self.fail(error, waiting).await;
            }
            held.looked = true;
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
        self.commit(held, draft, members, waiting).await;
    }

    async fn commit(
        &mut self,
        mut held: Held,
        draft: Draft,
        members: Vec<Decided>,
        waiting: &mut VecDeque<Member>,
    ) {
        let id = write_id();
        let is_along = !draft.along.is_empty();
        let records = self.records(draft, &id);
        // From here on only the outcome of this one matters. If the round is cut before that is known, the log tells.
        self.trouble.set(None);
        self.unsure = Some(Unsure { id: id.clone(), members });
        self.doubt |= is_along;
        match held.producer.commit(records).await {
            Ok(_) => {
                // Only with all of it read may the next write decide.
                self.read_back(&id).await;
                done(self.unsure.take().map_or_else(Vec::new, |unsure| unsure.members));
                self.doubt &= !is_along;
                held.last = Some(id);
                self.held = Some(held);
                self.calm();
            }
            Err(Failure::Aborted { source }) => {
                // The end of this one may be lost like any other, and the next commit would make it visible: the id is
                // not kept.
                let members = self.unsure.take().map_or_else(Vec::new, |unsure| unsure.members);
                self.aborted(source, members, waiting).await;
            }
            // A fenced write may be in the log too: its commit was answered, the answer lost, and then a rival came.
            Err(Failure::Rebuilt { source } | Failure::Fenced { source } | Failure::Over { source }) => {
                // Whatever it was, the next round takes the id anew.
                self.pause(source, held.last.as_ref()).await;
            }
        }
    }

    /// Lets those decide again whose transaction was refused; where that is for good, the one whose fault it is fails.
    async fn aborted(
        &mut self,
        error: kafka::Error,
        mut members: Vec<Decided>,
        waiting: &mut VecDeque<Member>,
    ) {
        if !is_final(&error) {
            again(members, waiting);
            return self.fail(error, waiting).await;
        }
        if members.len() > 1 {
            members.iter_mut().for_each(|one| one.member.alone = true);
            return again(members, waiting);
        }
        for Decided { outcome, .. } in members {
            outcome.send(Outcome::Over(Ending::Failed(error.clone()))).ok();
        }
    }

    /// Takes the id, so that no write is under way any more, and reads what all of them have left.
    async fn take(&mut self, end: Instant, beside: bool) -> Result<Held, kafka::Error> {
        let mut producer = self.shards.take(Arc::clone(&self.transactional_id), Arc::new(|| true)).await?;
        self.read(&mut producer, beside, end).await?;
        let last = self.configs.read(|configs| configs.last_write().cloned());
        Ok(Held { producer, looked: beside, last })
    }

    /// Reads the topic to its end, and ends what hangs there; beside it too, if asked to.
    async fn read(
        &mut self,
        producer: &mut ShardProducer,
        beside: bool,
        end: Instant,
    ) -> Result<(), kafka::Error> {
        let also = if beside { &self.beside[..] } else { &[] };
        let waits = Waits { also, patience: PATIENCE, limit: left(end) };
        self.configs.read_settled(producer, &[PARTITION], waits).await?;
        self.doubt &= !beside;
        Ok(())
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
        let mut members: Vec<Decided> = Vec::new();
        let mut late = Vec::new();
        while draft.writes.len() < BATCH_RECORDS
            && !members.first().is_some_and(|first| first.member.alone)
            && waiting.front().is_some_and(|next| members.is_empty() || !next.alone)
            && let Some(mut member) = waiting.pop_front()
        {
            member.attempts += 1;
            let before = draft.decisions;
            let (turn, mut given) = Turn::new(draft);
            if member.give(turn) {
                timeout(TURN, &mut given.decided).await.ok();
            }
            let mut back = given.take_back();
            if back.is_none() {
                timeout(DECISION, &mut given.decided).await.ok();
                back = given.take_back();
            }
            let Some(back) = back else {
                // It has the draft, and with it what those before it have decided: they do so anew, without it.
                late.push(member);
                again(std::mem::take(&mut members), waiting);
                draft = Draft::new(self.configs.clone());
                break;
            };
            draft = back;
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
        if is_final(&error) {
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

/// Whether no further round helps. Who is fenced takes the id anew.
fn is_final(error: &kafka::Error) -> bool {
    error.retry() == Retry::Never && !matches!(error, kafka::Error::Fenced { .. })
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
