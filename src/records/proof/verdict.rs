//! What a reading ends with.

use model::{Certificate, CertificateMethod};

use super::{ONLY_CHANGES, Reading, counting::PassCount};

/// How a reading ended. Places are those of its counts, which stay as they are from then on.
#[derive(Debug, Clone)]
pub(super) enum ProofVerdict {
    /// Everything listed at the cut of this count has been seen.
    Proved(CertificateMethod, usize),
    /// Everything that the filter for changes lets through has been seen; nothing proves the rest of the list.
    Changes(usize),
    /// Nothing is proved, for this reason; the count that misses the fewest records, where there is one.
    Unproved(String, Option<usize>),
}

impl Reading {
    /// Whether there is a verdict, so that nothing more is wanted.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.verdict.is_some()
    }

    /// Whether everything listed at the cut is proved to have been seen.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        matches!(self.verdict, Some(ProofVerdict::Proved(..)))
    }

    /// Rows the list had at the cut that the verdict is about.
    #[must_use]
    pub fn listed(&self) -> Option<u64> {
        self.decisive().map(|count| count.listed)
    }

    /// Writes the verdict into the open certificate of the list; `None` before there is one.
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
                failed_page = self.void.as_ref().map(|(page, _)| i64::from(*page));
                (CertificateMethod::None, Some(reason.clone()))
            }
        };
        let best = self.decisive();
        let numbers = best.map(PassCount::numbers);
        Some(Certificate {
            certified: self.is_proved(),
            method,
            reason,
            passes: i32::try_from(self.pass).unwrap_or(i32::MAX),
            page_size: i32::try_from(self.limit.map_or(self.size, |limit| limit.min(self.size)))
                .unwrap_or(i32::MAX),
            page_base: self.base.and_then(|base| i32::try_from(base).ok()),
            pages: count(self.pages),
            rows: count(self.rows),
            listed: best.map(|best| count(best.listed)),
            distinct: numbers.map(|(read, ..)| count(read)),
            gone: numbers.map(|(_, gone, _)| count(gone)),
            found: numbers.map(|(.., found)| count(found)),
            missing_at_most: missing.map(count),
            reported_total: best.and_then(|best| best.total).map(count),
            failed_page,
            cut_after: best.map(|best| best.cut.0),
            cut_before: best.map(|best| best.cut.1),
            anomalies: self.anomalies.clone(),
            ..open
        })
    }

    /// It stays unproved.
    pub(super) fn conclude(&mut self, reason: Option<String>) {
        let missing = |(place, count): (usize, &PassCount)| Some((place, count.missing()?));
        let best = self.counts.iter().enumerate().filter_map(missing).min_by_key(|(_, missing)| *missing);
        let reason = reason.unwrap_or_else(|| match (&self.void, best) {
            (Some((page, why)), _) => format!("page {page}: {why}"),
            (None, Some((_, missing))) => {
                let passes = self.pass;
                format!("after {passes} passes {missing} listed records may not have been seen")
            }
            (None, None) => "more records were listed than there were places: ids come back".to_owned(),
        });
        self.verdict = Some(ProofVerdict::Unproved(reason, best.map(|(place, _)| place)));
    }

    /// The count that the verdict is about.
    fn decisive(&self) -> Option<&PassCount> {
        match self.verdict.as_ref()? {
            ProofVerdict::Proved(_, place) | ProofVerdict::Changes(place) => self.counts.get(*place),
            ProofVerdict::Unproved(_, place) => self.counts.get((*place)?),
        }
    }
}

/// As a certificate counts; what is beyond it is as far as it counts.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
