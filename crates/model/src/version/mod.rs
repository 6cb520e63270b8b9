//! Decides which of two readings of a record is newer.
//!
//! The provider's version decides, never our clock: with a clock a stale read would get the newest stamp and block the actually
//! newer one. [`Stamp::against`] is the whole rule, as a pure function that every writer uses.

use std::{cmp::Ordering, fmt, hash, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Error, Moment, error::excerpt, text::written_as_text};

/// A record's revision: digits of any length, compared as a number. Keeps the provider's text.
#[derive(Debug, Clone)]
pub struct SequenceVersion(String);

impl SequenceVersion {
    /// Parses digits.
    ///
    /// # Errors
    /// The text is empty or has anything but ASCII digits.
    pub fn parse(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::NotANumber { given: excerpt(&text) });
        }
        Ok(Self(text))
    }

    /// The text as sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number, if it fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.significant().parse().ok().or_else(|| self.significant().is_empty().then_some(0))
    }

    fn significant(&self) -> &str {
        self.0.trim_start_matches('0')
    }
}

impl Ord for SequenceVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let (mine, others) = (self.significant(), other.significant());
        mine.len().cmp(&others.len()).then_with(|| mine.cmp(others))
    }
}

impl PartialOrd for SequenceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SequenceVersion {
    fn eq(&self, other: &Self) -> bool {
        self.significant() == other.significant()
    }
}

impl Eq for SequenceVersion {}

impl hash::Hash for SequenceVersion {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.significant().hash(state);
    }
}

/// How often the provider returned to older versions (a restored backup, a re-created id); versions are compared within an
/// epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// How complete a reading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Rank {
    /// A row of a list, which may lack members.
    List = 1,
    /// A read by id.
    ById = 2,
}

impl From<Rank> for u8 {
    fn from(rank: Rank) -> Self {
        rank as Self
    }
}

impl TryFrom<u8> for Rank {
    type Error = Error;

    fn try_from(number: u8) -> Result<Self, Error> {
        match number {
            1 => Ok(Self::List),
            2 => Ok(Self::ById),
            other => {
                Err(Error::UnknownName { what: "rank", given: other.to_string(), valid: "1, 2".to_owned() })
            }
        }
    }
}

/// The version of a reading.
///
/// A record may have a version in one reading and none in the next. Still no older reading wins:
///
/// - The number is compared first, whether it is the record's or its event's. No number is below every number.
/// - At the same number a reading with the record's number replaces one without ([`Comparison::HigherRank`]), never the reverse.
/// - Of two readings without the record's number, at the same number, different content counts as newer and equal content as a
///   duplicate. Against a delete, only a higher number wins, not the content.
/// - A reading without any number gets the number, or the time, of the stored version ([`Stamp::reading`]). So published
///   numbers never decrease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Version {
    /// The version of an accounting record.
    Sequence(SequenceVersion),
    /// The version of a payroll company, which has no sequence.
    Payroll {
        /// `lastUpdate`, as sent.
        last_update: String,
        /// `lastUpdate`, parsed.
        at: Moment,
        /// The first 128 bits of the content's SHA-256.
        content: [u8; 16],
    },
    /// The version of a record without one.
    Content {
        /// The `SequenceVersion` of the event that led to the reading, if any.
        event_number: Option<SequenceVersion>,
        /// The first 128 bits of the content's SHA-256.
        content: [u8; 16],
    },
}

impl Version {
    /// The version of a payroll company.
    ///
    /// # Errors
    /// `last_update` is not a time.
    pub fn payroll(last_update: &str, content: &[u8]) -> Result<Self, Error> {
        Self::payroll_of(last_update, hash(content))
    }

    /// The version of a record without one.
    #[must_use]
    pub fn content(event_number: Option<SequenceVersion>, content: &[u8]) -> Self {
        Self::Content { event_number, content: hash(content) }
    }

    /// The number that is compared first, if any.
    #[must_use]
    pub const fn number(&self) -> Option<&SequenceVersion> {
        match self {
            Self::Sequence(number) | Self::Content { event_number: Some(number), .. } => Some(number),
            Self::Payroll { .. } | Self::Content { event_number: None, .. } => None,
        }
    }

    /// Whether both are of readings without a version and with the same content.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Content { content, .. }, Self::Content { content: others, .. }) if content == others)
    }

    /// Whether a reading of this version is at least as new as the stored one, in any epoch.
    #[must_use]
    pub fn reaches(&self, stored: &Stamp) -> bool {
        match self.order(stored) {
            Some(Ordering::Greater) => true,
            Some(Ordering::Equal) => !stored.deleted,
            Some(Ordering::Less) | None => false,
        }
    }

    fn payroll_of(last_update: &str, content: [u8; 16]) -> Result<Self, Error> {
        let at = Moment::parse(last_update).ok_or_else(|| Error::NotATime { given: excerpt(last_update) })?;
        Ok(Self::Payroll { last_update: last_update.to_owned(), at, content })
    }
}

/// The format of the `tributary.version` header: digits, `lastUpdate#hash`, or for a record without a version `digits#hash`
/// with the digits of its event, or `#hash`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequence(sequence) => f.write_str(sequence.as_str()),
            Self::Payroll { last_update, content, .. } => {
                write!(f, "{last_update}#{:032x}", u128::from_be_bytes(*content))
            }
            Self::Content { event_number, content } => {
                let event_number = event_number.as_ref().map_or("", SequenceVersion::as_str);
                write!(f, "{event_number}#{:032x}", u128::from_be_bytes(*content))
            }
        }
    }
}

