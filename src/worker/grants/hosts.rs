//! What is known about the hosts of providers, shared by all on this worker who ask them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use url::Url;

use base::{circuit::Circuit, metrics::ApiHost};
use provider::auth::http::ProviderClock;

/// What is known about one identity service.
#[derive(Debug)]
pub struct Host {
    /// What time it is over there.
    pub clock: ProviderClock,
    /// Whether it answers.
    pub circuit: Arc<Circuit>,
}

/// The hosts that somebody on this worker asks. Those that nobody asks any more are forgotten.
#[derive(Debug)]
pub struct Hosts {
    tolerance: Duration,
    known: Mutex<BTreeMap<String, Weak<Host>>>,
}

impl Hosts {
    /// `tolerance` is how far a provider's clock may be from this machine's before somebody should know:
    /// `clock.skew.max.ms`.
    pub fn new(tolerance: Duration) -> Self {
        Self { tolerance, known: Mutex::default() }
    }

    /// The one of `provider.auth.url`.
    pub fn of(&self, auth_url: &Url) -> Arc<Host> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, host| host.strong_count() > 0);
        if let Some(host) = known.get(auth_url.as_str()).and_then(Weak::upgrade) {
            return host;
        }
        let host = Arc::new(Host {
            clock: ProviderClock::new(self.tolerance),
            circuit: Arc::new(Circuit::new(ApiHost::Identity)),
        });
        known.insert(auth_url.as_str().to_owned(), Arc::downgrade(&host));
        host
    }
}
