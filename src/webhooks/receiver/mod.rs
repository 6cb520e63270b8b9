//! The public routes: a request comes in, and is answered in time, 200 only once its delivery is durable.
//!
//! ```text
//! head ─▶ route ─▶ room for a body ─▶ body: hashed as it comes, kept up to its limit ─▶ signature ─▶ Delivery ─▶ Take ─▶ 200
//!           └ 404      └ 503              └ 408, 413                                       └ 401                    └ 503
//! ```
//!
//! | Route | Answer |
//! |---|---|
//! | `POST /webhooks/accounting/{connector}`, also with `/{resource}` behind it | as drawn |
//! | `POST /api/webhooks/incoming/{segment}` | as drawn |
//! | `GET /api/webhooks/incoming/{segment}?echo=GUID` | the GUID, and never anything but a GUID |
//! | anything else | 404 |
//!
//! - Nothing looks into a body that was not verified: not its type, not its encoding. What is verified are the raw bytes.
//! - No answer has a body, but for the echo's; none sets a cookie or tells why. Whoever may not deliver gets 401, whatever
//!   the reason.
//! - Memory is bounded: bytes of bodies that are not verified yet by [`Options::unverified_bytes`], of which a quarter is
//!   kept for small bodies; those of deliveries on their way by [`Options::verified_bytes`]. Above either, new requests are
//!   answered 503 before their body is read; who has been read is never turned away.
//! - A body has [`Options::body_time`] from the request's head. The rest of the time is the [`Take`]'s.
//!
//! A sender that hangs up loses its answer, not its delivery: what was handed to the [`Take`] is seen through there.

use std::{
    future::Future,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path, Request, State, rejection::PathRejection},
    response::Response,
    routing::any,
};
use bytes::Bytes;
use http::{HeaderMap, Method, request::Parts};
use ipnet::IpNet;
use tokio::{sync::mpsc, time::Instant};

use self::{
    body::{Limits, Read},
    budget::Budget,
    check::Check,
};
use super::{
    delivery::{Context, Delivery, Family, Reading},
    intake::{Intake, Outcome, Sinks},
    receivers::{Receiver, Receivers, Taking, Trust},
    signature::{ACCOUNTING_HEADER, Presented, Scheme},
};
use crate::{
    metrics::{self, Refusal},
    model::{AccountingResource, Traceparent},
    server::Arrived,
};

