//! A worker in this process, or as another process.
//!
//! The process is a copy of this binary. It prints `joined` and runs the tasks that it is assigned. To a line `running N` it answers
//! `running N: ` and the tasks that run in it. At any other line, or at the end of its input, it stops all tasks, leaves the group
//! and prints `stopped`.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kafka::{Admin, GroupOptions, Membership, ShardProducers, TransactionOptions};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tributary::{
    avro::{Ids, Registry},
    config,
    connect::{
        config_writer::ConfigWriter,
        supervisor::{self, RunningInstance, Settings, Supervisor, SupervisorHandle, SupervisorParts},
    },
    logins::{Grants, IdentityHosts, access::ApiAccess},
    plugin::{Plugins, RecordWriting, Tools},
    publish::LetterSigner,
    state::{StateTables, state_topic::StateTopics, statuses::RunState, topics, writer::StatusWriter},
};

use super::cluster::{self, WorkerGroup};
use crate::support::{Result, lost, process::Process, run_directory, topics::LIMIT};

/// Set for the copy: the bootstrap servers.
pub(crate) const WORKER: &str = "TRIBUTARY_TEST_WORKER";
/// Set for the copy: the prefix of group and topics.
const PREFIX: &str = "TRIBUTARY_TEST_WORKER_PREFIX";
/// Set for the copy: its id.
const ID: &str = "TRIBUTARY_TEST_WORKER_ID";

/// Has the copy print the tasks that run in it.
const RUNNING: &str = "running ";

/// Limit for the stop of a worker.
const GRACE: Duration = Duration::from_secs(10);
/// Between two checks of a condition that gives no signal.
const STEP: Duration = Duration::from_millis(5);

/// The main function of the copy.
pub(crate) fn worker() -> ExitCode {
    let of = |variable: &str| std::env::var(variable).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let config = cluster::config(&of(WORKER), &of(PREFIX));
        let local = LocalWorker::start(&config, &of(ID), Settings::default()).await;
        println!("joined");
        let handle = local.handle.clone();
        let answering = tokio::task::spawn_blocking(move || {
            let questions = std::io::stdin().lines().map_while(std::result::Result::ok);
            for question in questions.take_while(|line| line.starts_with(RUNNING)) {
                let tasks = handle.running().into_iter().filter(|one| one.state == RunState::Running);
                let tasks = tasks.filter_map(|one| Some(format!("{}/{}", one.id.connector, one.id.task?)));
                println!("{question}: {}", tasks.collect::<Vec<_>>().join(" "));
            }
        });
        answering.await.unwrap();
        local.stop().await;
        println!("stopped");
    });
    ExitCode::SUCCESS
}

/// A worker in this process.
pub(super) struct LocalWorker {
    pub(super) handle: SupervisorHandle,
    membership: Membership,
    cancel: CancellationToken,
    running: JoinHandle<std::result::Result<(), supervisor::Error>>,
}

