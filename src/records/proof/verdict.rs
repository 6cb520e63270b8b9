//! The verdict of a reading, and its certificate.

use model::{Certificate, CertificateCounts, CertificateMethod, CertificateReading};

use super::{ONLY_CHANGES, Reading, pass::PassCount};

/// How a reading ended. The numbers are indexes into its counts, which no longer change.
#[derive(Debug, Clone)]
pub(super) enum ProofVerdict {
    /// All records listed at the cut of this count were shown.
    Proved(CertificateMethod, usize),
    /// All records that the filter for changes returns were shown. The rest of the list is unproved.
    Changes(usize),
    /// Nothing is proved, for this reason; and the count that misses the fewest records, if any.
    Unproved(String, Option<usize>),
}

impl Reading {
    /// Whether there is a verdict.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.verdict.is_some()
    }

    /// Whether all records listed at the cut are proved to have been shown.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        matches!(self.verdict, Some(ProofVerdict::Proved(..)))
    }

    /// Whether only the records that the filter for changes returns were shown.
    #[must_use]
    pub fn is_of_changes(&self) -> bool {
        matches!(self.verdict, Some(ProofVerdict::Changes(_)))
    }

    /// The reason, if the verdict is that nothing is proved.
    #[must_use]
    pub fn unproved(&self) -> Option<&str> {
        match &self.verdict {
            Some(ProofVerdict::Unproved(reason, _)) => Some(reason),
            _ => None,
        }
    }

    /// Number of rows at the cut of the verdict.
    #[must_use]
    pub fn listed(&self) -> Option<u64> {
        self.decisive().map(|count| count.listed)
    }

    /// Completes the open certificate of the list with the verdict; `None` before there is one.
    #[must_use]
    pub fn complete(&self, open: Certificate) -> Option<Certificate> {
        let (mut missing, mut failed_page) = (self.decisive().and_then(PassCount::missing), None);
        let (method, reason) = match self.verdict.as_ref()? {
            ProofVerdict::Proved(method, _) => (*method, None),
            ProofVerdict::Changes(_) => {
                missing = None;
                (CertificateMethod::None, Some(ONLY_CHANGES.to_owned()))
            }
            ProofVerdict::Unproved(reason, _) => {
                failed_page = self.passes.void.as_ref().map(|(page, _)| i64::from(*page));
                (CertificateMethod::None, Some(reason.clone()))
            }
        };
        let best = self.decisive();
        let numbers = best.map(PassCount::numbers);
        Some(Certificate {
            certified: self.is_proved(),
            method,
            reason,
            reading: CertificateReading {
                passes: i32::try_from(self.passes.number).unwrap_or(i32::MAX),
                page_size: i32::try_from(
                    self.paging.limit.map_or(self.paging.size, |limit| limit.min(self.paging.size)),
                )
                .unwrap_or(i32::MAX),
                page_base: self.paging.base.and_then(|base| i32::try_from(base).ok()),
                pages: count(self.read.pages),
                rows: count(self.read.rows),
                anomalies: self.passes.anomalies.clone(),
                ..open.reading
            },
            counts: CertificateCounts {
                listed: best.map(|best| count(best.listed)),
                distinct: numbers.map(|(read, ..)| count(read)),
                gone: numbers.map(|(_, gone, _)| count(gone)),
                found: numbers.map(|(.., found)| count(found)),
                missing_at_most: missing.map(count),
                reported_total: best.and_then(|best| best.total).map(count),
                failed_page,
                cut_after: best.map(|best| best.cut.0),
                cut_before: best.map(|best| best.cut.1),
            },
            ..open
        })
    }

    /// Ends the reading without a proof.
    pub(super) fn conclude(&mut self, reason: Option<String>) {
        let missing = |(index, count): (usize, &PassCount)| Some((index, count.missing()?));
        let best = self.counts.iter().enumerate().filter_map(missing).min_by_key(|(_, missing)| *missing);
        let reason = reason.unwrap_or_else(|| match (&self.passes.void, best) {
            (Some((page, why)), _) => format!("page {page}: {why}"),
            (None, Some((_, missing))) => {
                let passes = self.passes.number;
                format!("after {passes} passes, up to {missing} listed records may not have been read")
            }
            (None, None) => {
                "the numbers contradict each other; record ids may have left the list and come back"
                    .to_owned()
            }
        });
        self.verdict = Some(ProofVerdict::Unproved(reason, best.map(|(index, _)| index)));
    }

    /// The count on which the verdict is based.
    fn decisive(&self) -> Option<&PassCount> {
        match self.verdict.as_ref()? {
            ProofVerdict::Proved(_, index) | ProofVerdict::Changes(index) => self.counts.get(*index),
            ProofVerdict::Unproved(_, index) => self.counts.get((*index)?),
        }
    }
}

/// Converts a number for a certificate; larger ones saturate.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
