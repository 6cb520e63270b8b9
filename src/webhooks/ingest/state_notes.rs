//! Writes what this worker observes to `{prefix}.state`: gaps, Acknowledges, echoes and heartbeats.
//!
//! The Acknowledge of a subscription may arrive at any worker: it becomes `acknowledge/{connector}/{webhookId}`, and a later one replaces
//! it. The echo of an invoicing address becomes `echo/{connector}` or `echo/{connector}/{hook}`. Heartbeats: see
//! [`heartbeat`](super::heartbeat).
//!
//! - A record is written again until Kafka has it. Gaps are on disk until then; Acknowledges are not, at most [`MAX_WAITING`] wait, and a
//!   worker that ends loses them. Their HTTP answer waits for Kafka, and without it the provider asks again. So no subscription becomes
//!   active without a record of its Acknowledge.
//! - A prefix that is not ready delays no other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use kafka::PlainWriter;
use model::{Acknowledge, Echo, EncodedRecord, Key};

use super::{
    gap_file::{Cause, GapFile, UnwrittenGap},
    heartbeat::{DueHeartbeat, Heartbeat},
    topic_readiness::TopicReadiness,
};
use crate::webhooks::{
    receiver::{AcknowledgeNote, Echoed, Oversized, ReceivedAcknowledge},
    receiver_table::Receivers,
};

/// Backoff between two tries to write.
const RETRY: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(250), longest: Duration::from_secs(10), total: None };
/// Longest time of one try.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Acknowledges that may wait to be written.
const MAX_WAITING: usize = 1_000;
/// Room for all of them and more.
pub(super) const QUEUE_BYTES: usize = 4 << 20;

/// See the module's head.
pub(super) struct StateNotes {
    pub(super) writer: PlainWriter,
    pub(super) readiness: TopicReadiness,
    pub(super) gaps: Arc<GapFile>,
    pub(super) receivers: Receivers,
    pub(super) worker: Arc<str>,
}

/// What arrives from the receiver.
pub(super) struct NoteChannels {
    pub(super) acknowledged: mpsc::Receiver<AcknowledgeNote>,
    pub(super) oversized: mpsc::Receiver<Oversized>,
    pub(super) echoed: mpsc::Receiver<Echoed>,
}

/// Acknowledges and echoes that wait, by prefix and key, with the requests that wait for them. A later one of the same subscription or
/// address replaces it.
type WaitingNotes = BTreeMap<(String, String), (Key, Value, Vec<oneshot::Sender<()>>)>;

/// A record on its way.
enum PendingNote {
    /// The acknowledge or echo of this place in [`WaitingNotes`].
    Waiting((String, String)),
    Gap(UnwrittenGap),
    Heard(DueHeartbeat),
}

