//! The certificate of a snapshot: what it proved about a list.

use serde::{Deserialize, Serialize};

use super::{
    CompanyId, RunId,
    names::{named, shown_as_name},
    text::{read_as_name, written_as_text},
};

named! {
    /// How a list was proved complete.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum CertificateMethod {
        /// It fits on one page.
        Single = "single",
        /// Its keys ascend strictly from page to page. No longer written: it is unproven that the provider supports such a filter.
        Keyset = "keyset",
        /// Its rows were counted against the distinct ids read.
        Counting = "counting",
        /// It was not proved.
        None = "none",
    }
}

shown_as_name!(CertificateMethod);
read_as_name!(CertificateMethod: "certificate method");
written_as_text!(CertificateMethod);

/// The record of `schemas/Certificate.avsc`; times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// The list.
    #[serde(flatten)]
    pub scope: CertificateScope,
    /// Whether the list is proved complete.
    pub certified: bool,
    /// How.
    pub method: CertificateMethod,
    /// Why not.
    pub reason: Option<String>,
    /// How it was read.
    #[serde(flatten)]
    pub reading: CertificateReading,
    /// The numbers of the proof.
    #[serde(flatten)]
    pub counts: CertificateCounts,
    /// What became of its records.
    #[serde(flatten)]
    pub records: CertificateRecords,
    /// Who or what asked for the run.
    pub requested_by: Option<String>,
    /// `verified` where every change after the reading began was heard of, else `unverified`.
    pub stream: Option<String>,
    /// Only what this filter lets through was read.
    pub filter: Option<String>,
}

/// The list of a certificate.
///
/// Exactly one of `company_id` and `shard` is set: a list belongs to a company, or spans companies and was read by a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateScope {
    /// Name of the connector that read the list.
    pub connector: String,
    /// Snapshot run.
    pub run: RunId,
    /// List that was read.
    pub list: String,
    /// Company whose list it is.
    pub company_id: Option<CompanyId>,
    /// Shard that read a list of several companies.
    pub shard: Option<i32>,
}

/// How the list of a certificate was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateReading {
    /// Passes over the list, void ones included.
    pub passes: i32,
    /// Requested page size in the last pass.
    pub page_size: i32,
    /// The number of the list's first page at the provider; `None` if unknown.
    #[serde(default)]
    pub page_base: Option<i32>,
    /// Pages read in all passes.
    pub pages: i64,
    /// Rows read in all passes.
    pub rows: i64,
    /// When reading began, on our clock.
    pub started_at: i64,
    /// When the verdict was reached, on our clock.
    pub ended_at: i64,
    /// What voided passes, the first of it.
    #[serde(default)]
    pub anomalies: Vec<String>,
}

/// The numbers of the proof; `None` before a pass has come to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateCounts {
    /// Rows the list had at the cut (n).
    pub listed: Option<i64>,
    /// Distinct ids read up to the cut (R).
    pub distinct: Option<i64>,
    /// Upper bound on ids read that had left the list by the cut (D).
    pub gone: Option<i64>,
    /// Records listed at the cut that only a later pass showed.
    pub found: Option<i64>,
    /// Upper bound on listed records that were not seen.
    pub missing_at_most: Option<i64>,
    /// Total the provider reported on the page of the cut.
    pub reported_total: Option<i64>,
    /// Page that voided the last pass, from 1.
    pub failed_page: Option<i64>,
    /// Earliest moment of the cut, on the provider's clock.
    pub cut_after: Option<i64>,
    /// Latest moment of the cut, on the provider's clock.
    pub cut_before: Option<i64>,
}

/// What became of the records of a certificate's list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRecords {
    /// Records written.
    pub published: i64,
    /// Known records that no pass showed and that a read by id did not find.
    pub vanished_count: i64,
    /// Their ids; the first of them where there are many.
    pub vanished: Vec<String>,
    /// Known records that no pass showed but that a read by id found.
    pub unlisted: i64,
    /// Known records that no pass showed and that could not be read by id either.
    pub unreadable: i64,
}

impl Certificate {
    /// An open verdict on a list of one company.
    #[must_use]
    pub fn of_company(connector: &str, run: RunId, list: &str, company: CompanyId, started_at: i64) -> Self {
        Self::open(connector, run, list, Some(company), None, started_at)
    }

    /// An open verdict on a shard's reading of a list that spans companies.
    #[must_use]
    pub fn of_shard(connector: &str, run: RunId, list: &str, shard: i32, started_at: i64) -> Self {
        Self::open(connector, run, list, None, Some(shard), started_at)
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    fn open(
        connector: &str,
        run: RunId,
        list: &str,
        company_id: Option<CompanyId>,
        shard: Option<i32>,
        started_at: i64,
    ) -> Self {
        let (connector, list) = (connector.to_owned(), list.to_owned());
        Self {
            scope: CertificateScope { connector, run, list, company_id, shard },
            certified: false,
            method: CertificateMethod::None,
            reason: None,
            reading: CertificateReading { started_at, ended_at: started_at, ..CertificateReading::default() },
            counts: CertificateCounts::default(),
            records: CertificateRecords::default(),
            requested_by: None,
            stream: None,
            filter: None,
        }
    }
}
