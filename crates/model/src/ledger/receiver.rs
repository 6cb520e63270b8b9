//! What receivers report: deliveries, acknowledgements, and how often deliveries are expected.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Target};
use crate::{AccountingResource, InvoicingHook, Key};

/// An Acknowledge that a worker has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledge {
    /// The subscription; empty if it named none.
    pub webhook_id: String,
    /// The resource, if known.
    #[serde(default)]
    pub resource: Option<AccountingResource>,
    /// When.
    pub received_at: i64,
    /// The worker.
    pub worker: String,
}

impl Acknowledge {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str, webhook_id: &str) -> Key {
        Key::state("acknowledge", &[connector, webhook_id])
    }
}

/// An echo that a worker has answered for the invoicing API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Echo {
    /// When.
    pub received_at: i64,
    /// The worker.
    pub worker: String,
}

impl Echo {
    /// Its key in the state topic: for the address of one hook, or for the shared address.
    #[must_use]
    pub fn key(connector: &str, hook: Option<InvoicingHook>) -> Key {
        match hook {
            Some(hook) => Key::state("echo", &[connector, &hook.slug()]),
            None => Key::state("echo", &[connector]),
        }
    }
}

/// One worker's deliveries of one connector, and the secrets it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiverReport {
    /// The worker.
    pub worker: String,
    /// When this was written.
    pub at: i64,
    /// Since when it has counted.
    pub since: i64,
    /// Fingerprints of the secrets for accounting deliveries.
    #[serde(default)]
    pub accounting: BTreeSet<Fingerprint>,
    /// Fingerprint of the secret from which those of invoicing hooks are derived.
    #[serde(default)]
    pub invoicing: BTreeSet<Fingerprint>,
    /// Whether it receives at a separate address per invoicing hook. Workers of earlier versions do not.
    #[serde(default)]
    pub hook_addresses: bool,
    /// Whether it writes an [`Echo`] for each answered echo. Workers of earlier versions do not.
    #[serde(default)]
    pub tells_echoes: bool,
    /// Durable accounting deliveries, by webhook.
    #[serde(default)]
    pub webhooks: BTreeMap<String, Traffic>,
    /// Durable invoicing deliveries, by hook, if its secret or its own address identified it.
    #[serde(default)]
    pub hooks: BTreeMap<Target, Traffic>,
}

impl ReceiverReport {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str, worker: &str) -> Key {
        Key::state("heard", &[connector, worker])
    }
}

/// Deliveries of one subscription.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// The resource, for accounting deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<AccountingResource>,
    /// When the last one became durable.
    pub last: i64,
    /// How many since [`ReceiverReport::since`].
    pub count: u64,
}

/// How often deliveries arrive, by target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryIntervals {
    /// Each target that ever had a delivery.
    #[serde(flatten)]
    pub targets: BTreeMap<Target, DeliveryInterval>,
}

impl DeliveryIntervals {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str) -> Key {
        Key::state("pace", &[connector])
    }
}

/// How often deliveries of one target arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryInterval {
    /// When the first counted delivery arrived.
    pub since: i64,
    /// When the last one arrived.
    pub last: i64,
    /// The longest interval between two deliveries, in the current and in the previous observation period.
    pub longest: [i64; 2],
    /// When the current period began.
    pub span: i64,
}
