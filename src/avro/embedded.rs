//! A schema registry in this process, on a real socket: for the demo, and as the base of the tests' stub.
//!
//! It implements the calls of Confluent's API that Avro clients use, keeps everything in memory and serves loopback only. It checks
//! compatibility by our own rules, backward against every version, which is what our subjects ask for; it refuses levels that
//! look forward, because it does not check them.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
};

use apache_avro::Schema;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use url::Url;

use super::{Level, compatibility::incompatibility};

/// A running registry. Dropping it stops it.
#[derive(Debug)]
pub struct EmbeddedRegistry {
    url: Url,
    serving: JoinHandle<io::Result<()>>,
}

impl EmbeddedRegistry {
    /// Serves on a free loopback port.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = Url::parse(&format!("http://{}", listener.local_addr()?)).map_err(io::Error::other)?;
        let state =
            Arc::new(Mutex::new(RegistryState { checks_compatibility: true, ..RegistryState::default() }));
        let router = Router::new().fallback(serve).with_state(state);
        Ok(Self { url, serving: tokio::spawn(async move { axum::serve(listener, router).await }) })
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }
}

impl Drop for EmbeddedRegistry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(
    State(state): State<Arc<Mutex<RegistryState>>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let answer = state.lock().answer(&method, &path, &body);
    respond(answer)
}

/// An answer, or HTTP status, the registry's error code and message.
pub(crate) type RegistryAnswer = Result<Value, (u16, u32, String)>;

pub(crate) fn respond(answer: RegistryAnswer) -> Response {
    match answer {
        Ok(found) => found.to_string().into_response(),
        Err((status, code, message)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, json!({ "error_code": code, "message": message }).to_string()).into_response()
        }
    }
}

/// The content of the registry.
#[derive(Debug, Default)]
pub(crate) struct RegistryState {
    /// Whether new schemas are checked; tests of our own check turn it off.
    pub(crate) checks_compatibility: bool,
    /// By subject; the global level under "".
    pub(crate) levels: HashMap<String, String>,
    /// Ids are per content, from 1.
    texts: Vec<String>,
    subjects: BTreeMap<String, Vec<usize>>,
}

impl RegistryState {
    /// Adds `text` as a version of `subject` and returns its id.
    pub(crate) fn register(&mut self, subject: &str, text: &str) -> usize {
        let index = self.texts.iter().position(|known| known == text).unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        let versions = self.subjects.entry(subject.to_owned()).or_default();
        if !versions.contains(&index) {
            versions.push(index);
        }
        index + 1
    }

    pub(crate) fn answer(&mut self, method: &Method, path: &[&str], body: &Value) -> RegistryAnswer {
        let text = || body["schema"].as_str().unwrap_or_default();
        match (method.as_str(), path) {
            ("GET", ["config"]) => {
                Ok(json!({ "compatibilityLevel": self.levels.get("").map_or("NONE", |level| level) }))
            }
            ("GET", ["config", subject]) => {
                let level =
                    self.levels.get(*subject).ok_or_else(|| absent(40408, "level of this subject"))?;
                Ok(json!({ "compatibilityLevel": level }))
            }
            ("PUT", ["config", subject]) => self.set_level(subject, body),
            ("GET", ["subjects"]) => Ok(json!(self.subjects.keys().collect::<Vec<_>>())),
            ("POST", ["compatibility", "subjects", subject, "versions"]) => {
                self.versions(subject)?;
                let conflict = self.conflict(subject, text())?;
                let messages: Vec<&String> = conflict.iter().collect();
                Ok(json!({ "is_compatible": conflict.is_none(), "messages": messages }))
            }
            ("POST", ["subjects", subject]) => {
                let found = self.versions(subject)?.iter().position(|index| self.texts[*index] == text());
                let version = found.ok_or_else(|| absent(40403, "such schema under this subject"))?;
                Ok(self.version(subject, self.versions(subject)?[version], version + 1))
            }
            ("POST", ["subjects", subject, "versions"]) => match self.conflict(subject, text())? {
                Some(conflict) => Err((409, 409, conflict)),
                None => Ok(json!({ "id": self.register(subject, text()) })),
            },
            ("GET", ["subjects", subject, "versions"]) => {
                Ok(json!((1..=self.versions(subject)?.len()).collect::<Vec<_>>()))
            }
            ("GET", ["subjects", subject, "versions", number]) => {
                let versions = self.versions(subject)?;
                let number = if *number == "latest" { versions.len() } else { whole(number)? };
                let index = number.checked_sub(1).and_then(|at| versions.get(at));
                Ok(self.version(subject, *index.ok_or_else(|| absent(40402, "such version"))?, number))
            }
            ("GET", ["schemas", "ids", id]) => {
                let text = whole(id)?.checked_sub(1).and_then(|index| self.texts.get(index));
                Ok(json!({ "schema": text.ok_or_else(|| absent(40403, "schema with this id"))? }))
            }
            _ => Err((404, 0, "no such call".to_owned())),
        }
    }

