//! Compatibility levels, and the check of our schemas against the versions of a subject.
//!
//! If the registry does not let us set levels, every version is fetched and checked here instead. Either way a refusal names subject,
//! field and rule, even if the registry names none.

use apache_avro::Schema;
use reqwest::Method;
use schema_registry_converter::schema_registry_common::SrCall;
use serde::Deserialize;
use serde_json::json;

use super::{
    Level, Registered, Registry, absent, body,
    http::{RegistryRequest, excerpt},
};
use crate::avro::{Error, SchemaConflict, compatibility};

/// Maximum versions to check: the newest, since no consumer uses the others any more.
const MAX_VERSIONS: usize = 200;

/// The level that a subject has, and who enforces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EnforcedLevel {
    pub(super) level: Level,
    /// Whether the registry enforces the level; otherwise we check.
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
    /// Confluent's reasons.
    #[serde(default)]
    messages: Option<Vec<String>>,
    /// Apicurio's reason.
    #[serde(default)]
    reason: Option<String>,
}

impl Registry {
    /// Whether `schema` is compatible with the versions of `subject`, without changing anything at the registry.
    pub async fn check(&self, subject: &str, text: &str, schema: &Schema) -> Result<(), Error> {
        let level = match self.level(subject).await? {
            Some(level) => level.raised(),
            None => self.global_level().await?.unwrap_or(Level::None).raised(),
        };
        // The registry still has the old level, so its verdict alone would be too lenient.
        self.check_with(subject, text, schema, EnforcedLevel { level, by_registry: false }).await
    }

    /// The level set for `subject` itself; `None` if the global level applies.
    pub async fn level(&self, subject: &str) -> Result<Option<Level>, Error> {
        let attempt = format!("read the compatibility level of subject {subject}");
        self.read_level(&attempt, &["config", subject]).await
    }

