//! Reads a body within its time and its limit, and hashes it as it comes.
//!
//! Up to the limit bytes are kept; above it they are hashed and let go, up to [`BEYOND`] times the limit, to tell a provider
//! whose deliveries have become too large from a stranger who sends much. What is longer is not read.

use std::{future::poll_fn, pin::Pin};

use axum::body::Body;
use bytes::Bytes;
use http::{Version, header, request::Parts};
use http_body::Body as _;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{budget::Unverified, check::Check};
use crate::metrics::Refusal;

/// How many times the limit is read to find out whose the body is.
const BEYOND: usize = 4;
/// Bytes that are hashed, over all secrets, before others get their turn.
const TURN: usize = 1 << 20;
/// Most bytes that are set aside because a body is announced to be so long.
const AHEAD: usize = 64 << 10;
/// Most bytes of a body that nobody wants and that are read all the same: a connection closed on top of bytes that are still
/// coming takes the answer with it.
const COURTESY: usize = 64 << 10;

/// What is asked of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes that are kept.
    pub(super) bytes: usize,
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
    body: Body,
    limits: Limits,
    check: &mut Check,
    held: &mut Unverified,
) -> Result<Read, Refusal> {
    let most = limits.bytes.saturating_mul(BEYOND);
    let announced = announced(&body).map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if announced.is_some_and(|length| length > most) {
        return Err(Refusal::Oversized);
    }
    timeout_at(limits.until, read_on(body, limits.bytes, most, announced, check, held))
        .await
        .unwrap_or(Err(Refusal::Slow))
}

async fn read_on(
    mut body: Body,
    limit: usize,
    most: usize,
    announced: Option<usize>,
    check: &mut Check,
    held: &mut Unverified,
) -> Result<Read, Refusal> {
    let expected = announced.unwrap_or(0);
    // Copied together, so that what is kept is as large as it is counted, whatever buffers it came in.
    let mut kept = (expected <= limit).then(|| Vec::with_capacity(expected.min(AHEAD)));
    let (mut length, mut hashed) = (0_usize, 0_usize);
    while let Some(bytes) = next(&mut body).await? {
        length = length.saturating_add(bytes.len());
        if length > most {
            return Err(Refusal::Oversized);
        }
        if length > limit && kept.take().is_some() {
            held.clear();
        }
        if let Some(kept) = &mut kept {
            if !held.grow(bytes.len()) {
                return Err(Refusal::Shed);
            }
            let room = kept.capacity() - kept.len();
            if room < bytes.len() {
                let wanted = (kept.len() + bytes.len()).max(2 * kept.capacity()).min(limit.max(length));
                kept.reserve_exact(wanted - kept.len());
            }
            kept.extend_from_slice(&bytes);
        }
        for piece in bytes.chunks((TURN / check.passes().max(1)).max(1)) {
            check.update(piece);
            hashed += piece.len().saturating_mul(check.passes());
            if hashed >= TURN {
                hashed = 0;
                yield_now().await;
            }
        }
    }
    Ok(kept.map_or(Read::Oversized, |kept| Read::Whole(Bytes::from(kept))))
}

/// Lets the short body of a refused request come in, so that the answer is read. Whether that was all of it.
pub(super) async fn discard(mut body: Body, head: &Parts, until: Instant) -> bool {
    // A stream of HTTP/2 can end without its body, and is not to hold its head for it.
    if head.version >= Version::HTTP_2 {
        return body.is_end_stream();
    }
    // Whoever waits for leave to send has sent nothing yet.
    let waits = head.headers.contains_key(header::EXPECT);
    if waits || announced(&body).is_some_and(|length| length > COURTESY as u64) {
        return body.is_end_stream();
    }
    let all = async {
        let mut left = COURTESY;
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
async fn next(body: &mut Body) -> Result<Option<Bytes>, Refusal> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(_)) => return Err(Refusal::Broken),
        }
    }
}
