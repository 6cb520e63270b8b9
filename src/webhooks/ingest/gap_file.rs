//! Gaps that this worker finds: deliveries that may be missing.
//!
//! ```text
//! cause ─▶ gaps.json (fsync) ─▶ {prefix}.state: gap/{connector}/{cause}/{time} ─▶ removed from the file
//! ```
//!
//! | Cause | What happened |
//! |---|---|
//! | `spool` | a database of the spool was moved aside, part of it cannot be read, or this version cannot read it: acknowledged deliveries may be in it |
//! | `stopped` | the connector was stopped: its deliveries are answered 503, and the provider gives up on them in time |
//! | `oversized` | a verified delivery was larger than `body.limit.bytes`, or `invoicing.body.limit.bytes` under a shared segment |
//!
//! A stop is one gap, whichever workers report it: all of them know when it was ordered, and that is its name.
//!
//! A gap survives a crash until Kafka has it. A loss in the spool concerns every connector that the worker receives; it is
//! kept until the worker knows one. The reconciler sets the end of the gap and requests a repair; a task of the prefix's `RecordSource`
//! reads the records again and sets the final state of the gap.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use base::{durable, metrics};
pub(super) use model::GapCause as Cause;
use model::{GapState, Key, Moment};

const FILE: &str = "gaps.json";
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Gaps, or losses without a connector, that may wait to be written. Above it the last of a kind becomes wider instead, so that the
/// file has at most one more for each connector and cause.
const MAX_WAITING: usize = 1_000;

/// Deliveries of a connector that may be missing, and the prefix whose state topic is to have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnwrittenGap {
    pub(super) prefix: String,
    #[serde(flatten)]
    pub(super) gap: model::Gap,
}

/// A loss in the spool whose connectors are not known yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpoolLoss {
    from: i64,
    detail: String,
    found_at: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct GapFileContent {
    gaps: Vec<UnwrittenGap>,
    losses: Vec<SpoolLoss>,
}

/// Connector, prefix and cause.
type GapKind = (String, String, Cause);

/// The last gap of a kind.
#[derive(Debug, Clone, Copy)]
struct LastGap {
    from: i64,
    opened_at: i64,
}

impl LastGap {
    /// Whether another gap would add nothing.
    fn covers(self, gap: &UnwrittenGap) -> bool {
        let gap = &gap.gap;
        let is_near = match gap.cause {
            // Each is known by the moment it was ordered.
            Cause::Stopped => self.opened_at == gap.opened_at,
            _ => self.opened_at.abs_diff(gap.opened_at) < model::Gap::COVERS_MICROS.unsigned_abs(),
        };
        is_near && self.from <= gap.from
    }
}

/// The gaps that are not in Kafka yet.
#[derive(Debug)]
pub(super) struct GapFile {
    path: PathBuf,
    worker: Arc<str>,
    content: Mutex<GapFileContent>,
    /// The last of each kind, also of those that Kafka has by now.
    last: Mutex<BTreeMap<GapKind, LastGap>>,
    /// The connectors that are received, by name with their prefix.
    received: Mutex<Vec<(String, String)>>,
    /// One writer at a time.
    writing: tokio::sync::Mutex<()>,
    changed: watch::Sender<()>,
}

impl UnwrittenGap {
    fn kind(&self) -> GapKind {
        (self.gap.connector.clone(), self.prefix.clone(), self.gap.cause)
    }

    /// Which it is, among all of its prefix.
    pub(super) fn key(&self) -> Key {
        self.gap.key()
    }

    /// What the state topic says of it.
    pub(super) fn value(&self) -> Value {
        // Plain data: it always becomes JSON.
        serde_json::to_value(&self.gap).unwrap_or_default()
    }
}

