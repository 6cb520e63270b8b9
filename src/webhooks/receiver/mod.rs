//! The public routes: a request comes in, and is answered in time, 200 only once its delivery is durable.
//!
//! ```text
//! head ─▶ route ─▶ room for a body ─▶ body: hashed as it comes, kept up to its limit ─▶ signature ─▶ Delivery ─▶ Take ─▶ 200
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
//! - A body has [`Options::body_time`] from the request's head. The rest of the time is the [`Take`]'s.
//!
//! A sender that hangs up loses its answer, not its delivery: what was handed to the [`Take`] is seen through there.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, Request, State, rejection::PathRejection},
    response::Response,
    routing::any,
};
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use base::metrics::RefusalReason;
use model::{AccountingResource, InvoicingHook};
use server::origin;

pub use self::sources::HashLimit;
use self::{budget::Budget, deliver::Address};
use super::{
    delivery::{Delivery, Reading},
    hearing::Hearing,
    intake::{Intake, Outcome, Sinks},
    receivers::{Found, Receivers},
    signature::Keys,
};

mod answer;
mod body;
mod budget;
mod check;
mod deliver;
mod echo;
mod sources;

/// Where verified deliveries go.
pub trait Take: Send + Sync + 'static {
    /// Makes a delivery durable and says how that ended. `since` is when the head of its request was there.
    fn take(
        &self,
        delivery: Delivery,
        reading: Reading,
        since: Instant,
    ) -> impl Future<Output = Outcome> + Send;
}

impl<S: Sinks> Take for Intake<S> {
    async fn take(&self, delivery: Delivery, reading: Reading, since: Instant) -> Outcome {
        Self::take(self, delivery, reading, since).await
    }
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
    pub hearing: Hearing,
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
            hearing: Hearing::default(),
            acknowledge_time: Duration::from_secs(3),
        }
    }
}

/// The provider has asked whether a subscription's address takes deliveries, and was told so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledged {
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
pub type Noted = (Acknowledged, oneshot::Sender<()>);

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

/// Where accounting deliveries come to; the connector follows.
const ACCOUNTING: &str = "/webhooks/accounting/";
/// Where invoicing deliveries come to; the segment follows.
const INCOMING: &str = "/api/webhooks/incoming/";

/// The routes, and nothing but them. What is said to `acknowledged` is said without waiting: where nobody keeps up with it,
/// it is dropped and counted.
pub fn router<T: Take>(
    receivers: Receivers,
    take: Arc<T>,
    acknowledged: mpsc::Sender<Noted>,
    options: Options,
) -> Router {
    let budget = Budget::new(options.unverified_bytes, options.verified_bytes, options.hash_limit);
    let nobody = Keys::new([&b"in the place of a secret"[..]]);
    let echoes = Mutex::default();
    let shared = Arc::new(Shared { receivers, take, acknowledged, budget, nobody, echoes, options });
    Router::new()
        .route(&format!("{ACCOUNTING}{{connector}}"), any(accounting::<T>))
        .route(&format!("{ACCOUNTING}{{connector}}/{{resource}}"), any(accounting::<T>))
        .route(&format!("{INCOMING}{{segment}}"), any(incoming::<T>))
        .route(&format!("{INCOMING}{{segment}}/{{hook}}"), any(incoming::<T>))
        .fallback(nowhere::<T>)
        .with_state(shared)
}

/// What all requests share.
struct Shared<T> {
    receivers: Receivers,
    take: Arc<T>,
    acknowledged: mpsc::Sender<Noted>,
    budget: Arc<Budget>,
    /// What deliveries to nobody are hashed with; what comes of it is not looked at.
    nobody: Keys,
    /// When the last echo of each address was told.
    echoes: Mutex<HashMap<EchoAddress, Instant>>,
    options: Options,
}

/// A connector, and the hook whose own address it is; `None` for the shared one.
type EchoAddress = (Arc<str>, Option<InvoicingHook>);

/// The parts of a path that its route leaves open.
type Segments = Result<Path<Vec<String>>, PathRejection>;

async fn accounting<T: Take>(
    State(shared): State<Arc<Shared<T>>>,
    segments: Segments,
    request: Request,
) -> Response {
    let named = segments.ok().and_then(|Path(segments)| match &segments[..] {
        [connector] => Some((shared.receivers.accounting(connector), None)),
        [connector, name] => {
            let resource = AccountingResource::all().find(|resource| resource.name() == name);
            let resource = resource.or_else(|| AccountingResource::from_provider(name))?;
            Some((shared.receivers.accounting(connector), Some(resource)))
        }
        _ => None,
    });
    let (found, resource) = named.unwrap_or((Found::Nobody, None));
    shared.receive(found, Address::Accounting(resource), request).await
}

async fn incoming<T: Take>(
    State(shared): State<Arc<Shared<T>>>,
    segments: Segments,
    request: Request,
) -> Response {
    let named = segments.ok().and_then(|Path(segments)| match &segments[..] {
        [segment] => Some((shared.receivers.invoicing(segment), None)),
        [segment, slug] => {
            let hook = InvoicingHook::from_slug(slug)?;
            Some((shared.receivers.invoicing_hook(segment, hook), Some(hook)))
        }
        _ => None,
    });
    let (found, hook) = named.unwrap_or((Found::Nobody, None));
    shared.receive(found, Address::Invoicing(hook), request).await
}

async fn nowhere<T: Take>(State(shared): State<Arc<Shared<T>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    shared.refuse(RefusalReason::Route, &head, body).await
}

#[cfg(test)]
mod tests;
