//! A request for a run, checked against what the connector is configured to read.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use model::{CompanyId, List, Run, RunId, RunKind, Verification};

use super::names;
use crate::{config::connector::Snapshot, connect::herder::Error};

/// Limit on the characters of an id.
pub(super) const MAX_ID_LENGTH: usize = 100;
/// Limit on the rows of each list in a sample.
const MAX_SAMPLE: u64 = 100_000;
/// Companies named when two requests differ.
const MAX_NAMED: usize = 3;

/// A request for a run. Defaults are in the connector's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRequest {
    /// Id of the run.
    pub id: Option<String>,
    /// `snapshot` or `verify`.
    pub kind: Option<String>,
    /// Names of lists.
    pub lists: Option<Vec<String>>,
    /// Ids of companies.
    pub companies: Option<Vec<String>>,
    /// Reads only what changed of payroll.
    pub incremental: bool,
    /// Limit on the rows of each list.
    pub sample: Option<u64>,
    /// Repairs differences.
    pub repair: bool,
}

impl RunRequest {
    /// The run, or the error in the request. By default it reads the configured lists that do not wait for a login.
    pub(super) fn checked(
        self,
        connector: &str,
        configured: &Snapshot,
        waiting: &BTreeMap<List, String>,
        now: i64,
    ) -> Result<Run, Error> {
        let bad = |message: String| Err(Error::BadRequest(message));
        let kind = match self.kind.as_deref() {
            None | Some("snapshot") => RunKind::Snapshot,
            Some("verify") => RunKind::Verify,
            Some(_) => return bad("kind must be snapshot or verify".to_owned()),
        };
        let id = match self.id {
            None => format!("{}-{now}", kind.name()),
            Some(id) if is_taken(&id) => {
                return bad(format!(
                    "id {id} is reserved for runs that a connector requests itself: leave it out, or choose one that is not \
                     initial or initial-payroll and does not begin with start- or schedule-"
                ));
            }
            Some(id) if is_id(&id) => id,
            Some(_) => {
                return bad(format!(
                    "id must have 1 to {MAX_ID_LENGTH} characters, each a letter or digit of ASCII or one of . _ : -"
                ));
            }
        };
        let waits = |list: &List| waiting.get(list).filter(|_| configured.lists.contains(list));
        let lists: BTreeSet<List> = match self.lists {
            None => {
                let (waiting, readable): (BTreeSet<List>, BTreeSet<List>) =
                    configured.lists.iter().partition(|list| waits(list).is_some());
                // Skip waiting lists, unless no list is left or the request is incremental and may need them: then they are
                // refused below.
                match readable.is_empty() || self.incremental {
                    true => readable.union(&waiting).copied().collect(),
                    false => readable,
                }
            }
            Some(lists) => lists.iter().map(|name| list(name)).collect::<Result<_, _>>()?,
        };
        if let Some(reason) = lists.iter().find_map(waits) {
            return Err(Error::Conflict(reason.clone()));
        }
        if lists.is_empty() {
            return bad(format!(
                "lists is empty, so nothing would be read; name some of snapshot.lists of connector {connector} ({}), or \
                 leave lists out for all of them",
                names(&configured.lists)
            ));
        }
        if let Some(list) = lists.difference(&configured.lists).next() {
            return bad(format!(
                "list {list} is not in snapshot.lists of connector {connector} ({}); add it there first",
                names(&configured.lists)
            ));
        }
        let companies = match self.companies {
            None => configured.companies.clone(),
            Some(companies) => Some(companies_of(companies, connector, configured)?),
        };
        if self.incremental && !lists.contains(&List::Payroll) {
            return bad(format!(
                "incremental is for the list payroll, and the request names {}; add payroll, or leave incremental out",
                names(&lists)
            ));
        }
        let sample = match self.sample {
            None => None,
            Some(rows) if (1..=MAX_SAMPLE).contains(&rows) => u32::try_from(rows).ok(),
            Some(_) => return bad(format!("sample must be a number from 1 to {MAX_SAMPLE}")),
        };
        if kind != RunKind::Verify && (sample.is_some() || self.repair) {
            return bad("sample and repair are for the kind verify; a snapshot reads and repairs everything"
                .to_owned());
        }
        let Ok(id) = RunId::new(id) else { return bad("id is empty".to_owned()) };
        Ok(Run {
            connector: connector.to_owned(),
            id,
            kind,
            lists,
            companies,
            // Only repairs of gaps set this.
            known: std::collections::BTreeSet::new(),
            incremental: self.incremental,
            verification: Verification { sample, repair: self.repair },
            requested_by: "rest".to_owned(),
            requested_at: now,
        })
    }

