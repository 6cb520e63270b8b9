//! Interprets the answer to a read by id for the events that asked for it.

use std::sync::Arc;

use bytes::Bytes;

use base::retry::Retry;
use model::{Comparison, Epoch, Rank, RemovalKind, SequenceVersion, Stamp, Value, Version};
use provider::api::{self, AnsweredBy, Reach};

use super::{Change, Content, Delete, Outcome, ParkCause, Rules, Subject, pending::PendingRecord};

/// Why a read of a version below the event is repeated.
pub(super) const BEHIND_EVENT: &str = "reads return an older version than the event reports";
/// Reads below the fence that confirm a version regression, in addition to [`Rules::epoch_confirm`].
const MIN_LOWER_READS: u32 = 3;

/// The action that an answer requires.
#[derive(Debug)]
pub(super) enum ReadVerdict {
    /// Publish this newer version; `is_met` says whether it settles the events too.
    Publish { value: Arc<Value>, stamp: Stamp, is_met: bool, size: usize, over: Option<Box<Stamp>> },
    /// The record has no version: publish it if it is newer, and read it once more at `at`.
    Confirm { change: Option<Box<Change>>, at: i64 },
    /// Settle the events without publishing.
    Settled(Outcome),
    /// Read again, for this reason.
    Again(ParkCause, String),
    /// The answer and the events are below the published version: a version regression is suspected.
    Below,
    /// The provider answers for the first time that the record is gone.
    Gone,
    /// The deletion is confirmed.
    Deleted(Stamp),
    /// The record is unusable: class and message of the error.
    Unusable(&'static str, String),
    /// Reads of the company fail for now; `wait` is the provider's own delay in microseconds.
    Company { why: String, wait: Option<i64> },
    /// All reads seem to fail for now; `may_be_alone` says whether the cause may be this record.
    Everything { why: String, wait: Option<i64>, may_be_alone: bool },
    /// No read can succeed until an operator acts.
    Blocked(Box<api::Error>),
}

/// The outcome of an event that reports nothing newer than the fence; `None` if a read is needed. A stale event may be the first
/// sign of a version regression.
pub(super) fn known(stored: &Stamp, floor: Option<&SequenceVersion>, is_delete: bool) -> Option<Outcome> {
    let (Some(version), Some(floor)) = (stored.version.number(), floor) else { return None };
    let has_version = matches!(stored.version, Version::Sequence(_));
    match floor.cmp(version) {
        std::cmp::Ordering::Greater => None,
        std::cmp::Ordering::Less => Some(Outcome::Stale),
        std::cmp::Ordering::Equal if stored.deleted => {
            Some(if is_delete { Outcome::Duplicate } else { Outcome::Stale })
        }
        // A list row may be less than the record, and a record without a version may still miss its second read.
        std::cmp::Ordering::Equal if is_delete || stored.rank < Rank::ById || !has_version => None,
        std::cmp::Ordering::Equal => Some(Outcome::Duplicate),
    }
}

/// Whether an event reports a newer version than the published one.
pub(super) fn is_above(floor: Option<&SequenceVersion>, stored: Option<&Stamp>) -> bool {
    floor
        .zip(stored.and_then(|stored| stored.version.number()))
        .is_some_and(|(floor, version)| floor > version)
}

/// What an answer is compared with.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) subject: &'a Subject,
    pub(super) record: &'a PendingRecord,
    /// Fence entry of the record.
    pub(super) stored: Option<&'a Stamp>,
    /// The path of the resource has returned a record before, so a 404 is about this record.
    pub(super) path_answers: bool,
    pub(super) rules: &'a Rules,
    /// Microseconds since 1970.
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
            let what = "the provider returned a different record than requested";
            return ReadVerdict::Again(ParkCause::Unreadable, what.to_owned());
        }
        Err(error) => return ReadVerdict::Unusable("model::Error", error.to_string()),
    };
    // An event older than the published version says nothing about the version of this answer.
    let published = stored.map(|stored| &stored.version).filter(|one| !matches!(one, Version::Sequence(_)));
    let fallback = record.wants.floor.as_ref().max(published.and_then(Version::number));
    let mut stamp = Stamp::reading(value.version_or(fallback), Rank::ById, stored);
    let has_version = matches!(stamp.version, Version::Sequence(_));
    // The answer may come from before the delete event: read again until a tombstone could be confirmed.
    let is_from_before = record.wants.deleted.as_ref().is_some_and(|deleted| match deleted {
        Delete::AtVersion(deleted) => stamp.version.number().is_none_or(|version| version <= deleted),
        Delete::Unversioned => true,
    });
    let is_doubtful = is_from_before && now.saturating_sub(record.wants.since) < rules.tombstone_confirm;
    if !has_version {
        if is_doubtful {
            // The version of a delete event belongs to no record.
            return ReadVerdict::Again(ParkCause::Floor, BEHIND_EVENT.to_owned());
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
    let is_met = (!has_version || record.is_met(&stamp.version)) && !is_doubtful;
    match stamp.against(stored) {
        Comparison::First | Comparison::Newer | Comparison::HigherRank => {
            ReadVerdict::Publish { value: Arc::new(value), stamp, is_met, size: json.len(), over: None }
        }
        Comparison::Same if is_met && record.tries.is_published => ReadVerdict::Settled(Outcome::Published),
        Comparison::Same if is_met => ReadVerdict::Settled(Outcome::Duplicate),
        Comparison::Same => ReadVerdict::Again(ParkCause::Floor, BEHIND_EVENT.to_owned()),
        // The events are below the fence too, so a lagging replica does not explain the answer.
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
            ReadVerdict::Again(ParkCause::Floor, BEHIND_EVENT.to_owned())
        }
        Comparison::Incomparable => {
            let what = "its version cannot be compared with the published one, which has another form";
            ReadVerdict::Unusable("model::Error::Unversioned", what.to_owned())
        }
    }
}

