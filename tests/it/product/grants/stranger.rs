//! A connector that names an existing login and another base address gets no token, and its host receives no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::net::TcpListener;

use super::scene::GrantScene;
use crate::product::simulator::KEY;
use crate::support::{Result, Shared};

crate::tests! {
    real a_stranger_gets_neither_token_nor_key within 240;
}

async fn a_stranger_gets_neither_token_nor_key(shared: &'static Shared) -> Result<()> {
    let scene = GrantScene::start(shared, "grants-stranger", 1, &[], |_| {}).await?;
    scene.connect("north", &[]).await?;
    scene.log_in("north").await?;
    let home = scene.stage.simulator.base_url();
    let (_, status) = scene.auth(&["status", "--json"]).await;
    assert!(status.contains(home.origin().ascii_serialization().as_str()), "{status}");
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", stranger.local_addr().unwrap());
    let visits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&visits);
    let listening = tokio::spawn(async move {
        while stranger.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut config = json!({
        "connector.class": "RecordSource",
        "topic.prefix": format!("{}-stranger", scene.stage.group),
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        "provider.base.url": address,
        "provider.auth.url": home.to_string(),
        "provider.subscription.key": KEY,
        "oauth.client.id": "simulated-client",
        "oauth.client.secret": "simulated-secret",
        "accounting.oauth.grant": "north",
    });

    // The host is allowed and the client is the login's; only the origin is another.
    scene.stage.configure("stranger", &config).await?;
    let trace = scene.until_task("stranger", "FAILED").await?;

    assert!(
        trace.contains("provider.base.url") && trace.contains("tributary auth login accounting"),
        "{trace}"
    );
    assert!(!trace.contains(&address), "{trace}");
    assert_eq!(visits.load(Ordering::SeqCst), 0, "the stranger received a request");
    listening.abort();

    // A host that the worker does not allow is refused before anything runs.
    config["provider.base.url"] = json!("https://stranger.invalid");
    let (status, answer) = scene.stage.ask(0, "PUT", "/connectors/stranger/config", Some(&config)).await?;
    let message = answer["message"].as_str().unwrap_or_default();
    assert_eq!(status, 400, "{answer}");
    assert!(message.contains("provider.base.url") && message.contains("provider.hosts.allowed"), "{message}");
    Ok(())
}
