//! The schema registry: ids for our schemas, schemas for ids.
//!
//! [`Registry::register`] is the one way a schema of ours gets there: the subject's level is raised to
//! `BACKWARD_TRANSITIVE`, the schema is looked up, and only if it is new it is checked against every version and posted.
//!
//! - Calls go to the configured addresses in order; only "no answer" and "not now" move on to the next one, so a verdict
//!   of one address is never hidden by another that is down.
//! - A level is raised and never lowered: a subject at `FULL` becomes `FULL_TRANSITIVE`.
//! - A registry that does not let us set levels is asked for every version instead, and the check is made here.
//! - A refusal always names subject, field and rule, also where the registry names none.
//!
//! On failure nothing is registered; [`Error::retry`] says whether to come back. Confluent's registry and Apicurio's
//! `/apis/ccompat/v7` are both spoken to; where they differ a comment says so.

mod http;
mod level;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use apache_avro::Schema;
use futures::future::BoxFuture;
use reqwest::Method;
use schema_registry_converter::{
    async_impl::schema_registry::{
        get_all_versions, get_schema_by_id, get_schema_by_subject_and_version, perform_sr_call, post_schema,
    },
    schema_registry_common::{RegisteredSchema, SchemaType, SrCall, SuppliedSchema},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

use self::http::{Call, Node, shown};
pub use self::level::Level;
use super::{Conflict, Error, compatibility};
use crate::config;

/// More versions than this are not read back; the newest are, since consumers have long left the others.
const MAX_VERSIONS: usize = 200;

/// A client of the schema registry; clones share their connections.
#[derive(Debug, Clone)]
pub struct Registry {
    nodes: Arc<[Node]>,
}

/// What guards a subject from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Guarded {
    level: Level,
    /// Whether the registry itself enforces the level; if not, the check is ours.
    by_registry: bool,
}

#[derive(Deserialize)]
struct LevelAnswer {
    /// `compatibilityLevel` is what GET answers, `compatibility` what PUT takes and echoes.
    #[serde(alias = "compatibility", rename = "compatibilityLevel")]
    level: Option<String>,
}

#[derive(Deserialize)]
struct CompatibilityAnswer {
    is_compatible: bool,
    /// Confluent's way to say why.
    #[serde(default)]
    messages: Option<Vec<String>>,
    /// Apicurio's way to say why.
    #[serde(default)]
    reason: Option<String>,
}

impl Registry {
    /// A client for the configured addresses. Nothing is sent yet.
    pub fn new(config: &config::Registry) -> Result<Self, Error> {
        if config.urls.is_empty() {
            return Err(Error::Settings {
                rule: "schema.registry.url must name at least one address".into(),
                source: None,
            });
        }
        if config.timeout.is_zero() {
            return Err(Error::Settings { rule: "the time-out must be above zero".into(), source: None });
        }
        let nodes = config.urls.iter().map(|base| Node::new(base, config)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { nodes: nodes.into() })
    }

