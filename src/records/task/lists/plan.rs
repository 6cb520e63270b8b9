//! Which companies' lists a run reads in this shard, and whether there may be more companies.
//!
//! Companies come from three sources: the run or the configuration names them, the directory shows them, or the run's own list of
//! companies shows them, page by page. The first source that has a company plans its lists. Companies from the run's own list are
//! stored until the run ends: after a crash its pages are not read again, and the directory may show less by then.
//!
//! The plan is complete once the directory has been read to its end and the run's own list has ended. If the directory cannot be read
//! to its end, the run continues with the companies that it knows. At its end it reports that, unless its own list is certified:
//! then the lists of every listed company have been planned.

use std::collections::HashSet;

use model::{CompanyId, List, Run, RunId, RunKind};

use super::super::state::Collection;

/// The companies of a run whose lists are planned.
#[derive(Debug)]
pub(super) struct Plan {
    run: RunId,
    asked_at: i64,
    /// Lists to read of each company.
    lists: Vec<List>,
    /// Whether the run reads all companies, and not only named ones.
    is_of_all: bool,
    /// Companies whose lists are planned.
    planned: HashSet<CompanyId>,
    /// Companies that the run's own list has shown.
    shown: HashSet<CompanyId>,
    /// No more companies will come from the directory.
    is_settled: bool,
    /// Why there may be unknown companies.
    unknown: Option<String>,
}

impl Plan {
    /// A plan without companies. `lists` are the lists of the run that this connector publishes.
    pub(super) fn new(run: &Run, lists: &[List], is_of_all: bool) -> Self {
        let lists: Vec<List> = lists.iter().copied().filter(|list| !list.spans_companies()).collect();
        Self {
            run: run.id.clone(),
            asked_at: run.requested_at,
            is_settled: lists.is_empty(),
            lists,
            is_of_all,
            planned: HashSet::new(),
            shown: HashSet::new(),
            unknown: None,
        }
    }

    /// Whether a run reads all companies. `configured`: the configuration names companies.
    pub(super) fn is_of_all(run: &Run, configured: bool) -> bool {
        // A gap may affect every company whose events are read, not only the configured ones.
        run.companies.is_none() && (!configured || run.kind == RunKind::Repair)
    }

    /// Adds companies. Returns their lists that were not planned yet, company by company, so that the lists of one company end early.
    pub(super) fn add(&mut self, companies: impl IntoIterator<Item = CompanyId>) -> Vec<Collection> {
        let mut found = Vec::new();
        for company in companies {
            if self.lists.is_empty() || !self.planned.insert(company.clone()) {
                continue;
            }
            found.extend(self.lists.iter().map(|list| self.collection(*list, Some(company.clone()))));
        }
        found
    }

    /// Adds a company that the run's own list shows. Returns whether it is new and has to be stored.
    pub(super) fn show(&mut self, company: &CompanyId) -> bool {
        self.is_of_all && !self.lists.is_empty() && self.shown.insert(company.clone())
    }

    /// The stored marks of all shown companies.
    pub(super) fn kept(&self) -> impl Iterator<Item = Collection> {
        self.shown.iter().map(|company| self.shown_as(company))
    }

    /// The stored mark of a shown company. Its key looks like a list of the company that has page 0 only.
    pub(super) fn shown_as(&self, company: &CompanyId) -> Collection {
        self.collection(List::Companies, Some(company.clone()))
    }

    /// The company of a mark, if the mark is of this run.
    pub(super) fn shown_in(&self, kept: &Collection) -> Option<CompanyId> {
        let is_own = (&kept.run, kept.asked_at, kept.list) == (&self.run, self.asked_at, List::Companies);
        kept.company.clone().filter(|_| is_own)
    }

