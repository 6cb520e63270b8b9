//! Lists that span companies: one shard of a task reads them for all its shards.
//!
//! ```text
//! leader: the first shard of the task for which the list is not over
//!     requests the pages, proves the list, stores the marks of its pages
//!         │ Relayed: a page, and in the end the proof         ▲ FollowerReport: what is committed, settled, braked, over
//!         ▼ one channel per follower                          │ one channel
//! followers: the other shards; each publishes its own rows, counts them, and writes its own certificate
//! ```
//!
//! Followers report only what they have committed, and nothing of it is atomic with the leader's transactions. Order is enough:
//!
//! - The leader requests a page once all followers have committed the previous one and have room for the next. So at most one page of a
//!   list is in memory.
//! - It stores the mark of a page once all followers have settled it: their rows are published, or counted in a committed count, and
//!   all reads that thin rows requested have ended. So a mark that is found after a crash speaks for every shard of the task. A page
//!   without a mark is read again; rows that were published are no longer newer than their fence entry.
//! - It passes the proof on once all pages are marked: before, a crash would read pages again, and the proof would be another.
//! - It ends the list after all followers have: its end removes the marks, from which the next owner restores the proof for all shards.
//!   While all followers wait for an operator, so does its run.
//! - A change of the number of tasks changes which shards a task has. So a mark names that number, and a list with marks of another
//!   number is read from its first page again. Shards for which the list is over keep their certificates and take no part.
//! - If a record of any shard of the task has a version regression before the proof is passed on, none of them can certify the list. The
//!   leader keeps the mark of that too, because the follower may end first.
//!
//! Roles are dealt from the state when the task started: shards for which the list or its whole run was over take no part. All shards start
//! the oldest run first, so that some run always has all of them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use model::{Key, RunId};

use super::{
    super::state::{Collection, ListState},
    job::Offer,
    pages::Fetched,
};
use crate::records::proof::Reading;

/// The lists of one task that span companies, and who has which role.
#[derive(Debug)]
pub(in crate::records::task) struct SpanningLists {
    shards: Vec<i32>,
    roles: Mutex<Roles>,
}

#[derive(Debug, Default)]
struct Roles {
    /// Shards for which a list was over when the task started.
    over: HashSet<(Collection, i32)>,
    /// Runs that were over for a shard when the task started, with the time at which each was requested; 0 if that is unknown.
    over_runs: HashMap<(RunId, i32), i64>,
    /// Lists of which an earlier owner of the shards has marked pages.
    begun: HashSet<Collection>,
    /// Roles that their shards have not taken yet.
    dealt: HashMap<Collection, BTreeMap<i32, ListRole>>,
}

/// The part of a shard in reading a list.
#[derive(Debug)]
pub(super) enum ListRole {
    Leader(ListLeader),
    Follower(ListFollower),
}

/// The shard that reads. A list of one company has no followers.
#[derive(Debug, Default)]
pub(super) struct ListLeader {
    followers: BTreeMap<i32, FollowerState>,
    /// `None` while a request waits for the next report.
    reports: Option<UnboundedReceiver<FollowerReport>>,
    /// Number of the last page that it has passed on.
    relayed: u64,
    has_relayed_end: bool,
    /// Its run waits for an operator because all followers do.
    pub(super) is_paused: bool,
}

#[derive(Debug)]
struct FollowerState {
    relay: UnboundedSender<Relayed>,
    /// `None` until it has started the list.
    last: Option<FollowerReport>,
}

/// A shard that gets the pages of the leader.
#[derive(Debug)]
pub(super) struct ListFollower {
    /// `None` while a request waits for the next page.
    relayed: Option<UnboundedReceiver<Relayed>>,
    reports: UnboundedSender<FollowerReport>,
    /// Number of the last page that it has taken.
    taken: u64,
    last: Option<FollowerReport>,
    shard: i32,
}

/// What a follower has done. Numbers are those of the last such page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::records::task) struct FollowerReport {
    shard: i32,
    /// Its rows are committed, and the follower has room for the next page.
    ready: u64,
    /// Reads that they requested have ended too, and the counts of all are committed.
    settled: u64,
    /// A record of this shard had a version regression.
    is_void: bool,
    /// Too many known records are on no page: it waits for an operator.
    is_braked: bool,
    is_over: bool,
}

