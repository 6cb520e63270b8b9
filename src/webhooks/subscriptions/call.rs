//! Calls to the provider, and their outcomes.

use std::collections::BTreeSet;

use model::{AccountingResource, Nonce, Subscription, Target};

use crate::state::subscriptions::SubscriptionChange;

/// A planned call: write `before`, make the call, then [`settle`](super::settle).
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    /// Written to the ledger before the call.
    pub before: Vec<SubscriptionChange>,
    /// The call.
    pub call: ProviderCall,
    /// The reason, for logs and the dry run.
    pub why: String,
}

/// A call to the provider. Its subscription is in the state after [`PlannedCall::before`].
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderCall {
    /// Names of events of a resource.
    Names(AccountingResource),
    /// Create a subscription.
    Subscribe(Box<Subscription>),
    /// Read an accounting subscription.
    Read(Box<Subscription>),
    /// Read an id that is not in the ledger.
    Identify {
        /// Its resource.
        resource: AccountingResource,
        /// The id.
        id: String,
    },
    /// Enable it.
    Enable(Box<Subscription>),
    /// Changes its address to the one in the ledger.
    Move(Box<Subscription>),
    /// Delete it.
    Delete(Box<Subscription>),
    /// List the hooks of the invoicing API.
    List {
        /// When it was planned: the list says nothing about later hooks.
        planned: i64,
    },
}

impl ProviderCall {
    /// Its target.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Names(resource) | Self::Identify { resource, .. } => Some(Target::Accounting(*resource)),
            _ => self.subscription().map(|one| one.target),
        }
    }

    /// The nonce of its subscription.
    #[must_use]
    pub fn nonce(&self) -> Option<&Nonce> {
        self.subscription().map(|one| &one.nonce)
    }

    fn subscription(&self) -> Option<&Subscription> {
        match self {
            Self::Subscribe(one)
            | Self::Read(one)
            | Self::Enable(one)
            | Self::Move(one)
            | Self::Delete(one) => Some(one),
            Self::Names(_) | Self::Identify { .. } | Self::List { .. } => None,
        }
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Names(_) => "names",
            Self::Subscribe(_) => "subscribe",
            Self::Read(_) => "read",
            Self::Identify { .. } => "identify",
            Self::Enable(_) => "enable",
            Self::Move(_) => "move",
            Self::Delete(_) => "delete",
            Self::List { .. } => "list",
        }
    }

    /// Whether it changes nothing at the provider.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self, Self::Names(_) | Self::Read(_) | Self::Identify { .. } | Self::List { .. })
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// Names of events.
    Names(BTreeSet<String>),
    /// An operation was answered.
    Done {
        /// `responseState`, where it says one.
        state: Option<i64>,
        /// The id it names.
        id: Option<String>,
        /// Errors in the provider's words.
        errors: Vec<String>,
    },
    /// A webhook of the accounting family.
    Seen(WebhookSnapshot),
    /// The hooks of the invoicing API.
    Listed(Vec<ListedHook>),
    /// The API itself says that it does not exist.
    Gone,
    /// The call failed.
    Failed {
        /// The reason, for logs and the dry run.
        words: String,
        /// Whether the provider may have acted all the same.
        acted: bool,
        /// Whether the provider refused the request itself: it will refuse it again.
        refused: bool,
    },
}

/// An accounting webhook as the provider has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookSnapshot {
    /// `thirdPartyApplicationName`.
    pub name: Option<String>,
    /// Receiver address.
    pub url: Option<String>,
    /// `isActive`.
    pub active: Option<bool>,
    /// `isDeleted`.
    pub deleted: bool,
    /// Semantic names.
    pub events: BTreeSet<String>,
}

/// An invoicing hook as the provider lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedHook {
    /// Its id.
    pub id: Option<String>,
    /// What it is for, where its words are known.
    pub target: Option<Target>,
    /// Receiver address.
    pub url: Option<String>,
    /// Whether it is paused.
    pub paused: Option<bool>,
    /// Name of the receiving application.
    pub name: Option<String>,
    /// The text beside it.
    pub description: Option<String>,
}
