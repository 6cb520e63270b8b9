//! One broker behind a proxy that disturbing tests break in turn: starting one takes longer than most of what they do to
//! it.
//!
//! Each test finds it healed and running, whatever the one before left behind. It lives on a runtime of its own, since
//! that of the first test ends with the test.

use std::sync::OnceLock;

use tokio::runtime::Runtime;
use tokio::sync::{Mutex, MutexGuard};

use super::{Broker, Error, Options, Result};

struct Breakable {
    broker: Mutex<Broker>,
    /// Held, not used: the proxy's tasks run on it.
    _runtime: Runtime,
}

/// The broker, for as long as the guard is held. To be called from disturbing tests only.
pub(crate) async fn take() -> Result<MutexGuard<'static, Broker>> {
    static BROKER: OnceLock<Result<Breakable>> = OnceLock::new();
    // Starting blocks on a runtime of its own, which a thread of another runtime may not.
    let started = tokio::task::spawn_blocking(|| BROKER.get_or_init(start)).await;
    let started = started.map_err(|error| Error(format!("start the breakable broker: {error}")))?;
    let mut broker = started.as_ref().map_err(Clone::clone)?.broker.lock().await;
    broker.proxy()?.heal();
    if broker.resume().is_err() {
        broker.restart().await?;
    }
    Ok(broker)
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
