//! Reads a body within its time and limit, hashes it as it arrives, and verifies it.
//!
//! Bytes are kept up to the limit. Accounting bodies above it are hashed and dropped, up to [`OVERSIZED_READ_FACTOR`] times the limit, so
//! that a valid delivery that is too large is distinguished from a forged one. Invoicing bodies above the limit are refused at once:
//! that way forged bodies cost no hashing beyond the limit, and the provider pauses a hook whose deliveries are refused, which opens a gap.

use std::{future::poll_fn, iter, pin::Pin};

use axum::body::Body;
use bytes::Bytes;
use http::{Version, header, request::Parts};
use http_body::Body as _;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use base::metrics::RefusalReason;
use model::{InvoicingEvent, InvoicingHook};

use super::budget::UnverifiedBytes;
use crate::webhooks::{
    receiver_table::Receiver,
    signature::{PresentedSignature, RunningHmac, SigningKeys},
};

/// An accounting body is read up to this many times its limit, to verify its signature.
pub(super) const OVERSIZED_READ_FACTOR: usize = 4;
/// Bytes that are hashed, over all secrets, before the task yields.
const HASH_YIELD_BYTES: usize = 1 << 20;
/// Most bytes that are allocated for an announced length.
const MAX_PREALLOCATED_BYTES: usize = 64 << 10;
/// Most bytes that are read of a refused body: closing the connection while bytes still arrive would discard the answer.
const MAX_DISCARDED_BYTES: usize = 64 << 10;
/// The same over HTTP/2, where senders may treat a stream that ends before their body as a failure and ignore the status.
/// It covers deliveries that are refused for their size, up to four times the default limit of invoicing.
const MAX_DISCARDED_BYTES_HTTP2: usize = 1 << 20;

/// Largest body at the shared address that is tried with the secrets of every hook, in bytes. A larger one is tried with the secrets
/// of the entity that it names, so that a forged body costs as much as an accounting delivery of the same size.
const ALL_HOOKS_BODY_LIMIT: usize = 32 * 1024;

/// Limits of one body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimits {
    /// Bytes that are kept.
    pub(super) bytes: usize,
    /// Bytes that are read.
    pub(super) most: usize,
    /// When all of it must have arrived.
    pub(super) until: Instant,
}

/// A body that was read to its end.
#[derive(Debug)]
pub(super) enum BodyRead {
    /// The whole body.
    Whole(Bytes),
    /// It was longer than the limit.
    Oversized,
}

/// The announced length of a body.
pub(super) fn announced(body: &Body) -> Option<u64> {
    body.size_hint().exact()
}

/// Reads a body to its end; `check` has seen all of it then.
pub(super) async fn read(
    body: &mut Body,
    limits: BodyLimits,
    check: &mut BodyCheck<'_>,
    held: &mut UnverifiedBytes,
) -> Result<BodyRead, RefusalReason> {
    let announced = announced(body).map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if announced.is_some_and(|length| length > limits.most) {
        return Err(RefusalReason::Oversized);
    }
    timeout_at(limits.until, read_on(body, limits, announced, check, held))
        .await
        .unwrap_or(Err(RefusalReason::Slow))
}

async fn read_on(
    body: &mut Body,
    BodyLimits { bytes: limit, most, .. }: BodyLimits,
    announced: Option<usize>,
    check: &mut BodyCheck<'_>,
    held: &mut UnverifiedBytes,
) -> Result<BodyRead, RefusalReason> {
    let expected = announced.unwrap_or(0);
    // Copied into one buffer, so that the memory it takes is the memory that is counted.
    let mut kept = (expected <= limit).then(|| Vec::with_capacity(expected.min(MAX_PREALLOCATED_BYTES)));
    let (mut length, mut hashed) = (0_usize, 0_usize);
    while let Some(bytes) = next(body).await? {
        length = length.saturating_add(bytes.len());
        if length > most {
            return Err(RefusalReason::Oversized);
        }
        if length > limit && kept.take().is_some() {
            held.clear();
        }
        if let Some(kept) = &mut kept {
            if !held.grow(bytes.len()) {
                return Err(RefusalReason::Shed);
            }
            let room = kept.capacity() - kept.len();
            if room < bytes.len() {
                let wanted = (kept.len() + bytes.len()).max(2 * kept.capacity()).min(limit.max(length));
                kept.reserve_exact(wanted - kept.len());
            }
            kept.extend_from_slice(&bytes);
        }
        if let Some(running) = check.running() {
            hash(&bytes, running, held, &mut hashed).await?;
        }
    }
    Ok(kept.map_or(BodyRead::Oversized, |kept| BodyRead::Whole(Bytes::from(kept))))
}

