//! Starts a worker on Kafka, behind listeners that are already bound.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use kafka::{Admin, GroupOptions, Membership, ShardProducers, TransactionOptions};

use super::{Error, Process, Running, Service, grace, subscriptions::WorkerSubscriptions};
use crate::{
    config,
    connect::{
        cluster::ClusterCheck,
        config_writer::ConfigWriter,
        declared,
        herder::{Herder, HerderParts, HerderWriters, SubscriptionParts, WorkerIdentity},
        rest,
        supervisor::{Settings, Supervisor, SupervisorParts},
    },
    logins::{GrantParts, Grants, IdentityHosts, access::ApiAccess},
    plugin::{RecordWriting, Tools},
    state::{StateTables, Table, configs::Configs, state_topic::StateTopics, topics, writer::StatusWriter},
    webhooks::ingest::ConfigFeed,
    worker::{health::Phase, scrape::Scrape, snapshots},
};

/// Backoff between attempts to start while Kafka is unreachable.
const START_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(250), longest: Duration::from_secs(5), total: None };
/// How long to wait for as many brokers as topics need replicas; after that the replication factor counts as wrong.
const BROKER_WAIT: Duration = Duration::from_secs(60);

/// How long reading the config topic to its very end may take before `/health` shows the reason.
const CONFIG_LIMIT: Duration = Duration::from_secs(10);

/// The check that the topics belong to this worker's cluster.
pub(super) fn cluster_check<'a>(worker: &'a config::Worker, process: &'a Process) -> ClusterCheck<'a> {
    ClusterCheck { worker, plugins: &process.plugins, adopt: process.adopt }
}

impl Service {
    /// Retries until the worker is started, or until a retry would not help.
    pub(super) async fn start(&self, process: &Process, feed: Option<&ConfigFeed>) -> Result<Running, Error> {
        let mut backoff = Backoff::new(START_BACKOFF, u64::from(kafka::murmur2(self.worker_id.as_bytes())));
        let started = Instant::now();
        loop {
            let error = match self.try_start(process, feed).await {
                Ok(running) => return Ok(running),
                Err(error) => error,
            };
            let verdict = match &error {
                // Other brokers of a cluster that has just been started may still be starting.
                Error::Kafka(error) if error.lacks_brokers() && started.elapsed() < BROKER_WAIT => {
                    Retry::Later
                }
                error => error.retry(),
            };
            let Some(wait) = backoff.next_wait(verdict) else { return Err(error) };
            tracing::warn!(error = %ErrorChain(&error), ?wait, "could not start on Kafka; retrying");
            self.health.set(Phase::Starting(ErrorChain(&error).to_string()));
            sleep(wait).await;
        }
    }

