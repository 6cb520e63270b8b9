//! What receivers have heard, and how often that is to be expected.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Target};
use crate::{AccountingResource, InvoicingHook, Key};

/// An Acknowledge that a worker has accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledge {
    /// The subscription it was for; empty where it named none.
    pub webhook_id: String,
    /// What it is for, where that could be told.
    #[serde(default)]
    pub resource: Option<AccountingResource>,
    /// When.
    pub received_at: i64,
    /// By whom.
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
    /// By whom.
    pub worker: String,
}

impl Echo {
    /// Its key in the state topic: of the address of one hook, or of the one that hooks share.
    #[must_use]
    pub fn key(connector: &str, hook: Option<InvoicingHook>) -> Key {
        match hook {
            Some(hook) => Key::state("echo", &[connector, &hook.slug()]),
            None => Key::state("echo", &[connector]),
        }
    }
}

/// What one worker has heard of one connector, and which secrets it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiverReport {
    /// The worker.
    pub worker: String,
    /// When this was written.
    pub at: i64,
    /// Since when it counts.
    pub since: i64,
    /// Fingerprints of the secrets that it verifies accounting deliveries with.
    #[serde(default)]
    pub accounting: BTreeSet<Fingerprint>,
    /// The same of the secret from which those of invoicing hooks are derived.
    #[serde(default)]
    pub invoicing: BTreeSet<Fingerprint>,
    /// Whether it takes deliveries at the own address of each invoicing hook. Workers of earlier versions do not.
    #[serde(default)]
    pub hook_addresses: bool,
    /// Whether it writes an [`Echo`] for each echo it answers. Workers of earlier versions do not.
    #[serde(default)]
    pub tells_echoes: bool,
    /// Accounting deliveries that are durable, by webhook.
    #[serde(default)]
    pub webhooks: BTreeMap<String, Traffic>,
    /// Invoicing deliveries that are durable, by hook, where the secret tells.
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
    /// The resource, of an accounting delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<AccountingResource>,
    /// When the last one was durable.
    pub last: i64,
    /// How many there were since [`ReceiverReport::since`].
    pub count: u64,
}

/// How often deliveries come, by target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryIntervals {
    /// Each target that was ever heard of.
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

/// How often deliveries of one target come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryInterval {
    /// When the first was heard that counts.
    pub since: i64,
    /// When the last was.
    pub last: i64,
    /// The longest silence between two, of those that ended within the time that is remembered: this span's and the one's before.
    pub longest: [i64; 2],
    /// When this span began.
    pub span: i64,
}
