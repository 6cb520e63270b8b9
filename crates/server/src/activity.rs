//! What moves on a connection: its bytes, the handlers at work for it, and answers that wait for their own content.
//!
//! The watch over a connection asks how long nothing has happened, and whoever needs its slot since when nobody has worked for
//! it; everything here feeds those answers.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::Instant,
};
use tokio_util::io::{InspectReader, InspectWriter};

/// How busy one connection is.
#[derive(Debug)]
pub(super) struct Activity {
    born: Instant,
    /// The last movement, in microseconds after birth.
    moved: AtomicU64,
    /// Under a lock, so that no request begins on a connection that gives way, and none that has one does.
    standing: Mutex<Standing>,
    /// Rung when the connection is told to end.
    told: Notify,
}

#[derive(Debug)]
struct Standing {
    /// Handlers at work and answers that wait for their content.
    working: usize,
    /// When the last of them ended, or the connection began.
    rests_since: Instant,
    /// It was told to end, to make room for another.
    gave_way: bool,
}

impl Activity {
    pub(super) fn new() -> Self {
        let born = Instant::now();
        let standing = Standing { working: 0, rests_since: born, gave_way: false };
        Self { born, moved: AtomicU64::new(0), standing: Mutex::new(standing), told: Notify::new() }
    }

    /// When the connection began.
    pub(super) const fn born(&self) -> Instant {
        self.born
    }

    /// How long nothing has happened; zero while somebody works.
    pub(super) fn quiet(&self) -> Duration {
        if self.standing.lock().working > 0 {
            return Duration::ZERO;
        }
        self.born.elapsed().saturating_sub(Duration::from_micros(self.moved.load(Ordering::Relaxed)))
    }

    /// Work for as long as the result is kept; `None` once the connection gives way to another.
    pub(super) fn work(self: &Arc<Self>) -> Option<Work> {
        let mut standing = self.standing.lock();
        if standing.gave_way {
            return None;
        }
        standing.working += 1;
        Some(Work(Arc::clone(self)))
    }

    /// Tells the connection to end, where nobody has worked for it since this moment. Otherwise since when nobody does, or
    /// `None` while somebody does.
    pub(super) fn give_way(&self, since: Instant) -> Result<(), Option<Instant>> {
        let mut standing = self.standing.lock();
        if standing.working > 0 {
            return Err(None);
        }
        if standing.rests_since != since {
            return Err(Some(standing.rests_since));
        }
        standing.gave_way = true;
        self.told.notify_one();
        Ok(())
    }

    /// The answer of now is the last.
    pub(super) fn had_its_last(&self) {
        self.told.notify_one();
    }

    /// Waits until the connection is told to end, and says whether at once, to make room for another, or after what it is doing.
    /// For one to wait for: whoever has waited has heard it.
    pub(super) async fn told(&self) -> End {
        self.told.notified().await;
        if self.standing.lock().gave_way { End::Now } else { End::Gracefully }
    }

    /// Something has just happened.
    pub(super) fn moved(&self) {
        let now = u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved.store(now, Ordering::Relaxed);
    }
}

/// How a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its slot is needed.
    Now,
    /// What it is doing comes first.
    Gracefully,
}

/// Somebody works for a connection.
#[derive(Debug)]
pub(super) struct Work(Arc<Activity>);

impl Drop for Work {
    fn drop(&mut self) {
        // The moment first: without it a long piece of work would look like a long silence.
        self.0.moved();
        let mut standing = self.0.standing.lock();
        standing.working -= 1;
        standing.rests_since = Instant::now();
    }
}

/// A stream whose movements are noticed.
pub(super) fn moving<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: T,
    activity: &Arc<Activity>,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + use<T> {
    let notice = || {
        let activity = Arc::clone(activity);
        move |bytes: &[u8]| {
            if !bytes.is_empty() {
                activity.moved();
            }
        }
    };
    InspectWriter::new(InspectReader::new(stream, notice()), notice())
}

/// An answer's body. While it waits for its own content that is work; while it waits for the client to read it is not.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    activity: Arc<Activity>,
    waiting: Option<Work>,
}

impl Answer {
    pub(super) const fn new(body: Body, activity: Arc<Activity>) -> Self {
        Self { body, activity, waiting: None }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.waiting = None;
        } else if self.waiting.is_none() {
            self.waiting = self.activity.work();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
