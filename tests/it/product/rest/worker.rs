//! A worker with real topics, tails, arbiter, herder and listener. In place of the supervisor a task writes task configurations and
//! reports that everything runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::{Admin, Kafka, ShardProducers, TransactionOptions};
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use server::{Server, ServerOptions};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tributary::{
    config::{
        Providers,
        connector::TargetState,
        worker::{InternalTopic, InternalTopics, Rest},
    },
    connect::{
        config_writer::ConfigWriter,
        herder::{Herder, HerderParts, HerderWriters, RunStore, SubscriptionParts, WorkerIdentity},
        rest::{Security, protect, router},
        supervisor::SupervisorHandle,
    },
    plugin::{Plugin, Plugins},
    state::{
        StateTables,
        configs::{self, Configs},
        statuses::{RunState, Status},
        topics,
        writer::StatusWriter,
    },
    telemetry::Filters,
    webhooks::plugin::WebhookPlugin,
};

use super::plugin::Records;
use crate::support::{lost, prefix, topics::LIMIT};

/// Workers that share their topics.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) kafka: Kafka,
    name: String,
    topics: InternalTopics,
}

impl Group {
    pub(crate) fn new(bootstrap: &str, name: &str) -> Self {
        let name = prefix(name);
        let topic = |kind: &str, partitions| InternalTopic {
            name: format!("{name}-{kind}"),
            partitions,
            replication_factor: 1,
            settings: BTreeMap::new(),
        };
        let topics = InternalTopics {
            config: topic("configs", 1),
            offset: topic("offsets", 3),
            status: topic("status", 3),
            work: topic("work", 3),
            grant: topic("grants", 1),
        };
        Self { kafka: Kafka::plaintext(bootstrap), name, topics }
    }

    /// The prefix of its topics' names.
    pub(crate) fn topic_prefix(&self) -> &str {
        &self.name
    }

    /// A worker that has read its topics.
    pub(crate) async fn worker(&self) -> Worker {
        self.starting(&self.kafka).await.caught_up().await
    }

    /// A worker with a `WebhookSource` on these ledgers, which has read its topics.
    pub(crate) async fn subscribing(&self, subscriptions: SubscriptionParts) -> Worker {
        let webhooks: Arc<dyn Plugin> = Arc::new(WebhookPlugin { providers: Providers::new([]) });
        self.start(&self.kafka, vec![webhooks], Some(subscriptions), None).await.caught_up().await
    }

    /// A worker with a `WebhookSource` and these runs, which has read its topics.
    pub(crate) async fn snapshotting(&self, snapshots: Arc<dyn RunStore>) -> Worker {
        let webhooks: Arc<dyn Plugin> = Arc::new(WebhookPlugin { providers: Providers::new([]) });
        self.start(&self.kafka, vec![webhooks], None, Some(snapshots)).await.caught_up().await
    }

    /// A worker that may not have reached Kafka yet.
    pub(crate) async fn starting(&self, kafka: &Kafka) -> Worker {
        self.start(kafka, Vec::new(), None, None).await
    }

    async fn start(
        &self,
        kafka: &Kafka,
        more: Vec<Arc<dyn Plugin>>,
        subscriptions: Option<SubscriptionParts>,
        snapshots: Option<Arc<dyn RunStore>>,
    ) -> Worker {
        let admin = Admin::Real(self.kafka.clone());
        let partitions = topics::ensure(&admin, &self.topics).await.unwrap();
        let state = StateTables::follow(kafka, &self.topics, &partitions).await.unwrap();
        let config_writer = ConfigWriter::new(kafka, state.configs.clone(), state.offsets.topic_partitions());
        let statuses = StatusWriter::start(kafka, &self.topics.status.name, partitions.status).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let herder = Herder::new(HerderParts {
            state: state.clone(),
            writers: HerderWriters {
                configs: config_writer.clone(),
                statuses: statuses.clone(),
                shards: ShardProducers::new(kafka.clone(), TransactionOptions::default()),
            },
            plugins: Plugins::new([Arc::new(Records) as Arc<dyn Plugin>].into_iter().chain(more)),
            providers: Providers::new([]),
            loggers: log_levels(),
            identity: WorkerIdentity {
                worker_id: address.to_string(),
                url: format!("http://{address}"),
                cluster_id: admin.cluster_id().await.unwrap(),
            },
            running: SupervisorHandle::default(),
            subscriptions,
            snapshots,
        });
        let cancel = CancellationToken::new();
        let follower = herder.clone();
        let cancelled = cancel.clone();
        tokio::spawn(async move { follower.follow_loggers(cancelled).await });
        let security = Security::new(&open()).unwrap();
        let options = ServerOptions {
            tls: None,
            connections: 64,
            handshake: Duration::from_secs(5),
            ..ServerOptions::default()
        };
        let server = Server::start(listener, protect(router(herder.clone()), security), options).unwrap();
        // Long, since tests that measure a change have their own limits.
        let client = Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        Worker {
            herder,
            state,
            config_writer,
            statuses,
            url: format!("http://{address}"),
            client,
            _server: server,
            cancel,
        }
    }
}

