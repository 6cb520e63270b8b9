//! Record keys, and the part of each that decides its partition.
//!
//! A key consists of parts joined by `/`. In each part only `%`, `/`, control characters and a leading `~` are
//! percent-encoded, so ordinary ids stay readable. Checked by property tests:
//!
//! - the company part of a record's key is, byte for byte, the key of that company's events, and it alone
//!   decides the partition of both, so they share a partition number wherever topics have the same partition
//!   count;
//! - different parts never make the same key, and [`Key::parts`] returns them;
//! - a company is never mistaken for a shard: only a shard's part starts with `~`.

use std::{fmt, ops::Range};

use super::{CompanyId, Error, PayrollCompanyCode, RecordId, TenantId, Topic, error::excerpt};

/// A record's key. See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    text: String,
    placement: Placement,
}

/// What decides the partition of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partitioning<'a> {
    /// The murmur2 hash of these bytes, as the Java client computes it.
    By(&'a [u8]),
    /// This partition.
    Shard(i32),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Placement {
    /// The hash of this range of the text.
    Hashed(Range<usize>),
    Shard(i32),
}

impl Key {
    /// The key of a company's events.
    #[must_use]
    pub fn company(company: &CompanyId) -> Self {
        Self::hashed_by_first(&[company.as_str()])
    }

    /// The key of events that name no company.
    #[must_use]
    pub fn tenant(tenant: &TenantId) -> Self {
        Self::hashed_by_first(&[tenant.as_str()])
    }

    /// The key of a record: `company/id`.
    #[must_use]
    pub fn record(company: &CompanyId, id: &RecordId) -> Self {
        Self::hashed_by_first(&[company.as_str(), id.as_str()])
    }

    /// The key of a payroll company: `code/code`, with two parts like every record's key.
    #[must_use]
    pub fn payroll(code: &PayrollCompanyCode) -> Self {
        Self::hashed_by_first(&[code.as_str(), code.as_str()])
    }

    /// The key of a record's fence: `area.resource/` and the record's key, in the record's partition.
    #[must_use]
    pub fn fence(topic: Topic, record: &Self) -> Self {
        let mut text = topic.suffix();
        text.reserve_exact(1 + record.text.len());
        text.push('/');
        let lead = text.len();
        text.push_str(&record.text);
        let placement = match &record.placement {
            Placement::Hashed(range) => Placement::Hashed(range.start + lead..range.end + lead),
            Placement::Shard(shard) => Placement::Shard(*shard),
        };
        Self { text, placement }
    }

    /// The prefix of the keys of all fences of a topic, or of one company.
    #[must_use]
    pub fn fences_of(topic: Topic, company: Option<&CompanyId>) -> String {
        let mut lead = topic.suffix() + "/";
        if let Some(company) = company {
            encode(&mut lead, company.as_str());
            lead.push('/');
        }
        lead
    }

    /// The key of one company's list: `company/list`.
    #[must_use]
    pub fn company_list(company: &CompanyId, list: &str) -> Self {
        Self::hashed_by_first(&[company.as_str(), list])
    }

    /// The key of a shard's part of a list that spans companies: `~shard/list`, in that shard's partition.
    #[must_use]
    pub fn shard_list(shard: i32, list: &str) -> Self {
        let mut text = format!("~{shard}/");
        encode(&mut text, list);
        Self { text, placement: Placement::Shard(shard) }
    }

    /// The key of a shard itself: `~shard/3`, in that shard's partition.
    #[must_use]
    pub fn shard(shard: i32) -> Self {
        Self { text: format!("~shard/{shard}"), placement: Placement::Shard(shard) }
    }

    /// The key of worker state that belongs to no shard: `kind/…`, partitioned by the whole text.
    #[must_use]
    pub fn state(kind: &str, parts: &[&str]) -> Self {
        let text = join(std::iter::once(kind).chain(parts.iter().copied()));
        Self { placement: Placement::Hashed(0..text.len()), text }
    }

    /// The key of a shard's own state: `kind/shard/…`, in that shard's partition.
    #[must_use]
    pub fn shard_state(kind: &str, shard: i32, parts: &[&str]) -> Self {
        let number = shard.to_string();
        let text = join([kind, &number].into_iter().chain(parts.iter().copied()));
        Self { text, placement: Placement::Shard(shard) }
    }

    /// The key as it is written to Kafka.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What decides the partition.
    #[must_use]
    pub fn partitioning(&self) -> Partitioning<'_> {
        match &self.placement {
            Placement::Hashed(range) => Partitioning::By(&self.text.as_bytes()[range.clone()]),
            Placement::Shard(shard) => Partitioning::Shard(*shard),
        }
    }

    /// Splits a key's text and decodes each part. The `~` of a shard's part stays.
    ///
    /// # Errors
    /// The text is not a key that this type makes.
    pub fn parts(text: &str) -> Result<Vec<String>, Error> {
        text.split('/').map(decode).collect()
    }

    fn hashed_by_first(parts: &[&str]) -> Self {
        let text = join(parts.iter().copied());
        // Within a part `/` is encoded.
        let first = text.find('/').unwrap_or(text.len());
        Self { text, placement: Placement::Hashed(0..first) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Joins encoded parts with one allocation, because every event makes several keys.
fn join<'a>(parts: impl Iterator<Item = &'a str> + Clone) -> String {
    // The length if nothing must be encoded.
    let mut text = String::with_capacity(parts.clone().map(|part| part.len() + 1).sum());
    for (place, part) in parts.enumerate() {
        if place > 0 {
            text.push('/');
        }
        encode(&mut text, part);
    }
    text
}

fn encode(text: &mut String, part: &str) {
    // Written up to here.
    let mut written = 0;
    for (place, character) in part.char_indices() {
        let special =
            matches!(character, '%' | '/') || character.is_control() || (character == '~' && place == 0);
        if special {
            text.push_str(&part[written..place]);
            written = place + character.len_utf8();
            for byte in part[place..written].bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    text.push_str(&part[written..]);
}

fn decode(part: &str) -> Result<String, Error> {
    let broken = || Error::KeyPart { given: excerpt(part) };
    let mut decoded = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut half = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (half(), half()) else { return Err(broken()) };
        decoded.push((high * 16 + low) as u8);
    }
    String::from_utf8(decoded).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::AccountingResource;

    fn company(text: &str) -> CompanyId {
        CompanyId::new(text).unwrap()
    }

    fn record(company_id: &str, id: &str) -> Key {
        Key::record(&company(company_id), &RecordId::new(id).unwrap())
    }

    /// Possible ids: ordinary ones, and ones full of characters that must be encoded.
    fn id() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9:-]{1,20}",
            "[~%/#a]{1,6}",
            "[~%/a\u{0}-\u{1f}\u{7f}-\u{9f}é#.]{1,12}",
            "\\PC{1,12}"
        ]
    }

    #[test]
    fn keys_are_written_as_documented() {
        let code = PayrollCompanyCode::from(42);
        for (key, text, partitioning) in [
            (Key::company(&company("a:1:CM:b")), "a:1:CM:b", Partitioning::By(b"a:1:CM:b")),
            (Key::tenant(&TenantId::new("t").unwrap()), "t", Partitioning::By(b"t")),
            (record("c", "r"), "c/r", Partitioning::By(b"c")),
            (Key::payroll(&code), "42/42", Partitioning::By(b"42")),
            (
                Key::fence(Topic::AccountingRecords(AccountingResource::Customers), &record("c/1", "r")),
                "accounting.customers/c%2F1/r",
                Partitioning::By(b"c%2F1"),
            ),
            (
                Key::fence(Topic::PayrollCompanies, &Key::payroll(&code)),
                "payroll.companies/42/42",
                Partitioning::By(b"42"),
            ),
            (Key::company_list(&company("c"), "customers"), "c/customers", Partitioning::By(b"c")),
            (Key::shard_list(7, "payroll"), "~7/payroll", Partitioning::Shard(7)),
            (Key::shard(7), "~shard/7", Partitioning::Shard(7)),
            (Key::state("run", &["snap", "1"]), "run/snap/1", Partitioning::By(b"run/snap/1")),
            (Key::shard_state("page", 3, &["r", "c/1"]), "page/3/r/c%2F1", Partitioning::Shard(3)),
        ] {
            assert_eq!(key.as_str(), text);
            assert_eq!(key.partitioning(), partitioning, "{text}");
        }
    }

    #[test]
    fn only_special_characters_are_encoded() {
        assert_eq!(record("~a~b", "50% of/é \n#?&").as_str(), "%7Ea~b/50%25 of%2Fé %0A#?&");
    }

    #[test]
    fn malformed_key_is_refused() {
        for text in ["a%", "a%2", "a%zz/b", "%FF", "%+1"] {
            assert!(Key::parts(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn company_part_of_a_record_is_the_key_of_its_events(company_id in id(), record_id in id()) {
            let events = Key::company(&company(&company_id));
            let record = record(&company_id, &record_id);
            let fence = Key::fence(Topic::AccountingRecords(AccountingResource::Charges), &record);
            let list = Key::company_list(&company(&company_id), "customers");

            let part = record.as_str().split('/').next().unwrap();

            prop_assert_eq!(part, events.as_str());
            prop_assert_eq!(events.partitioning(), Partitioning::By(part.as_bytes()));
            for key in [&record, &fence, &list] {
                prop_assert_eq!(key.partitioning(), events.partitioning());
            }
            prop_assert!(!events.as_str().starts_with('~'));
            prop_assert!(!events.as_str().chars().any(char::is_control));
        }

        #[test]
        fn parts_survive_encoding(parts in proptest::collection::vec(id(), 1..5)) {
            let key = Key::state("kind", &parts.iter().map(String::as_str).collect::<Vec<_>>());

            let back = Key::parts(key.as_str()).unwrap();

            prop_assert_eq!(&back[0], "kind");
            prop_assert_eq!(&back[1..], &parts[..]);
        }
    }
}
