//! The schema registry: ids for our schemas, schemas for ids.
//!
//! [`Registry::register`] is the only way to register a schema: it raises the subject's level to `BACKWARD_TRANSITIVE` and looks the
//! schema up; only a new schema is checked against every version and posted.
//!
//! - Calls try the configured addresses in order; only "no answer" and "unavailable" continue with the next one, so an address that
//!   is down never hides the verdict of another.
//! - Levels are raised, never lowered: a subject at `FULL` becomes `FULL_TRANSITIVE`.
//! - If the registry does not let us set levels, every version is fetched and checked here instead.
//! - A refusal always names subject, field and rule, even if the registry names none.
//!
//! On failure nothing is registered; [`Error::retry`] says whether a retry can help. Confluent's registry and Apicurio's
//! `/apis/ccompat/v7` are supported; comments say where they differ.

mod check;
mod http;
mod level;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use apache_avro::Schema;
use futures::{FutureExt, future::BoxFuture};
use schema_registry_converter::schema_registry_common::{RawRegisteredSchema, SrCall};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::http::{RegistryNode, RegistryRequest};
pub use self::level::Level;
use super::Error;
use crate::config;

/// A client of the schema registry; clones share their connections.
#[derive(Debug, Clone)]
pub struct Registry {
    nodes: Arc<[RegistryNode]>,
}

impl Registry {
    /// A client for the configured addresses. Sends nothing.
    pub fn new(config: &config::RegistrySettings) -> Result<Self, Error> {
        let nodes =
            config.urls.iter().map(|base| RegistryNode::new(base, config)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { nodes: nodes.into() })
    }

    /// The configured addresses, in order. Ids are only valid for the registry behind them.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(RegistryNode::address)
    }

    /// The id of `text` under `subject`, which is registered if it is new; `schema` is the parsed text.
    ///
    /// The text is sent as it is: Avro's canonical form would drop documentation, defaults and logical types.
    pub async fn register(&self, subject: &str, text: &str, schema: &Schema) -> Result<u32, Error> {
        let enforced = self.guard(subject).await?;
        // Already registered, for example by an older worker that returns after an upgrade: nothing to check.
        if let Some(id) = self.look_up(subject, text).await? {
            return Ok(id);
        }
        self.check_with(subject, text, schema, enforced).await?;
        let attempt = format!("register subject {subject}");
        let body = body(text).to_string();
        match self.ask(&attempt, SrCall::PostNew(subject, &body), |answer| answer.id).await {
            Ok(id) => Ok(id),
            // Another version was registered since the check, or the registry applies further rules. Or another worker was
            // first with the same schema, which Apicurio also answers with a conflict.
            Err(Error::Refused { status: 409, message, .. }) => match self.look_up(subject, text).await? {
                Some(id) => Ok(id),
                None => Err(self.incompatible(subject, schema, enforced.level, &message).await?),
            },
            Err(refused @ Error::Refused { status: 422, .. }) => {
                Err(self.conflict(subject, schema, enforced.level).await?.unwrap_or(refused))
            }
            Err(error) => Err(error),
        }
    }

    /// The schema with this id; `None` if the registry has none.
    pub(crate) async fn schema(&self, id: u32) -> Result<Option<Registered>, Error> {
        absent(self.ask(&format!("fetch schema {id}"), SrCall::GetById(id), Registered::of).await)
    }

    /// The id `text` already has under `subject`.
    async fn look_up(&self, subject: &str, text: &str) -> Result<Option<u32>, Error> {
        let attempt = format!("look up our schema under subject {subject}");
        let body = body(text).to_string();
        let found =
            self.ask(&attempt, SrCall::PostForVersion(subject, &body), |answer| Some(answer.id)).await;
        Ok(absent(found)?.flatten())
    }

    /// Makes a call through `schema_registry_converter`.
    async fn ask<T>(
        &self,
        attempt: &str,
        call: SrCall<'_>,
        pick: fn(RawRegisteredSchema) -> Option<T>,
    ) -> Result<T, Error> {
        self.first(|node| node.converted(attempt, call, pick).boxed()).await
    }

    /// Makes a request that `schema_registry_converter` does not offer.
    async fn call<T: DeserializeOwned + Send>(&self, call: &RegistryRequest<'_>) -> Result<T, Error> {
        self.first(|node| node.call(call).boxed()).await
    }

    /// The first answer: the next address is asked only if this one gave none.
    async fn first<'a, T>(
        &'a self,
        ask: impl Fn(&'a RegistryNode) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut last = None;
        for node in self.nodes.iter() {
            match ask(node).await {
                Err(error @ (Error::Transport { .. } | Error::Unavailable { .. })) => last = Some(error),
                answer => return answer,
            }
        }
        Err(last.unwrap_or_else(|| {
            let rule = "schema.registry.url must name at least one address".into();
            Error::Settings { rule, source: None }
        }))
    }
}

/// A schema as the registry has it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) schema: String,
    pub(crate) is_avro: bool,
}

impl Registered {
    fn of(answer: RawRegisteredSchema) -> Option<Self> {
        let is_avro = answer.schema_type.is_none_or(|name| name == "AVRO");
        Some(Self { schema: answer.schema?, is_avro })
    }
}

/// The request body to look up, check or register a schema.
fn body(text: &str) -> Value {
    json!({ "schema": text, "schemaType": "AVRO" })
}

/// Converts "not found" in the registry's own codes to `None`. A bare 404 comes from something else, such as a wrong base path.
fn absent<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        // Subject, version, schema, level not found.
        Err(Error::Refused { status: 404, code: Some(40401 | 40402 | 40403 | 40408), .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
