//! Lists that are read in full: every record is in its topic and certified, or the certificate says why not.
//!
//! | module | shows |
//! |---|---|
//! | [`beside`] | complete lists, read beside events |
//! | [`killed`], [`drift`] | workers are killed, and lists move while they are read |
//! | [`refused`], [`odd`], [`thin`] | the provider refuses, answers nonsense, or shows only parts of records |
//! | [`verify`], [`gaps`] | lists verify topics and close gaps |
//! | [`payroll`], [`scheduled`] | the list of payroll companies; its changes by schedule, through a crash |
//! | [`spanning`] | a task reads lists of all companies once, through crashes and changes of `tasks.max` |
//! | [`companies`], [`modes`] | which companies' lists are read, and when |
//! | [`drawn`] | drawn providers |

mod beside;
mod companies;
mod drawn;
mod drift;
mod failpoints;
mod gaps;
mod killed;
mod modes;
mod odd;
mod payroll;
mod refused;
mod scheduled;
mod spanning;
mod thin;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use kafka::partition_of;
use model::{
    AccountingResource, Certificate, Key, List, Moment, Partitioning, Run, RunCommand, RunId, RunKind,
    SchemaKind, Topic, Verification,
};
use serde_json::{Value, json};
use simulator::{
    catalog::Resource,
    gateway::Request,
    knobs::{DisabledShows, Effect, Fault, FaultTarget},
    world::{Place, RecordState},
};

use super::checker::RecordName;
use super::evidence;
use super::scene::{EnrichScene, PARTITIONS, RECORDS};
use crate::support::harness::Test;
use crate::support::{Error, Result};

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        beside::tests(),
        companies::tests(),
        drift::tests(),
        drawn::tests(),
        refused::tests(),
        odd::tests(),
        thin::tests(),
        verify::tests(),
        gaps::tests(),
        payroll::tests(),
        scheduled::tests(),
        spanning::tests(),
        failpoints::tests(),
        killed::tests(),
        modes::tests(),
    ];
    parts.into_iter().flatten().collect()
}

/// The resources that have a list in the accounting API.
const LISTED: [Resource; 3] = [Resource::Companies, Resource::Customers, Resource::Accounts];
/// The lists of [`LISTED`].
const LISTS: [List; 3] = [List::Companies, List::Customers, List::Accounts];

/// The lists that each company has.
const COMPANY_LISTS: [List; 2] = [List::Customers, List::Accounts];

/// The records that the lists of companies show at a moment.
pub(super) struct ListedRecords {
    /// From then on every read shows them, also from a lagging replica; microseconds since 1970.
    since: i64,
    pub(super) places: BTreeSet<Place>,
}

impl EnrichScene {
    /// The records of the scene's resources that the lists of companies show now.
    pub(super) fn listed(&self) -> ListedRecords {
        let knobs = self.provider().knobs();
        let since = Moment::now().micros() + 1_000 * knobs.reads.replica_lag as i64;
        let shows = |state: RecordState| match state {
            RecordState::Enabled => true,
            RecordState::Disabled => knobs.reads.disabled == DisabledShows::Everywhere,
            RecordState::Deleted => false,
        };
        let resources = COMPANY_LISTS.map(resource).into_iter().filter(|one| self.resources.contains(one));
        let world = self.provider().world();
        let mut places = BTreeSet::new();
        for one in resources {
            let shown = world.records(one).filter(|(_, row)| shows(row.state));
            places.extend(shown.map(|(place, _)| place));
        }
        ListedRecords { since, places }
    }