impl StateNotes {
    /// Writes until it is cancelled.
    pub(super) async fn run(self, channels: NoteChannels, heartbeat: Heartbeat, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.listen(channels, heartbeat)).await;
    }

    async fn listen(&self, mut channels: NoteChannels, mut heartbeat: Heartbeat) {
        let (mut ready, mut gaps) = (self.readiness.changes(), self.gaps.changes());
        let mut receivers = self.receivers.changes();
        let mut waiting = WaitingNotes::new();
        let mut backoff = Backoff::new(RETRY, u64::from(kafka::murmur2(self.worker.as_bytes())));
        loop {
            let (due, next_heartbeat) = heartbeat.due(&self.receivers.all(), Instant::now());
            let again = match self.write(&mut waiting, &mut heartbeat, due).await {
                Ok(()) => {
                    backoff.reset();
                    None
                }
                Err(error) => {
                    tracing::debug!(error = %ErrorChain(&error), "the state topic cannot be written yet");
                    // What it has not written is sent again.
                    self.writer.abandon();
                    backoff.next_wait(Retry::Later)
                }
            };
            let pause = async move {
                match again {
                    Some(wait) => sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            let next_heartbeat = async {
                match next_heartbeat {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // The senders are in the router and in what this holds: none ends before us.
            tokio::select! {
                Some(note) = channels.acknowledged.recv() => self.acknowledge(note, &mut waiting),
                Some(note) = channels.oversized.recv() => self.oversized(note).await,
                Some(note) = channels.echoed.recv() => self.echo(&note, &mut waiting),
                _ = gaps.changed() => {}
                _ = ready.changed() => {}
                _ = receivers.changed() => {}
                // While Kafka takes nothing there is no hurry.
                () = next_heartbeat, if again.is_none() => {}
                () = pause => {}
            }
        }
    }

    fn acknowledge(&self, (note, durable): AcknowledgeNote, waiting: &mut WaitingNotes) {
        let ReceivedAcknowledge { connector, webhook_id, resource, received_at } = note;
        let webhook_id = webhook_id.unwrap_or_default();
        tracing::info!(connector = &*connector, webhook_id, "a subscription is acknowledged");
        let Some(prefix) = self.prefix(&connector) else { return };
        if waiting.len() >= MAX_WAITING {
            tracing::warn!(
                connector = &*connector,
                webhook_id,
                "an acknowledgement is not written: too many wait"
            );
            return;
        }
        let key = Acknowledge::key(&connector, &webhook_id);
        let note = Acknowledge { webhook_id, resource, received_at, worker: self.worker.to_string() };
        // Plain data: it always becomes JSON.
        let value = serde_json::to_value(note).unwrap_or_default();
        let place = (prefix, key.as_str().to_owned());
        let mut requests = waiting.remove(&place).map(|(_, _, requests)| requests).unwrap_or_default();
        // Earlier requests may have been answered by now.
        requests.retain(|waits| !waits.is_closed());
        requests.push(durable);
        waiting.insert(place, (key, value, requests));
    }

    /// No request waits for it; of one address the last echo counts.
    fn echo(&self, note: &Echoed, waiting: &mut WaitingNotes) {
        let Echoed { connector, hook, received_at } = note;
        let Some(prefix) = self.prefix(connector).filter(|_| waiting.len() < MAX_WAITING) else { return };
        let key = Echo::key(connector, *hook);
        let echo = Echo { received_at: *received_at, worker: self.worker.to_string() };
        // Plain data: it always becomes JSON.
        let value = serde_json::to_value(echo).unwrap_or_default();
        waiting.insert((prefix, key.as_str().to_owned()), (key, value, Vec::new()));
    }

    async fn oversized(&self, note: Oversized) {
        let Oversized { connector, resource, limit, received_at } = note;
        let Some(prefix) = self.prefix(&connector) else { return };
        let of = resource.map_or_else(String::new, |resource| format!(" of {}", resource.name()));
        let detail = format!("a verified delivery{of} was larger than {limit} bytes and was refused");
        self.gaps.open(&connector, &prefix, Cause::Oversized, received_at, &detail).await;
    }

    fn prefix(&self, connector: &str) -> Option<String> {
        let all = self.receivers.all();
        all.iter()
            .find(|receiver| &*receiver.connector == connector)
            .map(|receiver| receiver.prefix.to_string())
    }

    /// Writes what can be written now.
    async fn write(
        &self,
        waiting: &mut WaitingNotes,
        heartbeat: &mut Heartbeat,
        due: Vec<DueHeartbeat>,
    ) -> Result<(), kafka::Error> {
        let mut notes: Vec<(PendingNote, EncodedRecord)> = Vec::new();
        for (place, (key, value, _)) in &*waiting {
            notes.extend(
                self.record(&place.0, key, value).map(|record| (PendingNote::Waiting(place.clone()), record)),
            );
        }
        for gap in self.gaps.unwritten() {
            let record = self.record(&gap.prefix, &gap.key(), &gap.value());
            notes.extend(record.map(|record| (PendingNote::Gap(gap), record)));
        }
        for due in due {
            let record = self.record(&due.prefix, &due.key, &due.value);
            notes.extend(record.map(|record| (PendingNote::Heard(due), record)));
        }
        // Each by its own report: a topic that takes nothing holds up only what is for it.
        let until = Instant::now() + WRITE_LIMIT;
        let sent: Vec<_> = notes.into_iter().map(|(note, record)| (note, self.writer.send(record))).collect();
        let (mut failed, mut opened) = (None, Vec::new());
        for (note, sent) in sent {
            match (report(sent, until).await, note) {
                (Err(error), _) => failed = Some(error),
                (Ok(()), PendingNote::Waiting(place)) => {
                    let requests =
                        waiting.remove(&place).map(|(_, _, requests)| requests).unwrap_or_default();
                    // Those who have answered meanwhile wait no more.
                    requests.into_iter().for_each(|waits| waits.send(()).unwrap_or_default());
                }
                (Ok(()), PendingNote::Gap(gap)) => opened.push(gap),
                (Ok(()), PendingNote::Heard(due)) => heartbeat.done(due),
            }
        }
        if !opened.is_empty() {
            self.gaps.written(&opened).await;
        }
        failed.map_or(Ok(()), Err)
    }

    /// `None` while the prefix is not open.
    fn record(&self, prefix: &str, key: &Key, value: &Value) -> Option<EncodedRecord> {
        Some(self.readiness.preparer(prefix)?.state(key, Some(Bytes::from(value.to_string()))))
    }
}

/// Waits for the report on a record that was sent, or not.
async fn report(
    sent: Result<kafka::DeliveryFuture, kafka::Error>,
    until: Instant,
) -> Result<(), kafka::Error> {
    let late =
        |_| kafka::Error::Deadline { action: "write to the state topic".to_owned(), limit: WRITE_LIMIT };
    timeout_at(until, sent?).await.map_err(late)?.map(drop)
}
