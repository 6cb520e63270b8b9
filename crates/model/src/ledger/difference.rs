//! Differences between the source and a topic.

use std::collections::BTreeMap;

use crate::names::named;

named! {
    /// How a record of a topic differs from the source.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Difference {
        /// It is in a list but not in the topic.
        Missing = "missing",
        /// The topic has an older version.
        Behind = "behind",
        /// The topic has the same version with different content.
        Content = "content",
        /// The topic has a newer version than the source.
        Ahead = "ahead",
        /// It is in a list, but deleted in the topic.
        Deleted = "deleted",
        /// It is in the topic and in no list, but can be read by id.
        Unlisted = "unlisted",
        /// It is in the topic and in no list, and cannot be read by id.
        Vanished = "vanished",
        /// The topic has a record under a key that the worker never published: the source never had it.
        Foreign = "foreign",
        /// It is in a list without a comparable version.
        Unversioned = "unversioned",
        /// Its versions are of different kinds.
        Incomparable = "incomparable",
    }
}

impl Difference {
    /// Whether publishing the source's record repairs it. Records that the source does not show are never changed.
    #[must_use]
    pub const fn can_be_repaired(self) -> bool {
        matches!(self, Self::Missing | Self::Behind | Self::Content)
    }

    /// Adds to the count of this kind.
    pub fn count(self, counts: &mut BTreeMap<String, u64>, count: u64) {
        if count > 0 {
            let total = counts.entry(self.name().to_owned()).or_default();
            *total = total.saturating_add(count);
        }
    }
}
