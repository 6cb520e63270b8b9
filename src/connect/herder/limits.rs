//! How long an operation may take, and how many threads and Kafka clients operations use at the same time.
//!
//! A listener has many connections, and each request may need a Kafka client (several threads and connections) or a blocking
//! thread. Without a limit a client in a loop could cause thousands of them. A request waits for a free place, in order of
//! arrival, and is refused when its time is up.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{Instant, timeout},
};

use super::{Error, OPERATION_LIMIT};

/// Reads and takeovers that use their own Kafka clients. Reading a topic to its end takes two clients for about 50 ms: this many
/// reads at the same time still answer hundreds of requests a second.
const MAX_CLIENTS: usize = 16;
/// Threads that read files: more than hang on one bad mount before a person notices, fewer than the runtime has.
const MAX_THREADS: usize = 64;
/// Threads for validation requests, which every reader may send: separate from those that changes need.
const MAX_VALIDATIONS: usize = 8;

/// The time an operation has left of [`OPERATION_LIMIT`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget(pub(super) Instant);

impl Budget {
    pub(super) fn start() -> Self {
        Self(Instant::now() + OPERATION_LIMIT)
    }

    /// The same, limited to `limit` from now.
    pub(super) fn at_most(self, limit: Duration) -> Self {
        Self(self.0.min(Instant::now() + limit))
    }

    pub(super) fn left(self) -> Duration {
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
    /// Threads for changes; they may hang.
    pub(super) threads: Places,
    pub(super) validations: Places,
}

impl Default for Limits {
    fn default() -> Self {
        let [clients, threads, validations] = [MAX_CLIENTS, MAX_THREADS, MAX_VALIDATIONS]
            .map(|places| Places(Arc::new(Semaphore::new(places))));
        Self { clients, threads, validations }
    }
}

/// A limited number of places.
#[derive(Debug)]
pub(super) struct Places(Arc<Semaphore>);

/// A place, held until this is dropped.
pub(super) type Permit = OwnedSemaphorePermit;

impl Places {
    /// Waits for a place.
    pub(super) async fn permit(&self, budget: Budget, doing: &'static str) -> Result<Permit, Error> {
        let permit = Arc::clone(&self.0).acquire_owned();
        // The semaphore is never closed.
        budget.within(doing, async { permit.await.map_err(|_| Error::TimedOut { doing }) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_without_a_place_waits_for_one_or_times_out() {
        let limits = Limits::default();
        let take = async || limits.clients.permit(Budget::start(), "waiting").await;
        let mut taken = Vec::new();
        for _ in 0..MAX_CLIENTS {
            taken.push(take().await.unwrap());
        }

        let late = limits.clients.permit(Budget(Instant::now()), "waiting").await;
        let other = limits.threads.permit(Budget::start(), "waiting").await;
        let validation = limits.validations.permit(Budget::start(), "waiting").await;
        taken.pop();
        let free = take().await;

        assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
        assert!(other.is_ok() && validation.is_ok() && free.is_ok());
    }
}
