//! One request, from its head to its answer: found, admitted, read, verified, handed to the intake, answered.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
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
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, request::Parts};
use http_body::Body as _;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use base::metrics::{self, DeliveryEnd, DeliveryFamily, RefusalReason};
use model::{AccountingResource, InvoicingHook, Moment, Traceparent};
use server::{Arrived, CloseAfter, origin};

use super::{
    AcknowledgeNote, Oversized, ReceivedAcknowledge, ReceiverOptions,
    address::Address,
    body::{self, BodyRead, Verified},
    budget::ReceiverBudget,
    echo::EchoAddress,
};
use crate::webhooks::{
    delivery::{ApiFamily, Delivery, DeliveryContent, DeliveryContext},
    intake::{Accept, DeliveryOutcome},
    receiver_table::{DeliveredBy, MissingReceiver, Receiver, ReceiverLookup, ReceiverState, Receivers},
    signature::SigningKeys,
};

/// Path of accounting deliveries; the connector follows.
const ACCOUNTING_PATH: &str = "/webhooks/accounting/";
/// Path of invoicing deliveries; the segment follows.
const INVOICING_PATH: &str = "/api/webhooks/incoming/";

/// Memory that a header takes beside its name and value.
const HEADER_OVERHEAD_BYTES: usize = 128;
/// Most seconds that are added to `Retry-After`.
const RETRY_AFTER_JITTER_SECONDS: u64 = 2;

/// The public routes. Sends to `acknowledged` without waiting: if that channel is full, the Acknowledge is dropped and counted.
pub fn router(
    receivers: Receivers,
    accept: Accept,
    acknowledged: mpsc::Sender<AcknowledgeNote>,
    options: ReceiverOptions,
) -> Router {
    let budget = ReceiverBudget::new(options.unverified_bytes, options.verified_bytes, options.hash_limit);
    let unknown_keys = SigningKeys::new([&b"in the place of a secret"[..]]);
    let echoes = Mutex::default();
    let shared =
        Arc::new(RequestHandler { receivers, accept, acknowledged, budget, unknown_keys, echoes, options });
    Router::new()
        .route(&format!("{ACCOUNTING_PATH}{{connector}}"), any(accounting))
        .route(&format!("{ACCOUNTING_PATH}{{connector}}/{{resource}}"), any(accounting))
        .route(&format!("{INVOICING_PATH}{{segment}}"), any(incoming))
        .route(&format!("{INVOICING_PATH}{{segment}}/{{hook}}"), any(incoming))
        .fallback(nowhere)
        .with_state(shared)
}

/// What all requests share; handles each of them.
pub(super) struct RequestHandler {
    receivers: Receivers,
    accept: Accept,
    acknowledged: mpsc::Sender<AcknowledgeNote>,
    budget: Arc<ReceiverBudget>,
    /// Keys for deliveries to unknown connectors; the result is ignored.
    unknown_keys: SigningKeys,
    /// When the last echo of each address was reported.
    pub(super) echoes: Mutex<HashMap<EchoAddress, Instant>>,
    pub(super) options: ReceiverOptions,
}

/// The variable segments of a path.
type Segments = Result<Path<Vec<String>>, PathRejection>;

async fn accounting(
    State(shared): State<Arc<RequestHandler>>,
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
    let (found, resource) = named.unwrap_or_default();
    shared.receive(found, Address::Accounting(resource), request).await
}

async fn incoming(
    State(shared): State<Arc<RequestHandler>>,
    segments: Segments,
    request: Request,
) -> Response {
    let named = segments.ok().and_then(|Path(segments)| match &segments[..] {
        [segment] => Some((shared.receivers.invoicing(segment, None), None)),
        [segment, slug] => {
            let hook = Some(InvoicingHook::from_slug(slug)?);
            Some((shared.receivers.invoicing(segment, hook), hook))
        }
        _ => None,
    });
    let (found, hook) = named.unwrap_or_default();
    shared.receive(found, Address::Invoicing(hook), request).await
}

async fn nowhere(State(shared): State<Arc<RequestHandler>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    shared.refuse(RefusalReason::Route, &head, body).await
}

impl RequestHandler {
    /// Handles a request to the address of this receiver.
    async fn receive(&self, found: ReceiverLookup, address: Address, request: Request) -> Response {
        let (head, mut body) = request.into_parts();
        if let (Address::Invoicing(hook), &Method::GET) = (address, &head.method) {
            return self.echo(&found, hook, &head, body).await;
        }
        match self.deliver(&head, &mut body, &found, address).await {
            Ok(response) => response,
            Err((refusal, UnreadBody::Discard)) => self.refuse(refusal, &head, body).await,
            Err((refusal, UnreadBody::Left(is_left))) => self.refused(refusal, &head, is_left),
        }
    }

