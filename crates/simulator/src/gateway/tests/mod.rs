#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::{
    Extension,
    http::StatusCode,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use server::{Options, Server};

use super::*;
use crate::{
    Provider,
    answer::json_answer,
    call::Call,
    clock::{SECOND, midnight},
    knobs::{Effect, Fault, Latency, Rate, RetryHint, Target},
    settings::Settings,
};

mod passage;
mod wire;

const LOGIN: &str = "/invoicing/api/users/login";
const CUSTOMERS: &str = "/accounting/api/customers";
const LONG: Duration = Duration::from_secs(60);

/// A gateway on a socket, in front of a login that needs no token and a list that does.
struct Rig {
    provider: Arc<Provider>,
    server: Server,
    client: reqwest::Client,
    /// How often a handler was reached.
    reached: Arc<AtomicUsize>,
}

impl Rig {
    async fn start() -> Self {
        Self::with(reqwest::Client::builder()).await
    }

    async fn with(client: reqwest::ClientBuilder) -> Self {
        let noon = Ticks(midnight(2026, 11, 15).unwrap().0 + 12 * 3_600 * SECOND);
        let provider = Provider::new(Settings { frozen_at: Some(noon), ..Settings::default() }).unwrap();
        let reached = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reached);
        let login = |Extension(call): Extension<Call>, headers: HeaderMap, body: Bytes| async move {
            count.fetch_add(1, Ordering::SeqCst);
            if headers.contains_key("padding") {
                return json_answer(200, &json!(vec!["padding"; 1_000]));
            }
            json_answer(200, &json!({ "peer": call.peer.ip().to_string(), "bytes": body.len() }))
        };
        let never = || async { StatusCode::IM_A_TEAPOT };
        let apis = Router::new()
            .route(LOGIN, post(login))
            .route(CUSTOMERS, get(never))
            .route("/accounting/api/customers/{id}", get(never));
        let router = guard(&provider.gateway, apis);
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let options =
            Options { tls: None, connections: 16, handshake: LONG, head: LONG, ..Options::default() };
        let server = Server::start(listener, router, options).unwrap();
        let client = client.no_proxy().timeout(LONG).build().unwrap();
        Self { provider, server, client, reached }
    }

    /// A rule for every request.
    fn fault(&self, effect: Effect) {
        let rule = Fault { on: Target::default(), effect, share: 1.0, times: None, skip: 0 };
        self.provider.turn(|knobs| knobs.faults = vec![rule]);
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.server.address()))
    }

    /// A request that passes every check and reaches its handler.
    fn login(&self) -> reqwest::RequestBuilder {
        self.request(Method::POST, LOGIN)
            .header("Ocp-Apim-Subscription-Key", "simulated-subscription-key")
            .header("Content-Type", "application/json")
            .header("Api-Version", "2.0")
            .body("{}")
    }

    async fn status(&self, method: Method, path: &str) -> u16 {
        self.request(method, path).send().await.unwrap().status().as_u16()
    }

    fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }

    /// Status and fault of every request so far.
    fn journal(&self) -> Vec<(Option<u16>, Option<&'static str>)> {
        let requests = self.provider.gateway.requests(0, usize::MAX);
        requests.into_iter().map(|(_, request)| (request.status, request.fault)).collect()
    }
}

/// What the login answers to [`Rig::login`].
fn right() -> Value {
    json!({ "peer": "127.0.0.1", "bytes": 2 })
}
