//! Reads a body within its time and its limit, and hashes it as it comes.
//!
//! Bytes are kept up to the limit. Accounting bodies above it are hashed and dropped, up to [`BEYOND`] times the limit, to tell a
//! provider whose deliveries have become too large from a forger. Invoicing bodies above it are refused at once: forged bodies
//! cost no hashing that way, and a provider whose delivery is refused for good pauses the hook, which opens a gap.

use std::{future::poll_fn, pin::Pin};

use axum::body::Body;
use bytes::Bytes;
use http::{Version, header, request::Parts};
use http_body::Body as _;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use base::metrics::RefusalReason;

use super::{budget::Unverified, check::Check};
use crate::webhooks::signature::Running;

/// How many times the limit is read of an accounting body to find out whose it is.
pub(super) const BEYOND: usize = 4;
/// Bytes that are hashed, over all secrets, before others get their turn.
const TURN: usize = 1 << 20;
/// Most bytes that are set aside because a body is announced to be so long.
const AHEAD: usize = 64 << 10;
/// Most bytes of a body that nobody wants and that are read all the same: a connection closed on top of bytes that are still
/// coming takes the answer with it.
const COURTESY: usize = 64 << 10;
/// The same over HTTP/2, where senders may take a stream that ends before their body for a failure and never look at the status.
/// It covers deliveries that are refused for their size, up to four times the default limit of invoicing.
const DRAINED: usize = 1 << 20;

/// What is asked of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes that are kept.
    pub(super) bytes: usize,
    /// Bytes that are read.
    pub(super) most: usize,
    /// It must be there by then.
    pub(super) until: Instant,
}

/// A body that was read to its end.
#[derive(Debug)]
pub(super) enum Read {
    /// Here it is.
    Whole(Bytes),
    /// It was longer than what is kept.
    Oversized,
}

/// How long the body is announced to be.
pub(super) fn announced(body: &Body) -> Option<u64> {
    body.size_hint().exact()
}

/// Reads a body to its end. `check` has seen all of it then.
pub(super) async fn read(
    body: &mut Body,
    limits: Limits,
    check: &mut Check<'_>,
    held: &mut Unverified,
) -> Result<Read, RefusalReason> {
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
    Limits { bytes: limit, most, .. }: Limits,
    announced: Option<usize>,
    check: &mut Check<'_>,
    held: &mut Unverified,
) -> Result<Read, RefusalReason> {
    let expected = announced.unwrap_or(0);
    // Copied together, so that what is kept is as large as it is counted, whatever buffers it came in.
    let mut kept = (expected <= limit).then(|| Vec::with_capacity(expected.min(AHEAD)));
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
    Ok(kept.map_or(Read::Oversized, |kept| Read::Whole(Bytes::from(kept))))
}

/// Hashes bytes in pieces, each of which its source pays for before; lets others have their turn. `hashed` counts since the last.
pub(super) async fn hash(
    bytes: &[u8],
    running: &mut Running,
    held: &mut Unverified,
    hashed: &mut usize,
) -> Result<(), RefusalReason> {
    let secrets = running.secrets();
    if secrets == 0 {
        return Ok(());
    }
    for piece in bytes.chunks((TURN / secrets).max(1)) {
        let cost = piece.len().saturating_mul(secrets);
        if !held.hash(cost) {
            return Err(RefusalReason::Throttled);
        }
        running.update(piece);
        *hashed += cost;
        if *hashed >= TURN {
            *hashed = 0;
            yield_now().await;
        }
    }
    Ok(())
}

/// Lets the short body of a refused request come in, so that the answer is read. Whether that was all of it.
pub(super) async fn discard(mut body: Body, head: &Parts, until: Instant) -> bool {
    let most = if head.version >= Version::HTTP_2 { DRAINED } else { COURTESY };
    // Whoever waits for leave to send has sent nothing yet.
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

/// The next bytes; trailers are nobody's business.
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
