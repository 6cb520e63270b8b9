//! Brokers behind proxies that disturbing tests break one after the other, one broker for each test that runs at a time: starting
//! one takes longer than most of what the tests do to it.
//!
//! [`take`] heals and resumes or restarts the broker, whatever the previous test did to it. Each has its own runtime, since that of
//! the first test ends with the test.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{Mutex, MutexGuard};

use kafka::{Admin, Kafka};
use model::Cleanup;

use super::place::chain;
use super::{Broker, Error, Options, Result, lost, prefix, topics};

/// Limit for a broker to recover on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Breakable {
    broker: Mutex<Broker>,
    /// Held, not used: the proxy's tasks run on it.
    _runtime: Runtime,
}

/// How many there are, and how many disturbing tests run at a time.
pub(crate) const COUNT: usize = 4;

static BROKERS: [BrokerSlot; COUNT] =
    [const { BrokerSlot { taken: Mutex::const_new(()), breakable: OnceLock::new() } }; COUNT];

struct BrokerSlot {
    taken: Mutex<()>,
    breakable: OnceLock<Result<Breakable>>,
}

/// A broker that no other test takes while this is held.
pub(crate) struct BrokerGuard {
    broker: MutexGuard<'static, Broker>,
    _slot: MutexGuard<'static, ()>,
}

impl Deref for BrokerGuard {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        &self.broker
    }
}

impl DerefMut for BrokerGuard {
    fn deref_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }
}

/// A broker, for as long as the guard is held. Only disturbing tests may call this, each once.
pub(crate) async fn take() -> Result<BrokerGuard> {
    let free = BROKERS.iter().find_map(|slot| Some((slot, slot.taken.try_lock().ok()?)));
    let (slot, _slot) = free.ok_or_else(|| Error("every breakable broker is taken".to_owned()))?;
    // Starting blocks on another runtime, which a thread of this one may not.
    let started = tokio::task::spawn_blocking(|| slot.breakable.get_or_init(start)).await;
    let started = started.map_err(|error| Error(format!("start the breakable broker: {error}")))?;
    let mut broker = started.as_ref().map_err(Clone::clone)?.broker.lock().await;
    broker.proxy()?.heal();
    if broker.was_paused() || broker.resume().is_err() {
        broker.restart().await?;
    }
    creates_topics(&broker).await?;
    Ok(BrokerGuard { broker, _slot })
}

/// Waits until it creates topics: a broker that has just come back may answer and still be fenced.
async fn creates_topics(broker: &Broker) -> Result<()> {
    // A new name each time: an existing topic would be found and not created.
    let spec = topics::spec(&prefix("breakable"), 1, Cleanup::Compact);
    let admin = Admin::Real(Kafka::plaintext(broker.bootstrap_past_proxy()));
    let began = Instant::now();
    loop {
        match admin.ensure(std::slice::from_ref(&spec)).await {
            Ok(_) => return Ok(()),
            Err(error) if lost::fair(began) > LIMIT => {
                return Err(Error(format!("the breakable broker creates no topics: {}", chain(&error))));
            }
            Err(_) => {}
        }
    }
}

fn start() -> Result<Breakable> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime =
        runtime.map_err(|error| Error(format!("start the breakable broker: build a runtime: {error}")))?;
    // Tests that wait for sessions to end want them short.
    let options = Options::default().proxied().property("group.min.session.timeout.ms", "1500");
    let broker = runtime.block_on(Broker::start(options))?;
    Ok(Breakable { broker: Mutex::new(broker), _runtime: runtime })
}
