//! What a client has learned about the provider by trying, where documents are silent or disagree.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::AtomicU32},
};

use parking_lot::Mutex;
use tokio::{sync::OnceCell, time::Instant};

use model::{AccountingResource, CompanyId, RecordId};

use super::call::Call;
use crate::auth::Access;

/// Endpoints and tokens that are remembered; beyond that it begins anew.
const MAX_REMEMBERED: usize = 1_024;

/// What has been learned. All of it may be forgotten at any time: then it is learned again.
#[derive(Debug, Default)]
pub struct Quirks {
    pub(super) facts: Mutex<Facts>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Whether the company list wants `context: none`. Two documents of the provider disagree.
    pub(super) none_for_companies: Option<bool>,
    /// Whether the payroll list refuses `OrderBy`.
    pub(super) refuses_order: bool,
    /// Which of [`Context::of_company`](super::address::Context::of_company) a read of a company by its id was answered with.
    pub(super) company_context: Option<usize>,
    /// When the by-id path of a resource last answered with a record, and which, in the context of which company.
    pub(super) paths: BTreeMap<AccountingResource, (Instant, Option<CompanyId>, RecordId)>,
    /// Lists by path. There are as many as the product reads.
    lists: HashMap<String, Arc<List>>,
    /// Tokens that something was answered with.
    good: HashSet<u64>,
    /// Endpoints, and companies at them, that answered 401 to a token and to its successor.
    refusing: HashSet<u64>,
}

/// A list that is read page by page.
#[derive(Debug, Default)]
pub(super) struct List {
    /// The number of its first page.
    pub(super) first_page: OnceCell<u32>,
    /// Rows of its longest page so far.
    pub(super) widest: AtomicU32,
}

impl Quirks {
    /// What is known about a list, by its path.
    pub(super) fn list(&self, path: &str) -> Arc<List> {
        Arc::clone(self.facts.lock().lists.entry(path.to_owned()).or_default())
    }

    /// A call was answered.
    pub(super) fn answered(&self, call: &Call<'_>, access: &Access) {
        let (place, token) = (self.place(call), self.token(access));
        let mut facts = self.facts.lock();
        facts.refusing.remove(&place);
        remember(&mut facts.good, token);
    }

    /// A call was refused with a token and with its successor.
    pub(super) fn refused(&self, call: &Call<'_>) {
        let place = self.place(call);
        remember(&mut self.facts.lock().refusing, place);
    }

    /// Whether a refusal is not about the token: other calls were answered with it, and this one has refused a fresh one before.
    pub(super) fn is_for_lack_of_a_right(&self, call: &Call<'_>, access: &Access) -> bool {
        let (place, token) = (self.place(call), self.token(access));
        let facts = self.facts.lock();
        facts.refusing.contains(&place) && facts.good.contains(&token)
    }

    fn place(&self, call: &Call<'_>) -> u64 {
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
