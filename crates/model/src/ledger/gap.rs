//! Gaps: deliveries that may be missing, and the request to repair them.

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
        /// The provider disabled a subscription, or it is paused.
        Disabled = "disabled",
        /// A subscription has disappeared that no worker has deleted.
        Lost = "lost",
        /// The provider has waited too long for a receiver to accept a subscription.
        Awaiting = "awaiting",
        /// No delivery has arrived for implausibly long, compared with earlier intervals.
        Silence = "silence",
        /// A subscription was moved to another address without a second one in parallel.
        Moved = "moved",
        /// A subscription's secret is no longer known: its deliveries are refused.
        Secret = "secret",
        /// Events were removed from their topic before they were processed.
        Retention = "retention",
        /// No read has returned the version that an event announced.
        Floor = "floor",
        /// The record of an event could not be read.
        Unreadable = "unreadable",
    }
}

/// Deliveries of a connector that may be missing, for all companies or one and all targets or one, within a time range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// The connector.
    pub connector: String,
    /// Why.
    pub cause: GapCause,
    /// The target, if only one is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The company, if only one is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company: Option<CompanyId>,
    /// Start of the range: nothing is missing before.
    pub from: i64,
    /// End of the range: nothing is missing after; `None` while the gap is still growing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<i64>,
    /// What happened, as text.
    pub detail: String,
    /// When the gap was found.
    pub opened_at: i64,
    /// The worker that found it.
    pub worker: String,
    /// Whether it needs attention.
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
        /// All known keys were read again; unknown ones may be missing.
        RepairedKnown = "repaired-known",
        /// The lists were read again without a certificate.
        RepairedUncertified = "repaired-uncertified",
        /// There is no source to repair it from.
        Unrepairable = "unrepairable",
        /// A person has accepted the loss.
        Accepted = "accepted",
    }
}

impl GapState {
    /// Whether no more action is needed.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Accepted)
    }
}

impl Gap {
    /// How long after its opening a `spool` or `oversized` gap covers further losses of its cause, in microseconds: the worker opens no
    /// other gap for them, so the gap cannot end earlier.
    pub const COVERS_MICROS: i64 = 60_000_000;

    /// Its key in the state topic.
    #[must_use]
    pub fn key(&self) -> Key {
        let (opened_at, target) = (self.opened_at.to_string(), self.target.map(|target| target.to_string()));
        let mut parts = vec![&*self.connector, self.cause.name(), &opened_at];
        parts.extend(target.as_deref());
        Key::state("gap", &parts)
    }

    /// Its id: the key without the kind.
    #[must_use]
    pub fn id(&self) -> String {
        let key = self.key();
        key.as_str().strip_prefix("gap/").unwrap_or_default().to_owned()
    }
}

/// A person has accepted a gap. A separate record, so that later writes of the gap do not overwrite it.
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

/// The request to read again what a gap may have lost. The tasks that read lists execute it; writing it again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// Always `repair`; other runs are started by people and schedules.
    pub kind: String,
    /// The connector of the gap.
    pub connector: String,
    /// [`Gap::id`].
    pub gap: String,
    /// What to read; everything if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The company; all if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub company: Option<CompanyId>,
    /// Start of the range.
    pub from: i64,
    /// End of the range.
    pub to: i64,
    /// When it was requested.
    pub requested_at: i64,
    /// Its state.
    pub state: RepairState,
}

/// The state of a repair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepairState {
    /// Not started.
    #[default]
    Requested,
    /// Started.
    Running,
    /// Finished; the gap has the result.
    Done,
}

impl Repair {
    /// The request for a gap that ends at `to`, made now.
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
    fn gap_of_an_earlier_version_covers_everything() {
        let gap: Gap = serde_json::from_str(
            r#"{"id":"gap/h/spool/5","connector":"h","cause":"spool","from":1,"detail":"d","openedAt":5,"worker":"w","state":"open"}"#,
        )
        .unwrap();

        assert_eq!((gap.target, gap.company.as_ref(), gap.to, gap.state), (None, None, None, GapState::Open));
        assert_eq!((gap.key().as_str(), &*gap.id()), ("gap/h/spool/5", "h/spool/5"));
    }

    #[test]
    fn gap_of_one_target_and_its_repair_have_distinct_keys() {
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
    fn causes_are_serialized_by_name() {
        for cause in GapCause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
