//! How much requests take of the process at the same time.
//!
//! A listener has many connections, and each may ask for something that costs a client of Kafka's (several threads and
//! connections) or a blocking thread. Without a limit a client with a loop could have thousands of them. Whoever finds no
//! place waits for one, in the order of arrival, and is refused when its time is up.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{Budget, Error};

/// Clients of Kafka's. A reading takes two for some 50 ms: this many still answer hundreds of requests a second.
const CLIENTS: usize = 16;
/// Threads that read files. More than are stuck on one bad mount before somebody notices, fewer than the runtime has.
const THREADS: usize = 64;
/// Threads for validation requests, which anyone who may read can send: apart from those that changes need.
const VALIDATIONS: usize = 8;

/// What is taken now. See the module's head.
#[derive(Debug)]
pub(super) struct Limits {
    clients: Arc<Semaphore>,
    threads: Arc<Semaphore>,
    validations: Arc<Semaphore>,
}

/// A place, until it is dropped.
pub(super) type Turn = OwnedSemaphorePermit;

impl Default for Limits {
    fn default() -> Self {
        let [clients, threads, validations] =
            [CLIENTS, THREADS, VALIDATIONS].map(|places| Arc::new(Semaphore::new(places)));
        Self { clients, threads, validations }
    }
}

impl Limits {
    /// Waits for the place of a client.
    pub(super) async fn client(&self, budget: Budget, doing: &'static str) -> Result<Turn, Error> {
        turn(&self.clients, budget, doing).await
    }

    /// Waits for the place of a thread that may hang.
    pub(super) async fn thread(&self, budget: Budget, doing: &'static str) -> Result<Turn, Error> {
        turn(&self.threads, budget, doing).await
    }

    /// Waits for the place of a thread that validates.
    pub(super) async fn validation(&self, budget: Budget, doing: &'static str) -> Result<Turn, Error> {
        turn(&self.validations, budget, doing).await
    }
}

async fn turn(places: &Arc<Semaphore>, budget: Budget, doing: &'static str) -> Result<Turn, Error> {
    match timeout(budget.left(), Arc::clone(places).acquire_owned()).await {
        Ok(Ok(turn)) => Ok(turn),
        // Nobody ever closes it.
        Ok(Err(_)) | Err(_) => Err(Error::TimedOut { doing }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn who_finds_no_place_waits_until_one_is_free_or_the_time_is_up() {
        let limits = Limits::default();
        let take = async || limits.client(Budget::start(), "waiting").await;
        let mut taken = Vec::new();
        for _ in 0..CLIENTS {
            taken.push(take().await.unwrap());
        }

        let late = limits.client(Budget(Instant::now()), "waiting").await;
        let other = limits.thread(Budget::start(), "waiting").await;
        let validation = limits.validation(Budget::start(), "waiting").await;
        taken.pop();
        let free = take().await;

        assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
        assert!(other.is_ok() && validation.is_ok() && free.is_ok());
    }
}
