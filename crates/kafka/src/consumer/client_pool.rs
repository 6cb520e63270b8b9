//! A pool of idle query clients.
//!
//! Taking a shard makes several queries in a row, for each of its topics; a new client for each would spend most of the time
//! connecting. The log lines of an idle client pile up in its queue, so clients are not kept long.

use std::{
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::query::{ConsumerClient, close, close_here, open};
use crate::{Error, Kafka, client::Settings, role::ClientRole};

/// Age from which a client is not used again.
const MAX_CLIENT_AGE: Duration = Duration::from_secs(5);
/// How often old clients are closed.
const CLOSE_INTERVAL: Duration = Duration::from_secs(1);
/// Most idle clients, over all settings.
const MAX_IDLE_CLIENTS: usize = 16;

/// Idle clients of this process.
static POOL: ClientPool = ClientPool::new();

struct ClientPool(Mutex<IdleClients>);

struct IdleClients {
    spares: Vec<IdleClient>,
    /// Whether a thread is running that closes old clients.
    is_watched: bool,
}

struct IdleClient {
    settings: Settings,
    born: Instant,
    client: Arc<ConsumerClient>,
}

/// Runs a query on an idle client or a new one. A client whose query failed is closed.
pub(crate) fn ask<T>(
    kafka: &Kafka,
    role: &ClientRole,
    question: impl FnOnce(&ConsumerClient) -> Result<T, Error>,
) -> Result<T, Error> {
    POOL.ask(kafka, role, question)
}

impl ClientPool {
    const fn new() -> Self {
        Self(Mutex::new(IdleClients { spares: Vec::new(), is_watched: false }))
    }

    fn ask<T>(
        &'static self,
        kafka: &Kafka,
        role: &ClientRole,
        question: impl FnOnce(&ConsumerClient) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let settings = Settings::new(kafka, role)?;
        let spare = match self.take(&settings) {
            Some(spare) => spare,
            None => IdleClient { born: Instant::now(), client: open(&settings)?, settings },
        };
        let answer = question(&spare.client);
        // A client with tokens is not kept: its token requests arrive on the queue, which is not polled.
        if answer.is_ok() && !spare.settings.has_token() {
            self.keep(spare)
        } else {
            close(spare.client)
        }
        answer
    }

    fn take(&self, settings: &Settings) -> Option<IdleClient> {
        let mut idle = self.0.lock();
        let young =
            |spare: &IdleClient| spare.born.elapsed() < MAX_CLIENT_AGE && spare.settings.is_same(settings);
        let found = idle.spares.iter().position(young)?;
        Some(idle.spares.swap_remove(found))
    }

    fn keep(&'static self, spare: IdleClient) {
        let mut idle = self.0.lock();
        if idle.spares.len() >= MAX_IDLE_CLIENTS || spare.born.elapsed() >= MAX_CLIENT_AGE {
            drop(idle);
            return close(spare.client);
        }
        idle.spares.push(spare);
        if mem::replace(&mut idle.is_watched, true) {
            return;
        }
        drop(idle);
        if let Err(error) = thread::Builder::new().name("kafka-close".into()).spawn(|| self.watch()) {
            tracing::warn!(%error, "cannot start a thread to close idle Kafka clients; closing them now");
            let left =
                mem::replace(&mut *self.0.lock(), IdleClients { spares: Vec::new(), is_watched: false });
            drop(left);
        }
    }

    /// Closes old clients until none is left.
    fn watch(&self) {
        let mut is_done = false;
        while !is_done {
            thread::sleep(CLOSE_INTERVAL);
            let mut idle = self.0.lock();
            let old: Vec<IdleClient> =
                idle.spares.extract_if(.., |spare| spare.born.elapsed() >= MAX_CLIENT_AGE).collect();
            idle.is_watched = !idle.spares.is_empty();
            is_done = !idle.is_watched;
            drop(idle);
            old.into_iter().for_each(|spare| close_here(spare.client));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{embedded::EmbeddedCluster, role::Isolation};

    const ROLE: ClientRole = ClientRole::Query(Isolation::ReadUncommitted);

    /// The address of the idle client, if there is one.
    fn idle(pool: &'static ClientPool, cluster: &EmbeddedCluster) -> Option<usize> {
        let spare = pool.take(&Settings::new(&cluster.settings(), &ROLE).unwrap())?;
        let address = std::ptr::from_ref(&*spare.client).addr();
        pool.keep(spare);
        Some(address)
    }

    #[test]
    fn client_is_reused_unless_its_query_failed() {
        static POOL: ClientPool = ClientPool::new();
        let (cluster, other) = (EmbeddedCluster::start(1).unwrap(), EmbeddedCluster::start(1).unwrap());
        let kafka = cluster.settings();

        let first = POOL.ask(&kafka, &ROLE, |client| Ok(std::ptr::from_ref(client).addr())).unwrap();
        let (kept, elsewhere) = (idle(&POOL, &cluster), idle(&POOL, &other));
        let mut second = None;
        let failed: Result<(), Error> = POOL.ask(&kafka, &ROLE, |client| {
            second = Some(std::ptr::from_ref(client).addr());
            Err(Error::Stopped { action: "test".to_owned() })
        });

        assert_eq!((kept, elsewhere, second), (Some(first), None, Some(first)));
        assert!(failed.is_err());
        assert_eq!(idle(&POOL, &cluster), None);
    }

    #[test]
    fn old_client_is_closed() {
        static POOL: ClientPool = ClientPool::new();
        let cluster = EmbeddedCluster::start(1).unwrap();
        let settings = Settings::new(&cluster.settings(), &ROLE).unwrap();
        let client = open(&settings).unwrap();
        let gone = Arc::downgrade(&client);
        let born = Instant::now().checked_sub(MAX_CLIENT_AGE - Duration::from_secs(1)).unwrap();

        POOL.keep(IdleClient { settings, born, client });
        assert_eq!(gone.strong_count(), 1, "it was kept");
        while gone.strong_count() > 0 {
            assert!(born.elapsed() < 4 * MAX_CLIENT_AGE);
            thread::yield_now();
        }
    }
}
