//! (subject, fingerprint) → schema id: asked for once, kept in memory and on disk.
//!
//! [`Ids::prepare`] fills a slot per subject before the first record; [`super::Encoder`] reads slots without a lock. The
//! ids are also in `schema-ids.json` of the state directory, so that a worker that restarts while the registry is away
//! still encodes.
//!
//! - However many ask for a subject at the same time, the registry is asked once and all get the same answer.
//! - An id from disk serves only where the registry gives no answer. A refusal is never papered over by it.
//! - Once the registry was found away in a [`Ids::prepare`], the subjects not yet begun do not wait for it again.
//!
//! A file that cannot be read or written costs a warning, never a record: the registry has every id.

mod state;
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

use self::state::State;
use super::{Error, Registry, schemas};

/// Registrations under way at a time: enough to hide the round trip, too few to trouble a shared registry.
const CONCURRENT: usize = 8;
const UNKNOWN: i64 = -1;

/// What a schema is registered under: a topic's values (`TopicNameStrategy`), with the schema they have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Full name of the topic.
    pub topic: Arc<str>,
    /// The schema of its values.
    pub kind: SchemaKind,
}

impl Subject {
    /// The subject for the values of `topic`.
    pub fn values_of(topic: impl Into<Arc<str>>, kind: SchemaKind) -> Self {
        Self { topic: topic.into(), kind }
    }

    /// The subject for a topic of ours under this prefix; `None` where its values are not Avro.
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

/// The id of one subject as encoders see it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) kind: SchemaKind,
    id: AtomicI64,
    /// Whether the registry itself has named the id since we started.
    confirmed: AtomicBool,
}

impl Slot {
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
    inner: Arc<Inner>,
}

/// Why the registry did not name the id, where it is one from memory or disk; `None` where it did.
type Found = Option<Error>;

type Flight = WeakShared<BoxFuture<'static, Result<Found, Error>>>;

#[derive(Debug)]
struct Inner {
    registry: Registry,
    state: State,
    slots: Mutex<HashMap<Subject, Arc<Slot>>>,
    /// Weak: a registration that nobody waits for any more is dropped, and the next caller starts afresh.
    flights: Mutex<HashMap<Subject, Flight>>,
}

impl Ids {
    /// Ids from `registry`, with what an earlier run left in `state_dir`.
    pub async fn open(registry: Registry, state_dir: &Path) -> Self {
        let state = State::load(state_dir, registry.addresses().map(str::to_owned).collect()).await;
        let inner = Inner { registry, state, slots: Mutex::default(), flights: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Sees to it that every subject has an id.
    ///
    /// All subjects are tried and all failures come back together: an [`Error::Several`] is final as soon as one of them is.
    pub async fn prepare(&self, subjects: &[Subject]) -> Result<(), Error> {
        let open = subjects.iter().filter(|subject| self.slot(subject).id().is_none()).cloned().collect();
        self.resolve_all(open).await
    }

    /// Asks the registry again for every subject whose id it has not confirmed since we started; for when it is back.
    ///
    /// Ids in use stay in use until the registry names another one. A registry that is still away is no error where
    /// every subject has an id: [`Ids::unconfirmed`] tells.
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

    /// Subjects whose id comes from disk, or that have none: what [`Ids::refresh`] would ask for.
    #[must_use]
    pub fn unconfirmed(&self) -> usize {
        self.inner.slots.lock().values().filter(|slot| !slot.confirmed.load(Ordering::Acquire)).count()
    }

    /// The registry behind the ids.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Where the id of this subject is or will be.
    pub(crate) fn slot(&self, subject: &Subject) -> Arc<Slot> {
        self.inner.slot(subject)
    }

    async fn resolve_all(&self, subjects: Vec<Subject>) -> Result<(), Error> {
        // Set once the registry has given no answer: those who have not begun need not wait for the same time-out.
        let away: OnceLock<Error> = OnceLock::new();
        let results: Vec<_> = stream::iter(subjects)
            .map(|subject| self.resolve_unless(&away, subject))
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        self.inner.state.save().await;
        let mut errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    async fn resolve_unless(&self, away: &OnceLock<Error>, subject: Subject) -> Result<(), Error> {
        if let Some(error) = away.get() {
            let attempt = format!("register subject {}", subject.name());
            let untried = Error::Transport { attempt, source: Arc::new(error.clone()) };
            return self.inner.settle(&subject, Err(untried)).map(drop);
        }
        let result = self.resolve(&subject).await;
        if let Err(error @ Error::Transport { .. }) | Ok(Some(error)) = &result {
            // Another one may have found out first; its error is as good.
            away.get_or_init(|| error.clone());
        }
        result.map(drop)
    }

    /// Asks the registry, or joins whoever is asking already.
    async fn resolve(&self, subject: &Subject) -> Result<Found, Error> {
        let flight = {
            let mut flights = self.inner.flights.lock();
            if let Some(flight) = flights.get(subject).and_then(WeakShared::upgrade) {
                flight
            } else {
                let (inner, asked) = (Arc::clone(&self.inner), subject.clone());
                let flight = async move { inner.ask(&asked).await }.boxed().shared();
                if let Some(weak) = flight.downgrade() {
                    flights.insert(subject.clone(), weak);
                }
                flight
            }
        };
        let result = flight.await;
        // Landed: whoever comes now asks anew. An entry that a later flight has put there meanwhile has not landed.
        let mut flights = self.inner.flights.lock();
        if flights
            .get(subject)
            .is_some_and(|weak| weak.upgrade().is_none_or(|flight| flight.peek().is_some()))
        {
            flights.remove(subject);
        }
        result
    }
}

impl Inner {
    fn slot(&self, subject: &Subject) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let slot = slots.entry(subject.clone()).or_insert_with(|| {
            let (id, confirmed) = (AtomicI64::new(UNKNOWN), AtomicBool::new(false));
            Arc::new(Slot { kind: subject.kind, id, confirmed })
        });
        Arc::clone(slot)
    }

    async fn ask(&self, subject: &Subject) -> Result<Found, Error> {
        let result = match schemas::embedded(subject.kind) {
            Ok(own) => self.registry.register(&subject.name(), own.text, &own.schema).await,
            Err(error) => Err(error),
        };
        self.settle(subject, result)
    }

    /// Makes the registry's answer, or the id from disk where there was none, the subject's id.
    fn settle(&self, subject: &Subject, answer: Result<u32, Error>) -> Result<Found, Error> {
        let name = subject.name();
        let fingerprint = schemas::embedded(subject.kind)?.fingerprint;
        let error = match answer {
            Ok(id) => {
                metrics::schema_requested(RegistrationOutcome::Registered);
                self.slot(subject).set(id, true);
                self.state.put(&name, fingerprint, id);
                return Ok(None);
            }
            Err(error) => error,
        };
        if (error.retry().is_retriable() || error.is_foreign())
            && let Some(id) = self.slot(subject).id().or_else(|| self.state.get(&name, fingerprint))
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
