//! The public routes: a request comes in, and is answered in time, 200 only once its delivery is durable.
//!
//! ```text
//! head ─▶ route ─▶ room for a body ─▶ body: hashed as it comes, kept up to its limit ─▶ signature ─▶ Delivery ─▶ intake ─▶ 200
//!           └ 404      └ 503              └ 408, 413, 503                                  └ 401, 503               └ 503
//! ```
//!
//! | Route | Answer |
//! |---|---|
//! | `POST /webhooks/accounting/{connector}`, also with `/{resource}` behind it | as drawn |
//! | `POST /api/webhooks/incoming/{segment}/{hook}`, the own address of a hook such as `customer-created` | as drawn |
//! | `POST /api/webhooks/incoming/{segment}`, the address that hooks may share | as drawn |
//! | `GET` to either with `?echo=GUID` | the GUID, and never anything but a GUID |
//! | `GET` to a segment of nobody's, anything else | 404 |
//!
//! - The raw bytes are verified, whatever their type or encoding. A body is hashed with two secrets at most, the one of now and the
//!   one before it. Only at the shared address, which tells no hook, the body says whose secrets to try first.
//! - Hashing is bounded for each source address that sends no valid signature: [`Options::hash_limit`].
//! - No answer has a body, but for the echo's; none sets a cookie or tells why. Whoever may not deliver gets 401, whatever
//!   the reason: also where no connector has that name, and only after the same work, so that nobody learns which there are.
//!   A connector that is stopped says so to those alone who have its secret. One that cannot be received, since its secret is
//!   not to be had, is the exception: 503 to everybody, or the provider would give it up.
//! - Memory is bounded: bytes of bodies that are not verified yet by [`Options::unverified_bytes`], of which a quarter is
//!   kept for small bodies; those of deliveries on their way by [`Options::verified_bytes`]. Above either, new requests are
//!   answered 503 before their body is read; who has been read is never turned away.
//! - A body has [`Options::body_time`] from the request's head. The rest of the time is the intake's.
//!
//! A sender that hangs up loses its answer, not its delivery: what was handed to the intake is seen through there.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use ipnet::IpNet;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use model::{AccountingResource, InvoicingHook};

pub use self::{budget::HashLimit, request::router};
use super::{
    delivery::{Delivery, DeliveryContent},
    intake::{DeliveryOutcome, Intake, ProducerFactory},
    receivers::DeliveryStats,
};

mod body;
mod budget;
mod echo;
mod request;

/// Makes a verified delivery durable and says how that ended. The time is when the head of its request was there.
pub type Accept =
    Arc<dyn Fn(Delivery, DeliveryContent, Instant) -> BoxFuture<'static, DeliveryOutcome> + Send + Sync>;

/// Hands verified deliveries to an intake.
pub fn accept_into<S: ProducerFactory>(intake: Intake<S>) -> Accept {
    Arc::new(move |delivery, content, since| {
        let intake = intake.clone();
        async move { intake.take(delivery, content, since).await }.boxed()
    })
}

/// How requests are treated.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long after its head the body of a request must be there.
    pub body_time: Duration,
    /// Whose `X-Forwarded-For` is believed; empty for nobody's.
    pub proxies: Vec<IpNet>,
    /// Bytes of bodies that are being read, over all requests.
    pub unverified_bytes: usize,
    /// Bytes that one source may have hashed without a valid signature.
    pub hash_limit: HashLimit,
    /// Bytes of verified bodies that wait for their outcome. Once there are more, new requests are turned away.
    pub verified_bytes: usize,
    /// What `Retry-After` says at least; up to two seconds are added, so that not all come back at once.
    pub retry_after: Duration,
    /// Who is told of verified deliveries that were too large; `None` for nobody.
    pub oversized: Option<mpsc::Sender<Oversized>>,
    /// Who is told of echoes that were answered; `None` for nobody.
    pub echoed: Option<mpsc::Sender<Echoed>>,
    /// Where it is noted by which subscriptions deliveries come.
    pub delivery_stats: DeliveryStats,
    /// How long the answer to an Acknowledge waits until others can know of it; then the provider is to ask again.
    pub acknowledge_time: Duration,
}

impl Default for Options {
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
            acknowledge_time: Duration::from_secs(3),
        }
    }
}

/// The provider has asked whether a subscription's address takes deliveries, and was told so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedAcknowledge {
    /// Whose address.
    pub connector: Arc<str>,
    /// The subscription.
    pub webhook_id: Option<String>,
    /// The resource it is for.
    pub resource: Option<AccountingResource>,
    /// Microseconds since 1970.
    pub received_at: i64,
}

/// An Acknowledge, and where it is told that it is durable: with the answer the provider makes the subscription active, and a
/// crash of this process must not make nobody know of it.
pub type AcknowledgeNote = (ReceivedAcknowledge, oneshot::Sender<()>);

/// A verified delivery was too large to be taken: the provider will repeat it in vain, so it is lost unless it is read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oversized {
    /// Whose it was.
    pub connector: Arc<str>,
    /// The accounting resource its address was registered for, where it was.
    pub resource: Option<AccountingResource>,
    /// Bytes of the largest body that is taken.
    pub limit: usize,
    /// Microseconds since 1970.
    pub received_at: i64,
}

/// The provider has asked for the echo of an invoicing address, and got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Echoed {
    /// Whose address.
    pub connector: Arc<str>,
    /// The hook whose own address it is; `None` for the shared one.
    pub hook: Option<InvoicingHook>,
    /// Microseconds since 1970.
    pub received_at: i64,
}

#[cfg(test)]
mod tests;
