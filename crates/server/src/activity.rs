//! Activity of one connection: bytes that move, running handlers, and response bodies that wait for their source.
//!
//! The idle timeout reads how long a connection has been inactive; slot eviction reads since when it has had no work.

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

/// Activity of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// When the connection started.
    pub(super) started: Instant,
    /// Last activity, in microseconds since `started`.
    touch: AtomicU64,
    /// One lock, so that an evicted connection starts no request and a connection with a request is not evicted.
    state: Mutex<ConnectionState>,
    /// Notified when the connection has to end.
    end_requested: Notify,
}

#[derive(Debug)]
struct ConnectionState {
    /// Running handlers, and responses that wait for their source.
    working: usize,
    /// When the last work ended, or the connection started.
    idle_since: Instant,
    /// Whether the connection lost its slot to a new one.
    evicted: bool,
}

impl Activity {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        let state = ConnectionState { working: 0, idle_since: started, evicted: false };
        Self { started, touch: AtomicU64::new(0), state: Mutex::new(state), end_requested: Notify::new() }
    }

    /// Time since the last activity; zero while there is work.
    pub(super) fn idle_for(&self) -> Duration {
        if self.state.lock().working > 0 {
            return Duration::ZERO;
        }
        self.started.elapsed().saturating_sub(Duration::from_micros(self.touch.load(Ordering::Relaxed)))
    }

    /// Counts as work until the result is dropped. `None` if the connection was evicted.
    pub(super) fn work(self: &Arc<Self>) -> Option<WorkGuard> {
        let mut state = self.state.lock();
        if state.evicted {
            return None;
        }
        state.working += 1;
        Some(WorkGuard(Arc::clone(self)))
    }

    /// Evicts the connection if it has been without work since exactly `since`.
    ///
    /// # Errors
    /// Since when it has been without work, or `None` while there is work.
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

    /// Ends the connection after the current response.
    pub(super) fn end_after_response(&self) {
        self.end_requested.notify_one();
    }

    /// Waits until the connection has to end: at once if it was evicted, otherwise gracefully. One waiter only: it consumes the
    /// notification.
    pub(super) async fn end_requested(&self) -> EndMode {
        self.end_requested.notified().await;
        if self.state.lock().evicted { EndMode::Now } else { EndMode::Gracefully }
    }

    /// Records activity now.
    pub(super) fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.touch.store(now, Ordering::Relaxed);
    }
}

/// How a connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndMode {
    /// At once: a new connection needs its slot.
    Now,
    /// After the current work.
    Gracefully,
}

/// Work on a connection, until dropped.
#[derive(Debug)]
pub(super) struct WorkGuard(Arc<Activity>);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        // Touch first, or the idle timeout would count a long request as inactivity.
        self.0.touch();
        let mut state = self.0.state.lock();
        state.working -= 1;
        state.idle_since = Instant::now();
    }
}

/// A stream that records every read and write as activity.
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

/// A response body. Waiting for its own source is work; waiting for the client to read is not.
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
