//! A registry in this process, for tests: Confluent's calls over a real socket, in memory, with faults on demand.
//!
//! It knows levels, versions and ids but judges nothing: it calls every schema compatible unless a test overrides an
//! answer, so that what a test sees is what our own code decided.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use url::Url;

use crate::config;

/// Where the stub serves its calls unless told otherwise, as Apicurio does; outside there is only a bare 404.
pub(crate) const BASE: &str = "/apis/ccompat/v7";

/// One request as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// Path behind the base.
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Value,
}

/// What the stub answers instead of its own answer.
#[derive(Clone)]
pub(crate) enum Fault {
    Answer {
        status: u16,
        body: String,
        header: Option<(header::HeaderName, String)>,
    },
    /// The connection stays open and nothing comes.
    Silence,
}

impl Fault {
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
struct Inner {
    base: &'static str,
    seen: Vec<Seen>,
    faults: Vec<(Option<Method>, String, Fault)>,
    levels: HashMap<String, String>,
    /// Ids are per content, from 1.
    texts: Vec<String>,
    subjects: BTreeMap<String, Vec<usize>>,
}

/// The running stub; it ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Stub {
    pub(crate) root: Url,
    inner: Arc<Mutex<Inner>>,
}

impl Stub {
    pub(crate) async fn start() -> Self {
        Self::start_at(BASE).await
    }

    pub(crate) async fn start_at(base: &'static str) -> Self {
        let inner = Arc::new(Mutex::new(Inner { base, ..Inner::default() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let root = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { root, inner }
    }

    pub(crate) fn url(&self) -> Url {
        self.root.join(BASE).unwrap()
    }

    pub(crate) fn config(&self) -> config::Registry {
        config::Registry::open(self.url())
    }

    /// From now on requests of this method whose path contains `path` get this instead; the latest rule wins.
    pub(crate) fn fault(&self, method: Option<Method>, path: &str, fault: Fault) {
        self.inner.lock().unwrap().faults.insert(0, (method, path.to_owned(), fault));
    }

    pub(crate) fn heal(&self) {
        self.inner.lock().unwrap().faults.clear();
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.inner.lock().unwrap().seen.clone()
    }

    /// How many requests of this method had a path that ends so.
    pub(crate) fn count(&self, method: &Method, end: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == *method && seen.path.ends_with(end)).count()
    }

    pub(crate) fn level(&self, subject: &str) -> Option<String> {
        self.inner.lock().unwrap().levels.get(subject).cloned()
    }

    /// Sets the level of a subject, or with "" the global one.
    pub(crate) fn set_level(&self, subject: &str, level: &str) {
        self.inner.lock().unwrap().levels.insert(subject.to_owned(), level.to_owned());
    }

    /// Registers a version as somebody else would; its id.
    pub(crate) fn add(&self, subject: &str, text: &str) -> u32 {
        self.inner.lock().unwrap().register(subject, text)
    }
}

impl Inner {
    fn register(&mut self, subject: &str, text: &str) -> u32 {
        let index = self.texts.iter().position(|known| known == text).unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        let versions = self.subjects.entry(subject.to_owned()).or_default();
        if !versions.contains(&index) {
            versions.push(index);
        }
        index as u32 + 1
    }

    fn answer(&mut self, method: &Method, path: &[&str], body: &Value) -> Result<Value, (u16, u32)> {
        let text = || body["schema"].as_str().unwrap_or_default();
        match (method.as_str(), path) {
            ("GET", ["config"]) => {
                Ok(json!({ "compatibilityLevel": self.levels.get("").map_or("NONE", |level| level) }))
            }
            ("GET", ["config", subject]) => {
                let level = self.levels.get(*subject).ok_or((404, 40408))?;
                Ok(json!({ "compatibilityLevel": level }))
            }
            ("PUT", ["config", subject]) => {
                let level = body["compatibility"].as_str().unwrap_or_default();
                self.levels.insert((*subject).to_owned(), level.to_owned());
                Ok(json!({ "compatibility": level }))
            }
            ("POST", ["compatibility", "subjects", subject, "versions"]) => {
                self.subjects.get(*subject).ok_or((404, 40401))?;
                Ok(json!({ "is_compatible": true, "messages": [] }))
            }
            ("POST", ["subjects", subject]) => {
                let versions = self.subjects.get(*subject).ok_or((404, 40401))?;
                let index =
                    versions.iter().find(|index| self.texts[**index] == text()).ok_or((404, 40403))?;
                Ok(json!({ "subject": subject, "id": index + 1, "version": 1, "schema": text() }))
            }
            ("POST", ["subjects", subject, "versions"]) => {
                Ok(json!({ "id": self.register(subject, text()) }))
            }
            ("GET", ["subjects", subject, "versions"]) => {
                let versions = self.subjects.get(*subject).ok_or((404, 40401))?;
                Ok(json!((1..=versions.len()).collect::<Vec<_>>()))
            }
            ("GET", ["subjects", subject, "versions", version]) => {
                let versions = self.subjects.get(*subject).ok_or((404, 40401))?;
                let version: usize = version.parse().map_err(|_| (422, 42202))?;
                let index = versions.get(version - 1).ok_or((404, 40402))?;
                Ok(
                    json!({ "subject": subject, "id": index + 1, "version": version, "schema": self.texts[*index] }),
                )
            }
            ("GET", ["schemas", "ids", id]) => {
                let id: usize = id.parse().map_err(|_| (422, 42202))?;
                let text = id.checked_sub(1).and_then(|index| self.texts.get(index)).ok_or((404, 40403))?;
                Ok(json!({ "schema": text }))
            }
            _ => Err((404, 0)),
        }
    }
}

async fn serve(
    State(inner): State<Arc<Mutex<Inner>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let base = inner.lock().unwrap().base;
    let Some(path) = uri.path().strip_prefix(base).and_then(|path| path.strip_prefix('/')) else {
        return (StatusCode::NOT_FOUND, "<html>no such page</html>").into_response();
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let answer = {
        let mut inner = inner.lock().unwrap();
        inner.seen.push(Seen {
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
            None => Ok(inner.answer(&method, &path.split('/').collect::<Vec<_>>(), &body)),
        }
    };
    match answer {
        Ok(Ok(found)) => found.to_string().into_response(),
        Ok(Err((status, code))) => {
            let body = json!({ "error_code": code, "message": "not here" }).to_string();
            (StatusCode::from_u16(status).unwrap(), body).into_response()
        }
        Err(Fault::Silence) => std::future::pending().await,
        Err(Fault::Answer { status, body, header }) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}
