//! The HTTP server behind every listener of the product and the simulator.
//!
//! ```text
//! accept ──▶ slot ──▶ its own task: handshake ──▶ HTTP/1.1 or 2 ──▶ router
//!                                                     └─ ends on: idle timeout, eviction, stop, cut
//! ```
//!
//! Each handshake runs in its own task, so a silent client blocks no other. A stop ends in order: stop accepting, let running
//! requests finish until the deadline, then cut the rest.
//!
//! - An inactive connection loses its slot: it ends after [`ServerOptions::head`] without a byte and without a running handler, whether
//!   it sends no request, sends half of one, or does not read its response. Handlers limit how long they wait for a request body.
//! - A new connection does not wait for an idle one: when all slots are taken, the connection that has been without a request for
//!   longest is evicted. Connections with a running request are not; if all have one, the new connection waits, and the next ones
//!   wait in the kernel's queue.
//! - One address cannot take all slots ([`ServerOptions::per_address`]), and one request head takes at most 32 KiB of memory.
//! - A failing connection ends alone. A failing accept (no descriptors left) is retried after a moment.

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, extract::ConnectInfo, response::Response};
use hyper::{Request, body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use ipnet::IpNet;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use base::metrics;

use activity::{Activity, EndMode, TrackedBody, track_io};
use addresses::AddressLimit;
pub use certificate::{CertificateError, Certificates, tls};
use slots::Slots;

mod activity;
mod addresses;
mod certificate;
mod clients;
pub mod origin;
mod slots;

/// Wait after a failed accept: long enough for a descriptor to be freed, short enough to go unnoticed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long an inactive connection may take to close gracefully.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long cancelled tasks may take to end; only a handler that blocks its thread takes longer.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 64;
/// Size limit of a request head, ten times what our clients send.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// The same for HTTP/2, where header compression can expand one byte on the wire to a whole header in memory.
const MAX_HEADER_LIST_BYTES: u32 = 8 << 10;
/// Reset HTTP/2 streams that were not accepted yet; one more ends the connection.
const MAX_PENDING_RESETS: usize = 20;

/// Settings of a listener.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// HTTPS with this configuration, else plain HTTP. Its ALPN list decides whether HTTP/2 is offered.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Open connections, at least one. One more evicts the connection that has been without a request for longest, or waits if
    /// all have one.
    pub connections: usize,
    /// Time limit of a TLS handshake.
    pub handshake: Duration,
    /// Time limit for a request head, and for an idle connection without one.
    pub head: Duration,
    /// Open connections from one address; one more is closed.
    pub per_address: usize,
    /// Networks without that limit: trusted proxies, which carry many clients.
    pub exempt: Vec<IpNet>,
}

impl Default for ServerOptions {
    /// Plain HTTP for tools: 1,024 connections, without a limit per address.
    fn default() -> Self {
        Self {
            tls: None,
            connections: 1_024,
            handshake: Duration::from_secs(10),
            // Longer than a minute between two scrapes: closing a connection just as the next scrape arrives would fail it.
            head: Duration::from_secs(75),
            per_address: usize::MAX,
            exempt: Vec::new(),
        }
    }
}

/// Request extension: when the head had arrived. Time that a handler waits for its turn counts for the client too.
#[derive(Debug, Clone, Copy)]
pub struct Arrived(pub Instant);

/// Response extension: end the connection (over HTTP/2 the stream) instead of sending the response.
#[derive(Debug, Clone, Copy)]
pub struct HangUp;

/// Response extension: end the connection after this response. HTTP/2 accepts no new streams and answers the open ones.
#[derive(Debug, Clone, Copy)]
pub struct CloseAfter;

/// A running listener. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Stops accepting, and ends each connection after its current work. A child of `cut`.
    stop: CancellationToken,
    /// Ends everything at once.
    cut: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Serves `router` on a bound listener. Handlers get the peer address as `ConnectInfo<SocketAddr>`.
    ///
    /// # Errors
    /// The listener has no local address.
    pub fn start(listener: TcpListener, router: Router, options: ServerOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let cut = CancellationToken::new();
        let stop = cut.child_token();
        let tasks = TaskTracker::new();

        let mut http = auto::Builder::new(Streams { cut: cut.clone(), tasks: tasks.clone() });
        http.http1().timer(TokioTimer::new()).header_read_timeout(options.head).max_buf_size(MAX_HEAD_BYTES);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS);
        let listener_state = ListenerState {
            slots: Slots::new(options.connections),
            tls: options.tls.map(TlsAcceptor::from),
            handshake: options.handshake,
            head: options.head,
            addresses: AddressLimit::new(options.per_address, options.exempt),
            stop: stop.clone(),
            cut: cut.clone(),
            tasks: tasks.clone(),
            http,
            router,
        };
        tasks.spawn(accept(listener, Arc::new(listener_state)));
        Ok(Self { address, stop, cut, tasks })
    }

    /// The address that it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, waits for running requests until `within` is over, then cuts the rest. Whether all requests finished.
    pub async fn stop(self, within: Duration) -> bool {
        self.stop.cancel();
        self.tasks.close();
        let finished = timeout(within, self.tasks.wait()).await.is_ok();
        self.cut.cancel();
        if timeout(CUT_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!(address = %self.address, "a handler did not end after its cancellation; it blocks its thread");
        }
        finished
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

/// State shared by the connections of one listener.
struct ListenerState {
    slots: Arc<Slots>,
    tls: Option<TlsAcceptor>,
    handshake: Duration,
    head: Duration,
    addresses: Arc<AddressLimit>,
    stop: CancellationToken,
    cut: CancellationToken,
    tasks: TaskTracker,
    http: auto::Builder<Streams>,
    router: Router,
}

/// Spawns the requests of HTTP/2 connections, so that a stop waits for them and a cut ends them.
#[derive(Clone)]
struct Streams {
    cut: CancellationToken,
    tasks: TaskTracker,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.tasks.spawn(self.cut.clone().run_until_cancelled_owned(stream));
    }
}