written_as_text!(Version);

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((event_number, content)) = text.split_once('#') else {
            return SequenceVersion::parse(text).map(Self::Sequence);
        };
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if content.len() != 32 || !content.bytes().all(lower_hex) {
            return Err(Error::NotAVersion { given: excerpt(text) });
        }
        let hash =
            u128::from_str_radix(content, 16).map_err(|_| Error::NotAVersion { given: excerpt(text) })?;
        let content = hash.to_be_bytes();
        match SequenceVersion::parse(event_number) {
            Ok(number) => Ok(Self::Content { event_number: Some(number), content }),
            Err(_) if event_number.is_empty() => Ok(Self::Content { event_number: None, content }),
            Err(_) => Self::payroll_of(event_number, content),
        }
    }
}

/// Everything that decides whether a reading may replace the stored one. As JSON:
/// `{"epoch":0,"version":"12","rank":2,"deleted":false}`, with the version as in its header. Unknown members are ignored; an
/// unknown rank or version is refused, because it cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Compared first.
    pub epoch: Epoch,
    /// Compared within an epoch.
    pub version: Version,
    /// Compared at equal version.
    pub rank: Rank,
    /// Whether this is a delete.
    pub deleted: bool,
}

/// A candidate compared with the stored version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Nothing is stored: publish.
    First,
    /// A newer version, a higher epoch, or the delete of the stored version: publish.
    Newer,
    /// The same version from a more complete reading: publish.
    HigherRank,
    /// A duplicate: drop.
    Same,
    /// An older version: drop and count.
    Older,
    /// At or below a stored delete: drop, because a page read before the delete must not restore the record.
    BehindDelete,
    /// An accounting version against a payroll version, two kinds of records under one key: never publish.
    Incomparable,
}

impl Comparison {
    /// Whether the candidate is published and stored.
    #[must_use]
    pub const fn publishes(self) -> bool {
        matches!(self, Self::First | Self::Newer | Self::HigherRank)
    }
}

impl Stamp {
    /// The stamp of a new reading, in the epoch of the stored version. A version without number and time gets those of the stored
    /// one.
    #[must_use]
    pub fn reading(version: Version, rank: Rank, stored: Option<&Self>) -> Self {
        let epoch = stored.map_or(Epoch::default(), |stored| stored.epoch);
        let version = match (version, stored.map(|stored| &stored.version)) {
            (
                Version::Content { event_number: None, content },
                Some(Version::Payroll { last_update, at, .. }),
            ) => Version::Payroll { last_update: last_update.clone(), at: *at, content },
            (Version::Content { event_number: None, content }, Some(stored)) => {
                Version::Content { event_number: stored.number().cloned(), content }
            }
            (version, _) => version,
        };
        Self { epoch, version, rank, deleted: false }
    }

    /// Compares a candidate with what is stored for its key.
    #[must_use]
    pub fn against(&self, stored: Option<&Self>) -> Comparison {
        let Some(stored) = stored else { return Comparison::First };
        let Some(order) = self.version.order(stored) else { return Comparison::Incomparable };
        match self.epoch.cmp(&stored.epoch).then(order) {
            Ordering::Greater => Comparison::Newer,
            Ordering::Less | Ordering::Equal if stored.deleted && !self.deleted => Comparison::BehindDelete,
            Ordering::Less => Comparison::Older,
            Ordering::Equal if self.deleted && !stored.deleted => Comparison::Newer,
            Ordering::Equal if self.ranks_above(stored) => Comparison::HigherRank,
            Ordering::Equal => Comparison::Same,
        }
    }

    /// Whether the stored version is the same, at any rank.
    #[must_use]
    pub fn is_of(&self, stored: Option<&Self>) -> bool {
        matches!(self.against(stored), Comparison::Same | Comparison::HigherRank)
    }

    /// Payroll has no read by id, hence no rank. See [`Version`] for records without a version.
    fn ranks_above(&self, stored: &Self) -> bool {
        use Version::{Content, Sequence};
        match (&self.version, &stored.version) {
            _ if stored.deleted => false,
            (Sequence(_), Sequence(_)) => self.rank > stored.rank,
            (Sequence(_), Content { .. }) => true,
            _ => false,
        }
    }
}

impl Version {
    /// `None` for two kinds of records. See [`Version`]. A payroll reading of the same time with different content also counts as
    /// newer: which one is newer is unknown, and publishing both loses neither.
    fn order(&self, stored: &Stamp) -> Option<Ordering> {
        use Version::{Content, Payroll};
        let by_content = |content: &[u8; 16], other: &[u8; 16]| {
            if stored.deleted || content == other { Ordering::Equal } else { Ordering::Greater }
        };
        match (self, &stored.version) {
            (Payroll { at, content, .. }, Payroll { at: stored_at, content: stored_content, .. }) => {
                Some(at.cmp(stored_at).then_with(|| by_content(content, stored_content)))
            }
            (Payroll { .. }, Content { event_number: None, .. }) => Some(Ordering::Greater),
            (Content { event_number: None, .. }, Payroll { .. }) => Some(Ordering::Less),
            (Payroll { .. }, _) | (_, Payroll { .. }) => None,
            (own, other) => {
                let by_content = || match (own, other) {
                    (Content { content, .. }, Content { content: stored_content, .. }) => {
                        by_content(content, stored_content)
                    }
                    _ => Ordering::Equal,
                };
                Some(own.number().cmp(&other.number()).then_with(by_content))
            }
        }
    }
}

/// The first 128 bits of a SHA-256.
fn hash(content: &[u8]) -> [u8; 16] {
    let digest = Sha256::digest(content);
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest[..16]);
    hash
}

#[cfg(test)]
mod tests;
