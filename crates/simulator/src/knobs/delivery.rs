//! How deliveries of both families travel, and what goes wrong on the way.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use super::Latency;

/// How deliveries travel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DeliveryKnobs {
    /// The longest a receiver may take, milliseconds.
    pub time_limit: u64,
    /// Which answers count as accepted; an Acknowledge always needs 200.
    pub accepts: Accepts,
    /// Which receiver addresses may be subscribed.
    pub receivers: ReceiverUrls,
    /// Hosts and where they really are, `host` → `address:port`, instead of asking DNS.
    pub resolve: BTreeMap<String, SocketAddr>,
    /// Does not check receivers' certificates.
    pub trust_any: bool,
    /// Deliveries on their way at once.
    pub concurrency: usize,
    /// Deliveries waiting or on their way at most; more are lost, and the journal says so.
    pub pending_limit: usize,
    /// Share sent twice.
    pub duplicate: f64,
    /// Share held back until up to four later ones of the same webhook and company have gone, at most 2 s. One at a time is,
    /// so that 1.0 lets every second one wait for its next.
    pub reorder: f64,
    /// Share never sent.
    pub lose: f64,
    /// What each waits before its first attempt.
    pub delay: Latency,
    /// Sends nothing until off again; what is due waits, and so does the answer of an operation whose Acknowledge goes before
    /// it.
    pub hold: bool,
}

impl Default for DeliveryKnobs {
    fn default() -> Self {
        Self {
            time_limit: 5_000,
            accepts: Accepts::Only200,
            receivers: ReceiverUrls::Https443,
            resolve: BTreeMap::new(),
            trust_any: false,
            concurrency: 64,
            pending_limit: 100_000,
            duplicate: 0.0,
            reorder: 0.0,
            lose: 0.0,
            delay: Latency::None,
            hold: false,
        }
    }
}

/// Which answers of a receiver count as accepted; the document says both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Accepts {
    /// 200 alone.
    #[default]
    Only200,
    /// Any 2xx.
    Any2xx,
}

/// Which receiver addresses may be subscribed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReceiverUrls {
    /// HTTPS on port 443, as documented.
    #[default]
    Https443,
    /// HTTPS on any port.
    Https,
    /// HTTP too.
    Any,
}
