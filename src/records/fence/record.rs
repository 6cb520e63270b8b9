//! Fences as records of their topic.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use kafka::ConsumerRecord;
use model::{CompanyId, Epoch, Key, Rank, RecordId, Stamp, Topic};

/// What a birth says.
#[derive(Serialize, Deserialize)]
struct Birth {
    birth: String,
}

/// A record of the topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FenceRecord {
    /// The stamp of a key, as it stands there; `None` where somebody removed it.
    Entry(Bytes, Option<Bytes>),
    Birth(String),
    /// Nothing that concerns the shard.
    Other,
}

/// Key and value of an entry; `key` is that of [`Key::fence`].
#[must_use]
pub fn record(key: &Key, stamp: &Stamp) -> (Bytes, Bytes) {
    (Bytes::copy_from_slice(key.as_str().as_bytes()), json(stamp))
}

/// Key and value of a partition's birth, which is written before all else to a partition that has none, and never again.
#[must_use]
pub fn birth_record(shard: i32, birth: &str) -> (Key, Bytes) {
    (Key::shard(shard), json(&Birth { birth: birth.to_owned() }))
}

/// The entry that guards a value which was published to this topic, as its headers tell; `None` where they do not.
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
        // A row of a list may have been thin.
        rank: if header("tributary.origin") == Some("snapshot") { Rank::List } else { Rank::ById },
        deleted: value.value.is_none(),
    };
    Some((Key::fence(topic, &record), stamp))
}

/// What a record of a shard's partition is.
pub(super) fn parse(received: &ConsumerRecord, shard: i32) -> Result<FenceRecord, serde_json::Error> {
    let Some(key) = &received.key else { return Ok(FenceRecord::Other) };
    let value = received.value.as_ref();
    if **key == *Key::shard(shard).as_str().as_bytes() {
        let Some(value) = value else { return Ok(FenceRecord::Other) };
        return serde_json::from_slice(value).map(|Birth { birth }| FenceRecord::Birth(birth));
    }
    // Only what is about shards starts so; later versions may have more of it.
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
