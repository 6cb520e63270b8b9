//! What a reading ends with.

use model::{Certificate, Method};

use super::{Reading, counting::Count};

/// What is proved of a list. The names are those of the [`Certificate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether everything listed at the cut has been seen.
    pub certified: bool,
    /// How that is proved.
    pub method: Method,
    /// Why it is not.
    pub reason: Option<String>,
    /// Passes over the list, void ones included.
    pub passes: i32,
    /// Rows asked for per page in the last pass.
    pub page_size: i32,
    /// The number that the provider gives the first page; `None` where that is not known, because the list is empty.
    pub page_base: Option<i32>,
    /// Pages read in all passes.
    pub pages: i64,
    /// Rows read in all passes.
    pub rows: i64,
    /// Rows the list had at the cut; no more than these, where the page there was empty.
    pub listed: Option<i64>,
    /// Distinct ids read up to the cut.
    pub distinct: Option<i64>,
    /// At most so many of them had left by the cut.
    pub gone: Option<i64>,
    /// Records listed at the cut that only later pages showed.
    pub found: Option<i64>,
    /// At most so many listed records were not seen.
    pub missing_at_most: Option<i64>,
    /// The provider's own count on the page of the cut.
    pub reported_total: Option<i64>,
    /// Page that voided the last pass.
    pub failed_page: Option<i64>,
    /// Earliest moment of the cut, on the provider's clock.
    pub cut_after: Option<i64>,
    /// Latest moment of the cut, on the provider's clock.
    pub cut_before: Option<i64>,
    /// What voided passes, the first of it.
    pub anomalies: Vec<String>,
}

impl Verdict {
    /// Writes it into a certificate, and leaves the rest of that as it is.
    pub fn fill(&self, certificate: &mut Certificate) {
        let Self { certified, method, reason, passes, page_size, pages, rows, listed, .. } = self;
        let Self { distinct, gone, found, missing_at_most, reported_total, .. } = self;
        let Self { failed_page, cut_after, cut_before, anomalies, page_base, .. } = self;
        certificate.certified = *certified;
        certificate.method = *method;
        certificate.reason.clone_from(reason);
        certificate.passes = *passes;
        certificate.page_size = *page_size;
        certificate.page_base = *page_base;
        certificate.pages = *pages;
        certificate.rows = *rows;
        certificate.listed = *listed;
        certificate.distinct = *distinct;
        certificate.gone = *gone;
        certificate.found = *found;
        certificate.missing_at_most = *missing_at_most;
        certificate.reported_total = *reported_total;
        certificate.failed_page = *failed_page;
        certificate.cut_after = *cut_after;
        certificate.cut_before = *cut_before;
        certificate.anomalies.clone_from(anomalies);
    }
}

/// As a certificate counts; what is beyond it is as far as it counts.
fn count(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

impl Reading {
    /// It stays unproved.
    pub(super) fn conclude(&mut self, reason: Option<String>) {
        let best = self.counts.iter().filter(|count| count.missing().is_some()).min_by_key(|c| c.missing());
        let reason = reason.unwrap_or_else(|| match (&self.void, best) {
            (Some((page, why)), _) => format!("page {page}: {why}"),
            (None, Some(best)) => {
                let (missing, passes) = (best.missing().unwrap_or_default(), self.pass);
                format!("after {passes} passes {missing} listed records may not have been seen")
            }
            (None, None) => "more records were listed than there were places: ids come back".to_owned(),
        });
        let verdict = Verdict {
            failed_page: self.void.as_ref().map(|(page, _)| i64::from(*page)),
            ..self.unproved(best)
        };
        self.verdict = Some(Verdict { reason: Some(reason), ..verdict });
    }

    /// What is proved.
    pub(super) fn proved(&self, place: usize, method: Method) -> Verdict {
        Verdict { certified: true, method, ..self.unproved(self.counts.get(place)) }
    }

    /// What is known, without a proof.
    pub(super) fn unproved(&self, best: Option<&Count>) -> Verdict {
        let numbers = best.map(Count::numbers);
        Verdict {
            certified: false,
            method: Method::None,
            reason: None,
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
            missing_at_most: best.and_then(Count::missing).map(count),
            reported_total: best.and_then(|best| best.total).map(count),
            failed_page: None,
            cut_after: best.map(|best| best.cut.0),
            cut_before: best.map(|best| best.cut.1),
            anomalies: self.anomalies.clone(),
        }
    }
}
