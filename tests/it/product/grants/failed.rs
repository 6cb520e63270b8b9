//! A login that the provider ends: the task says what to do, deliveries go on, and the next login mends it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::scene::Scene;
use crate::product::ingest::delivery::{Delivery, signature};
use crate::support::{Result, Shared};

crate::tests! {
    real a_revoked_login_fails_the_task_but_no_delivery within 240;
}

const CONNECTOR: &str = "books";
/// What the connectors of a scene sign with.
const SECRET: &str = "0123456789abcdef-first";
const LIMIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);

async fn a_revoked_login_fails_the_task_but_no_delivery(shared: &'static Shared) -> Result<()> {
    let receives = [
        ("webhook.listeners", "http://127.0.0.1:0"),
        ("webhook.plaintext", "true"),
        ("webhook.proxies", "127.0.0.0/8"),
        // Nobody is reached there; subscriptions are made all the same, and wait.
        ("webhook.advertised.url", "https://hooks.example.com"),
    ];
    let scene = Scene::start(shared, "grants-failed", 1, &receives, |settings| {
        // Nothing asks an API yet: that the login has ended is found when the token is due.
        settings.knobs.identity.access_seconds = 8;
    })
    .await?;
    let command = "run `tributary auth login accounting --connector books`";

    // Nobody has logged in.
    scene.connect(CONNECTOR, &[("subscriptions.manage", "true")]).await?;
    let trace = until_task(&scene, "FAILED").await?;
    assert!(trace.contains("LoginNeeded") && trace.contains("nobody has logged in"), "{trace}");
    assert!(trace.contains(command), "{trace}");
    assert_eq!(deliver(&scene, "before the login").await, 200);

    scene.log_in(CONNECTOR).await?;
    until_task(&scene, "RUNNING").await?;
    let (code, told) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(0), "{told}");

    // The provider ends it.
    let provider = scene.stage.simulator.provider();
    provider.identity.revoke_all(provider.clock.now());
    let trace = until_task(&scene, "FAILED").await?;
    assert!(trace.contains("LoginNeeded") && trace.contains("invalid_grant"), "{trace}");
    assert!(trace.contains(command), "{trace}");
    let (code, told) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("lost") && told.contains("log in again"), "{told}");
    assert_eq!(deliver(&scene, "after the loss").await, 200);
    let said = scene.stage.workers[0].said();
    assert_eq!(said.matches("the grant is lost").count(), 1, "{said}");

    // A person does what they are told, and nothing else.
    scene.log_in(CONNECTOR).await?;
    until_task(&scene, "RUNNING").await?;
    let (code, told) = scene.auth(&["status"]).await;
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(deliver(&scene, "after the second login").await, 200);
    Ok(())
}

/// Waits until the connector's task is in this state; its trace.
async fn until_task(scene: &Scene, state: &str) -> Result<String> {
    let (path, end) = (format!("/connectors/{CONNECTOR}/status"), Instant::now() + LIMIT);
    loop {
        let status = scene.stage.ask(0, "GET", &path, None).await;
        let task = status.as_ref().map(|(_, status)| status["tasks"][0].clone()).unwrap_or_default();
        if task["state"] == state {
            return Ok(task["trace"].as_str().unwrap_or_default().to_owned());
        }
        if Instant::now() > end || !scene.stage.workers[0].runs() {
            return Err(scene.stage.workers[0].error(&format!("the task is not {state}: {status:?}")));
        }
        sleep(STEP).await;
    }
}

/// The status that a signed delivery is answered with, once the connector is received at all.
async fn deliver(scene: &Scene, id: &str) -> u16 {
    let said = scene.stage.workers[0].said();
    let (_, address) = said.lines().find_map(|line| line.split_once(" receives deliveries on ")).unwrap();
    let url = format!("http://{address}/webhooks/accounting/{CONNECTOR}/customers");
    let body = Delivery::change(id, "company-1", 1).body();
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
    let end = Instant::now() + LIMIT;
    loop {
        let request = http.post(&url).header("svc-webhook-signature", signature(SECRET, &body));
        let status = request.body(body.clone()).send().await.unwrap().status().as_u16();
        // Before its first receiver is open a delivery is refused; none may be afterwards.
        if status == 200 || id != "before the login" || Instant::now() > end {
            return status;
        }
        sleep(STEP).await;
    }
}
