//! Real brokers that a test may break: started on free ports, killed, paused, stopped and brought back with
//! their data.
//!
//! Each broker is a combined KRaft node with three listeners: CLIENTS, which [`Options::proxied`] puts behind
//! a [`Proxy`]; BROKERS, for replication, the rig's own questions and tests that look past the proxy; and
//! CONTROLLER. A broker that ends while it starts is an error with the end of its log; one whose port was
//! taken meanwhile is started again on others.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;

use super::jars::{self, Jars};
use super::process::Process;
use super::{Error, Proxy, Result, ports, run_directory};

/// A busy CI machine takes ten times as long as an idle one.
const START_LIMIT: Duration = Duration::from_secs(180);
const STOP_LIMIT: Duration = Duration::from_secs(90);
const TOOL_LIMIT: Duration = Duration::from_secs(60);
const HEAP: &str = "-Xmx512m";

/// How brokers differ from the defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    properties: Vec<(String, String)>,
    listeners: Vec<(String, String)>,
    scram: Vec<String>,
    proxied: bool,
}

impl Options {
    /// One more line of `server.properties`; it wins over the rig's own.
    pub(crate) fn property(mut self, key: &str, value: &str) -> Self {
        self.properties.push((key.to_owned(), value.to_owned()));
        self
    }

    /// One more listener on its own port, say `("SASL", "SASL_PLAINTEXT")`; [`Broker::listener`] answers
    /// where.
    pub(crate) fn listener(mut self, name: &str, protocol: &str) -> Self {
        self.listeners.push((name.to_owned(), protocol.to_owned()));
        self
    }

    /// A SCRAM user that exists from the first moment; `mechanism` is `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub(crate) fn scram(mut self, mechanism: &str, user: &str, password: &str) -> Self {
        self.scram.push(format!("{mechanism}=[name={user},password={password}]"));
        self
    }

    /// Puts a [`Proxy`] before the CLIENTS listener and advertises the proxy's address there.
    pub(crate) fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }
}

/// One broker.
pub(crate) struct Broker {
    name: String,
    jars: &'static Jars,
    directory: PathBuf,
    ports: [u16; 3],
    listeners: Vec<(String, u16)>,
    proxy: Option<Proxy>,
    process: Process,
    /// Whether it was paused since it was started.
    was_paused: AtomicBool,
}

impl Broker {
    /// A single broker, ready for clients.
    pub(crate) async fn start(options: Options) -> Result<Self> {
        let mut cluster = Cluster::start(1, options).await?;
        cluster.brokers.pop().ok_or_else(|| Error("start one broker: the cluster has none".to_owned()))
    }

    /// What a client under test takes as `bootstrap.servers`; through the proxy, if there is one.
    pub(crate) fn bootstrap(&self) -> String {
        self.proxy.as_ref().map_or_else(|| self.address(0), |proxy| proxy.address().to_string())
    }

    /// The address past the proxy, for a client that observes what the client under test does.
    pub(crate) fn bootstrap_past_proxy(&self) -> String {
        self.address(1)
    }

    /// The address of a listener named in [`Options::listener`].
    pub(crate) fn listener(&self, name: &str) -> Result<String> {
        let found = self.listeners.iter().find(|(known, _)| known == name);
        let (_, port) = found.ok_or_else(|| {
            Error(format!("find listener {name} of {}: name it in Options::listener", self.name))
        })?;
        Ok(format!("127.0.0.1:{port}"))
    }

    /// The proxy before this broker, started with [`Options::proxied`].
    pub(crate) fn proxy(&self) -> Result<&Proxy> {
        self.proxy.as_ref().ok_or_else(|| {
            Error(format!("find the proxy of {}: ask for one with Options::proxied", self.name))
        })
    }

    /// SIGKILL: what it had not written is lost.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn pause(&self) -> Result<()> {
        self.was_paused.store(true, Ordering::Relaxed);
        self.process.signal(Signal::STOP)
    }

    /// SIGCONT, after [`Broker::pause`].
    pub(crate) fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// SIGTERM, and wait for an orderly end; also for a paused broker.
    pub(crate) async fn stop(&self) -> Result<()> {
        stop(&self.process).await
    }

    /// The current length of its transaction log, by file.
    pub(crate) fn transaction_logs(&self) -> Result<Vec<(PathBuf, u64)>> {
        let failed = |error: std::io::Error| Error(format!("look at the data of {}: {error}", self.name));
        let mut logs = Vec::new();
        for entry in fs::read_dir(self.directory.join("data")).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("__transaction_state-"))
            {
                let log = path.join("00000000000000000000.log");
                logs.push((log.clone(), fs::metadata(&log).map_err(failed)?.len()));
            }
        }
        Ok(logs)
    }

    /// Cuts the transaction log of a dead broker back to these lengths: its coordinator comes back without what followed, while
    /// partitions keep all their records.
    pub(crate) fn forget_transactions_since(&self, logs: &[(PathBuf, u64)]) -> Result<()> {
        for (log, length) in logs {
            let cut = fs::OpenOptions::new().write(true).open(log).and_then(|file| file.set_len(*length));
            cut.map_err(|error| Error(format!("cut {}: {error}", log.display())))?;
        }
        Ok(())
    }

    /// Kills it if it still runs and starts it on the same ports and data.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = spawn(self.jars, &self.name, &self.directory)?;
        self.was_paused.store(false, Ordering::Relaxed);
        self.ready(1).await
    }

    /// Whether it was paused since it was started: it may have missed its heartbeats and be fenced for a while.
    pub(crate) fn was_paused(&self) -> bool {
        self.was_paused.load(Ordering::Relaxed)
    }

    async fn ready(&self, cluster_size: usize) -> Result<()> {
        let bootstrap = self.bootstrap_past_proxy();
        self.process.ready(START_LIMIT, async || knows_brokers(&bootstrap, cluster_size).await).await
    }

    fn address(&self, listener: usize) -> String {
        format!("127.0.0.1:{}", self.ports[listener])
    }
}

