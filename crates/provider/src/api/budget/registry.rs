//! The budgets of a process, and who wants how much of each.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use url::Url;

use base::{metrics, secret::Secret};

use super::{Budget, Rates, SharedBudget};

/// An address, and a key by its digest.
type BudgetKey = (String, [u8; 32]);

/// The budgets of a process: one for each address and key.
#[derive(Debug, Default)]
pub struct Budgets(Mutex<HashMap<BudgetKey, Weak<SharedBudget>>>);

/// Somebody who uses a budget; his wishes go with him.
#[derive(Debug)]
pub(super) struct Registration {
    shared: Arc<SharedBudget>,
    number: u64,
}

impl Budgets {
    /// The budget for an address and key. Of several wishes for one the larger count, since the provider sees one caller; who
    /// has no wish leaves it to the others, and to the defaults where nobody has one. A wish counts for as long as what is
    /// returned, or a clone of it, is kept: what several share, such as a client, is made with a budget without one.
    pub fn of(&self, base_url: &Url, key: &Secret, rates: Option<Rates>) -> Budget {
        let name: BudgetKey = (base_url.as_str().to_owned(), Sha256::digest(key.reveal()).into());
        let mut budgets = self.0.lock();
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let known = budgets.get(&name).and_then(Weak::upgrade);
        let shared = known.unwrap_or_else(|| {
            let shared = SharedBudget::new(rates.unwrap_or_default());
            budgets.insert(name, Arc::downgrade(&shared));
            shared
        });
        let number = shared.state.lock().register(rates);
        shared.changed.notify_one();
        let registration = Registration { shared: Arc::clone(&shared), number };
        Budget { shared, _registration: Some(Arc::new(registration)) }
    }

    /// Sets the gauge of all budgets, for a scrape: the smallest part of a rate that is used.
    pub fn measure(&self) {
        let budgets = self.0.lock();
        let ratios =
            budgets.values().filter_map(Weak::upgrade).map(|shared| shared.state.lock().adaptive.ratio());
        metrics::api_budget_ratio(ratios.fold(1.0, f64::min));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.state.lock().leave(self.number);
        self.shared.changed.notify_one();
    }
}
