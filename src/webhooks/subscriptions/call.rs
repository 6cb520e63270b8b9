//! What the provider is asked for, and what it may answer.

use std::collections::BTreeSet;

use model::{AccountingResource, Nonce, Subscription, Target};

use crate::state::subscriptions::Change;

/// One thing to do: write `before`, make the call, then [`settle`](super::settle).
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    /// What has to stand in the ledger before the provider is asked.
    pub before: Vec<Change>,
    /// What is asked.
    pub call: ProviderCall,
    /// Why, for people.
    pub why: String,
}

/// A request to the provider. A subscription in it is as it stands after [`PlannedCall::before`].
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderCall {
    /// Names of events of a resource.
    Names(AccountingResource),
    /// Make a subscription.
    Subscribe(Box<Subscription>),
    /// How an accounting subscription stands.
    Read(Box<Subscription>),
    /// What an id is that nobody knows.
    Identify {
        /// Of which resource.
        resource: AccountingResource,
        /// The id.
        id: String,
    },
    /// Enable it.
    Enable(Box<Subscription>),
    /// Change its address, to the one it has in the ledger by now.
    Move(Box<Subscription>),
    /// Delete it.
    Delete(Box<Subscription>),
    /// List the hooks of the invoicing API.
    List {
        /// When that was planned: of what came later it says nothing.
        planned: i64,
    },
}

impl ProviderCall {
    /// What it is about.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Names(resource) | Self::Identify { resource, .. } => Some(Target::Accounting(*resource)),
            _ => self.subscription().map(|one| one.target),
        }
    }

    /// Which subscription it is about.
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

    /// Its name, for metrics and people.
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

    /// Whether it only asks.
    #[must_use]
    pub const fn only_asks(&self) -> bool {
        matches!(self, Self::Names(_) | Self::Read(_) | Self::Identify { .. } | Self::List { .. })
    }
}

/// What came of a call.
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
        /// What went wrong, in words.
        errors: Vec<String>,
    },
    /// A webhook of the accounting family.
    Seen(WebhookSnapshot),
    /// The hooks of the invoicing API.
    Listed(Vec<ListedHook>),
    /// The API itself says that there is no such thing.
    Gone,
    /// There is no answer that can be used.
    Failed {
        /// Why, for people.
        words: String,
        /// Whether the provider may have done it all the same.
        acted: bool,
        /// Whether it has refused the thing itself: the same will be refused again.
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