/// Brokers that replicate to each other.
pub(crate) struct Cluster {
    /// In the order of their ids, from 1.
    pub(crate) brokers: Vec<Broker>,
}

impl Cluster {
    /// `size` brokers that know each other; with three, topics have three replicas of which two must be in
    /// sync.
    pub(crate) async fn start(size: usize, options: Options) -> Result<Self> {
        let jars = jars::get()?;
        ports::retry("Address already in use", async || Self::try_start(jars, size, &options).await).await
    }

    /// What a client under test takes as `bootstrap.servers`.
    pub(crate) fn bootstrap(&self) -> String {
        self.brokers.iter().map(Broker::bootstrap).collect::<Vec<_>>().join(",")
    }

    async fn try_start(jars: &'static Jars, size: usize, options: &Options) -> Result<Self> {
        let mut nodes = Vec::with_capacity(size);
        for id in 1..=size {
            nodes.push(BrokerNode::plan(id, options).await?);
        }
        let voters: Vec<_> =
            nodes.iter().map(|node| format!("{}@127.0.0.1:{}", node.id, node.ports[2])).collect();
        let cluster_id = cluster_id();
        for node in &nodes {
            fs::write(
                node.directory.join("server.properties"),
                node.properties(&voters.join(","), size, options),
            )
            .map_err(|error| Error(format!("write properties of broker {}: {error}", node.id)))?;
        }
        futures::future::try_join_all(nodes.iter().map(|node| format(jars, node, &cluster_id, options)))
            .await?;
        let mut brokers = Vec::with_capacity(size);
        for node in nodes {
            brokers.push(node.start(jars)?);
        }
        futures::future::try_join_all(brokers.iter().map(|broker| broker.ready(size))).await?;
        Ok(Self { brokers })
    }
}

/// Runs one of Kafka's own tools, say `org.apache.kafka.tools.TopicCommand`, and gives what it printed.
pub(crate) async fn tool(class: &str, arguments: &[&str]) -> Result<String> {
    tool_with_input(class, arguments, "").await
}

/// As [`tool`], for one that reads `input` from its standard input to the end.
pub(crate) async fn tool_with_input(class: &str, arguments: &[&str], input: &str) -> Result<String> {
    let directory = run_directory::create("tool")?;
    let (log, stdin) = (directory.join("output.log"), directory.join("input"));
    let mut command = jars::get()?.kafka("-Xmx128m");
    // Java decodes its input by the locale, which on a bare machine is ASCII.
    command.args(["-Dfile.encoding=UTF-8", class]).args(arguments);
    let file = fs::write(&stdin, input).and_then(|()| fs::File::open(&stdin));
    let file = file.map_err(|error| Error(format!("write {}: {error}", stdin.display())))?;
    let process = Process::spawn_reading(class, command, file, &log)?;
    let status = process.wait(TOOL_LIMIT).await?;
    if !status.success() {
        return Err(process.error(&format!("run {class} {arguments:?}: {status}")));
    }
    // Records that it prints may hold any bytes.
    let printed = fs::read(&log).map_err(|error| Error(format!("read {}: {error}", log.display())))?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// SIGTERM, and SIGCONT in case it is paused: a stopped process takes no other signal.
pub(crate) async fn stop(process: &Process) -> Result<()> {
    process.signal(Signal::TERM)?;
    process.signal(Signal::CONT).ok();
    process.wait(STOP_LIMIT).await.map(drop)
}

/// Whether the broker there answers and counts at least `count` in its cluster: an open port alone is no proof.
async fn knows_brokers(bootstrap: &str, count: usize) -> bool {
    if tokio::net::TcpStream::connect(bootstrap).await.is_err() {
        return false;
    }
    let bootstrap = bootstrap.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &bootstrap).create().ok()?;
        client.fetch_metadata(None, Duration::from_secs(2)).ok().map(|metadata| metadata.brokers().len())
    });
    asked.await.ok().flatten().is_some_and(|known| known >= count)
}