    /// Whether a delivery to this receiver may come from the source of a request.
    pub(super) fn admits(&self, head: &Parts, receiver: &Receiver) -> bool {
        // A request without a peer has no address, so no list contains it.
        self.source(head).map_or(receiver.sources.is_empty(), |source| receiver.accepts_from(source))
    }

    /// The source of a request: its peer, or the address that a trusted proxy forwarded.
    fn source(&self, head: &Parts) -> Option<IpAddr> {
        peer(head).map(|peer| origin::of(peer, &head.headers, &self.options.proxies))
    }

    /// The source whose hash budget is charged. Requests without a peer share one.
    fn charged_source(&self, head: &Parts) -> IpAddr {
        self.source(head).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// Reads the body, verifies it, hands it to the intake, and answers.
    async fn deliver(
        &self,
        head: &Parts,
        body: &mut Body,
        found: &ReceiverLookup,
        address: Address,
    ) -> Result<Response, (RefusalReason, UnreadBody)> {
        let discard = |refusal| (refusal, UnreadBody::Discard);
        let unread = |refusal, body: &Body| (refusal, UnreadBody::Left(!body.is_end_stream()));
        let read_all = |refusal| (refusal, UnreadBody::Left(false));
        let missing = found.missing.map(RefusalReason::from);
        match missing {
            _ if head.method != Method::POST => return Err(discard(RefusalReason::Route)),
            Some(missing) if found.receivers.is_empty() => return Err(discard(missing)),
            _ => {}
        }
        // A delivery that none of them verifies may be for a connector that is missing: the provider has to send it again.
        let denied = |refusal| missing.unwrap_or(refusal);
        // Without a receiver it is handled like a delivery: the answer must not show that the connector is unknown.
        let admitted: Vec<&Receiver> =
            found.receivers.iter().map(Arc::as_ref).filter(|receiver| self.admits(head, receiver)).collect();
        if admitted.is_empty() && !found.receivers.is_empty() {
            return Err(discard(denied(RefusalReason::Source)));
        }
        let check = address.check(&head.headers, &admitted, &self.unknown_keys);
        let mut check = check.map_err(|refusal| discard(denied(refusal)))?;
        let since = since(head);
        let limits = address.limits(&admitted, since + self.options.body_time);
        let source = self.charged_source(head);
        let is_free = check.running().is_some() && self.budget.sources.free() > 0;
        if check.hashes() && !is_free && !self.budget.sources.may_hash(source, Instant::now()) {
            return Err(unread(RefusalReason::Throttled, body));
        }
        let announced = body::announced(body).and_then(|length| usize::try_from(length).ok());
        // A body above the limit is not kept.
        let kept = announced.filter(|length| *length <= limits.bytes).unwrap_or(0);
        let mut held = self.budget.enter(kept, source).ok_or_else(|| unread(RefusalReason::Shed, body))?;
        if is_free {
            held.allow_free();
        }
        // The head counts too, because it may be larger than the body. Both are released before `refuse` discards the rest of a body.
        if !held.grow(weight(&head.headers)) {
            return Err(unread(RefusalReason::Shed, body));
        }
        let read = body::read(body, limits, &mut check, &mut held).await;
        let read = read.map_err(|refusal| match refusal {
            RefusalReason::Throttled | RefusalReason::Shed => (refusal, UnreadBody::Left(true)),
            RefusalReason::Oversized => discard(denied(refusal)),
            _ => discard(refusal),
        })?;
        let whole = match &read {
            BodyRead::Whole(body) => Some(&**body),
            BodyRead::Oversized => None,
        };
        let verified = check.finish(whole, &mut held).await.map_err(read_all)?;
        let (receiver, hook, secret) = match verified {
            Some(Verified { receiver: Some(receiver), hook, secret }) => (receiver, hook, secret),
            _ if admitted.is_empty() => return Err(read_all(RefusalReason::Unknown)),
            _ => return Err(read_all(denied(RefusalReason::Signature))),
        };
        held.give_back_hashed();
        // The index shows whether the previous secret is still in use.
        tracing::debug!(connector = &*receiver.connector, secret, "a delivery was verified");
        if receiver.state == ReceiverState::Stopped {
            return Err(read_all(RefusalReason::Stopped));
        }
        let limit = address.body_limit(Some(receiver));
        let body = match read {
            BodyRead::Whole(body) if body.len() <= limit => body,
            BodyRead::Whole(_) | BodyRead::Oversized => {
                return Err(read_all(self.oversized(receiver, address, limit)));
            }
        };
        let _held = held.verified();
        Ok(self.take(receiver, head, address.family(receiver, hook), body, since).await)
    }

    /// Hands a verified body to the intake and answers with the outcome.
    async fn take(
        &self,
        receiver: &Receiver,
        head: &Parts,
        family: ApiFamily,
        body: Bytes,
        since: Instant,
    ) -> Response {
        let label = match &family {
            ApiFamily::Accounting { .. } => DeliveryFamily::Accounting,
            ApiFamily::Invoicing { .. } => DeliveryFamily::Invoicing,
        };
        let context = DeliveryContext {
            connector: Arc::clone(&receiver.connector),
            prefix: Arc::clone(&receiver.prefix),
            dead_letter_topic: Arc::clone(&receiver.dead_letter_topic),
            received_at: Moment::now().micros(),
            traceparent: traceparent(&head.headers),
            content_ids: true,
            family,
        };
        let delivery = Delivery { context: Arc::new(context), body };
        let mut content = delivery.read();
        let end = if content.acknowledges {
            match self.acknowledge(receiver, &delivery.context, content, since).await {
                true => DeliveryEnd::Acknowledged,
                false => DeliveryEnd::Late,
            }
        } else {
            let (context, webhook) = (Arc::clone(&delivery.context), content.webhook_id.take());
            let resource = content.resource;
            match (self.accept)(delivery, content, since).await {
                DeliveryOutcome::Durable => {
                    self.count_delivery(&context, webhook.as_deref(), resource);
                    DeliveryEnd::Durable
                }
                DeliveryOutcome::Full => DeliveryEnd::Full,
                DeliveryOutcome::Late => DeliveryEnd::Late,
            }
        };
        metrics::delivery_ended(label, end, since.elapsed());
        match end {
            DeliveryEnd::Durable | DeliveryEnd::Acknowledged => empty(StatusCode::OK),
            DeliveryEnd::Full | DeliveryEnd::Late => later(self.options.retry_after),
        }
    }

    /// Counts a durable delivery for its subscription.
    fn count_delivery(
        &self,
        context: &DeliveryContext,
        webhook: Option<&str>,
        resource: Option<AccountingResource>,
    ) {
        let by = match (&context.family, webhook) {
            (ApiFamily::Accounting { .. }, Some(id)) => {
                DeliveredBy::Webhook(id, resource.or_else(|| registered(context)))
            }
            (ApiFamily::Invoicing { hook: Some(hook), .. }, _) => DeliveredBy::Hook((*hook).into()),
            _ => return,
        };
        self.options.delivery_stats.note(&context.connector, by, context.received_at);
    }

    /// Reports an Acknowledge and waits until it is in Kafka. The answer activates the subscription: if this connector manages its
    /// subscriptions and the Acknowledge may be lost in a crash, the answer is 503, and the provider asks again.
    async fn acknowledge(
        &self,
        receiver: &Receiver,
        context: &DeliveryContext,
        content: DeliveryContent,
        since: Instant,
    ) -> bool {
        let acknowledged = ReceivedAcknowledge {
            connector: Arc::clone(&receiver.connector),
            webhook_id: content.webhook_id,
            resource: content.resource.or_else(|| registered(context)),
            received_at: context.received_at,
        };
        let (noted, durable) = oneshot::channel();
        let mut is_durable = false;
        if self.acknowledged.try_send((acknowledged, noted)).is_ok() {
            let end = since + self.options.acknowledge_time;
            is_durable = matches!(timeout_at(end, durable).await, Ok(Ok(())));
        } else {
            metrics::acknowledgement_dropped();
            tracing::warn!(connector = &*receiver.connector, "acknowledgement channel is full; dropped one");
        }
        is_durable || !receiver.advertised.manages
    }

    /// Reports a delivery of the provider that is lost unless the limit is raised. If the report cannot be taken now, the provider has
    /// to send the delivery again.
    fn oversized(&self, receiver: &Receiver, address: Address, limit: usize) -> RefusalReason {
        let connector = &receiver.connector;
        tracing::error!(
            connector = &**connector,
            limit,
            "a verified delivery is larger than the connector takes and was refused; raise its body limit"
        );
        let resource = match address {
            Address::Accounting(resource) => resource,
            Address::Invoicing(_) => None,
        };
        let received_at = Moment::now().micros();
        let oversized = Oversized { connector: Arc::clone(connector), resource, limit, received_at };
        if let Some(channel) = &self.options.oversized
            && channel.try_send(oversized).is_err()
        {
            tracing::warn!(
                connector = &**connector,
                "channel for oversized deliveries is full; the provider has to send this one again"
            );
            return RefusalReason::Shed;
        }
        RefusalReason::OversizedVerified
    }

    /// Refuses after the rest of a short body has arrived.
    pub(super) async fn refuse(&self, refusal: RefusalReason, head: &Parts, body: Body) -> Response {
        let whole = body::discard(body, head, since(head) + self.options.body_time).await;
        self.refused(refusal, head, !whole)
    }

    /// `rest`: a part of the body was not read.
    fn refused(&self, refusal: RefusalReason, head: &Parts, rest: bool) -> Response {
        if refusal == RefusalReason::Throttled {
            self.budget.sources.log_refusal(self.charged_source(head), Instant::now());
        }
        metrics::delivery_refused(addressed(head.uri.path()), refusal);
        tracing::debug!(?refusal, "a request was refused");
        // A sender without valid deliveries loses its connection. Exceptions: one that is refused for lack of room, because another
        // connection would cost us more, and a proxy, whose connections serve other senders too.
        let proxied = peer(head).is_some_and(|peer| origin::is_proxy(peer, &self.options.proxies));
        let ends = !matches!(refusal, RefusalReason::Shed | RefusalReason::Throttled) && !proxied;
        refusal_response(refusal, head.version, rest, ends, self.options.retry_after)
    }
}

/// What happens to the rest of a refused body.
#[derive(Debug, Clone, Copy)]
enum UnreadBody {
    /// It is read first, if it is short.
    Discard,
    /// It is left; whether there is any.
    Left(bool),
}

/// The accounting resource that the address names, if any.
fn registered(context: &DeliveryContext) -> Option<AccountingResource> {
    match context.family {
        ApiFamily::Accounting { resource } => resource,
        ApiFamily::Invoicing { .. } => None,
    }
}

/// The API that this path belongs to.
fn addressed(path: &str) -> Option<DeliveryFamily> {
    let families =
        [(ACCOUNTING_PATH, DeliveryFamily::Accounting), (INVOICING_PATH, DeliveryFamily::Invoicing)];
    families.into_iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, family)| family)
}

