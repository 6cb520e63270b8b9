//! (subject, fingerprint) → schema id: fetched once, kept in memory and on disk.
//!
//! [`Ids::prepare`] fills a slot per subject before the first record; [`super::Encoder`] reads slots without a lock. The
//! ids are also in `schema-ids.json` of the state directory, so that a worker that restarts while the registry is unavailable can
//! encode.
//!
//! - Concurrent requests for a subject share one request to the registry and its answer.
//! - An id from disk is used only if the registry gives no answer, never after a refusal.
//! - Once [`Ids::prepare`] finds the registry unavailable, it does not contact it for the remaining subjects.
//!
//! A file that cannot be read or written causes a warning but never loses a record: the registry has every id.

mod store;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, WeakShared},
    stream,
};
use parking_lot::Mutex;

use base::metrics::{self, RegistrationOutcome};
use model::{SchemaKind, Topic, TopicPrefix};

use self::store::IdStore;
use super::{Error, Registry, schemas};

/// Concurrent registrations: enough to hide the round trip, too few to burden a shared registry.
const MAX_CONCURRENT_REGISTRATIONS: usize = 8;
const NO_ID: i64 = -1;

/// The subject of a topic's values (`TopicNameStrategy`), with their schema.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ValueSubject {
    /// Full name of the topic.
    pub topic: Arc<str>,
    /// The schema of its values.
    pub kind: SchemaKind,
}

impl ValueSubject {
    /// The subject for the values of `topic`.
    pub fn values_of(topic: impl Into<Arc<str>>, kind: SchemaKind) -> Self {
        Self { topic: topic.into(), kind }
    }

    /// The subject of one of our topics under this prefix; `None` if its values are not Avro.
    #[must_use]
    pub fn of(topic: Topic, prefix: &TopicPrefix) -> Option<Self> {
        Some(Self::values_of(topic.name(prefix), topic.schema()?))
    }

    /// The name at the registry.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-value", self.topic)
    }
}

/// The id of one subject, shared with encoders.
#[derive(Debug)]
pub(crate) struct IdSlot {
    pub(crate) kind: SchemaKind,
    id: AtomicI64,
    /// Whether the registry has confirmed the id since the start.
    confirmed: AtomicBool,
}

impl IdSlot {
    pub(crate) fn id(&self) -> Option<u32> {
        u32::try_from(self.id.load(Ordering::Acquire)).ok()
    }

    fn set(&self, id: u32, confirmed: bool) {
        self.id.store(id.into(), Ordering::Release);
        self.confirmed.store(confirmed, Ordering::Release);
    }
}

/// The schema ids of a worker; clones share everything.
#[derive(Debug, Clone)]
pub struct Ids {
    inner: Arc<SharedIds>,
}

/// Why an id from memory or disk is used; `None` if the registry gave the id.
type FallbackReason = Option<Error>;

type SharedRegistration = WeakShared<BoxFuture<'static, Result<FallbackReason, Error>>>;

#[derive(Debug)]
struct SharedIds {
    registry: Registry,
    store: IdStore,
    slots: Mutex<HashMap<ValueSubject, Arc<IdSlot>>>,
    /// Weak: a registration without waiting callers is dropped, and the next caller starts a new one.
    registrations: Mutex<HashMap<ValueSubject, SharedRegistration>>,
}

