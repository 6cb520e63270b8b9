use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::*;
use crate::{
    config::samples::record_config,
    config::{Connector, Providers},
};

/// Access, and the names of the existing connectors.
fn access(connectors: &[&str]) -> (ApiAccess, Arc<Mutex<BTreeSet<String>>>) {
    let there: BTreeSet<String> = connectors.iter().map(|name| (*name).to_owned()).collect();
    let there = Arc::new(Mutex::new(there));
    let looked = Arc::clone(&there);
    let hosts = Arc::new(IdentityHosts::new(Duration::from_secs(300)));
    let access = ApiAccess::new(Grants::default(), hosts, move |name| looked.lock().contains(name));
    (access, there)
}

/// A provider with some settings changed.
fn provider(changes: &[(&str, &str)]) -> Provider {
    let mut config = record_config();
    for (key, value) in changes {
        config.insert((*key).to_owned(), (*value).to_owned());
    }
    match Connector::parse("c", &config, &Providers::new([])).unwrap().0 {
        Connector::RecordSource(source) => source.provider,
        Connector::WebhookSource(_) => unreachable!("it is a RecordSource"),
    }
}

fn clients(access: &ApiAccess) -> usize {
    access.0.state.lock().clients.len()
}

fn budgets(access: &ApiAccess) -> Vec<Budget> {
    access.0.state.lock().clients.values().map(|shared| shared.budget.clone()).collect()
}

#[tokio::test]
async fn connectors_share_clients_by_settings_and_budgets_by_key() {
    let (access, _) = access(&["a", "b", "c", "d"]);
    let slow = provider(&[("provider.read.timeout.ms", "20000")]);
    let stranger = provider(&[("provider.subscription.key", "another-key-of-a-stranger")]);
    let usual = provider(&[]);

    access.accounting(&ApiUser::new("a", &usual)).unwrap();
    access.payroll(&ApiUser::new("b", &usual)).unwrap();
    assert_eq!(clients(&access), 1);
    access.accounting(&ApiUser::new("c", &slow)).unwrap();
    assert_eq!(clients(&access), 2);
    let [one, other] = budgets(&access).try_into().unwrap();
    assert!(one.is_same(&other), "the provider counts by key");
    access.accounting(&ApiUser::new("d", &stranger)).unwrap();

    let all = budgets(&access);
    assert_eq!(all.len(), 3);
    assert_eq!(all.iter().filter(|budget| budget.is_same(&one)).count(), 2, "another key has another budget");
}

#[tokio::test]
async fn client_is_dropped_with_its_last_connector() {
    let (access, there) = access(&["a", "b"]);
    let usual = provider(&[]);
    access.accounting(&ApiUser::new("a", &usual)).unwrap();
    access.accounting(&ApiUser::new("b", &usual)).unwrap();

    there.lock().remove("a");
    access.measure();
    assert_eq!(clients(&access), 1, "b still uses it");
    let elsewhere = provider(&[("provider.base.url", "https://other.example.com")]);
    access.accounting(&ApiUser::new("b", &elsewhere)).unwrap();
    let urls: Vec<String> = access.0.state.lock().clients.keys().map(|key| key.base_url.clone()).collect();
    assert_eq!(urls, ["https://other.example.com/"], "a connector has one at a time");
    there.lock().remove("b");
    access.measure();

    assert_eq!(clients(&access), 0);
}

#[tokio::test]
async fn worker_share_applies_to_existing_and_later_budgets() {
    let (access, _) = access(&["a", "b"]);
    let (early, late) = (provider(&[]), provider(&[("provider.subscription.key", "another-key")]));
    let rates = Some(Rates { application: 1.0, company: 1.0, ..Rates::default() });
    let ask = |provider, connector| ApiUser { rates, ..ApiUser::new(connector, provider) };
    access.accounting(&ask(&early, "a")).unwrap();
    let (owned, watched) = watch::channel(OwnedPartitions::default());
    let cancel = CancellationToken::new();
    let running = tokio::spawn(access.clone().run(watched, 4, cancel.clone()));

    // Partition 4 is beyond the placed ones and carries nothing.
    owned.send_replace(Arc::new([(0, 7), (3, 7), (4, 7)].into_iter().collect()));
    let half = async {
        while access.0.state.lock().share != 0.5 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), half).await.unwrap();
    access.accounting(&ask(&late, "b")).unwrap();

    for budget in budgets(&access) {
        assert!(budget.status().rate <= 0.5, "{}", budget.status().rate);
    }
    owned.send_replace(OwnedPartitions::default());
    let least = async {
        while access.0.state.lock().share != 0.25 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), least).await.unwrap();
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn rates_of_a_connector_count_while_it_exists() {
    let (access, there) = access(&["a", "b"]);
    let usual = provider(&[]);
    let setting = |connector, application| {
        let rates = Some(Rates { application, company: 1.0, ..Rates::default() });
        access.accounting(&ApiUser { rates, ..ApiUser::new(connector, &usual) }).unwrap();
        budgets(&access)[0].status().setting
    };

    assert_eq!((setting("a", 50.0), setting("b", 5.0)), (50.0, 50.0), "the higher one counts");
    assert_eq!(setting("a", 4.0), 5.0, "it was lowered");
    there.lock().remove("b");
    access.measure();

    assert_eq!(budgets(&access)[0].status().setting, 4.0);
}

#[tokio::test]
async fn users_of_one_identity_service_share_its_clock() {
    let hosts = IdentityHosts::new(Duration::from_secs(300));
    let (one, other) =
        ("https://login.example.com".parse().unwrap(), "https://id.example.com".parse().unwrap());

    let (first, again, another) = (hosts.of(&one), hosts.of(&one), hosts.of(&other));

    assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &another));
    let circuit = Arc::downgrade(&first.circuit);
    drop((first, again));
    hosts.of(&other);
    assert!(circuit.upgrade().is_none(), "dropped with its last user");
}