    /// The configured addresses, in order. Ids are only good for the registry behind them.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(Node::address)
    }

    /// The id of `text` under `subject`, registered if it was not; `schema` is the same, parsed.
    ///
    /// The text is sent as it is: Avro's canonical form would drop documentation, defaults and logical types.
    pub async fn register(&self, subject: &str, text: &str, schema: &Schema) -> Result<u32, Error> {
        let guarded = self.guard(subject).await?;
        // Known already: an older worker that comes back after an upgrade introduces nothing, so nothing is checked.
        if let Some(id) = self.look_up(subject, text).await? {
            return Ok(id);
        }
        self.check_with(subject, text, schema, guarded).await?;
        let attempt = format!("register subject {subject}");
        let posted = self
            .first(|node| {
                let attempt = &attempt;
                Box::pin(async move {
                    let schema = SuppliedSchema::new(None, SchemaType::Avro, text.to_owned());
                    post_schema(&node.settings, subject.to_owned(), schema)
                        .await
                        .map_err(|error| node.converter_failed(attempt, error))
                })
            })
            .await;
        match posted {
            Ok(registered) => Ok(registered.id),
            // Somebody registered another version since the check, or the registry applies rules of its own.
            Err(Error::Refused { status: 409, message, .. }) => {
                Err(self.incompatible(subject, schema, guarded.level, &message).await?)
            }
            Err(Error::Refused { attempt, status: 422, code, message }) => {
                match self.conflict(subject, schema, guarded.level).await? {
                    Some(conflict) => {
                        Err(Error::Incompatible { subject: subject.into(), conflict: conflict.into() })
                    }
                    None => Err(Error::Refused { attempt, status: 422, code, message }),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether `schema` may follow the versions of `subject`, without changing anything at the registry.
    pub async fn check(&self, subject: &str, text: &str, schema: &Schema) -> Result<(), Error> {
        let level = match self.level(subject).await? {
            Some(level) => level.raised(),
            None => self.global_level().await?.unwrap_or(Level::None).raised(),
        };
        // The registry still holds the old level, so its verdict alone would be too mild.
        self.check_with(subject, text, schema, Guarded { level, by_registry: false }).await
    }

    /// The level set for `subject` itself; `None` where it has none of its own.
    pub async fn level(&self, subject: &str) -> Result<Option<Level>, Error> {
        let attempt = format!("read the compatibility level of subject {subject}");
        self.read_level(&attempt, &["config", subject]).await
    }

    /// The text and type of the schema with this id, or `None` where the registry has none.
    pub(crate) async fn schema(&self, id: u32) -> Result<Option<RegisteredSchema>, Error> {
        let attempt = format!("fetch schema {id}");
        let found = self
            .first(|node| {
                let attempt = &attempt;
                Box::pin(async move {
                    get_schema_by_id(id, &node.settings)
                        .await
                        .map_err(|error| node.converter_failed(attempt, error))
                })
            })
            .await;
        absent(found)
    }

    /// The id `text` already has under `subject`.
    async fn look_up(&self, subject: &str, text: &str) -> Result<Option<u32>, Error> {
        let attempt = format!("look up our schema under subject {subject}");
        let body = json!({ "schema": text, "schemaType": "AVRO" }).to_string();
        let found = self
            .first(|node| {
                let (attempt, body) = (&attempt, &body);
                Box::pin(async move {
                    perform_sr_call(&node.settings, SrCall::PostForVersion(subject, body))
                        .await
                        .map_err(|error| node.converter_failed(attempt, error))
                })
            })
            .await;
        Ok(absent(found)?.and_then(|found| found.id))
    }

    /// Sees to it that every later version of `subject` has to read all earlier ones.
    async fn guard(&self, subject: &str) -> Result<Guarded, Error> {
        let own = match self.level(subject).await {
            // Some registries let only administrators see or set levels.
            Err(Error::Unauthorised { status: 403, .. } | Error::Refused { status: 405, .. }) => {
                return Ok(unguarded(subject, Level::BackwardTransitive));
            }
            own => own?,
        };
        let effective = match own {
            Some(level) => level,
            None => self.global_level().await?.unwrap_or(Level::None),
        };
        let level = effective.raised();
        if own == Some(level) {
            return Ok(Guarded { level, by_registry: true });
        }
        let attempt = format!("set the compatibility level of subject {subject} to {level}");
        let put = Call {
            attempt: &attempt,
            method: Method::PUT,
            path: &["config", subject],
            query: None,
            body: Some(&json!({ "compatibility": level.word() })),
        };
        match self.call::<LevelAnswer>(&put).await {
            Ok(_) => Ok(Guarded { level, by_registry: true }),
            // 42205: the registry or the subject is in a read-only mode.
            Err(
                Error::Unauthorised { status: 403, .. }
                | Error::Refused { status: 404 | 405, .. }
                | Error::Refused { status: 422, code: Some(42205), .. },
            ) => Ok(unguarded(subject, level)),
            Err(error) => Err(error),
        }
    }

    /// The level of subjects that have none of their own; `None` where the registry does not show it.
    async fn global_level(&self) -> Result<Option<Level>, Error> {
        match self.read_level("read the global compatibility level", &["config"]).await {
            Err(Error::Unauthorised { status: 403, .. } | Error::Refused { status: 405, .. }) => Ok(None),
            level => level,
        }
    }

    async fn read_level(&self, attempt: &str, path: &[&str]) -> Result<Option<Level>, Error> {
        let get = Call { attempt, method: Method::GET, path, query: None, body: None };
        let Some(LevelAnswer { level: Some(word) }) = absent(self.call::<LevelAnswer>(&get).await)? else {
            return Ok(None);
        };
        let malformed = || Error::Malformed {
            attempt: attempt.to_owned(),
            rule: format!("{} is no compatibility level; set BACKWARD_TRANSITIVE there", shown(&word)),
            source: None,
        };
        Level::parse(&word).map(Some).ok_or_else(malformed)
    }

    async fn check_with(
        &self,
        subject: &str,
        text: &str,
        schema: &Schema,
        guarded: Guarded,
    ) -> Result<(), Error> {
        let attempt = format!("check our schema against subject {subject}");
        let post = Call {
            attempt: &attempt,
            method: Method::POST,
            path: &["compatibility", "subjects", subject, "versions"],
            query: Some("verbose=true"),
            body: Some(&json!({ "schema": text, "schemaType": "AVRO" })),
        };
        // A subject without versions is answered "compatible" by Confluent and 404 by Apicurio.
        let Some(answer) = absent(self.call::<CompatibilityAnswer>(&post).await)? else {
            return Ok(());
        };
        if !answer.is_compatible {
            let words = answer.messages.filter(|messages| !messages.is_empty()).map(|list| list.join("; "));
            let words = words.or(answer.reason).unwrap_or_default();
            return Err(self.incompatible(subject, schema, guarded.level, &words).await?);
        }
        if guarded.by_registry {
            return Ok(());
        }
        match self.conflict(subject, schema, guarded.level).await? {
            Some(conflict) => Err(Error::Incompatible { subject: subject.into(), conflict: conflict.into() }),
            None => Ok(()),
        }
    }

    /// The refusal as an error that names a field, whatever the registry said; `words` are its own.
    async fn incompatible(
        &self,
        subject: &str,
        schema: &Schema,
        level: Level,
        words: &str,
    ) -> Result<Error, Error> {
        let conflict = self.conflict(subject, schema, level).await?.unwrap_or_else(|| Conflict {
            field: schema.name().map_or_else(String::new, ToString::to_string),
            rule: format!("the registry says: {}", shown(words)),
            version: None,
            level: level.word(),
        });
        Ok(Error::Incompatible { subject: subject.into(), conflict: conflict.into() })
    }

    /// The newest version that `schema` may not follow, and why.
    async fn conflict(
        &self,
        subject: &str,
        schema: &Schema,
        level: Level,
    ) -> Result<Option<Conflict>, Error> {
        for version in self.versions(subject).await? {
            let attempt = format!("fetch version {version} of subject {subject}");
            let found = self
                .first(|node| {
                    let attempt = &attempt;
                    Box::pin(async move {
                        get_schema_by_subject_and_version(&node.settings, subject, Some(version))
                            .await
                            .map_err(|error| node.converter_failed(attempt, error))
                    })
                })
                .await;
            // Deleted since it was listed: nothing to be compatible with.
            let Some(found) = absent(found)? else { continue };
            if let Some((field, rule)) = breach(&found, schema, level) {
                return Ok(Some(Conflict { field, rule, version: Some(version), level: level.word() }));
            }
        }
        Ok(None)
    }

    /// The versions of a subject, newest first.
    async fn versions(&self, subject: &str) -> Result<Vec<u32>, Error> {
        let attempt = format!("list the versions of subject {subject}");
        let found = self
            .first(|node| {
                let attempt = &attempt;
                Box::pin(async move {
                    get_all_versions(&node.settings, subject.to_owned())
                        .await
                        .map_err(|error| node.converter_failed(attempt, error))
                })
            })
            .await;
        let mut versions = absent(found)?.unwrap_or_default();
        versions.sort_unstable_by_key(|version| std::cmp::Reverse(*version));
        if versions.len() > MAX_VERSIONS {
            tracing::warn!(
                subject,
                versions = versions.len(),
                read = MAX_VERSIONS,
                "only the newest versions are checked"
            );
            versions.truncate(MAX_VERSIONS);
        }
        Ok(versions)
    }

    async fn call<T: DeserializeOwned + Send>(&self, call: &Call<'_>) -> Result<T, Error> {
        self.first(|node| Box::pin(node.call(call))).await
    }

    /// The first answer: the next address is asked only where this one gave none.
    async fn first<'a, T>(
        &'a self,
        ask: impl Fn(&'a Node) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut last = None;
        for node in self.nodes.iter() {
            match ask(node).await {
                Err(error @ (Error::Transport { .. } | Error::Unavailable { .. })) => last = Some(error),
                answer => return answer,
            }
        }
        Err(last.unwrap_or_else(|| Error::Settings {
            rule: "schema.registry.url must name at least one address".into(),
            source: None,
        }))
    }
}

/// Goes on without the registry's guard: what others register later is then the registry owner's matter.
fn unguarded(subject: &str, level: Level) -> Guarded {
    tracing::warn!(
        subject,
        %level,
        "the registry does not let us set this compatibility level; every version is checked here instead"
    );
    Guarded { level, by_registry: false }
}

/// "There is no such thing" in the registry's own codes. A bare 404 comes from something else, such as a wrong base path.
fn absent<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        // Subject, version, schema, level not found.
        Err(Error::Refused { status: 404, code: Some(40401 | 40402 | 40403 | 40408), .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Field and rule that keep `ours` from following a registered version.
fn breach(registered: &RegisteredSchema, ours: &Schema, level: Level) -> Option<(String, String)> {
    let whole = || ours.name().map_or_else(String::new, ToString::to_string);
    if registered.schema_type != SchemaType::Avro {
        return Some((whole(), "the registered version is not an Avro schema".into()));
    }
    let theirs = match Schema::parse_str(&registered.schema) {
        Ok(theirs) => theirs,
        Err(error) => {
            return Some((
                whole(),
                format!("the registered version cannot be parsed: {}", shown(&error.to_string())),
            ));
        }
    };
    if let Some(breach) = compatibility::breach(&theirs, ours) {
        return Some((breach.field, breach.rule));
    }
    let forward = level.looks_forward().then(|| compatibility::breach(ours, &theirs)).flatten()?;
    Some((forward.field, format!("for consumers of the older version: {}", forward.rule)))
}
