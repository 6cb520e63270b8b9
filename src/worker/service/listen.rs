//! The admin listeners: bound before anything else, and answering from then on.

use std::{fs, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State as Shared},
    response::Response,
};
use tokio::net::{TcpListener, lookup_host};
use tower_service::Service as _;

use super::Error;
use crate::{
    config::{self, Listener, worker::Tls},
    metrics,
    server::{self, Certificates, Options, Server},
    worker::{
        health::Health,
        ingest::Ingest,
        rest::{self, Security},
    },
};

/// Connections of one admin listener: tools poll, they do not stream.
const CONNECTIONS: usize = 1_024;

/// The longest a TLS handshake of a sender may take. Who delivers answers in a second.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The longest the head of a delivery may take, and a connection may stay without one.
const HEAD: Duration = Duration::from_secs(15);

/// Binds and serves all of them.
pub(super) async fn bind(worker: &config::Worker, health: &Arc<Health>) -> Result<Vec<Server>, Error> {
    let tls = worker.rest.tls.as_ref().map(certificate).transpose()?;
    let (tls, ends_at) = tls.unzip();
    if let Some(at) = ends_at.flatten().filter(|_| worker.listeners.iter().any(|one| one.tls)) {
        metrics::certificate_expires("rest", at);
    }
    let security = Security::new(&worker.rest)?;
    let router = rest::protect(health.router().fallback(api).with_state(Arc::clone(health)), security);
    let mut servers = Vec::new();
    for listener in &worker.listeners {
        let failed = |source| Error::Listen { listener: url(listener), source };
        let bound = bind_one(listener).await.map_err(failed)?;
        let options = Options {
            tls: tls.clone().filter(|_| listener.tls),
            connections: CONNECTIONS,
            ..Options::default()
        };
        servers.push(Server::start(bound, router.clone(), options).map_err(failed)?);
    }
    Ok(servers)
}

/// Binds and serves the public listeners, which know the webhook routes and nothing else.
pub(super) async fn receive(worker: &config::Worker, ingest: &mut Ingest) -> Result<(), Error> {
    let webhook = &worker.webhook;
    let certificates = webhook.tls.as_ref().map(|files| Certificates::load(&files.certificate, &files.key));
    let certificates = certificates.transpose()?.filter(|_| webhook.listeners.iter().any(|one| one.tls));
    let tls = certificates.as_ref().map(Certificates::tls).transpose()?;
    let mut servers = Vec::new();
    for listener in &webhook.listeners {
        let failed = |source| Error::Listen { listener: url(listener), source };
        let bound = bind_one(listener).await.map_err(failed)?;
        let options = Options {
            tls: tls.clone().filter(|_| listener.tls),
            connections: webhook.connections,
            handshake: HANDSHAKE,
            head: HEAD,
            per_address: webhook.connections_per_address,
            exempt: webhook.proxies.clone(),
        };
        servers.push(Server::start(bound, ingest.routes(), options).map_err(failed)?);
    }
    let watching = certificates
        .map(|certificates| tokio::spawn(certificates.watch(webhook.reload_interval, ingest.cancelled())));
    ingest.serve(servers, watching);
    Ok(())
}

/// Everything but health and metrics: the REST API, once there is one.
async fn api(Shared(health): Shared<Arc<Health>>, request: Request) -> Response {
    match health.api().await {
        // A router never fails and is always ready.
        Some(mut router) => match router.call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        },
        None => health.not_yet(),
    }
}

/// What listeners with these files serve, and when it ends where that can be read.
///
/// # Errors
/// A file cannot be read, or the two do not fit.
pub(crate) fn certificate(files: &Tls) -> Result<(Arc<rustls::ServerConfig>, Option<i64>), Error> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|source| Error::File { path: path.clone(), source })
    };
    let chain = read(&files.certificate)?;
    Ok((server::tls(&chain, &read(&files.key)?)?, server::expiry(&chain)))
}

async fn bind_one(listener: &Listener) -> io::Result<TcpListener> {
    let host = listener.host.trim_matches(['[', ']']);
    let addresses: Vec<SocketAddr> = lookup_host((host, listener.port)).await?.collect();
    TcpListener::bind(addresses.as_slice()).await
}

fn url(listener: &Listener) -> String {
    format!("{}://{}:{}", if listener.tls { "https" } else { "http" }, listener.host, listener.port)
}
