//! Invoicing hooks at a provider that does less than its API documentation promises.

use model::{Gap, GapCause, Subscription, SubscriptionPhase, Target};
use simulator::knobs::{self, EchoTime, Effect, Fault, HttpStatus, ReceiverPaths};
use tributary::state::subscriptions::SubscriptionState;

use super::scene::{CONNECTOR, SubscriptionScene, active};
use crate::support::{Result, Shared};

crate::tests! {
    real a_refused_invoicing_login_does_not_stop_accounting within 240;
    real a_missing_invoicing_grant_does_not_stop_accounting within 240;
    real an_echo_at_another_worker_makes_a_hook_active within 240;
    real a_hook_without_echo_is_never_active_and_is_a_gap within 240;
    real a_hook_without_echo_moves_to_the_shared_address within 240;
}

const SECRET: (&str, &str) = ("invoicing.secret", "0123456789abcdef0123456789abcdef");
const HOOKS: (&str, &str) = ("invoicing.hooks", "Customer:Created,Customer:Updated");
const MAIL: (&str, &str) = ("invoicing.login.mail", "ana@example.com");
const PASSWORD: (&str, &str) = ("invoicing.login.password", "simulated-password");

/// Problems of invoicing hooks, one for each target that has one.
fn problems(ledger: &SubscriptionState) -> Vec<&str> {
    let hooks = ledger.subscriptions.values().filter(|one| matches!(one.target, Target::Invoicing(_)));
    hooks
        .filter(|one| one.phase == SubscriptionPhase::Ended)
        .filter_map(|one| one.problem.as_deref())
        .collect()
}

/// Whether the accounting resource is active while both hooks have this problem.
fn waits_alone(ledger: &SubscriptionState, what: &str) -> bool {
    let waiting = problems(ledger).into_iter().filter(|problem| problem.contains(what)).count();
    waiting >= 2 && active(ledger).iter().any(|target| target.resource().is_some()) && ledger.start.is_some()
}

async fn a_refused_invoicing_login_does_not_stop_accounting(shared: &'static Shared) -> Result<()> {
    let on = knobs::FaultTarget {
        path: Some("/invoicing/api/users/login".to_owned()),
        ..knobs::FaultTarget::default()
    };
    let fault = Fault { on, effect: Effect::Status(HttpStatus::NOT_FOUND), share: 1.0, times: None, skip: 0 };
    let scene = SubscriptionScene::start(shared, "subs-no-invoicing", 1, |settings| {
        settings.knobs.faults = vec![fault]
    })
    .await?;
    scene.connect(&[HOOKS, SECRET, MAIL, PASSWORD]).await?;
    let ledger = scene.ledger().await?;

    let what = "accounting continues without it";
    ledger.until(&scene, "accounting alone", |ledger| waits_alone(ledger, what)).await?;
    let path = format!("/connectors/{CONNECTOR}/subscriptions");
    let (_, shown) = scene.stage.ask(0, "GET", &path, None).await?;
    scene.stage.simulator.provider().set_faults(Vec::new());

    let shown = shown["subscriptions"].to_string();
    assert!(shown.contains(what) && shown.contains("users/login"), "{shown}");
    ledger.until(&scene, "hooks too", |ledger| active(ledger).len() == 3).await.map(drop)
}

async fn a_missing_invoicing_grant_does_not_stop_accounting(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-no-grant", 1, |settings| {
        settings.knobs.invoicing.identity_scope = Some("inv".to_owned());
    })
    .await?;
    scene.connect(&[HOOKS, SECRET, ("invoicing.oauth.scopes", "openid,offline_access,inv")]).await?;
    let ledger = scene.ledger().await?;

    let command = format!("tributary auth login invoicing --connector {CONNECTOR}");
    ledger.until(&scene, "accounting alone", |ledger| waits_alone(ledger, &command)).await?;
    scene.stage.login_for("invoicing", CONNECTOR).await?;

    ledger.until(&scene, "hooks too", |ledger| active(ledger).len() == 3).await.map(drop)
}

async fn an_echo_at_another_worker_makes_a_hook_active(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-other-echo", 2, |_| {}).await?;
    scene.connect(&[]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "accounting active", |ledger| active(ledger).len() == 1).await?;
    let runs = scene.runs_on().await?;
    scene.stage.reach(1 - runs)?;

    scene.configure(&[HOOKS, SECRET, MAIL, PASSWORD]).await?;
    let echoes = ledger.until(&scene, "all active", |ledger| active(ledger).len() == 3).await?.echoes;

    let other = scene.stage.workers[1 - runs].url();
    let is_other = !echoes.is_empty() && echoes.values().all(|echo| other.ends_with(&echo.worker));
    assert!(is_other, "{echoes:?}");
    Ok(())
}

/// A short wait for the echo.
const ECHO_TIMEOUT: (&str, &str) = ("subscriptions.acknowledge.timeout.ms", "3000");

async fn a_hook_without_echo_is_never_active_and_is_a_gap(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-no-echo", 1, |settings| {
        settings.knobs.invoicing.echo = EchoTime::Never
    })
    .await?;
    scene.connect(&[HOOKS, SECRET, MAIL, PASSWORD, ECHO_TIMEOUT]).await?;
    let ledger = scene.ledger().await?;

    let found = ledger
        .until(&scene, "two gaps", |ledger| ledger.gaps.len() == 2 && active(ledger).len() == 1)
        .await?;

    let is_open =
        |gap: &Gap| gap.cause == GapCause::Awaiting && gap.detail.contains("echo") && gap.to.is_none();
    assert!(found.gaps.values().all(is_open), "{:?}", found.gaps);
    let mut hooks = found.subscriptions.values().filter(|one| matches!(one.target, Target::Invoicing(_)));
    let was_active =
        |one: &Subscription| one.phase == SubscriptionPhase::Active || one.times.active_since.is_some();
    assert!(!hooks.any(was_active), "{:?}", found.subscriptions);
    Ok(())
}

async fn a_hook_without_echo_moves_to_the_shared_address(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-own-echo", 1, |settings| {
        let knobs = &mut settings.knobs.invoicing;
        (knobs.receiver_paths, knobs.echo_paths) = (ReceiverPaths::Any, ReceiverPaths::Documented);
    })
    .await?;
    scene.connect(&[HOOKS, SECRET, MAIL, PASSWORD, ECHO_TIMEOUT]).await?;
    let ledger = scene.ledger().await?;

    ledger.until(&scene, "all active", |ledger| active(ledger).len() == 3).await?;

    let made = scene.stage.simulator.provider().invoicing.hooks();
    let is_shared = |uri: &str| uri.ends_with("/api/webhooks/incoming/Invoicing");
    assert!(made.iter().all(|hook| hook.effective && is_shared(&hook.uri)), "{made:?}");
    Ok(())
}
