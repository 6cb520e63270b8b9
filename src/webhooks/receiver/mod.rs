//! The public routes: each request is answered in time, and a delivery gets 200 only once it is durable.
//!
//! ```text
//! head ─▶ route ─▶ source, header ─▶ room for a body ─▶ body: hashed as it arrives ─▶ signature ─▶ Delivery ─▶ intake ─▶ 200
//!           └ 404, 503  └ 401             └ 503             └ 400, 408, 413, 503          └ 401, 413, 503   │        └ 503
//!                                                                                   Acknowledge ─▶ state topic ─▶ 200
//!                                                                                                      └ 503
//! ```
//! At the shared invoicing address the whole body is read first, and then hashed with the secrets of the entity that it names.
//!
//! | Route | Answer |
//! |---|---|
//! | `POST /webhooks/accounting/{connector}`, also with `/{resource}` behind it | as drawn |
//! | `POST /api/webhooks/incoming/{segment}/{hook}`, the own address of a hook such as `customer-created` | as drawn |
//! | `POST /api/webhooks/incoming/{segment}`, the address that hooks may share | as drawn |
//! | `GET` to either invoicing address with `?echo=GUID` | the GUID, and never anything but a GUID; 503 while every connector there is stopped |
//! | `GET` to either invoicing address without exactly one GUID | 400 |
//! | `GET` to an unknown segment, anything else | 404 |
//!
//! - An Acknowledge of a connector that manages its subscriptions gets 200 only once it is in Kafka, otherwise 503. If the connector does
//!   not manage them, it gets 200 in any case.
//! - The raw bytes are verified, whatever their type or encoding. An accounting body, and one at the own address of a hook, is hashed with
//!   at most two secrets, the current and the previous one. The shared address names no hook: there the secrets of the entity that the
//!   body names are tried first, at most six, then all others if the body has at most 32 KiB. With `invoicing.secret.scope=connector`
//!   two more are tried first.
//! - Connectors that share an invoicing segment are distinguished by their secrets: a body is hashed with those of each connector that takes
//!   deliveries of its address and source. Limits, state and statistics are those of the connector that verifies it. A delivery that
//!   none of them verifies is answered 401, or 503 while another connector of the segment cannot be received.
//! - Hashing is bounded for each source address that sends no valid signature: [`ReceiverOptions::hash_limit`].
//! - Only the echo has a body, no answer sets a cookie, and none gives a reason. A sender that may not deliver gets 401, whatever the
//!   reason; an unknown connector gets it after the same work. So without a valid signature a POST does not show whether a connector runs,
//!   is stopped or is unknown. It shows a faulty one, by its 503. A GET to an invoicing address shows whether the segment exists and, if
//!   none of its connectors takes deliveries there, whether one is stopped or faulty.
//! - Both refusals can come before the body is read: 401 for a source address that is not listed or a missing signature, 503 where the
//!   secret is not available on this worker or the configurations are not loaded, because the provider disables an address that answers
//!   401.
//! - Memory is bounded: unverified bodies by [`ReceiverOptions::unverified_bytes`], a quarter of which is reserved for small bodies; deliveries
//!   that wait for their outcome by [`ReceiverOptions::verified_bytes`]. Above either limit new requests are answered 503 before their body is
//!   read. A body that grows beyond the first limit while it is read is refused too; one that has been read is not.
//! - A body must arrive within [`ReceiverOptions::body_time`] after the request's head. The rest of the time belongs to the intake.
//!
//! A sender that hangs up loses its answer, not its delivery: the intake completes what it was given.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot};

use model::{AccountingResource, InvoicingHook};

pub use self::{budget::HashLimit, request::router};
use super::{intake::AnswerTimes, receiver_table::DeliveryStats};

mod request;

mod address;
mod budget;

mod body;
mod echo;

/// How requests are treated.
#[derive(Debug, Clone)]
pub struct ReceiverOptions {
    /// Time from the head of a request until its body must have arrived.
    pub body_time: Duration,
    /// Proxies whose `X-Forwarded-For` is trusted; empty: none.
    pub proxies: Vec<IpNet>,
    /// Bytes of bodies that are being read, over all requests.
    pub unverified_bytes: usize,
    /// Bytes that are hashed for one source without a valid signature.
    pub hash_limit: HashLimit,
    /// Bytes of verified bodies that wait for their outcome. Above it new requests are answered 503.
    pub verified_bytes: usize,
    /// Minimum of `Retry-After`; up to two seconds are added, so that not all senders come back at once.
    pub retry_after: Duration,
    /// Gets verified deliveries that were too large.
    pub oversized: Option<mpsc::Sender<Oversized>>,
    /// Gets echoes that were answered.
    pub echoed: Option<mpsc::Sender<Echoed>>,
    /// Counts durable deliveries by subscription.
    pub delivery_stats: DeliveryStats,
    /// Time from the head of a request until an Acknowledge must be in Kafka; then 503, so that the provider asks again, if the connector
    /// manages its subscriptions, and 200 if not.
    pub acknowledge_time: Duration,
}

impl Default for ReceiverOptions {
    fn default() -> Self {
        Self {
            body_time: Duration::from_millis(1_500),
            proxies: Vec::new(),
            unverified_bytes: 32 << 20,
            hash_limit: HashLimit::default(),
            verified_bytes: 64 << 20,
            retry_after: Duration::from_secs(5),
            oversized: None,
            echoed: None,
            delivery_stats: DeliveryStats::default(),
            acknowledge_time: AnswerTimes::default().answer_by,
        }
    }
}

/// The provider asked whether the address of a subscription takes deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedAcknowledge {
    /// The connector.
    pub connector: Arc<str>,
    /// The subscription.
    pub webhook_id: Option<String>,
    /// The resource it is for.
    pub resource: Option<AccountingResource>,
    /// Microseconds since 1970.
    pub received_at: i64,
}

/// An Acknowledge, and the channel that reports it durable. The provider activates the subscription once it gets the answer, so the
/// Acknowledge must survive a crash before that.
pub type AcknowledgeNote = (ReceivedAcknowledge, oneshot::Sender<()>);

/// A verified delivery was too large. Every repetition is refused as well, so its event is lost unless it is read from the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oversized {
    /// The connector.
    pub connector: Arc<str>,
    /// The accounting resource its address names, if any.
    pub resource: Option<AccountingResource>,
    /// The connector's body limit in bytes.
    pub limit: usize,
    /// Microseconds since 1970.
    pub received_at: i64,
}

/// The provider asked for the echo of an invoicing address, and got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Echoed {
    /// The connector.
    pub connector: Arc<str>,
    /// The hook whose own address it is; `None`: the shared address.
    pub hook: Option<InvoicingHook>,
    /// Microseconds since 1970.
    pub received_at: i64,
}

#[cfg(test)]
mod tests;
