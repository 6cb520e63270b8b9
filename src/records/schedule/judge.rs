//! What a read by id means for the events that asked for it.

use std::sync::Arc;

use bytes::Bytes;

use base::retry::{ErrorChain, Retry};
use model::{Comparison, Epoch, Rank, RemovalKind, SequenceVersion, Stamp, Value, Version};
use provider::api::{self, AnsweredBy, Reach};

use super::{Cause, Change, Content, Delete, Outcome, Rules, Subject, pending::PendingRecord};

/// Why a read that shows too little is repeated.
pub(super) const BEHIND_EVENT: &str = "reads show an earlier version than the event tells of";
/// Reads below the fence that it takes to believe that the provider went back, beside the time they are spread over.
const MIN_LOWER_READS: u32 = 3;

/// What is to be done.
#[derive(Debug)]
pub(super) enum ReadVerdict {
    /// It is newer than what was published; whether the events are settled by it as well.
    Publish { value: Arc<Value>, stamp: Stamp, is_met: bool, size: usize, over: Option<Box<Stamp>> },
    /// It does not tell its version: it is published if it is newer, and read once more then.
    Confirm { change: Option<Box<Change>>, at: i64 },
    /// Nothing is published, and the events are settled.
    Settled(Outcome),
    /// It is to be read again, for this reason.
    Again(Cause, String),
    /// It is less than was published, and so is what the events tell of: the provider may have gone back.
    Below,
    /// The provider says that it is gone, for the first time.
    Gone,
    /// It has said so long enough.
    Deleted(Stamp),
    /// Nothing can be made of it.
    Unusable(&'static str, String),
    /// Nothing of its company can be read for now; for how long, where that is told, in microseconds.
    Company { why: String, wait: Option<i64> },
    /// Nothing can be read for now, or so it seems: whether it may be this record alone.
    Everything { why: String, wait: Option<i64>, may_be_alone: bool },
    /// Nothing can be read until a person has done something.
    Blocked(Box<api::Error>),
}

/// What becomes of an event that tells of nothing newer than the fence has; `None` for one that has to be followed by a read. A
/// stale one may be the first sign that the provider went back.
pub(super) fn known(stored: &Stamp, floor: Option<&SequenceVersion>, is_delete: bool) -> Option<Outcome> {
    let (Some(version), Some(floor)) = (stored.version.number(), floor) else { return None };
    let tells_version = matches!(stored.version, Version::Sequence(_));
    match floor.cmp(version) {
        std::cmp::Ordering::Greater => None,
        std::cmp::Ordering::Less => Some(Outcome::Stale),
        // What was read from a list may be less than the record.
        std::cmp::Ordering::Equal if stored.deleted => {
            Some(if is_delete { Outcome::Duplicate } else { Outcome::Stale })
        }
        // A record that does not tell its version may not have been read once more.
        std::cmp::Ordering::Equal if is_delete || stored.rank < Rank::ById || !tells_version => None,
        std::cmp::Ordering::Equal => Some(Outcome::Duplicate),
    }
}

/// Whether an event tells of more than was published.
pub(super) fn is_above(floor: Option<&SequenceVersion>, stored: Option<&Stamp>) -> bool {
    floor
        .zip(stored.and_then(|stored| stored.version.number()))
        .is_some_and(|(floor, version)| floor > version)
}

/// What a read is judged by.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) subject: &'a Subject,
    pub(super) record: &'a PendingRecord,
    /// What the fence has for the record.
    pub(super) stored: Option<&'a Stamp>,
    /// The path of the resource has answered with a record before: its 404 is about the record.
    pub(super) path_answers: bool,
    pub(super) rules: &'a Rules,
    /// In microseconds.
    pub(super) now: i64,
}

impl Judge<'_> {
    /// Turns an answer of the provider into a verdict.
    pub(super) fn judge(self, reading: Result<Bytes, api::Error>) -> ReadVerdict {
        match reading {
            Ok(json) => found(self, &json),
            Err(error) => failed(self, error),
        }
    }
}

