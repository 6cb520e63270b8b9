//! Published records that no page has shown, and the results of their reads by id.

use std::collections::VecDeque;

use bytes::Bytes;

use model::{CompanyId, RecordId};
use provider::api;

use super::TRIES;

/// Ids of vanished records that a certificate names.
const NAMED: usize = 100;

/// Known records to read by id, and counts of the results.
#[derive(Debug, Default)]
pub(in super::super) struct Missing {
    pub(in super::super) waiting: VecDeque<(CompanyId, RecordId, u32)>,
    pub(in super::super) open: usize,
    pub(in super::super) vanished: Vec<String>,
    pub(in super::super) vanished_count: u64,
    pub(in super::super) unlisted: u64,
    pub(in super::super) unreadable: u64,
    /// Key after which to continue once these are read, if there are more.
    pub(in super::super) next: Option<String>,
}

/// Result of a read by id of a missing record.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Answer {
    /// The record exists.
    There(Bytes),
    /// The API answers that it does not exist.
    Gone,
    /// It cannot be read.
    Unreadable,
    /// Read it again.
    Again,
}

impl Missing {
    pub(in super::super) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.open == 0
    }

    /// Counts a record that no longer exists.
    pub(in super::super) fn gone(&mut self, id: &RecordId) {
        self.vanished_count += 1;
        if self.vanished.len() < NAMED {
            self.vanished.push(id.as_str().to_owned());
        }
    }

    /// Counts the result of a read.
    pub(in super::super) fn count(&mut self, company: CompanyId, id: RecordId, tries: u32, answer: &Answer) {
        self.open = self.open.saturating_sub(1);
        match answer {
            Answer::There(_) => self.unlisted += 1,
            Answer::Gone => self.gone(&id),
            Answer::Unreadable => self.unreadable += 1,
            Answer::Again => self.waiting.push_back((company, id, tries + 1)),
        }
    }
}

/// Classifies the result of a read. The caller has checked whether a failure concerns more than this record.
pub(in super::super) fn answer(read: Result<Bytes, &api::Error>, tries: u32) -> Answer {
    let error = match read {
        Ok(json) => return Answer::There(json),
        Err(error) => error,
    };
    let by_api = api::AnsweredBy::Api;
    match &error.cause {
        api::Cause::NotFound { by } | api::Cause::Gone { by } if *by == by_api => Answer::Gone,
        _ if error.retry().is_retriable() && tries < TRIES => Answer::Again,
        _ => Answer::Unreadable,
    }
}