impl Ids {
    /// Ids from `registry`, with those that an earlier run stored in `state_dir`.
    pub async fn open(registry: Registry, state_dir: &Path) -> Self {
        let store = IdStore::load(state_dir, registry.addresses().map(str::to_owned).collect()).await;
        let inner = SharedIds { registry, store, slots: Mutex::default(), registrations: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Ensures that every subject has an id.
    ///
    /// Tries all subjects and returns all failures together; an [`Error::Several`] is final if one of them is.
    pub async fn prepare(&self, subjects: &[ValueSubject]) -> Result<(), Error> {
        let open = subjects.iter().filter(|subject| self.slot(subject).id().is_none()).cloned().collect();
        self.resolve_all(open).await
    }

    /// Asks the registry again for every subject whose id it has not confirmed since the start; for use once it is back.
    ///
    /// An id stays in use until the registry gives another one. A registry that is still unavailable is not an error if every
    /// subject has an id; [`Ids::unconfirmed`] counts the others.
    pub async fn refresh(&self) -> Result<(), Error> {
        let open = self
            .inner
            .slots
            .lock()
            .iter()
            .filter(|(_, slot)| !slot.confirmed.load(Ordering::Acquire))
            .map(|(subject, _)| subject.clone())
            .collect();
        self.resolve_all(open).await
    }

    /// Number of subjects whose id comes from disk or is missing, which [`Ids::refresh`] asks for.
    #[must_use]
    pub fn unconfirmed(&self) -> usize {
        self.inner.slots.lock().values().filter(|slot| !slot.confirmed.load(Ordering::Acquire)).count()
    }

    /// The registry behind the ids.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// The slot that has, or will have, the id of this subject.
    pub(crate) fn slot(&self, subject: &ValueSubject) -> Arc<IdSlot> {
        self.inner.slot(subject)
    }

    async fn resolve_all(&self, subjects: Vec<ValueSubject>) -> Result<(), Error> {
        // Set once the registry gives no answer: the remaining subjects need not wait for the same timeout.
        let away: OnceLock<Error> = OnceLock::new();
        let results: Vec<_> = stream::iter(subjects)
            .map(|subject| self.resolve_unless(&away, subject))
            .buffer_unordered(MAX_CONCURRENT_REGISTRATIONS)
            .collect()
            .await;
        self.inner.store.save().await;
        let mut errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    async fn resolve_unless(&self, away: &OnceLock<Error>, subject: ValueSubject) -> Result<(), Error> {
        if let Some(error) = away.get() {
            let attempt = format!("register subject {}", subject.name());
            let untried = Error::Transport { attempt, source: Arc::new(error.clone()) };
            return self.inner.settle(&subject, Err(untried)).map(drop);
        }
        let result = self.resolve(&subject).await;
        if let Err(error @ Error::Transport { .. }) | Ok(Some(error)) = &result {
            // A concurrent registration may have set it first; either error will do.
            away.get_or_init(|| error.clone());
        }
        result.map(drop)
    }

    /// Asks the registry, or joins a registration in progress.
    async fn resolve(&self, subject: &ValueSubject) -> Result<FallbackReason, Error> {
        let registration = {
            let mut registrations = self.inner.registrations.lock();
            if let Some(registration) = registrations.get(subject).and_then(WeakShared::upgrade) {
                registration
            } else {
                let (inner, asked) = (Arc::clone(&self.inner), subject.clone());
                let registration = async move { inner.ask(&asked).await }.boxed().shared();
                if let Some(weak) = registration.downgrade() {
                    registrations.insert(subject.clone(), weak);
                }
                registration
            }
        };
        let result = registration.await;
        // Finished: the next caller asks again. A later registration that has replaced the entry meanwhile is not finished.
        let mut registrations = self.inner.registrations.lock();
        if registrations
            .get(subject)
            .is_some_and(|weak| weak.upgrade().is_none_or(|registration| registration.peek().is_some()))
        {
            registrations.remove(subject);
        }
        result
    }
}

impl SharedIds {
    fn slot(&self, subject: &ValueSubject) -> Arc<IdSlot> {
        let mut slots = self.slots.lock();
        let slot = slots.entry(subject.clone()).or_insert_with(|| {
            let (id, confirmed) = (AtomicI64::new(NO_ID), AtomicBool::new(false));
            Arc::new(IdSlot { kind: subject.kind, id, confirmed })
        });
        Arc::clone(slot)
    }

    async fn ask(&self, subject: &ValueSubject) -> Result<FallbackReason, Error> {
        let result = match schemas::embedded(subject.kind) {
            Ok(own) => self.registry.register(&subject.name(), own.text, &own.schema).await,
            Err(error) => Err(error),
        };
        self.settle(subject, result)
    }

    /// Stores the registry's answer as the subject's id, or the id from disk if there was no answer.
    fn settle(&self, subject: &ValueSubject, answer: Result<u32, Error>) -> Result<FallbackReason, Error> {
        let name = subject.name();
        let fingerprint = &schemas::embedded(subject.kind)?.fingerprint;
        let error = match answer {
            Ok(id) => {
                metrics::schema_requested(RegistrationOutcome::Registered);
                self.slot(subject).set(id, true);
                self.store.put(&name, fingerprint, id);
                return Ok(None);
            }
            Err(error) => error,
        };
        if (error.retry().is_retriable() || error.is_foreign())
            && let Some(id) = self.slot(subject).id().or_else(|| self.store.get(&name, fingerprint))
        {
            metrics::schema_requested(RegistrationOutcome::Cached);
            let error_chain: &dyn std::error::Error = &error;
            tracing::warn!(
                subject = name,
                id,
                error = error_chain,
                "no answer from the registry: a known id is used"
            );
            self.slot(subject).set(id, false);
            return Ok(Some(error));
        }
        metrics::schema_requested(match &error {
            Error::Incompatible { .. } => RegistrationOutcome::Incompatible,
            Error::Unauthorised { .. } => RegistrationOutcome::Unauthorised,
            _ => RegistrationOutcome::Unavailable,
        });
        Err(error)
    }
}
