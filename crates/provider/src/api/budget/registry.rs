//! All budgets of a process, and the rates that connectors request for each.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use url::Url;

use base::{metrics, secret::Secret};

use super::{Budget, Rates, SharedBudget};

/// Base URL, and digest of the subscription key.
type BudgetKey = (String, [u8; 32]);

/// The budgets of a process: one for each address and key.
#[derive(Debug, Default)]
pub struct Budgets(Mutex<HashMap<BudgetKey, Weak<SharedBudget>>>);

/// A user of a budget. Its requested rates end with it.
#[derive(Debug)]
pub(super) struct Registration {
    shared: Arc<SharedBudget>,
    number: u64,
}

impl Budgets {
    /// The budget for an address and key. Requested rates combine to the larger values, because the provider sees one caller;
    /// `None` requests nothing, and the defaults apply if all do. A request counts until the returned budget and its clones are
    /// dropped, so shared objects, such as a client, use a budget with `None`.
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

    /// Sets the gauge for a scrape: the smallest used part of a rate among all budgets.
    pub fn measure(&self) {
        let budgets = self.0.lock();
        let ratios = budgets
            .values()
            .filter_map(Weak::upgrade)
            .map(|shared| shared.state.lock().application.adaptive.ratio());
        metrics::api_budget_ratio(ratios.fold(1.0, f64::min));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.state.lock().leave(self.number);
        self.shared.changed.notify_one();
    }
}
