//! A subscription from the intent to make it until long after its end.

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

/// Notes that are kept of one subscription.
const NOTES: usize = 20;

/// One subscription at the provider, or the intent to make one. Nothing here is true because it was written: what the provider
/// says of it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// Whose it is.
    pub connector: String,
    /// What it is for.
    pub target: Target,
    /// What tells it from every other, before and after the provider has given it an id.
    pub nonce: Nonce,
    /// The provider's id, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `application.name`, without the nonce.
    pub application: String,
    /// Receiver address.
    pub url: String,
    /// What the provider made of that, where it spells it in its own way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spelled: Option<String>,
    /// Of the secret that its deliveries are signed with.
    pub fingerprint: Fingerprint,
    /// Semantic names, for the accounting family.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub events: BTreeSet<String>,
    /// How far it has come.
    pub phase: SubscriptionPhase,
    /// Since when it is in this phase.
    pub since: i64,
    /// When it was first meant to be.
    pub intended_at: i64,
    /// When an Acknowledge of it was last accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<i64>,
    /// Since when it is active without a break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<i64>,
    /// When the provider was last asked about it and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<i64>,
    /// When a delivery of it was last accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery: Option<i64>,
    /// What stands in its way, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What became of it, oldest first; the last few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

/// A line of a subscription's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When.
    pub at: i64,
    /// What happened.
    pub what: String,
}

named! {
    /// How far a subscription has come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum SubscriptionPhase {
        /// The provider may have been asked for it; whether it exists is unknown.
        Intended = "intended",
        /// It is there, and the provider waits for the receiver to accept it.
        Awaiting = "awaiting",
        /// Deliveries are sent.
        Active = "active",
        /// It is there, was active, and sends nothing: disabled, or paused.
        Disabled = "disabled",
        /// It is to be deleted, and may have been.
        Ending = "ending",
        /// It is gone, or never was.
        Ended = "ended",
    }
}

impl SubscriptionPhase {
    /// Whether there may be something at the provider.
    #[must_use]
    pub const fn may_live(self) -> bool {
        !matches!(self, Self::Ended)
    }
}

shown_as_name!(SubscriptionPhase);

impl Subscription {
    /// One that is meant to be from now on, and of which nothing else is known.
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
            application: application.to_owned(),
            url: String::new(),
            spelled: None,
            fingerprint,
            events: BTreeSet::new(),
            phase: SubscriptionPhase::Intended,
            since: now,
            intended_at: now,
            acknowledged_at: None,
            active_since: None,
            checked_at: None,
            last_delivery: None,
            problem: None,
            history: Vec::new(),
        }
    }

    /// Its key in the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::state("subscription", &[&self.connector, self.nonce.as_str()])
    }

    /// The name it has at the provider: by it an answer that nobody heard can be found again.
    #[must_use]
    pub fn registered_name(&self) -> String {
        format!("{}/{}", self.application, self.nonce)
    }

    /// Puts it into a phase, if it is in another.
    pub fn enter(&mut self, phase: SubscriptionPhase, at: i64, what: impl Into<String>) {
        if self.phase != phase {
            (self.phase, self.since) = (phase, at);
        }
        self.active_since = match phase {
            SubscriptionPhase::Active => self.active_since.or(Some(at)),
            _ => None,
        };
        self.note(at, what);
    }

    /// Adds a line to its history. The same line again only changes its time.
    pub fn note(&mut self, at: i64, what: impl Into<String>) {
        let what = what.into();
        match self.history.last_mut() {
            Some(last) if last.what == what => last.at = at,
            _ => self.history.push(HistoryEntry { at, what }),
        }
        let surplus = self.history.len().saturating_sub(NOTES);
        self.history.drain(..surplus);
    }
}

/// 16 hexadecimal digits that were never drawn before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(String);

impl Nonce {
    /// Of drawn bits.
    #[must_use]
    pub fn new(drawn: u64) -> Self {
        Self(format!("{drawn:016x}"))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The application and the nonce in a name at the provider, where it is one of ours.
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

/// From when on every declared subscription of a connector has been active: whoever reads lists begins after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamStart {
    /// Whose.
    pub connector: String,
    /// When all of them were there for the first time.
    pub at: i64,
    /// Each declared target, and the subscription that its stream began with.
    pub targets: BTreeMap<Target, TargetStart>,
}

/// Where the stream of one target begins: with the subscription that stands now, never with one before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStart {
    /// Its nonce.
    pub nonce: Nonce,
    /// Since when it is active.
    pub since: i64,
}

impl StreamStart {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(connector: &str) -> Key {
        Key::state("start", &[connector])
    }
}

/// What people want of a connector's subscriptions beside its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionCommand {
    /// Counts the wishes: who has done one says so by its number.
    pub number: u64,
    /// All are to be deleted, and none made, until somebody wishes otherwise.
    pub removed: bool,
    /// When.
    pub at: i64,
}

/// The last wish that was done. Not a member of the wish: whoever does one must not write over the next.
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
        let one = Subscription::intended("hooks", target, Nonce::new(7), "tributary", fingerprint, 1);
        let url = "https://hooks.example.com/webhooks/accounting/hooks/customers".into();
        Subscription { url, ..one }
    }

    #[test]
    fn a_subscription_reads_back_and_a_member_of_tomorrow_is_passed_over() {
        let mut written = serde_json::to_value(subscription()).unwrap();
        written["tomorrow"] = true.into();

        let read: Subscription = serde_json::from_value(written).unwrap();

        assert_eq!(read, subscription());
        assert_eq!(read.key().as_str(), "subscription/hooks/0000000000000007");
        assert_eq!(Nonce::split(&read.registered_name()), Some(("tributary", Nonce::new(7))));
    }

    #[test]
    fn a_name_of_others_holds_no_nonce() {
        for name in ["tributary", "tributary/", "a/b", "a/000000000000000G", "a/00000000000000071"] {
            assert_eq!(Nonce::split(name), None, "{name}");
        }
        assert_eq!(Nonce::split("a/b/0000000000000007"), Some(("a/b", Nonce::new(7))));
    }

    #[test]
    fn history_keeps_the_last_lines_and_does_not_repeat_itself() {
        let mut subscription = subscription();
        for at in 0..50 {
            subscription.note(at, format!("line {}", at / 2));
        }

        assert_eq!(subscription.history.len(), NOTES);
        assert_eq!(subscription.history.last(), Some(&HistoryEntry { at: 49, what: "line 24".into() }));
    }

    #[test]
    fn it_is_active_since_it_became_so_until_it_is_not() {
        let mut one = subscription();
        one.enter(SubscriptionPhase::Active, 5, "active");
        one.enter(SubscriptionPhase::Active, 9, "active");
        assert_eq!((one.active_since, one.since), (Some(5), 5));

        one.enter(SubscriptionPhase::Disabled, 11, "disabled");
        assert_eq!((one.active_since, one.since), (None, 11));
    }
}
