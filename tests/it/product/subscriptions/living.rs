//! All declared subscriptions become active, and become active again when the provider disables one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use model::{GapCause, GapState, InvoicingEntity, RepairState, SubscriptionPhase, Target};
use simulator::{
    accounting::{WebhookState, WebhookTruth},
    catalog::{Kind, Resource},
    world::{Place, WorldChange},
};
use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep, timeout};

use super::scene::{CONNECTOR, LIMIT, POLL, SubscriptionScene, active};
use crate::product::simulator::Client;
use crate::support::{Error, Result, Shared};

crate::tests! {
    real declared_subscriptions_become_active_and_no_other_changes within 240;
    real invoicing_hooks_are_registered_where_the_scopes_are_set within 240;
    real a_disabled_subscription_is_a_gap_with_a_repair_and_enabled within 240;
}

async fn declared_subscriptions_become_active_and_no_other_changes(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-all", 1, |_| {}).await?;
    let foreign = subscribe_foreign(&scene).await;

    let mail = ("invoicing.login.mail", "ana@example.com");
    let password = ("invoicing.login.password", "simulated-password");
    let secret = ("invoicing.secret", "0123456789abcdef0123456789abcdef");
    let begun = Instant::now();
    scene
        .connect(&[("accounting.resources", "all"), ("invoicing.hooks", "all"), mail, password, secret])
        .await?;
    let ledger = scene.ledger().await?;
    let hooks: usize = InvoicingEntity::all().map(|entity| entity.actions().len()).sum();
    let whole = ledger
        .until(&scene, "all active", |ledger| active(ledger).len() == 19 + hooks && ledger.start.is_some())
        .await?;

    println!("19 resources and {hooks} hooks were active after {:?}", begun.elapsed());
    // A receiver accepted each, and the Acknowledge was recorded.
    let accounting = || whole.subscriptions.values().filter(|one| one.target.resource().is_some());
    assert_eq!(accounting().filter(|one| one.times.acknowledged_at.is_some()).count(), 19);
    let start = whole.start.as_ref().unwrap();
    assert_eq!(start.targets.len(), 19);
    assert!(whole.gaps.is_empty(), "{:?}", whole.gaps);
    // The provider has these, the foreign one, and no more.
    let (ours, others): (Vec<_>, Vec<_>) =
        scene.webhooks().into_iter().partition(|one| one.application.starts_with("tributary/"));
    assert_eq!((ours.len(), others.len()), (19, 1));
    assert!(ours.iter().all(|one| one.state == WebhookState::Active), "{ours:?}");
    let ids: Vec<String> = ours.iter().map(|one| one.id.to_string()).collect();
    let mut living = accounting().filter(|one| one.phase.may_live());
    assert!(living.all(|one| ids.contains(one.id.as_ref().unwrap())), "{ids:?}");
    assert_eq!((&others[0].url, others[0].state), (&foreign, WebhookState::AwaitingContract));
    let made = scene.stage.simulator.provider().invoicing.hooks();
    assert_eq!(made.iter().filter(|hook| hook.effective && !hook.paused).count(), hooks, "{made:?}");
    // The provider accepts only the documented address.
    assert!(made.iter().all(|hook| hook.uri.ends_with("/api/webhooks/incoming/Invoicing")), "{made:?}");
    let entities: BTreeSet<String> = made.iter().map(|hook| format!("{:?}", hook.subject.entity)).collect();
    assert_eq!(entities.len(), 18, "{entities:?}");

    // The worker may read its ledger later than this test.
    let end = Instant::now() + LIMIT;
    loop {
        let shown = scene.stage.metric(0, "tributary_subscriptions").await?;
        let active = shown.iter().filter(|(labels, _)| labels.contains("phase=\"active\""));
        if active.map(|(_, count)| count).sum::<f64>() == (19 + hooks) as f64 {
            return Ok(());
        }
        assert!(Instant::now() < end, "{shown:?}");
    }
}

/// Creates a webhook of another application; its address.
async fn subscribe_foreign(scene: &SubscriptionScene) -> String {
    let client = Client::accounting(&scene.stage.simulator).context("none");
    let url = "https://others.example.com/hooks".to_owned();
    let names = client.get("/accounting/api/customers/webhooks/events").await.ok();
    let body = serde_json::json!({
        "thirdPartyApplicationName": "theirs", "url": url, "secret": "a-foreign-secret", "eventTypes": names,
    });
    client.post("/accounting/api/customers/webhooks/subscribe", &body).await.ok();
    url
}

/// Has the provider's deliveries fail until it disables the webhook, and restores them; when it was disabled.
async fn fail_until_disabled(scene: &SubscriptionScene, webhook: &WebhookTruth) -> Result<Instant> {
    // Bound and never listening: no other process gets the port, and every connection is refused.
    let bound = TcpSocket::new_v4().and_then(|socket| {
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok((socket.local_addr()?, socket))
    });
    let (address, _held) = bound.map_err(|error| Error(format!("bind: {error}")))?;
    let provider = scene.stage.simulator.provider();
    scene.stage.resolve(address);
    provider.change(|world, clock| {
        let place = Place { resource: Resource::Customers, company: Some(0), index: 0 };
        let change = world.act(place, Kind::Updated, clock).unwrap();
        ((), vec![WorldChange::Record(change)])
    });
    let state = || scene.webhooks().iter().find(|one| one.id == webhook.id).unwrap().state;
    let is_disabled = async {
        while state() != WebhookState::Disabled {
            // The simulator has no signal for this; much shorter than a poll.
            sleep(Duration::from_millis(5)).await;
        }
        Instant::now()
    };
    let at = timeout(LIMIT, is_disabled).await.map_err(|_| Error("it is never disabled".into()))?;
    scene.stage.reach(0)?;
    Ok(at)
}

