//! A TCP proxy that misbehaves on request: it stalls, slows or cuts what passes through it.
//!
//! Bytes are held, never dropped: after [`Proxy::heal`] a stalled connection continues where it was.
//! Connections and the listener end with the proxy.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::{Error, Result};

const CHUNK: usize = 8 * 1024;

/// How the proxy treats what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyMode {
    Open,
    Stalled { requests: bool },
    Cut,
    Slow { delay: Duration, bytes_per_second: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Responses,
}

/// A way to `target` that a test can disturb.
pub(crate) struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<ProxyMode>,
    accepting: AbortHandle,
}

impl Proxy {
    /// Listens on a free port of loopback and passes every connection to `target`, which need not listen yet.
    pub(crate) async fn to(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(|error| Error(format!("open a proxy to {target}: {error}")))?;
        let address =
            listener.local_addr().map_err(|error| Error(format!("open a proxy to {target}: {error}")))?;
        let (mode, modes) = watch::channel(ProxyMode::Open);
        let accepting = tokio::spawn(accept(listener, target, modes)).abort_handle();
        Ok(Self { address, mode, accepting })
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds all bytes in both directions; connections stay open and new ones are accepted.
    pub(crate) fn stall(&self) {
        self.mode.send_replace(ProxyMode::Stalled { requests: true });
    }

    /// Holds what the target answers; requests still reach it.
    pub(crate) fn stall_responses(&self) {
        self.mode.send_replace(ProxyMode::Stalled { requests: false });
    }

    /// Closes every connection, and each new one at once, until healed.
    pub(crate) fn cut(&self) {
        self.mode.send_replace(ProxyMode::Cut);
    }

    /// Delays each chunk of at most 8 KiB by `delay` and passes no more than `bytes_per_second` per
    /// direction.
    pub(crate) fn slow(&self, delay: Duration, bytes_per_second: u32) {
        self.mode.send_replace(ProxyMode::Slow { delay, bytes_per_second: bytes_per_second.max(1) });
    }

    /// Passes everything again, what was held first.
    pub(crate) fn heal(&self) {
        self.mode.send_replace(ProxyMode::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The accepting task owns the connections' tasks: they end with it.
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, modes: watch::Receiver<ProxyMode>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // A connection that could not be accepted is gone already; the next one may work.
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                connections.spawn(connect(client, target, modes.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Any error on either side ends the connection on both, as it would without a proxy between.
async fn connect(client: TcpStream, target: SocketAddr, mut modes: watch::Receiver<ProxyMode>) {
    if *modes.borrow() == ProxyMode::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    // Without Nagle's algorithm, which would delay small answers.
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = pump(from_client, to_server, Direction::Requests, modes.clone());
    let responses = pump(from_server, to_client, Direction::Responses, modes.clone());
    tokio::select! {
        _ = async { tokio::try_join!(requests, responses) } => {}
        // An error means the proxy is gone, and the connection with it.
        _ = modes.wait_for(|mode| *mode == ProxyMode::Cut) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut modes: watch::Receiver<ProxyMode>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).await?;
        pass(direction, length, &mut modes).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..length]).await?;
    }
}

/// Returns when `length` bytes may pass in this direction.
async fn pass(direction: Direction, length: usize, modes: &mut watch::Receiver<ProxyMode>) -> io::Result<()> {
    let mode = *modes
        .wait_for(|mode| match mode {
            ProxyMode::Stalled { requests } => !requests && direction == Direction::Requests,
            _ => true,
        })
        .await
        .map_err(io::Error::other)?;
    if let ProxyMode::Slow { delay, bytes_per_second } = mode {
        let transfer = Duration::from_secs_f64(length as f64 / f64::from(bytes_per_second));
        // Healing ends the wait too; otherwise a test that slowed a link could not continue.
        tokio::time::timeout(delay + transfer, modes.wait_for(|mode| *mode == ProxyMode::Open)).await.ok();
    }
    Ok(())
}
