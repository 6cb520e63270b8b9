//! Subscriptions, from the intent to create one until long after its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Target};
use crate::{
    Error, Key,
    error::excerpt,
    names::{named, shown_as_name},
    text::written_as_text,
};

/// Most history entries of a subscription.
const MAX_HISTORY: usize = 20;

/// One subscription at the provider, or the intent to create one. The provider's state is authoritative, not this record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// The connector.
    pub connector: String,
    /// Its target.
    pub target: Target,
    /// Unique id, valid before and after the provider has assigned its id.
    pub nonce: Nonce,
    /// The provider's id, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the provider has registered.
    #[serde(flatten)]
    pub registration: SubscriptionRegistration,
    /// Its phase.
    pub phase: SubscriptionPhase,
    /// Since when it has been in this phase.
    pub since: i64,
    /// When something last happened to it.
    #[serde(flatten)]
    pub times: SubscriptionTimes,
    /// Its problem, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its latest history, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

/// What the provider has registered for a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionRegistration {
    /// `application.name`, without the nonce.
    pub application: String,
    /// Receiver address.
    pub url: String,
    /// The address as the provider spells it, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spelled: Option<String>,
    /// Fingerprint of the secret that signs its deliveries.
    pub fingerprint: Fingerprint,
    /// Semantic names, for the accounting family.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub events: BTreeSet<String>,
}

/// When something happened to a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionTimes {
    /// When it was first intended.
    pub intended_at: i64,
    /// When an Acknowledge of it was last answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<i64>,
    /// Since when it has been active without interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<i64>,
    /// When the provider last answered a query about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<i64>,
    /// When its last delivery was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery: Option<i64>,
}

impl SubscriptionTimes {
    /// Nothing has happened to it since it was intended.
    #[must_use]
    pub const fn intended(at: i64) -> Self {
        Self {
            intended_at: at,
            acknowledged_at: None,
            active_since: None,
            checked_at: None,
            last_delivery: None,
        }
    }
}

/// An entry of a subscription's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When.
    pub at: i64,
    /// What happened.
    pub what: String,
}

named! {
    /// The phase of a subscription.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum SubscriptionPhase {
        /// It may have been requested; whether it exists is unknown.
        Intended = "intended",
        /// It exists, and the provider waits for the receiver to accept it.
        Awaiting = "awaiting",
        /// Deliveries are sent.
        Active = "active",
        /// It exists, was active, and is now disabled or paused.
        Disabled = "disabled",
        /// It is being deleted and may be gone.
        Ending = "ending",
        /// It is gone or never existed.
        Ended = "ended",
    }
}

impl SubscriptionPhase {
    /// Whether it may exist at the provider.
    #[must_use]
    pub const fn may_live(self) -> bool {
        !matches!(self, Self::Ended)
    }
}

shown_as_name!(SubscriptionPhase);

impl Subscription {
    /// A new, intended subscription.
    #[must_use]
    pub fn intended(
        connector: &str,
        target: Target,
        nonce: Nonce,
        application: &str,
        fingerprint: Fingerprint,
        now: i64,
    ) -> Self {
        Self {
            connector: connector.to_owned(),
            target,
            nonce,
            id: None,
            registration: SubscriptionRegistration {
                application: application.to_owned(),
                url: String::new(),
                spelled: None,
                fingerprint,
                events: BTreeSet::new(),
            },
            phase: SubscriptionPhase::Intended,
            since: now,
            times: SubscriptionTimes::intended(now),
            problem: None,
            history: Vec::new(),
        }
    }

    /// Its key in the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::state("subscription", &[&self.connector, self.nonce.as_str()])
    }

    /// Its name at the provider, by which it can be found if the response to its creation was lost.
    #[must_use]
    pub fn registered_name(&self) -> String {
        format!("{}/{}", self.registration.application, self.nonce)
    }

    /// Enters a phase and adds a history entry.
    pub fn enter(&mut self, phase: SubscriptionPhase, at: i64, what: impl Into<String>) {
        if self.phase != phase {
            (self.phase, self.since) = (phase, at);
        }
        self.times.active_since = match phase {
            SubscriptionPhase::Active => self.times.active_since.or(Some(at)),
            _ => None,
        };
        self.note(at, what);
    }

    /// Adds a history entry. Repeating the last one only updates its time.
    pub fn note(&mut self, at: i64, what: impl Into<String>) {
        let what = what.into();
        match self.history.last_mut() {
            Some(last) if last.what == what => last.at = at,
            _ => self.history.push(HistoryEntry { at, what }),
        }
        let surplus = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..surplus);
    }
}