/// How to treat a record without a version.
enum UnversionedVerdict {
    /// Settle the events without publishing.
    Settled(Outcome),
    /// Read it once more at `at`; publish it now if it is newer and differs.
    Unsure { publishes: bool, at: i64 },
    /// Compare it like any other record.
    Compared,
}

/// Without a version, an answer of a lagging replica looks like any other. So only a read that began [`Rules::retry_longest`] after
/// the event counts.
fn judge_unversioned(
    record: &PendingRecord,
    stamp: &Stamp,
    stored: Option<&Stamp>,
    rules: &Rules,
) -> UnversionedVerdict {
    let has_version = stored.is_some_and(|stored| matches!(stored.version, Version::Sequence(_)));
    let is_same = stored.is_some_and(|stored| stamp.version.has_content_of(&stored.version));
    let at = record.wants.since.saturating_add(rules.retry_longest);
    match stamp.against(stored) {
        // The published record carries a version, and this one cannot prove that it is newer.
        Comparison::Same if has_version => UnversionedVerdict::Settled(Outcome::Duplicate),
        Comparison::Older if has_version || is_same => UnversionedVerdict::Settled(Outcome::Stale),
        comparison
            if record.asked_at().is_none_or(|asked_at| asked_at < at)
                && (comparison.publishes() || comparison == Comparison::Same) =>
        {
            UnversionedVerdict::Unsure { publishes: comparison.publishes() && !is_same, at }
        }
        _ => UnversionedVerdict::Compared,
    }
}

fn failed(judge: Judge<'_>, error: api::Error) -> ReadVerdict {
    // Without the response body, because this text is copied to headers and gaps.
    let why = error.without_excerpt();
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
        (Reach::Record, _) => ReadVerdict::Again(ParkCause::Unreadable, why),
        (Reach::Company, _) => ReadVerdict::Company { why, wait },
        (Reach::Grant | Reach::Everything, Retry::Never) => ReadVerdict::Blocked(Box::new(error)),
        (Reach::Grant | Reach::Everything, _) => {
            ReadVerdict::Everything { why, wait, may_be_alone: error.may_be_alone() }
        }
    }
}

/// The API itself, not a gateway, answers that the record does not exist.
fn gone(judge: Judge<'_>, why: String) -> ReadVerdict {
    let Judge { subject, record, stored, path_answers, rules, now } = judge;
    let Some(deleted) = &record.wants.deleted else {
        // An event that reports nothing new need not wait for the record.
        let is_known = stored.and_then(|stored| known(stored, record.wants.floor.as_ref(), false));
        return match is_known {
            Some(outcome) if record.parked.as_ref().is_none_or(|parked| parked.cause == ParkCause::Below) => {
                ReadVerdict::Settled(outcome)
            }
            _ => ReadVerdict::Again(ParkCause::Unreadable, why),
        };
    };
    if subject.resource.ending() == RemovalKind::Disabled {
        return ReadVerdict::Again(
            ParkCause::Unreadable,
            format!("{why}; records of this kind are never deleted, only disabled"),
        );
    }
    // A change after the delete cannot be settled by a tombstone.
    let is_later = match deleted {
        Delete::AtVersion(version) => record.wants.floor.as_ref().is_some_and(|floor| floor > version),
        Delete::Unversioned => is_above(record.wants.floor.as_ref(), stored),
    };
    if is_later {
        return ReadVerdict::Again(
            ParkCause::Unreadable,
            format!("{why}; a later event reports a change after the delete"),
        );
    }
    if !path_answers {
        let why = format!("{why}; this path has not returned a record yet, so the answer proves no deletion");
        return ReadVerdict::Again(ParkCause::Unreadable, why);
    }
    match record.doubt.gone_since {
        Some(since) if now.saturating_sub(since) >= rules.tombstone_confirm => {}
        Some(since) => {
            let left = since.saturating_add(rules.tombstone_confirm).saturating_sub(now);
            return ReadVerdict::Again(ParkCause::Gone, format!("{why}; read again in {left} µs to confirm"));
        }
        None => return ReadVerdict::Gone,
    }
    // A delete event without a version deletes the published version.
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
