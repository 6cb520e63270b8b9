//! The tenant of a grant while workers refresh it: learned, kept, and never changed by a refresh.

use std::path::Path;
use std::sync::Arc;

use provider::auth::{
    grant::{Grant, GrantLogin},
    seal::Keyring,
};
use tokio::time::Instant;
use tributary::{
    config,
    logins::{store::GrantStore, table::GrantTable},
    state::Table,
};

use super::cluster::{KEY as ENCRYPTION_KEY, LIMIT};
use super::scene::{GrantScene, ReportedGrants};
use crate::support::login::{Login, enter};
use crate::support::lost::timeout;
use crate::support::{Error, Result, Shared, run_directory};

crate::tests! {
    real refused_login_leaves_the_old_one_refreshing within 240;
    real old_grant_learns_its_tenant_by_a_refresh within 240;
    real refresh_for_another_tenant_fails_the_login within 240;
}

const CONNECTOR: &str = "books";
/// Lifetime of an access token in seconds: it is refreshed after three quarters of that.
const LIFE: u64 = 8;

async fn refused_login_leaves_the_old_one_refreshing(shared: &'static Shared) -> Result<()> {
    let scene = scene(shared, "grants-tenant").await?;
    scene.log_in(CONNECTOR).await?;
    choose(&scene, "tenant-2");

    let (code, said) = log_in_with(&scene, &[]).await?;
    let after = refreshed(&scene).await?;

    assert!(code == Some(1) && said.contains("--replace"), "{said}");
    assert_eq!(after[CONNECTOR].state, "ready");
    assert_eq!(tenant(&scene).await?, "tenant-1");

    let (code, said) = log_in_with(&scene, &["--replace"]).await?;
    assert_eq!(code, Some(0), "{said}");
    let after = refreshed(&scene).await?;
    assert_eq!(after[CONNECTOR].state, "ready");
    assert_eq!(tenant(&scene).await?, "tenant-2");
    Ok(())
}

async fn old_grant_learns_its_tenant_by_a_refresh(shared: &'static Shared) -> Result<()> {
    let scene = scene(shared, "grants-tenant-old").await?;
    scene.log_in(CONNECTOR).await?;

    let old = forget_tenant(&scene).await;
    let refreshed =
        |reported: &ReportedGrants| reported.get(CONNECTOR).is_some_and(|one| one.serial > old.serial);
    scene.until(0, "refreshed", LIMIT, refreshed).await?;

    let written = &scene.written().await[CONNECTOR];
    let unbound = written.iter().rposition(|one| one.grant.login.tenant.is_none()).unwrap();
    let (before, after) = (&written[unbound].grant, &written[unbound + 1].grant);
    assert_eq!((before.serial, after.serial), (old.serial, old.serial + 1));
    assert_eq!(after.login, GrantLogin { tenant: Some("tenant-1".to_owned()), ..old.login }, "one login");
    assert_eq!(tenant(&scene).await?, "tenant-1");
    // From now on it is bound.
    choose(&scene, "tenant-2");
    let (code, said) = log_in_with(&scene, &[]).await?;
    assert!(code == Some(1) && said.contains("bound to the tenant tenant-1"), "{said}");
    Ok(())
}

async fn refresh_for_another_tenant_fails_the_login(shared: &'static Shared) -> Result<()> {
    let scene = scene(shared, "grants-tenant-switch").await?;
    // A task that fails after the login would not restart.
    scene.until_task(CONNECTOR, "FAILED").await?;
    scene.log_in(CONNECTOR).await?;
    scene.until_task(CONNECTOR, "RUNNING").await?;
    let provider = scene.stage.simulator.provider();

    provider.turn(|knobs| knobs.identity.refreshed_tenant = Some("tenant-2".to_owned()));
    let trace = scene.until_task(CONNECTOR, "FAILED").await?;

    let reason = "the new token is for the tenant tenant-2, but the grant is bound to the tenant tenant-1";
    assert!(trace.contains("LoginNeeded") && trace.contains(reason), "{trace}");
    assert!(trace.contains("run `tributary auth login accounting --connector books`"), "{trace}");
    let (code, table) = scene.auth(&["status"]).await;
    assert!(code == Some(1) && table.contains("lost"), "{table}");
    assert!(table.contains(reason) && table.contains("log in again"), "{table}");
    assert_eq!(tenant(&scene).await?, "tenant-1");
    let said = scene.stage.workers[0].said();
    assert_eq!(said.matches("the grant is lost").count(), 1, "{said}");
    // No worker can have used the token for the other tenant: it is in no record.
    let issued = provider.identity.issued();
    let other = issued.iter().rfind(|one| one.kind == "access").unwrap();
    let written = scene.written().await;
    let is_other = |grant: &Grant| grant.tokens().is_some_and(|tokens| tokens.access.reveal() == other.token);
    assert!(!written[CONNECTOR].iter().any(|one| is_other(&one.grant)), "it is in the topic");

    // The remedy of the message, and nothing else.
    provider.turn(|knobs| knobs.identity.refreshed_tenant = None);
    scene.log_in(CONNECTOR).await?;
    scene.until_task(CONNECTOR, "RUNNING").await?;
    assert_eq!(tenant(&scene).await?, "tenant-1");
    Ok(())
}

