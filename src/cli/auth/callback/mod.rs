//! The loopback listener that takes the browser's one callback.
//!
//! ```text
//! browser ──▶ 127.0.0.1 or ::1, one port ──▶ GET, host, path ──▶ first one: Callback ─▶ `LoginFlow`
//!    ◀── page ◀─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - It listens on both loopback addresses, since `localhost` may mean either, and on no other.
//! - Only a GET with this host and path is a callback. Other requests are refused and change nothing, so that neither a favicon
//!   request nor another site's form ends the login.
//! - The first callback is handed over, whatever its content; later ones get a page that says that the login is answered.
//! - The page is sent once the result of the login is known.
//!
//! If the port is taken, nothing listens. A callback that is dropped gets a page that says that the login was given up.

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

use server::{Server, ServerOptions};

use super::page::LoginPage;

/// Browsers open several connections in advance.
const MAX_CONNECTIONS: usize = 32;
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const PAGE_SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts to find a port that is free on both addresses.
const PORT_ATTEMPTS: usize = 16;

/// Path of the redirect address, unless `oauth.redirect.uri` is set.
pub(in crate::cli) const DEFAULT_PATH: &str = "/callback";

/// A redirect address that this machine listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct ListenAddress {
    /// 0 for any free port.
    pub(in crate::cli) port: u16,
    /// With the leading slash.
    pub(in crate::cli) path: String,
}

/// A callback whose browser waits for a page.
#[derive(Debug)]
pub(super) struct Callback {
    /// The raw query.
    pub(super) query: String,
    answer: oneshot::Sender<LoginPage>,
}

impl Callback {
    /// Sends the page to the browser.
    pub(super) fn show(self, page: LoginPage) {
        // The browser may be closed.
        self.answer.send(page).ok();
    }
}

/// A running listener. Dropping it ends all connections at once.
#[derive(Debug)]
pub(in crate::cli) struct CallbackListener {
    redirect: String,
    servers: Vec<Server>,
    callbacks: mpsc::Receiver<Callback>,
}

impl CallbackListener {
    /// # Errors
    /// The port is taken, or this machine has no loopback address.
    pub(in crate::cli) async fn bind(place: &ListenAddress) -> io::Result<Self> {
        let (port, listeners) = listen(place.port).await?;
        let (sender, callbacks) = mpsc::channel(1);
        let route =
            Arc::new(CallbackRoute { port, path: place.path.clone(), used: AtomicBool::new(false), sender });
        let router = Router::new().fallback(handle).with_state(route);
        let options = ServerOptions {
            connections: MAX_CONNECTIONS,
            head: READ_TIMEOUT,
            handshake: READ_TIMEOUT,
            ..ServerOptions::default()
        };
        let servers = listeners
            .into_iter()
            .map(|listener| Server::start(listener, router.clone(), options.clone()))
            .collect::<io::Result<_>>()?;
        let redirect = format!("http://localhost:{port}{}", place.path);
        Ok(Self { redirect, servers, callbacks })
    }

    /// The redirect address.
    pub(in crate::cli) fn redirect(&self) -> &str {
        &self.redirect
    }

    /// Waits for the callback.
    pub(super) async fn callback(&mut self) -> Callback {
        match self.callbacks.recv().await {
            Some(callback) => callback,
            None => std::future::pending().await,
        }
    }

    /// Stops the listener after the page is sent.
    pub(super) async fn close(self) {
        for server in self.servers {
            server.stop(PAGE_SEND_TIMEOUT).await;
        }
    }
}

/// Listens on both loopback addresses with the same port.
async fn listen(port: u16) -> io::Result<(u16, Vec<TcpListener>)> {
    let mut tries = if port == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let found = first.local_addr()?.port();
        tries -= 1;
        match TcpListener::bind(SocketAddr::from((Ipv6Addr::LOCALHOST, found))).await {
            Ok(second) => return Ok((found, vec![first, second])),
            // Another process on this address would get the callbacks of browsers that prefer it.
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
    // The channel has room, because only one request gets here.
    let handed = route.sender.try_send(Callback { query, answer }).is_ok();
    match page.await {
        Ok(page) if handed => page.into_response(),
        _ => LoginPage::UNFINISHED.into_response(),
    }
}

/// Whether the request names `localhost` with this port. A foreign name that resolves to this machine does not match.
fn is_host(uri: &Uri, headers: &HeaderMap, port: u16) -> bool {
    let sent = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = uri.authority().map(|authority| authority.as_str()).or(sent) else {
        return false;
    };
    match host.rsplit_once(':') {
        Some((name, digits)) => name.eq_ignore_ascii_case("localhost") && digits == port.to_string(),
        // Browsers omit the scheme's default port.
        None => host.eq_ignore_ascii_case("localhost") && port == 80,
    }
}

#[cfg(test)]
mod tests;
