//! For tests: the embedded registry with faults on demand, which records every request.
//!
//! It checks nothing: every schema is compatible unless a test overrides the answer, so that tests see only what our own code
//! decides.

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

/// The default base path, as in Apicurio; other paths get a bare 404.
pub(crate) const BASE: &str = "/apis/ccompat/v7";

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) method: Method,
    /// Path after the base.
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Value,
}

/// A replacement for the stub's answer.
#[derive(Clone)]
pub(crate) enum StubFault {
    Answer {
        status: u16,
        body: String,
        header: Option<(header::HeaderName, String)>,
    },
    /// The connection stays open without an answer.
    Silence,
}

impl StubFault {
    pub(crate) fn status(status: u16, body: impl Into<String>) -> Self {
        Self::Answer { status, body: body.into(), header: None }
    }

    pub(crate) fn with_header(self, name: header::HeaderName, value: &str) -> Self {
        match self {
            Self::Answer { status, body, .. } => {
                Self::Answer { status, body, header: Some((name, value.to_owned())) }
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

/// A running stub; it ends with the test's runtime.
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

    /// Number of requests of this method whose path ends with `end`.
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

    /// Registers a version as another client would, and returns its id.
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
        Err(StubFault::Answer { status, body, header }) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}
