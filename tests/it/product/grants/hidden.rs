//! A worker that logs at `trace` while its grants are refreshed, refused and lost: its output, files and topics show no secret.

use std::fs;
use std::time::Duration;

use simulator::knobs::{Effect, HttpStatus, IdentityEndpoint, IdentityFault, RetryHint};
use tributary::config;

use super::cluster::KEY as ENCRYPTION_KEY;
use super::scene::GrantScene;
use crate::product::simulator::KEY;
use crate::support::secrets::Secrets;
use crate::support::topics::bytes_of;
use crate::support::{Result, Shared, run_directory};

crate::tests! {
    real no_token_or_key_is_in_a_workers_output_or_files within 240;
}

const CONNECTOR: &str = "books";
const CLIENT_SECRET: &str = "simulated-secret";
const ACCOUNTING_SECRET: &str = "for-deliveries-of-books-alone-5Xe9";
const PASSWORD: &str = "of-the-invoicing-account-6Yf1";
/// A session that has to end, and a busy machine.
const LONG: Duration = Duration::from_secs(90);

async fn no_token_or_key_is_in_a_workers_output_or_files(shared: &'static Shared) -> Result<()> {
    let files = run_directory::create("grants-hidden-secrets")?;
    let named = [
        ("provider.subscription.key", "key", KEY),
        ("oauth.client.secret", "client", CLIENT_SECRET),
        ("accounting.secret", "deliveries", ACCOUNTING_SECRET),
        ("invoicing.login.password", "password", PASSWORD),
    ];
    let mut settings = vec![
        ("subscriptions.manage", "true".to_owned()),
        ("invoicing.login.mail", "robot@example.com".to_owned()),
    ];
    for (setting, name, secret) in named {
        fs::write(files.join(name), secret).unwrap();
        settings.push((setting, format!("${{dir:{}:{name}}}", files.display())));
    }
    let settings: Vec<(&str, &str)> = settings.iter().map(|(key, value)| (*key, &**value)).collect();
    let properties = [("log.filter", "trace"), ("webhook.advertised.url", "https://hooks.example.com")];
    let scene = GrantScene::start(shared, "grants-hidden", 1, &properties, |settings| {
        settings.knobs.identity.access_seconds = 4;
    })
    .await?;
    scene.connect(CONNECTOR, &settings).await?;
    scene.log_in(CONNECTOR).await?;
    let refreshed =
        |serial: u64| move |reported: &super::scene::ReportedGrants| reported[CONNECTOR].serial >= serial;
    scene.until(0, "logged in", LONG, |reported| reported.contains_key(CONNECTOR)).await?;
    scene.until(0, "refreshed", LONG, refreshed(3)).await?;

    // Refusals with every kind of body, then the end of the login.
    let fault =
        |effect| IdentityFault { on: IdentityEndpoint::Token, effect, times: Some(1), after_work: false };
    let page = HttpStatus::new(404).unwrap();
    let faults = vec![
        fault(Effect::Oversized { bytes: 10 << 20, status: page }),
        fault(Effect::Html { status: page }),
        fault(Effect::Throttle { seconds: 1, tells: RetryHint::default() }),
    ];
    let provider = scene.stage.simulator.provider();
    provider.turn(|knobs| knobs.identity.faults = faults);
    let serial = scene.reported(0).await?[CONNECTOR].serial;
    scene.until(0, "refreshed in spite of faults", LONG, refreshed(serial + 2)).await?;
    provider.identity.revoke_all(provider.clock.now());
    scene.until(0, "lost", LONG, |reported| reported[CONNECTOR].state == "lost").await?;

    let mut said = Vec::new();
    for path in [
        "/connectors?expand=info&expand=status",
        "/connectors/books/config",
        "/connectors/books/status",
        "/connectors/books/tasks",
        "/health",
        "/metrics",
    ] {
        said.push((path.to_owned(), scene.text(0, path).await?.into_bytes()));
    }
    let worker = config::Worker::load(Some(scene.stage.workers[0].config()), []).unwrap().config;
    let topics = [&worker.topics.grant, &worker.topics.config, &worker.topics.status];
    for topic in topics {
        let bytes = bytes_of(&worker.kafka, &topic.name, topic.partitions).await;
        said.push((topic.name.clone(), bytes));
    }
    scene.stage.workers[0].stop().await?;
    let log = scene.stage.workers[0].said();
    // A check that this is the right log, since any other would hold no secret either.
    assert!(log.contains("TRACE") && log.contains("the grant is lost"), "{}", log.len());
    said.push(("the log".to_owned(), log.into_bytes()));

    let mut secrets = Secrets::default();
    for (setting, _, secret) in named {
        secrets.add(setting, secret);
    }
    secrets.add("grant.encryption.key", ENCRYPTION_KEY);
    let issued = provider.identity.issued();
    assert!(issued.len() >= 8, "{} tokens", issued.len());
    for token in issued {
        secrets.add(&format!("a {} token or code", token.kind), &token.token);
    }
    let mut found: Vec<String> = Vec::new();
    for (place, text) in &said {
        assert!(!text.is_empty(), "{place} says nothing");
        found.extend(secrets.found_in(place, text));
    }
    found.extend(secrets.found_below(&worker.state_dir));
    assert_eq!(found, Vec::<String>::new());
    Ok(())
}
