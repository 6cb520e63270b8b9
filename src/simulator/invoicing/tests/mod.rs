//! The invoicing API through its routes, with a receiver on a loopback socket where one is called.

mod create;
mod deliver;
mod echo;
mod login;
mod notify;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_service::Service as _;

use crate::simulator::{
    Provider,
    catalog::Area,
    clock::Ticks,
    gateway::{Call, Context},
    identity::Caller,
    knobs::{Knobs, ReceiverUrls},
    settings::Settings,
};

const SECRET: &str = "a secret of thirty-two characters and ñ";

/// A provider whose clock stands, with three companies, that calls any receiver.
fn provider() -> Arc<Provider> {
    let mut settings = Settings { frozen_at: Some(Ticks(17_000_000_000_000_000)), ..Settings::default() };
    settings.world.invoicing_companies = 3;
    settings.knobs.delivery.receivers = ReceiverUrls::Any;
    Provider::new(settings).unwrap()
}

fn provider_with(turn: impl FnOnce(&mut Knobs)) -> Arc<Provider> {
    let provider = provider();
    provider.turn(turn);
    provider
}

/// What the gateway tells of a request of a company from the loopback address.
fn call(company: Option<u32>) -> Call {
    let caller =
        Caller { subject: "ana@example.com".into(), scopes: Arc::new([]), invoicing_company: company };
    Call {
        area: Area::Invoicing,
        caller: Some(caller),
        context: Context::Absent,
        peer: SocketAddr::from(([127, 0, 0, 1], 50_000)),
    }
}

/// Sends a request past the gateway; its answer.
async fn send(
    provider: &Arc<Provider>,
    call: Call,
    method: Method,
    path: &str,
    body: impl Into<Body>,
) -> Response {
    let mut router = super::router().with_state(Arc::clone(provider));
    let mut request = Request::new(body.into());
    *request.method_mut() = method;
    *request.uri_mut() = format!("/invoicing/api/{path}").parse().unwrap();
    request.extensions_mut().insert(call);
    router.call(request).await.unwrap()
}

/// Status and JSON of an answer; `null` for none.
async fn read(answer: Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() })
}

async fn post(provider: &Arc<Provider>, company: Option<u32>, path: &str, body: &Value) -> (u16, Value) {
    read(send(provider, call(company), Method::POST, path, body.to_string()).await).await
}

async fn list(provider: &Arc<Provider>, company: u32) -> Vec<Value> {
    let answer = send(provider, call(Some(company)), Method::GET, "webhooks", "").await;
    let (status, Value::Array(items)) = read(answer).await else { panic!("no list") };
    assert_eq!(status, 200);
    items
}

async fn delete(provider: &Arc<Provider>, company: Option<u32>, id: &str) -> (u16, Value) {
    read(send(provider, call(company), Method::DELETE, &format!("webhooks/{id}"), "").await).await
}

fn subscription(uri: &str, entity: &str, action: &str) -> Value {
    json!({
        "uri": uri,
        "entity": entity,
        "action": action,
        "secret": SECRET,
        "isPaused": false,
        "applicationName": "Ledger",
        "description": "what it is for",
    })
}

/// Subscribes and waits for the echo, which may fail.
async fn subscribe(provider: &Arc<Provider>, company: u32, uri: &str, entity: &str, action: &str) -> String {
    let (status, hook) = post(provider, Some(company), "webhooks", &subscription(uri, entity, action)).await;
    assert_eq!(status, 200, "{hook}");
    provider.invoicing.idle().await;
    hook["id"].as_str().unwrap().to_owned()
}

/// What a receiver was sent.
#[derive(Debug, Clone)]
struct Received {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

/// A webhook receiver.
struct Receiver {
    /// Its address, as a subscription has it.
    uri: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Answers by `answer`, which is given the text to echo (empty for notifications).
    async fn start(answer: impl Fn(&str) -> Response + Clone + Send + Sync + 'static) -> Self {
        Self::start_async(move |echo| std::future::ready(answer(&echo))).await
    }

    async fn start_async<F>(answer: impl Fn(String) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/api/webhooks/incoming/Invoicing", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let seen = Arc::clone(&received);
        let handler = async move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            let query = uri.query().unwrap_or_default().to_owned();
            seen.lock().unwrap().push(Received { method, uri, headers, body });
            answer(query.strip_prefix("echo=").unwrap_or_default().to_owned()).await
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
        Self { uri, received }
    }

    /// One that does what it should.
    async fn good() -> Self {
        Self::start(|echo| (StatusCode::OK, echo.to_owned()).into_response()).await
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}