    /// Completes the plan; `unknown` says why there may be unknown companies.
    pub(super) fn settle(&mut self, unknown: Option<String>) {
        (self.is_settled, self.unknown) = (true, unknown);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Why there may be companies whose lists were not read; `None` if the run's own list of companies is certified.
    pub(super) fn unknown(&self, is_proved: bool) -> Option<&str> {
        self.unknown.as_deref().filter(|_| !is_proved)
    }

    pub(super) fn collection(&self, list: List, company: Option<CompanyId>) -> Collection {
        Collection { run: self.run.clone(), asked_at: self.asked_at, list, company }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: RunKind, companies: Option<&[&str]>) -> Run {
        serde_json::from_value(serde_json::json!({
            "connector": "records", "id": "r", "kind": kind.name(), "lists": ["companies", "customers", "accounts"],
            "companies": companies, "requestedBy": "test", "requestedAt": 1,
        }))
        .unwrap()
    }

    fn company(id: &str) -> CompanyId {
        CompanyId::new(id).unwrap()
    }

    fn plan(lists: &[List]) -> Plan {
        Plan::new(&run(RunKind::Snapshot, None), lists, true)
    }

    #[test]
    fn lists_of_a_company_are_planned_once() {
        let mut plan = plan(&List::ALL);

        let first = plan.add([company("a")]);
        let rest = plan.add([company("a"), company("b")]);

        let names = |found: Vec<Collection>| -> Vec<(String, List)> {
            found.into_iter().map(|one| (one.company.unwrap().to_string(), one.list)).collect()
        };
        let both = |id: &str| vec![(id.to_owned(), List::Customers), (id.to_owned(), List::Accounts)];
        assert_eq!((names(first), names(rest)), (both("a"), both("b")));
    }

    #[test]
    fn a_run_waits_for_companies_only_where_it_reads_lists_of_theirs() {
        assert!(plan(&[List::Companies, List::Payroll]).is_settled());

        let mut plan = plan(&List::ALL);
        assert!(!plan.is_settled());
        plan.settle(Some("it is empty".to_owned()));
        assert_eq!((plan.is_settled(), plan.unknown(false)), (true, Some("it is empty")));
    }

    #[test]
    fn a_proved_list_of_companies_leaves_nothing_unknown_and_ends_no_waiting() {
        let mut plan = plan(&List::ALL);
        assert_eq!(plan.unknown(true), None);
        assert!(!plan.is_settled(), "the directory may know of companies that an empty list does not show");

        plan.settle(Some("it repeats itself".to_owned()));
        assert_eq!((plan.is_settled(), plan.unknown(true)), (true, None));
        assert_eq!(plan.unknown(false), Some("it repeats itself"));
    }

    #[test]
    fn where_companies_were_named_no_other_is_read() {
        let mut plan = Plan::new(&run(RunKind::Snapshot, Some(&["a"])), &List::ALL, false);

        assert!(!plan.show(&company("b")));
        for (kind, named, configured, is_of_all) in [
            (RunKind::Snapshot, None, false, true),
            (RunKind::Snapshot, None, true, false),
            (RunKind::Repair, None, true, true),
            (RunKind::Repair, Some(&["a"][..]), false, false),
        ] {
            assert_eq!(Plan::is_of_all(&run(kind, named), configured), is_of_all, "{kind:?} {named:?}");
        }
    }

    #[test]
    fn shown_companies_are_restored_for_their_run_only() {
        let mut plan = plan(&List::ALL);
        assert!(plan.show(&company("a/b")) && !plan.show(&company("a/b")));

        let kept: Vec<Collection> = plan.kept().collect();

        assert_eq!(kept.len(), 1);
        assert_eq!(plan.shown_in(&kept[0]), Some(company("a/b")));
        assert_eq!(plan.shown_in(&plan.collection(List::Companies, None)), None, "the list itself");
        assert_eq!(plan.shown_in(&plan.collection(List::Customers, Some(company("c")))), None, "a list");
        let other = Collection { asked_at: 2, ..kept[0].clone() };
        assert_eq!(plan.shown_in(&other), None, "of an earlier run of that name");
    }
}