fn found(judge: Judge<'_>, json: &[u8]) -> ReadVerdict {
    let Judge { subject, record, stored, rules, now, .. } = judge;
    let value = match subject.record(json) {
        Ok(Some(value)) => value,
        Ok(None) => {
            let what = "the provider answered with another record than was asked for";
            return ReadVerdict::Again(Cause::Unreadable, what.to_owned());
        }
        Err(error) => return ReadVerdict::Unusable("model::Error", error.to_string()),
    };
    // An event from before the one that was published last says nothing about what is read now.
    let published = stored.map(|stored| &stored.version).filter(|one| !matches!(one, Version::Sequence(_)));
    let fallback = record.wants.floor.as_ref().max(published.and_then(Version::number));
    let mut stamp = Stamp::reading(value.version_or(fallback), Rank::ById, stored);
    let tells_version = matches!(stamp.version, Version::Sequence(_));
    // It was told that it is gone, and this may be from before that: for as long as a tombstone is confirmed, it is read again.
    let is_from_before = record.wants.deleted.as_ref().is_some_and(|deleted| match deleted {
        Delete::AtVersion(deleted) => stamp.version.number().is_none_or(|version| version <= deleted),
        Delete::Unversioned => true,
    });
    let is_doubtful = is_from_before && now.saturating_sub(record.wants.since) < rules.tombstone_confirm;
    if !tells_version {
        if is_doubtful {
            // At the version of the delete stands no record.
            return ReadVerdict::Again(Cause::Floor, BEHIND_EVENT.to_owned());
        }
        match judge_unversioned(record, &stamp, stored, rules) {
            UnversionedVerdict::Settled(outcome) => return ReadVerdict::Settled(outcome),
            UnversionedVerdict::Unsure { publishes, at } => {
                let (value, size) = (Content::Value(Arc::new(value)), json.len());
                let change = publishes.then(|| Change::Publish { value, stamp, size, over: None });
                return ReadVerdict::Confirm { change: change.map(Box::new), at };
            }
            UnversionedVerdict::Compared => {}
        }
    }
    let is_met = (!tells_version || record.is_met(&stamp.version)) && !is_doubtful;
    match stamp.against(stored) {
        Comparison::First | Comparison::Newer | Comparison::HigherRank => {
            ReadVerdict::Publish { value: Arc::new(value), stamp, is_met, size: json.len(), over: None }
        }
        Comparison::Same if is_met && record.tries.is_published => ReadVerdict::Settled(Outcome::Published),
        Comparison::Same if is_met => ReadVerdict::Settled(Outcome::Duplicate),
        Comparison::Same => ReadVerdict::Again(Cause::Floor, BEHIND_EVENT.to_owned()),
        // The events are below the fence as well, so that no lag explains what is read.
        Comparison::Older | Comparison::BehindDelete if is_met => match record.doubt.below_since {
            Some(since)
                if now.saturating_sub(since) >= rules.epoch_confirm
                    && record.doubt.below_reads >= MIN_LOWER_READS =>
            {
                stamp.epoch = Epoch(stamp.epoch.0.saturating_add(1));
                let over = stored.cloned().map(Box::new);
                ReadVerdict::Publish { value: Arc::new(value), stamp, is_met, size: json.len(), over }
            }
            _ => ReadVerdict::Below,
        },
        Comparison::Older | Comparison::BehindDelete => {
            ReadVerdict::Again(Cause::Floor, BEHIND_EVENT.to_owned())
        }
        Comparison::Incomparable => {
            let what = "the fence has a version of another kind under the same key";
            ReadVerdict::Unusable("model::Error::Unversioned", what.to_owned())
        }
    }
}

/// What a record that does not tell its version comes to.
enum UnversionedVerdict {
    /// Nothing is published.
    Settled(Outcome),
    /// It is read once more then, and published before where it is newer and differs.
    Unsure { publishes: bool, at: i64 },
    /// As any other.
    Compared,
}

/// The read may have come from a replica that is behind, and nothing in the record says so. So only a read that began a wait after
/// the event is believed.
fn judge_unversioned(
    record: &PendingRecord,
    stamp: &Stamp,
    stored: Option<&Stamp>,
    rules: &Rules,
) -> UnversionedVerdict {
    let tells_version = stored.is_some_and(|stored| matches!(stored.version, Version::Sequence(_)));
    let is_same = stored.is_some_and(|stored| stamp.version.has_content_of(&stored.version));
    let at = record.wants.since.saturating_add(rules.retry_longest);
    match stamp.against(stored) {
        // The published record tells its own version, and nothing tells whether this one is newer.
        Comparison::Same if tells_version => UnversionedVerdict::Settled(Outcome::Duplicate),
        Comparison::Older if tells_version || is_same => UnversionedVerdict::Settled(Outcome::Stale),
        comparison
            if record.asked_at() < at && (comparison.publishes() || comparison == Comparison::Same) =>
        {
            UnversionedVerdict::Unsure { publishes: comparison.publishes() && !is_same, at }
        }
        _ => UnversionedVerdict::Compared,
    }
}