/// A worker with a connector that needs its login.
async fn scene(shared: &Shared, name: &str) -> Result<GrantScene> {
    // Nothing listens there; subscriptions are created and wait.
    let receives = [("webhook.advertised.url", "https://hooks.example.com")];
    let scene = GrantScene::start(shared, name, 1, &receives, |settings| {
        settings.knobs.identity.access_seconds = LIFE;
    })
    .await?;
    scene.connect(CONNECTOR, &[("subscriptions.manage", "true")]).await?;
    Ok(scene)
}

/// From now on the person chooses this tenant at a login.
fn choose(scene: &GrantScene, tenant: &str) {
    scene.stage.simulator.provider().turn(|knobs| knobs.identity.tenant = Some(tenant.to_owned()));
}

/// Logs in with these options: exit code and output.
async fn log_in_with(scene: &GrantScene, options: &[&str]) -> Result<(Option<i32>, String)> {
    let (log, config) = (run_directory::create("login-tenant")?.join("log"), scene.stage.workers[0].config());
    let login = Login::begin(Path::new(CONNECTOR), config, &log, options)?;
    let callback = enter(&scene.stage.http, &login.address().await?).await;
    let back = scene.stage.http.get(callback).send().await;
    back.map_err(|error| Error(format!("come back: {error}")))?;
    Ok((login.code().await?, login.said()))
}

/// Waits until the grant is refreshed once more, or lost.
async fn refreshed(scene: &GrantScene) -> Result<ReportedGrants> {
    let is_known =
        |reported: &ReportedGrants| reported.get(CONNECTOR).is_some_and(|one| one.state == "ready");
    let before = scene.until(0, "ready", LIMIT, is_known).await?[CONNECTOR].serial;
    let is_next = |reported: &ReportedGrants| {
        reported
            .get(CONNECTOR)
            .is_some_and(|one| one.state == "lost" || one.state == "ready" && one.serial > before)
    };
    scene.until(0, "refreshed", LIMIT, is_next).await
}

/// The tenant that `auth status` and the worker's `/health` show.
async fn tenant(scene: &GrantScene) -> Result<String> {
    let (_, lines) = scene.auth(&["status", "--json"]).await;
    let grant: serde_json::Value = serde_json::from_str(lines.trim()).unwrap();
    let (_, health) = scene.stage.ask(0, "GET", "/health", None).await?;
    let grants = health["grants"].as_array().unwrap();
    let reported = grants.iter().find(|one| one["name"] == CONNECTOR).unwrap();
    assert_eq!(grant["tenant"], reported["tenant"], "{grant} {reported}");
    Ok(grant["tenant"].as_str().unwrap_or_default().to_owned())
}

/// Writes the grant as an earlier version did, without a tenant.
async fn forget_tenant(scene: &GrantScene) -> Grant {
    let worker = config::Worker::load(Some(scene.stage.workers[0].config()), []).unwrap().config;
    let keys = Arc::new(Keyring::new(&ENCRYPTION_KEY.into(), None, &worker.group.id).unwrap());
    let (blank, topic) = (GrantTable::with_keys(Arc::clone(&keys)), &worker.topics.grant);
    let table = Table::follow_from(blank, &worker.kafka, &topic.name, topic.partitions).await.unwrap();
    timeout(LIMIT, table.caught_up()).await.unwrap();
    let mut writer = GrantStore::new(&worker.kafka, table, keys).writer(CONNECTOR, Arc::new(|| true));
    let forget = |grant: Option<&Grant>| {
        let mut grant = grant?.clone();
        grant.login.tenant = None;
        Some(grant)
    };
    writer.write(Instant::now() + LIMIT, forget).await.unwrap().unwrap()
}
