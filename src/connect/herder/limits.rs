//! How long an operation may take, and how many threads and Kafka clients operations use at the same time.
//!
//! A listener has many connections, and each request may need a Kafka client (several threads and connections) or a blocking
//! thread. Without a limit a client in a loop could cause thousands of them. A request waits for a free place, in order of
//! arrival, and is refused when its time is up.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    task_local,
    time::{Instant, timeout},
};

use super::{Error, OPERATION_LIMIT};

/// Reads that use their own Kafka clients. Reading a topic to its end takes two clients for about 50 ms: this many reads at the
/// same time still answer hundreds of requests a second.
const MAX_CLIENTS: usize = 16;
/// Edits of offsets. Each keeps a Kafka client for every writer of its connector until the edit is over, and a connector may have
/// hundreds. The config writer takes one edit at a time anyway.
const MAX_OFFSET_EDITS: usize = 1;
/// Threads that read files: more than hang on one bad mount before a person notices, fewer than the runtime has.
const MAX_THREADS: usize = 64;
/// Threads for validation requests, which every reader may send: separate from those that changes need.
const MAX_VALIDATIONS: usize = 8;

task_local! {
    /// When everything that the current request does has to be over.
    static REQUEST_END: Instant;
}

/// Handles a request, all of whose steps share the time until `end`.
pub(in crate::connect) async fn handle_until<T>(end: Instant, handler: impl Future<Output = T>) -> T {
    REQUEST_END.scope(end, handler).await
}

/// The time an operation has left: of [`OPERATION_LIMIT`], and of the request that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(in crate::connect) struct TimeBudget(pub(super) Instant);

impl TimeBudget {
    pub(in crate::connect) fn start() -> Self {
        let end = Instant::now() + OPERATION_LIMIT;
        Self(REQUEST_END.try_with(|request| end.min(*request)).unwrap_or(end))
    }

    /// The same, limited to `limit` from now.
    pub(in crate::connect) fn at_most(self, limit: Duration) -> Self {
        Self(self.0.min(Instant::now() + limit))
    }

    pub(in crate::connect) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Runs `work` for at most the time that is left.
    pub(super) async fn within<T>(
        self,
        doing: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout(self.left(), work).await.unwrap_or(Err(Error::TimedOut { doing }))
    }

    /// Runs work that may block, such as reading the files that references name, on a blocking thread. The thread keeps the
    /// place: if it hangs on a file, it still counts after its request was answered.
    pub(super) async fn blocking<T: Send + 'static>(
        self,
        (waiting, doing): (&'static str, &'static str),
        class: &'static str,
        permit: Permit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let running = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        let done = async {
            running.await.map_err(|error| {
                // Not the panic's text, which may hold a value of the configuration.
                tracing::error!(class, panicked = error.is_panic(), "{doing}");
                Error::Internal { doing }
            })
        };
        self.within(waiting, done).await
    }
}

/// Places for everything that is limited.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) clients: Places,
    pub(super) offset_edits: Places,
    /// Threads for changes; they may hang.
    pub(super) threads: Places,
    pub(super) validations: Places,
}

impl Default for Limits {
    fn default() -> Self {
        let [clients, offset_edits, threads, validations] =
            [MAX_CLIENTS, MAX_OFFSET_EDITS, MAX_THREADS, MAX_VALIDATIONS]
                .map(|places| Places(Arc::new(Semaphore::new(places))));
        Self { clients, offset_edits, threads, validations }
    }
}

/// A limited number of places.
#[derive(Debug)]
pub(super) struct Places(Arc<Semaphore>);

/// A place, held until this is dropped.
pub(super) type Permit = OwnedSemaphorePermit;

impl Places {
    /// Waits for a place.
    pub(super) async fn permit(&self, budget: TimeBudget, doing: &'static str) -> Result<Permit, Error> {
        let permit = Arc::clone(&self.0).acquire_owned();
        // The semaphore is never closed.
        budget.within(doing, async { permit.await.map_err(|_| Error::TimedOut { doing }) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn operation_gets_what_its_request_has_left() {
        let soon = Duration::from_secs(1);
        let left = |end| handle_until(end, async { TimeBudget::start().left() });

        assert!(left(Instant::now() + soon).await <= soon);
        assert!(left(Instant::now() + OPERATION_LIMIT * 2).await <= OPERATION_LIMIT);
        assert_eq!(left(Instant::now()).await, Duration::ZERO);
        assert!(TimeBudget::start().left() > soon, "no request waits for it");
    }

    #[tokio::test]
    async fn request_without_a_place_waits_for_one_or_times_out() {
        let limits = Limits::default();
        let take = async || limits.clients.permit(TimeBudget::start(), "waiting").await;
        let mut taken = Vec::new();
        for _ in 0..MAX_CLIENTS {
            taken.push(take().await.unwrap());
        }

        let late = limits.clients.permit(TimeBudget(Instant::now()), "waiting").await;
        let edit = limits.offset_edits.permit(TimeBudget::start(), "waiting").await;
        let second = limits.offset_edits.permit(TimeBudget(Instant::now()), "waiting").await;
        let other = limits.threads.permit(TimeBudget::start(), "waiting").await;
        let validation = limits.validations.permit(TimeBudget::start(), "waiting").await;
        taken.pop();
        let free = take().await;

        assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
        assert!(matches!(second, Err(Error::TimedOut { .. })), "one edit of offsets at a time: {second:?}");
        assert!(edit.is_ok() && other.is_ok() && validation.is_ok() && free.is_ok());
    }
}