/// What the leader passes on.
#[derive(Debug, Clone)]
pub(in crate::records::task) enum Relayed {
    Page(Arc<RelayedPage>),
    End(Arc<ListEnd>),
}

/// A page as the leader has taken it.
#[derive(Debug)]
pub(in crate::records::task) struct RelayedPage {
    /// Its number in reading order, over all passes.
    pub(super) number: u64,
    pub(super) fetched: Arc<Fetched>,
    /// Whether rows show less than their records.
    pub(super) is_thin: bool,
    /// Rows that an earlier page has shown: a verification compares each record once.
    pub(super) shown: HashSet<Key>,
}

/// How the reading of a list has ended.
#[derive(Debug)]
pub(in crate::records::task) struct ListEnd {
    pub(super) reading: Arc<Reading>,
    pub(super) started_at: i64,
    /// Filter of the payroll list.
    pub(super) filter: Option<String>,
    pub(super) offer: Offer,
    pub(super) is_void: bool,
    /// When the last page was answered, in microseconds since 1970.
    pub(super) answered: i64,
}

impl SpanningLists {
    pub(in crate::records::task) fn new(shards: Vec<i32>) -> Self {
        Self { shards, roles: Mutex::default() }
    }

    /// Takes what the state topic has of a shard. All shards call it before the first list starts.
    pub(super) fn restore(&self, shard: i32, state: &ListState) {
        let mut roles = self.roles.lock();
        let is_spanning = |list: &&Collection| list.company.is_none();
        roles.over.extend(state.over.iter().filter(is_spanning).map(|list| (list.clone(), shard)));
        let over = state.progress.iter().filter(|(_, progress)| progress.state.is_over());
        roles.over_runs.extend(over.map(|(run, progress)| ((run.clone(), shard), progress.of.requested_at)));
        let begun = state.pages.iter().filter(|(_, pages)| pages.range(1..).next().is_some());
        roles.begun.extend(begun.map(|(list, _)| list).filter(is_spanning).cloned());
    }

    /// Lists of which an earlier owner of the shards has marked pages.
    pub(super) fn begun(&self) -> Vec<Collection> {
        self.roles.lock().begun.iter().cloned().collect()
    }

    /// The role of a shard in a list that it starts.
    pub(super) fn take_role(&self, list: &Collection, shard: i32) -> ListRole {
        if list.company.is_some() {
            return ListRole::default();
        }
        let roles = &mut *self.roles.lock();
        let members = self.members(roles, list);
        let dealt = roles.dealt.entry(list.clone()).or_insert_with(|| deal(&members));
        let role = dealt.remove(&shard);
        if dealt.is_empty() {
            roles.dealt.remove(list);
        }
        if role.is_none() {
            tracing::error!(shard, list = %list.list, run = %list.run, "a list was started twice, so this shard reads it alone");
        }
        role.unwrap_or_default()
    }

    /// Whether the shard reads a list itself.
    pub(super) fn leads(&self, list: &Collection, shard: i32) -> bool {
        list.company.is_some() || self.members(&self.roles.lock(), list).first() == Some(&shard)
    }

    /// The shards that take part in a list.
    fn members(&self, roles: &Roles, list: &Collection) -> Vec<i32> {
        let is_over = |shard: i32| {
            let run = roles.over_runs.get(&(list.run.clone(), shard));
            roles.over.contains(&(list.clone(), shard))
                || run.is_some_and(|requested_at| [0, list.requested_at].contains(requested_at))
        };
        self.shards.iter().copied().filter(|shard| !is_over(*shard)).collect()
    }

    /// Drops the roles of a stopped run that no shard has taken.
    pub(super) fn forget(&self, run: &RunId) {
        self.roles.lock().dealt.retain(|list, _| list.run != *run);
    }
}