    fn set_level(&mut self, subject: &str, body: &Value) -> RegistryAnswer {
        let word = body["compatibility"].as_str().unwrap_or_default();
        let judged = word.parse::<Level>().is_ok_and(|level| !level.looks_forward());
        if self.checks_compatibility && !judged {
            return Err((422, 42203, format!("level {word:?} is not one this registry can check")));
        }
        self.levels.insert(subject.to_owned(), word.to_owned());
        Ok(json!({ "compatibility": word }))
    }

    fn versions(&self, subject: &str) -> Result<&[usize], (u16, u32, String)> {
        self.subjects.get(subject).map(Vec::as_slice).ok_or_else(|| absent(40401, "such subject"))
    }

    fn version(&self, subject: &str, index: usize, number: usize) -> Value {
        json!({ "subject": subject, "id": index + 1, "version": number, "schema": self.texts[index] })
    }

    /// Why this schema is incompatible with the subject's versions.
    fn conflict(&self, subject: &str, text: &str) -> Result<Option<String>, (u16, u32, String)> {
        if !self.checks_compatibility {
            return Ok(None);
        }
        let parse = |text: &str| {
            Schema::parse_str(text).map_err(|error| (422, 42201, format!("not an Avro schema: {error}")))
        };
        let reader = parse(text)?;
        let level = self.levels.get(subject).or_else(|| self.levels.get(""));
        if level.is_none_or(|level| level == Level::None.word()) {
            return Ok(None);
        }
        for index in self.subjects.get(subject).into_iter().flatten() {
            if let Some(found) = incompatibility(&parse(&self.texts[*index])?, &reader) {
                return Ok(Some(format!("field {}: {}", found.field, found.rule)));
            }
        }
        Ok(None)
    }
}

fn absent(code: u32, what: &str) -> (u16, u32, String) {
    (404, code, format!("there is no {what}"))
}

fn whole(text: &str) -> Result<usize, (u16, u32, String)> {
    text.parse().map_err(|_| (422, 42202, format!("{text:?} is not a number of a version or schema")))
}

#[cfg(test)]
mod tests {
    use model::SchemaKind;

    use super::*;
    use crate::{
        avro::{Error, Registry, schemas},
        config,
    };

    async fn registry() -> (EmbeddedRegistry, Registry) {
        let server = EmbeddedRegistry::start().await.unwrap();
        let registry = Registry::new(&config::RegistrySettings::open(server.url().clone())).unwrap();
        (server, registry)
    }

    #[tokio::test]
    async fn every_schema_registers_and_has_the_same_id_the_second_time() {
        let (_server, registry) = registry().await;

        for kind in SchemaKind::ALL {
            let schema = schemas::embedded(kind).unwrap();
            let first = registry.register("s", schema.text, &schema.schema).await;
            let subject = format!("{}-value", kind.name());
            let once = registry.register(&subject, schema.text, &schema.schema).await.unwrap();
            let twice = registry.register(&subject, schema.text, &schema.schema).await.unwrap();

            assert_eq!(once, twice);
            // One subject holds one record: the first kind made `s` its own.
            assert_eq!(first.is_ok(), kind == SchemaKind::ALL[0], "{kind:?}");
        }
    }

    #[tokio::test]
    async fn incompatible_schema_is_refused_by_field_and_rule() {
        let (_server, registry) = registry().await;
        let old = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}"#;
        let new = r#"{"type":"record","name":"R","fields":[{"name":"b","type":"string"}]}"#;
        registry.register("t-value", old, &Schema::parse_str(old).unwrap()).await.unwrap();

        let refused = registry.register("t-value", new, &Schema::parse_str(new).unwrap()).await.unwrap_err();

        let Error::Incompatible { subject, conflict } = &refused else { panic!("{refused}") };
        assert_eq!((subject.as_str(), conflict.field.as_str()), ("t-value", "b"));
    }
}
