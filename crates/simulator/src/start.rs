//! Starts a simulator: certificate, listener, deliveries, and the world's own changes.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, header},
    middleware,
    response::Response,
};
use tokio::{net::TcpListener, time::MissedTickBehavior};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use url::Url;

use server::{Server, ServerOptions};

use super::{
    Core, Error, SimulatedProvider, accounting, control, deliveries, gateway, identity, invoicing, reads,
    settings::{Settings, Tls},
};

const MAX_CONNECTIONS: usize = 10_000;
/// How often the changes due by `changesPerSecond` are made.
const CHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// A world that cannot keep up skips changes instead of falling behind forever.
const MAX_CHANGES_PER_INTERVAL: f64 = 100_000.0;
/// How long requests in progress may take when the simulator stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running provider.
///
/// Dropping it stops it at once; [`Simulator::stop`] lets requests finish.
#[derive(Debug)]
pub struct Simulator {
    provider: Arc<SimulatedProvider>,
    server: Server,
    certificate: Option<String>,
    stop: DropGuard,
    tasks: TaskTracker,
}

impl Simulator {
    /// Starts a simulator; it accepts requests when this returns.
    ///
    /// # Errors
    /// The address cannot be bound, or a certificate, key or setting is invalid.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let wanted = settings.address;
        let (tls, certificate) = serving_certificate(&settings.tls)?;
        let provider = SimulatedProvider::new(settings)?;
        let listen = |source| Error::Listen { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(listen)?;
        let options = ServerOptions {
            tls,
            connections: MAX_CONNECTIONS,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(60),
            ..ServerOptions::default()
        };
        let server = Server::start(listener, router(&provider), options).map_err(listen)?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let (delivering, stopped) = (Arc::clone(&provider), stop.clone());
        tasks.spawn(async move { deliveries::run(&delivering.deliveries, &*delivering, stopped).await });
        tasks.spawn(change_by_itself(Arc::clone(&provider), stop.clone()));
        tasks.close();
        Ok(Self { provider, server, certificate, stop: stop.drop_guard(), tasks })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// `{base_url}` of the document.
    pub fn base_url(&self) -> Url {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        let text = format!("{scheme}://{}", self.address());
        Url::parse(&text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
    }

    /// `{auth_url}` of the document: the same listener under the name `localhost`.
    pub fn auth_url(&self) -> Url {
        let mut url = self.base_url();
        if self.address().ip().is_loopback() {
            url.set_host(Some("localhost")).ok();
        }
        url
    }

    /// The certificate it serves with, as PEM. Clients have to trust it.
    pub fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// The provider's parts: knobs, world, truth.
    pub fn provider(&self) -> &Arc<SimulatedProvider> {
        &self.provider
    }

    /// Stops listening, lets requests in progress finish, and ends deliveries.
    pub async fn stop(self) {
        drop(self.stop);
        self.server.stop(SHUTDOWN_TIMEOUT).await;
        self.tasks.wait().await;
    }
}

fn router(provider: &Arc<SimulatedProvider>) -> Router {
    let apis = Router::new()
        .merge(reads::router().with_state(Arc::clone(provider)))
        .merge(accounting::router(&provider.accounting))
        .merge(invoicing::router(&provider.invoicing));
    Router::new()
        .merge(identity::router(&provider.identity))
        .merge(control::router().with_state(Arc::clone(provider)))
        .merge(gateway::guard(&provider.gateway, apis))
        .layer(middleware::map_response_with_state(Arc::clone(&provider.core), set_date))
}

/// Dates an answer by the provider's clock instead of the machine's, unless a transcript has dated it.
async fn set_date(State(core): State<Arc<Core>>, mut answer: Response) -> Response {
    if let Ok(date) = HeaderValue::try_from(core.clock.now().http_date()) {
        answer.headers_mut().entry(header::DATE).or_insert(date);
    }
    answer
}

/// Changes the world at the rate of `changesPerSecond`.
async fn change_by_itself(provider: Arc<SimulatedProvider>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(CHANGE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = tokio::time::Instant::now();
    let mut due = 0.0;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            now = ticks.tick() => {
                due += provider.knobs().changes_per_second.max(0.0) * (now - last).as_secs_f64();
                last = now;
            }
        }
        due = due.min(MAX_CHANGES_PER_INTERVAL);
        let whole = due.floor();
        due -= whole;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the most")]
        let steps = provider.step_while(whole as u64, || provider.knobs().changes_per_second > 0.0);
        if stop.run_until_cancelled(steps).await.is_none() {
            return;
        }
    }
}

type Serving = (Option<Arc<rustls::ServerConfig>>, Option<String>);

fn serving_certificate(tls: &Tls) -> Result<Serving, Error> {
    let (chain, key) = match tls {
        Tls::Off => return Ok((None, None)),
        Tls::Given { certificate, key } => (certificate.clone(), key.clone()),
        Tls::Generated => {
            let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
            let made = rcgen::generate_simple_self_signed(names).map_err(|source| Error::Certificate {
                what: "generate a certificate for localhost",
                source: source.into(),
            })?;
            (made.cert.pem(), made.signing_key.serialize_pem())
        }
    };
    let config = server::tls(&chain, &key)
        .map_err(|error| Error::Certificate { what: error.what, source: error.source })?;
    Ok((Some(config), Some(chain)))
}