/// A broker not yet started: its directory, ports and proxy.
struct BrokerNode {
    id: usize,
    directory: PathBuf,
    ports: [u16; 3],
    listeners: Vec<(String, u16)>,
    proxy: Option<Proxy>,
}

impl BrokerNode {
    async fn plan(id: usize, options: &Options) -> Result<Self> {
        let ports = ports::free::<3>()?;
        let mut listeners = Vec::new();
        for (name, _) in &options.listeners {
            listeners.push((name.clone(), ports::free::<1>()?[0]));
        }
        let proxy = if options.proxied {
            Some(Proxy::to(SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0]))).await?)
        } else {
            None
        };
        Ok(Self { id, directory: run_directory::create(&format!("kafka-{id}"))?, ports, listeners, proxy })
    }

    fn properties(&self, voters: &str, size: usize, options: &Options) -> String {
        let [clients, brokers, controller] = self.ports;
        let advertised = self.proxy.as_ref().map_or(clients, |proxy| proxy.address().port());
        let mut protocols = "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        let mut own = String::new();
        for ((name, protocol), (_, port)) in options.listeners.iter().zip(&self.listeners) {
            protocols += &format!(",{name}:{protocol}");
            own += &format!(",{name}://127.0.0.1:{port}");
        }
        let majority = size.div_ceil(2);
        let mut text = format!(
            "process.roles=broker,controller\n\
             node.id={id}\n\
             controller.quorum.voters={voters}\n\
             listeners=CLIENTS://127.0.0.1:{clients},BROKERS://127.0.0.1:{brokers},\
             CONTROLLER://127.0.0.1:{controller}{own}\n\
             advertised.listeners=CLIENTS://127.0.0.1:{advertised},BROKERS://127.0.0.1:{brokers}{own}\n\
             listener.security.protocol.map={protocols}\n\
             inter.broker.listener.name=BROKERS\n\
             controller.listener.names=CONTROLLER\n\
             log.dirs={data}\n",
            id = self.id,
            data = self.directory.join("data").display(),
        );
        text += &format!(
            "default.replication.factor={size}\n\
             min.insync.replicas={majority}\n\
             offsets.topic.replication.factor={size}\n\
             transaction.state.log.replication.factor={size}\n\
             transaction.state.log.min.isr={majority}\n\
             share.coordinator.state.topic.replication.factor={size}\n\
             share.coordinator.state.topic.min.isr=1\n"
        );
        // The product creates its topics itself. Few internal partitions and no rebalance delay save tens of seconds. A killed broker
        // loses its session, and its partitions get a new leader, after 3 seconds instead of 9. The cleaner runs often enough for a
        // test to see compaction; it clears its key table for every partition, which is quick with a small one.
        text += "auto.create.topics.enable=false\n\
                 offsets.topic.num.partitions=4\n\
                 transaction.state.log.num.partitions=4\n\
                 group.initial.rebalance.delay.ms=0\n\
                 broker.session.timeout.ms=3000\n\
                 broker.heartbeat.interval.ms=500\n\
                 log.cleaner.backoff.ms=5000\n\
                 log.cleaner.dedupe.buffer.size=4194304\n";
        for (key, value) in &options.properties {
            text += &format!("{key}={value}\n");
        }
        text
    }

    fn start(self, jars: &'static Jars) -> Result<Broker> {
        let Self { id, directory, ports, listeners, proxy } = self;
        let name = format!("kafka-{id}");
        let process = spawn(jars, &name, &directory)?;
        Ok(Broker {
            name,
            jars,
            directory,
            ports,
            listeners,
            proxy,
            process,
            was_paused: AtomicBool::new(false),
        })
    }
}

fn spawn(jars: &Jars, name: &str, directory: &Path) -> Result<Process> {
    let mut command = jars.kafka(HEAP);
    command.arg("kafka.Kafka").arg(directory.join("server.properties"));
    Process::spawn(name, command, &directory.join("broker.log"))
}

async fn format(jars: &Jars, node: &BrokerNode, cluster_id: &str, options: &Options) -> Result<()> {
    if options.scram.is_empty() {
        return jars.format(&node.directory.join("data"), node.id, cluster_id);
    }
    let mut command = jars.kafka("-Xmx128m");
    command.args(["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]);
    command.arg(node.directory.join("server.properties"));
    for user in &options.scram {
        command.args(["--add-scram", user]);
    }
    let process = Process::spawn("format", command, &node.directory.join("format.log"))?;
    let status = process.wait(START_LIMIT).await?;
    if status.success() {
        Ok(())
    } else {
        Err(process.error(&format!("format broker {}: {status}", node.id)))
    }
}

/// Kafka wants 16 bytes as 22 letters of URL-safe base64. These letters are a subset.
fn cluster_id() -> String {
    let text: String = run_directory::stamp().chars().filter(char::is_ascii_alphanumeric).collect();
    // The last letter carries four bits only; A is the one with none set.
    format!("{text:0>21.21}A")
}