    /// The run to compare with a known one of the same id: what the request leaves out is as in that run, not as configured now.
    pub(super) fn beside(&self, known: &Run, asked: &Run) -> Run {
        let mut asked = asked.clone();
        if self.lists.is_none() {
            asked.lists.clone_from(&known.lists);
        }
        if self.companies.is_none() {
            asked.companies.clone_from(&known.companies);
        }
        asked
    }
}

/// Parses the name of a list.
pub(super) fn list(name: &str) -> Result<List, Error> {
    name.parse().map_err(|error: model::Error| Error::BadRequest(error.to_string()))
}

/// How two requests under one id differ.
pub(super) fn difference(known: &Run, asked: &Run) -> String {
    let mut differences = Vec::new();
    if known.kind != asked.kind {
        differences.push(format!("kind is {}, not {}", known.kind.name(), asked.kind.name()));
    }
    if known.lists != asked.lists {
        differences.push(format!("lists are {}, not {}", names(&known.lists), names(&asked.lists)));
    }
    if known.companies != asked.companies {
        differences.push(format!("companies are {}, not {}", some(&known.companies), some(&asked.companies)));
    }
    if known.incremental != asked.incremental {
        differences.push(format!("incremental is {}, not {}", known.incremental, asked.incremental));
    }
    if known.verification.sample != asked.verification.sample {
        let rows = |sample: Option<u32>| sample.map_or("none".to_owned(), |rows| rows.to_string());
        differences.push(format!(
            "sample is {}, not {}",
            rows(known.verification.sample),
            rows(asked.verification.sample)
        ));
    }
    if known.verification.repair != asked.verification.repair {
        differences
            .push(format!("repair is {}, not {}", known.verification.repair, asked.verification.repair));
    }
    let (id, connector) = (&known.id, &known.connector);
    format!(
        "run {id} of connector {connector} exists and differs from this request: its {}; choose another id",
        differences.join(", its ")
    )
}

/// A run as its record.
pub(super) fn written(run: &Run) -> Result<Value, Error> {
    serde_json::to_value(run).map_err(|error| {
        tracing::error!(%error, "could not write a run as JSON");
        Error::Internal { doing: "write the request" }
    })
}

fn companies_of(
    companies: Vec<String>,
    connector: &str,
    configured: &Snapshot,
) -> Result<BTreeSet<CompanyId>, Error> {
    if companies.is_empty() {
        let message =
            "companies is empty, so nothing would be read; name some, or leave companies out for all";
        return Err(Error::BadRequest(message.to_owned()));
    }
    let companies: BTreeSet<CompanyId> = companies
        .into_iter()
        .map(CompanyId::new)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::BadRequest(error.to_string()))?;
    let allowed = configured.companies.as_ref();
    match allowed.and_then(|allowed| companies.iter().find(|company| !allowed.contains(*company))) {
        None => Ok(companies),
        Some(_) => Err(Error::BadRequest(format!(
            "companies names one that is not in snapshot.companies of connector {connector}; add it there first"
        ))),
    }
}

fn is_id(id: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | ':' | '-');
    (1..=MAX_ID_LENGTH).contains(&id.len()) && id.chars().all(is_letter)
}

/// Ids of the runs that a task requests itself.
fn is_taken(id: &str) -> bool {
    matches!(id, "initial" | "initial-payroll") || id.starts_with("start-") || id.starts_with("schedule-")
}

fn some(companies: &Option<BTreeSet<CompanyId>>) -> String {
    let Some(companies) = companies else { return "all".to_owned() };
    let mut named: Vec<String> = companies.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    if companies.len() > MAX_NAMED {
        named.push(format!("{} more", companies.len() - MAX_NAMED));
    }
    named.join(", ")
}
