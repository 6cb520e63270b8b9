//! What may differ between the source and a topic.

use std::collections::BTreeMap;

/// A way in which a record of a topic is not what the source shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Difference {
    /// A list shows it, and the topic does not have it.
    Missing,
    /// The topic has an older version.
    Behind,
    /// The topic has the same version with another content.
    Content,
    /// The topic has a newer version than the source.
    Ahead,
    /// A list shows it, and the topic has it as deleted.
    Deleted,
    /// The topic has it, no list shows it, and by its id it is there.
    Unlisted,
    /// The topic has it, no list shows it, and by its id it is not there.
    Vanished,
    /// The topic has a record under a key that this worker never published: the source never had it.
    Foreign,
    /// A list shows it without a version that can be compared.
    Unversioned,
    /// Its versions are of two kinds.
    Incomparable,
}

impl Difference {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Missing,
        Self::Behind,
        Self::Content,
        Self::Ahead,
        Self::Deleted,
        Self::Unlisted,
        Self::Vanished,
        Self::Foreign,
        Self::Unversioned,
        Self::Incomparable,
    ];

    /// Its name, for people, metrics and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Behind => "behind",
            Self::Content => "content",
            Self::Ahead => "ahead",
            Self::Deleted => "deleted",
            Self::Unlisted => "unlisted",
            Self::Vanished => "vanished",
            Self::Foreign => "foreign",
            Self::Unversioned => "unversioned",
            Self::Incomparable => "incomparable",
        }
    }

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