impl LocalWorker {
    pub(super) async fn start(config: &Arc<config::Worker>, id: &str, settings: Settings) -> Self {
        let (kafka, own) = (&config.kafka, &config.topics);
        let partitions = topics::ensure(&Admin::Real(kafka.clone()), own).await.unwrap();
        let state = StateTables::follow(kafka, own, &partitions).await.unwrap();
        state.caught_up().await;
        let options = GroupOptions {
            group: config.group.id.clone(),
            topic: own.work.name.clone(),
            session: config.group.session_timeout,
            heartbeat: config.group.heartbeat_interval,
            member: id.to_owned(),
        };
        let membership = Membership::join(kafka, options).await.unwrap();
        let supervisor = Supervisor::new(SupervisorParts {
            plugins: Plugins::of(config, true),
            config_writer: ConfigWriter::new(kafka, state.configs.clone(), state.offsets.topic_partitions()),
            statuses: StatusWriter::start(kafka, &own.status.name, partitions.status).unwrap(),
            // As the cluster was configured, whatever the topic has by now.
            partitions: u32::try_from(cluster::WORK_PARTITIONS).unwrap(),
            membership: membership.clone(),
            tools: Tools {
                kafka: kafka.clone(),
                shards: ShardProducers::new(kafka.clone(), TransactionOptions::default()),
                offsets: state.offsets.clone(),
                configs: state.configs.clone(),
                worker_id: id.into(),
                worker: Arc::clone(config),
                faults: tokio::sync::watch::Sender::default().subscribe(),
                access: ApiAccess::new(
                    Grants::default(),
                    Arc::new(IdentityHosts::new(config.clock_skew_max)),
                    |_| true,
                ),
                state_topics: StateTopics::new(Arc::clone(config), Admin::Real(kafka.clone())),
                record_writing: RecordWriting {
                    ids: Ids::open(Registry::new(&config.registry).unwrap(), &config.state_dir).await,
                    admin: Admin::Real(kafka.clone()),
                    signer: LetterSigner::default(),
                },
            },
            state,
            settings,
        });
        let (handle, cancel) = (supervisor.handle(), CancellationToken::new());
        let running = tokio::spawn(supervisor.run(cancel.clone(), GRACE));
        Self { handle, membership, cancel, running }
    }

    /// Waits until this holds for what runs in this worker.
    pub(super) async fn until(&self, what: &str, wanted: impl Fn(&[RunningInstance]) -> bool) {
        let looking = async {
            while !wanted(&self.handle.running()) {
                tokio::time::sleep(STEP).await;
            }
        };
        if lost::timeout(LIMIT, looking).await.is_none() {
            panic!("not within {LIMIT:?}: {what}: {:?}", self.handle.running());
        }
    }

    /// Stops it within [`GRACE`].
    pub(super) async fn stop(self) {
        self.cancel.cancel();
        lost::timeout(GRACE + LIMIT, self.running).await.expect("it stops").unwrap().unwrap();
        self.membership.leave().await;
    }
}

/// A worker process.
pub(super) struct WorkerProcess {
    process: Process,
    pub(super) id: String,
    asked: AtomicU32,
}

impl WorkerProcess {
    /// Starts one and waits until it has joined the group.
    pub(super) async fn start(cluster: &WorkerGroup, id: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(WORKER, &cluster.config.kafka.bootstrap_servers).env(PREFIX, &cluster.prefix).env(ID, id);
        let log = run_directory::create("worker")?.join("log");
        let process = Process::spawn_listening(id, command, &log)?;
        process.until_said("joined", LIMIT).await?;
        Ok(Self { process, id: id.to_owned(), asked: AtomicU32::new(0) })
    }

    pub(super) async fn stop(&self) -> Result<()> {
        self.process.write_line("stop")?;
        let status = self.process.wait(LIMIT).await?;
        if status.success() && self.process.said().lines().any(|line| line == "stopped") {
            return Ok(());
        }
        Err(self.process.error(&format!("{} did not stop in order ({status})", self.id)))
    }

    /// The tasks that run in it, as `connector/task`.
    pub(super) async fn running(&self) -> Result<Vec<String>> {
        let question = format!("{RUNNING}{}", self.asked.fetch_add(1, Ordering::Relaxed));
        self.process.write_line(&question)?;
        let mut tasks = None;
        let answered = async || {
            let (said, begin) = (self.process.said(), format!("{question}: "));
            let answer = said.lines().find_map(|line| line.strip_prefix(&begin));
            tasks = answer.map(|tasks| tasks.split_whitespace().map(str::to_owned).collect());
            tasks.is_some()
        };
        self.process.ready(LIMIT, answered).await?;
        Ok(tasks.unwrap_or_default())
    }

    pub(super) fn kill(&self) {
        self.process.kill();
    }

    pub(super) fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    pub(super) fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }
}
