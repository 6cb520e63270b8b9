//! Runs of a connector that reads lists: requesting, pausing, resuming and stopping them, and their certificates.
//!
//! ```text
//! POST snapshots              ──▶ checked against the configuration ──▶ a run in the state topic, read by its shards
//! GET  snapshots, snapshots/x ──▶ runs, commands and the progress of shards ──▶ view
//! PUT  …/pause|resume|stop    ──▶ a command in the state topic
//! GET  certificates           ──▶ the topic of certificates, read now
//! ```
//!
//! - Any worker answers: all of them read the same topic. A request is answered once it is in the topic, or with the reason why
//!   it is not: none is lost silently.
//! - The same request under the same id is one run, however often it is sent. Requests on one worker are written one after the
//!   other. If two workers get different requests under one id at the same moment, the last one is the run, and the other
//!   worker's answer says so.
//! - A stopped run stays stopped.

mod request;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;

use model::{
    Certificate, CertificateScope, CompanyId, DesiredRunState, Key, List, Moment, RunCommand, RunId,
    TopicPrefix,
};

pub use self::{
    request::RunRequest,
    view::{CertificatesInfo, ListAwaitingLogin, RequestedRun, RunDetail, RunInfo, RunTimes, RunsInfo},
};
use super::{Error, Herder, MAX_RECORD_BYTES, TimeBudget};
use crate::{
    config::connector::{Class, RecordSource, TargetState},
    state::runs::Runs,
};

/// Limit on the runs that wait or run: each is read by every shard, so more would only wait.
const MAX_OPEN_RUNS: usize = 20;
/// Default limit on the certificates in an answer.
const DEFAULT_CERTIFICATES: usize = 1000;
/// The highest limit that a request may set.
const MAX_CERTIFICATES: usize = 10_000;

const READING: &str = "reading the state topic";
const WRITING: &str = "writing the request to the state topic";

/// Access to runs and certificates.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// A connector's runs in the state topic, as far as this worker has read it: works while Kafka is unreachable.
    ///
    /// # Errors
    /// The topic was never read to its end.
    async fn read(&self, prefix: &TopicPrefix, connector: &str) -> Result<ConnectorRuns, Error>;

    /// The same, including everything that was written before this call.
    ///
    /// # Errors
    /// The topic cannot be read.
    async fn newest(&self, prefix: &TopicPrefix, connector: &str) -> Result<ConnectorRuns, Error>;

    /// Writes a run or a command; the next read here sees it.
    ///
    /// # Errors
    /// The topic did not take it.
    async fn write(&self, prefix: &TopicPrefix, key: &Key, value: &Value) -> Result<(), Error>;

    /// Configured lists that wait for a login, each with the remedy.
    fn waiting(&self, source: &RecordSource) -> BTreeMap<List, String>;

    /// Matching certificates, the newest of each list; reads until `end` at the latest.
    ///
    /// # Errors
    /// The topic or its schemas cannot be read.
    async fn certificates(
        &self,
        prefix: &TopicPrefix,
        wanted: &CertificateFilter,
        end: Instant,
    ) -> Result<FoundCertificates, Error>;
}

/// A connector's runs in the state topic.
#[derive(Debug, Clone, Default)]
pub struct ConnectorRuns {
    /// The runs.
    pub runs: Runs,
    /// Number of shards; 0 if the topic does not exist.
    pub shards: i32,
}

/// Which certificates are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateFilter {
    /// The connector.
    pub connector: String,
    /// Only of this run.
    pub run: Option<RunId>,
    /// Only of this list.
    pub list: Option<List>,
    /// Only of this company.
    pub company: Option<CompanyId>,
    /// Only those that do not certify.
    pub uncertified: bool,
}

impl CertificateFilter {
    /// Whether a certificate matches.
    pub fn takes(&self, certificate: &Certificate) -> bool {
        let CertificateScope { connector, run, list, company_id, .. } = &certificate.scope;
        *connector == self.connector
            && self.run.as_ref().is_none_or(|wanted| run == wanted)
            && self.list.is_none_or(|wanted| list == wanted.name())
            && self.company.as_ref().is_none_or(|wanted| company_id.as_ref() == Some(wanted))
            && !(self.uncertified && certificate.certified)
    }
}

/// Certificates that were found.
#[derive(Debug, Clone, Default)]
pub struct FoundCertificates {
    /// The matching certificates.
    pub found: Vec<Certificate>,
    /// Whether the topic was not read to its end, or has more than are kept.
    pub truncated: bool,
}