impl From<MissingReceiver> for RefusalReason {
    fn from(missing: MissingReceiver) -> Self {
        match missing {
            MissingReceiver::Faulty => Self::Faulty,
            MissingReceiver::NotLoaded => Self::Starting,
        }
    }
}

/// The other end of the connection.
fn peer(head: &Parts) -> Option<IpAddr> {
    head.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip())
}

/// When the head of a request arrived.
fn since(head: &Parts) -> Instant {
    head.extensions.get::<Arrived>().map_or_else(Instant::now, |Arrived(since)| *since)
}

/// Bytes that headers take in memory, roughly.
fn weight(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES).sum()
}

/// The trace of a request that names exactly one.
fn traceparent(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all("traceparent").iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    value.parse::<Traceparent>().is_ok().then(|| value.to_owned())
}

/// 503: the sender should try again later.
fn later(after: Duration) -> Response {
    let spread = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_micros());
    let after = after.as_secs() + u64::from(spread) % (RETRY_AFTER_JITTER_SECONDS + 1);
    let mut response = empty(StatusCode::SERVICE_UNAVAILABLE);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
    response
}

/// The answer to a refused request. The connection closes if `ends`, or if a rest of the body was not read: the next request could
/// not be separated from it.
fn refusal_response(
    refusal: RefusalReason,
    version: Version,
    rest: bool,
    ends: bool,
    retry_after: Duration,
) -> Response {
    let mut response = match refusal {
        RefusalReason::Route => empty(StatusCode::NOT_FOUND),
        RefusalReason::Starting
        | RefusalReason::Faulty
        | RefusalReason::Stopped
        | RefusalReason::Shed
        | RefusalReason::Throttled => later(retry_after),
        RefusalReason::Unknown
        | RefusalReason::Source
        | RefusalReason::Unsigned
        | RefusalReason::Signature => empty(StatusCode::UNAUTHORIZED),
        RefusalReason::Echo | RefusalReason::Broken => empty(StatusCode::BAD_REQUEST),
        RefusalReason::Oversized | RefusalReason::OversizedVerified => empty(StatusCode::PAYLOAD_TOO_LARGE),
        RefusalReason::Slow => empty(StatusCode::REQUEST_TIMEOUT),
    };
    if ends {
        response.extensions_mut().insert(CloseAfter);
    }
    // HTTP/2 has no such header; there a rest ends its stream.
    if (rest || ends) && version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}
