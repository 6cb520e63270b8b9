//! The shared state of the checks of a run: the client, the names, and values that earlier checks leave for later ones.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{CheckOutcome, RestAnswer, RestClient, segment};
use super::shapes;
use super::subject::Subject;
use crate::support;

/// Between two requests: REST gives no signal of a change.
const STEP: Duration = Duration::from_millis(50);

/// One run on one worker.
pub(crate) struct CheckScene<'a> {
    pub(crate) client: RestClient,
    pub(crate) subject: &'a Subject,
    prefix: String,
    /// Offsets that were read while the connector ran, to be written back once it is stopped.
    pub(crate) offsets: OnceLock<Value>,
    /// The root logger's level before it was changed.
    pub(crate) root_level: OnceLock<String>,
}

impl<'a> CheckScene<'a> {
    pub(crate) fn new(subject: &'a Subject) -> Result<Self, String> {
        let client = RestClient::new(subject)?;
        let prefix = support::prefix(&subject.prefix);
        Ok(Self { client, subject, prefix, offsets: OnceLock::new(), root_level: OnceLock::new() })
    }

    /// The full name of a connector of this run.
    pub(crate) fn name(&self, short: &str) -> String {
        format!("{}-{short}", self.prefix)
    }

    /// A name that no connector has.
    pub(crate) fn unknown(&self) -> String {
        self.name("unknown")
    }

    /// `/connectors/{name}{rest}`.
    pub(crate) fn path(&self, short: &str, rest: &str) -> String {
        format!("/connectors/{}{rest}", segment(&self.name(short)))
    }

    /// The valid configuration, as sent.
    pub(crate) fn config(&self) -> Value {
        json!(self.subject.config)
    }

    /// The valid configuration with some settings over it.
    pub(crate) fn config_with(&self, settings: &Value) -> Value {
        let mut config = self.config();
        for (key, value) in settings.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        config
    }

    /// The valid configuration with the subject's change.
    pub(crate) fn changed_config(&self) -> Value {
        let (key, value) = &self.subject.change;
        self.config_with(&json!({ key: value }))
    }

    /// The echo of a configuration: all settings and the name.
    pub(crate) fn echo(&self, short: &str, config: &Value) -> Value {
        let mut echo = config.clone();
        echo["name"] = json!(self.name(short));
        echo
    }

    /// Creates a connector as most clients do.
    pub(crate) async fn create(&self, short: &str, config: &Value) -> Result<RestAnswer, String> {
        self.client.post("/connectors", &json!({ "name": self.name(short), "config": config })).await
    }

    /// Creates a connector with the valid configuration and waits until it runs.
    pub(crate) async fn create_running(&self, client: &RestClient, short: &str) -> CheckOutcome {
        let body = json!({ "name": self.name(short), "config": self.config() });
        client.post("/connectors", &body).await?.expect(201)?.of(&shapes::INFO)?;
        self.until_running(short).await
    }

    /// Repeats `attempt` until it holds; its last fault if it never does.
    pub(crate) async fn eventually(&self, mut attempt: impl AsyncFnMut() -> CheckOutcome) -> CheckOutcome {
        let began = Instant::now();
        loop {
            let Err(fault) = attempt().await else { return Ok(()) };
            if support::lost::fair(began) >= self.subject.patience {
                return Err(format!("{fault} (still after {:?})", self.subject.patience));
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Waits until the connector and each of its tasks, of which there is at least one, have this state.
    pub(crate) async fn until_all(&self, short: &str, state: &str) -> CheckOutcome {
        self.eventually(async || {
            let answer = self.status(short).await?.has("/connector/state", &json!(state))?;
            let tasks = answer.list_at("/tasks")?;
            if tasks.is_empty() || tasks.iter().any(|task| task["state"] != state) {
                return Err(
                    answer.fault(&format!("expected tasks, all {state}, got {}", answer.json["tasks"]))
                );
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn until_running(&self, short: &str) -> CheckOutcome {
        self.until_all(short, "RUNNING").await
    }

    /// Waits until the connector is stopped and shows no tasks.
    pub(crate) async fn until_stopped(&self, short: &str) -> CheckOutcome {
        self.eventually(async || {
            let answer = self.status(short).await?.has("/connector/state", &json!("STOPPED"))?;
            answer.has("/tasks", &json!([])).map(drop)
        })
        .await
    }

    /// Waits until connector and status are 404.
    pub(crate) async fn until_gone(&self, short: &str) -> CheckOutcome {
        self.eventually(async || {
            self.client.get(&self.path(short, "")).await?.expect_error(404)?;
            self.client.get(&self.path(short, "/status")).await?.expect_error(404).map(drop)
        })
        .await
    }

    pub(crate) async fn status(&self, short: &str) -> Result<RestAnswer, String> {
        self.client.get(&self.path(short, "/status")).await?.expect(200)?.of(&shapes::STATUS)
    }

    /// Removes everything that this run created.
    pub(crate) async fn clean_up(&self) -> CheckOutcome {
        if let Some(level) = self.root_level.get() {
            self.client.put("/admin/loggers/root", &json!({ "level": level })).await?;
        }
        self.eventually(async || {
            let names = self.own_connectors().await?;
            for name in &names {
                self.client.delete(&format!("/connectors/{}", segment(name))).await?;
            }
            let left = self.own_connectors().await?;
            if left.is_empty() { Ok(()) } else { Err(format!("connectors {}", left.join(", "))) }
        })
        .await
    }

    /// The connectors of this run that the worker lists.
    pub(crate) async fn own_connectors(&self) -> Result<Vec<String>, String> {
        let answer = self.client.get("/connectors").await?.expect(200)?;
        let names = answer.list()?.iter().filter_map(Value::as_str);
        Ok(names.filter(|name| name.starts_with(&self.prefix)).map(str::to_owned).collect())
    }
}
