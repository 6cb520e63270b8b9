//! What may differ between the source and a topic.

use std::collections::BTreeMap;

use crate::names::named;

named! {
    /// A way in which a record of a topic is not what the source shows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Difference {
        /// A list shows it, and the topic does not have it.
        Missing = "missing",
        /// The topic has an older version.
        Behind = "behind",
        /// The topic has the same version with another content.
        Content = "content",
        /// The topic has a newer version than the source.
        Ahead = "ahead",
        /// A list shows it, and the topic has it as deleted.
        Deleted = "deleted",
        /// The topic has it, no list shows it, and by its id it is there.
        Unlisted = "unlisted",
        /// The topic has it, no list shows it, and by its id it is not there.
        Vanished = "vanished",
        /// The topic has a record under a key that this worker never published: the source never had it.
        Foreign = "foreign",
        /// A list shows it without a version that can be compared.
        Unversioned = "unversioned",
        /// Its versions are of two kinds.
        Incomparable = "incomparable",
    }
}

impl Difference {
    /// Whether publishing what the source shows mends it. Nothing else does: what the source does not show is left as it is.
    #[must_use]
    pub const fn can_be_mended(self) -> bool {
        matches!(self, Self::Missing | Self::Behind | Self::Content)
    }

    /// Counts some of its kind.
    pub fn count(self, counts: &mut BTreeMap<String, u64>, count: u64) {
        if count > 0 {
            let total = counts.entry(self.name().to_owned()).or_default();
            *total = total.saturating_add(count);
        }
    }
}