/// Hashes bytes in pieces, each charged to its source first, and yields in between. `hashed`: bytes since the last yield.
pub(super) async fn hash(
    bytes: &[u8],
    running: &mut RunningHmac,
    held: &mut UnverifiedBytes,
    hashed: &mut usize,
) -> Result<(), RefusalReason> {
    let secrets = running.secrets();
    if secrets == 0 {
        return Ok(());
    }
    for piece in bytes.chunks((HASH_YIELD_BYTES / secrets).max(1)) {
        let cost = piece.len().saturating_mul(secrets);
        if !held.hash(cost) {
            return Err(RefusalReason::Throttled);
        }
        running.update(piece);
        *hashed += cost;
        if *hashed >= HASH_YIELD_BYTES {
            *hashed = 0;
            yield_now().await;
        }
    }
    Ok(())
}

/// Reads the rest of a short body, so that the sender reads the answer. Returns whether that was all of it.
pub(super) async fn discard(mut body: Body, head: &Parts, until: Instant) -> bool {
    let most = if head.version >= Version::HTTP_2 { MAX_DISCARDED_BYTES_HTTP2 } else { MAX_DISCARDED_BYTES };
    // A sender that expects 100 Continue has not sent its body.
    let waits = head.headers.contains_key(header::EXPECT);
    if waits || announced(&body).is_some_and(|length| length > most as u64) {
        return body.is_end_stream();
    }
    let all = async {
        let mut left = most;
        loop {
            match next(&mut body).await {
                Ok(None) => return true,
                Ok(Some(bytes)) if bytes.len() <= left => left -= bytes.len(),
                Ok(Some(_)) | Err(_) => return false,
            }
        }
    };
    timeout_at(until, all).await.unwrap_or(false)
}

/// The next bytes; trailers are ignored.
async fn next(body: &mut Body) -> Result<Option<Bytes>, RefusalReason> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(_)) => return Err(RefusalReason::Broken),
        }
    }
}

/// Secrets that may have signed a body, and whose delivery it is then.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyGroup<'a> {
    /// The connector; `None`: it is unknown.
    pub(super) receiver: Option<&'a Receiver>,
    /// The hook, if the secrets or the address identify it.
    pub(super) hook: Option<InvoicingHook>,
    /// The current and the previous secret.
    pub(super) keys: &'a SigningKeys,
    /// The signature of the request, in the connector's header.
    pub(super) presented: PresentedSignature,
}

/// How a body is verified, while it is read or once it is complete.
#[derive(Debug)]
pub(super) enum BodyCheck<'a> {
    /// A signature over all bytes by one of a few secrets; the body is hashed as it arrives.
    Signature {
        /// The hashes of what was read so far.
        running: RunningHmac,
        /// Whose secrets they are of.
        groups: Vec<KeyGroup<'a>>,
    },
    /// A signature by the secret of any hook, for deliveries to the shared address. The body is hashed once it is complete, because
    /// it says which secrets to try first.
    AnyHook(Vec<KeyGroup<'a>>),
    /// The source address, which was checked before.
    Source {
        /// The connector.
        receiver: &'a Receiver,
        /// The hook, for deliveries to its own address.
        hook: Option<InvoicingHook>,
    },
}

/// A verified body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verified<'a> {
    /// The connector; `None`: it is unknown.
    pub(super) receiver: Option<&'a Receiver>,
    /// The hook, if its secret or address identifies it.
    pub(super) hook: Option<InvoicingHook>,
    /// Index of the secret: 0 the current one, 1 the previous one.
    pub(super) secret: usize,
}