    async fn try_start(&self, process: &Process, feed: Option<&ConfigFeed>) -> Result<Running, Error> {
        let worker = &self.worker;
        let RecordWriting { ids, admin, .. } = &self.record_writing;
        let (state, partitions) = self.open(admin, process).await?;
        // Before anything else can fail: receiving needs nothing more.
        if let Some(feed) = feed {
            feed.follow(state.configs.clone());
        }
        let config_writer =
            ConfigWriter::new(&worker.kafka, state.configs.clone(), state.offsets.topic_partitions());
        // The end of the readable records is not enough: an open transaction hides what was committed after it.
        let topic = &worker.topics.config.name;
        self.health.set(Phase::Starting(format!("waiting for open transactions in {topic}")));
        config_writer.read_to_end(&state.configs, CONFIG_LIMIT).await?;
        let work_partitions = u32::try_from(partitions.work).unwrap_or_default();
        let cluster = cluster_check(worker, process)
            .ensure_record(&config_writer, &state.configs, work_partitions)
            .await?;

        let statuses = StatusWriter::start(&worker.kafka, &worker.topics.status.name, partitions.status)?;
        let options = GroupOptions {
            group: worker.group.id.clone(),
            topic: worker.topics.work.name.clone(),
            session: worker.group.session_timeout,
            heartbeat: worker.group.heartbeat_interval,
            member: self.worker_id.to_string(),
        };
        let (membership, cluster_id) =
            tokio::try_join!(Membership::join(&worker.kafka, options), admin.cluster_id())?;
        let hosts = Arc::new(IdentityHosts::new(worker.clock_skew_max));
        let grant_parts = GrantParts {
            worker: Arc::clone(worker),
            partitions: partitions.grant,
            membership: membership.clone(),
            work_partitions: cluster.work_partitions,
            configs: state.configs.clone(),
            worker_id: Arc::clone(&self.worker_id),
            issuers: Arc::<IdentityHosts>::clone(&hosts),
            adopt: process.adopt,
        };
        let grants = Grants::start(&grant_parts).await?;
        let configs = state.configs.clone();
        let exists = move |name: &str| configs.read(|configs| configs.connectors().contains_key(name));
        let access = ApiAccess::new(grants.clone(), hosts, exists);
        let state_topics = StateTopics::new(Arc::clone(worker), admin.clone());
        let supervisor = Supervisor::new(SupervisorParts {
            plugins: process.plugins.clone(),
            state: state.clone(),
            config_writer: config_writer.clone(),
            statuses: statuses.clone(),
            membership: membership.clone(),
            partitions: cluster.work_partitions,
            tools: Tools {
                kafka: worker.kafka.clone(),
                shards: ShardProducers::new(worker.kafka.clone(), TransactionOptions::default()),
                worker: Arc::clone(worker),
                offsets: state.offsets.clone(),
                configs: state.configs.clone(),
                faults: self.faults.clone(),
                access: access.clone(),
                state_topics: state_topics.clone(),
                record_writing: self.record_writing.clone(),
                worker_id: Arc::clone(&self.worker_id),
            },
            settings: Settings::default(),
        });
        let handle = supervisor.handle();
        let scheme = if worker.rest.advertised_tls { "https" } else { "http" };
        let herder = Herder::new(HerderParts {
            state: state.clone(),
            writers: HerderWriters {
                configs: config_writer,
                statuses: statuses.clone(),
                shards: ShardProducers::new(worker.kafka.clone(), TransactionOptions::default()),
            },
            plugins: process.plugins.clone(),
            providers: worker.providers.clone(),
            loggers: Arc::clone(&process.loggers),
            identity: WorkerIdentity {
                worker_id: self.worker_id.to_string(),
                url: format!("{scheme}://{}", self.worker_id),
                cluster_id,
            },
            running: handle.clone(),
            subscriptions: Some(SubscriptionParts {
                store: Arc::new(WorkerSubscriptions {
                    worker: Arc::clone(worker),
                    worker_id: Arc::clone(&self.worker_id),
                    access: access.clone(),
                    state_topics: state_topics.clone(),
                }),
                advertised_url: worker.webhook.advertised_url.clone(),
            }),
            snapshots: Some(snapshots::WorkerSnapshots::new(
                state_topics.clone(),
                grants.clone(),
                worker.kafka.clone(),
                admin.clone(),
                ids.registry().clone(),
            )),
        });
        let (follower, cancel) = (herder.clone(), self.cancel.clone());
        let following = self.tasks.spawn(async move { follower.follow_loggers(cancel).await });
        let keeping = self.tasks.spawn(grants.clone().run(grant_parts, self.cancel.clone()));
        let sharing = access.clone().run(membership.owned(), cluster.work_partitions, self.cancel.clone());
        let sharing = self.tasks.spawn(sharing);
        let state_topics_followed = state_topics.clone().run(state.configs.clone(), self.cancel.clone());
        let state_topics_followed = self.tasks.spawn(state_topics_followed);
        let mut upkeep = vec![
            ("log level follower", following),
            ("grant refresh", keeping),
            ("budget sharing", sharing),
            ("state topic reader", state_topics_followed),
        ];
        let supervising =
            self.tasks.spawn(supervisor.run(self.cancel.clone(), grace(worker.shutdown_timeout)));
        let scrape = Scrape {
            handle,
            state: state.clone(),
            membership: membership.clone(),
            plugins: process.plugins.clone(),
            access,
            state_topics,
        };
        self.health.serve(rest::router(herder.clone()), scrape);
        if let Some(options) = declared::DeclaredOptions::of(worker) {
            let watching = self.tasks.spawn(declared::Watch::new(herder, options).run(self.cancel.clone()));
            upkeep.push(("connector file watcher", watching));
        }
        tracing::info!(worker_id = &*self.worker_id, group = worker.group.id, "worker started");
        Ok(Running { state, statuses, membership, cluster, supervising, upkeep, grants })
    }

    /// Ensures that the topics exist and belong to this cluster, and reads them. Creates nothing if the config topic belongs to
    /// another cluster.
    async fn open(
        &self,
        admin: &Admin,
        process: &Process,
    ) -> Result<(StateTables, topics::Partitions), Error> {
        let (kafka, own) = (&self.worker.kafka, &self.worker.topics);
        let check = cluster_check(&self.worker, process);
        let mut wanted = own.clone();
        let mut configs = None;
        let found = admin.partition_counts(&[&own.config.name, &own.work.name]).await?;
        if found.contains_key(&own.config.name) {
            topics::inspect(admin, own).await?;
            let table: Table<Configs> = Table::follow(kafka, &own.config.name, 1).await?;
            self.health.set(Phase::Starting(format!("reading {}", own.config.name)));
            table.caught_up().await;
            let work = found.get(&own.work.name).map(|count| count.unsigned_abs());
            let recorded = table.read(|configs| {
                check.verify(configs, work)?;
                Ok::<_, Error>(configs.cluster().map(|cluster| cluster.work_partitions))
            })?;
            // A lost work topic is recreated with its recorded partition count: instances are placed by that count.
            if let (None, Some(count), false) = (work, recorded, check.adopt) {
                wanted.work.partitions = i32::try_from(count).unwrap_or(i32::MAX);
            }
            configs = Some(table);
        }
        let partitions = topics::ensure(admin, &wanted).await?;
        self.health.set(Phase::Starting("reading the config, offset and status topics".to_owned()));
        let configs = match configs {
            Some(configs) => configs,
            None => Table::follow(kafka, &own.config.name, partitions.config).await?,
        };
        let state = StateTables {
            configs,
            offsets: Table::follow(kafka, &own.offset.name, partitions.offset).await?,
            statuses: Table::follow(kafka, &own.status.name, partitions.status).await?,
        };
        state.caught_up().await;
        Ok((state, partitions))
    }
}