/// The query parameters of a request for certificates.
#[derive(Debug, Clone, Default)]
pub struct CertificateQuery {
    /// `run`.
    pub run: Option<String>,
    /// `list`.
    pub list: Option<String>,
    /// `company`.
    pub company: Option<String>,
    /// `uncertified`.
    pub uncertified: bool,
    /// `limit`.
    pub limit: Option<String>,
}

/// The connector of a request.
struct RunSubject<'a> {
    name: &'a str,
    target: TargetState,
    source: RecordSource,
    store: &'a dyn RunStore,
}

impl Herder {
    /// Requests a run; the same request under the same id is the same run.
    ///
    /// # Errors
    /// There is no such connector, it reads no lists, the request is invalid, or the topic did not take it.
    pub async fn start_run(&self, name: &str, request: RunRequest) -> Result<RunInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.run_subject(name, budget).await?;
        let now = Moment::now().micros();
        budget
            .within(WRITING, async {
                // One at a time: no other request may write a run between the check that there is none and the write.
                let _lock = self.run_requests.lock().await;
                subject.start(request, now).await
            })
            .await
    }

    /// A connector's runs, newest first.
    ///
    /// # Errors
    /// There is no such connector, it reads no lists, or the state topic cannot be read.
    pub async fn runs(&self, name: &str) -> Result<RunsInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.run_subject(name, budget).await?;
        let stored = budget.within(READING, subject.store.read(subject.prefix(), name)).await?;
        Ok(view::runs(&stored, subject.store.waiting(&subject.source)))
    }

    /// One run, with the lists that are being read.
    ///
    /// # Errors
    /// As [`Herder::runs`], or there is no such run.
    pub async fn run(&self, name: &str, id: &str) -> Result<RunInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.run_subject(name, budget).await?;
        let stored = budget.within(READING, subject.store.read(subject.prefix(), name)).await?;
        let id = subject.known(&stored, id)?;
        subject.shown(&stored, &id)
    }

    /// Pauses, resumes or stops a run.
    ///
    /// # Errors
    /// As [`Herder::run`], the run is over, or the topic did not take it.
    pub async fn command_run(&self, name: &str, id: &str, wanted: DesiredRunState) -> Result<RunInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.run_subject(name, budget).await?;
        let now = Moment::now().micros();
        budget
            .within("writing the command to the state topic", async {
                let _lock = self.run_requests.lock().await;
                subject.command(id, wanted, now).await
            })
            .await
    }

    /// Certificates of its lists, newest first.
    ///
    /// # Errors
    /// As [`Herder::runs`], the query has an invalid value, or the topic cannot be read.
    pub async fn certificates(&self, name: &str, query: CertificateQuery) -> Result<CertificatesInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.run_subject(name, budget).await?;
        let (filter, limit) = subject.filter(query)?;
        let doing = "reading the topic of certificates";
        // Each read is a Kafka client.
        let _permit = self.limits.clients.permit(budget, doing).await?;
        let reading = subject.store.certificates(subject.prefix(), &filter, budget.0);
        Ok(view::certificates(budget.within(doing, reading).await?, limit))
    }

    async fn run_subject<'a>(&'a self, name: &'a str, budget: TimeBudget) -> Result<RunSubject<'a>, Error> {
        let connector = self.connector(name).await?;
        let Some(store) = &self.parts.snapshots else {
            return Err(Error::NotFound("this worker follows no runs".to_owned()));
        };
        let target = connector.target;
        let what = "reads lists and has snapshots and certificates";
        let source =
            self.parsed(name, connector, Class::RecordSource, what, RecordSource::parse, budget).await?;
        Ok(RunSubject { name, target, source, store: &**store })
    }
}

