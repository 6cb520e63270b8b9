//! For tests: a provider that delivers, and a receiver that notes what it gets and answers as told.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service as _;

use crate::{
    server::{Options, Server},
    simulator::{
        Provider,
        accounting::{self, WebhookState},
        deliveries::{Purpose, run},
        knobs::{AcknowledgeTime, Knobs, ReceiverUrls},
        random::Guid,
        settings::Settings,
    },
};

/// Longer than anything here may take; reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A provider with its deliveries running.
pub(in crate::simulator) struct Rig {
    pub(in crate::simulator) provider: Arc<Provider>,
    pub(in crate::simulator) stop: CancellationToken,
    _stops: DropGuard,
}

impl Rig {
    /// With knobs as a test wants them; plain HTTP receivers are allowed and retries are short before.
    pub(in crate::simulator) fn start(knobs: impl FnOnce(&mut Knobs)) -> Self {
        Self::with(Settings::default(), knobs)
    }

    pub(in crate::simulator) fn with(mut settings: Settings, knobs: impl FnOnce(&mut Knobs)) -> Self {
        settings.knobs.delivery.receivers = ReceiverUrls::Any;
        settings.knobs.accounting.retries = vec![1, 1];
        knobs(&mut settings.knobs);
        let provider = Provider::new(settings).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(run(Arc::clone(&provider), stop.clone()));
        Self { provider, _stops: stop.clone().drop_guard(), stop }
    }

    /// A request to the accounting webhooks: status and JSON, null where there is none.
    pub(in crate::simulator) async fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let response = self.respond(method, path, body).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 22).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// The same, with the answer's body not read yet.
    pub(in crate::simulator) async fn respond(&self, method: &str, path: &str, body: &str) -> Response {
        let request = axum::http::Request::builder().method(method).uri(path);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let mut router = accounting::router().with_state(Arc::clone(&self.provider));
        within(router.call(request)).await.unwrap()
    }

    /// An active webhook for all events of customers, without the Acknowledge.
    pub(in crate::simulator) async fn webhook(&self, url: &str) -> Guid {
        let time = self.provider.knobs().accounting.acknowledge;
        self.provider.turn(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);
        let body = subscription("customers", url);
        let (_, result) = self.call("POST", "/accounting/api/customers/webhooks/subscribe", &body).await;
        self.provider.turn(|knobs| knobs.accounting.acknowledge = time);
        let id = Guid::parse(result["webhookId"].as_str().unwrap()).unwrap();
        let url = url::Url::parse(url).unwrap();
        self.provider.accounting.ended(&self.provider, id, Purpose::Acknowledge, url.as_str(), true);
        assert_eq!(self.state(id), Some(WebhookState::Active), "{result}");
        id
    }

    pub(in crate::simulator) fn state(&self, webhook: Guid) -> Option<WebhookState> {
        let webhooks = self.provider.accounting.webhooks();
        webhooks.into_iter().find(|found| found.id == webhook).map(|found| found.state)
    }

    /// Until nothing is left to deliver.
    pub(in crate::simulator) async fn idle(&self) {
        within(self.provider.deliveries.idle()).await;
    }
}

/// A body that subscribes to every event of an accounting resource.
pub(in crate::simulator) fn subscription(path: &str, url: &str) -> String {
    let resource =
        crate::simulator::catalog::Resource::ALL.into_iter().find(|found| found.path() == path).unwrap();
    let events = resource.kinds().map(|kind| resource.semantic_name(kind));
    serde_json::json!({
        "thirdPartyApplicationName": "tests",
        "url": url,
        "secret": "a secret wíth an accent",
        "eventTypes": events,
    })
    .to_string()
}

/// Fails the test where something does not come.
pub(in crate::simulator) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// What a receiver answers.
#[derive(Debug, Clone, Copy)]
pub(in crate::simulator) enum Reply {
    Status(u16),
    /// 200 with a cookie.
    Cookie,
    /// 302 to itself.
    Redirect,
    /// 200, once the test lets go.
    Held,
    /// 200 with a body that never ends.
    Endless,
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub(in crate::simulator) struct Received {
    pub(in crate::simulator) path: String,
    pub(in crate::simulator) headers: HeaderMap,
    pub(in crate::simulator) body: Bytes,
}

impl Received {
    pub(in crate::simulator) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }
}

type Script = dyn Fn(usize, &Received) -> Reply + Send + Sync;

/// A receiver on a port of its own.
pub(in crate::simulator) struct Receiver {
    pub(in crate::simulator) address: SocketAddr,
    inner: Arc<Inner>,
    /// Ends with the test.
    _server: Server,
}

struct Inner {
    script: Box<Script>,
    received: Mutex<Vec<Received>>,
    count: watch::Sender<usize>,
    released: watch::Sender<bool>,
}

impl Receiver {
    /// Answers by a script, which gets the number of the request from 0.
    pub(in crate::simulator) async fn start(
        script: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::serve(script, None).await
    }

    pub(in crate::simulator) async fn always(status: u16) -> Self {
        Self::start(move |_, _| Reply::Status(status)).await
    }

    /// The same over TLS.
    pub(in crate::simulator) async fn with_tls(tls: Arc<rustls::ServerConfig>) -> Self {
        Self::serve(|_, _| Reply::Status(200), Some(tls)).await
    }

    async fn serve(
        script: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            script: Box::new(script),
            received: Mutex::default(),
            count: watch::Sender::new(0),
            released: watch::Sender::new(false),
        });
        let router = Router::new().fallback(receive).with_state(Arc::clone(&inner));
        let options = Options {
            tls,
            connections: 1_024,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(60),
            ..Options::default()
        };
        let server = Server::start(listener, router, options).unwrap();
        Self { address, inner, _server: server }
    }

    pub(in crate::simulator) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// What came so far.
    pub(in crate::simulator) fn received(&self) -> Vec<Received> {
        self.inner.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bodies that came so far.
    pub(in crate::simulator) fn texts(&self) -> Vec<String> {
        self.received().iter().map(Received::text).collect()
    }

    /// Until so many have come.
    pub(in crate::simulator) async fn wait_for(&self, count: usize) -> Vec<Received> {
        within(self.inner.count.subscribe().wait_for(|&came| came >= count)).await.unwrap();
        self.received()
    }

    /// Lets held answers go, from now on all at once.
    pub(in crate::simulator) fn release(&self) {
        self.inner.released.send_replace(true);
    }
}

async fn receive(State(inner): State<Arc<Inner>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 22).await.unwrap();
    let path = parts.uri.path().to_owned();
    let received = Received { path, headers: parts.headers, body };
    let number = {
        let mut all = inner.received.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(received.clone());
        all.len() - 1
    };
    inner.count.send_replace(number + 1);
    match (inner.script)(number, &received) {
        Reply::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Reply::Cookie => [(header::SET_COOKIE, HeaderValue::from_static("a=b"))].into_response(),
        Reply::Redirect => (StatusCode::FOUND, [(header::LOCATION, "/elsewhere")]).into_response(),
        Reply::Held => {
            inner.released.subscribe().wait_for(|&released| released).await.unwrap();
            StatusCode::OK.into_response()
        }
        Reply::Endless => {
            let chunk = Bytes::from(vec![b'.'; 16 * 1024]);
            Body::from_stream(futures::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone())))
                .into_response()
        }
    }
}
