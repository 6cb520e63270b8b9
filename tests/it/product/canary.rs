//! A secret behind a reference is in nothing that a running worker says, whichever key refers to it.
//!
//! Every key of both connectors is set to the reference, alone in a created connector and in pairs that are validated together. The gate
//! tries a share of the pairs, another one each day; `TRIBUTARY_TEST_CYCLES_CANARY` is the number of shares, `TRIBUTARY_TEST_SEED` says
//! which comes first.
//! Then every answer, the log at `trace`, the metrics, the statuses with their traces, the worker's topics and its disk are
//! searched. What a caller who may only read learns is the same for every secret.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use kafka::{ConsumerRecord, read_to_end};
use serde_json::{Value, json};
use tributary::config;

use crate::support::dice::seed;
use crate::support::secrets::Secrets;
use crate::support::tributary::Tributary;
use crate::support::{Result, Shared, cycles, run_directory};

crate::tests! {
    real no_key_or_pair_of_keys_shows_a_referenced_secret within 300;
    real a_reader_learns_nothing_about_secrets_and_files;
    real sixty_four_device_references_leave_the_worker_answering;
}

const CANARY: &str = "canary-in-a-coal-mine-8c41,canary-in-a-coal-mine-8c41";
const CLASSES: [&str; 2] = ["WebhookSource", "RecordSource"];
/// Keys whose values are compared with those of others.
const COMPARED: [&str; 4] =
    ["topic.prefix", "errors.deadletterqueue.topic.name", "invoicing.tenants", "payroll.oauth.grant"];
const LIMIT: Duration = Duration::from_secs(60);
/// Shares that the pairs are divided into, and how many of them the gate tries.
const SHARES: u64 = 24;
const TRIED: u32 = 1;

fn sound(class: &str, name: &str) -> Value {
    let mut config = json!({
        "name": name, "connector.class": class, "topic.prefix": name,
        "topic.creation.default.replication.factor": "1",
        "provider.base.url": "http://127.0.0.1:1", "provider.auth.url": "http://127.0.0.1:1",
        "provider.subscription.key": "0123456789abcdef", "oauth.client.id": "client",
        "oauth.client.secret": "0123456789abcdef",
    });
    if class == "WebhookSource" {
        let hooks = json!({
            "accounting.resources": "customers", "accounting.secret": "0123456789abcdef",
            "invoicing.segment": name, "invoicing.hooks": "Customer:Created",
            "invoicing.secret": "0123456789abcdef0123456789abcdef",
            "invoicing.login.mail": "a@example.com", "invoicing.login.password": "0123456789abcdef",
        });
        config.as_object_mut().unwrap().extend(hooks.as_object().unwrap().clone());
    }
    config
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap()
}

/// The keys that the worker itself names, with their types.
async fn keys(worker: &Tributary, http: &reqwest::Client, class: &str) -> Result<Vec<(String, String)>> {
    let path = format!("/connector-plugins/{class}/config");
    let (_, text) = worker.ask(http, "GET", &path, None).await?;
    let definitions: Value = serde_json::from_str(&text).unwrap();
    let member = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let all = definitions.as_array().unwrap().iter();
    Ok(all.map(|one| (member(one, "name"), member(one, "type"))).collect())
}

async fn no_key_or_pair_of_keys_shows_a_referenced_secret(shared: &'static Shared) -> Result<()> {
    let secrets = run_directory::create("canary-secrets")?;
    fs::write(secrets.join("bird"), CANARY).unwrap();
    let reference = format!("${{dir:{}:bird}}", secrets.display());
    let twice = format!("{reference}=a,{reference}=b");
    let properties = [("log.filter", "trace"), ("value.converter.schema.registry.url", shared.registry())];
    let worker = Tributary::start(shared.bootstrap(), "canary", &properties).await?;
    let http = http();
    let mut said: Vec<(String, Vec<u8>)> = Vec::new();
    let (seed, tried) = (seed(), u64::from(cycles("CANARY", TRIED)));
    let (mut accepted, mut pairs) = (0, 0);
    for class in CLASSES {
        let validate = format!("/connector-plugins/{class}/config/validate");
        let keys = keys(&worker, &http, class).await?;
        assert!(keys.len() > 40, "{}", keys.len());
        for (index, (key, kind)) in keys.iter().enumerate() {
            for value in [&reference, &twice] {
                let name = format!("c{}{index}", &class[..1].to_lowercase());
                let mut config = sound(class, &name);
                config[key] = json!(value);
                let (_, answer) = worker.ask(&http, "PUT", &validate, Some(&config)).await?;
                said.push((format!("the validation of {key}"), answer.into_bytes()));
                let path = format!("/connectors/{name}/config");
                let (status, answer) = worker.ask(&http, "PUT", &path, Some(&config)).await?;
                assert!(kind == "PASSWORD" || status == 400, "{key} takes a reference: {status}");
                accepted += u32::from(status == 201);
                said.push((format!("the creation with {key}"), answer.into_bytes()));
            }
            // All pairs are in the unit tests of the configuration; here those with a secret or a name that others are built from.
            let others = keys[index + 1..].iter();
            let others = others.filter(|(other, kind)| kind == "PASSWORD" || COMPARED.contains(&&**other));
            for (other, _) in others {
                pairs += 1;
                if (pairs + seed % SHARES) % SHARES >= tried {
                    continue;
                }
                let mut config = sound(class, "pair");
                config[key] = json!(reference);
                config[other] = json!(format!("{reference}.state"));
                let (_, answer) = worker.ask(&http, "PUT", &validate, Some(&config)).await?;
                said.push((format!("the validation of {key} and {other}"), answer.into_bytes()));
            }
        }
    }
    println!("canary: {} of {SHARES} shares of {pairs} pairs of keys", tried.min(SHARES));
    assert!(accepted >= 5, "{accepted} connectors with a reference were created");
    for path in ["/connectors?expand=info&expand=status", "/health", "/metrics", "/admin/loggers"] {
        said.push((path.to_owned(), worker.ask(&http, "GET", path, None).await?.1.into_bytes()));
    }
    worker.stop().await?;
    let log = worker.said();
    assert!(log.contains("TRACE"), "the log does not say all it can");
    said.push(("the log".to_owned(), log.into_bytes()));
    let loaded = config::Worker::load(Some(worker.config()), []).unwrap().config;
    for topic in [&loaded.topics.config, &loaded.topics.status, &loaded.topics.offset] {
        let mut bytes = Vec::new();
        let each = |record: ConsumerRecord| {
            bytes.extend(record.headers.iter().flat_map(|(_, value)| value.to_vec()));
            bytes.extend(record.key.iter().chain(&record.value).flat_map(|part| part.to_vec()));
        };
        let partitions: Vec<i32> = (0..topic.partitions).collect();
        read_to_end(&loaded.kafka, &topic.name, &partitions, LIMIT, each).await.unwrap();
        said.push((topic.name.clone(), bytes));
    }

    let mut hidden = Secrets::default();
    hidden.add("the canary", CANARY);
    hidden.add("a part of the canary", "canary-in-a-coal-mine-8c41");
    let mut found: Vec<String> = said.iter().flat_map(|(place, text)| hidden.found_in(place, text)).collect();
    found.extend(hidden.found_below(&worker.state()));
    assert_eq!(found, Vec::<String>::new());
    Ok(())
}

