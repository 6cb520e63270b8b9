//! Results of the rows of a list, and its certificate.

use bytes::Bytes;

use model::{Certificate, CertificateMethod, Key, List, Origin};

use super::{Job, Stage};
use crate::records::{
    schedule::Subject,
    task::state::{self, Collection, Counts},
};

impl Job {
    /// Counts published records and unusable rows.
    pub(in super::super) fn count(&mut self, published: u64, unusable: u64) {
        self.counts.published += published;
        self.counts.unusable += unusable;
        self.has_counted |= published + unusable > 0;
    }

    /// Counts a requested record that was given up; later passes do not request it again. Returns whether the list waited for it.
    pub(in super::super) fn loses(&mut self, subject: &Subject) -> bool {
        let is_asked_for = self.asked_for.contains(subject);
        if is_asked_for {
            self.lost.insert(subject.clone());
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
            self.counts.published = self.counts.published.saturating_sub(1);
            self.count(0, 1);
        }
    }

    /// Whether its counts have changed and have to be written. At its end they are in its certificate instead.
    pub(in super::super) fn has_new_counts(&self) -> bool {
        self.has_counted && self.collection().is_some() && !matches!(self.stage, Stage::Ending)
    }

    /// Key and value of its counts, if they have to be written now.
    pub(in super::super) fn take_counts(&mut self, shard: i32) -> Option<(Key, Bytes)> {
        let key = self.collection().filter(|_| self.has_new_counts())?.page(shard, 0);
        (self.has_counted, self.keeps_counts) = (false, true);
        Some((key, state::json(&self.counts)))
    }

    /// Its certificate; `None` if it is no list or has no verdict.
    pub(in super::super) fn certificate(
        &self,
        connector: &str,
        shard: i32,
        is_heard: bool,
        now: i64,
    ) -> Option<Certificate> {
        let Collection { run, list, company, .. } = self.collection()?;
        let (reading, begun) = (self.reading.as_ref()?, self.started_at);
        let open = match company {
            Some(company) => {
                Certificate::of_company(connector, run.clone(), list.name(), company.clone(), begun)
            }
            None => Certificate::of_shard(connector, run.clone(), list.name(), shard, begun),
        };
        let mut certificate = reading.complete(open)?;
        certificate.ended_at = now;
        certificate.filter = self.filter.clone().filter(|_| reading.is_filtered());
        let Counts { published, unusable } = self.counts;
        if unusable > 0 && certificate.certified {
            (certificate.certified, certificate.method) = (false, CertificateMethod::None);
            certificate.reason = Some(format!("{unusable} rows cannot be used: see the dead letters"));
        }
        certificate.published = i64::try_from(published).unwrap_or(i64::MAX);
        certificate.requested_by = Some(self.run.requested_by.clone());
        certificate.stream = Some(if is_heard { "verified" } else { "unverified" }.to_owned());
        if let Stage::Missing(missing) = &self.stage {
            let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            certificate.vanished_count = number(missing.vanished_count);
            certificate.vanished.clone_from(&missing.vanished);
            certificate.unlisted = number(missing.unlisted);
            certificate.unreadable = number(missing.unreadable);
        }
        Some(certificate)
    }
}
