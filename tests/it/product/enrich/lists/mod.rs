//! Lists that are read in full: every record is there and proved to be, or the certificate says why not.
//!
//! [`beside`] has all of it once, beside events. What may go wrong is each a file of its own: workers die ([`killed`]), lists move
//! ([`drift`]), the provider refuses ([`refused`]) or answers nonsense ([`odd`]), rows show less than there is ([`thin`]). What
//! lists are good for besides: [`verify`], [`gaps`], and the companies of [`payroll`]. Whose lists are read is [`companies`],
//! and when without being asked is [`modes`].

mod beside;
mod companies;
mod drawn;
mod drift;
mod gaps;
mod killed;
mod modes;
mod odd;
mod payroll;
mod refused;
mod thin;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use kafka::partition_of;
use model::{
    AccountingResource, Certificate, Key, List, Moment, Partitioning, Run, RunCommand, RunId, RunKind,
    SchemaKind, Topic,
};
use serde_json::{Value, json};
use simulator::{
    catalog::Resource,
    gateway::Request,
    knobs::{DisabledShows, Effect, Fault, Target},
    world::{Place, RecordState},
};

use super::checker::Name;
use super::evidence;
use super::scene::{PARTITIONS, RECORDS, Scene};
use crate::support::harness::Test;
use crate::support::{Error, Result};

/// All tests of this module's parts.
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
        killed::tests(),
        modes::tests(),
    ];
    parts.into_iter().flatten().collect()
}

/// What has a list in the accounting API.
const LISTED: [Resource; 3] = [Resource::Companies, Resource::Customers, Resource::Accounts];
/// Their lists.
const LISTS: [List; 3] = [List::Companies, List::Customers, List::Accounts];

/// The lists of single companies.
const OF_COMPANIES: [List; 2] = [List::Customers, List::Accounts];

/// Records that the lists of companies showed at some moment.
pub(super) struct Listed {
    /// From when on every read shows them, those of a lagging replica included; microseconds since 1970.
    since: i64,
    pub(super) places: BTreeSet<Place>,
}

impl Scene {
    /// What the lists of companies show now, of the scene's resources.
    pub(super) fn listed(&self) -> Listed {
        let knobs = self.provider().knobs();
        let since = Moment::now().micros() + 1_000 * knobs.reads.replica_lag as i64;
        let shows = |state: RecordState| match state {
            RecordState::Enabled => true,
            RecordState::Disabled => knobs.reads.disabled == DisabledShows::Everywhere,
            RecordState::Deleted => false,
        };
        let resources = OF_COMPANIES.map(resource).into_iter().filter(|one| self.resources.contains(one));
        let world = self.provider().world();
        let mut places = BTreeSet::new();
        for one in resources {
            let shown = world.records(one).filter(|(_, row)| shows(row.state));
            places.extend(shown.map(|(place, _)| place));
        }
        Listed { since, places }
    }

    /// Records that certified lists must have: shown by the last of `before`, which is in the order of time, from before the reading
    /// of their list began, and shown now.
    pub(super) fn owed(
        &self,
        certificates: &BTreeMap<String, Certificate>,
        before: &[Listed],
    ) -> BTreeSet<Name> {
        let now = self.listed().places;
        let mut owed = BTreeSet::new();
        for one in certificates.values().filter(|one| one.certified && one.filter.is_none()) {
            let Some(company) = one.company_id.as_ref().map(ToString::to_string) else { continue };
            let Some(list) = OF_COMPANIES.into_iter().find(|list| list.name() == one.list) else { continue };
            let Some(begun) = before.iter().rev().find(|listed| listed.since <= one.started_at) else {
                continue;
            };
            let is_of_list = |place: &&Place| {
                let own = |number| self.provider().world().company_id(number) == company;
                place.resource == resource(list) && place.company.is_some_and(own)
            };
            let throughout = begun.places.intersection(&now).filter(is_of_list);
            owed.extend(throughout.map(|place| self.name(*place)));
        }
        owed
    }

    /// How far each shard is with a run.
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

    /// Waits until a run is over in every shard; what they say of it.
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

    /// Puts a record into the state topic, as whoever asks by REST does.
    async fn put(&self, key: &Key, value: &Value) -> Result<()> {
        let Partitioning::By(bytes) = key.partitioning() else { panic!("{key}") };
        let partition = partition_of(bytes, PARTITIONS);
        let (topic, value) = (self.topic(Topic::State), value.to_string());
        self.produce(&topic, partition, key.as_str().as_bytes(), value.as_bytes()).await?;
        Ok(())
    }

    /// Asks for a run.
    pub(super) async fn ask_for(&self, id: &str, kind: RunKind, lists: &[List]) -> Result<()> {
        self.ask_for_all(id, kind, lists, &[]).await
    }

    /// A run that reads these lists, and every known record of these resources by its id.
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
            sample: None,
            repair: false,
            requested_by: "test".to_owned(),
            requested_at: Moment::now().micros(),
        };
        self.put(&run.key(), &json!(run)).await
    }

    /// Lets a run go on that waits for a person.
    async fn resume_run(&self, id: &str) -> Result<()> {
        let key = RunCommand::key(RECORDS, &RunId::new(id).unwrap());
        self.put(&key, &json!({ "wanted": "running", "at": Moment::now().micros() })).await
    }

    /// A run of these lists, to its end.
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

    /// Those of a run.
    pub(super) async fn certificates_of(&self, run: &str) -> Result<BTreeMap<String, Certificate>> {
        let mut all = self.certificates().await?;
        all.retain(|_, certificate| certificate.run.as_str() == run);
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

    /// Those of one company.
    fn pages_of(&self, company: u32, list: List, since: u64) -> Vec<(u64, Request)> {
        let id = self.provider().world().company_id(company);
        let mut pages = self.pages(list, since);
        pages.retain(|(_, request)| request.company.as_deref() == Some(&id));
        pages
    }

    /// This goes wrong from now on, and nothing else.
    fn spoil(&self, faults: impl IntoIterator<Item = (Effect, Target)>) {
        let fault = |(effect, on)| Fault { on, effect, share: 1.0, times: None, skip: 0 };
        self.provider().set_faults(faults.into_iter().map(fault).collect());
    }

    /// Pages of a company's list.
    fn list_of(&self, company: u32, list: List) -> Target {
        let company = Some(self.provider().world().company_id(company));
        Target { company, ..all_of(list) }
    }

    /// All requests of a company.
    fn company(&self, company: u32) -> Target {
        let company = Some(self.provider().world().company_id(company));
        Target { method: Some("GET".to_owned()), company, ..Target::default() }
    }
}

/// Whether a shard is done with a run.
fn is_over(progress: &Value) -> bool {
    progress["state"] == "ended" || progress["state"] == "stopped"
}

/// Pages of a list, whosever.
fn all_of(list: List) -> Target {
    let path = resource(list).prefix();
    let ending = path.rsplit('/').next().map(str::to_owned);
    Target { method: Some("GET".to_owned()), path: Some(path), ending, ..Target::default() }
}

fn resource(list: List) -> Resource {
    match list {
        List::Customers => Resource::Customers,
        List::Accounts => Resource::Accounts,
        List::Companies | List::Payroll => Resource::Companies,
    }
}

/// Of all shards together.
pub(super) fn sum(progress: &[Value], member: &str) -> u64 {
    progress.iter().map(|one| one[member].as_u64().unwrap()).sum()
}
