//! The records of a part as bytes: events, or the dead letter of what cannot be read or encoded.

use std::{future::Future, iter, pin::Pin, sync::Arc};

use model::{EncodedRecord, Error as ModelError, Outgoing, Value};

use crate::{
    publish::{DeadLetters, Preparer, PublishFailure, PublishStage},
    webhooks::{
        dead_letter,
        delivery::{Delivery, DeliveryContext},
    },
};

/// What it takes to write for a connector.
#[derive(Clone)]
pub struct ReadyTopics {
    /// Makes records.
    pub preparer: Preparer,
    /// Makes dead letters.
    pub dead_letters: DeadLetters,
}

/// Knows whether the topics and schemas of a connector are ready. Tests replace it.
pub trait PublishReadiness: Send + Sync {
    /// What it takes to write for the connector that received this; `None` while its topics or schemas are not ready, and while it is
    /// paused.
    fn ready(&self, context: &DeliveryContext) -> Option<Arc<ReadyTopics>>;

    /// The topics of this are gone: looks for them, or creates them, again.
    fn recheck(&self, context: &DeliveryContext);

    /// Returns when the answer may have changed.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A record for Kafka.
#[derive(Debug)]
pub(super) struct PreparedRecord {
    pub(super) record: EncodedRecord,
    pub(super) kind: RecordKind,
}

/// What a record counts as once Kafka has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// An event; an accounting one with its resource and outcome, by which it is counted.
    Value(Option<(&'static str, &'static str)>),
    /// A dead letter, or the first piece of one; for an error of this class.
    Letter(PublishStage, &'static str),
    /// Another piece.
    Piece,
}

/// The records of a part; `None`: not possible now, try again later. What the schema refuses becomes a dead letter.
pub(super) fn records(
    ready: &ReadyTopics,
    delivery: &Delivery,
    content: Result<Vec<Outgoing>, ModelError>,
) -> Option<Vec<PreparedRecord>> {
    let outgoing = match content {
        Ok(outgoing) => outgoing,
        Err(error) => {
            let failure = PublishFailure::new(PublishStage::Read, error.class(), &error);
            return Some(letters(ready, delivery, None, &failure, 1));
        }
    };
    let mut records = Vec::with_capacity(outgoing.len());
    let mut refused = Vec::new();
    for record in outgoing {
        match ready.preparer.prepare(&record) {
            Ok(encoded) => {
                records.push(PreparedRecord { record: encoded, kind: RecordKind::Value(counted_as(&record)) })
            }
            Err(error) if error.retry().is_retriable() => return None,
            Err(error) => {
                refused.push((record, PublishFailure::new(PublishStage::Convert, error.class(), &error)))
            }
        }
    }
    if let Some((record, failure)) = refused.first() {
        // Each letter has the whole body, so one is enough for several refused records.
        let meant = (refused.len() == 1).then_some(record);
        records.extend(letters(ready, delivery, meant, failure, 1));
    }
    Some(records)
}

/// Resource and outcome of an accounting event.
fn counted_as(record: &Outgoing) -> Option<(&'static str, &'static str)> {
    match record.value.as_deref() {
        Some(Value::AccountingEvent(event)) => Some((event.resource.name(), event.outcome())),
        _ => None,
    }
}

/// The dead letter of a delivery, ready to be sent; see [`dead_letter::records`].
pub(super) fn letters(
    ready: &ReadyTopics,
    delivery: &Delivery,
    meant: Option<&Outgoing>,
    failure: &PublishFailure,
    pieces: usize,
) -> Vec<PreparedRecord> {
    let topic = meant.map(|record| ready.preparer.topic_name(record.topic));
    let meant = meant.map(|record| &*record.meta.id).zip(topic.as_deref());
    let records = dead_letter::records(&ready.dead_letters, delivery, meant, failure, pieces);
    let first = iter::once(RecordKind::Letter(failure.stage, failure.class));
    let kinds = first.chain(iter::repeat(RecordKind::Piece));
    records.into_iter().zip(kinds).map(|(record, kind)| PreparedRecord { record, kind }).collect()
}

#[cfg(test)]
mod tests {
    use base::metrics::ALL;
    use model::{AccountingEvent, AccountingResource, Origin, Reception, RecordMeta};

    use super::*;

    #[test]
    fn every_event_of_every_resource_has_its_series() {
        let metric = ALL.iter().find(|metric| metric.name == "tributary_accounting_events_total").unwrap();
        let values = |label: &str| metric.labels.iter().find(|(key, _)| *key == label).unwrap().1;
        let reception = Reception { connector: "hooks", received_at: 0 };
        let mut outcomes = Vec::new();

        for resource in AccountingResource::all() {
            for name in ["XCreated", "XUpdated", "XDeleted", "XDisabled", "ErrorOccurred", "XMoved"] {
                let json = format!(
                    r#"{{"EventType":{{"EventType":"{name}"}},"TenantId":"7","JsonData":"{{\"CorrelationId\":\"c\"}}"}}"#
                );
                let event = AccountingEvent::from_json(json.as_bytes(), resource, reception).unwrap();
                let outgoing = Outgoing::new(event.into(), RecordMeta::new("o", Origin::Webhook)).unwrap();

                let (entity, outcome) = counted_as(&outgoing).unwrap();

                assert!(values("entity").contains(&entity), "{entity}");
                outcomes.push(outcome);
            }
        }
        assert_eq!(outcomes[..6], *values("outcome"), "no outcome is never counted");
        assert_eq!(values("entity").len(), AccountingResource::all().count());
    }
}
