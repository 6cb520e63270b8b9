//! The HTTP client of deliveries: which names are where, and whom to trust.
//!
//! A client belongs to one setting of `resolve` and `trust_any`. Its pool keeps connections by name, so when a name is
//! moved a new client takes over, and no delivery reaches the old place through a connection that was still open.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use parking_lot::Mutex;
use reqwest::{Certificate, Client, ClientBuilder};

use crate::{
    Error,
    knobs::{DeliveryKnobs, Knobs},
};

/// Shorter than receivers usually keep a silent connection, so that few deliveries meet one that is just being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Makes clients when they are needed, and keeps the last one.
#[derive(Debug)]
pub(super) struct DeliveryClients {
    roots: Vec<Certificate>,
    /// Without the platform's certificates, where those cannot be read.
    bare: Client,
    /// The last one made, with what it was made for.
    current: Mutex<Option<CachedClient>>,
}

/// Resolved names, whether any certificate is trusted, and the client built for them.
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
        let bare = builder(&BTreeMap::new()).tls_certs_only(certificates.clone()).build();
        Ok(Self { roots: certificates, bare: bare.map_err(Error::Client)?, current: Mutex::new(None) })
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

    /// Reading the platform's certificates takes a while, so it waits until somebody delivers.
    fn build(&self, knobs: &DeliveryKnobs) -> Client {
        let builder = || builder(&knobs.resolve);
        let built = if knobs.trust_any {
            builder().tls_danger_accept_invalid_certs(true).build()
        } else {
            // A machine without certificates of its own still has those of the settings.
            let merged = builder().tls_certs_merge(self.roots.clone()).build();
            merged.or_else(|_| builder().tls_certs_only(self.roots.clone()).build())
        };
        built.unwrap_or_else(|error| {
            tracing::error!(%error, "no client for these knobs, deliveries use DNS and the settings' roots");
            self.bare.clone()
        })
    }
}

fn builder(resolve: &BTreeMap<String, SocketAddr>) -> ClientBuilder {
    let builder = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // Every attempt on the wire is one in the journal.
        .retry(reqwest::retry::never())
        .no_proxy()
        .no_gzip()
        .referer(false)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT);
    // The port of the knob is used unless the URL names one.
    resolve.iter().fold(builder, |builder, (host, address)| builder.resolve(host, *address))
}

fn unusable(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Certificate { what: "read the root certificates of receivers", source }
}
