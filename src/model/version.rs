//! Which of two readings of a record is the newer one.
//!
//! The provider's own version decides, never a clock of ours: a stale read would get the newest stamp and
//! then block the truly newer one. [`Stamp::against`] is the whole rule, pure, so that every writer asks the
//! same question.

use std::{cmp::Ordering, fmt, hash, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Error, Moment, error::excerpt};

/// A record's revision: numeric text of any length, compared as a number. Keeps the text as the provider sent
/// it.
#[derive(Debug, Clone)]
pub struct SequenceVersion(String);

impl SequenceVersion {
    /// Takes digits.
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

    /// The number, where it fits.
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

/// How often the provider itself went back (a restored backup, a re-created id); versions compare within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// How much of a record a reading shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// A row of a list, which may be thin.
    List = 1,
    /// A read by id.
    ById = 2,
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Version {
    /// Of an accounting record.
    Sequence(SequenceVersion),
    /// Of a payroll company, which has no sequence.
    Payroll {
        /// `lastUpdate`, as sent.
        last_update: String,
        /// `lastUpdate`, read.
        at: Moment,
        /// The first 128 bits of the content's SHA-256.
        content: [u8; 16],
    },
}

impl Version {
    /// Of a payroll company.
    ///
    /// # Errors
    /// `last_update` is not a time.
    pub fn payroll(last_update: &str, content: &[u8]) -> Result<Self, Error> {
        let digest = Sha256::digest(content);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        Self::payroll_of(last_update, hash)
    }

    /// Whether who has read this version has read no less than what is stored, in whichever epoch that stands.
    #[must_use]
    pub fn reaches(&self, stored: &Stamp) -> bool {
        match self.order(&stored.version) {
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

/// The form of the `tributary.version` header: digits, or `lastUpdate#hash`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequence(sequence) => f.write_str(sequence.as_str()),
            Self::Payroll { last_update, content, .. } => {
                write!(f, "{last_update}#{:032x}", u128::from_be_bytes(*content))
            }
        }
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((last_update, content)) = text.split_once('#') else {
            return SequenceVersion::parse(text).map(Self::Sequence);
        };
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if content.len() != 32 || !content.bytes().all(lower_hex) {
            return Err(Error::NotAVersion { given: excerpt(text) });
        }
        let hash =
            u128::from_str_radix(content, 16).map_err(|_| Error::NotAVersion { given: excerpt(text) })?;
        Self::payroll_of(last_update, hash.to_be_bytes())
    }
}

/// Everything that decides whether a reading may be published over what is stored. As JSON it is
/// `{"epoch":0,"version":"12","rank":2,"deleted":false}`, the version as its header has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
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

/// A stamp as JSON has it. A member that only a later version knows is passed over; a rank or a version that is not known
/// is refused, because nothing could be compared with it.
#[derive(Serialize, Deserialize)]
struct Written {
    epoch: u64,
    version: String,
    rank: u8,
    deleted: bool,
}

impl From<Stamp> for Written {
    fn from(stamp: Stamp) -> Self {
        let Stamp { epoch: Epoch(epoch), version, rank, deleted } = stamp;
        Self { epoch, version: version.to_string(), rank: rank as u8, deleted }
    }
}

impl TryFrom<Written> for Stamp {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self, Error> {
        let Written { epoch, version, rank, deleted } = written;
        Ok(Self { epoch: Epoch(epoch), version: version.parse()?, rank: rank.try_into()?, deleted })
    }
}

/// What a candidate is, seen from what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Nothing is stored: publish.
    First,
    /// A later version, a higher epoch, or the delete of the stored version: publish.
    Newer,
    /// The same version, more completely read: publish.
    HigherRank,
    /// A duplicate: drop.
    Same,
    /// An earlier version: drop, and count it.
    Older,
    /// At or below a stored delete: drop, for a page read before the delete must not bring the record back.
    BehindDelete,
    /// An accounting version against a payroll version: two kinds of record under one key. Never publish.
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
    /// Compares a candidate with what is stored for its key.
    #[must_use]
    pub fn against(&self, stored: Option<&Self>) -> Comparison {
        let Some(stored) = stored else { return Comparison::First };
        let Some(order) = self.version.order(&stored.version) else { return Comparison::Incomparable };
        match self.epoch.cmp(&stored.epoch).then(order) {
            Ordering::Greater => Comparison::Newer,
            Ordering::Less | Ordering::Equal if stored.deleted && !self.deleted => Comparison::BehindDelete,
            Ordering::Less => Comparison::Older,
            Ordering::Equal if self.deleted && !stored.deleted => Comparison::Newer,
            Ordering::Equal if self.ranks_above(stored) => Comparison::HigherRank,
            Ordering::Equal => Comparison::Same,
        }
    }

