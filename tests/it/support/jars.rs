//! Kafka and the registry as jars, and Kafka Connect where a test asks for it: found in the target directory,
//! or fetched there by Maven once.
//!
//! A version's directory is filled under a temporary name and renamed, under a lock, so that two runs never
//! see or make half of it. After a change of `pom.xml` they are fetched again. Without Java 17, or without both jars and Maven,
//! the tests that need them are left out.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::prepared::Prepared;
use super::process::Process;
use super::{Error, Result};

const POM: &str = include_str!("pom.xml");
const CONNECT_POM: &str = include_str!("connect.xml");
/// Written last, with the pom or poms that were fetched.
const MARKER: &str = "fetched-pom.xml";
const JAVA: u32 = 17;
/// About 200 MB; a minute on a good line.
const FETCH_LIMIT: Duration = Duration::from_secs(900);
/// Half the start-up time of the default collector and compiler, on the few cores tests have.
const JVM: [&str; 2] = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];

/// The jars on disk, ready to run.
pub(crate) struct Jars {
    kafka: PathBuf,
    registry: PathBuf,
    prepared: Prepared,
}

/// Why real Kafka cannot be started here, in words for the closing block; `None` where it can.
pub(crate) fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    MISSING
        .get_or_init(|| match java_version() {
            None => Some("no `java` on the PATH".to_owned()),
            Some(version) if version < JAVA => {
                Some(format!("`java` is version {version}, Kafka needs {JAVA}"))
            }
            Some(_) if is_fetched(&home()) || runs("mvn") => None,
            Some(_) => Some("no `mvn` on the PATH to fetch Kafka with".to_owned()),
        })
        .as_deref()
}

/// Kafka's version, as the pom states it.
pub(crate) fn kafka_version() -> &'static str {
    property("kafka.version")
}

/// The registry's version, as the pom states it.
pub(crate) fn registry_version() -> &'static str {
    property("apicurio.version")
}

/// The jars, fetched by the first caller; the others wait for it.
pub(crate) fn get() -> Result<&'static Jars> {
    static JARS: OnceLock<Result<Jars>> = OnceLock::new();
    JARS.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// `java` with Kafka Connect's class path, ready for a main class; fetched by the first caller.
pub(crate) async fn connect() -> Result<Command> {
    // Fetching blocks, and waits on its own runtime.
    tokio::task::spawn_blocking(load_connect)
        .await
        .map_err(|error| Error(format!("load Kafka Connect: {error}")))?
}

impl Jars {
    /// `java` with Kafka's class path, ready for a main class and its arguments.
    pub(crate) fn kafka(&self, heap: &str) -> Command {
        let mut command = java(heap);
        command.args(self.prepared.flags()).arg("-cp").arg(self.kafka.join("*"));
        command
    }

    /// Formats the data directory of a broker without SCRAM users.
    pub(crate) fn format(&self, data: &Path, node: usize, cluster_id: &str) -> Result<()> {
        self.prepared.format(data, node, cluster_id)
    }

    /// `java` ready to run the registry, which answers on `port`.
    pub(crate) fn registry(&self, port: u16) -> Command {
        let mut command = java("-Xmx400m");
        command
            .args(["-Dquarkus.http.host=127.0.0.1", "-Dquarkus.log.level=WARN"])
            .arg(format!("-Dquarkus.http.port={port}"))
            .arg("-jar")
            .arg(&self.registry);
        command
    }
}

fn java(heap: &str) -> Command {
    let mut command = Command::new("java");
    command.args(JVM).args([heap, "-Dlog4j2.level=WARN"]);
    command
}

fn load() -> Result<Jars> {
    let home = home();
    if !is_fetched(&home) {
        fetch(&home)?;
    }
    let registry = fs::read_dir(home.join("registry"))
        .map_err(|error| Error(format!("list {}: {error}", home.display())))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with("-runner.jar"))
        .ok_or_else(|| Error(format!("find the registry's runner jar in {}: none there", home.display())))?;
    let kafka = home.join("kafka");
    let (directory, version) = (home.join("prepared"), java_says().unwrap_or_default());
    let prepare = || {
        Prepared::get(directory.clone(), &version, |flags| {
            let mut command = java("-Xmx512m");
            command.args(flags).arg("-cp").arg(kafka.join("*"));
            command
        })
    };
    let is_made = Prepared::is_made(&directory, &version);
    let prepared = if is_made { prepare() } else { locked(&home, prepare) }?;
    Ok(Jars { kafka, registry, prepared })
}

/// Does something that two test runs must not do at the same time.
fn locked<T>(home: &Path, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let parent = home.parent().unwrap_or(home);
    fs::create_dir_all(parent).map_err(|error| Error(format!("create {}: {error}", parent.display())))?;
    let lock = File::create(parent.join("fetch.lock")).and_then(|file| file.lock().map(|()| file));
    let _lock = lock.map_err(|error| Error(format!("lock {}: {error}", parent.display())))?;
    act()
}

