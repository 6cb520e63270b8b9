//! One way to serve HTTP: every listener of the product and of the simulator is one of these.
//!
//! Accepts, shakes hands in a task of its own so that a silent client holds up nobody, speaks HTTP/1.1 and 2, and ends in
//! order: stop accepting, let running requests finish until a deadline, then cut.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use tokio::net::TcpListener;

/// How a listener treats its connections.
#[derive(Debug, Clone)]
pub struct Options {
    /// HTTPS with this configuration; plain HTTP without.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// The longest a TLS handshake may take.
    pub handshake: Duration,
    /// The longest a request's head may take to arrive, and an idle connection may stay without one.
    pub head: Duration,
}

/// An extension of a response that is never sent: the connection ends instead, without a word.
#[derive(Debug, Clone, Copy)]
pub struct HangUp;

/// A running listener. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Server {}

impl Server {
    /// Serves `router` on a bound listener. Handlers find the peer's address as `ConnectInfo<SocketAddr>`.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn start(listener: TcpListener, router: Router, options: Options) -> io::Result<Self> {
        todo!()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        todo!()
    }

    /// Stops accepting, waits for running requests up to `within`, then cuts. Whether all had finished.
    pub async fn stop(self, within: Duration) -> bool {
        todo!()
    }
}