mod answer;
mod body;
mod budget;
mod check;
mod echo;
mod origin;

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
    fn take(
        &self,
        delivery: Delivery,
        reading: Reading,
        since: Instant,
    ) -> impl Future<Output = Outcome> + Send {
        Self::take(self, delivery, reading, since)
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
    /// Bytes of verified bodies that wait for their outcome. Once there are more, new requests are turned away.
    pub verified_bytes: usize,
    /// What `Retry-After` says at least; up to two seconds are added, so that not all come back at once.
    pub retry_after: Duration,
    /// Who is told of verified deliveries that were too large; `None` for nobody.
    pub oversized: Option<mpsc::Sender<Oversized>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            body_time: Duration::from_millis(1_500),
            proxies: Vec::new(),
            unverified_bytes: 32 << 20,
            verified_bytes: 64 << 20,
            retry_after: Duration::from_secs(5),
            oversized: None,
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

/// The routes, and nothing but them. What is said to `acknowledged` is said without waiting: where nobody keeps up with it,
/// it is dropped and counted.
pub fn router<T: Take>(
    receivers: Receivers,
    take: Arc<T>,
    acknowledged: mpsc::Sender<Acknowledged>,
    options: Options,
) -> Router {
    let budget = Budget::new(options.unverified_bytes, options.verified_bytes);
    let shared = Arc::new(Shared { receivers, take, acknowledged, budget, options });
    Router::new()
        .route("/webhooks/accounting/{connector}", any(accounting::<T>))
        .route("/webhooks/accounting/{connector}/{resource}", any(accounting_resource::<T>))
        .route("/api/webhooks/incoming/{segment}", any(incoming::<T>))
        .fallback(nowhere::<T>)
        .with_state(shared)
}

/// What all requests share.
struct Shared<T> {
    receivers: Receivers,
    take: Arc<T>,
    acknowledged: mpsc::Sender<Acknowledged>,
    budget: Arc<Budget>,
    options: Options,
}

impl<T: Take> Shared<T> {
    async fn accounting(
        &self,
        receiver: Option<Arc<Receiver>>,
        resource: Option<AccountingResource>,
        request: Request,
    ) -> Response {
        let (head, body) = request.into_parts();
        let Some((receiver, accounting)) =
            posted(&head, receiver.as_deref().map(|it| (it, it.accounting.as_ref())))
        else {
            return self.refuse(Refusal::Route, &head, body).await;
        };
        let verification = self.admit(&head, receiver).and_then(|()| {
            let presented = Presented::of(&head.headers, &ACCOUNTING_HEADER, Scheme::Required);
            presented.map(|presented| Check::signature(&accounting.keys, presented)).ok_or(Refusal::Signature)
        });
        let check = match verification {
            Ok(check) => check,
            Err(refusal) => return self.refuse(refusal, &head, body).await,
        };
        let asked = Asked { receiver, limit: accounting.body_limit, resource };
        self.deliver(&head, body, asked, check, |_| Family::Accounting { resource }).await
    }

    async fn invoicing(&self, receiver: Option<Arc<Receiver>>, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let Some((receiver, invoicing)) =
            posted(&head, receiver.as_deref().map(|it| (it, it.invoicing.as_ref())))
        else {
            return self.refuse(Refusal::Route, &head, body).await;
        };
        let verification = self.admit(&head, receiver).and_then(|()| match &invoicing.trust {
            Trust::Addresses => Ok(Check::Source),
            Trust::Signed { header, keys, .. } => {
                let presented = Presented::of(&head.headers, header, Scheme::Optional);
                presented.map(|presented| Check::signature(keys, presented)).ok_or(Refusal::Signature)
            }
        });
        let check = match verification {
            Ok(check) => check,
            Err(refusal) => return self.refuse(refusal, &head, body).await,
        };
        let asked = Asked { receiver, limit: invoicing.body_limit, resource: None };
        let family = |place: usize| {
            let hook = match &invoicing.trust {
                // The secrets before these stand behind them, in the same order.
                Trust::Signed { hooks, .. } => {
                    place.checked_rem(hooks.len()).map(|place| hooks[place].into())
                }
                Trust::Addresses => None,
            };
            Family::Invoicing { hook, tenants: Arc::clone(&invoicing.tenants) }
        };
        self.deliver(&head, body, asked, check, family).await
    }

    async fn echo(&self, receiver: &Receiver, request: Request) -> Response {
        let (head, body) = request.into_parts();
        if receiver.state == Taking::Nothing {
            return self.refuse(Refusal::Stopped, &head, body).await;
        }
        match echo::asked(head.uri.query()) {
            Some(guid) => answer::echo(guid),
            None => self.refuse(Refusal::Echo, &head, body).await,
        }
    }

    /// Whether a delivery may be read at all.
    fn admit(&self, head: &Parts, receiver: &Receiver) -> Result<(), Refusal> {
        if receiver.state == Taking::Nothing {
            return Err(Refusal::Stopped);
        }
        // A request without a peer comes from nowhere, which no list names.
        let peer = head.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
        let accepted = match peer {
            Some(peer) => receiver.accepts_from(origin::of(peer, &head.headers, &self.options.proxies)),
            None => receiver.sources.is_empty(),
        };
        if accepted { Ok(()) } else { Err(Refusal::Source) }
    }

    /// Reads, verifies, takes and answers.
    async fn deliver(
        &self,
        head: &Parts,
        body: Body,
        asked: Asked<'_>,
        mut check: Check,
        family: impl FnOnce(usize) -> Family,
    ) -> Response {
        let since = since(head);
        let announced = body::announced(&body).and_then(|length| usize::try_from(length).ok());
        // What is longer than the limit is hashed and not kept.
        let Some(mut held) =
            self.budget.enter(announced.filter(|length| *length <= asked.limit).unwrap_or(0))
        else {
            return self.refused(Refusal::Shed, head);
        };
        let limits = Limits { bytes: asked.limit, until: since + self.options.body_time };
        let read = match body::read(body, limits, &mut check, &mut held).await {
            Ok(read) => read,
            Err(refusal) => return self.refused(refusal, head),
        };
        let Some(place) = check.finish() else {
            return self.refused(Refusal::Signature, head);
        };
        let Read::Whole(body) = read else {
            self.oversized(&asked);
            return self.refused(Refusal::OversizedVerified, head);
        };
        let _held = held.verified();
        self.take(asked.receiver, head, family(place), body, since).await
    }

    /// Hands a verified body on and answers with what became of it.
    async fn take(
        &self,
        receiver: &Receiver,
        head: &Parts,
        family: Family,
        body: Bytes,
        since: Instant,
    ) -> Response {
        let label = match &family {
            Family::Accounting { .. } => metrics::DeliveryFamily::Accounting,
            Family::Invoicing { .. } => metrics::DeliveryFamily::Invoicing,
        };
        let context = Context {
            connector: receiver.connector.to_string(),
            prefix: receiver.prefix.clone(),
            dead_letters: receiver.dead_letters.clone(),
            received_at: now(),
            traceparent: traceparent(&head.headers),
            family,
        };
        let delivery = Delivery { context: Arc::new(context), body };
        let reading = delivery.read();
        let end = if reading.acknowledges {
            self.acknowledge(receiver, &delivery.context, reading);
            metrics::DeliveryEnd::Acknowledged
        } else {
            match self.take.take(delivery, reading, since).await {
                Outcome::Durable => metrics::DeliveryEnd::Durable,
                Outcome::Full => metrics::DeliveryEnd::Full,
                Outcome::Late => metrics::DeliveryEnd::Late,
            }
        };
        metrics::delivery_ended(label, end, since.elapsed());
        match end {
            metrics::DeliveryEnd::Durable | metrics::DeliveryEnd::Acknowledged => answer::taken(),
            metrics::DeliveryEnd::Full | metrics::DeliveryEnd::Late => {
                answer::later(self.options.retry_after)
            }
        }
    }

    fn acknowledge(&self, receiver: &Receiver, context: &Context, reading: Reading) {
        let acknowledged = Acknowledged {
            connector: Arc::clone(&receiver.connector),
            webhook_id: reading.webhook_id,
            resource: reading.resource,
            received_at: context.received_at,
        };
        if self.acknowledged.try_send(acknowledged).is_err() {
            metrics::acknowledgement_dropped();
            tracing::warn!(
                connector = &*receiver.connector,
                "nobody keeps up with acknowledgements, one was dropped"
            );
        }
    }

    /// The provider's own, and lost: somebody has to raise the limit.
    fn oversized(&self, asked: &Asked<'_>) {
        let (connector, limit) = (&asked.receiver.connector, asked.limit);
        tracing::error!(
            connector = &**connector,
            limit,
            "a verified delivery is larger than the connector takes and was refused; raise its body limit"
        );
        let oversized = Oversized {
            connector: Arc::clone(connector),
            resource: asked.resource,
            limit,
            received_at: now(),
        };
        if let Some(told) = &self.options.oversized
            && told.try_send(oversized).is_err()
        {
            tracing::warn!(connector = &**connector, "nobody keeps up with deliveries that are too large");
        }
    }

    /// Refuses by the head alone.
    async fn refuse(&self, refusal: Refusal, head: &Parts, body: Body) -> Response {
        body::discard(body, head, since(head) + self.options.body_time).await;
        self.refused(refusal, head)
    }

    fn refused(&self, refusal: Refusal, head: &Parts) -> Response {
        metrics::delivery_refused(refusal);
        tracing::debug!(?refusal, "a request was refused");
        answer::refused(refusal, head.version, self.options.retry_after)
    }
}

/// Whose delivery is to be read, and how.
struct Asked<'a> {
    receiver: &'a Receiver,
    limit: usize,
    resource: Option<AccountingResource>,
}

