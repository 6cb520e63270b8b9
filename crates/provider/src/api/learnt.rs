//! What a client has learnt about the provider by trying, where documents are silent or disagree.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use model::{AccountingResource, CompanyId, RecordId};

use super::call::Call;
use crate::auth::Access;

/// Endpoints and tokens that are remembered; beyond that it begins anew.
const MOST_REMEMBERED: usize = 1_024;

/// What has been learnt. All of it may be forgotten at any time: then it is learnt again.
#[derive(Debug, Default)]
pub struct Learnt {
    inner: Mutex<Inner>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Inner {
    /// Whether the company list wants `context: none`. Two documents of the provider disagree.
    none_for_companies: Option<bool>,
    /// The number of the first page of a list, by its path. There are as many as the product reads lists.
    first_pages: HashMap<String, u32>,
    /// Locks, by path: one call at a time probes for that number.
    finding: HashMap<String, Arc<AsyncMutex<()>>>,
    /// Rows of the longest page of each of these lists.
    widest: HashMap<String, u32>,
    /// Whether the payroll list refuses `OrderBy`.
    refuses_order: bool,
    /// Which of the forms of `context` a read of a company by its id was answered with.
    company_context: Option<usize>,
    /// When the by-id path of a resource last answered with a record, and which, in the context of which company.
    paths: BTreeMap<AccountingResource, (Instant, Option<CompanyId>, RecordId)>,
    /// Tokens that something was answered with.
    good: HashSet<u64>,
    /// Endpoints, and companies at them, that answered 401 to a token and to its successor.
    refusing: HashSet<u64>,
}

impl Learnt {
    /// Whether the company list wants `context: none`, if that is known.
    pub(super) fn none_for_companies(&self) -> Option<bool> {
        self.lock().none_for_companies
    }

    /// The company list was answered with `context: none`, or without.
    pub(super) fn companies_want(&self, none: bool) {
        self.lock().none_for_companies = Some(none);
    }

    /// The number of the first page of a list, if that is known.
    pub(super) fn first_page(&self, path: &str) -> Option<u32> {
        self.lock().first_pages.get(path).copied()
    }

    /// The lock under which the number of the first page of a list is probed for.
    pub(super) fn finding(&self, path: &str) -> Arc<AsyncMutex<()>> {
        Arc::clone(self.lock().finding.entry(path.to_owned()).or_default())
    }

    /// The pages of a list begin with this number.
    pub(super) fn pages_begin_at(&self, path: &str, number: u32) {
        self.lock().first_pages.insert(path.to_owned(), number);
    }

    /// A list has shown a page of so many rows; what its longest page has.
    pub(super) fn widest(&self, path: &str, rows: u32) -> u32 {
        let mut inner = self.lock();
        let widest = inner.widest.entry(path.to_owned()).or_default();
        *widest = rows.max(*widest);
        *widest
    }

    /// Whether the payroll list was answered without `OrderBy` after it had refused it.
    pub(super) fn refuses_order(&self) -> bool {
        self.lock().refuses_order
    }

    /// The payroll list was answered without `OrderBy`, which it refuses.
    pub(super) fn order_is_refused(&self) {
        self.lock().refuses_order = true;
    }

    /// Which of [`Context::of_company`](super::address::Context::of_company) a read of a company by its id wants, if that is known.
    pub(super) fn company_context(&self) -> Option<usize> {
        self.lock().company_context
    }

    /// A read of a company by its id was answered with this form.
    pub(super) fn company_wants(&self, form: usize) {
        self.lock().company_context = Some(form);
    }

    /// When the by-id path of a resource last answered with a record; `None` where it never did.
    pub(super) fn path_answered_at(&self, resource: AccountingResource) -> Option<Instant> {
        self.lock().paths.get(&resource).map(|(at, ..)| *at)
    }

    /// The record that the by-id path of a resource last answered with, and its company.
    pub(super) fn last_record(&self, resource: AccountingResource) -> Option<(Option<CompanyId>, RecordId)> {
        self.lock().paths.get(&resource).map(|(_, company, id)| (company.clone(), id.clone()))
    }

    /// The by-id path of a resource has answered with this record.
    pub(super) fn path_answered(
        &self,
        resource: AccountingResource,
        company: Option<&CompanyId>,
        id: &RecordId,
    ) {
        self.lock().paths.insert(resource, (Instant::now(), company.cloned(), id.clone()));
    }

    /// A call was answered.
    pub(super) fn answered(&self, call: &Call<'_>, access: &Access) {
        let (place, token) = (self.place(call), self.token(access));
        let mut inner = self.lock();
        inner.refusing.remove(&place);
        remember(&mut inner.good, token);
    }

    /// A call was refused with a token and with its successor.
    pub(super) fn refused(&self, call: &Call<'_>) {
        let place = self.place(call);
        remember(&mut self.lock().refusing, place);
    }

    /// Whether a refusal is not about the token: other calls were answered with it, and this one has refused a fresh one before.
    pub(super) fn is_for_lack_of_a_right(&self, call: &Call<'_>, access: &Access) -> bool {
        let (place, token) = (self.place(call), self.token(access));
        let inner = self.lock();
        inner.refusing.contains(&place) && inner.good.contains(&token)
    }

    fn place(&self, call: &Call<'_>) -> u64 {
        self.hasher.hash_one((call.method.as_str(), &call.path, call.company()))
    }

    fn token(&self, access: &Access) -> u64 {
        self.hasher.hash_one(access.header.reveal())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember(set: &mut HashSet<u64>, one: u64) {
    if set.len() >= MOST_REMEMBERED && !set.contains(&one) {
        set.clear();
    }
    set.insert(one);
}