/// A worker and a client for it.
pub(crate) struct Worker {
    pub(crate) herder: Herder,
    pub(crate) state: StateTables,
    pub(crate) config_writer: ConfigWriter,
    pub(crate) statuses: StatusWriter,
    pub(crate) url: String,
    pub(crate) client: Client,
    _server: Server,
    cancel: CancellationToken,
}

/// The parts of an answer that tests use.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) content_type: Option<String>,
    /// Null where there was no body.
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

impl Worker {
    async fn caught_up(self) -> Self {
        lost::timeout(LIMIT, self.state.caught_up()).await.unwrap();
        self
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let body = body.map(|body| body.to_string());
        self.send(method, path, &[("content-type", "application/json")], body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = match body {
            Some(body) => request.body(body),
            None => request,
        };
        let response = request.send().await.unwrap();
        let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (location, content_type) = (header("location"), header("content-type"));
        let status = StatusCode::as_u16(&response.status());
        let text = response.text().await.unwrap();
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        Answer { status, location, content_type, body }
    }

    /// Repeats a GET until this holds for the answer.
    pub(crate) async fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let began = Instant::now();
        let mut changes = (self.state.configs.changes(), self.state.statuses.changes());
        loop {
            let answer = self.get(path).await;
            if holds(&answer) {
                return answer;
            }
            assert!(lost::fair(began) < LIMIT, "{path} is still {answer:?}");
            tokio::select! {
                _ = changes.0.changed() => {}
                _ = changes.1.changed() => {}
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    }

    /// Reports all connectors and tasks as running, paused or stopped as configured, until the guard is dropped.
    pub(crate) fn supervise(&self) -> DropGuard {
        let cancel = self.cancel.child_token();
        let (state, config_writer, statuses) =
            (self.state.clone(), self.config_writer.clone(), self.statuses.clone());
        let worker_id = self.url.trim_start_matches("http://").to_owned();
        let guard = cancel.clone().drop_guard();
        tokio::spawn(cancel.run_until_cancelled_owned(async move {
            let mut changes = state.configs.changes();
            loop {
                let all = state.configs.read(|configs| configs.connectors().clone());
                for (name, connector) in &all {
                    let wanted = match connector.target {
                        TargetState::Stopped => Vec::new(),
                        _ => Records.task_configs(name, &connector.config).unwrap(),
                    };
                    if connector.tasks.len() != wanted.len() {
                        let decide = |configs: &Configs| {
                            let same = configs.connectors().get(name).is_some_and(|now| {
                                (now.revision, now.target) == (connector.revision, connector.target)
                            });
                            Ok::<_, ()>(((), if same { configs::tasks(name, &wanted) } else { Vec::new() }))
                        };
                        // If another write wins, its change repeats the loop.
                        config_writer.write(LIMIT, decide).await.ok();
                    }
                    let running = match connector.target {
                        TargetState::Running => RunState::Running,
                        TargetState::Paused => RunState::Paused,
                        TargetState::Stopped => RunState::Stopped,
                    };
                    let status = Status {
                        state: running,
                        trace: None,
                        worker_id: worker_id.clone(),
                        generation: 1,
                        handled_restart: None,
                    };
                    statuses.put(name, None, &status);
                    for (task, _) in (0..).zip(&wanted) {
                        statuses.put(name, Some(task), &status);
                    }
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        }));
        guard
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Settings without authentication.
fn open() -> Rest {
    Rest {
        advertised_host: "127.0.0.1".to_owned(),
        advertised_port: 0,
        advertised_tls: false,
        tls: None,
        client_auth: None,
        reload_interval: Duration::from_secs(10),
        proxies: Vec::new(),
        administrator: None,
        reader: None,
        open_paths: Vec::new(),
        hosts: Vec::new(),
        allowed_origins: Vec::new(),
        allowed_methods: Vec::new(),
    }
}

/// Log levels that no subscriber uses.
pub(crate) fn log_levels() -> Arc<Filters> {
    let (filters, layer) = Filters::new("info").unwrap();
    // Levels can be set only while the layer exists.
    std::mem::forget(layer);
    Arc::new(filters)
}

/// A valid configuration. A prefix has one writer, so each connector needs another prefix.
pub(crate) fn config(prefix: &str) -> Value {
    serde_json::json!({
        "connector.class": "RecordSource",
        "topic.prefix": prefix,
        "tasks.max": "2",
        "provider.base.url": "https://api.example.com",
        "provider.auth.url": "https://login.example.com",
        "provider.subscription.key": SECRET,
        "oauth.client.id": "client",
        "oauth.client.secret": SECRET,
    })
}

/// A secret that is written out in a configuration.
pub(crate) const SECRET: &str = "hunter2-hunter2-hunter2";
