//! State of a shard in the state topic, beside parked records: one type per kind of record. Only this module reads and writes them.
//!
//! | key | value |
//! |---|---|
//! | `batch/{shard}` | [`BatchId`]: id of the last batch |
//! | `path/{shard}/{resource}` | [`Path`]: a by-id path has returned a record |
//! | `brake/{shard}/{resource}` | [`Brake`]: deletes of the day |
//! | `rebuild/{shard}` | fences are being rebuilt |
//! | `probe/{shard}/{list}` | [`Probe`]: whether its rows are whole records |
//! | `page/{shard}/{run}/{requested at}/{list}/{n}`, for one company `…/{list}/{company}/{n}` | [`mark`] of a page of a list, in reading order |
//! | the same with 0 for `n` | [`Counts`]: results of its rows |
//! | `page/{shard}/{run}/{requested at}/companies/{company}/0` | the run's own list of companies has shown this company |
//! | `over/{shard}/{run}/{requested at}/{list}`, for one company `…/{list}/{company}` | the list has ended, its run has not |
//! | `void/{shard}/…`, as `over` | a record of this list had a version regression: the list cannot be certified in this run |
//! | `known/{shard}/{run}/{requested at}/{resource}` | [`Cursor`]: up to where known records were read again |
//! | `progress/{shard}/{connector}/{run}` | [`RunProgress`] |
//!
//! `{requested at}` is the time at which the run was requested: a later run may have the same id.

use std::collections::{BTreeMap, BTreeSet, HashSet, btree_map};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use model::{AccountingResource, CompanyId, Key, List, Origin, RunId, RunProgress};

use crate::records::{
    proof::Seen,
    schedule::{ParkCause, Parked},
};

const BATCH: &str = "batch";
const PATH: &str = "path";
const BRAKE: &str = "brake";
const REBUILD: &str = "rebuild";
const PROBE: &str = "probe";
const PAGE: &str = "page";
const OVER: &str = "over";
const VOID: &str = "void";
const KNOWN: &str = "known";

/// Id of the last committed batch.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BatchId {
    pub(super) id: String,
}

/// A by-id path has returned a record to this grant.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Path {
    pub(super) grant: String,
}

/// Number of deletes since a time, in microseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Brake {
    pub(super) since: i64,
    pub(super) count: u64,
}

/// Whether the rows of a list are whole records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Probe {
    pub(super) thin: bool,
}

/// Results of the rows of a list so far, including those that previous owners of the shard read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Published records.
    pub(super) published: u64,
    /// Unusable rows, and records that could not be published.
    pub(super) unusable: u64,
}

/// Up to where the known records of a resource were read again, in key order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cursor {
    /// The last key that was read; `None` before the first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<String>,
    pub(super) vanished: u64,
    pub(super) unreadable: u64,
    /// Whether all were read.
    #[serde(default)]
    pub(super) is_over: bool,
}

/// Known records to read again: run, the time at which it was requested, resource.
pub(super) type Again = (RunId, i64, AccountingResource);

/// A list of a run, of one company or of all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Collection {
    pub(super) run: RunId,
    /// When the run was requested: an earlier, deleted run may have had the same id.
    pub(super) requested_at: i64,
    pub(super) list: List,
    /// `None` if the list spans companies.
    pub(super) company: Option<CompanyId>,
}

impl Collection {
    /// The id of a certificate, unique to the run.
    pub(super) fn certificate_id(run: &RunId, requested_at: i64) -> String {
        format!("{run}@{requested_at}")
    }

    /// Parses the parts of a key.
    fn parse(run: &str, requested_at: &str, list: &str, company: &[&str]) -> Result<Self, String> {
        let broken = |error: model::Error| error.to_string();
        let company = match company {
            [] => None,
            [one] => Some(CompanyId::new(*one).map_err(broken)?),
            _ => return Err("its key has too many parts".to_owned()),
        };
        let (run, list) = (RunId::new(run).map_err(broken)?, list.parse::<List>().map_err(broken)?);
        let requested_at = requested_at.parse().map_err(|_| format!("{requested_at} is no time"))?;
        Ok(Self { run, requested_at, list, company })
    }

