//! What would be done, where the provider says what the ledger does.

use url::Url;

use model::{
    AccountingResource, Subscription, SubscriptionPhase, SubscriptionRegistration, SubscriptionTimes,
};

use super::*;
use crate::{config::Providers, plugin::samples::webhook_config};

fn desired(settings: &[(&str, &str)]) -> ResolvedConnector {
    let mut config = webhook_config();
    config.insert("accounting.resources".into(), "customers,accounts".into());
    config.insert("accounting.secret".into(), "0123456789abcdef-first".into());
    config.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let advertised = Url::parse("https://hooks.example.com").unwrap();
    ResolvedConnector::read("hooks", &config, &Providers::new([]), Some(&advertised)).unwrap()
}

/// What would be done, where each webhook that exists is active; and the ledger after it.
async fn run(desired: &ResolvedConnector, ledger: &SubscriptionState, removed: bool) -> DryRun {
    let mut asked = BTreeMap::new();
    for resource in AccountingResource::all() {
        let names = CallOutcome::Names([format!("{}.Created", resource.name())].into());
        asked.insert(format!("names {}", resource.name()), names);
    }
    for one in ledger.subscriptions.values() {
        let seen = WebhookSnapshot {
            name: Some(one.registered_name()),
            url: Some(one.registration.url.clone()),
            active: Some(one.phase == SubscriptionPhase::Active),
            deleted: false,
            events: one.registration.events.clone(),
        };
        asked.insert(format!("read {}", one.nonce), CallOutcome::Seen(seen));
    }
    let end = Instant::now() + Duration::from_secs(5);
    let answers = DryRunProvider {
        calls: ProviderCalls::without_provider(&desired.source),
        desired,
        ledger,
        end,
        asked,
    };
    let wanted = if removed { BTreeMap::new() } else { desired.wanted.clone() };
    DryRunState::new("hooks", "w:1", desired, wanted, ledger.clone()).run(answers).await.unwrap()
}

/// A ledger in which every target has an active subscription.
fn standing(desired: &ResolvedConnector) -> SubscriptionState {
    let mut ledger = SubscriptionState::default();
    for (number, (target, wanted)) in (1..).zip(&desired.wanted) {
        let name = target.resource().unwrap().name();
        let one = Subscription {
            connector: "hooks".into(),
            target: *target,
            nonce: Nonce::new(number),
            id: Some(format!("w-{number}")),
            registration: SubscriptionRegistration {
                application: wanted.application.clone(),
                url: wanted.url.clone(),
                spelled: None,
                fingerprint: wanted.fingerprint.clone(),
                events: [format!("{name}.Created")].into(),
            },
            phase: SubscriptionPhase::Active,
            since: 2,
            times: SubscriptionTimes {
                intended_at: 1,
                acknowledged_at: Some(2),
                active_since: Some(2),
                checked_at: Some(3),
                last_delivery: None,
            },
            problem: None,
            history: Vec::new(),
        };
        ledger.subscriptions.insert(one.nonce.clone(), one);
    }
    ledger
}

fn calls_of(look: &DryRun) -> Vec<String> {
    look.steps.iter().map(|step| format!("{} {}", step.call, step.target.unwrap())).collect()
}

#[tokio::test]
async fn from_nothing_each_target_is_subscribed_once() {
    let look = run(&desired(&[]), &SubscriptionState::default(), false).await;

    assert_eq!(
        calls_of(&look),
        ["subscribe accounting/accounts", "subscribe accounting/customers"],
        "{look:?}"
    );
    assert!(!look.converged && look.problems.is_empty(), "{look:?}");
}

#[tokio::test]
async fn a_converged_connector_needs_no_step_until_all_is_removed() {
    let desired = desired(&[]);
    let ledger = standing(&desired);

    let (kept, removed) = (run(&desired, &ledger, false).await, run(&desired, &ledger, true).await);

    assert!(kept.converged && kept.steps.is_empty(), "{kept:?}");
    assert_eq!(calls_of(&removed), ["delete accounting/accounts", "delete accounting/customers"]);
    assert!(removed.steps.iter().all(|step| step.id.is_some()), "{removed:?}");
}

#[tokio::test]
async fn a_new_secret_adds_a_subscription_and_ends_the_first_later() {
    let before = standing(&desired(&[]));
    let rotated = desired(&[
        ("accounting.secret", "0123456789abcdef-second"),
        ("accounting.secret.previous", "0123456789abcdef-first"),
    ]);

    let look = run(&rotated, &before, false).await;

    let (first, then) =
        calls_of(&look).into_iter().partition::<Vec<String>, _>(|step| step.starts_with("sub"));
    assert_eq!(first, ["subscribe accounting/accounts", "subscribe accounting/customers"], "{look:?}");
    assert_eq!(then, ["delete accounting/accounts", "delete accounting/customers"], "{look:?}");
    let ids: Vec<&str> = look.steps.iter().filter_map(|step| step.id.as_deref()).collect();
    assert_eq!(ids, ["w-1", "w-2"]);
}

#[tokio::test]
async fn one_that_the_provider_has_disabled_would_be_enabled() {
    let desired = desired(&[("accounting.resources", "customers")]);
    let mut ledger = standing(&desired);
    for one in ledger.subscriptions.values_mut() {
        one.enter(SubscriptionPhase::Disabled, 5, "the provider has disabled it");
    }

    let look = run(&desired, &ledger, false).await;

    assert_eq!(calls_of(&look), ["enable accounting/customers"], "{look:?}");
}
