//! The attacks of a security audit, replayed against a kept demo and against a worker with the shipped configuration.
//! `tests/tools/attacks` runs this alone. Each test prints a table of attempts and answers; an attempt that succeeds fails it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka::{Producer, ProducerOptions};
use model::EncodedRecord;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::command::{stderr, stdout, tributary};
use crate::support::process::Process;
use crate::support::{Result, Shared, prefix, run_directory};

crate::tests! {
    plain the_demo_refuses_every_attack within 240;
    real a_shipped_worker_refuses_every_attack within 300;
}

/// A worker or a demo may start slowly on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);
/// Time limit for an answer while the worker is under attack.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const GRANT_KEY: &str = "the-key-of-all-grants-in-this-test-41c7";
const ALLOWED: &str = "a-secret-that-connectors-may-refer-to-9d02";
const MEBIBYTE: usize = 1024 * 1024;
/// Forged deliveries of each kind: enough for a CPU clock that ticks in hundredths of a second.
const FORGED: u32 = 60;

async fn the_demo_refuses_every_attack() -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["demo", "--keep", "--seconds", "9", "--rate", "10"]).env_clear();
    let log = run_directory::create("attacks-demo")?.join("demo.log");
    let process = Process::spawn("attacks-demo", command, &log)?;
    let place = |what: &str| {
        let said = process.said();
        let (_, after) = said.rsplit_once(&format!("\n{what}"))?;
        after.split_whitespace().next().map(str::to_owned)
    };
    process.ready(LIMIT, async || place("REST API").is_some() && place("registry").is_some()).await?;
    let mut attack = Attack::on("tributary demo --keep", place("REST API").unwrap());

    attack.read_secrets(&[]).await;
    attack.hang_validation().await;
    attack.reach_private_hosts().await;
    attack.take_the_login().await;

    attack.report();
    Ok(())
}

async fn a_shipped_worker_refuses_every_attack(shared: &'static Shared) -> Result<()> {
    let directory = run_directory::create("attacks-shipped")?;
    let (config, environment, prefix) = shipped(shared, &directory);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["run", "--config"]).arg(&config).env_clear();
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let process = Process::spawn("attacks-shipped", command, &directory.join("worker.log"))?;
    let listens = |what: &str| {
        let said = process.said();
        said.lines().find_map(|line| Some(line.split_once(what)?.1.trim().to_owned()))
    };
    process
        .ready(LIMIT, async || {
            listens(" listens on ").is_some() && listens(" receives deliveries on ").is_some()
        })
        .await?;
    let mut attack = Attack::on(
        "worker with the shipped configuration",
        format!("http://{}", listens(" listens on ").unwrap()),
    );
    let receiver = format!("http://{}", listens(" receives deliveries on ").unwrap());
    process.ready(LIMIT, async || attack.is_healthy().await).await?;

    attack.read_secrets(&[GRANT_KEY, ALLOWED]).await;
    attack.hang_validation().await;
    attack.reach_private_hosts().await;
    attack.be_the_provider().await;
    attack.burn_cpu(&receiver, &prefix, process.id()).await?;
    attack.forge_a_letter(shared, &config, &environment, &prefix).await?;

    attack.report();
    Ok(())
}

