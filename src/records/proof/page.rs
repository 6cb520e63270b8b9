//! The stored form of a page: enough to replay the reading, and small enough for one Kafka record.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of a packed row: id, version, time.
const ROW_BYTES: usize = 32;
/// Packed form of a missing time.
const NO_TIME: i64 = i64::MIN;

/// The stored form of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Hash of its id, by [`row_hash`](provider::api::row_hash).
    pub id: u128,
    /// Hash of its version as the provider wrote it.
    pub version: u64,
    /// Time of its last change, in microseconds on the provider's clock.
    pub changed_at: Option<i64>,
}

/// The stored form of a page. Times are in microseconds of one clock of ours, except `date`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its number, from 1.
    pub number: u32,
    /// Requested number of rows.
    pub asked: u32,
    /// Its rows.
    #[serde(with = "packed")]
    pub rows: Arc<[Row]>,
    /// Why it is unusable, for example a row without an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The provider's number of the first page of the list, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u32>,
    /// Number of rows of the longest page that a list of the same path has shown.
    #[serde(default)]
    pub widest: u32,
    /// Number of rows of the whole list, as reported by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Hash of the rows as the provider wrote them.
    #[serde(with = "hash")]
    pub content: u128,
    /// When and how it was answered.
    #[serde(flatten)]
    pub answer: PageAnswer,
    /// Not a page but a mark that the reading ended here, for the reason in `problem`. Earlier versions wrote it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
}

/// When and how a page was answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAnswer {
    /// When its request was sent.
    pub sent: i64,
    /// When the last byte of its answer was read.
    pub answered: i64,
    /// The answer's `Date`, on the provider's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<i64>,
    /// Whether a cache answered it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
}

impl Seen {
    /// The mark of a page that cannot be read. It is stored and replayed like a page, and voids its pass.
    #[must_use]
    pub fn unreadable(number: u32, asked: u32, why: &str, at: i64) -> Self {
        Self {
            number,
            asked,
            rows: Arc::default(),
            problem: Some(why.to_owned()),
            base: None,
            widest: 0,
            total: None,
            content: 0,
            answer: PageAnswer { sent: at, answered: at, ..PageAnswer::default() },
            ends: false,
        }
    }

    /// JSON with 43 characters per row.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        // Numbers and strings always serialize.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Parses the output of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// Describes why it is invalid.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

/// Rows as one base64 string.
mod packed {
    use serde::{Deserializer, Serializer, de::Error};

    use super::{Arc, BASE64, Deserialize, Engine, NO_TIME, ROW_BYTES, Row};

    pub(super) fn serialize<S: Serializer>(rows: &Arc<[Row]>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(rows.len() * ROW_BYTES);
        for row in &**rows {
            bytes.extend_from_slice(&row.id.to_be_bytes());
            bytes.extend_from_slice(&row.version.to_be_bytes());
            bytes.extend_from_slice(&row.changed_at.unwrap_or(NO_TIME).to_be_bytes());
        }
        serializer.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[Row]>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64.decode(text).map_err(|error| D::Error::custom(format!("rows: {error}")))?;
        let (rows, rest) = bytes.as_chunks::<ROW_BYTES>();
        if !rest.is_empty() {
            return Err(D::Error::custom("rows: the last row is truncated"));
        }
        Ok(rows.iter().map(row).collect())
    }

    fn row(bytes: &[u8; ROW_BYTES]) -> Row {
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        };
        let (version, time) = (number(16, 24) as u64, number(24, 32) as u64);
        let time = time.cast_signed();
        Row { id: number(0, 16), version, changed_at: (time != NO_TIME).then_some(time) }
    }
}

/// A hash as hexadecimal digits, because 128 bits do not fit a JSON number.
mod hash {
    use serde::{Deserializer, Serializer, de::Error};

    use super::Deserialize;

    pub(super) fn serialize<S: Serializer>(hash: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{hash:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(|error| D::Error::custom(format!("content: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_row() -> impl Strategy<Value = Row> {
        // `NO_TIME` itself cannot be stored.
        (any::<u128>(), any::<u64>(), proptest::option::of(NO_TIME + 1..))
            .prop_map(|(id, version, changed_at)| Row { id, version, changed_at })
    }

    proptest! {
        #[test]
        fn page_round_trips(
            (number, asked, content) in (any::<u32>(), any::<u32>(), any::<u128>()),
            rows in proptest::collection::vec(any_row(), 0..20),
            (problem, base, widest) in (proptest::option::of(".*"), any::<Option<u32>>(), any::<u32>()),
            (total, date) in (any::<Option<u64>>(), any::<Option<i64>>()),
            (cached, ends) in (any::<bool>(), any::<bool>()),
            (sent, answered) in (any::<i64>(), any::<i64>()),
        ) {
            let rows = rows.into();
            let answer = PageAnswer { sent, answered, date, cached };
            let seen = Seen { number, asked, rows, problem, base, widest, total, content, answer, ends };

            prop_assert_eq!(Seen::parse(&seen.to_json()), Ok(seen));
        }

        #[test]
        fn parse_never_panics(bytes: Vec<u8>) {
            drop(Seen::parse(&bytes));
        }
    }

    #[test]
    fn mark_of_an_earlier_version_reads_back() {
        let json = r#"{"number":2,"asked":5,"rows":"","base":1,"widest":5,"total":9,"content":"0000000000000000000000000000000a",
            "sent":7,"answered":8,"date":6,"cached":true}"#;

        let seen = Seen::parse(json.as_bytes()).unwrap();

        assert_eq!(seen.answer, PageAnswer { sent: 7, answered: 8, date: Some(6), cached: true });
        let [old, new] = [json.as_bytes(), &seen.to_json()]
            .map(|json| serde_json::from_slice::<serde_json::Value>(json).unwrap());
        assert_eq!(new, old);
    }

    #[test]
    fn hundred_rows_fit_into_five_kilobytes() {
        let row = Row { id: u128::MAX, version: u64::MAX, changed_at: Some(i64::MAX) };
        let seen = Seen { rows: vec![row; 100].into(), problem: None, ..Seen::unreadable(1, 100, "", 1) };

        assert!(seen.to_json().len() < 5_000, "{}", seen.to_json().len());
    }

    #[test]
    fn truncated_or_invalid_rows_are_rejected() {
        let json = |rows: &str| {
            format!(r#"{{"number":1,"asked":1,"rows":"{rows}","content":"00","sent":1,"answered":1}}"#)
        };

        assert_eq!(*Seen::parse(json("").as_bytes()).unwrap().rows, []);
        for (rows, expected) in [("AAAA", "truncated"), ("~", "rows")] {
            let error = Seen::parse(json(rows).as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
