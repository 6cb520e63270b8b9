//! Two connectors under one invoicing segment: each has its own login, hooks and deliveries.

use std::collections::BTreeSet;
use std::time::Instant;

use kafka::{ConsumerRecord, Kafka};
use model::{InvoicingEvent, SchemaKind, Value};
use serde_json::Value as Json;
use simulator::{
    catalog::{Action, Entity},
    invoicing::ProviderHook,
    knobs::ReceiverPaths,
    world::WorldChange,
};
use tokio::time::sleep;
use tributary::{avro, config::RegistrySettings, state::subscriptions::SubscriptionState};

use super::scene::{CONNECTOR, LIMIT, POLL, SubscriptionScene, active};
use crate::product::simulator::invoicing::chosen;
use crate::support::{Result, Shared, lost, topics, traced};

crate::tests! {
    real two_companies_and_three_tenants_share_a_segment within 300;
    real connectors_of_one_company_leave_each_others_hooks_alone within 300;
    real a_refused_token_fails_the_task_until_it_is_replaced within 240;
    real a_connector_with_the_secret_of_another_is_refused within 120;
}

const SHOP: &str = "shop";
const HOOKS: (&str, &str) = ("invoicing.hooks", "Customer:Created,Customer:Updated");
const MAIL: (&str, &str) = ("invoicing.login.mail", "ana@example.com");
const PASSWORD: (&str, &str) = ("invoicing.login.password", "simulated-password");
/// Ids of the simulator's companies.
const COMPANIES: [&str; 2] = ["40001", "40002"];
const SECRETS: [&str; 2] = ["0123456789abcdef0123456789abcd-1", "0123456789abcdef0123456789abcd-2"];
const CHANGES: usize = 48;

/// Configures a connector without accounting, so that it needs no login of a person.
async fn configure(scene: &SubscriptionScene, connector: &str, settings: &[(&str, &str)]) -> Result<()> {
    let config = scene.config(&[&[("accounting.resources", ""), HOOKS], settings].concat());
    scene.stage.configure(connector, &config).await
}

/// Whether both hooks are active.
fn are_active(ledger: &SubscriptionState) -> bool {
    active(ledger).len() == 2
}

fn hooks(scene: &SubscriptionScene) -> Vec<ProviderHook> {
    scene.stage.simulator.provider().invoicing.hooks()
}

/// Changes a customer of each company in turn.
fn change(scene: &SubscriptionScene, companies: u32) {
    let provider = scene.stage.simulator.provider();
    for number in 0..CHANGES {
        let (company, action) =
            (number as u32 % companies, [Action::Created, Action::Updated][number / 2 % 2]);
        provider.change(|world, clock| {
            let change = world.act_invoicing(company, Entity::Customer, action, clock).unwrap();
            ((), vec![WorldChange::Invoicing(change)])
        });
    }
}

/// The events of customers, once there are this many.
async fn published(
    scene: &SubscriptionScene,
    shared: &Shared,
    count: usize,
) -> Vec<(ConsumerRecord, InvoicingEvent)> {
    let kafka = Kafka::plaintext(shared.bootstrap());
    let registry = RegistrySettings::open(shared.registry().parse().unwrap());
    let decoder = avro::Decoder::new(avro::Registry::new(&registry).unwrap());
    let (topic, began) = (format!("{}.invoicing.customer.events", scene.prefix), Instant::now());
    let mut records = Vec::new();
    while records.len() < count && lost::fair(began) < LIMIT {
        sleep(POLL).await;
        records = topics::content_of(&kafka, &topic, 2).await;
    }
    assert_eq!(records.len(), count);
    let mut events = Vec::new();
    for record in records {
        let value = record.value.clone().unwrap();
        let (_, decoded) = decoder.decode(SchemaKind::InvoicingEvent, &value).await.unwrap();
        let Value::InvoicingEvent(event) = decoded else { panic!("{decoded:?}") };
        events.push((record, *event));
    }
    events
}