/// Deliveries are posted, to a receiver that takes such.
fn posted<'a, F>(
    head: &Parts,
    receiver: Option<(&'a Receiver, Option<&'a F>)>,
) -> Option<(&'a Receiver, &'a F)> {
    let (receiver, family) = receiver.filter(|_| head.method == Method::POST)?;
    Some((receiver, family?))
}

/// When the head of a request was there.
fn since(head: &Parts) -> Instant {
    head.extensions.get::<Arrived>().map_or_else(Instant::now, |Arrived(since)| *since)
}

fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)
}

/// The trace a request belongs to, where it names exactly one.
fn traceparent(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all("traceparent").iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    value.parse::<Traceparent>().is_ok().then(|| value.to_owned())
}

type Segments<S> = Result<Path<S>, PathRejection>;

async fn accounting<T: Take>(
    State(shared): State<Arc<Shared<T>>>,
    segments: Segments<String>,
    request: Request,
) -> Response {
    let receiver = segments.ok().and_then(|Path(connector)| shared.receivers.accounting(&connector));
    shared.accounting(receiver, None, request).await
}

async fn accounting_resource<T: Take>(
    State(shared): State<Arc<Shared<T>>>,
    segments: Segments<(String, String)>,
    request: Request,
) -> Response {
    let named = segments.ok().and_then(|Path((connector, name))| {
        let resource = AccountingResource::all().find(|resource| resource.name() == name);
        let resource = resource.or_else(|| AccountingResource::from_provider(&name))?;
        Some((shared.receivers.accounting(&connector)?, resource))
    });
    let (receiver, resource) = named.unzip();
    shared.accounting(receiver, resource, request).await
}

async fn incoming<T: Take>(
    State(shared): State<Arc<Shared<T>>>,
    segments: Segments<String>,
    request: Request,
) -> Response {
    let receiver = segments.ok().and_then(|Path(segment)| shared.receivers.invoicing(&segment));
    match receiver {
        Some(receiver) if request.method() == Method::GET => shared.echo(&receiver, request).await,
        receiver => shared.invoicing(receiver, request).await,
    }
}

async fn nowhere<T: Take>(State(shared): State<Arc<Shared<T>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    shared.refuse(Refusal::Route, &head, body).await
}