impl<'a> BodyCheck<'a> {
    /// By a secret of any of these groups.
    pub(super) fn signature(groups: Vec<KeyGroup<'a>>) -> Self {
        Self::Signature { running: start(&groups), groups }
    }

    /// Whether it hashes the body.
    pub(super) const fn hashes(&self) -> bool {
        !matches!(self, Self::Source { .. })
    }

    /// The hashes that follow the body as it arrives.
    pub(super) const fn running(&mut self) -> Option<&mut RunningHmac> {
        match self {
            Self::Signature { running, .. } => Some(running),
            Self::AnyHook(_) | Self::Source { .. } => None,
        }
    }

    /// Verifies what was read; `body`: the bytes, if they were kept.
    ///
    /// # Errors
    /// The hash budget of its source is empty.
    pub(super) async fn finish(
        self,
        body: Option<&[u8]>,
        held: &mut UnverifiedBytes,
    ) -> Result<Option<Verified<'a>>, RefusalReason> {
        match (self, body) {
            (Self::Signature { running, groups }, _) => Ok(matching(running, &groups)),
            (Self::AnyHook(groups), Some(body)) => any_hook(groups, body, held).await,
            (Self::AnyHook(_), None) => Ok(None),
            (Self::Source { receiver, hook }, _) => {
                Ok(Some(Verified { receiver: Some(receiver), hook, secret: 0 }))
            }
        }
    }
}

fn start(groups: &[KeyGroup<'_>]) -> RunningHmac {
    SigningKeys::start_all(groups.iter().map(|group| group.keys))
}

/// Whose secret made the signature; every secret is tried.
fn matching<'a>(running: RunningHmac, groups: &[KeyGroup<'a>]) -> Option<Verified<'a>> {
    let presented = groups.iter().flat_map(|group| iter::repeat_n(&group.presented, group.keys.count()));
    let mut secret = running.matching(presented)?;
    for group in groups {
        if secret < group.keys.count() {
            return Some(Verified { receiver: group.receiver, hook: group.hook, secret });
        }
        secret -= group.keys.count();
    }
    None
}