    /// Whether it lists records of this resource and company.
    pub(super) fn has(&self, resource: AccountingResource, company: &CompanyId) -> bool {
        self.list.resource() == Some(resource) && self.company.as_ref().is_none_or(|own| own == company)
    }

    /// Key of its n-th page, from 1 in reading order; 0 is the key of its counts.
    pub(super) fn page(&self, shard: i32, n: u64) -> Key {
        self.key(PAGE, shard, Some(n.to_string().as_str()))
    }

    /// Key of the mark that the list has ended. The mark is written with the certificate and removed at the end of the run. The
    /// certificate cannot replace it, because its key has no run: a certificate of another run may overwrite it.
    pub(super) fn over(&self, shard: i32) -> Key {
        self.key(OVER, shard, None)
    }

    /// Key of the mark that the list cannot be certified, committed with the version regression or before.
    pub(super) fn void(&self, shard: i32) -> Key {
        self.key(VOID, shard, None)
    }

    fn key(&self, kind: &str, shard: i32, last: Option<&str>) -> Key {
        let requested_at = self.requested_at.to_string();
        let mut parts = vec![self.run.as_str(), &requested_at, self.list.name()];
        parts.extend(self.company.as_ref().map(CompanyId::as_str));
        parts.extend(last);
        Key::shard_state(kind, shard, &parts)
    }
}

pub(super) fn batch(shard: i32) -> Key {
    Key::shard_state(BATCH, shard, &[])
}

pub(super) fn path(shard: i32, resource: AccountingResource) -> Key {
    Key::shard_state(PATH, shard, &[resource.name()])
}

pub(super) fn brake(shard: i32, resource: AccountingResource) -> Key {
    Key::shard_state(BRAKE, shard, &[resource.name()])
}

pub(super) fn rebuild(shard: i32) -> Key {
    Key::shard_state(REBUILD, shard, &[])
}

pub(super) fn probe(shard: i32, list: List) -> Key {
    Key::shard_state(PROBE, shard, &[list.name()])
}

pub(super) fn cursor(shard: i32, (run, requested_at, resource): &Again) -> Key {
    Key::shard_state(KNOWN, shard, &[run.as_str(), &requested_at.to_string(), resource.name()])
}

/// The mark of a page. If the list spans companies, it also has the number of tasks: the mark is about all shards of a task.
pub(super) fn mark(seen: &Seen, tasks: Option<i32>) -> Bytes {
    #[derive(Serialize)]
    struct SpanningMark<'a> {
        tasks: i32,
        #[serde(flatten)]
        seen: &'a Seen,
    }
    match tasks {
        // Numbers and strings always serialize.
        Some(tasks) => serde_json::to_vec(&SpanningMark { tasks, seen }).unwrap_or_default().into(),
        None => seen.to_json(),
    }
}

/// Parses a [`mark`], which has to be of this number of tasks, if there is one. Marks of earlier versions have none: each shard read
/// the list.
pub(super) fn parse_mark(value: &[u8], tasks: Option<i32>) -> Result<Seen, String> {
    #[derive(Deserialize)]
    struct Tasks {
        tasks: Option<i32>,
    }
    let of = read::<Tasks>(value)?.tasks;
    match tasks {
        Some(_) if of != tasks => {
            Err("it was read for other shards, because the number of tasks has changed".to_owned())
        }
        _ => Seen::parse(value),
    }
}

/// The value of a state record.
pub(super) fn json(value: &impl Serialize) -> Bytes {
    serde_json::json!(value).to_string().into()
}

/// The state of a shard, read from the state topic.
#[derive(Debug, Default)]
pub(super) struct StoredState {
    /// Parked records by key.
    pub(super) parked: BTreeMap<String, Parked>,
    pub(super) paths: Vec<AccountingResource>,
    pub(super) brakes: Vec<(AccountingResource, i64, u64)>,
    /// Id of the last committed batch.
    pub(super) batch: Option<String>,
    /// Whether a rebuild of its fences is unfinished.
    pub(super) rebuilds: bool,
    pub(super) lists: ListState,
}