impl RunSubject<'_> {
    fn shown(&self, stored: &ConnectorRuns, id: &RunId) -> Result<RunInfo, Error> {
        let shown =
            view::detailed(stored, id, self.source.budget_per_second, self.store.waiting(&self.source));
        shown.ok_or(Error::Internal { doing: "show the run" })
    }

    fn prefix(&self) -> &TopicPrefix {
        &self.source.common.topic_prefix
    }

    async fn start(&self, request: RunRequest, now: i64) -> Result<RunInfo, Error> {
        let waiting = self.store.waiting(&self.source);
        let run = request.clone().checked(self.name, &self.source.snapshot, &waiting, now)?;
        if self.target == TargetState::Stopped {
            return Err(Error::Conflict(format!(
                "Connector {} is STOPPED, so its tasks do not run; resume it first",
                self.name
            )));
        }
        let stored = self.newest().await?;
        if let Some(known) = stored.runs.runs.get(&run.id) {
            let asked = request.beside(known, &run);
            return if known.asks_the_same(&asked) {
                self.shown(&stored, &run.id)
            } else {
                Err(Error::Conflict(request::difference(known, &asked)))
            };
        }
        let open = stored.runs.open(stored.shards).len();
        if open >= MAX_OPEN_RUNS {
            return Err(Error::Conflict(format!(
                "Connector {} has {open} runs that are not over, and may have {MAX_OPEN_RUNS}; wait for one to end, or stop some \
                 (PUT /connectors/{}/snapshots/ID/stop)",
                self.name, self.name
            )));
        }
        let value = request::written(&run)?;
        if value.to_string().len() > MAX_RECORD_BYTES {
            return Err(Error::BadRequest(format!(
                "the request is larger than the {MAX_RECORD_BYTES} bytes that a record may have; name fewer companies in \
                 each of several requests"
            )));
        }
        self.store.write(self.prefix(), &run.key(), &value).await?;
        let stored = self.newest().await?;
        let written = stored.runs.runs.get(&run.id);
        match written.map(|written| (written, request.beside(written, &run))) {
            Some((written, asked)) if !written.asks_the_same(&asked) => {
                Err(Error::Conflict(request::difference(written, &asked)))
            }
            _ => self.shown(&stored, &run.id),
        }
    }

    async fn command(&self, id: &str, wanted: DesiredRunState, now: i64) -> Result<RunInfo, Error> {
        let stored = self.newest().await?;
        let id = self.known(&stored, id)?;
        let status = stored.runs.status(&id, stored.shards);
        if status.state.is_over() {
            return Err(Error::Conflict(format!(
                "run {id} of connector {} is over ({}) and cannot be changed; request another one with POST \
                 /connectors/{}/snapshots",
                self.name,
                status.state.name(),
                self.name
            )));
        }
        let before = stored.runs.wanted(&id);
        if before == DesiredRunState::Stopped && wanted != DesiredRunState::Stopped {
            return Err(Error::Conflict(format!(
                "run {id} of connector {} is being stopped, which is final; request another one with POST \
                 /connectors/{}/snapshots",
                self.name, self.name
            )));
        }
        // A repeated resume releases lists that wait because too many records are missing.
        if before != wanted || wanted == DesiredRunState::Running {
            let command = RunCommand { wanted, at: now };
            let value =
                serde_json::to_value(command).map_err(|_| Error::Internal { doing: "write the command" })?;
            self.store.write(self.prefix(), &RunCommand::key(self.name, &id), &value).await?;
        }
        let stored = self.store.read(self.prefix(), self.name).await?;
        self.shown(&stored, &id)
    }

    /// The newest runs. The topic must exist.
    async fn newest(&self) -> Result<ConnectorRuns, Error> {
        let stored = self.store.newest(self.prefix(), self.name).await?;
        if stored.shards > 0 {
            return Ok(stored);
        }
        Err(Error::Conflict(format!(
            "the state topic of prefix {} does not exist yet; the tasks of connector {} create it: retry once they run",
            self.prefix(),
            self.name
        )))
    }

    /// The id of an existing run.
    fn known(&self, stored: &ConnectorRuns, id: &str) -> Result<RunId, Error> {
        let known = RunId::new(id).ok().filter(|id| stored.runs.runs.contains_key(id));
        known.ok_or_else(|| {
            // It may be a misplaced secret: truncate what is repeated.
            let id: String = id.chars().take(request::MAX_ID_LENGTH).collect();
            Error::NotFound(format!("Connector {} has no run {id}", self.name))
        })
    }

    fn filter(&self, query: CertificateQuery) -> Result<(CertificateFilter, usize), Error> {
        let CertificateQuery { run, list, company, uncertified, limit } = query;
        let bad = |error: model::Error| Error::BadRequest(error.to_string());
        let limit = match limit {
            None => DEFAULT_CERTIFICATES,
            Some(text) => {
                let number = text.parse().ok().filter(|number| (1..=MAX_CERTIFICATES).contains(number));
                let message = || format!("limit must be a number from 1 to {MAX_CERTIFICATES}");
                number.ok_or_else(|| Error::BadRequest(message()))?
            }
        };
        let filter = CertificateFilter {
            connector: self.name.to_owned(),
            run: run.map(RunId::new).transpose().map_err(bad)?,
            list: list.map(|list| request::list(&list)).transpose()?,
            company: company.map(CompanyId::new).transpose().map_err(bad)?,
            uncertified,
        };
        Ok((filter, limit))
    }
}

/// Names of lists, for messages.
fn names(lists: &BTreeSet<List>) -> String {
    lists.iter().map(|list| list.name()).collect::<Vec<_>>().join(", ")
}

/// Serializes the requests of this worker; shared by all clones of the herder.
pub(super) type RunRequestLock = Arc<tokio::sync::Mutex<()>>;

#[cfg(test)]
mod tests;
