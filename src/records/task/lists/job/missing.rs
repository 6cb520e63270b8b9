//! Known records that no page has shown, and what reads of them say.

use std::collections::VecDeque;

use bytes::Bytes;

use model::{CompanyId, RecordId};
use provider::api;

use super::TRIES;

/// Ids of vanished records that a certificate names.
const NAMED: usize = 100;

/// Known records that were not shown.
#[derive(Debug, Default)]
pub(in super::super) struct Missing {
    pub(in super::super) waiting: VecDeque<(CompanyId, RecordId, u32)>,
    pub(in super::super) open: usize,
    pub(in super::super) vanished: Vec<String>,
    pub(in super::super) vanished_count: u64,
    pub(in super::super) unlisted: u64,
    pub(in super::super) unreadable: u64,
    /// Where to go on once these are read, if there are more.
    pub(in super::super) next: Option<String>,
}

/// What a read by id of a missing record says.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Answer {
    /// It is there.
    There(Bytes),
    /// The API says that it is not.
    Gone,
    /// Nobody knows.
    Unreadable,
    /// It is asked for once more.
    Again,
}

impl Missing {
    pub(in super::super) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.open == 0
    }

    /// It is not there any more.
    pub(in super::super) fn gone(&mut self, id: &RecordId) {
        self.vanished_count += 1;
        if self.vanished.len() < NAMED {
            self.vanished.push(id.as_str().to_owned());
        }
    }

    /// A read has ended.
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

/// What a failed read of one record means; whether it concerns more than that is the caller's to see.
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
