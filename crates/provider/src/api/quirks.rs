//! What a client learns about the provider by trying, where the documents are silent or disagree.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::AtomicU32},
};

use parking_lot::Mutex;
use tokio::{sync::OnceCell, time::Instant};

use model::{AccountingResource, CompanyId, RecordId};

use super::call::ApiCall;
use crate::auth::Access;

/// Endpoints and tokens to remember; the sets are cleared when they are full.
const MAX_REMEMBERED: usize = 1_024;

/// Learned behavior. It may be lost at any time and is then learned again.
#[derive(Debug, Default)]
pub struct Quirks {
    pub(super) facts: Mutex<Facts>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Whether the company list needs `context: none`. Two documents of the provider disagree.
    pub(super) none_for_companies: Option<bool>,
    /// Whether the payroll list rejects `OrderBy`.
    pub(super) refuses_order: bool,
    /// The index in [`ContextHeader::of_company`](super::address::ContextHeader::of_company) that last worked for reading a company by its
    /// id.
    pub(super) company_context: Option<usize>,
    /// When the by-id path of a resource last returned a record, with the company in its context and the record's id.
    pub(super) paths: BTreeMap<AccountingResource, (Instant, Option<CompanyId>, RecordId)>,
    /// Lists by path, as many as the product reads.
    lists: HashMap<String, Arc<PagedList>>,
    /// Hashes of tokens that were accepted at least once.
    good: HashSet<u64>,
    /// Hashes of endpoints (with company) that answered 401 to a token and to its replacement.
    refusing: HashSet<u64>,
}

/// A paged list.
#[derive(Debug, Default)]
pub(super) struct PagedList {
    /// The provider's number of its first page.
    pub(super) first_page: OnceCell<u32>,
    /// Rows of its longest page so far.
    pub(super) widest: AtomicU32,
}

impl Quirks {
    /// The list at a path.
    pub(super) fn list(&self, path: &str) -> Arc<PagedList> {
        Arc::clone(self.facts.lock().lists.entry(path.to_owned()).or_default())
    }

    /// Records that a call was accepted with this token.
    pub(super) fn answered(&self, call: &ApiCall<'_>, access: &Access) {
        let (place, token) = (self.place(call), self.token(access));
        let mut facts = self.facts.lock();
        facts.refusing.remove(&place);
        remember(&mut facts.good, token);
    }

    /// Records that a call was rejected with a token and with its replacement.
    pub(super) fn refused(&self, call: &ApiCall<'_>) {
        let place = self.place(call);
        remember(&mut self.facts.lock().refusing, place);
    }

    /// Whether a 401 is about permissions: the token works elsewhere, and this endpoint rejected a fresh token before.
    pub(super) fn is_for_lack_of_a_right(&self, call: &ApiCall<'_>, access: &Access) -> bool {
        let (place, token) = (self.place(call), self.token(access));
        let facts = self.facts.lock();
        facts.refusing.contains(&place) && facts.good.contains(&token)
    }

    fn place(&self, call: &ApiCall<'_>) -> u64 {
        self.hasher.hash_one((call.method.as_str(), &call.path, call.company()))
    }

    fn token(&self, access: &Access) -> u64 {
        self.hasher.hash_one(access.header.reveal())
    }
}

fn remember(set: &mut HashSet<u64>, one: u64) {
    if set.len() >= MAX_REMEMBERED && !set.contains(&one) {
        set.clear();
    }
    set.insert(one);
}
