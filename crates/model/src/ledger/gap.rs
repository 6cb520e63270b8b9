//! Deliveries that may be missing, and the request to mend it.

use serde::{Deserialize, Serialize};

use super::Target;
use crate::{CompanyId, Key, names::named};

named! {
    /// Why deliveries may be missing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum GapCause {
        /// Part of the spool cannot be read.
        Spool = "spool",
        /// The connector was stopped.
        Stopped = "stopped",
        /// A verified delivery was too large.
        Oversized = "oversized",
        /// The provider has disabled a subscription, or it is paused.
        Disabled = "disabled",
        /// A subscription is gone that no worker has deleted.
        Lost = "lost",
        /// The provider waits too long for a receiver to accept a subscription.
        Awaiting = "awaiting",
        /// Nothing has come for longer than what came before makes plausible.
        Silence = "silence",
        /// A subscription was moved to another address without one beside it.
        Moved = "moved",
        /// A subscription's secret is not known here any more: its deliveries are refused.
        Secret = "secret",
        /// Events were removed from their topic before they were followed.
        Retention = "retention",
        /// No read has shown the version that an event announced.
        Floor = "floor",
        /// The record behind an event could not be read.
        Unreadable = "unreadable",
    }
}

/// Deliveries of a connector that may be missing: of all companies or one, of all targets or one, from a moment on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// Whose.
    pub connector: String,
    /// Why.
    pub cause: GapCause,
    /// Of this target alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Of this company alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company: Option<CompanyId>,
    /// Nothing is missing from before.
    pub from: i64,
    /// Nothing is missing from after; `None` while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<i64>,
    /// What has happened, in words.
    pub detail: String,
    /// When it was found.
    pub opened_at: i64,
    /// Who has found it.
    pub worker: String,
    /// Whether somebody has to care.
    #[serde(default)]
    pub state: GapState,
}

named! {
    /// Whether a gap needs attention.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum GapState {
        /// Nothing has repaired it.
        #[default]
        Open = "open",
        /// A certified read has repaired it.
        Closed = "closed",
        /// Every known key was read again; unknown ones may be missing.
        RepairedKnown = "repaired-known",
        /// It was read again without a certificate.
        RepairedUncertified = "repaired-uncertified",
        /// There is nothing to read it from.
        Unrepairable = "unrepairable",
        /// A person has accepted it.
        Accepted = "accepted",
    }
}

impl GapState {
    /// Whether it is over: nobody has to do anything about it any more.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Accepted)
    }
}

impl Gap {
    /// Its key in the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        let (opened_at, target) = (self.opened_at.to_string(), self.target.map(|target| target.to_string()));
        let mut parts = vec![&*self.connector, self.cause.name(), &opened_at];
        parts.extend(target.as_deref());
        Key::state("gap", &parts)
    }

    /// What people call it: its key without the kind.
    #[must_use]
    pub fn id(&self) -> String {
        let key = self.key();
        key.as_str().strip_prefix("gap/").unwrap_or_default().to_owned()
    }
}

/// A person has taken note of a gap. Not a member of the gap: whoever finds out more of it must not write over that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapAccepted {
    /// When.
    pub at: i64,
}

impl GapAccepted {
    /// Its key in the state topic, by [`Gap::id`].
    #[must_use]
    pub fn key(connector: &str, gap: &str) -> Key {
        Key::state("accepted", &[connector, gap])
    }
}

/// The request to read again what a gap may have cost. Whoever reads lists does it; written again it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// Always `repair`: other runs are begun by people and schedules.
    pub kind: String,
    /// Whose gap it is.
    pub connector: String,
    /// [`Gap::id`].
    pub gap: String,
    /// What to read; everything where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Of which company; of all where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company: Option<CompanyId>,
    /// Changes from then on.
    pub from: i64,
    /// Up to then.
    pub to: i64,
    /// When it was asked for.
    pub requested_at: i64,
    /// How far it has come.
    pub state: RepairState,
}

/// How far a repair has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepairState {
    /// Nobody has begun.
    #[default]
    Requested,
    /// Somebody has.
    Running,
    /// It is done; the gap says how well.
    Done,
}

impl Repair {
    /// Of a gap that is over at this moment, asked for now.
    #[must_use]
    pub fn of(gap: &Gap, to: i64, now: i64) -> Self {
        Self {
            kind: "repair".to_owned(),
            connector: gap.connector.clone(),
            gap: gap.id(),
            target: gap.target,
            company: gap.company.clone(),
            from: gap.from,
            to,
            requested_at: now,
            state: RepairState::Requested,
        }
    }

    /// Its key in the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Self::key_of(&self.connector, &self.gap)
    }

    /// The key of the repair of a gap, by [`Gap::id`].
    #[must_use]
    pub fn key_of(connector: &str, gap: &str) -> Key {
        Key::state("run", &[connector, gap])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccountingResource;

    #[test]
    fn a_gap_of_before_reads_as_one_of_everything() {
        let gap: Gap = serde_json::from_str(
            r#"{"id":"gap/h/spool/5","connector":"h","cause":"spool","from":1,"detail":"d","openedAt":5,"worker":"w","state":"open"}"#,
        )
        .unwrap();

        assert_eq!((gap.target, gap.company.as_ref(), gap.to, gap.state), (None, None, None, GapState::Open));
        assert_eq!((gap.key().as_str(), &*gap.id()), ("gap/h/spool/5", "h/spool/5"));
    }

    #[test]
    fn a_gap_of_one_target_and_its_repair_have_keys_of_their_own() {
        let gap = Gap {
            connector: "a/b".into(),
            cause: GapCause::Disabled,
            target: Some(Target::Accounting(AccountingResource::Customers)),
            company: None,
            from: 1,
            to: Some(9),
            detail: "disabled".into(),
            opened_at: 5,
            worker: "w:1".into(),
            state: GapState::Open,
        };

        let repair = Repair::of(&gap, 9, 10);

        assert_eq!(gap.key().as_str(), "gap/a%2Fb/disabled/5/accounting%2Fcustomers");
        assert_eq!(Key::parts(repair.key().as_str()).unwrap(), ["run", "a/b", &gap.id()]);
        assert_eq!((repair.from, repair.to, repair.target), (1, 9, gap.target));
    }

    #[test]
    fn every_cause_is_written_as_it_is_labelled() {
        for cause in GapCause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
