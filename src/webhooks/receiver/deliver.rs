//! One request, from its head to its answer: admitted, read, verified, taken.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request},
    response::Response,
};
use bytes::Bytes;
use http::{HeaderMap, Method, request::Parts};
use http_body::Body as _;
use tokio::time::Instant;

use super::{
    super::{
        delivery::{Context, Delivery, Family, Reading},
        intake::Outcome,
        receivers::{Receiver, Taking, Trust},
        signature::{ACCOUNTING_HEADER, Presented, Scheme},
    },
    Acknowledged, Oversized, Shared, Take, answer,
    body::{self, Limits, Read},
    check::Check,
    echo, origin,
};
use crate::{
    metrics::{self, DeliveryEnd, DeliveryFamily, Refusal},
    model::{AccountingResource, Traceparent},
    server::Arrived,
};

impl<T: Take> Shared<T> {
    /// A request to the accounting route of this receiver, or of nobody.
    pub(super) async fn accounting(
        &self,
        receiver: Option<Arc<Receiver>>,
        resource: Option<AccountingResource>,
        request: Request,
    ) -> Response {
        let (head, body) = request.into_parts();
        let Some((receiver, accounting)) =
            posted(&head, receiver.as_deref().map(|it| (it, it.accounting.as_ref())))
        else {
            return self.refuse(self.unknown(&head), &head, body).await;
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

    /// A request to the invoicing route of this receiver, or of nobody, that asks for no echo.
    pub(super) async fn invoicing(&self, receiver: Option<Arc<Receiver>>, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let Some((receiver, invoicing)) =
            posted(&head, receiver.as_deref().map(|it| (it, it.invoicing.as_ref())))
        else {
            return self.refuse(self.unknown(&head), &head, body).await;
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

    /// Says that the address is the receiver's.
    pub(super) async fn echo(&self, receiver: &Receiver, request: Request) -> Response {
        let (head, body) = request.into_parts();
        if receiver.state == Taking::Nothing {
            return self.refuse(Refusal::Stopped, &head, body).await;
        }
        match echo::asked(head.uri.query()) {
            Some(guid) => answer::echo(guid),
            None => self.refuse(Refusal::Echo, &head, body).await,
        }
    }

    /// Why nothing is received there: nobody is, or it is not known yet who is.
    fn unknown(&self, head: &Parts) -> Refusal {
        let may_come = head.method == Method::POST && self.receivers.is_partial();
        if may_come { Refusal::Starting } else { Refusal::Route }
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
            return self.refused(Refusal::Shed, head, !body.is_end_stream());
        };
        let limits = Limits { bytes: asked.limit, until: since + self.options.body_time };
        let read = match body::read(body, limits, &mut check, &mut held).await {
            Ok(read) => read,
            Err(refusal) => return self.refused(refusal, head, true),
        };
        let Some(place) = check.finish() else {
            return self.refused(Refusal::Signature, head, false);
        };
        // The place tells whether the secret before this one is still in use; it is no secret.
        tracing::debug!(connector = &*asked.receiver.connector, secret = place, "a delivery was verified");
        let Read::Whole(body) = read else {
            self.oversized(&asked);
            return self.refused(Refusal::OversizedVerified, head, false);
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
            Family::Accounting { .. } => DeliveryFamily::Accounting,
            Family::Invoicing { .. } => DeliveryFamily::Invoicing,
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
            DeliveryEnd::Acknowledged
        } else {
            match self.take.take(delivery, reading, since).await {
                Outcome::Durable => DeliveryEnd::Durable,
                Outcome::Full => DeliveryEnd::Full,
                Outcome::Late => DeliveryEnd::Late,
            }
        };
        metrics::delivery_ended(label, end, since.elapsed());
        match end {
            DeliveryEnd::Durable | DeliveryEnd::Acknowledged => answer::taken(),
            DeliveryEnd::Full | DeliveryEnd::Late => answer::later(self.options.retry_after),
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
    pub(super) async fn refuse(&self, refusal: Refusal, head: &Parts, body: Body) -> Response {
        let whole = body::discard(body, head, since(head) + self.options.body_time).await;
        self.refused(refusal, head, !whole)
    }

    /// `rest` says that something of the body was not read.
    fn refused(&self, refusal: Refusal, head: &Parts, rest: bool) -> Response {
        metrics::delivery_refused(refusal);
        tracing::debug!(?refusal, "a request was refused");
        answer::refused(refusal, head.version, rest, self.options.retry_after)
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