fn failed(judge: Judge<'_>, error: api::Error) -> ReadVerdict {
    // Without the provider's own words: it may be copied to headers and gaps.
    let status = error.status.map(|status| format!(" answered {status}")).unwrap_or_default();
    let why = format!("{}{status}: {}", error.endpoint, ErrorChain(&error.cause));
    let is_gone = matches!(
        error.cause,
        api::Cause::NotFound { by: AnsweredBy::Api } | api::Cause::Gone { by: AnsweredBy::Api }
    );
    if is_gone {
        return gone(judge, why);
    }
    if matches!(error.cause, api::Cause::TooLarge { .. } | api::Cause::Unaddressable) {
        return ReadVerdict::Unusable("enrich::Unreadable", why);
    }
    let wait = error.retry().named_micros();
    match (error.reach(), error.retry()) {
        (Reach::Record, _) => ReadVerdict::Again(Cause::Unreadable, why),
        (Reach::Company, _) => ReadVerdict::Company { why, wait },
        (Reach::Grant | Reach::Everything, Retry::Never) => ReadVerdict::Blocked(Box::new(error)),
        (Reach::Grant | Reach::Everything, _) => {
            ReadVerdict::Everything { why, wait, may_be_alone: error.may_be_alone() }
        }
    }
}

/// The API itself says that there is no such record.
fn gone(judge: Judge<'_>, why: String) -> ReadVerdict {
    let Judge { subject, record, stored, path_answers, rules, now } = judge;
    let Some(deleted) = &record.wants.deleted else {
        // An event that tells of nothing new is no reason to wait for the record.
        let is_known = stored.and_then(|stored| known(stored, record.wants.floor.as_ref(), false));
        return match is_known {
            Some(outcome) if record.parked.as_ref().is_none_or(|parked| parked.cause == Cause::Below) => {
                ReadVerdict::Settled(outcome)
            }
            _ => ReadVerdict::Again(Cause::Unreadable, why),
        };
    };
    if subject.resource.ending() == RemovalKind::Disabled {
        return ReadVerdict::Again(
            Cause::Unreadable,
            format!("{why}; records of this kind are never deleted"),
        );
    }
    // What happened after the delete is not answered by it.
    let is_later = match deleted {
        Delete::AtVersion(version) => record.wants.floor.as_ref().is_some_and(|floor| floor > version),
        Delete::Unversioned => is_above(record.wants.floor.as_ref(), stored),
    };
    if is_later {
        return ReadVerdict::Again(
            Cause::Unreadable,
            format!("{why}; and it was changed after it was deleted"),
        );
    }
    if !path_answers {
        let why = format!("{why}; and nothing proves yet that this path ever answers");
        return ReadVerdict::Again(Cause::Unreadable, why);
    }
    match record.doubt.gone_since {
        Some(since) if now.saturating_sub(since) >= rules.tombstone_confirm => {}
        Some(since) => {
            let left = since.saturating_add(rules.tombstone_confirm).saturating_sub(now);
            return ReadVerdict::Again(Cause::Gone, format!("{why}; asked once more in {left} µs"));
        }
        None => return ReadVerdict::Gone,
    }
    // The delete that tells no version ends what was published last.
    let version = match (deleted, stored) {
        (Delete::AtVersion(version), _) => Version::Sequence(version.clone()),
        (Delete::Unversioned, Some(stored)) => stored.version.clone(),
        (Delete::Unversioned, None) => return ReadVerdict::Settled(Outcome::Stale),
    };
    let epoch = stored.map_or(Epoch::default(), |stored| stored.epoch);
    let stamp = Stamp { epoch, version, rank: Rank::ById, deleted: true };
    match stamp.against(stored) {
        comparison if comparison.publishes() => ReadVerdict::Deleted(stamp),
        Comparison::Same => ReadVerdict::Settled(Outcome::Duplicate),
        _ => ReadVerdict::Settled(Outcome::Stale),
    }
}