async fn a_reader_learns_nothing_about_secrets_and_files(shared: &'static Shared) -> Result<()> {
    let secrets = run_directory::create("canary-reader")?;
    for (name, text) in [("short", "x"), ("long", CANARY), ("empty", "")] {
        fs::write(secrets.join(name), text).unwrap();
    }
    let properties = [
        ("admin.auth.method", "basic"),
        ("admin.auth.user", "admin"),
        ("admin.auth.password", "of-the-admin"),
        ("admin.auth.readonly.user", "viewer"),
        ("admin.auth.readonly.password", "of-the-viewer"),
    ];
    let worker = Tributary::start(shared.bootstrap(), "canary-reader", &properties).await?;
    let http = http();
    let validate = async |user: &str, password: &str, changes: &[(&str, String)]| {
        let mut config = sound("WebhookSource", "hooks");
        for (key, value) in changes {
            config[key] = json!(value);
        }
        let url = format!("{}/connector-plugins/WebhookSource/config/validate", worker.url());
        let request = http.put(url).basic_auth(user, Some(password)).json(&config);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        let each = answer["configs"].as_array().unwrap().iter();
        let errors = each.flat_map(|entry| entry["value"]["errors"].as_array().unwrap().clone());
        errors.map(|error| error.as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let at = |name: &str| format!("${{dir:{}:{name}}}", secrets.display());

    let mut seen_by_admin = BTreeMap::new();
    for name in ["short", "long", "empty", "missing"] {
        let changes = [("accounting.secret", at(name)), ("accounting.secret.previous", at("long"))];
        let by_reader = validate("viewer", "of-the-viewer", &changes).await;
        assert_eq!(by_reader, Vec::<String>::new(), "{name}");
        seen_by_admin.insert(name, validate("admin", "of-the-admin", &changes).await);
    }
    for file in [secrets.join("long"), secrets.join("missing")] {
        let changes = [("provider.ssl.ca.location", file.display().to_string())];
        assert_eq!(validate("viewer", "of-the-viewer", &changes).await, Vec::<String>::new());
    }
    // A caller who may change connectors learns which rule is broken, and not by how much.
    assert!(seen_by_admin["short"][0].contains("must be 16 to 128 bytes long"), "{seen_by_admin:?}");
    assert!(!seen_by_admin["short"][0].contains("has"), "{seen_by_admin:?}");
    assert!(seen_by_admin["long"][0].contains("nothing was rotated"), "{seen_by_admin:?}");
    assert!(seen_by_admin["missing"][0].contains("cannot read"), "{seen_by_admin:?}");
    Ok(())
}

async fn sixty_four_device_references_leave_the_worker_answering(shared: &'static Shared) -> Result<()> {
    let worker = Tributary::start(shared.bootstrap(), "canary-devices", &[]).await?;
    let http = http();
    let validate = "/connector-plugins/WebhookSource/config/validate";
    let mut config = sound("WebhookSource", "hooks");
    config["accounting.secret"] = json!("${dir:/dev:ptmx}");
    let asked = (0..64).map(|_| worker.ask(&http, "PUT", validate, Some(&config)));
    for answer in futures::future::join_all(asked).await {
        let (status, text) = answer?;
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("cannot read"), "{text}");
    }

    let sound = sound("WebhookSource", "hooks");
    let (status, text) = worker.ask(&http, "PUT", validate, Some(&sound)).await?;

    assert_eq!(status, 200, "{text}");
    assert!(text.contains("\"error_count\":0"), "{text}");
    Ok(())
}
