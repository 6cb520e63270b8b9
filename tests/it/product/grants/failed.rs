//! A login that the provider ends: the task names the remedy, deliveries continue, and the next login restores the task.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::scene::GrantScene;
use crate::product::ingest::delivery::{Delivery, signature};
use crate::support::{Result, Shared};

crate::tests! {
    real a_revoked_login_fails_the_task_but_no_delivery within 240;
}

const CONNECTOR: &str = "books";
/// The secret of the connectors of a scene.
const SECRET: &str = "0123456789abcdef-first";
const LIMIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);

async fn a_revoked_login_fails_the_task_but_no_delivery(shared: &'static Shared) -> Result<()> {
    let receives = [
        ("webhook.listeners", "http://127.0.0.1:0"),
        ("webhook.plaintext", "true"),
        ("webhook.proxies", "127.0.0.0/8"),
        // Nothing listens there; subscriptions are created and wait.
        ("webhook.advertised.url", "https://hooks.example.com"),
    ];
    let scene = GrantScene::start(shared, "grants-failed", 1, &receives, |settings| {
        // Nothing calls the API: the worker notices the end of the login when the token is due.
        settings.knobs.identity.access_seconds = 8;
    })
    .await?;
    let command = "run `tributary auth login accounting --connector books`";

    // Without a login.
    scene.connect(CONNECTOR, &[("subscriptions.manage", "true")]).await?;
    let trace = scene.until_task(CONNECTOR, "FAILED").await?;
    assert!(trace.contains("LoginNeeded") && trace.contains("no login exists"), "{trace}");
    assert!(trace.contains(command), "{trace}");
    assert_eq!(deliver(&scene, "before the login").await, 200);

    scene.log_in(CONNECTOR).await?;
    scene.until_task(CONNECTOR, "RUNNING").await?;
    let (code, status) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(0), "{status}");

    // The provider ends it.
    let provider = scene.stage.simulator.provider();
    provider.identity.revoke_all(provider.clock.now());
    let trace = scene.until_task(CONNECTOR, "FAILED").await?;
    assert!(trace.contains("LoginNeeded") && trace.contains("invalid_grant"), "{trace}");
    assert!(trace.contains(command), "{trace}");
    let (code, status) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(1), "{status}");
    assert!(status.contains("lost") && status.contains("log in again"), "{status}");
    assert_eq!(deliver(&scene, "after the loss").await, 200);
    let said = scene.stage.workers[0].said();
    assert_eq!(said.matches("the grant is lost").count(), 1, "{said}");

    // The remedy of the message, and nothing else.
    scene.log_in(CONNECTOR).await?;
    scene.until_task(CONNECTOR, "RUNNING").await?;
    let (code, status) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(0), "{status}");
    assert_eq!(deliver(&scene, "after the second login").await, 200);
    Ok(())
}

/// The status of a signed delivery, once the connector receives at all.
async fn deliver(scene: &GrantScene, id: &str) -> u16 {
    let said = scene.stage.workers[0].said();
    let (_, address) = said.lines().find_map(|line| line.split_once(" receives deliveries on ")).unwrap();
    let url = format!("http://{address}/webhooks/accounting/{CONNECTOR}/customers");
    let body = Delivery::change(id, "company-1", 1).body();
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
    let end = Instant::now() + LIMIT;
    loop {
        let request = http.post(&url).header("svc-webhook-signature", signature(SECRET, &body));
        let status = request.body(body.clone()).send().await.unwrap().status().as_u16();
        // A delivery is refused until the first receiver is open; none may be refused afterwards.
        if status == 200 || id != "before the login" || Instant::now() > end {
            return status;
        }
        sleep(STEP).await;
    }
}