/// Ends a connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("the handler asked to end the connection")]
struct HungUp;

async fn accept(listener: TcpListener, listener_state: Arc<ListenerState>) {
    let stop = listener_state.stop.clone();
    stop.run_until_cancelled(async {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Nothing can be freed here: descriptors return as connections end.
                    tracing::warn!(%error, "cannot accept a connection; retrying");
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            // Before taking a slot, so that an address over its limit takes no slot.
            let Some(place) = listener_state.addresses.enter(peer.ip()) else {
                metrics::connection_refused();
                tracing::debug!(%peer, "refused a connection: the address is at its connection limit");
                continue;
            };
            // One new connection waits here; the others wait in the kernel's queue.
            let Some(slot) = listener_state.slots.take().await else { return };
            let listener_state = Arc::clone(&listener_state);
            let (tasks, cut) = (listener_state.tasks.clone(), listener_state.cut.clone());
            tasks.spawn(cut.run_until_cancelled_owned(async move {
                shake_hands(stream, peer, &listener_state, &slot.activity).await;
                drop((slot, place));
            }));
        }
    })
    .await;
}

/// Performs the TLS handshake if there is TLS, then serves.
async fn shake_hands(
    stream: TcpStream,
    peer: SocketAddr,
    listener_state: &ListenerState,
    activity: &Arc<Activity>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "the peer closed its connection before the handshake");
        return;
    }
    let Some(tls) = &listener_state.tls else { return serve(stream, peer, listener_state, activity).await };
    let handshake = tokio::select! {
        handshake = timeout(listener_state.handshake, tls.accept(stream)) => handshake,
        _ = activity.end_requested() => return,
        () = listener_state.stop.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => serve(stream, peer, listener_state, activity).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "the TLS handshake timed out"),
    }
}

/// Serves one connection until it ends, is inactive for too long, is evicted, or the listener stops.
async fn serve<T>(stream: T, peer: SocketAddr, listener_state: &ListenerState, activity: &Arc<Activity>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // The handshake had its own time limit.
    activity.touch();
    let io = TokioIo::new(track_io(stream, activity));
    let service = service_fn(|request| answer(&listener_state.router, request, peer, Arc::clone(activity)));
    let mut connection = pin!(listener_state.http.serve_connection(io, service));
    let mut watch = pin!(sleep(listener_state.head));
    let (mut stopping, mut dismissed) = (false, false);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, error, "the connection failed");
                }
                return;
            }
            told = activity.end_requested() => {
                if told == EndMode::Gracefully {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
                tracing::debug!(%peer, "evicted an idle connection for a new one");
                // Send the goodbye only if it can be written at once: the slot is needed.
                connection.as_mut().graceful_shutdown();
                drop(futures::poll!(connection.as_mut()));
                return;
            }
            () = listener_state.stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = watch.as_mut() => {
                let idle_for = activity.idle_for();
                let left = listener_state.head.saturating_sub(idle_for);
                if !left.is_zero() {
                    watch.as_mut().reset(Instant::now() + left);
                } else if dismissed {
                    return;
                } else {
                    dismissed = true;
                    connection.as_mut().graceful_shutdown();
                    watch.as_mut().reset(Instant::now() + GRACEFUL_CLOSE_TIMEOUT);
                }
            }
        }
    }
}

/// Answers one request. The future owns its data, because HTTP/2 runs it apart from its connection.
fn answer(
    router: &Router,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    activity: Arc<Activity>,
) -> impl Future<Output = Result<Response<TrackedBody>, HungUp>> + Send + 'static + use<> {
    request.extensions_mut().insert(ConnectInfo(peer));
    request.extensions_mut().insert(Arrived(Instant::now()));
    // A request on an evicted connection is not started; its sender sees the connection end.
    let begun = activity.work().map(|work| (work, router.clone().call(request)));
    async move {
        let Some((work, response)) = begun else { return Err(HungUp) };
        let response = response.await.unwrap_or_else(|never: Infallible| match never {});
        drop(work);
        if response.extensions().get::<HangUp>().is_some() {
            return Err(HungUp);
        }
        if response.extensions().get::<CloseAfter>().is_some() {
            activity.end_after_response();
        }
        Ok(response.map(|body| TrackedBody::new(body, activity)))
    }
}

#[cfg(test)]
mod tests;
