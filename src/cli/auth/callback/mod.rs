//! Where the browser comes back to: a listener on this machine alone, for one callback.
//!
//! ```text
//! browser ──▶ 127.0.0.1 or ::1, one port ──▶ GET, host, path ──▶ first one: Callback ─▶ `LoginFlow`
//!    ◀── page ◀─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - Both loopback addresses, since `localhost` may mean either; never another.
//! - Only what a browser sends that was redirected counts: a GET with this host on this path. Anything else gets its refusal
//!   and changes nothing, so that neither a tab icon nor another site's form ends the login.
//! - The first callback is handed over, whatever it says; all later ones get a page that says that they are late.
//! - The page is shown once it is known how the login went.
//!
//! On failure, that is a port that is taken, nothing listens. A callback that is dropped undecided gets a page that says so.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, Method, Uri, header},
    response::{IntoResponse as _, Response},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

use server::{Options, Server};

use super::page::LoginPage;

/// Connections at once: browsers open some ahead of need.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may be silent.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a page that has been decided may take to be sent.
const PAGE_SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a free port is looked for that both addresses have.
const PORT_ATTEMPTS: usize = 16;

/// Where the browser comes back to unless a setting says otherwise.
pub(in crate::cli) const DEFAULT_PATH: &str = "/callback";

/// A redirect address that this machine listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct ListenAddress {
    /// 0 for any free one.
    pub(in crate::cli) port: u16,
    /// With its first slash.
    pub(in crate::cli) path: String,
}

/// A callback that waits for its page.
#[derive(Debug)]
pub(super) struct Callback {
    /// All after the question mark, as it was sent.
    pub(super) query: String,
    answer: oneshot::Sender<LoginPage>,
}

impl Callback {
    /// Shows the person how it went.
    pub(super) fn show(self, page: LoginPage) {
        // A browser that was closed has seen enough.
        self.answer.send(page).ok();
    }
}

/// A running listener. Dropping it ends all connections at once.
#[derive(Debug)]
pub(in crate::cli) struct Listener {
    redirect: String,
    servers: Vec<Server>,
    callbacks: mpsc::Receiver<Callback>,
}

impl Listener {
    /// Listens from now on.
    ///
    /// # Errors
    /// The port is taken, or this machine has no loopback address.
    pub(in crate::cli) async fn bind(place: &ListenAddress) -> io::Result<Self> {
        let (port, listeners) = listen(place.port).await?;
        let (sender, callbacks) = mpsc::channel(1);
        let route =
            Arc::new(CallbackRoute { port, path: place.path.clone(), used: AtomicBool::new(false), sender });
        let router = Router::new().fallback(handle).with_state(route);
        let options = Options {
            connections: MAX_CONNECTIONS,
            head: READ_TIMEOUT,
            handshake: READ_TIMEOUT,
            ..Options::default()
        };
        let servers = listeners
            .into_iter()
            .map(|listener| Server::start(listener, router.clone(), options.clone()))
            .collect::<io::Result<_>>()?;
        let redirect = format!("http://localhost:{port}{}", place.path);
        Ok(Self { redirect, servers, callbacks })
    }

    /// The address to be redirected to.
    pub(in crate::cli) fn redirect(&self) -> &str {
        &self.redirect
    }

    /// The one callback. Does not end otherwise.
    pub(super) async fn callback(&mut self) -> Callback {
        match self.callbacks.recv().await {
            Some(callback) => callback,
            None => std::future::pending().await,
        }
    }

    /// Ends once the page has gone out.
    pub(super) async fn close(self) {
        for server in self.servers {
            server.stop(PAGE_SEND_TIMEOUT).await;
        }
    }
}

/// Listens on both loopback addresses, on one port.
async fn listen(port: u16) -> io::Result<(u16, Vec<TcpListener>)> {
    let mut tries = if port == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let found = first.local_addr()?.port();
        tries -= 1;
        match TcpListener::bind(SocketAddr::from((Ipv6Addr::LOCALHOST, found))).await {
            Ok(second) => return Ok((found, vec![first, second])),
            // Somebody who listens on the other address would get callbacks of browsers that prefer it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if tries == 0 {
                    return Err(error);
                }
            }
            // A machine without IPv6.
            Err(_) => return Ok((found, vec![first])),
        }
    }
}

/// What every request is held against.
struct CallbackRoute {
    port: u16,
    path: String,
    used: AtomicBool,
    sender: mpsc::Sender<Callback>,
}

async fn handle(State(route): State<Arc<CallbackRoute>>, request: Request) -> Response {
    if !is_host(request.uri(), request.headers(), route.port) {
        return LoginPage::WRONG_HOST.into_response();
    }
    if request.uri().path() != route.path {
        return LoginPage::WRONG_PATH.into_response();
    }
    if request.method() != Method::GET {
        return LoginPage::WRONG_METHOD.into_response();
    }
    if route.used.swap(true, Ordering::SeqCst) {
        return LoginPage::LATE.into_response();
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    drop(request);
    let (answer, page) = oneshot::channel();
    // There is room: this is the only one that ever comes this far.
    let handed = route.sender.try_send(Callback { query, answer }).is_ok();
    match page.await {
        Ok(page) if handed => page.into_response(),
        _ => LoginPage::UNFINISHED.into_response(),
    }
}

/// Whether a request names the host that it was redirected to. A name of another's that leads here does not count.
fn is_host(uri: &Uri, headers: &HeaderMap, port: u16) -> bool {
    let sent = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = uri.authority().map(|authority| authority.as_str()).or(sent) else {
        return false;
    };
    match host.rsplit_once(':') {
        Some((name, digits)) => name.eq_ignore_ascii_case("localhost") && digits == port.to_string(),
        // Browsers leave the port out where it is the scheme's own.
        None => host.eq_ignore_ascii_case("localhost") && port == 80,
    }
}

#[cfg(test)]
mod tests;
