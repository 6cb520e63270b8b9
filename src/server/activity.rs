//! What moves on a connection: its bytes, the handlers at work for it, and answers that wait for their own content.
//!
//! The watch over a connection asks one question, how long nothing has happened; everything here feeds that answer.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// How busy one connection is.
#[derive(Debug)]
pub(super) struct Activity {
    born: Instant,
    /// The last movement, in microseconds after birth.
    moved: AtomicU64,
    /// Handlers at work and answers that wait for their content.
    working: AtomicUsize,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self { born: Instant::now(), moved: AtomicU64::new(0), working: AtomicUsize::new(0) }
    }

    /// How long nothing has happened; zero while somebody works.
    pub(super) fn quiet(&self) -> Duration {
        if self.working.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.born.elapsed().saturating_sub(Duration::from_micros(self.moved.load(Ordering::Relaxed)))
    }

    /// Work for as long as the result is kept.
    pub(super) fn work(self: &Arc<Self>) -> Work {
        self.working.fetch_add(1, Ordering::Relaxed);
        Work(Arc::clone(self))
    }

    fn moved(&self) {
        let now = u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved.store(now, Ordering::Relaxed);
    }
}

/// Somebody works for a connection.
#[derive(Debug)]
pub(super) struct Work(Arc<Activity>);

impl Drop for Work {
    fn drop(&mut self) {
        // The moment first: without it a long piece of work would look like a long silence.
        self.0.moved();
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream whose movements are noticed.
#[derive(Debug)]
pub(super) struct Moving<T> {
    stream: T,
    activity: Arc<Activity>,
}

impl<T> Moving<T> {
    pub(super) const fn new(stream: T, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    fn noticed(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = polled {
            self.activity.moved();
        }
        polled
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Moving<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.activity.moved();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Moving<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noticed(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.noticed(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
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
            self.waiting = Some(self.activity.work());
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
