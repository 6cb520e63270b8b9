//! The embedded registry with faults on demand, and an eye on every request, for tests.
//!
//! It checks_compatibility nothing: it calls every schema compatible unless a test overrides an answer, so that what a test sees is
//! what our own code decided.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde_json::Value;
use url::Url;

use crate::{
    avro::embedded::{RegistryState, respond},
    config,
};

/// Where the stub serves its calls unless told otherwise, as Apicurio does; outside there is only a bare 404.
pub(crate) const BASE: &str = "/apis/ccompat/v7";

/// One request as it came in.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) method: Method,
    /// Path behind the base.
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Value,
}

/// What the stub answers instead of its own answer.
#[derive(Clone)]
pub(crate) enum StubFault {
    RegistryAnswer {
        status: u16,
        body: String,
        header: Option<(header::HeaderName, String)>,
    },
    /// The connection stays open and nothing comes.
    Silence,
}

impl StubFault {
    pub(crate) fn status(status: u16, body: impl Into<String>) -> Self {
        Self::RegistryAnswer { status, body: body.into(), header: None }
    }

    pub(crate) fn with_header(self, name: header::HeaderName, value: &str) -> Self {
        match self {
            Self::RegistryAnswer { status, body, .. } => {
                Self::RegistryAnswer { status, body, header: Some((name, value.to_owned())) }
            }
            Self::Silence => Self::Silence,
        }
    }
}

#[derive(Default)]
struct StubState {
    base: &'static str,
    seen: Vec<RecordedRequest>,
    faults: Vec<(Option<Method>, String, StubFault)>,
    state: RegistryState,
}

/// The running stub; it ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct StubRegistry {
    pub(crate) root: Url,
    inner: Arc<Mutex<StubState>>,
}

impl StubRegistry {
    pub(crate) async fn start() -> Self {
        Self::start_at(BASE).await
    }

    pub(crate) async fn start_at(base: &'static str) -> Self {
        let inner = Arc::new(Mutex::new(StubState { base, ..StubState::default() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let root = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { root, inner }
    }

    pub(crate) fn url(&self) -> Url {
        self.root.join(BASE).unwrap()
    }

    pub(crate) fn config(&self) -> config::RegistrySettings {
        config::RegistrySettings::open(self.url())
    }

    /// From now on requests of this method whose path contains `path` get this instead; the latest rule wins.
    pub(crate) fn fault(&self, method: Option<Method>, path: &str, fault: StubFault) {
        self.inner.lock().faults.insert(0, (method, path.to_owned(), fault));
    }

    pub(crate) fn heal(&self) {
        self.inner.lock().faults.clear();
    }

    pub(crate) fn seen(&self) -> Vec<RecordedRequest> {
        self.inner.lock().seen.clone()
    }

    /// How many requests of this method had a path that ends so.
    pub(crate) fn count(&self, method: &Method, end: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == *method && seen.path.ends_with(end)).count()
    }

    pub(crate) fn level(&self, subject: &str) -> Option<String> {
        self.inner.lock().state.levels.get(subject).cloned()
    }

    /// Sets the level of a subject, or with "" the global one.
    pub(crate) fn set_level(&self, subject: &str, level: &str) {
        self.inner.lock().state.levels.insert(subject.to_owned(), level.to_owned());
    }

    /// Registers a version as somebody else would; its id.
    pub(crate) fn add(&self, subject: &str, text: &str) -> u32 {
        u32::try_from(self.inner.lock().state.register(subject, text)).unwrap()
    }
}

async fn serve(
    State(inner): State<Arc<Mutex<StubState>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let base = inner.lock().base;
    let Some(path) = uri.path().strip_prefix(base).and_then(|path| path.strip_prefix('/')) else {
        return (StatusCode::NOT_FOUND, "<html>no such page</html>").into_response();
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let answer = {
        let mut inner = inner.lock();
        inner.seen.push(RecordedRequest {
            method: method.clone(),
            path: path.to_owned(),
            authorization: headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned()),
            body: body.clone(),
        });
        let fault = inner.faults.iter().find(|(only, part, _)| {
            only.as_ref().is_none_or(|only| *only == method) && path.contains(part.as_str())
        });
        match fault.map(|(_, _, fault)| fault.clone()) {
            Some(fault) => Err(fault),
            None => Ok(inner.state.answer(&method, &path.split('/').collect::<Vec<_>>(), &body)),
        }
    };
    match answer {
        Ok(answer) => respond(answer),
        Err(StubFault::Silence) => std::future::pending().await,
        Err(StubFault::RegistryAnswer { status, body, header }) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}