    /// Records that certified lists must have: those that are listed now and in the last of `before`, in chronological order, from
    /// before the reading of their list began.
    pub(super) fn owed(
        &self,
        certificates: &BTreeMap<String, Certificate>,
        before: &[ListedRecords],
    ) -> BTreeSet<RecordName> {
        let now = self.listed().places;
        let mut owed = BTreeSet::new();
        for one in certificates.values().filter(|one| one.certified && one.filter.is_none()) {
            let Some(company) = one.scope.company_id.as_ref().map(ToString::to_string) else { continue };
            let Some(list) = COMPANY_LISTS.into_iter().find(|list| list.name() == one.scope.list) else {
                continue;
            };
            let Some(start) = before.iter().rev().find(|listed| listed.since <= one.reading.started_at)
            else {
                continue;
            };
            let is_of_list = |place: &&Place| {
                let own = |number| self.provider().world().company_id(number) == company;
                place.resource == resource(list) && place.company.is_some_and(own)
            };
            let throughout = start.places.intersection(&now).filter(is_of_list);
            owed.extend(throughout.map(|place| self.name(*place)));
        }
        owed
    }

    /// The progress of each shard in a run.
    async fn progress(&self, run: &str) -> Result<BTreeMap<i64, Value>> {
        let mut found = BTreeMap::new();
        for record in evidence::read(self, &self.topic(Topic::State)).await? {
            let (Some(key), Some(value)) = (&record.key, &record.value) else { continue };
            if key.starts_with(b"progress/") {
                let value: Value = serde_json::from_slice(value).unwrap();
                if value["run"] == run {
                    found.insert(value["shard"].as_i64().unwrap(), value);
                }
            }
        }
        Ok(found)
    }

    /// Whether a run is over in every shard.
    pub(super) async fn is_over(&self, run: &str) -> Result<bool> {
        let last = self.progress(run).await?;
        Ok(last.len() == PARTITIONS as usize && last.values().all(is_over))
    }

    /// Waits until a run is over in every shard; their progress.
    pub(super) async fn until_over(&self, run: &str) -> Result<Vec<Value>> {
        let what = format!("run {run} over");
        let mut last = BTreeMap::new();
        self.until(&what, async || {
            last = self.progress(run).await?;
            Ok(last.len() == PARTITIONS as usize && last.values().all(is_over))
        })
        .await
        .map_err(|error| Error(format!("{error}: {last:#?}")))?;
        Ok(last.into_values().collect())
    }

    /// Writes a record to the state topic, as the REST API does.
    async fn put(&self, key: &Key, value: &Value) -> Result<()> {
        let Partitioning::By(bytes) = key.partitioning() else { panic!("{key}") };
        let partition = partition_of(bytes, PARTITIONS);
        let (topic, value) = (self.topic(Topic::State), value.to_string());
        self.produce(&topic, partition, key.as_str().as_bytes(), value.as_bytes()).await?;
        Ok(())
    }

    /// Requests a run of these lists.
    pub(super) async fn ask_for(&self, id: &str, kind: RunKind, lists: &[List]) -> Result<()> {
        self.ask_for_all(id, kind, lists, &[]).await
    }

    /// Requests a run of these lists that also reads every known record of these resources by its id.
    pub(super) async fn ask_for_all(
        &self,
        id: &str,
        kind: RunKind,
        lists: &[List],
        known: &[AccountingResource],
    ) -> Result<()> {
        let run = Run {
            connector: RECORDS.to_owned(),
            id: RunId::new(id).unwrap(),
            kind,
            lists: lists.iter().copied().collect(),
            companies: None,
            known: known.iter().copied().collect(),
            incremental: false,
            verification: Verification::default(),
            requested_by: "test".to_owned(),
            requested_at: Moment::now().micros(),
        };
        self.put(&run.key(), &json!(run)).await
    }

    /// Requests a run by REST, which must accept it.
    async fn post_run(&self, body: Value) -> Result<()> {
        let path = format!("/connectors/{RECORDS}/snapshots");
        match self.stage.ask(0, "POST", &path, Some(&body)).await? {
            (202, _) => Ok(()),
            (status, answer) => Err(Error(format!("POST {path}: {status} {answer}"))),
        }
    }

    /// Resumes a run that waits for a person.
    async fn resume_run(&self, id: &str) -> Result<()> {
        let key = RunCommand::key(RECORDS, &RunId::new(id).unwrap());
        self.put(&key, &json!({ "wanted": "running", "at": Moment::now().micros() })).await
    }