impl GapFile {
    /// Loads what an earlier run could not write. Blocks.
    pub(super) fn load(state_dir: &Path, worker: Arc<str>) -> Self {
        let path = state_dir.join(FILE);
        let read = || -> io::Result<GapFileContent> {
            let content = durable::read(&path, MAX_FILE_BYTES)?;
            Ok(content.map(|content| serde_json::from_slice(&content)).transpose()?.unwrap_or_default())
        };
        let content = read().unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "gaps that an earlier run found cannot be read");
            GapFileContent::default()
        });
        let (writing, changed) = (tokio::sync::Mutex::default(), watch::Sender::new(()));
        let (content, last, received) = (Mutex::new(content), Mutex::default(), Mutex::default());
        let gaps = Self { path, worker, content, last, received, writing, changed };
        metrics::gaps_unwritten(gaps.content.lock().gaps.len());
        gaps
    }

    /// Opens a gap of this connector.
    pub(super) async fn open(&self, connector: &str, prefix: &str, cause: Cause, from: i64, detail: &str) {
        if self.add(connector, prefix, cause, from, detail, Moment::now().micros()) {
            self.save().await;
        }
    }

    /// Opens the gap of a stop that was ordered at this time.
    pub(super) async fn stopped(&self, connector: &str, prefix: &str, at: i64) {
        let detail = "the connector was stopped: its deliveries are answered 503 until it runs again";
        if self.add(connector, prefix, Cause::Stopped, at, detail, at) {
            self.save().await;
        }
    }

    /// Opens a gap of every connector for acknowledged deliveries that are lost. Returns whether it survives a crash.
    pub(super) async fn lost(&self, from: SystemTime, detail: String) -> bool {
        self.lose(SpoolLoss { from: Moment::from(from).micros(), detail, found_at: Moment::now().micros() })
            .await
    }

    /// Opens a gap of every connector for deliveries that wait for another version, the oldest since `since`. Finding them again
    /// opens no further gap.
    pub(super) async fn unusable(&self, since: SystemTime, detail: String) {
        let since = Moment::from(since).micros();
        self.lose(SpoolLoss { from: since, detail, found_at: since }).await;
    }

    async fn lose(&self, loss: SpoolLoss) -> bool {
        {
            let mut content = self.content.lock();
            match content.losses.get_mut(MAX_WAITING - 1) {
                None => content.losses.push(loss),
                Some(last) => {
                    let (from, found_at) = (last.from.min(loss.from), last.found_at.max(loss.found_at));
                    *last = SpoolLoss { from, found_at, ..loss };
                }
            }
        }
        let received = self.received.lock().clone();
        if received.is_empty() { self.save().await } else { self.assign(&received).await }
    }

    /// Sets the connectors that are received, by name with their prefix, and opens the gaps of earlier losses for them. Returns whether
    /// these survive a crash.
    pub(super) async fn assign(&self, connectors: &[(String, String)]) -> bool {
        *self.received.lock() = connectors.to_vec();
        let losses = if connectors.is_empty() { Vec::new() } else { self.content.lock().losses.clone() };
        for loss in &losses {
            for (connector, prefix) in connectors {
                self.add(connector, prefix, Cause::Spool, loss.from, &loss.detail, loss.found_at);
            }
        }
        if losses.is_empty() {
            return true;
        }
        self.content.lock().losses.retain(|loss| !losses.contains(loss));
        self.save().await
    }

    /// The gaps that Kafka does not have yet.
    pub(super) fn unwritten(&self) -> Vec<UnwrittenGap> {
        self.content.lock().gaps.clone()
    }

    /// Removes gaps that Kafka has.
    pub(super) async fn written(&self, gaps: &[UnwrittenGap]) {
        for gap in gaps {
            metrics::gap_written(gap.gap.cause.name());
        }
        self.content.lock().gaps.retain(|gap| !gaps.contains(gap));
        self.save().await;
    }

    /// Changes with every new gap.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn add(
        &self,
        connector: &str,
        prefix: &str,
        cause: Cause,
        from: i64,
        detail: &str,
        opened_at: i64,
    ) -> bool {
        let gap = model::Gap {
            connector: connector.to_owned(),
            cause,
            target: None,
            company: None,
            from,
            to: None,
            detail: detail.to_owned(),
            opened_at,
            worker: self.worker.to_string(),
            state: GapState::Open,
        };
        let mut gap = UnwrittenGap { prefix: prefix.to_owned(), gap };
        {
            let mut last = self.last.lock();
            if last.get(&gap.kind()).is_some_and(|last| last.covers(&gap)) {
                return false;
            }
            last.insert(gap.kind(), LastGap { from, opened_at });
        }
        let mut content = self.content.lock();
        // One that an earlier run has found may wait still.
        let is_known =
            content.gaps.iter().any(|known| known.prefix == gap.prefix && known.key() == gap.key());
        if is_known {
            return false;
        }
        let is_alike = |known: &UnwrittenGap| known.kind() == gap.kind();
        if content.gaps.len() >= MAX_WAITING
            && let Some(last) = content.gaps.iter().rposition(is_alike)
        {
            // With a later time it is another record: Kafka may have the replaced one by now, and its repair may run.
            let replaced = content.gaps.remove(last).gap;
            gap.gap.from = from.min(replaced.from);
            gap.gap.opened_at = opened_at.max(replaced.opened_at + 1);
        }
        tracing::error!(
            connector,
            cause = cause.name(),
            gap = gap.gap.id(),
            detail,
            "opened a gap: deliveries may be missing"
        );
        content.gaps.push(gap);
        true
    }

    /// Writes the file. Returns whether that worked; if not, the gaps are only in memory.
    async fn save(&self) -> bool {
        let writing = self.writing.lock().await;
        let content = self.content.lock().clone();
        metrics::gaps_unwritten(content.gaps.len());
        let path = self.path.clone();
        let write = move || durable::replace(&path, &serde_json::to_vec_pretty(&content)?);
        let written = durable::off_runtime(write).await;
        drop(writing);
        if let Err(error) = &written {
            let path = self.path.display();
            tracing::error!(%path, %error, "gaps are not kept: a crash before Kafka has them would forget them");
        }
        self.changed.send_replace(());
        written.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(directory: &Path) -> GapFile {
        GapFile::load(directory, "worker:1".into())
    }

    #[tokio::test]
    async fn a_gap_outlives_the_process_until_kafka_has_it() {
        let directory = tempfile::tempdir().unwrap();
        gaps(directory.path()).open("hooks", "acme", Cause::Stopped, 5, "was stopped").await;

        let kept = gaps(directory.path()).unwritten();
        gaps(directory.path()).written(&kept).await;

        assert_eq!(kept.len(), 1);
        let value = kept[0].value();
        assert!(kept[0].key().as_str().starts_with("gap/hooks/stopped/"), "{value}");
        assert_eq!(
            (&value["from"], &value["state"], &value["worker"]),
            (&5.into(), &"open".into(), &"worker:1".into())
        );
        assert!(gaps(directory.path()).unwritten().is_empty());
    }

    #[test]
    fn a_gap_of_an_earlier_version_is_still_written() {
        let directory = tempfile::tempdir().unwrap();
        let kept = r#"{"gaps":[{"connector":"hooks","prefix":"acme","cause":"oversized","from":5,"detail":"9 bytes",
            "openedAt":7,"worker":"worker:1"}],"losses":[]}"#;
        std::fs::write(directory.path().join(FILE), kept).unwrap();

        let gaps = gaps(directory.path()).unwritten();

        assert_eq!((gaps.len(), gaps[0].key().as_str()), (1, "gap/hooks/oversized/7"));
        assert_eq!(gaps[0].value()["state"], "open");
    }

    #[tokio::test]
    async fn a_loss_becomes_a_gap_of_every_connector_once_known() {
        let directory = tempfile::tempdir().unwrap();
        gaps(directory.path()).lost(SystemTime::now(), "moved aside".to_owned()).await;
        let gaps = gaps(directory.path());

        gaps.assign(&[]).await;
        let unknown = gaps.unwritten();
        let both = [("a".to_owned(), "one".to_owned()), ("b".to_owned(), "two".to_owned())];
        gaps.assign(&both).await;
        gaps.assign(&both).await;

        assert!(unknown.is_empty());
        let found: Vec<_> = gaps.unwritten().into_iter().map(|one| (one.gap.connector, one.prefix)).collect();
        assert_eq!(found, both);
    }

    #[tokio::test]
    async fn an_earlier_loss_is_another_gap() {
        let directory = tempfile::tempdir().unwrap();
        let gaps = gaps(directory.path());
        gaps.assign(&[("hooks".to_owned(), "acme".to_owned())]).await;
        let moment = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(5);

        gaps.lost(SystemTime::now(), "damaged".to_owned()).await;
        for _ in 0..3 {
            gaps.unusable(moment, "of another version".to_owned()).await;
        }
        let again = GapFile::load(directory.path(), "worker:1".into());
        again.assign(&[("hooks".to_owned(), "acme".to_owned())]).await;
        again.unusable(moment, "of another version".to_owned()).await;

        for found in [gaps.unwritten(), again.unwritten()] {
            assert_eq!(found.len(), 2, "{found:?}");
            assert_eq!(found[1].key().as_str(), "gap/hooks/spool/5000000");
        }
    }

    #[tokio::test]
    async fn a_stop_is_one_gap_whichever_workers_report_it() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let workers = [(here.path(), "worker:1"), (there.path(), "worker:2")];
        let mut keys = std::collections::BTreeSet::new();

        for (directory, name) in workers {
            let gaps = GapFile::load(directory, name.into());
            for at in [7_000, 7_000, 9_000] {
                gaps.stopped("hooks", "acme", at).await;
            }
            keys.extend(gaps.unwritten().iter().map(|gap| gap.key().as_str().to_owned()));
            assert_eq!(gaps.unwritten().len(), 2);
        }

        assert_eq!(
            keys.into_iter().collect::<Vec<_>>(),
            ["gap/hooks/stopped/7000", "gap/hooks/stopped/9000"]
        );
    }

    #[tokio::test]
    async fn gaps_and_losses_above_the_limit_widen_the_last_one() {
        let directory = tempfile::tempdir().unwrap();
        let gaps = gaps(directory.path());
        let minute = |number: usize| i64::try_from(number).unwrap() * 60_000_000;
        let loss = |number: usize| SpoolLoss {
            from: minute(2 * MAX_WAITING - number),
            detail: format!("loss {number}"),
            found_at: minute(2 * MAX_WAITING + number),
        };
        gaps.content.lock().losses = (1..=MAX_WAITING).map(loss).collect();

        assert!(gaps.lose(loss(MAX_WAITING + 1)).await);
        gaps.assign(&[("hooks".to_owned(), "acme".to_owned())]).await;
        gaps.stopped("hooks", "acme", minute(1)).await;
        gaps.lose(loss(MAX_WAITING + 2)).await;

        let kept = GapFile::load(directory.path(), "worker:1".into()).unwritten();
        assert_eq!(kept.len(), MAX_WAITING + 1, "a kind of which none waits is added");
        let last = &kept.last().unwrap().gap;
        assert_eq!(
            (last.cause, last.from, last.opened_at),
            (Cause::Spool, minute(MAX_WAITING - 2), minute(3 * MAX_WAITING + 2))
        );
    }

    #[test]
    fn a_gap_covers_further_losses_for_a_minute() {
        let directory = tempfile::tempdir().unwrap();
        let gaps = gaps(directory.path());
        let opens = |at| gaps.add("hooks", "acme", Cause::Oversized, at, "9 bytes", at);

        let opened = [0, 59_999_999, 60_000_000].map(opens);

        assert_eq!(opened, [true, false, true]);
    }

    #[tokio::test]
    async fn a_gap_covers_repetitions_and_each_cause_has_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let gaps = gaps(directory.path());

        for _ in 0..3 {
            gaps.open("hooks", "acme", Cause::Oversized, 1, "9 bytes").await;
        }
        gaps.open("hooks", "acme", Cause::Stopped, 1, "was stopped").await;
        gaps.open("other", "acme", Cause::Oversized, 1, "9 bytes").await;

        assert_eq!(gaps.unwritten().len(), 3);
    }
}
