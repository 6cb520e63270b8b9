//! Reports to the owner of a grant that an API refused its access token, or that it has expired.
//!
//! - However many requests are refused with one token, it is reported once, and again after a while if requests are still
//!   refused: the owner may have read the refusal of an older token instead.
//! - A report never blocks: the request has a deadline, and Kafka may be unavailable.
//!
//! On failure the next refused request reports again.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use base::retry::ErrorChain;
use kafka::{Kafka, PlainWriter};
use model::EncodedRecord;

use super::{
    GrantContext, RefusalReport,
    table::{RefusedToken, refused_key},
    view::LocalGrant,
};

/// Limit on queued reports, in bytes.
const QUEUE_BYTES: usize = 1 << 20;
/// A report is repeated after this long, if it still holds.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// See the module head.
pub(super) struct RefusalReporter(PlainWriter);

impl GrantContext {
    /// Reports to the owner of a grant that its access token was refused or has expired. Does not block.
    pub(super) fn refuse(&self, local: &Arc<LocalGrant>, login: &str, serial: u64) {
        let report = RefusalReport { login: login.to_owned(), serial, at: Instant::now() };
        let refused = RefusedToken { serial, login: login.to_owned(), worker: self.worker_id.to_string() };
        let Ok(value) = serde_json::to_vec(&refused) else { return };
        let partition = self.store.place(&local.name);
        let record = self.store.record(&refused_key(&local.name), partition, Some(value.into()));
        self.refusals.send(local, report, record);
    }
}

impl RefusalReporter {
    pub(super) fn new(kafka: &Kafka) -> Result<Self, kafka::Error> {
        let writer = PlainWriter::new(kafka, QUEUE_BYTES);
        writer.connect()?;
        Ok(Self(writer))
    }

    /// Sends a report, unless an earlier one covers it.
    fn send(&self, local: &Arc<LocalGrant>, report: RefusalReport, record: EncodedRecord) {
        {
            let mut reported = local.reported.lock();
            if reported.as_ref().is_some_and(|before| before.covers(&report)) {
                return;
            }
            *reported = Some(report.clone());
        }
        let local = Arc::clone(local);
        let failed = move |error: kafka::Error| {
            tracing::warn!(grant = local.name, error = %ErrorChain(&error), "could not report a refused token; the next refusal reports it again");
            // Unless another report was sent since.
            local.reported.lock().take_if(|last| *last == report);
        };
        match self.0.send(record) {
            Ok(delivery) => {
                drop(tokio::spawn(async move { delivery.await.map(drop).unwrap_or_else(failed) }))
            }
            Err(error) => failed(error),
        }
    }
}

impl RefusalReport {
    /// Whether `other` need not be sent after this report.
    fn covers(&self, other: &Self) -> bool {
        self.login == other.login && self.serial >= other.serial && other.at < self.at + REPEAT_INTERVAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logins::view::GrantView;

    fn report(login: &str, serial: u64, at: Instant) -> RefusalReport {
        RefusalReport { login: login.to_owned(), serial, at }
    }

    #[test]
    fn a_token_is_reported_once_per_interval() {
        let now = Instant::now();
        let before = report("first", 57, now);

        assert!(before.covers(&report("first", 57, now)) && before.covers(&report("first", 56, now)));
        assert!(!before.covers(&report("first", 57, now + REPEAT_INTERVAL)));
        assert!(!before.covers(&report("first", 58, now)));
        assert!(!before.covers(&report("second", 1, now)), "the login after an unreadable one");
    }

    #[tokio::test]
    async fn fifty_reports_send_one_record_without_kafka() {
        let kafka = Kafka::plaintext("127.0.0.1:1");
        let (refusals, local) =
            (RefusalReporter::new(&kafka).unwrap(), Arc::new(LocalGrant::new("acc", GrantView::Unread)));
        let record = EncodedRecord::new(&"grants".into(), 0, "refused/acc", None);

        for _ in 0..50 {
            refusals.send(&local, report("first", 1, Instant::now()), record.clone());
        }

        assert_eq!(refusals.0.outstanding(), 1);
    }
}