    /// Requests a run of these lists and waits for its end.
    pub(super) async fn run(&self, id: &str, kind: RunKind, lists: &[List]) -> Result<Vec<Value>> {
        self.ask_for(id, kind, lists).await?;
        self.until_over(id).await
    }

    /// The last certificate of every list.
    pub(super) async fn certificates(&self) -> Result<BTreeMap<String, Certificate>> {
        let decoder = evidence::decoder(self);
        let mut found = BTreeMap::new();
        for record in evidence::read(self, &self.topic(Topic::Certificates)).await? {
            let value = record.value.as_ref().unwrap();
            let decoded = decoder.decode(SchemaKind::Certificate, value).await;
            let (_, decoded) = decoded.map_err(|error| Error(format!("a certificate: {error}")))?;
            let model::Value::Certificate(certificate) = decoded else { panic!("{decoded:?}") };
            found.insert(String::from_utf8(record.key.clone().unwrap().to_vec()).unwrap(), *certificate);
        }
        Ok(found)
    }

    /// The certificates of a run.
    pub(super) async fn certificates_of(&self, run: &str) -> Result<BTreeMap<String, Certificate>> {
        let mut all = self.certificates().await?;
        all.retain(|_, certificate| certificate.scope.run.as_str() == run);
        Ok(all)
    }

    /// The last certificate of a list of one company.
    async fn certificate(&self, company: u32, list: List) -> Result<Certificate> {
        let key = format!("{}/{}", self.provider().world().company_id(company), list.name());
        let found = self.certificates().await?.remove(&key);
        found.ok_or_else(|| Error(format!("there is no certificate of {key}")))
    }

    /// Requests for pages of a list since a number in the provider's journal, oldest first.
    fn pages(&self, list: List, since: u64) -> Vec<(u64, Request)> {
        let path = format!("{}?", resource(list).prefix());
        let all = self.provider().gateway.requests(since, usize::MAX).into_iter();
        all.filter(|(_, request)| request.method == "GET" && request.target.starts_with(&path)).collect()
    }

    /// Requests for pages of a company's list.
    fn pages_of(&self, company: u32, list: List, since: u64) -> Vec<(u64, Request)> {
        let id = self.provider().world().company_id(company);
        let mut pages = self.pages(list, since);
        pages.retain(|(_, request)| request.company.as_deref() == Some(&id));
        pages
    }

    /// Replaces all faults by these.
    fn spoil(&self, faults: impl IntoIterator<Item = (Effect, FaultTarget)>) {
        let fault = |(effect, on)| Fault { on, effect, share: 1.0, times: None, skip: 0 };
        self.provider().set_faults(faults.into_iter().map(fault).collect());
    }

    /// Matches pages of a company's list.
    fn list_of(&self, company: u32, list: List) -> FaultTarget {
        let company = Some(self.provider().world().company_id(company));
        FaultTarget { company, ..all_of(list) }
    }

    /// Matches all requests for a company.
    fn company(&self, company: u32) -> FaultTarget {
        let company = Some(self.provider().world().company_id(company));
        FaultTarget { method: Some("GET".to_owned()), company, ..FaultTarget::default() }
    }
}

/// Whether a shard has finished a run.
fn is_over(progress: &Value) -> bool {
    progress["state"] == "ended" || progress["state"] == "stopped"
}

/// Matches pages of a list, of any company.
fn all_of(list: List) -> FaultTarget {
    let path = resource(list).prefix();
    let ending = path.rsplit('/').next().map(str::to_owned);
    FaultTarget { method: Some("GET".to_owned()), path: Some(path), ending, ..FaultTarget::default() }
}

fn resource(list: List) -> Resource {
    match list {
        List::Customers => Resource::Customers,
        List::Accounts => Resource::Accounts,
        List::Companies | List::Payroll => Resource::Companies,
    }
}

/// The sum of a member over all shards.
pub(super) fn sum(progress: &[Value], member: &str) -> u64 {
    progress.iter().map(|one| one[member].as_u64().unwrap()).sum()
}
