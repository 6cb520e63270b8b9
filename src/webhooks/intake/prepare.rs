//! From a delivery to the bytes Kafka gets: its records, or the dead letter that it becomes.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;

use crate::{
    model::{EncodedRecord, Error as ModelError, Outgoing},
    pipeline::{DeadLetters, Failure, Original, Preparer, Stage},
    webhooks::delivery::{Context, Delivery},
};

/// Dead letters that not even their own topic takes whole are cut into pieces of this size: less than any limit in use.
const PIECE: usize = 512 << 10;

/// What it takes to write for a connector.
#[derive(Clone)]
pub struct Ready {
    /// Makes records.
    pub preparer: Preparer,
    /// Makes dead letters.
    pub dead_letters: DeadLetters,
}

/// Who knows which connectors can be written for.
pub trait Openings: Send + Sync {
    /// The means to write for the connector that received this; `None` while its topics or schemas are not there yet, and
    /// while it is paused.
    fn ready(&self, context: &Context) -> Option<Arc<Ready>>;

    /// Returns when that may have changed.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Not now: what is missing comes by itself.
#[derive(Debug)]
pub(super) struct NotNow;

/// The records of a part. What the schema refuses becomes a dead letter.
pub(super) fn records(
    ready: &Ready,
    delivery: &Delivery,
    content: Result<Vec<Outgoing>, ModelError>,
) -> Result<Vec<EncodedRecord>, NotNow> {
    let outgoing = match content {
        Ok(outgoing) => outgoing,
        Err(error) => {
            let failure = Failure::new(Stage::Read, "model::Error", &error);
            return Ok(letters(ready, delivery, None, &failure, 1));
        }
    };
    let mut records = Vec::with_capacity(outgoing.len());
    for record in outgoing {
        match ready.preparer.prepare(&record) {
            Ok(record) => records.push(record),
            Err(error) if error.retry().is_retriable() => return Err(NotNow),
            Err(error) => {
                let failure = Failure::new(Stage::Convert, "avro::Error", &error);
                let topic = ready.preparer.topic_name(record.topic);
                records.extend(letters(ready, delivery, Some(&topic), &failure, 1));
            }
        }
    }
    Ok(records)
}

/// The dead letter of a delivery, in so many pieces.
pub(super) fn letters(
    ready: &Ready,
    delivery: &Delivery,
    destination: Option<&str>,
    failure: &Failure,
    pieces: usize,
) -> Vec<EncodedRecord> {
    let context = &delivery.context;
    let size = delivery.body.len().div_ceil(pieces.max(1)).max(1);
    let mut head = vec![
        ("tributary.received.at", Bytes::from(context.received_at.to_string())),
        ("tributary.delivery", Bytes::from(serde_json::to_vec(&**context).unwrap_or_default())),
    ];
    let letter = |number: usize| {
        let body = delivery
            .body
            .slice((number * size).min(delivery.body.len())..((number + 1) * size).min(delivery.body.len()));
        let original = Original { key: Bytes::from(context.connector.clone()), value: body, place: None };
        let mut headers = head.clone();
        if pieces > 1 {
            headers.push(("tributary.piece", Bytes::from(format!("{}/{pieces}", number + 1))));
        }
        ready.dead_letters.record(&original, destination, failure, &headers)
    };
    let letters = (0..pieces.max(1)).map(letter).collect();
    head.clear();
    letters
}

/// Pieces a body is cut into where it is refused whole.
pub(super) fn pieces(body: &[u8]) -> usize {
    body.len().div_ceil(PIECE).max(1)
}