/// A unique id of 16 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(String);

impl Nonce {
    /// From random bits.
    #[must_use]
    pub fn new(drawn: u64) -> Self {
        Self(format!("{drawn:016x}"))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits a name at the provider into application and nonce, if it is one of ours.
    #[must_use]
    pub fn split(name: &str) -> Option<(&str, Self)> {
        let (application, nonce) = name.rsplit_once('/')?;
        Some((application, nonce.parse().ok()?))
    }
}

impl FromStr for Nonce {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 16 && text.bytes().all(is_digit) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::UnknownName {
            what: "nonce of a subscription",
            given: excerpt(text),
            valid: "16 hexadecimal digits in lower case".to_owned(),
        })
    }
}

written_as_text!(Nonce);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When all declared subscriptions of a connector became active: snapshots start after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamStart {
    /// Whose.
    pub connector: String,
    /// When all of them were active for the first time.
    pub at: i64,
    /// Each declared target with the subscription that its stream started with.
    pub targets: BTreeMap<Target, TargetStart>,
}

/// The start of a target's stream: its current subscription, never an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStart {
    /// Its nonce.
    pub nonce: Nonce,
    /// Since when it has been active.
    pub since: i64,
}

impl StreamStart {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str) -> Key {
        Key::state("start", &[connector])
    }
}

/// A command for a connector's subscriptions, in addition to its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionCommand {
    /// Consecutive number of the command, repeated in its [`SubscriptionCommandDone`].
    pub number: u64,
    /// Whether to delete all subscriptions and create none, until the next command.
    pub removed: bool,
    /// When.
    pub at: i64,
}

/// The last command that was executed. A separate record, so that it does not overwrite the next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionCommandDone {
    /// Its number.
    pub number: u64,
    /// When.
    pub at: i64,
}

impl SubscriptionCommandDone {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str) -> Key {
        Key::state("done", &[connector])
    }
}

impl SubscriptionCommand {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str) -> Key {
        Key::state("wish", &[connector])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccountingResource;

    fn subscription() -> Subscription {
        let target = Target::Accounting(AccountingResource::Customers);
        let fingerprint = Fingerprint::of("0123456789abcdef");
        let mut one = Subscription::intended("hooks", target, Nonce::new(7), "tributary", fingerprint, 1);
        one.registration.url = "https://hooks.example.com/webhooks/accounting/hooks/customers".into();
        one
    }

    #[test]
    fn subscription_parses_back_and_unknown_members_are_ignored() {
        let mut written = serde_json::to_value(subscription()).unwrap();
        written["tomorrow"] = true.into();

        let read: Subscription = serde_json::from_value(written).unwrap();

        assert_eq!(read, subscription());
        assert_eq!(read.key().as_str(), "subscription/hooks/0000000000000007");
        assert_eq!(Nonce::split(&read.registered_name()), Some(("tributary", Nonce::new(7))));
    }

    #[test]
    fn foreign_name_has_no_nonce() {
        for name in ["tributary", "tributary/", "a/b", "a/000000000000000G", "a/00000000000000071"] {
            assert_eq!(Nonce::split(name), None, "{name}");
        }
        assert_eq!(Nonce::split("a/b/0000000000000007"), Some(("a/b", Nonce::new(7))));
    }

    #[test]
    fn history_keeps_the_last_entries_without_repetitions() {
        let mut subscription = subscription();
        for at in 0..50 {
            subscription.note(at, format!("line {}", at / 2));
        }

        assert_eq!(subscription.history.len(), MAX_HISTORY);
        assert_eq!(subscription.history.last(), Some(&HistoryEntry { at: 49, what: "line 24".into() }));
    }

    #[test]
    fn active_since_is_kept_while_active() {
        let mut one = subscription();
        one.enter(SubscriptionPhase::Active, 5, "active");
        one.enter(SubscriptionPhase::Active, 9, "active");
        assert_eq!((one.times.active_since, one.since), (Some(5), 5));

        one.enter(SubscriptionPhase::Disabled, 11, "disabled");
        assert_eq!((one.times.active_since, one.since), (None, 11));
    }
}