/// Deals the roles: the first shard leads.
fn deal(members: &[i32]) -> BTreeMap<i32, ListRole> {
    let [first, others @ ..] = members else { return BTreeMap::new() };
    let (reports, reported) = unbounded_channel();
    let mut roles = BTreeMap::new();
    let mut followers = BTreeMap::new();
    for shard in others.iter().copied() {
        let (relay, relayed) = unbounded_channel();
        followers.insert(shard, FollowerState { relay, last: None });
        let (relayed, reports) = (Some(relayed), reports.clone());
        roles.insert(
            shard,
            ListRole::Follower(ListFollower { relayed, reports, taken: 0, last: None, shard }),
        );
    }
    let leader = ListLeader { followers, reports: Some(reported), ..ListLeader::default() };
    roles.insert(*first, ListRole::Leader(leader));
    roles
}

impl Default for ListRole {
    fn default() -> Self {
        Self::Leader(ListLeader::default())
    }
}

impl ListRole {
    pub(super) fn leader(&mut self) -> Option<&mut ListLeader> {
        match self {
            Self::Leader(leader) => Some(leader),
            Self::Follower(_) => None,
        }
    }

    pub(super) fn follower(&mut self) -> Option<&mut ListFollower> {
        match self {
            Self::Leader(_) => None,
            Self::Follower(follower) => Some(follower),
        }
    }

    /// Whether the next page may be requested. Only the leader requests pages.
    pub(super) fn may_request(&self) -> bool {
        match self {
            Self::Leader(leader) => leader.reports(|report| report.ready >= leader.relayed),
            Self::Follower(_) => false,
        }
    }

    /// Whether the mark of page `number` may be stored.
    pub(super) fn may_mark(&self, number: u64) -> bool {
        match self {
            Self::Leader(leader) => leader.reports(|report| report.settled >= number),
            Self::Follower(_) => false,
        }
    }

    /// Whether the reading has its final verdict, which followers have too.
    pub(super) fn has_verdict(&self) -> bool {
        match self {
            Self::Leader(leader) => leader.has_relayed_end || !leader.has_followers(),
            Self::Follower(_) => true,
        }
    }

    /// Whether the list may end in this shard.
    pub(super) fn may_end(&self) -> bool {
        match self {
            Self::Leader(leader) => leader.reports(|report| report.is_over),
            Self::Follower(_) => true,
        }
    }
}

impl ListLeader {
    pub(super) fn has_followers(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Whether the last reports of all followers say so.
    fn reports(&self, says: impl Fn(&FollowerReport) -> bool) -> bool {
        self.followers.values().all(|follower| follower.last.as_ref().is_some_and(&says))
    }

    /// What the first follower that is behind has not done yet, for operators.
    pub(super) fn waits_for(&self, is_read: bool) -> Option<String> {
        self.followers.iter().find_map(|(shard, follower)| {
            let what = match follower.last {
                None => "has not started the list",
                Some(report) if report.is_over => return None,
                Some(report) if report.ready < self.relayed => "has not written its rows of the last page",
                Some(report) if report.settled < self.relayed => "waits for records of its rows",
                Some(_) if is_read => "has not ended the list",
                Some(_) => return None,
            };
            Some(format!("shard {shard} {what}"))
        })
    }

    /// Whether a record of a follower had a version regression.
    pub(super) fn is_void(&self) -> bool {
        self.followers.values().any(|follower| follower.last.is_some_and(|report| report.is_void))
    }

    /// Whether all followers that have not ended wait for an operator.
    pub(super) fn is_braked(&self) -> bool {
        let open = || self.followers.values().filter(|one| one.last.is_none_or(|report| !report.is_over));
        open().next().is_some() && open().all(|one| one.last.is_some_and(|report| report.is_braked))
    }

    /// Passes a page on.
    pub(super) fn relay(&mut self, page: &Arc<RelayedPage>) {
        self.relayed = page.number;
        self.send(&Relayed::Page(Arc::clone(page)));
    }

    fn send(&self, relayed: &Relayed) {
        for follower in self.followers.values() {
            // A follower that has stopped reads no more.
            follower.relay.send(relayed.clone()).ok();
        }
    }

    /// Passes the end of the reading on, once.
    pub(super) fn relay_end(&mut self, end: impl FnOnce() -> Option<ListEnd>) {
        if self.has_followers()
            && !self.has_relayed_end
            && self.reports(|_| true)
            && let Some(end) = end()
        {
            self.has_relayed_end = true;
            self.send(&Relayed::End(Arc::new(end)));
        }
    }

    /// Takes the channel of reports, to wait for the next one.
    pub(super) fn take_reports(&mut self) -> Option<UnboundedReceiver<FollowerReport>> {
        self.reports.take_if(|_| !self.followers.is_empty())
    }

    /// Takes a report, and those that came after it.
    pub(super) fn reported(&mut self, mut reports: UnboundedReceiver<FollowerReport>, first: FollowerReport) {
        let mut next = Some(first);
        while let Some(report) = next {
            if let Some(follower) = self.followers.get_mut(&report.shard) {
                follower.last = Some(report);
            }
            next = reports.try_recv().ok();
        }
        self.reports = Some(reports);
    }
}

impl ListFollower {
    /// Takes the channel of pages, to wait for the next one.
    pub(super) fn take_relayed(&mut self) -> Option<UnboundedReceiver<Relayed>> {
        self.relayed.take()
    }