fn load_connect() -> Result<Command> {
    let home = home_of("connect");
    let poms = format!("{POM}{CONNECT_POM}");
    fetch_once(&home, &poms, |partial, log| {
        eprintln!("fetching Kafka Connect {} with Maven, once: about 80 MB", kafka_version());
        let mut connect = maven("connect.xml");
        connect.arg("dependency:copy-dependencies").arg(define("outputDirectory", partial));
        finish("fetch Kafka Connect", connect, log)
    })?;
    let mut command = java("-Xmx512m");
    command.arg("-cp").arg(home.join("*"));
    Ok(command)
}

fn fetch(home: &Path) -> Result<()> {
    fetch_once(home, POM, |partial, log| {
        eprintln!(
            "fetching Kafka {} and Apicurio {} with Maven, once: about 200 MB",
            kafka_version(),
            registry_version()
        );
        let registry = partial.join("registry");
        fs::create_dir_all(&registry)
            .map_err(|error| Error(format!("create {}: {error}", registry.display())))?;

        let mut kafka = maven("pom.xml");
        kafka.arg("dependency:copy-dependencies").arg(define("outputDirectory", &partial.join("kafka")));
        finish("fetch Kafka", kafka, log)?;

        let artifact = format!("io.apicurio:apicurio-registry-app:{}:tar.gz:all", registry_version());
        let mut archive = maven("pom.xml");
        archive
            .args(["dependency:copy", &format!("-Dartifact={artifact}")])
            .arg(define("outputDirectory", partial));
        finish("fetch Apicurio", archive, log)?;

        let archive = partial.join(format!("apicurio-registry-app-{}-all.tar.gz", registry_version()));
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(&archive).arg("-C").arg(&registry);
        finish("unpack Apicurio", unpack, log)?;
        fs::remove_file(&archive).map_err(|error| Error(format!("remove {}: {error}", archive.display())))
    })
}

/// Has `fill` fill a directory beside `home`, which then takes its place with `marker` in it; nothing where
/// that was done before.
fn fetch_once(home: &Path, marker: &str, fill: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
    locked(home, || {
        if has_marker(home, marker) {
            return Ok(());
        }
        let partial = home.with_file_name("partial");
        remove(&partial)?;
        remove(home)?;
        fs::create_dir_all(&partial)
            .map_err(|error| Error(format!("create {}: {error}", partial.display())))?;

        fill(&partial, &partial.join("fetch.log"))?;

        fs::write(partial.join(MARKER), marker)
            .and_then(|()| fs::rename(&partial, home))
            .map_err(|error| Error(format!("move {} to {}: {error}", partial.display(), home.display())))
    })
}

fn finish(name: &str, command: Command, log: &Path) -> Result<()> {
    let process = Process::spawn(name, command, log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| Error(format!("{name}: build a runtime: {error}")))?;
    // On its own thread: benchmarks call this from inside a runtime.
    let wait = || runtime.block_on(process.wait(FETCH_LIMIT));
    let status = std::thread::scope(|scope| scope.spawn(wait).join().unwrap())?;
    if status.success() { Ok(()) } else { Err(process.error(&format!("{name}: {status}"))) }
}

fn maven(pom: &str) -> Command {
    let mut command = Command::new("mvn");
    let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support").join(pom);
    command.args(["-B", "-q", "-f"]).arg(pom);
    command
}

fn define(key: &str, path: &Path) -> String {
    format!("-D{key}={}", path.display())
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error(format!("remove {}: {error}", directory.display())))
        }
        _ => Ok(()),
    }
}

/// Beside the build's own output, so that `cargo clean` removes it and a second checkout with the same target
/// shares it.
fn home() -> PathBuf {
    home_of("jars")
}

fn home_of(what: &str) -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = temporary.parent().unwrap_or(temporary);
    target.join("tributary-rig").join(format!("{what}-{}", kafka_version()))
}

fn is_fetched(home: &Path) -> bool {
    has_marker(home, POM)
}

fn has_marker(home: &Path, marker: &str) -> bool {
    fs::read_to_string(home.join(MARKER)).is_ok_and(|fetched| fetched == marker)
}

/// The text of a property of the pom; empty for one it does not have, which no download survives.
fn property(name: &str) -> &'static str {
    let after = POM.split_once(&format!("<{name}>")).map_or("", |(_, after)| after);
    after.split_once("</").map_or("", |(value, _)| value)
}

fn runs(program: &str) -> bool {
    let status = Command::new(program).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn java_version() -> Option<u32> {
    parse_java_version(&java_says()?)
}

/// What `java -version` prints.
fn java_says() -> Option<String> {
    let output =
        Command::new("java").arg("-version").output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// `openjdk version "17.0.15" 2025-04-15` is 17; `"1.8.0_292"`, as versions were once written, is 1 and too
/// old alike.
pub(crate) fn parse_java_version(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    version.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}