/// What the state topic has of the lists and runs of a shard.
#[derive(Debug, Default)]
pub(super) struct ListState {
    pub(super) probes: BTreeMap<List, Probe>,
    /// Pages by list and reading order; number 0 has the counts.
    pub(super) pages: BTreeMap<Collection, BTreeMap<u64, Bytes>>,
    /// Lists that have ended.
    pub(super) over: HashSet<Collection>,
    /// Lists that cannot be certified in their run, because of a version regression.
    pub(super) void: HashSet<Collection>,
    /// Up to where known records were read again.
    pub(super) cursors: BTreeMap<Again, Cursor>,
    /// Progress of its runs.
    pub(super) progress: BTreeMap<RunId, RunProgress>,
}

impl StoredState {
    /// Applies a record; an error says why it is invalid. Only paths of `grant` and progress of runs of `connector` count.
    pub(super) fn apply(
        &mut self,
        shard: i32,
        key: &str,
        value: Option<&Bytes>,
        grant: &str,
        connector: &str,
    ) -> Result<(), String> {
        if Parked::subject(shard, key)?.is_some() {
            match value.map(|value| Parked::parse(shard, key, value)).transpose()?.flatten() {
                Some(parked) => drop(self.parked.insert(key.to_owned(), parked)),
                None => drop(self.parked.remove(key)),
            }
            return Ok(());
        }
        let parts = Key::parts(key).map_err(|error| error.to_string())?;
        let own = shard.to_string();
        let [kind, number, rest @ ..] = &parts[..] else { return Ok(()) };
        if *number != own {
            return Ok(());
        }
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        match (kind.as_str(), &rest[..], value) {
            (BATCH, [], Some(value)) => self.batch = Some(read::<BatchId>(value)?.id),
            (PATH, [resource], Some(value)) => {
                let is_own = read::<Path>(value)?.grant == grant;
                self.paths.extend(resource.parse::<AccountingResource>().ok().filter(|_| is_own));
            }
            (BRAKE, [resource], Some(value)) => {
                let Brake { since, count } = read(value)?;
                let resource = resource.parse::<AccountingResource>().ok();
                self.brakes.extend(resource.map(|resource| (resource, since, count)));
            }
            (REBUILD, [], value) => self.rebuilds = value.is_some(),
            (PROBE, [list], value) => {
                let Ok(list) = list.parse::<List>() else { return Ok(()) };
                put(&mut self.lists.probes, list, value)?;
            }
            (PAGE, [run, requested_at, list, company @ .., n], value) => {
                self.page(Collection::parse(run, requested_at, list, company)?, n, value)?;
            }
            (kind @ (OVER | VOID), [run, requested_at, list, company @ ..], value) => {
                let collection = Collection::parse(run, requested_at, list, company)?;
                let marked = if kind == OVER { &mut self.lists.over } else { &mut self.lists.void };
                match value {
                    Some(_) => drop(marked.insert(collection)),
                    None => drop(marked.remove(&collection)),
                }
            }
            (KNOWN, [run, requested_at, resource], value) => {
                let Ok(resource) = resource.parse::<AccountingResource>() else { return Ok(()) };
                let run = RunId::new(*run).map_err(|error| error.to_string())?;
                let again =
                    (run, requested_at.parse().map_err(|_| format!("{requested_at} is no time"))?, resource);
                put(&mut self.lists.cursors, again, value)?;
            }
            (RunProgress::KIND, [of, run], value) if *of == connector => {
                let run = RunId::new(*run).map_err(|error| error.to_string())?;
                put(&mut self.lists.progress, run, value)?;
            }
            // Records of other writers.
            _ => {}
        }
        Ok(())
    }

