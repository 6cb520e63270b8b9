//! A webhook receiver on loopback, which passes each request to the test and answers by a script.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse as _, Response},
};
use serde_json::Value;
use server::{Server, ServerOptions};
use sha2::{Digest as _, Sha256};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    time::Instant,
};

/// Longer than any passing test waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// The answer of a receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    /// A status without a body.
    Status(u16),
    /// A status with one header.
    Header(u16, &'static str, &'static str),
    /// 200 with the value of the query parameter `echo` as text.
    Echo,
    /// 200 with that value between these two texts.
    EchoBetween(&'static str, &'static str),
    /// 200 with this text.
    Text(&'static str),
    /// A status, sent when the test releases it.
    Held(u16),
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// When its body was complete.
    pub(crate) at: Instant,
    /// Method.
    pub(crate) method: Method,
    /// Path.
    pub(crate) path: String,
    /// The query; may be empty.
    pub(crate) query: String,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// The body as received.
    pub(crate) body: Bytes,
}

impl Received {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A header's text.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// `EventType.EventType` of an accounting envelope.
    #[track_caller]
    pub(crate) fn event(&self) -> String {
        self.json()["EventType"]["EventType"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    /// `JsonData` of an accounting envelope, parsed.
    #[track_caller]
    pub(crate) fn data(&self) -> Value {
        let text = self.json()["JsonData"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

type Script = dyn Fn(&Received) -> Reply + Send + Sync;

/// A receiver with its own port.
pub(crate) struct Receiver {
    /// Its address.
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Received>,
    inner: Arc<Inner>,
    _server: Server,
}

struct Inner {
    script: Box<Script>,
    requests: mpsc::UnboundedSender<Received>,
    /// Each permit releases one held answer.
    releases: Semaphore,
}

impl Receiver {
    /// Answers 200 to everything.
    pub(crate) async fn accepting() -> Self {
        Self::scripted(|_| Reply::Status(200)).await
    }

    /// Answers by the script.
    pub(crate) async fn scripted(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(script, None).await
    }

    /// The same over TLS.
    pub(crate) async fn secure(
        tls: Arc<rustls::ServerConfig>,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(script, Some(tls)).await
    }

    async fn start(
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let inner =
            Arc::new(Inner { script: Box::new(script), requests: sender, releases: Semaphore::new(0) });
        let router = Router::new().fallback(receive).with_state(Arc::clone(&inner));
        let options = ServerOptions {
            tls,
            connections: 1_024,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(60),
            ..ServerOptions::default()
        };
        let server = Server::start(listener, router, options).unwrap();
        Self { address, requests, inner, _server: server }
    }

    /// A URL of the receiver with plain HTTP.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The next request; fails the test if none comes.
    #[track_caller]
    pub(crate) fn next(&mut self) -> impl Future<Output = Received> {
        let caller = std::panic::Location::caller();
        async move {
            match tokio::time::timeout(PATIENCE, self.requests.recv()).await {
                Ok(Some(received)) => received,
                _ => panic!("no request came, awaited at {caller}"),
            }
        }
    }

    /// The next `count` requests.
    pub(crate) async fn several(&mut self, count: usize) -> Vec<Received> {
        let mut several = Vec::with_capacity(count);
        for _ in 0..count {
            several.push(self.next().await);
        }
        several
    }

    /// All requests that have arrived and were not taken.
    pub(crate) fn taken(&mut self) -> Vec<Received> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }

    /// Releases `count` held answers.
    pub(crate) fn release(&self, count: usize) {
        self.inner.releases.add_permits(count);
    }
}

async fn receive(State(inner): State<Arc<Inner>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 22).await.unwrap();
    let received = Received {
        at: Instant::now(),
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body,
    };
    let reply = (inner.script)(&received);
    let echo = received.query.strip_prefix("echo=").unwrap_or_default().to_owned();
    // The test may have ended.
    inner.requests.send(received).ok();
    match reply {
        Reply::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Reply::Header(status, name, value) => {
            (StatusCode::from_u16(status).unwrap(), [(name, value)]).into_response()
        }
        Reply::Echo => echo.into_response(),
        Reply::EchoBetween(before, after) => format!("{before}{echo}{after}").into_response(),
        Reply::Text(text) => text.into_response(),
        Reply::Held(status) => {
            inner.releases.acquire().await.unwrap().forget();
            StatusCode::from_u16(status).unwrap().into_response()
        }
    }
}

/// A certificate for a host from a new authority: the server's configuration, and the authority as PEM.
pub(crate) fn certified(host: &str) -> (Arc<rustls::ServerConfig>, String) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = authority.self_signed(&authority_key).unwrap().pem();
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &rcgen::Issuer::new(authority, authority_key)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    (Arc::new(config), root)
}

/// `sha256=` and the upper-case hexadecimal HMAC-SHA256 of a body. Implemented from RFC 2104, independently of the code under
/// test.
pub(crate) fn signature(secret: &str, body: &[u8]) -> String {
    const BLOCK: usize = 64;
    let mut key = [0; BLOCK];
    if secret.len() > BLOCK {
        key[..32].copy_from_slice(&Sha256::digest(secret.as_bytes()));
    } else {
        key[..secret.len()].copy_from_slice(secret.as_bytes());
    }
    let hashed = |pad: u8, text: &[u8]| {
        let padded = key.map(|byte| byte ^ pad);
        Sha256::new().chain_update(padded).chain_update(text).finalize()
    };
    let digest = hashed(0x5c, &hashed(0x36, body));
    let digits: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("sha256={digits}")
}

/// 8-4-4-4-12 hexadecimal digits.
pub(crate) fn is_guid(value: &Value) -> bool {
    let Some(text) = value.as_str() else { return false };
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|char| char == '-' || char.is_ascii_hexdigit())
}
