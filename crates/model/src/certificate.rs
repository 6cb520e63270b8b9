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
///
/// Exactly one of `company_id` and `shard` is set: a list belongs to a company, or spans companies and was read by a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
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
    /// Whether the list is proved complete.
    pub certified: bool,
    /// How.
    pub method: CertificateMethod,
    /// Why not.
    pub reason: Option<String>,
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
    /// Records written.
    pub published: i64,
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
    /// When reading began, on our clock.
    pub started_at: i64,
    /// When the verdict was reached, on our clock.
    pub ended_at: i64,
    /// Known records that no pass showed and that a read by id did not find.
    pub vanished_count: i64,
    /// Their ids; the first of them where there are many.
    pub vanished: Vec<String>,
    /// Known records that no pass showed but that a read by id found.
    pub unlisted: i64,
    /// Known records that no pass showed and that could not be read by id either.
    pub unreadable: i64,
    /// Who or what asked for the run.
    pub requested_by: Option<String>,
    /// `verified` where every change after the reading began was heard of, else `unverified`.
    pub stream: Option<String>,
    /// Only what this filter lets through was read.
    pub filter: Option<String>,
    /// What voided passes, the first of it.
    #[serde(default)]
    pub anomalies: Vec<String>,
}

impl Certificate {
    /// An open verdict on a list of one company.
    #[must_use]
    pub fn of_company(connector: &str, run: RunId, list: &str, company: CompanyId, started_at: i64) -> Self {
        Self { company_id: Some(company), ..Self::open(connector, run, list, started_at) }
    }

    /// An open verdict on a shard's reading of a list that spans companies.
    #[must_use]
    pub fn of_shard(connector: &str, run: RunId, list: &str, shard: i32, started_at: i64) -> Self {
        Self { shard: Some(shard), ..Self::open(connector, run, list, started_at) }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    fn open(connector: &str, run: RunId, list: &str, started_at: i64) -> Self {
        Self {
            connector: connector.to_owned(),
            run,
            list: list.to_owned(),
            company_id: None,
            shard: None,
            certified: false,
            method: CertificateMethod::None,
            reason: None,
            passes: 0,
            page_size: 0,
            page_base: None,
            pages: 0,
            rows: 0,
            published: 0,
            listed: None,
            distinct: None,
            gone: None,
            found: None,
            missing_at_most: None,
            reported_total: None,
            failed_page: None,
            cut_after: None,
            cut_before: None,
            started_at,
            ended_at: started_at,
            vanished_count: 0,
            vanished: Vec::new(),
            unlisted: 0,
            unreadable: 0,
            requested_by: None,
            stream: None,
            filter: None,
            anomalies: Vec::new(),
        }
    }
}
