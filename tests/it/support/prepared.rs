//! Files that make brokers start in half the time: an archive of Kafka's classes, and what `kafka-storage format` writes.
//!
//! A broker that runs for a moment makes them, once for each version of Java and of Kafka.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::process::Process;
use super::{Error, Result, ports, run_directory};

/// To format, to start or to end, on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
const ARCHIVE: &str = "kafka.jsa";
const CHECKPOINT: &str = "bootstrap.checkpoint";
const META: &str = "meta.properties";
/// Written last: what `java -version` printed when the others were made.
const MARKER: &str = "java-version.txt";
/// What Java exits with after SIGTERM.
const TERMINATED: i32 = 143;

/// The directory with these files.
#[derive(Debug, Clone)]
pub(super) struct Prepared(PathBuf);

impl Prepared {
    /// Whether the files in a directory were made with this version of Java.
    pub(super) fn is_made(directory: &Path, version: &str) -> bool {
        fs::read_to_string(directory.join(MARKER)).is_ok_and(|made| made == version)
    }

    /// The files in a directory. They are made first if necessary, by `kafka`: `java` with the flags that it is given and Kafka's class path.
    pub(super) fn get(
        directory: PathBuf,
        version: &str,
        kafka: impl Fn(&[String]) -> Command,
    ) -> Result<Self> {
        let mut tries = 1;
        while !Self::is_made(&directory, version) {
            match make(&directory, version, &kafka) {
                Err(error) if tries == ports::ATTEMPTS || !error.0.contains("Address already in use") => {
                    return Err(error);
                }
                _ => tries += 1,
            }
        }
        Ok(Self(directory))
    }

    /// The flags with which `java` uses the archive; none if there is no archive. If the archive does not fit, `java` starts without it,
    /// and must not write about that between the lines of a tool.
    pub(super) fn flags(&self) -> Vec<String> {
        let archive = self.0.join(ARCHIVE);
        if !archive.exists() {
            return Vec::new();
        }
        vec![format!("-XX:SharedArchiveFile={}", archive.display()), "-Xlog:disable".to_owned()]
    }

    /// Formats the data directory of a broker without SCRAM users.
    pub(super) fn format(&self, data: &Path, node: usize, cluster_id: &str) -> Result<()> {
        let failed = |error: std::io::Error| Error(format!("format {}: {error}", data.display()));
        fs::create_dir_all(data).map_err(failed)?;
        fs::copy(self.0.join(CHECKPOINT), data.join(CHECKPOINT)).map_err(failed)?;
        // 16 bytes in URL-safe base64, another for each node of a cluster.
        let directory_id = format!("directory-of-node-{node:03}A");
        let meta =
            format!("version=1\ncluster.id={cluster_id}\nnode.id={node}\ndirectory.id={directory_id}\n");
        fs::write(data.join(META), meta).map_err(failed)
    }
}

fn make(directory: &Path, version: &str, kafka: impl Fn(&[String]) -> Command) -> Result<()> {
    let failed = |error: std::io::Error| Error(format!("prepare {}: {error}", directory.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    let place = run_directory::create("prepared")?;
    let [clients, controller] = ports::free::<2>()?;
    let (file, data) = (place.join("server.properties"), place.join("data"));
    let text = format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controller}\n\
         listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         inter.broker.listener.name=CLIENTS\ncontroller.listener.names=CONTROLLER\nlog.dirs={}\n",
        data.display()
    );
    fs::write(&file, text).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;

    let mut format = kafka(&[]);
    format.args(["kafka.tools.StorageTool", "format", "-t", "prepared-by-the-testsA", "-c"]).arg(&file);
    let format = Process::spawn("format", format, &place.join("format.log"))?;
    let status = runtime.block_on(format.wait(LIMIT))?;
    if !status.success() {
        return Err(format.error(&format!("format a broker: {status}")));
    }

    let archive = place.join(ARCHIVE);
    let mut broker = kafka(&[format!("-XX:ArchiveClassesAtExit={}", archive.display())]);
    broker.arg("kafka.Kafka").arg(&file);
    let broker = Process::spawn("kafka", broker, &place.join("broker.log"))?;
    let listens = async || TcpStream::connect((Ipv4Addr::LOCALHOST, clients)).is_ok();
    runtime.block_on(broker.ready(LIMIT, listens))?;
    broker.signal(Signal::TERM)?;
    let status = runtime.block_on(broker.wait(LIMIT))?;
    if status.code() != Some(TERMINATED) {
        return Err(broker.error(&format!("end a broker: {status}")));
    }

    // A Java that makes no archive starts brokers without one.
    if archive.exists() {
        fs::rename(&archive, directory.join(ARCHIVE)).map_err(failed)?;
    }
    fs::copy(data.join(CHECKPOINT), directory.join(CHECKPOINT)).map_err(failed)?;
    fs::write(directory.join(MARKER), version).map_err(failed)
}
