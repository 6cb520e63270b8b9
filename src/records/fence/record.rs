//! Records of the fences topic.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use kafka::ConsumerRecord;
use model::{CompanyId, Epoch, Key, Rank, RecordId, Stamp, Topic};

/// Value of a birth record.
#[derive(Serialize, Deserialize)]
struct Birth {
    birth: String,
}

/// A parsed record of the topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FenceRecord {
    /// Key and unparsed stamp; `None` for a tombstone.
    Entry(Bytes, Option<Bytes>),
    Birth(String),
    /// A record that does not concern the fence.
    Other,
}

/// Key and value of an entry; `key` comes from [`Key::fence`].
#[must_use]
pub fn record(key: &Key, stamp: &Stamp) -> (Bytes, Bytes) {
    (Bytes::copy_from_slice(key.as_str().as_bytes()), json(stamp))
}

/// Key and value of a birth record. The first owner of a partition writes it once, before any other record.
#[must_use]
pub fn birth_record(shard: i32, birth: &str) -> (Key, Bytes) {
    (Key::shard(shard), json(&Birth { birth: birth.to_owned() }))
}

/// Derives the fence entry of a published value from its headers; `None` if they are missing or invalid.
#[must_use]
pub fn of_value(topic: Topic, value: &ConsumerRecord) -> Option<(Key, Stamp)> {
    let header = |name: &str| {
        let (_, text) = value.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(text).ok()
    };
    let parts = Key::parts(std::str::from_utf8(value.key.as_deref()?).ok()?).ok()?;
    let [company, id] = &parts[..] else { return None };
    let record = Key::record(&CompanyId::new(company.as_str()).ok()?, &RecordId::new(id.as_str()).ok()?);
    let stamp = Stamp {
        epoch: Epoch(header("tributary.epoch").map_or(Ok(0), str::parse).ok()?),
        version: header("tributary.version")?.parse().ok()?,
        // A list row may be less than the record.
        rank: if header("tributary.origin") == Some("snapshot") { Rank::List } else { Rank::ById },
        deleted: value.value.is_none(),
    };
    Some((Key::fence(topic, &record), stamp))
}

/// Parses a record of a shard's partition.
pub(super) fn parse(received: &ConsumerRecord, shard: i32) -> Result<FenceRecord, serde_json::Error> {
    let Some(key) = &received.key else { return Ok(FenceRecord::Other) };
    let value = received.value.as_ref();
    if **key == *Key::shard(shard).as_str().as_bytes() {
        let Some(value) = value else { return Ok(FenceRecord::Other) };
        return serde_json::from_slice(value).map(|Birth { birth }| FenceRecord::Birth(birth));
    }
    // Keys of records about the shard itself; later versions may add some.
    if key.starts_with(b"~") {
        return Ok(FenceRecord::Other);
    }
    if let Some(value) = value {
        serde_json::from_slice::<Stamp>(value)?;
    }
    Ok(FenceRecord::Entry(key.clone(), value.cloned()))
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("text and numbers make JSON").into()
}
