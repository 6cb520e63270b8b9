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
    started: Instant,
    /// The last movement, in microseconds after birth.
    touch: AtomicU64,
    /// Under a lock, so that no request begins on a connection that gives way, and none that has one does.
    state: Mutex<ConnectionState>,
    /// Rung when the connection is told to end.
    end_requested: Notify,
}

#[derive(Debug)]
struct ConnectionState {
    /// Handlers at work and answers that wait for their content.
    working: usize,
    /// When the last of them ended, or the connection began.
    idle_since: Instant,
    /// It was told to end, to make room for another.
    evicted: bool,
}

impl Activity {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        let state = ConnectionState { working: 0, idle_since: started, evicted: false };
        Self { started, touch: AtomicU64::new(0), state: Mutex::new(state), end_requested: Notify::new() }
    }

    /// When the connection began.
    pub(super) const fn started(&self) -> Instant {
        self.started
    }

    /// How long nothing has happened; zero while somebody works.
    pub(super) fn idle_for(&self) -> Duration {
        if self.state.lock().working > 0 {
            return Duration::ZERO;
        }
        self.started.elapsed().saturating_sub(Duration::from_micros(self.touch.load(Ordering::Relaxed)))
    }

    /// Work for as long as the result is kept; `None` once the connection gives way to another.
    pub(super) fn work(self: &Arc<Self>) -> Option<WorkGuard> {
        let mut state = self.state.lock();
        if state.evicted {
            return None;
        }
        state.working += 1;
        Some(WorkGuard(Arc::clone(self)))
    }

    /// Tells the connection to end, where nobody has worked for it since this moment. Otherwise since when nobody does, or
    /// `None` while somebody does.
    pub(super) fn evict(&self, since: Instant) -> Result<(), Option<Instant>> {
        let mut state = self.state.lock();
        if state.working > 0 {
            return Err(None);
        }
        if state.idle_since != since {
            return Err(Some(state.idle_since));
        }
        state.evicted = true;
        self.end_requested.notify_one();
        Ok(())
    }

    /// The answer of now is the last.
    pub(super) fn end_after_response(&self) {
        self.end_requested.notify_one();
    }

    /// Waits until the connection is told to end, and says whether at once, to make room for another, or after what it is doing.
    /// For one to wait for: whoever has waited has heard it.
    pub(super) async fn end_requested(&self) -> EndMode {
        self.end_requested.notified().await;
        if self.state.lock().evicted { EndMode::Now } else { EndMode::Gracefully }
    }

    /// Something has just happened.
    pub(super) fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.touch.store(now, Ordering::Relaxed);
    }
}

/// How a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndMode {
    /// Its slot is needed.
    Now,
    /// What it is doing comes first.
    Gracefully,
}

/// Somebody works for a connection.
#[derive(Debug)]
pub(super) struct WorkGuard(Arc<Activity>);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        // The moment first: without it a long piece of work would look like a long silence.
        self.0.touch();
        let mut state = self.0.state.lock();
        state.working -= 1;
        state.idle_since = Instant::now();
    }
}

/// A stream whose movements are noticed.
pub(super) fn track_io<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: T,
    activity: &Arc<Activity>,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + use<T> {
    let notice = || {
        let activity = Arc::clone(activity);
        move |bytes: &[u8]| {
            if !bytes.is_empty() {
                activity.touch();
            }
        }
    };
    InspectWriter::new(InspectReader::new(stream, notice()), notice())
}

/// An answer's body. While it waits for its own content that is work; while it waits for the client to read it is not.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    activity: Arc<Activity>,
    waiting: Option<WorkGuard>,
}

impl TrackedBody {
    pub(super) const fn new(body: Body, activity: Arc<Activity>) -> Self {
        Self { body, activity, waiting: None }
    }
}

impl http_body::Body for TrackedBody {
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
