//! One way to serve HTTP: every listener of the product and of the simulator is one of these.
//!
//! ```text
//! accept ──▶ a slot ──▶ task of its own: handshake ──▶ HTTP/1.1 or 2 ──▶ router
//!                                                          └─ watch: quiet for too long, gives way, told to stop, cut
//! ```
//!
//! Accepts, shakes hands in a task of its own so that a silent client holds up nobody, speaks HTTP/1.1 and 2, and ends in
//! order: stop accepting, let running requests finish until a deadline, then cut.
//!
//! - No connection holds its slot for nothing: one on which no byte moves for [`Options::head`] while no handler is at
//!   work ends, whether it sends no request, half of one, or reads no answer. How long a handler may wait for the body
//!   of its request is the handler's own business.
//! - Nor does it keep a newcomer waiting: where all slots are taken, the connection that is longest without a request gives
//!   way. One with a request at work never does; where all have one, the newcomer waits, and those after it in the kernel's
//!   queue.
//! - No address takes the place of all others ([`Options::per_address`]), and none keeps more of a head in memory than
//!   32 KiB.
//! - A connection that fails ends alone. An accept that fails (no descriptors left) is tried again after a moment.

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

/// How long after a failed accept the next is tried: long enough to close something, short enough to be unnoticed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long a connection that was told to end for its silence has to do so.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long tasks that were cut may take to notice; longer only if a handler blocks its thread.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 64;
/// Bytes of a request's head: none that we are sent has a tenth of it, and one that never ends must not grow.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// The same over HTTP/2, where a byte on the wire can stand for a header that was sent before and all of them take memory.
const MAX_HEADER_LIST_BYTES: u32 = 8 << 10;
/// Streams of one HTTP/2 connection that were reset before anybody looked at them; one more ends the connection.
const MAX_PENDING_RESETS: usize = 20;

/// How a listener treats its connections.
#[derive(Debug, Clone)]
pub struct Options {
    /// HTTPS with this configuration; plain HTTP without. Its ALPN list decides whether HTTP/2 is offered.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Connections at once, at least one. One more takes the place of the one that is longest without a request, and waits
    /// where all have one.
    pub connections: usize,
    /// The longest a TLS handshake may take.
    pub handshake: Duration,
    /// The longest a request's head may take to arrive, and an idle connection may stay without one.
    pub head: Duration,
    /// Connections at once from one address; one more is closed.
    pub per_address: usize,
    /// Networks for which there is no such limit: those of proxies, behind which everybody is.
    pub exempt: Vec<IpNet>,
}

impl Default for Options {
    /// Plain HTTP for tools: a thousand connections, from wherever they come.
    fn default() -> Self {
        Self {
            tls: None,
            connections: 1_024,
            handshake: Duration::from_secs(10),
            // Longer than a minute between two scrapes: a connection that is closed just when its next request comes fails it.
            head: Duration::from_secs(75),
            per_address: usize::MAX,
            exempt: Vec::new(),
        }
    }
}

/// An extension of a request: when its head was there. What a handler has waited for its turn since then, the client has too.
#[derive(Debug, Clone, Copy)]
pub struct Arrived(pub Instant);

/// An extension of a response that is never sent: the connection ends instead, without a word (over HTTP/2 its stream).
#[derive(Debug, Clone, Copy)]
pub struct HangUp;

/// An extension of a response after which its connection ends: over HTTP/2 no new streams are taken, and those under way are
/// answered.
#[derive(Debug, Clone, Copy)]
pub struct CloseAfter;

/// A running listener. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// No new connections, and the old ones end after what they are doing. A child of `cut`.
    stop: CancellationToken,
    /// Everything ends at once.
    cut: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Serves `router` on a bound listener. Handlers find the peer's address as `ConnectInfo<SocketAddr>`.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn start(listener: TcpListener, router: Router, options: Options) -> io::Result<Self> {
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
        let listener_state = Listener {
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

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, waits for running requests up to `within`, then cuts. Whether all had finished.
    pub async fn stop(self, within: Duration) -> bool {
        self.stop.cancel();
        self.tasks.close();
        let finished = timeout(within, self.tasks.wait()).await.is_ok();
        self.cut.cancel();
        if timeout(CUT_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!(address = %self.address, "a handler blocks its thread and was left behind");
        }
        finished
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

/// What all connections of one listener share.
struct Listener {
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

/// Runs the requests of HTTP/2 connections, so that a stop waits for them and a cut reaches them.
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

/// Why a connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("hung up on purpose")]
struct HungUp;

async fn accept(listener: TcpListener, listener_state: Arc<Listener>) {
    let stop = listener_state.stop.clone();
    stop.run_until_cancelled(async {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Nothing to close or give up here: descriptors come back as connections end.
                    tracing::warn!(%error, "accept a connection");
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            // Before the slot, so that who has too many already takes nobody's.
            let Some(place) = listener_state.addresses.enter(peer.ip()) else {
                metrics::connection_refused();
                tracing::debug!(%peer, "the address has as many connections as one may have");
                continue;
            };
            // One newcomer waits here at most; the others where they cost nothing.
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

/// Shakes hands where there is TLS, then serves.
async fn shake_hands(
    stream: TcpStream,
    peer: SocketAddr,
    listener_state: &Listener,
    activity: &Arc<Activity>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "the peer left before its connection was served");
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
        Ok(Err(error)) => tracing::debug!(%peer, %error, "no handshake"),
        Err(_) => tracing::debug!(%peer, "the handshake took too long"),
    }
}

/// Serves one connection until either side ends it, nothing moves on it any more, or the listener stops.
async fn serve<T>(stream: T, peer: SocketAddr, listener_state: &Listener, activity: &Arc<Activity>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // The handshake had a time of its own.
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
                    tracing::debug!(%peer, error, "a connection failed");
                }
                return;
            }
            told = activity.end_requested() => {
                if told == EndMode::Gracefully {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
                tracing::debug!(%peer, "a connection without a request gives way to a new one");
                // A word of goodbye if it can be said at once: its slot is needed.
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

/// One request. The future owns all it needs: HTTP/2 runs it apart from its connection.
fn answer(
    router: &Router,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    activity: Arc<Activity>,
) -> impl Future<Output = Result<Response<TrackedBody>, HungUp>> + Send + 'static + use<> {
    request.extensions_mut().insert(ConnectInfo(peer));
    request.extensions_mut().insert(Arrived(Instant::now()));
    // What comes over a connection that gives way was not begun, and its sender is told by its end.
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