    /// Notes a page, and puts the channel back.
    pub(super) fn note_page(&mut self, number: u64, relayed: UnboundedReceiver<Relayed>) {
        (self.taken, self.relayed) = (number, Some(relayed));
    }

    /// Reports that everything so far is committed and the next page may come; at first, that this shard has started the list.
    pub(super) fn report_ready(&mut self, is_void: bool) {
        let none = FollowerReport {
            shard: self.shard,
            ready: 0,
            settled: 0,
            is_void,
            is_braked: false,
            is_over: false,
        };
        let report = FollowerReport { ready: self.taken, is_void, ..self.last.unwrap_or(none) };
        self.send(report);
    }

    /// Reports what has changed since the last report, once the list has started.
    pub(super) fn report(&mut self, is_settled: bool, is_void: bool, is_braked: bool, is_over: bool) {
        let Some(last) = self.last else { return };
        let settled = if is_settled { self.taken } else { last.settled };
        self.send(FollowerReport { settled, is_void, is_braked, is_over, ..last });
    }

    fn send(&mut self, report: FollowerReport) {
        if self.last != Some(report) {
            self.last = Some(report);
            // A leader that has stopped reads no more.
            self.reports.send(report).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use model::{List, RunProgress};

    use super::*;
    use crate::records::proof::Seen;

    fn list(list: List) -> Collection {
        Collection { run: RunId::new("r").unwrap(), requested_at: 5, list, company: None }
    }

    /// The state of a shard of which these lists are over; `run` is the state of the run.
    fn state(over: &[Collection], run: &str, requested_at: i64) -> ListState {
        let progress: RunProgress = serde_json::from_value(serde_json::json!({
            "connector": "records", "run": "r", "shard": 1, "state": run, "requestedAt": requested_at, "lists": 0, "ended": 0,
            "certified": 0, "pages": 0, "rows": 0, "published": 0, "vanished": 0, "startedAt": 1, "updatedAt": 1,
        }))
        .unwrap();
        let progress = BTreeMap::from([(progress.of.run.clone(), progress)]);
        ListState { over: over.iter().cloned().collect(), progress, ..ListState::default() }
    }

    fn roles(lists: &SpanningLists, of: &Collection, shards: &[i32]) -> (Vec<i32>, Vec<i32>) {
        shards.iter().partition(|shard| {
            let is_leader = lists.leads(of, **shard);
            assert_eq!(is_leader, lists.take_role(of, **shard).leader().is_some());
            is_leader
        })
    }

    #[test]
    fn the_first_shard_for_which_a_list_is_not_over_leads() {
        let payroll = list(List::Payroll);
        let cases = [
            (vec![], (vec![1], vec![5, 9])),
            (vec![(1, state(std::slice::from_ref(&payroll), "running", 5))], (vec![5], vec![9])),
            (vec![(1, state(&[], "ended", 5))], (vec![5], vec![9])),
            // The version before did not say when the run was requested.
            (vec![(1, state(&[], "ended", 0))], (vec![5], vec![9])),
            // An earlier run with the same id.
            (vec![(1, state(&[], "ended", 4))], (vec![1], vec![5, 9])),
            (vec![(5, state(&[], "stopped", 5)), (9, state(&[], "ended", 5))], (vec![1], vec![])),
        ];
        for (states, expected) in cases {
            let lists = SpanningLists::new(vec![1, 5, 9]);
            states.iter().for_each(|(shard, state)| lists.restore(*shard, state));
            let members: Vec<i32> = [&expected.0[..], &expected.1].concat();

            assert_eq!(roles(&lists, &payroll, &members), expected, "{states:?}");
            assert!(lists.roles.lock().dealt.is_empty());
        }
    }

    #[test]
    fn a_leader_waits_until_every_follower_has_done_what_comes_first() {
        let lists = SpanningLists::new(vec![0, 1, 2]);
        let [mut leader, mut one, mut other] =
            [0, 1, 2].map(|shard| lists.take_role(&list(List::Companies), shard));
        let page = |number| {
            let fetched = Arc::new(Fetched::without_rows(Seen::unreadable(1, 10, "", 0)));
            Arc::new(RelayedPage { number, fetched, is_thin: false, shown: HashSet::new() })
        };
        let take = |leader: &mut ListRole| {
            let leader = leader.leader().unwrap();
            let mut reports = leader.take_reports().unwrap();
            let first = reports.try_recv().unwrap();
            leader.reported(reports, first);
        };
        assert!(!leader.may_request(), "no follower has started the list");
        one.follower().unwrap().report_ready(false);
        take(&mut leader);
        assert!(!leader.may_request());
        other.follower().unwrap().report_ready(false);
        take(&mut leader);
        assert!(leader.may_request());

        // An earlier owner has marked six pages.
        leader.leader().unwrap().relay(&page(7));
        assert!(!leader.may_request() && !leader.may_mark(7));
        for follower in [&mut one, &mut other] {
            let follower = follower.follower().unwrap();
            let mut relayed = follower.take_relayed().unwrap();
            let Ok(Relayed::Page(page)) = relayed.try_recv() else { panic!("no page") };
            follower.note_page(page.number, relayed);
            follower.report_ready(false);
        }
        take(&mut leader);
        assert!(leader.may_request() && !leader.may_mark(7), "reads that rows asked for are open");

        one.follower().unwrap().report(true, false, false, false);
        take(&mut leader);
        let why = leader.leader().unwrap().waits_for(false);
        assert_eq!(
            (leader.may_mark(7), why.as_deref()),
            (false, Some("shard 2 waits for records of its rows"))
        );
        other.follower().unwrap().report(true, true, false, false);
        take(&mut leader);
        assert!(leader.may_mark(7) && !leader.may_end());
        assert!(leader.leader().unwrap().is_void() && !leader.leader().unwrap().is_braked());

        one.follower().unwrap().report(true, false, false, true);
        other.follower().unwrap().report(true, true, true, false);
        take(&mut leader);
        assert!(!leader.may_end() && leader.leader().unwrap().is_braked(), "all others wait");
        other.follower().unwrap().report(true, true, false, true);
        take(&mut leader);
        assert!(leader.may_end() && !leader.leader().unwrap().is_braked());
    }

    #[test]
    fn marks_of_another_number_of_tasks_say_nothing_of_the_shards_of_this_one() {
        let seen = Seen::unreadable(1, 10, "", 0);
        for (written, read, is_fit) in [
            (Some(2), Some(2), true),
            (Some(2), Some(3), false),
            // Each shard read the list itself.
            (None, Some(2), false),
            // No other shard needs the list.
            (Some(2), None, true),
            (None, None, true),
        ] {
            let value: Bytes = super::super::super::state::mark(&seen, written);

            let found = super::super::super::state::parse_mark(&value, read);

            assert_eq!(found.is_ok(), is_fit, "{written:?} {read:?}");
            assert!(found.is_err() || found == Ok(seen.clone()));
        }
    }
}
