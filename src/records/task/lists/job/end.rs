//! The end of a list, after its last page: published records that no page has shown, the results of their reads by id, counts of rows,
//! and the certificate.

use std::collections::VecDeque;

use bytes::Bytes;

use model::{Certificate, CertificateMethod, CompanyId, Key, List, Origin, RecordId};
use provider::api;

use super::{Job, REGRESSED, Stage, TRIES};
use crate::records::{
    schedule::Subject,
    task::state::{self, Collection, Counts},
};

/// Ids of vanished records that a certificate names.
const NAMED: usize = 100;

/// Known records to read by id, and counts of the results.
#[derive(Debug, Default)]
pub(in super::super) struct UnlistedReads {
    pub(in super::super) waiting: VecDeque<(CompanyId, RecordId, u32)>,
    pub(in super::super) open: usize,
    pub(in super::super) vanished: Vec<String>,
    pub(in super::super) vanished_count: u64,
    pub(in super::super) unlisted: u64,
    pub(in super::super) unreadable: u64,
    /// Key after which to continue once these are read, if there are more.
    pub(in super::super) next: Option<String>,
}

/// Result of a read by id of a known record.
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

impl UnlistedReads {
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

/// Counts of rows, and the certificate.
impl Job {
    /// Counts published records and unusable rows.
    pub(in super::super) fn count(&mut self, published: u64, unusable: u64) {
        self.rows.counts.published += published;
        self.rows.counts.unusable += unusable;
        self.rows.has_counted |= published + unusable > 0;
    }

    /// Counts a requested record that was given up; later passes do not request it again. Returns whether the list waited for it.
    pub(in super::super) fn loses(&mut self, subject: &Subject) -> bool {
        let is_asked_for = self.rows.asked_for.contains(subject);
        if is_asked_for {
            self.rows.lost.insert(subject.clone());
            self.count(0, 1);
        }
        is_asked_for
    }

    /// Counts a record that Kafka rejected, if the list has shown it or waits for it. Only records of payroll have no subject.
    pub(in super::super) fn refused(&mut self, subject: Option<&Subject>, origin: Origin) {
        let has = |one: &Collection| match subject {
            Some(subject) => one.has(subject.resource, &subject.company),
            None => one.list == List::Payroll,
        };
        let is_asked_for = subject.is_some_and(|subject| self.loses(subject));
        if !is_asked_for && origin != Origin::Enrichment && self.collection().is_some_and(has) {
            // It was counted as published when its entry was built.
            self.rows.counts.published = self.rows.counts.published.saturating_sub(1);
            self.count(0, 1);
        }
    }

    /// Whether its counts have changed and have to be written. At its end they are in its certificate instead.
    pub(in super::super) fn has_new_counts(&self) -> bool {
        self.rows.has_counted && self.collection().is_some() && !matches!(self.stage, Stage::Ending)
    }

    /// Key and value of its counts, if they have to be written now.
    pub(in super::super) fn take_counts(&mut self, shard: i32) -> Option<(Key, Bytes)> {
        let key = self.collection().filter(|_| self.has_new_counts())?.page(shard, 0);
        (self.rows.has_counted, self.rows.keeps_counts, self.rows.is_writing_counts) = (false, true, true);
        Some((key, state::json(&self.rows.counts)))
    }

    /// Its certificate; `None` if it is no list or has no verdict.
    pub(in super::super) fn certificate(
        &self,
        connector: &str,
        shard: i32,
        is_stream_verified: bool,
        now: i64,
    ) -> Option<Certificate> {
        let Collection { run, list, company, .. } = self.collection()?;
        let (reading, begun) = (self.proof.reading.as_ref()?, self.proof.started_at);
        let open = match company {
            Some(company) => {
                Certificate::of_company(connector, run.clone(), list.name(), company.clone(), begun)
            }
            None => Certificate::of_shard(connector, run.clone(), list.name(), shard, begun),
        };
        let mut certificate = reading.complete(open)?;
        certificate.reading.ended_at = now;
        certificate.filter = self.proof.filter.clone().filter(|_| reading.is_filtered());
        let Counts { published, unusable } = self.rows.counts;
        if unusable > 0 && certificate.certified {
            (certificate.certified, certificate.method) = (false, CertificateMethod::None);
            certificate.reason = Some(format!("{unusable} rows cannot be used: see the dead letters"));
        }
        if self.proof.void_since.is_some() {
            (certificate.certified, certificate.method) = (false, CertificateMethod::None);
            certificate.counts.missing_at_most = None;
            certificate.reason.get_or_insert_with(|| REGRESSED.to_owned());
        }
        certificate.records.published = i64::try_from(published).unwrap_or(i64::MAX);
        certificate.requested_by = Some(self.run.requested_by.clone());
        certificate.stream = Some(if is_stream_verified { "verified" } else { "unverified" }.to_owned());
        if let Stage::Unlisted(reads) = &self.stage {
            let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            certificate.records.vanished_count = number(reads.vanished_count);
            certificate.records.vanished.clone_from(&reads.vanished);
            certificate.records.unlisted = number(reads.unlisted);
            certificate.records.unreadable = number(reads.unreadable);
        }
        Some(certificate)
    }
}
