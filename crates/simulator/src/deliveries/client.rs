//! The HTTP client of deliveries: name resolution and trust.
//!
//! A client belongs to one value of `resolve` and `trust_any`. Its pool keeps connections by name, so a changed address gets a
//! new client, and no delivery reaches the old address over a pooled connection.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use parking_lot::Mutex;
use reqwest::{Certificate, Client, ClientBuilder};

use crate::{
    Error,
    knobs::{DeliveryKnobs, Knobs},
};

/// Shorter than receivers usually keep idle connections, so that few deliveries meet one that is being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Builds clients on demand and keeps the last one.
#[derive(Debug)]
pub(super) struct DeliveryClients {
    roots: Vec<Certificate>,
    current: Mutex<Option<CachedClient>>,
}

/// The knobs that a client was built for, and the client.
type CachedClient = (BTreeMap<String, SocketAddr>, bool, Client);

impl DeliveryClients {
    pub(super) fn new(roots: &[String]) -> Result<Self, Error> {
        let mut certificates = Vec::new();
        for root in roots {
            let found =
                Certificate::from_pem_bundle(root.as_bytes()).map_err(|source| unusable(source.into()))?;
            if found.is_empty() {
                return Err(unusable("no certificate in this PEM".into()));
            }
            certificates.extend(found);
        }
        Ok(Self { roots: certificates, current: Mutex::new(None) })
    }

    pub(super) fn get(&self, knobs: &Knobs) -> Client {
        let mut current = self.current.lock();
        let DeliveryKnobs { resolve, trust_any, .. } = &knobs.delivery;
        match &*current {
            Some((names, trusting, client)) if names == resolve && trusting == trust_any => client.clone(),
            _ => {
                let client = self.build(&knobs.delivery);
                *current = Some((resolve.clone(), *trust_any, client.clone()));
                client
            }
        }
    }

    /// Reading the platform's certificates is slow, so it happens with the first delivery.
    fn build(&self, knobs: &DeliveryKnobs) -> Client {
        let builder = || builder(&knobs.resolve);
        let built = if knobs.trust_any {
            builder().tls_danger_accept_invalid_certs(true).build()
        } else {
            // A machine without certificates still trusts those of the settings.
            let merged = builder().tls_certs_merge(self.roots.clone()).build();
            merged.or_else(|_| builder().tls_certs_only(self.roots.clone()).build())
        };
        built.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot build the delivery client for these knobs; deliveries ignore them");
            self::builder(&BTreeMap::new()).tls_certs_only(self.roots.clone()).build().unwrap_or_default()
        })
    }
}

fn builder(resolve: &BTreeMap<String, SocketAddr>) -> ClientBuilder {
    let builder = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // Every attempt on the wire has its journal entry.
        .retry(reqwest::retry::never())
        .no_proxy()
        .no_gzip()
        .referer(false)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT);
    // The port of the knob applies unless the URL has one.
    resolve.iter().fold(builder, |builder, (host, address)| builder.resolve(host, *address))
}

fn unusable(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Certificate { what: "read the root certificates of receivers", source }
}
