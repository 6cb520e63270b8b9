//! Clients that have answered a question and may be asked the next one.
//!
//! Whoever takes a shard asks several questions in a row, about each of its topics; with a new client for each, most of the time would go
//! into connecting. Nobody serves the queue of an idle client, where its log lines collect, so none is kept for long.

use std::{
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::question::{Client, close, open};
use crate::{Error, Kafka, client::Settings, role::Role};

/// The age up to which a client is asked again.
const OLDEST: Duration = Duration::from_secs(5);
/// Idle clients, those of all settings together.
const MOST: usize = 16;

static SPARES: Mutex<Spares> = Mutex::new(Spares { idle: Vec::new(), is_watched: false });

struct Spares {
    idle: Vec<Spare>,
    /// A thread closes those that are too old.
    is_watched: bool,
}

struct Spare {
    settings: Settings,
    born: Instant,
    client: Arc<Client>,
}

/// Asks with an idle client, or else with a new one. One that failed to answer is asked nothing more.
pub(crate) fn ask<T>(
    kafka: &Kafka,
    role: &Role,
    question: impl FnOnce(&Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let settings = Settings::new(kafka, role)?;
    let spare = match take(&settings) {
        Some(spare) => spare,
        None => Spare { born: Instant::now(), client: open(&settings)?, settings },
    };
    let answer = question(&spare.client);
    // A new token would come through the queue.
    if answer.is_ok() && !spare.settings.has_token() {
        keep(spare)
    } else {
        close(spare.client)
    }
    answer
}

fn take(settings: &Settings) -> Option<Spare> {
    let mut spares = SPARES.lock();
    let young = |spare: &Spare| spare.born.elapsed() < OLDEST && spare.settings.is_same(settings);
    let found = spares.idle.iter().position(young)?;
    Some(spares.idle.swap_remove(found))
}

fn keep(spare: Spare) {
    let mut spares = SPARES.lock();
    if spares.idle.len() >= MOST || spare.born.elapsed() >= OLDEST {
        return close(spare.client);
    }
    spares.idle.push(spare);
    if !mem::replace(&mut spares.is_watched, true)
        && let Err(error) = thread::Builder::new().name("kafka-close".into()).spawn(watch)
    {
        tracing::warn!(%error, "no thread to close Kafka clients on");
        spares.is_watched = false;
        spares.idle.clear();
    }
}

/// Closes what is too old until nothing is left.
fn watch() {
    loop {
        let mut spares = SPARES.lock();
        spares
            .idle
            .extract_if(.., |spare| spare.born.elapsed() >= OLDEST)
            .for_each(|spare| close(spare.client));
        let Some(next) = spares.idle.iter().map(|spare| spare.born).min() else {
            spares.is_watched = false;
            return;
        };
        drop(spares);
        thread::sleep(OLDEST.saturating_sub(next.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{embedded::Cluster, role::Sight};

    const ROLE: Role = Role::Query(Sight::All);

    /// The address of the client that stands ready, if there is one.
    fn idle(cluster: &Cluster) -> Option<usize> {
        let spare = take(&Settings::new(&cluster.settings(), &ROLE).unwrap())?;
        let address = std::ptr::from_ref(&*spare.client).addr();
        keep(spare);
        Some(address)
    }

    #[test]
    fn a_client_that_answered_is_asked_again_and_one_that_failed_is_not() {
        let (cluster, other) = (Cluster::start(1).unwrap(), Cluster::start(1).unwrap());

        let first = ask(&cluster.settings(), &ROLE, |client| Ok(std::ptr::from_ref(client).addr())).unwrap();
        let (kept, elsewhere) = (idle(&cluster), idle(&other));
        let mut second = None;
        let failed: Result<(), Error> = ask(&cluster.settings(), &ROLE, |client| {
            second = Some(std::ptr::from_ref(client).addr());
            Err(Error::Stopped { action: "test".to_owned() })
        });

        assert_eq!((kept, elsewhere, second), (Some(first), None, Some(first)));
        assert!(failed.is_err());
        assert_eq!(idle(&cluster), None);
    }

    #[test]
    fn an_old_client_is_closed_by_itself() {
        let cluster = Cluster::start(1).unwrap();
        let born = Instant::now().checked_sub(OLDEST - Duration::from_millis(50)).unwrap();
        let settings = Settings::new(&cluster.settings(), &ROLE).unwrap();
        let client = open(&settings).unwrap();
        let gone = Arc::downgrade(&client);

        keep(Spare { settings, born, client });
        while gone.strong_count() > 0 {
            assert!(born.elapsed() < 4 * OLDEST);
            thread::yield_now();
        }
    }
}