async fn two_companies_and_three_tenants_share_a_segment(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-share", 1, |settings| {
        settings.world.invoicing_companies = 2;
        settings.knobs.invoicing.tenants = 3;
        settings.knobs.invoicing.receiver_paths = ReceiverPaths::Any;
    })
    .await?;
    let provider = scene.stage.simulator.provider();
    let tenants = [0, 1, 2].map(|number| provider.invoicing.tenant(number));
    let mapped = format!("{}=acc:zero,{}=acc:two", tenants[0], tenants[2]);
    let token = chosen(&scene.stage.simulator, 1).await.authorization.unwrap();
    traced::hide("a supplied token", &token);

    let first = [
        MAIL,
        PASSWORD,
        ("invoicing.login.company", COMPANIES[0]),
        ("invoicing.secret", SECRETS[0]),
        ("invoicing.tenants", &mapped),
    ];
    configure(&scene, CONNECTOR, &first).await?;
    let second = [
        ("invoicing.login.token", &*token),
        ("invoicing.secret", SECRETS[1]),
        ("invoicing.secret.scope", "connector"),
    ];
    configure(&scene, SHOP, &second).await?;
    for connector in [CONNECTOR, SHOP] {
        scene.ledger_of(connector).await?.until(&scene, "both active", are_active).await?;
    }
    let companies: Vec<u32> = hooks(&scene).iter().map(|hook| hook.subject.company).collect();
    assert_eq!(companies.iter().filter(|company| **company == 0).count(), 2, "{companies:?}");
    assert_eq!(companies.len(), 4);

    change(&scene, 2);

    let mut seen = BTreeSet::new();
    for (record, event) in published(&scene, shared, CHANGES).await {
        let tenant = event.notification.tenant_id.as_deref().unwrap();
        let number = tenants.iter().position(|known| known == tenant).unwrap();
        let (connector, key) = match number {
            0 => (CONNECTOR, "acc:zero"),
            1 => (SHOP, tenant),
            _ => (CONNECTOR, "acc:two"),
        };
        assert_eq!(
            (&*event.connector, record.key.as_deref()),
            (connector, Some(key.as_bytes())),
            "{event:?}"
        );
        assert_eq!(event.company_id.is_some(), connector == CONNECTOR);
        // At its own address even a secret for all hooks leaves no doubt.
        assert!(event.action.is_some(), "{event:?}");
        seen.insert(number);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    Ok(())
}

async fn connectors_of_one_company_leave_each_others_hooks_alone(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-twins", 1, |_| {}).await?;
    for (connector, secret) in [(CONNECTOR, SECRETS[0]), (SHOP, SECRETS[1])] {
        configure(&scene, connector, &[MAIL, PASSWORD, ("invoicing.secret", secret)]).await?;
    }
    let (ours, theirs) = (scene.ledger().await?, scene.ledger_of(SHOP).await?);
    ours.until(&scene, "both active", are_active).await?;
    theirs.until(&scene, "both active", are_active).await?;
    let made = hooks(&scene);
    assert_eq!(made.iter().filter(|hook| hook.effective).count(), 4, "{made:?}");

    theirs.command(1, true).await;
    let is_done = |ledger: &SubscriptionState| ledger.requests.done.is_some_and(|done| done.number == 1);
    theirs.until(&scene, "removed", is_done).await?;
    // Each event comes once, by the hook that is left.
    change(&scene, 1);
    let events = published(&scene, shared, CHANGES).await;

    let left = hooks(&scene);
    let is_ours = |hook: &ProviderHook| hook.description.as_deref().unwrap().starts_with("hooks for ");
    assert!(left.len() == 2 && left.iter().all(is_ours), "{left:?}");
    let kept = |hook: &&ProviderHook| is_ours(hook);
    let before: Vec<_> = made.iter().filter(kept).map(|hook| hook.id).collect();
    assert_eq!(left.iter().map(|hook| hook.id).collect::<Vec<_>>(), before);
    assert!(events.iter().all(|(_, event)| event.connector == CONNECTOR));
    let ledger = ours.now();
    assert!(ledger.gaps.is_empty() && are_active(&ledger), "{:?}", ledger.gaps);
    Ok(())
}

async fn a_refused_token_fails_the_task_until_it_is_replaced(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-token", 1, |_| {}).await?;
    let secret = ("invoicing.secret", SECRETS[0]);
    configure(&scene, CONNECTOR, &[("invoicing.login.token", "not-a-token"), secret]).await?;

    let (path, began) = (format!("/connectors/{CONNECTOR}/status"), Instant::now());
    let mut task = Json::Null;
    while task["state"] != "FAILED" && lost::fair(began) < LIMIT {
        sleep(POLL).await;
        task = scene.stage.ask(0, "GET", &path, None).await?.1["tasks"][0].clone();
    }
    let trace = task["trace"].as_str().unwrap_or_default();
    assert!(trace.contains("invoicing.login.token") && !trace.contains("not-a-token"), "{task}");

    let token = chosen(&scene.stage.simulator, 0).await.authorization.unwrap();
    configure(&scene, CONNECTOR, &[("invoicing.login.token", &*token), secret]).await?;
    scene.ledger().await?.until(&scene, "both active", are_active).await.map(drop)
}

async fn a_connector_with_the_secret_of_another_is_refused(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-same-secret", 1, |_| {}).await?;
    let same = [MAIL, PASSWORD, ("invoicing.secret", SECRETS[0])];
    configure(&scene, CONNECTOR, &same).await?;

    let config = scene.config(&[&[("accounting.resources", ""), HOOKS], &same[..]].concat());
    let path = format!("/connectors/{SHOP}/config");
    let (mut status, mut answer) = (409, Json::Null);
    let began = Instant::now();
    // While the group changes.
    while matches!(status, 409 | 503) && lost::fair(began) < LIMIT {
        (status, answer) = scene.stage.ask(0, "PUT", &path, Some(&config)).await?;
    }

    let answer = answer.to_string();
    assert!(
        status == 400 && answer.contains("invoicing.secret is also a secret of hooks"),
        "{status} {answer}"
    );
    assert!(!answer.contains(SECRETS[0]), "{answer}");
    Ok(())
}
