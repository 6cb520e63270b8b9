//! The API client against the simulated provider, over real sockets.

mod access;
mod canned;
mod care;
mod egress;
mod paging;
mod storm;
mod table;
mod wire;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use base::secret::Secret;
use model::Moment;
use provider::{
    Transport,
    api::{ApiOptions, Budget, CallOptions, Client, PageRequest, Priority, Rates},
    auth::{self, Access, Tokens, http::ProviderClock},
};
use simulator::{SimulatedProvider, Simulator};
use tokio::time::Instant;
use url::Url;

use crate::{
    product::simulator::{ACCOUNTING_SCOPES, KEY, PAYROLL_SCOPES},
    support::{allowed_hosts, harness::Test},
};

pub(crate) fn tests() -> Vec<Test> {
    [
        access::tests(),
        care::tests(),
        egress::tests(),
        paging::tests(),
        storm::tests(),
        table::tests(),
        wire::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Longer than any call of these tests takes, even on a loaded machine.
const LONG: Duration = Duration::from_secs(30);
/// Rates that delay no request.
const FREELY: Rates = Rates { application: 100_000.0, company: 100_000.0, in_flight: 32 };

/// Client options for a simulator. With TLS, its certificate is written to the directory.
fn options(simulator: &Simulator, directory: Option<&tempfile::TempDir>) -> ApiOptions {
    let authorities = simulator.certificate().map(|certificate| {
        let path = directory.unwrap().path().join("provider.pem");
        std::fs::write(&path, certificate).unwrap();
        path
    });
    options_at(simulator.base_url(), authorities)
}

/// Client options for a provider at a URL.
fn options_at(base_url: Url, authorities: Option<PathBuf>) -> ApiOptions {
    let transport = Transport {
        connect: LONG,
        read: LONG,
        request: LONG,
        response_limit: 16 << 20,
        authorities,
        hosts: allowed_hosts(),
    };
    ApiOptions {
        base_url,
        subscription_key: Secret::new(KEY),
        transport,
        api_version: None,
        egress_proxy: None,
    }
}

fn client_of(options: &ApiOptions, rates: Rates) -> Client {
    Client::new(options, Budget::new(rates), ProviderClock::new(Duration::from_secs(300))).unwrap()
}

fn client(simulator: &Simulator) -> Client {
    client_of(&options(simulator, None), FREELY)
}

/// Options of a call that may take as long as it needs.
fn patient() -> CallOptions {
    CallOptions::within(Priority::Webhook, LONG)
}

fn page(number: u32, size: u32) -> PageRequest {
    PageRequest { number, size }
}

/// Valid tokens of a simulator, without a login.
#[derive(Debug)]
struct Granted {
    provider: Arc<SimulatedProvider>,
    scopes: &'static [&'static str],
    current: Mutex<Access>,
    renewals: AtomicUsize,
}

impl Granted {
    fn new(simulator: &Simulator, scopes: &'static [&'static str]) -> Arc<Self> {
        let provider = Arc::clone(simulator.provider());
        let current = Mutex::new(issue(&provider, scopes, 1));
        Arc::new(Self { provider, scopes, current, renewals: AtomicUsize::new(0) })
    }

    fn accounting(simulator: &Simulator) -> Arc<Self> {
        Self::new(simulator, &ACCOUNTING_SCOPES)
    }

    fn payroll(simulator: &Simulator) -> Arc<Self> {
        Self::new(simulator, &PAYROLL_SCOPES)
    }

    /// Number of requested replacements.
    fn renewals(&self) -> usize {
        self.renewals.load(Ordering::Relaxed)
    }
}

fn issue(provider: &SimulatedProvider, scopes: &[&str], serial: u64) -> Access {
    let (access, _) = provider.identity.grant(scopes);
    let issued = provider.identity.issued().into_iter().find(|issued| issued.token == access).unwrap();
    let expires_ms = Moment::parse(&issued.expires.iso()).map(|end| end.micros() / 1_000);
    Access { header: Secret::new(format!("Bearer {access}")), serial, expires_ms }
}

#[async_trait]
impl Tokens for Granted {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        Ok(self.current.lock().unwrap().clone())
    }

    async fn instead_of(&self, refused: &Access, _: Instant) -> Result<Access, auth::Error> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        let mut current = self.current.lock().unwrap();
        if current.serial == refused.serial {
            *current = issue(&self.provider, self.scopes, current.serial + 1);
        }
        Ok(current.clone())
    }
}

/// Always the same unknown token.
#[derive(Debug, Default)]
struct Stale(AtomicUsize);

#[async_trait]
impl Tokens for Stale {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        Ok(Access { header: Secret::new("Bearer made-up-and-never-issued"), serial: 1, expires_ms: None })
    }

    async fn instead_of(&self, _: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.token(end).await
    }
}

/// No token.
#[derive(Debug)]
struct LoggedOut;

#[async_trait]
impl Tokens for LoggedOut {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        Err(auth::Error::LoggedOut { grant: "acc".into(), command: "tributary auth login".into() })
    }

    async fn instead_of(&self, _: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.token(end).await
    }
}