    fn page(&mut self, collection: Collection, n: &str, value: Option<&Bytes>) -> Result<(), String> {
        let n: u64 = n.parse().map_err(|_| format!("{n} is no number of a page"))?;
        match value {
            Some(value) => drop(self.lists.pages.entry(collection).or_default().insert(n, value.clone())),
            None => {
                if let btree_map::Entry::Occupied(mut pages) = self.lists.pages.entry(collection) {
                    pages.get_mut().remove(&n);
                    if pages.get().is_empty() {
                        pages.remove();
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes pages, marks and cursors of runs that have ended or whose connector was deleted, and returns their keys.
    ///
    /// An earlier version of Tributary parked the records that rows asked for. Their results are no longer counted, so such a list is
    /// read from its first page again: the keys of its pages are returned too. In memory the pages stay, without content, so that
    /// new pages get other keys.
    pub(super) fn take_left_over(&mut self, shard: i32) -> Vec<Key> {
        let is_of_row = |parked: &&Parked| {
            let is_row = parked.event.origin != Origin::Enrichment && parked.cause != ParkCause::Below;
            is_row || parked.cause == ParkCause::Listed
        };
        let rows = self.parked.values().filter(is_of_row).map(|parked| &parked.subject);
        let rows: BTreeSet<_> = rows.map(|subject| (subject.resource, &subject.company)).collect();
        let mut doubtful = Vec::new();
        for (collection, pages) in &mut self.lists.pages {
            if rows.iter().any(|(resource, company)| collection.has(*resource, company)) {
                doubtful.extend(pages.range(1..).map(|(n, _)| collection.page(shard, *n)));
                pages.range_mut(1..).for_each(|(_, page)| page.clear());
            }
        }
        let progress = &self.lists.progress;
        // Pages of a run are never stored without its progress.
        let is_over = |run: &RunId| progress.get(run).is_none_or(|progress| progress.state.is_over());
        let pages = self.lists.pages.extract_if(.., |collection, _| is_over(&collection.run));
        let pages =
            pages.flat_map(|(collection, pages)| pages.into_keys().map(move |n| collection.page(shard, n)));
        let over = self.lists.over.extract_if(|collection| is_over(&collection.run));
        let over = over.map(|collection| collection.over(shard));
        let void = self.lists.void.extract_if(|collection| is_over(&collection.run));
        let void = void.map(|collection| collection.void(shard));
        let cursors = self.lists.cursors.extract_if(.., |(run, ..), _| is_over(run));
        let cursors = cursors.map(|(again, _)| cursor(shard, &again));
        doubtful.into_iter().chain(pages).chain(over).chain(void).chain(cursors).collect()
    }
}

/// Puts the JSON of a record under its key; a tombstone removes it.
fn put<K: Ord, V: DeserializeOwned>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: Option<&Bytes>,
) -> Result<(), String> {
    match value {
        Some(value) => drop(map.insert(key, read(value)?)),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
    serde_json::from_slice(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(stored: &mut StoredState, key: &Key, value: Option<&str>) -> Result<(), String> {
        let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
        stored.apply(3, key.as_str(), value.as_ref(), "grant", "records")
    }

    #[test]
    fn what_was_read_of_a_list_is_kept_by_collection_and_order_and_forgotten_with_its_last_page() {
        let mut stored = StoredState::default();
        let run = RunId::new("repair/h/x").unwrap();
        let requested_at = 5;
        let all = Collection { run: run.clone(), requested_at, list: List::Companies, company: None };
        let one =
            Collection { run, requested_at, list: List::Customers, company: CompanyId::new("a/b").ok() };
        for (collection, n) in [(&all, 1), (&one, 10), (&one, 9)] {
            apply(&mut stored, &collection.page(3, n), Some("{}")).unwrap();
        }

        let numbers: Vec<u64> = stored.lists.pages[&one].keys().copied().collect();
        assert_eq!((stored.lists.pages.len(), numbers), (2, vec![9, 10]));

        apply(&mut stored, &all.page(3, 1), None).unwrap();
        assert_eq!(stored.lists.pages.keys().collect::<Vec<_>>(), [&one]);
        apply(&mut stored, &one.page(4, 11), Some("{}")).unwrap();
        assert_eq!(stored.lists.pages[&one].len(), 2, "of another shard");
    }

    #[test]
    fn state_of_an_ended_or_unknown_run_is_left_over() {
        let mut stored = StoredState::default();
        let mut expected = Vec::new();
        for (run, state) in [("open", Some("running")), ("over", Some("ended")), ("unknown", None)] {
            let run = RunId::new(run).unwrap();
            let list = List::Customers;
            let collection =
                Collection { run: run.clone(), requested_at: 5, list, company: CompanyId::new("c").ok() };
            let again = (run.clone(), 5, AccountingResource::Charges);
            let written = Cursor { after: Some("k".to_owned()), vanished: 1, unreadable: 2, is_over: false };
            let over = Collection { list: List::Accounts, ..collection.clone() }.over(3);
            let void = collection.void(3);
            let keys = [collection.page(3, 0), collection.page(3, 1), over, void, cursor(3, &again)];
            for key in &keys[..4] {
                apply(&mut stored, key, Some("{}")).unwrap();
            }
            let value = String::from_utf8(json(&written).to_vec()).unwrap();
            apply(&mut stored, &keys[4], Some(&value)).unwrap();
            assert_eq!(stored.lists.cursors[&again], written);
            if let Some(state) = state {
                let progress = format!(
                    r#"{{"connector":"records","run":"{run}","shard":3,"state":"{state}","lists":0,"ended":0,"certified":0,
                        "pages":0,"rows":0,"published":0,"vanished":0,"startedAt":1,"updatedAt":1}}"#
                );
                apply(&mut stored, &RunProgress::key_of(3, "records", &run), Some(&progress)).unwrap();
            }
            if state != Some("running") {
                expected.extend(keys);
            }
        }

        let mut left = stored.take_left_over(3);

        left.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        expected.sort_by(|one: &Key, other| one.as_str().cmp(other.as_str()));
        assert_eq!(left, expected);
        let sizes = (
            stored.lists.pages.len(),
            stored.lists.over.len(),
            stored.lists.void.len(),
            stored.lists.cursors.len(),
        );
        assert_eq!(sizes, (1, 1, 1, 1));
        assert!(stored.take_left_over(3).is_empty());
    }

    #[test]
    fn pages_behind_rows_that_are_parked_are_read_again() {
        let run = RunId::new("r").unwrap();
        let of = |list, company: Option<&str>| Collection {
            run: run.clone(),
            requested_at: 5,
            list,
            company: company.map(|id| CompanyId::new(id).unwrap()),
        };
        let parked = |cause, origin: &str| {
            format!(
                r#"{{"inCompany":true,"cause":"{cause}","since":1,"due":2,
                    "event":{{"id":"e","receivedAt":1,"key":"","value":""{origin}}}}}"#
            )
        };
        let (row, open) = (
            r#","origin":"snapshot""#,
            r#"{"connector":"records","run":"r","shard":3,"state":"running",
            "lists":0,"ended":0,"certified":0,"pages":0,"rows":0,"published":0,"vanished":0,"startedAt":1,"updatedAt":1}"#,
        );
        for (cause, origin, is_hit) in
            [("listed", "", true), ("floor", row, true), ("below", row, false), ("floor", "", false)]
        {
            let mut stored = StoredState::default();
            apply(&mut stored, &RunProgress::key_of(3, "records", &run), Some(open)).unwrap();
            let own = of(List::Customers, Some("c"));
            let others =
                [of(List::Customers, Some("d")), of(List::Accounts, Some("c")), of(List::Payroll, None)];
            for collection in others.iter().chain([&own]) {
                for n in 0..3 {
                    apply(&mut stored, &collection.page(3, n), Some("{}")).unwrap();
                }
            }
            apply(
                &mut stored,
                &Key::shard_state("parked", 3, &["customers", "c", "r"]),
                Some(&parked(cause, origin)),
            )
            .unwrap();

            let left = stored.take_left_over(3);

            let pages: Vec<Key> = [1, 2].map(|n| own.page(3, n)).into_iter().filter(|_| is_hit).collect();
            assert_eq!(left, pages, "{cause} {origin}");
            let sizes: Vec<usize> = stored.lists.pages[&own].values().map(Bytes::len).collect();
            assert_eq!(
                sizes,
                if is_hit { [2, 0, 0] } else { [2; 3] },
                "counts stay, and how many pages there were"
            );
            assert!(others.iter().all(|one| stored.lists.pages[one].values().all(|page| page.len() == 2)));
        }
    }

    #[test]
    fn a_list_is_over_in_the_run_that_says_so_whatever_other_runs_have_proved_of_it() {
        let (mut stored, requested_at) = (StoredState::default(), 5);
        let [long, beside] = ["repair/h/x", "beside"].map(|id| RunId::new(id).unwrap());
        let company = CompanyId::new("a/b").ok();
        let all = Collection { run: long.clone(), requested_at, list: List::Companies, company: None };
        let one = Collection { run: long, requested_at, list: List::Customers, company };
        let other = Collection { run: beside, ..one.clone() };
        let earlier = Collection { requested_at: 4, ..one.clone() };
        for collection in [&all, &one, &other, &earlier] {
            apply(&mut stored, &collection.over(3), Some("{}")).unwrap();
        }
        apply(&mut stored, &one.over(4), None).unwrap();
        assert_eq!(stored.lists.over, HashSet::from([&all, &one, &other, &earlier].map(Clone::clone)));

        // The other run has ended, and so has the earlier one with the same id.
        apply(&mut stored, &other.over(3), None).unwrap();
        apply(&mut stored, &earlier.over(3), None).unwrap();

        assert_eq!(stored.lists.over, HashSet::from([all, one]));
        assert!(stored.lists.pages.is_empty(), "it is no page");
        assert!(
            apply(&mut stored, &Key::shard_state(OVER, 3, &["r", "x", "customers"]), Some("{}")).is_err()
        );
    }

    #[test]
    fn each_kind_reads_back_and_broken_records_are_reported() {
        let mut stored = StoredState::default();
        let charges = AccountingResource::Charges;
        let text = |value: Bytes| String::from_utf8(value.to_vec()).unwrap();
        let id = text(json(&BatchId { id: "b-1".into() }));
        apply(&mut stored, &batch(3), Some(&id)).unwrap();
        for grant in ["grant", "another"] {
            let value = text(json(&Path { grant: grant.into() }));
            apply(&mut stored, &path(3, charges), Some(&value)).unwrap();
        }
        apply(&mut stored, &brake(3, charges), Some(&text(json(&Brake { since: 5, count: 2 })))).unwrap();
        apply(&mut stored, &rebuild(3), Some("{}")).unwrap();
        apply(&mut stored, &probe(3, List::Customers), Some(&text(json(&Probe { thin: true })))).unwrap();
        // Earlier versions also wrote a time.
        let persons = AccountingResource::Persons;
        apply(&mut stored, &path(3, persons), Some(r#"{"grant":"grant","at":1}"#)).unwrap();
        apply(&mut stored, &probe(3, List::Accounts), Some(r#"{"thin":true,"at":7}"#)).unwrap();

        assert_eq!((stored.batch.as_deref(), stored.rebuilds), (Some("b-1"), true));
        assert_eq!(
            (&stored.paths[..], &stored.brakes[..]),
            (&[charges, persons][..], &[(charges, 5, 2)][..])
        );
        let probes = [List::Customers, List::Accounts].map(|list| stored.lists.probes[&list]);
        assert_eq!(probes, [Probe { thin: true }; 2]);
        assert!(apply(&mut stored, &batch(3), Some("{")).is_err());
        assert!(apply(&mut stored, &brake(3, charges), Some("{}")).is_err());
    }
}