    /// Whether what is stored is of the same version, whoever has read it.
    #[must_use]
    pub fn is_of(&self, stored: Option<&Self>) -> bool {
        matches!(self.against(stored), Comparison::Same | Comparison::HigherRank)
    }

    /// Payroll has no read by id, hence no rank to win by.
    fn ranks_above(&self, stored: &Self) -> bool {
        matches!(self.version, Version::Sequence(_)) && !stored.deleted && self.rank > stored.rank
    }
}

impl Version {
    /// `None` for two kinds of version. A payroll reading of the same time with other content counts as
    /// later: which of the two is, nobody can tell, and publishing both loses neither.
    fn order(&self, stored: &Self) -> Option<Ordering> {
        match (self, stored) {
            (Self::Sequence(mine), Self::Sequence(stored)) => Some(mine.cmp(stored)),
            (
                Self::Payroll { at, content, .. },
                Self::Payroll { at: stored_at, content: stored_content, .. },
            ) => {
                let by_content = if content == stored_content { Ordering::Equal } else { Ordering::Greater };
                Some(at.cmp(stored_at).then(by_content))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sequence(text: &str) -> SequenceVersion {
        SequenceVersion::parse(text).unwrap()
    }

    fn stamp(epoch: u64, version: &str, rank: Rank, deleted: bool) -> Stamp {
        Stamp { epoch: Epoch(epoch), version: version.parse().unwrap(), rank, deleted }
    }

    fn payroll(time: &str, content: &str) -> Stamp {
        let version = Version::payroll(time, content.as_bytes()).unwrap();
        Stamp { epoch: Epoch(0), version, rank: Rank::List, deleted: false }
    }

    #[test]
    fn a_version_reaches_what_is_stored_where_it_would_be_published_or_is_the_same() {
        for stored_deleted in [false, true] {
            for version in ["8", "9", "009", "10"] {
                let stored = stamp(3, "9", Rank::List, stored_deleted);
                let read = stamp(3, version, Rank::ById, false);
                let comparison = read.against(Some(&stored));

                let reaches = read.version.reaches(&stored);

                let expected = comparison.publishes() || comparison == Comparison::Same;
                assert_eq!(reaches, expected, "{version} {stored_deleted}");
            }
        }
        assert!(!payroll("2024-05-06T07:08:09Z", "a").version.reaches(&stamp(0, "1", Rank::List, false)));
    }

    #[test]
    fn versions_compare_as_numbers_and_keep_their_text() {
        assert!(sequence("9") < sequence("10"));
        assert!(sequence("18446744073709551616") > sequence("18446744073709551615"));
        assert_eq!(sequence("007"), sequence("7"));
        assert_eq!(sequence("0"), sequence("000"));
        assert_eq!(sequence("007").as_str(), "007");
    }

    #[test]
    fn the_typed_twin_is_there_when_it_fits() {
        for (text, number) in [
            ("0", Some(0)),
            ("00", Some(0)),
            ("0042", Some(42)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
        ] {
            assert_eq!(sequence(text).as_i64(), number, "{text}");
        }
    }

    #[test]
    fn what_is_not_digits_is_refused() {
        for text in ["", "-1", "+1", "1.0", " 1", "1e3", "٣", "0x1"] {
            assert!(SequenceVersion::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_rule_decides_as_its_table_says() {
        use {Comparison as C, Rank::*};
        let stored = stamp(1, "10", List, false);
        let deleted = stamp(1, "10", ById, true);
        let cases = [
            (stamp(0, "1", List, false), None, C::First),
            (stamp(1, "11", List, false), Some(&stored), C::Newer),
            (stamp(1, "10", ById, false), Some(&stored), C::HigherRank),
            (stamp(1, "10", List, false), Some(&stored), C::Same),
            (stamp(1, "9", ById, false), Some(&stored), C::Older),
            (stamp(2, "1", List, false), Some(&stored), C::Newer),
            (stamp(0, "99", ById, false), Some(&stored), C::Older),
            (stamp(1, "10", List, true), Some(&stored), C::Newer),
            (stamp(1, "11", ById, true), Some(&stored), C::Newer),
            (stamp(1, "9", ById, true), Some(&stored), C::Older),
            (stamp(1, "10", ById, false), Some(&deleted), C::BehindDelete),
            (stamp(1, "9", ById, false), Some(&deleted), C::BehindDelete),
            (stamp(1, "10", ById, true), Some(&deleted), C::Same),
            (stamp(1, "11", List, false), Some(&deleted), C::Newer),
            (stamp(2, "10", List, false), Some(&deleted), C::Newer),
        ];

        for (candidate, stored, expected) in cases {
            assert_eq!(candidate.against(stored), expected, "{candidate:?} against {stored:?}");
        }
    }

    #[test]
    fn payroll_compares_by_time_then_content_and_never_by_rank() {
        let stored = payroll("2024-05-06T07:08:09.123Z", "a");
        let by_id = Stamp { rank: Rank::ById, ..stored.clone() };

        for (candidate, expected) in [
            (payroll("2024-05-06T07:08:09.124Z", "a"), Comparison::Newer),
            (payroll("2024-05-06T07:08:09.123Z", "b"), Comparison::Newer),
            (payroll("2024-05-06T09:08:09.123+02:00", "a"), Comparison::Same),
            (payroll("2024-05-06T07:08:09.122Z", "b"), Comparison::Older),
            (by_id, Comparison::Same),
            (stamp(0, "5", Rank::List, false), Comparison::Incomparable),
        ] {
            assert_eq!(candidate.against(Some(&stored)), expected, "{candidate:?}");
        }
    }

    #[test]
    fn a_version_comes_back_from_its_header() {
        for version in [Version::Sequence(sequence("0042")), payroll("2024-05-06T07:08:09.123Z", "a").version]
        {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        for text in ["", "x", "2024-05-06T07:08:09Z#12", "yesterday#00000000000000000000000000000000"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stamp_is_written_as_the_fences_topic_has_it_and_comes_back() {
        let by_id = stamp(0, "12", Rank::ById, false);
        let deleted = stamp(3, "0042", Rank::List, true);
        let company = payroll("2024-05-06T07:08:09.123Z", "a");
        let hash = "ca978112ca1bbdcafac231b39a23dc4d";

        for (stamp, json) in [
            (by_id, r#"{"epoch":0,"version":"12","rank":2,"deleted":false}"#.to_owned()),
            (deleted, r#"{"epoch":3,"version":"0042","rank":1,"deleted":true}"#.to_owned()),
            (
                company,
                format!(
                    r#"{{"epoch":0,"version":"2024-05-06T07:08:09.123Z#{hash}","rank":1,"deleted":false}}"#
                ),
            ),
        ] {
            assert_eq!(serde_json::to_string(&stamp).unwrap(), json);
            let back: Stamp = serde_json::from_str(&json).unwrap();
            assert_eq!(back, stamp);
            assert_eq!(back.version.to_string(), stamp.version.to_string(), "the text as it was sent");
        }
    }

    #[test]
    fn a_stamp_with_which_nothing_can_be_compared_is_refused() {
        for (json, told) in [
            (r#"{"epoch":0,"version":"12","rank":3,"deleted":false}"#, "unknown rank `3`"),
            (r#"{"epoch":0,"version":"12","rank":0,"deleted":false}"#, "unknown rank `0`"),
            (r#"{"epoch":0,"version":"twelve","rank":2,"deleted":false}"#, "`twelve` is not a number"),
            (r#"{"epoch":0,"version":"now#1","rank":2,"deleted":false}"#, "version `now#1`"),
            (r#"{"epoch":0,"version":12,"rank":2,"deleted":false}"#, "expected a string"),
            (r#"{"epoch":-1,"version":"12","rank":2,"deleted":false}"#, "expected u64"),
            (r#"{"epoch":0,"version":"12","rank":2}"#, "missing field `deleted`"),
        ] {
            let error = serde_json::from_str::<Stamp>(json).unwrap_err().to_string();
            assert!(error.contains(told), "{json}: {error}");
        }
    }

    proptest! {
        #[test]
        fn text_and_number_agree_on_the_order(left: u64, right: u64, zeros in 0_usize..4) {
            let padded = format!("{}{left}", "0".repeat(zeros));

            prop_assert_eq!(sequence(&padded).cmp(&sequence(&right.to_string())), left.cmp(&right));
        }
    }
}