/// The shipped properties with addresses of this machine, the variables they need, and a prefix.
fn shipped(shared: &Shared, directory: &Path) -> (String, Vec<(String, String)>, String) {
    let group = prefix("attacks");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let config = directory.join("worker.properties");
    fs::copy(root.join("worker.properties"), &config).unwrap();
    let mut environment: Vec<(String, String)> = [
        ("CONNECT_BOOTSTRAP_SERVERS", shared.bootstrap().to_owned()),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", shared.registry().to_owned()),
        ("CONNECT_GROUP_ID", group.clone()),
        ("CONNECT_LISTENERS", "http://127.0.0.1:0".to_owned()),
        ("CONNECT_WEBHOOK_LISTENERS", "http://127.0.0.1:0".to_owned()),
        ("CONNECT_STATE_DIR", directory.join("state").display().to_string()),
        ("TRIBUTARY_GRANT_KEY", GRANT_KEY.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    for topic in ["CONFIG", "OFFSET", "STATUS", "WORK", "GRANT"] {
        environment.push((format!("CONNECT_{topic}_STORAGE_REPLICATION_FACTOR"), "1".to_owned()));
        environment
            .push((format!("CONNECT_{topic}_STORAGE_TOPIC"), format!("{group}-{}", topic.to_lowercase())));
    }
    for name in [
        "PROVIDER_SUBSCRIPTION_KEY",
        "OAUTH_CLIENT_SECRET",
        "ACCOUNTING_WEBHOOK_SECRET",
        "INVOICING_WEBHOOK_SECRET",
        "INVOICING_PASSWORD",
    ] {
        environment.push((name.to_owned(), format!("{ALLOWED}-{name}")));
    }
    (config.display().to_string(), environment, group)
}

/// One target, and the results of the attempts on it.
struct Attack {
    target: String,
    url: String,
    http: reqwest::Client,
    rows: Vec<[String; 3]>,
}

impl Attack {
    fn on(target: &str, url: String) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
        Self { target: target.to_owned(), url, http, rows: Vec::new() }
    }

    async fn is_healthy(&self) -> bool {
        let answer = self.http.get(format!("{}/health", self.url)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    fn note(&mut self, number: u8, attempt: &str, answer: impl Into<String>) {
        self.rows.push([number.to_string(), attempt.to_owned(), answer.into()]);
    }

    fn report(&self) {
        let mut text = format!("\nattacks on {}\n", self.target);
        for [number, attempt, answer] in &self.rows {
            writeln!(text, "{number:>2}  {attempt:<66}  {answer}").unwrap();
        }
        println!("{text}");
    }

    async fn put(&self, path: &str, body: &Value) -> (u16, String) {
        let request = self.http.put(format!("{}{path}", self.url)).json(body);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The errors of a validation, and all of its text.
    async fn validate(&self, class: &str, config: &Value) -> (String, String) {
        let (status, text) = self.put(&format!("/connector-plugins/{class}/config/validate"), config).await;
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let entries = answer["configs"].as_array().unwrap().iter();
        let errors = entries.flat_map(|entry| entry["value"]["errors"].as_array().unwrap());
        let errors: Vec<&str> = errors.map(|error| error.as_str().unwrap()).collect();
        (errors.join(" | "), text)
    }

    /// 1 and 3: secrets of the worker and of the machine, through references.
    async fn read_secrets(&mut self, secrets: &[&str]) {
        let tenants = "${env:TRIBUTARY_GRANT_KEY}=a,${env:TRIBUTARY_GRANT_KEY}=b";
        let table: [(u8, &str, &str, &str, &str); 7] = [
            (1, "a tenant list of references", "invoicing.tenants", tenants, "must not hold a reference"),
            (
                1,
                "a topic prefix from a reference",
                "topic.prefix",
                "${env:TRIBUTARY_GRANT_KEY}",
                "must not hold a reference",
            ),
            (
                3,
                "the grant key as a secret",
                "accounting.secret",
                "${env:TRIBUTARY_GRANT_KEY}",
                "environment variable",
            ),
            (3, "a variable of the process", "accounting.secret", "${env:PATH}", "environment variable"),
            (3, "a key of a file", "accounting.secret", "${file:/etc/passwd:root}", "closed to connectors"),
            (3, "a whole file", "accounting.secret", "${dir:/etc:hostname}", "closed to connectors"),
            (
                3,
                "the environment of the process",
                "accounting.secret",
                "${dir:/proc/self:environ}",
                "closed to connectors",
            ),
        ];
        for (number, attempt, key, value, expected) in table {
            let mut config = connector("WebhookSource");
            config[key] = json!(value);
            if key == "topic.prefix" {
                config["errors.deadletterqueue.topic.name"] = json!(format!("{value}.state"));
            }
            let (errors, text) = self.validate("WebhookSource", &config).await;
            assert!(errors.contains(expected), "{attempt}: {errors}");
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{attempt}: {text}");
            let rule = errors.split(" | ").find(|error| error.contains(expected)).unwrap_or_default();
            self.note(number, attempt, format!("refused: {}", rule.chars().take(90).collect::<String>()));
        }
    }

    /// 4: references that never end, 64 at a time.
    async fn hang_validation(&mut self) {
        let mut config = connector("WebhookSource");
        config["accounting.secret"] = json!("${dir:/dev:ptmx}");
        let each = (0..64).map(|_| self.validate("WebhookSource", &config));
        futures::future::join_all(each).await;
        let begun = Instant::now();
        self.validate("WebhookSource", &connector("WebhookSource")).await;
        let took = begun.elapsed();
        assert!(took < ANSWER_LIMIT, "the next validation took {took:?}");
        self.note(
            4,
            "64 validations of a terminal device",
            format!("the next answer took {} ms", took.as_millis()),
        );
    }

    /// 5: hosts of this machine and its networks.
    async fn reach_private_hosts(&mut self) {
        for url in [
            "https://169.254.169.254",
            "https://10.0.0.1",
            "https://[::1]:8083",
            "https://2852039166",
            "https://0xa.1",
        ] {
            for key in ["provider.base.url", "provider.auth.url"] {
                let mut config = connector("RecordSource");
                config[key] = json!(url);
                let (errors, _) = self.validate("RecordSource", &config).await;
                let error = errors.split(" | ").find(|error| error.starts_with(key)).unwrap_or_default();
                assert!(error.contains("provider.hosts.allowed"), "{url}: {errors}");
                assert!(!errors.contains(url), "{errors}");
            }
            self.note(5, &format!("{url} as the provider"), "refused: not in provider.hosts.allowed");
        }
    }

    /// 2: a connector with the login's client and another address of an allowed host.
    async fn take_the_login(&mut self) {
        let visits = Arc::new(AtomicUsize::new(0));
        let stranger = stranger(Arc::clone(&visits)).await;
        let (_, told) = self.get("/connectors/records/config").await;
        let mut config: Value = serde_json::from_str(&told).unwrap();
        config["name"] = json!("stranger");
        config["topic.prefix"] = json!("stranger");
        config["provider.base.url"] = json!(stranger);
        let (status, text) = self.put("/connectors/stranger/config", &config).await;
        assert_eq!(status, 201, "{text}");
        let end = Instant::now() + LIMIT;
        let trace = loop {
            let (_, text) = self.get("/connectors/stranger/status").await;
            let status: Value = serde_json::from_str(&text).unwrap_or_default();
            if status["tasks"][0]["state"] == "FAILED" {
                break status["tasks"][0]["trace"].as_str().unwrap_or_default().to_owned();
            }
            assert!(Instant::now() < end, "the task has not failed: {text}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(trace.contains("provider.base.url"), "{trace}");
        assert_eq!(visits.load(Ordering::SeqCst), 0, "the stranger received a request");
        self.note(
            2,
            "a connector with the login's client and another address",
            "task FAILED, 0 requests to the stranger",
        );
    }

    /// 2, without a login: a public host that is not the provider's.
    async fn be_the_provider(&mut self) {
        let mut config = connector("RecordSource");
        config["name"] = json!("stranger");
        config["provider.base.url"] = json!("https://stranger.example.net");
        let (status, text) = self.put("/connectors/stranger/config", &config).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.contains("provider.hosts.allowed") && !text.contains("stranger.example"), "{text}");
        self.note(2, "a connector with another provider", "400: not in provider.hosts.allowed");
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// 6: what a forged delivery of 1 MiB costs, invoicing against accounting.
    async fn burn_cpu(&mut self, receiver: &str, prefix: &str, process: u32) -> Result<()> {
        let mut config = connector("WebhookSource");
        config["topic.prefix"] = json!(prefix);
        config["invoicing.hooks"] = json!("all");
        // Two keys for each hook, as while a secret is rotated.
        config["accounting.secret.previous"] = json!("${env:INVOICING_PASSWORD}");
        config["invoicing.secret.previous"] = json!("${env:INVOICING_PASSWORD}");
        config["subscriptions.manage"] = json!("false");
        let (status, text) = self.put("/connectors/hooks/config", &config).await;
        assert!(status < 300, "{text}");
        let forged = "sha256=".to_owned() + &"AB".repeat(32);
        let http = self.http.clone();
        let post = async |path: &str, header: &str, size: usize| {
            // It names an entity, so that the shared address has keys to try.
            let mut body = br#"{"Entity":"Customer","More":""#.to_vec();
            body.resize(size - 2, b'x');
            body.extend(b"\"}");
            let request = http.post(format!("{receiver}{path}")).header(header, &forged);
            request.body(body).send().await.map_or(0, |answer| answer.status().as_u16())
        };
        let accounting = "/webhooks/accounting/hooks";
        let end = Instant::now() + LIMIT;
        // Once the receiver knows the connector; an unknown one costs less, and has the same answer.
        loop {
            let (_, status) = self.get("/connectors/hooks/status").await;
            let (_, health) = self.get("/health").await;
            let health: Value = serde_json::from_str(&health).unwrap_or_default();
            if status.contains("RUNNING") && health["ingest"]["receivers"]["hooks"] == "RUNNING" {
                break;
            }
            assert!(Instant::now() < end, "the receiver does not know the connector: {health}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (shared, own) =
            ("/api/webhooks/incoming/Invoicing", "/api/webhooks/incoming/Invoicing/customer-created");
        // The second size is the limit of invoicing deliveries.
        for (size, forgeries, most) in [(MEBIBYTE, FORGED, 2.0), (MEBIBYTE / 4, FORGED / 2, 4.0)] {
            let mut base = 0.0;
            for (path, header) in
                [(accounting, "svc-webhook-signature"), (shared, "ms-signature"), (own, "ms-signature")]
            {
                let (before, mut statuses) = (cpu(process), BTreeMap::<u16, u32>::new());
                for _ in 0..forgeries {
                    *statuses.entry(post(path, header, size).await).or_default() += 1;
                }
                let spent = (cpu(process) - before) / f64::from(forgeries);
                // A connection that is closed on a body that is too large counts as refused.
                let expected = if size == MEBIBYTE && path != accounting { [413, 0] } else { [401, 401] };
                assert!(statuses.keys().all(|status| expected.contains(status)), "{path}: {statuses:?}");
                base = if path == accounting { spent } else { base };
                let times = spent / base.max(0.0001);
                self.note(
                    6,
                    &format!("{} KiB, forged, to {path}", size / 1024),
                    format!(
                        "{:.1} ms of CPU, {times:.1} times accounting, answers {statuses:?}",
                        spent * 1e3
                    ),
                );
                assert!(times <= most, "{path}: {spent} s against {base} s");
            }
        }
        Ok(())
    }

    /// 9: a letter that no worker wrote, replayed into an event topic.
    async fn forge_a_letter(
        &mut self,
        shared: &Shared,
        config: &str,
        environment: &[(String, String)],
        prefix: &str,
    ) -> Result<()> {
        let topic = format!("{prefix}.dead-letters");
        let kafka = kafka::Kafka::plaintext(shared.bootstrap());
        let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
        let context = json!({
            "connector": "hooks", "prefix": prefix, "dead_letters": topic, "received_at": 1_790_000_000_000_000_i64,
            "family": { "Accounting": { "resource": null } },
        });
        let header = |name: &'static str, value: &str| (name, Bytes::from(value.to_owned()));
        let headers = vec![
            header("__connect.errors.topic", &format!("{prefix}.accounting.customers.events")),
            header("__connect.errors.connector.name", "hooks"),
            header("tributary.received.at", "1790000000000000"),
            header("tributary.delivery", &context.to_string()),
        ];
        for (attempt, signature, expected) in [
            ("unsigned", None, "it has no signature"),
            ("with a made-up signature", Some("v1:0000000000000000:AAAA"), "it is signed with the key"),
        ] {
            let mut headers = headers.clone();
            headers.extend(signature.map(|signature| header("tributary.mac", signature)));
            let record = EncodedRecord {
                topic: topic.as_str().into(),
                partition: 0,
                key: Bytes::from_static(b"hooks"),
                value: Some(Bytes::from_static(b"{\"OutgoingId\":\"forged\"}")),
                timestamp_ms: None,
                headers,
            };
            let written = producer.send(record).unwrap().await.unwrap();
            let place = format!("{}@{}", written.partition, written.offset);
            let environment: Vec<(&str, &str)> =
                environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let output = tributary(
                &[
                    "dead-letters",
                    "replay",
                    &place,
                    "--topic",
                    &topic,
                    "--prefix",
                    prefix,
                    "--config",
                    config,
                ],
                &environment,
            )
            .await;
            let said = format!("{}{}", stdout(&output), stderr(&output));
            assert!(!output.status.success() && said.contains(expected), "{attempt}: {said}");
            self.note(
                9,
                &format!("replay of a forged dead letter, {attempt}"),
                format!("refused: {expected} …"),
            );
        }
        Ok(())
    }
}

/// A host that counts its requests.
async fn stranger(visits: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            visits.fetch_add(1, Ordering::SeqCst);
        }
    });
    address
}

/// Seconds of CPU that a process has used.
fn cpu(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after = stat.rsplit_once(") ").unwrap().1;
    let fields: Vec<&str> = after.split(' ').collect();
    // utime and stime, in ticks of a hundredth of a second.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn connector(class: &str) -> Value {
    let mut config = json!({
        "name": "hooks", "connector.class": class, "topic.prefix": "attacked",
        "topic.creation.default.replication.factor": "1",
        "provider.base.url": "https://api.example.com", "provider.auth.url": "https://login.example.com",
        "provider.subscription.key": "${env:PROVIDER_SUBSCRIPTION_KEY}", "oauth.client.id": "client",
        "oauth.client.secret": "${env:OAUTH_CLIENT_SECRET}",
    });
    if class == "WebhookSource" {
        let hooks = json!({
            "accounting.resources": "customers", "accounting.secret": "${env:ACCOUNTING_WEBHOOK_SECRET}",
            "invoicing.hooks": "Customer:Created", "invoicing.secret": "${env:INVOICING_WEBHOOK_SECRET}",
            "invoicing.login.mail": "a@example.com", "invoicing.login.password": "${env:INVOICING_PASSWORD}",
        });
        config.as_object_mut().unwrap().extend(hooks.as_object().unwrap().clone());
    }
    config
}