async fn invoicing_hooks_are_registered_where_the_scopes_are_set(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-grant", 1, |settings| {
        settings.knobs.invoicing.identity_scope = Some("inv".to_owned());
    })
    .await?;
    let scopes = ("invoicing.oauth.scopes", "openid,offline_access,inv");
    let secret = ("invoicing.secret", "0123456789abcdef0123456789abcdef");
    let hooks = ("invoicing.hooks", "Customer:Created,Customer:Updated");
    scene.configure(&[("accounting.resources", ""), hooks, secret, scopes]).await?;

    // The task asks for the invoicing login, and not for one for accounting.
    let (path, end) = (format!("/connectors/{CONNECTOR}/status"), Instant::now() + LIMIT);
    loop {
        let (_, status) = scene.stage.ask(0, "GET", &path, None).await?;
        let trace = status["tasks"][0]["trace"].as_str().unwrap_or_default();
        if trace.contains(&format!("tributary auth login invoicing --connector {CONNECTOR}")) {
            break;
        }
        if Instant::now() >= end {
            return Err(scene.stage.error(&format!("no login is asked for: {status}")));
        }
        sleep(POLL).await;
    }
    scene.stage.login_for("invoicing", CONNECTOR).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "both active", |ledger| active(ledger).len() == 2).await?;

    let provider = scene.stage.simulator.provider();
    let made = provider.invoicing.hooks();
    assert!(made.len() == 2 && made.iter().all(|hook| hook.effective), "{made:?}");
    let requests = provider.gateway.requests(0, usize::MAX);
    assert!(requests.iter().all(|(_, one)| !one.target.contains("users/login")), "there was a login by mail");
    Ok(())
}

async fn a_disabled_subscription_is_a_gap_with_a_repair_and_enabled(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-disabled", 1, |_| {}).await?;
    scene.connect(&[("accounting.resources", "customers,accounts")]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "both active", |ledger| active(ledger).len() == 2).await?;
    let webhooks = scene.webhooks();
    let customers = webhooks.iter().find(|one| one.url.ends_with("/customers")).unwrap();

    let disabled = fail_until_disabled(&scene, customers).await?;
    let opened = ledger.until(&scene, "a gap", |ledger| !ledger.gaps.is_empty()).await?;
    let noticed = disabled.elapsed();
    let repaired = ledger
        .until(&scene, "enabled, and a repair", |ledger| {
            // The records of a transaction are in several partitions, and may be read one after the other.
            let is_over = ledger.gaps.values().all(|gap| gap.to.is_some());
            active(ledger).len() == 2 && !ledger.repairs.is_empty() && is_over
        })
        .await?;

    println!("noticed after {noticed:?}, enabled and repair requested after {:?}", disabled.elapsed());
    let gap = opened.gaps.values().next().unwrap();
    assert_eq!((gap.cause, gap.state), (GapCause::Disabled, GapState::Open));
    let target = gap.target.unwrap();
    assert_eq!(target.to_string(), "accounting/customers");
    let repair = &repaired.repairs[&gap.id()];
    assert_eq!((repair.state, repair.target), (RepairState::Requested, Some(target)));
    assert_eq!(repair.from, gap.from);
    assert!(gap.to.is_none_or(|to| to == repair.to), "the gap ends elsewhere than its repair: {gap:?}");
    let closed = &repaired.gaps[&gap.id()];
    assert_eq!(
        (closed.state, closed.to),
        (GapState::Open, Some(repair.to)),
        "only a certified read closes it"
    );
    // A poll interval, and the time of a busy machine for the call and the write.
    assert!(noticed < POLL + Duration::from_secs(15), "{noticed:?}");
    // The webhook is the same, and the other one is unchanged.
    let after = scene.webhooks();
    assert!(after.iter().all(|one| one.state == WebhookState::Active), "{after:?}");
    assert_eq!(
        after.iter().map(|one| one.id).collect::<Vec<_>>(),
        webhooks.iter().map(|one| one.id).collect::<Vec<_>>()
    );
    let other: Vec<&Target> = repaired.gaps.values().filter_map(|gap| gap.target.as_ref()).collect();
    assert_eq!(other, [&target]);
    assert!(repaired.living(target).all(|one| one.phase == SubscriptionPhase::Active));
    let open = scene.stage.metric(0, "tributary_gap_open_seconds").await?;
    let labels = format!("connector=\"{CONNECTOR}\",cause=\"disabled\"");
    assert!(open.iter().any(|(known, seconds)| *known == labels && *seconds > 0.0), "{open:?}");
    Ok(())
}
