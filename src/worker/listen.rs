//! The admin listeners: bound first, answering from then on.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State as Shared},
    response::Response,
};
use tokio::net::{TcpListener, lookup_host};
use tower_service::Service as _;

use server::{CertificateError, Certificates, Server, ServerOptions};

use super::Error;
use crate::{
    config::{
        self, Listener,
        worker::{ClientAuth, TlsFiles},
    },
    connect::rest::{self, Security},
    webhooks::ingest::Ingest,
    worker::health::Health,
};

/// Limit on the connections of an admin listener: tools poll, they do not stream.
const MAX_CONNECTIONS: usize = 1_024;

/// Limit on the TLS handshake of a sender of deliveries; a working one takes a second.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Limit on receiving the head of a delivery, and on an idle connection.
const HEAD_LIMIT: Duration = Duration::from_secs(15);

/// Binds and serves the admin listeners. Also returns the certificate of those with TLS, which has to be watched.
pub(super) async fn bind(
    worker: &config::Worker,
    health: &Arc<Health>,
) -> Result<(Vec<Server>, Option<Certificates>), Error> {
    let rest = &worker.rest;
    let certificates = rest.tls.as_ref().map(|files| certificate(files, rest.client_auth.as_ref()));
    let certificates = certificates.transpose()?;
    let security = Security::new(rest)?;
    let router = rest::protect(health.router().fallback(api).with_state(Arc::clone(health)), security);
    let options = ServerOptions { connections: MAX_CONNECTIONS, ..ServerOptions::default() };
    serve(&worker.listeners, certificates, &router, options).await
}

/// Binds and serves the public listeners, which have only the webhook routes.
pub(super) async fn receive(worker: &config::Worker, ingest: &mut Ingest) -> Result<(), Error> {
    let webhook = &worker.webhook;
    let certificates = webhook.tls.as_ref().map(|files| certificate(files, None)).transpose()?;
    let options = ServerOptions {
        tls: None,
        connections: webhook.connections,
        handshake: HANDSHAKE_LIMIT,
        head: HEAD_LIMIT,
        per_address: webhook.connections_per_address,
        exempt: webhook.proxies.clone(),
    };
    let (servers, certificates) = serve(&webhook.listeners, certificates, &ingest.routes(), options).await?;
    let watching = certificates.map(|certificates| {
        tokio::spawn(certificates.watch("webhook", webhook.reload_interval, ingest.cancelled()))
    });
    ingest.serve(servers, watching);
    Ok(())
}

/// Serves a router on these listeners. Also returns the certificates if a listener has TLS.
async fn serve(
    listeners: &[Listener],
    certificates: Option<Certificates>,
    router: &Router,
    options: ServerOptions,
) -> Result<(Vec<Server>, Option<Certificates>), Error> {
    let certificates = certificates.filter(|_| listeners.iter().any(|one| one.tls));
    let tls = certificates.as_ref().map(Certificates::tls).transpose()?;
    let mut servers = Vec::new();
    for listener in listeners {
        let failed = |source| Error::Listen { listener: url(listener), source };
        let bound = bind_one(listener).await.map_err(failed)?;
        let options = ServerOptions { tls: tls.clone().filter(|_| listener.tls), ..options.clone() };
        servers.push(Server::start(bound, router.clone(), options).map_err(failed)?);
    }
    Ok((servers, certificates))
}

/// Everything but health and metrics: the REST API, once it exists.
async fn api(Shared(health): Shared<Arc<Health>>, request: Request) -> Response {
    match health.api().await {
        // A router never fails and is always ready.
        Some(mut router) => {
            let Ok(answer) = router.call(request).await;
            answer
        }
        None => health.not_yet(),
    }
}

/// Loads the certificate of listeners with these files.
///
/// # Errors
/// A file cannot be read, or key and certificate do not match.
pub(crate) fn certificate(
    files: &TlsFiles,
    clients: Option<&ClientAuth>,
) -> Result<Certificates, CertificateError> {
    let TlsFiles { certificate, key } = files;
    match clients {
        Some(ClientAuth { authorities, required }) => {
            Certificates::load_verifying(certificate, key, authorities, *required)
        }
        None => Certificates::load(certificate, key),
    }
}

async fn bind_one(listener: &Listener) -> io::Result<TcpListener> {
    let host = listener.host.trim_matches(['[', ']']);
    let addresses: Vec<SocketAddr> = lookup_host((host, listener.port)).await?.collect();
    TcpListener::bind(addresses.as_slice()).await
}

fn url(listener: &Listener) -> String {
    format!("{}://{}:{}", if listener.tls { "https" } else { "http" }, listener.host, listener.port)
}