/// Tries the secrets that identify no hook, and those of the entity that a body names, at most eight for each connector; then all
/// others if the body is small: the provider does not document that a delivery names the entity of its hook.
async fn any_hook<'a>(
    groups: Vec<KeyGroup<'a>>,
    body: &[u8],
    held: &mut UnverifiedBytes,
) -> Result<Option<Verified<'a>>, RefusalReason> {
    let entity = InvoicingEvent::entity_named(body);
    let is_first = |group: &KeyGroup<'_>| group.hook.is_none_or(|hook| Some(hook.entity) == entity);
    let (first, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_first);
    let others = if body.len() <= ALL_HOOKS_BODY_LIMIT { others } else { Vec::new() };
    for groups in [first, others] {
        let mut running = start(&groups);
        hash(body, &mut running, held, &mut 0).await?;
        if let Some(verified) = matching(running, &groups) {
            return Ok(Some(verified));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        net::{IpAddr, Ipv4Addr},
    };

    use base::secret::Secret;
    use model::InvoicingEntity;

    use super::{
        super::budget::{HashLimit, ReceiverBudget},
        *,
    };
    use crate::webhooks::signature::{Scheme, hook_secret, sign};

    const MASTERS: [&str; 2] = ["the invoicing secret of today...", "the invoicing secret before it.."];

    fn secret(master: usize, hook: InvoicingHook) -> Secret {
        hook_secret(&Secret::new(MASTERS[master]), hook.entity, hook.action)
    }

    /// Keys of one connector, as a body that has this signature is checked with them.
    fn groups<'a>(keys: &'a BTreeMap<InvoicingHook, SigningKeys>, signature: &str) -> Vec<KeyGroup<'a>> {
        let presented = PresentedSignature::parse(signature.as_bytes(), Scheme::Required).unwrap();
        let groups = keys.iter();
        groups.map(|(hook, keys)| KeyGroup { receiver: None, hook: Some(*hook), keys, presented }).collect()
    }

    /// Two secrets for each of all hooks, as while they are rotated.
    fn keys() -> BTreeMap<InvoicingHook, SigningKeys> {
        let hooks = InvoicingEntity::all()
            .flat_map(|entity| entity.actions().iter().map(move |&action| InvoicingHook { entity, action }));
        let keys = |hook| {
            SigningKeys::new(
                [0, 1].map(|master| secret(master, hook)).each_ref().map(|one| one.reveal().as_bytes()),
            )
        };
        hooks.map(|hook| (hook, keys(hook))).collect()
    }

    /// The hook and secret that verify a body, and how many secrets hashed it.
    async fn tried(body: &[u8], signature: &str) -> (Option<(InvoicingHook, usize)>, usize) {
        let limit = HashLimit { burst: 1 << 40, per_second: 0, free: 0 };
        let budget = ReceiverBudget::new(1 << 20, 1 << 20, limit);
        let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut held = budget.enter(body.len(), source).unwrap();
        let keys = keys();

        let check = BodyCheck::AnyHook(groups(&keys, signature));
        let verified = check.finish(Some(body), &mut held).await.unwrap();

        let verified = verified.map(|verified| (verified.hook.unwrap(), verified.secret));
        (verified, held.hashed_bytes() / body.len())
    }

    #[tokio::test]
    async fn a_body_that_names_its_entity_is_tried_with_six_keys() {
        for form in [
            r#"{"Entity":"Product"}"#,
            r#"{"Id":"1","Notifications":[{"Entity":"Product","Action":"Created"}]}"#,
        ] {
            for hook in keys().into_keys().filter(|hook| hook.entity == InvoicingEntity::Product) {
                for master in [0, 1] {
                    let signature = sign(&secret(master, hook), form.as_bytes());

                    let found = tried(form.as_bytes(), &signature).await;

                    assert_eq!(found, (Some((hook, master)), 6), "{form}");
                }
            }
        }
    }

    #[tokio::test]
    async fn every_hook_verifies_whatever_its_body_names() {
        let bodies = [
            r#"{"Entity":"Customer"}"#,
            r#"{"Entity":"Something new"}"#,
            r#"{"EntityId":"1"}"#,
            r#"{"Notifications":[{"Action":"Created"}]}"#,
            r#"{"Notifications":7}"#,
            "no JSON",
        ];
        for body in bodies {
            for hook in keys().into_keys() {
                let signature = sign(&secret(1, hook), body.as_bytes());

                let (verified, _) = tried(body.as_bytes(), &signature).await;

                assert_eq!(verified, Some((hook, 1)), "{body}");
            }
            let forged = sign(&Secret::new(MASTERS[0]), body.as_bytes());
            assert_eq!(tried(body.as_bytes(), &forged).await, (None, 2 * keys().len()), "{body}");
        }
    }

    #[tokio::test]
    async fn a_large_body_is_tried_with_the_keys_of_its_entity() {
        for (entity, expected) in [("Customer", 6), ("Something new", 0)] {
            let body = format!(r#"{{"Entity":"{entity}","More":"{}"}}"#, "x".repeat(ALL_HOOKS_BODY_LIMIT));
            let forged = sign(&Secret::new(MASTERS[0]), body.as_bytes());

            assert_eq!(tried(body.as_bytes(), &forged).await, (None, expected), "{entity}");
        }
    }

    #[tokio::test]
    async fn a_spent_source_is_refused_before_the_next_piece_is_hashed() {
        let budget = ReceiverBudget::new(1 << 20, 1 << 20, HashLimit { burst: 100, per_second: 0, free: 0 });
        let mut held = budget.enter(0, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let (keys, body) = (keys(), br#"{"EntityId":"1"}"#);
        let signature = sign(&Secret::new("x"), body);

        let first = BodyCheck::AnyHook(groups(&keys, &signature)).finish(Some(body), &mut held).await;
        let second = BodyCheck::AnyHook(groups(&keys, &signature)).finish(Some(body), &mut held).await;

        assert!(matches!((first, second), (Ok(None), Err(RefusalReason::Throttled))));
    }
}
