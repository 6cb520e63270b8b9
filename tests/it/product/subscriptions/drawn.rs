//! Drawn providers, which vary what the API documentation leaves open about webhooks: all hooks are active, and their notifications
//! are published.

use kafka::{Kafka, read_to_end};
use simulator::{
    catalog::{Action, Entity},
    world::WorldChange,
};
use tokio::time::{Instant, sleep};

use super::scene::{LIMIT, POLL, SubscriptionScene, active};
use crate::support::drawn::{self, DrawnProvider};
use crate::support::{Error, Result, Shared};

/// Limit for one provider, seconds.
const EACH: u64 = 90;
/// Notifications that are sent.
const CHANGES: usize = 6;

crate::tests! {
    real hooks_of_a_drawn_provider_are_active_and_publish limit (EACH * u64::from(drawn::count()));
}

async fn hooks_of_a_drawn_provider_are_active_and_publish(shared: &'static Shared) -> Result<()> {
    drawn::try_all(|provider| holds(shared, provider)).await
}

async fn holds(shared: &'static Shared, provider: DrawnProvider) -> Result<()> {
    let name = format!("hooks-{}", provider.name);
    let scene = SubscriptionScene::start(shared, &name, 1, |settings| provider.apply(settings)).await?;
    let login =
        [("invoicing.login.mail", "ana@example.com"), ("invoicing.login.password", "simulated-password")];
    let hooks = [
        ("invoicing.hooks", "Customer:Created,Customer:Updated"),
        ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
    ];
    scene.connect(&[login, hooks].concat()).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "all active", |ledger| active(ledger).len() == 3).await?;
    let made = scene.stage.simulator.provider().invoicing.hooks();
    assert_eq!(made.iter().filter(|hook| hook.effective).count(), 2, "{made:?}");

    for number in 0..CHANGES {
        let action = [Action::Created, Action::Updated][number % 2];
        scene.stage.simulator.provider().change(|world, clock| {
            let change = world.act_invoicing(0, Entity::Customer, action, clock).unwrap();
            ((), vec![WorldChange::Invoicing(change)])
        });
    }
    let kafka = Kafka::plaintext(shared.bootstrap());
    let (topic, end) = (format!("{}.invoicing.customer.events", scene.prefix), Instant::now() + LIMIT);
    loop {
        let mut published = 0;
        let read = read_to_end(&kafka, &topic, &[0, 1], LIMIT, |_| published += 1).await;
        read.map_err(|error| Error(format!("read {topic}: {error}")))?;
        if published == CHANGES {
            return Ok(());
        }
        assert!(published < CHANGES && Instant::now() < end, "{published} of {CHANGES} published");
        sleep(POLL).await;
    }
}