    /// Ensures that every later version of `subject` must read all earlier ones.
    pub(super) async fn guard(&self, subject: &str) -> Result<EnforcedLevel, Error> {
        let own = match self.level(subject).await {
            // Some registries let only administrators read or set levels.
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
            return Ok(EnforcedLevel { level, by_registry: true });
        }
        let attempt = format!("set the compatibility level of subject {subject} to {level}");
        let put = RegistryRequest {
            attempt: &attempt,
            method: Method::PUT,
            path: &["config", subject],
            query: None,
            body: Some(&json!({ "compatibility": level.word() })),
        };
        match self.call::<LevelAnswer>(&put).await {
            Ok(_) => Ok(EnforcedLevel { level, by_registry: true }),
            // 42205: the registry or the subject is in a read-only mode.
            Err(
                Error::Unauthorised { status: 403, .. }
                | Error::Refused { status: 404 | 405, .. }
                | Error::Refused { status: 422, code: Some(42205), .. },
            ) => Ok(unguarded(subject, level)),
            // Another worker was first, which Apicurio answers with a conflict.
            Err(error @ Error::Refused { status: 409, .. }) => match self.level(subject).await? {
                Some(set) if set == set.raised() => Ok(EnforcedLevel { level: set, by_registry: true }),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The level of subjects without their own; `None` if the registry does not show it.
    async fn global_level(&self) -> Result<Option<Level>, Error> {
        match self.read_level("read the global compatibility level", &["config"]).await {
            Err(Error::Unauthorised { status: 403, .. } | Error::Refused { status: 405, .. }) => Ok(None),
            level => level,
        }
    }

    async fn read_level(&self, attempt: &str, path: &[&str]) -> Result<Option<Level>, Error> {
        let get = RegistryRequest { attempt, method: Method::GET, path, query: None, body: None };
        let Some(LevelAnswer { level: Some(word) }) = absent(self.call::<LevelAnswer>(&get).await)? else {
            return Ok(None);
        };
        let malformed = |_| Error::Malformed {
            attempt: attempt.to_owned(),
            rule: format!("{} is not a compatibility level; set BACKWARD_TRANSITIVE there", excerpt(&word)),
            source: None,
        };
        word.parse().map(Some).map_err(malformed)
    }

    pub(super) async fn check_with(
        &self,
        subject: &str,
        text: &str,
        schema: &Schema,
        enforced: EnforcedLevel,
    ) -> Result<(), Error> {
        let attempt = format!("check our schema against subject {subject}");
        let post = RegistryRequest {
            attempt: &attempt,
            method: Method::POST,
            path: &["compatibility", "subjects", subject, "versions"],
            query: Some("verbose=true"),
            body: Some(&body(text)),
        };
        // A subject without versions is answered "compatible" by Confluent and 404 by Apicurio.
        let Some(answer) = absent(self.call::<CompatibilityAnswer>(&post).await)? else {
            return Ok(());
        };
        if !answer.is_compatible {
            let words = answer.messages.filter(|messages| !messages.is_empty()).map(|list| list.join("; "));
            let words = words.or(answer.reason).unwrap_or_default();
            return Err(self.incompatible(subject, schema, enforced.level, &words).await?);
        }
        if enforced.by_registry {
            return Ok(());
        }
        self.conflict(subject, schema, enforced.level).await?.map_or(Ok(()), Err)
    }

    /// The refusal as an error that names a field; `words` is the registry's message.
    pub(super) async fn incompatible(
        &self,
        subject: &str,
        schema: &Schema,
        level: Level,
        words: &str,
    ) -> Result<Error, Error> {
        let conflict = || SchemaConflict {
            field: schema.name().map_or_else(String::new, ToString::to_string),
            rule: format!("the registry says: {}", excerpt(words)),
            version: None,
            level: level.word(),
        };
        let found = self.conflict(subject, schema, level).await?;
        Ok(found
            .unwrap_or_else(|| Error::Incompatible { subject: subject.into(), conflict: conflict().into() }))
    }

    /// The error about the newest version that `schema` is incompatible with.
    pub(super) async fn conflict(
        &self,
        subject: &str,
        schema: &Schema,
        level: Level,
    ) -> Result<Option<Error>, Error> {
        for version in self.versions(subject).await? {
            let attempt = format!("fetch version {version} of subject {subject}");
            let call = SrCall::GetBySubjectAndVersion(subject, version);
            // Deleted since it was listed.
            let Some(found) = absent(self.ask(&attempt, call, Registered::of).await)? else { continue };
            if let Some((field, rule)) = incompatibility(&found, schema, level) {
                let conflict = SchemaConflict { field, rule, version: Some(version), level: level.word() };
                return Ok(Some(Error::Incompatible { subject: subject.into(), conflict: conflict.into() }));
            }
        }
        Ok(None)
    }

    /// The versions of a subject, newest first.
    async fn versions(&self, subject: &str) -> Result<Vec<u32>, Error> {
        let attempt = format!("list the versions of subject {subject}");
        let path = &["subjects", subject, "versions"];
        let get = RegistryRequest { attempt: &attempt, method: Method::GET, path, query: None, body: None };
        let found = self.call::<Vec<u32>>(&get).await;
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
}

/// Continues although the registry does not enforce the level: what others register later is up to the registry's owner.
fn unguarded(subject: &str, level: Level) -> EnforcedLevel {
    tracing::warn!(
        subject,
        %level,
        "the registry does not let us set this compatibility level; every version is checked here instead"
    );
    EnforcedLevel { level, by_registry: false }
}

/// Field and rule that keep `ours` from following a registered version.
fn incompatibility(registered: &Registered, ours: &Schema, level: Level) -> Option<(String, String)> {
    let whole = || ours.name().map_or_else(String::new, ToString::to_string);
    if !registered.is_avro {
        return Some((whole(), "the registered version is not an Avro schema".into()));
    }
    let theirs = match Schema::parse_str(&registered.schema) {
        Ok(theirs) => theirs,
        Err(error) => {
            let rule = format!("the registered version cannot be parsed: {}", excerpt(&error.to_string()));
            return Some((whole(), rule));
        }
    };
    if let Some(breach) = compatibility::incompatibility(&theirs, ours) {
        return Some((breach.field, breach.rule));
    }
    let forward = level.looks_forward().then(|| compatibility::incompatibility(ours, &theirs)).flatten()?;
    Some((forward.field, format!("for consumers of the older version: {}", forward.rule)))
}
