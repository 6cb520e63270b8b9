//! `tributary auth`, from the printed URL to the grant in the topic, against the simulated provider and a real Kafka. [`login`]
//! scripts the browser, so that it can misbehave; [`browser`] uses a real one.

mod browser;
mod login;
mod status;
mod tenant;

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use simulator::{Simulator, settings::Settings};
use url::Url;

use crate::product::simulator::{KEY, start};
use crate::support::command::{stderr, stdout, tributary};
use crate::support::harness::Test;
use crate::support::login::{self as person, Login, parameter};
use crate::support::secrets::Secrets;
use crate::support::{ALLOWED_HOSTS, Result, Shared, prefix, run_directory, traced};

pub(crate) fn tests() -> Vec<Test> {
    [browser::tests(), login::tests(), status::tests(), tenant::tests()].into_iter().flatten().collect()
}

const LIMIT: Duration = Duration::from_secs(60);
const ENCRYPTION_KEY: &str = "an-encryption-key-of-more-than-32-characters";
/// The simulator's client secret.
const CLIENT_SECRET: &str = "simulated-secret";

/// A provider, a connector for it, and worker properties with separate topics.
struct Scene {
    simulator: Simulator,
    directory: PathBuf,
    config: PathBuf,
    connector: PathBuf,
    http: reqwest::Client,
}

impl Scene {
    async fn new(shared: &Shared, name: &str, adjust: impl FnOnce(&mut Settings)) -> Self {
        Self::with(shared, name, &[], adjust).await
    }

    /// With more connector settings.
    async fn with(
        shared: &Shared,
        name: &str,
        settings: &[(&str, &str)],
        adjust: impl FnOnce(&mut Settings),
    ) -> Self {
        let simulator = start(adjust).await;
        traced::hide("the encryption key", ENCRYPTION_KEY);
        let directory = run_directory::create(name).unwrap();
        let topics = prefix(name);
        let mut properties = format!(
            "bootstrap.servers={}\ngroup.id={topics}\nlisteners=http://127.0.0.1:0\nstate.dir={}\n\
             value.converter.schema.registry.url=http://127.0.0.1:1\ngrant.encryption.key={ENCRYPTION_KEY}\n\
             provider.hosts.allowed={ALLOWED_HOSTS}\n",
            shared.bootstrap(),
            directory.join("state").display(),
        );
        for (topic, partitions) in [("config", 1), ("offset", 3), ("status", 2), ("work", 8), ("grant", 1)] {
            properties += &format!(
                "{topic}.storage.topic={topics}-{topic}\n{topic}.storage.partitions={partitions}\n\
                 {topic}.storage.replication.factor=1\n"
            );
        }
        let address = simulator.base_url().to_string();
        let mut connector = json!({
            "connector.class": "WebhookSource",
            "topic.prefix": "acme",
            "accounting.resources": "all",
            "accounting.secret": "a-secret-of-more-than-32-characters!",
            "subscriptions.manage": "false",
            "provider.base.url": address,
            "provider.auth.url": address,
            "provider.subscription.key": KEY,
            "oauth.client.id": "simulated-client",
            "oauth.client.secret": CLIENT_SECRET,
        });
        for (key, value) in settings {
            connector[*key] = json!(value);
        }
        let (config, file) = (directory.join("worker.properties"), directory.join("books.json"));
        fs::write(&config, properties).unwrap();
        fs::write(&file, json!({ "name": "books", "config": connector }).to_string()).unwrap();
        Self { simulator, directory, config, connector: file, http: person::http() }
    }

    fn login(&self, arguments: &[&str]) -> Login {
        let log = self.directory.join("login.log");
        Login::begin(&self.connector, &self.config, &log, arguments).unwrap()
    }

    /// Logs in at the provider, and returns the callback URL.
    async fn enter(&self, address: &Url) -> Url {
        person::enter(&self.http, address).await
    }

    async fn get(&self, address: &Url) -> (u16, String) {
        let answer = self.http.get(address.clone()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Codes and tokens that were presented to the provider.
    fn exchanges(&self) -> Vec<Value> {
        let exchanges = self.simulator.provider().identity.exchanges(0, usize::MAX);
        exchanges.into_iter().map(|(_, exchange)| serde_json::to_value(exchange).unwrap()).collect()
    }

    async fn auth(&self, arguments: &[&str]) -> Output {
        let config = self.config.display().to_string();
        tributary(&[&["auth"], arguments, &["--config", &config]].concat(), &[]).await
    }

    /// Exit code and grants of `auth status`.
    async fn grants(&self) -> (Option<i32>, Vec<Value>) {
        let output = self.auth(&["status", "--json"]).await;
        let lines: Vec<Value> =
            stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let is_answered = !lines.is_empty() || output.status.code() == Some(0);
        assert!(is_answered, "auth status shows nothing: {}", stderr(&output));
        (output.status.code(), lines)
    }

    /// Everything that must not appear in output.
    fn secrets(&self) -> Secrets {
        let mut secrets = Secrets::default();
        for issued in self.simulator.provider().identity.issued() {
            secrets.add(&format!("the {} token or code", issued.kind), &issued.token);
        }
        secrets.add("the client secret", CLIENT_SECRET);
        secrets.add("the subscription key", KEY);
        secrets.add("the encryption key", ENCRYPTION_KEY);
        secrets
    }

    /// Secrets in the output of the command.
    fn leaks(&self, login: &Login) -> Vec<String> {
        self.secrets().found_in("the output of auth login", login.process.said().as_bytes())
    }
}
