//! `tributary check`: checks everything that a start needs, without changing anything.
//!
//! A check does not test permissions that only use reveals: to write to topics, to use transactional ids and to join the group. Kafka
//! does not report its time either: a config record newer than now shows that the clock is behind, but nothing shows that it is
//! ahead. The last line says so.

use std::{
    error::Error,
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde_json::json;

use base::{durable, random, retry::ErrorChain};
use kafka::Admin;

use super::{CommandError, ConfigFiles, Result, client::OutputArgs, load::CheckedConfig, remedy, schemas};
use crate::{
    avro::Registry,
    config,
    connect::cluster::ClusterCheck,
    plugin::Plugins,
    publish::Layout,
    spool,
    state::{TableState, configs::Configs, topics},
    store::{Fjall, Storage as _},
    worker,
};

/// Time limit for reading the config topic: it is small, but a dead writer may hold back its end for a while.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// Directories below `state.dir` that must belong to the worker.
const PRIVATE_DIRECTORIES: [&str; 3] = ["spool", "fence", "grants"];

#[derive(Args)]
pub(super) struct CheckOptions {
    #[command(flatten)]
    pub(super) files: ConfigFiles,
    #[command(flatten)]
    format: OutputArgs,
}

/// Writes one line per check; fails if one of them would prevent a start.
pub(super) async fn run(
    options: &CheckOptions,
    loaded: &CheckedConfig,
    with_test_source: bool,
    out: &mut dyn Write,
) -> Result {
    let mut report = CheckReport { out, is_json: options.format.is_json(), failed: 0 };
    run_checks(loaded, with_test_source, &mut report).await?;
    let unseen =
        "permissions to write, to use transactional ids and to join the group; whether the clock is ahead";
    report.line("skipped", "checks that need a start", unseen)?;
    if report.failed == 0 { Ok(()) } else { Err(CommandError::Reported) }
}

async fn run_checks(
    loaded: &CheckedConfig,
    with_test_source: bool,
    report: &mut CheckReport<'_>,
) -> io::Result<()> {
    let connectors: Vec<&str> = loaded.connectors.iter().map(|one| one.common().name.as_str()).collect();
    report.line("ok", "configuration", &format!("worker and connectors [{}]", connectors.join(", ")))?;
    for warning in &loaded.warnings {
        report.line("warning", "configuration", &warning.to_string())?;
    }
    let rest = &loaded.worker.rest;
    for (subject, files, clients) in [
        ("certificate of the admin listeners", &rest.tls, rest.client_auth.as_ref()),
        ("certificate of the webhook listeners", &loaded.worker.webhook.tls, None),
    ] {
        if let Some(files) = files {
            let shown = files.certificate.display();
            let served = worker::certificate(files, clients);
            let served = served.map(|_| format!("{shown} and its key fit")).map_err(worker::Error::from);
            report.result(subject, served)?;
        }
    }
    state_directory(&loaded.worker.state_dir, report)?;

    let admin = Admin::Real(loaded.worker.kafka.clone());
    let reached = admin.partition_counts(&[&loaded.worker.topics.config.name]).await;
    let servers = &loaded.worker.kafka.bootstrap_servers;
    if report.result("Kafka", reached.map(|_| format!("{servers} answers")))? {
        let create = loaded.worker.topic_creation;
        report.result("topics of the worker", own_topics(&loaded.worker, &admin).await)?;
        let mut warnings = Vec::new();
        let owner = owner(&loaded.worker, &admin, with_test_source, &mut warnings).await;
        report.result("owner of the topics", owner)?;
        for (subject, warning) in warnings {
            report.line("warning", subject, &warning)?;
        }
        for connector in &loaded.connectors {
            let subject = format!("topics of {}", connector.common().name);
            report.result(&subject, topics(&Layout::of(connector), &admin, create).await)?;
        }
    }

    let registry = match Registry::new(&loaded.worker.registry) {
        Ok(registry) => registry,
        Err(error) => return report.result("schema registry", Err(error)).map(drop),
    };
    // Any call with credentials will do; the subject need not exist.
    let answered = registry.level("tributary-check").await.map(|_| "answers".to_owned());
    if !report.result("schema registry", answered)? {
        return Ok(());
    }
    for connector in &loaded.connectors {
        let subject = format!("schemas of {}", connector.common().name);
        let (fitting, asked) = schemas::ask(&registry, &Layout::of(connector).subjects(), false).await;
        report.result(&subject, asked.map(|()| format!("{} subjects fit", fitting.len())))?;
    }
    Ok(())
}

/// Inspects the worker's own topics as a start does.
async fn own_topics(worker: &config::Worker, admin: &Admin) -> Result<String, kafka::Error> {
    let missing = topics::inspect(admin, &worker.topics).await?;
    Ok(match missing.len() {
        0 => "all five exist and fit".to_owned(),
        count => format!("{} exist and fit, {count} would be created: {}", 5 - count, missing.join(", ")),
    })
}

/// Whether the config topic, if it exists, belongs to this worker. Adds warnings, each with its subject.
async fn owner(
    worker: &config::Worker,
    admin: &Admin,
    with_test_source: bool,
    warnings: &mut Vec<(&'static str, String)>,
) -> Result<String, Box<dyn Error>> {
    let (topic, work) = (worker.topics.config.name.as_str(), worker.topics.work.name.as_str());
    let counts = admin.partition_counts(&[topic, work]).await?;
    let Some(count) = counts.get(topic) else {
        return Ok("not written yet".to_owned());
    };
    let partitions: Vec<i32> = (0..*count).collect();
    let mut configs = Configs::default();
    let mut newest = 0;
    kafka::read_to_end(&worker.kafka, topic, &partitions, READ_TIMEOUT, |record| {
        newest = newest.max(record.timestamp_ms.unwrap_or_default());
        configs.apply(&record);
    })
    .await?;
    let plugins = Plugins::of(worker, with_test_source);
    let check = ClusterCheck { worker, plugins: &plugins, adopt: false };
    check.verify(&configs, counts.get(work).map(|count| count.unsigned_abs()))?;
    let unknown = configs.foreign_classes(|class| plugins.find(class).is_some());
    let named: Vec<String> = unknown.iter().map(|(name, class)| format!("{name}: {class}")).collect();
    if !named.is_empty() {
        let named = named.join(", ");
        let warning = format!(
            "this worker does not have the classes of these connectors, so they fail on it ({named}); run a version that has them"
        );
        warnings.push(("owner of the topics", warning));
    }
    warnings.extend(
        clock_behind(newest, SystemTime::now(), worker.clock_skew_max)
            .map(|clock_behind| ("clock", clock_behind)),
    );
    Ok(format!("{} connectors, of this group", configs.connectors().len()))
}

/// The warning if the newest record, in milliseconds since 1970, is more than `most` in the future.
fn clock_behind(newest: i64, now: SystemTime, most: Duration) -> Option<String> {
    let newest = UNIX_EPOCH + Duration::from_millis(newest.unsigned_abs());
    let clock_behind = newest.duration_since(now).ok().filter(|clock_behind| *clock_behind > most)?;
    Some(format!(
        "is {} s behind the clock of the config topic's last writer; use NTP: event times and leases depend on the clock",
        clock_behind.as_secs()
    ))
}

/// `create` is whether a start would create what is missing.
async fn topics(layout: &Layout, admin: &Admin, create: bool) -> Result<String, Box<dyn Error>> {
    let specs = layout.specs(admin).await?;
    let missing = admin.inspect(&specs).await?;
    if !create && !missing.is_empty() {
        let names = missing.join(", ");
        return Err(format!("missing, and topic.creation.enable is false: {names}; create them").into());
    }
    Ok(format!("{} exist and fit, {} would be created", specs.len() - missing.len(), missing.len()))
}

/// Acknowledged deliveries may exist only there for a while, so it must be writable and survive a restart. Missing directories are
/// created to test that, and removed again.
fn state_directory(directory: &Path, report: &mut CheckReport<'_>) -> io::Result<()> {
    let absent: Vec<&Path> = directory.ancestors().take_while(|part| !exists(part)).collect();
    let probe = directory.join(format!(".check-{}", random::hex::<8>().map_err(io::Error::other)?));
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .and_then(|()| File::options().write(true).create_new(true).mode(0o600).open(&probe).map(drop))
        .and_then(|()| fs::remove_file(&probe));
    let foreign = durable::foreign_owner(directory).ok().flatten();
    let shown = directory.display().to_string();
    let volatile = volatile_file_system(directory);
    let free = Fjall::default().free_bytes(directory).ok();
    for part in absent {
        // Fails only if the directory was not created, or is in use by now.
        fs::remove_dir(part).ok();
    }
    report.result("state directory", written.map(|()| format!("{shown} is writable")))?;
    if let Some(foreign) = foreign {
        report.line("warning", "state directory", &format!("{shown} {foreign}"))?;
    }
    for part in PRIVATE_DIRECTORIES.map(|name| directory.join(name)).iter().filter(|part| part.exists()) {
        if let Err(error) = durable::check_directory(part) {
            report.result("state directory", Err(error))?;
        }
    }
    if let Some(advice) = free.and_then(|free| disk_too_full(&shown, free)) {
        report.line("warning", "state directory", &advice)?;
    }
    match volatile {
        None => Ok(()),
        Some(kind) => {
            let advice = format!("{shown} is on {kind}, which a restart may empty; put state.dir on a disk");
            report.line("warning", "state directory", &advice)
        }
    }
}

/// The warning if the free space is below the spool's reserve, so that the spool would store nothing.
fn disk_too_full(directory: &str, free: u64) -> Option<String> {
    let reserve = spool::SpoolOptions::new("", 0).reserve_bytes;
    let mebibytes = |bytes: u64| bytes / (1024 * 1024);
    (free < reserve).then(|| {
        format!(
            "{directory} has {} MiB left and the spool keeps {} MiB free: deliveries that Kafka does not accept in time \
             would be answered 503; free disk space, or put state.dir on another disk",
            mebibytes(free),
            mebibytes(reserve)
        )
    })
}

/// The empty path is the working directory, the parent of a relative one.
fn exists(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.exists()
}

/// Name of the path's file system, if a restart may empty it.
#[cfg(target_os = "linux")]
fn volatile_file_system(path: &Path) -> Option<&'static str> {
    // Numbers from linux/magic.h.
    match rustix::fs::statfs(path).ok()?.f_type as u32 {
        0x0102_1994 => Some("tmpfs"),
        0x8584_58f6 => Some("ramfs"),
        0x794c_7630 => Some("overlay"),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
const fn volatile_file_system(_: &Path) -> Option<&'static str> {
    None
}

struct CheckReport<'a> {
    out: &'a mut dyn Write,
    /// One object per line.
    is_json: bool,
    failed: usize,
}

impl CheckReport<'_> {
    fn line(&mut self, verdict: &str, subject: &str, text: &str) -> io::Result<()> {
        if self.is_json {
            let line = json!({ "verdict": verdict, "subject": subject, "message": text });
            return writeln!(self.out, "{line}");
        }
        writeln!(self.out, "{verdict:<8} {subject}: {text}")
    }

    /// Writes the result and returns whether it is a success.
    fn result<E: Into<Box<dyn Error>>>(
        &mut self,
        subject: &str,
        result: Result<String, E>,
    ) -> io::Result<bool> {
        match result {
            Ok(text) => self.line("ok", subject, &text).map(|()| true),
            Err(error) => {
                self.failed += 1;
                let error = error.into();
                let remedy =
                    remedy::in_check(&*error).map(|remedy| format!("; {remedy}")).unwrap_or_default();
                self.line("FAILED", subject, &format!("{}{remedy}", ErrorChain(error.as_ref())))
                    .map(|()| false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_behind_the_newest_record_is_a_warning() {
        let (now, most) = (UNIX_EPOCH + Duration::from_secs(1_000), Duration::from_secs(300));

        let warning = clock_behind(1_301_000, now, most).unwrap();

        assert!(warning.starts_with("is 301 s behind"), "{warning}");
        assert_eq!((clock_behind(1_300_000, now, most), clock_behind(0, now, most)), (None, None));
    }

    #[test]
    fn a_disk_below_the_spools_reserve_is_a_warning() {
        let warning = disk_too_full("/state", 100 * 1024 * 1024).unwrap();

        assert!(warning.contains("/state has 100 MiB left and the spool keeps 256 MiB"), "{warning}");
        assert_eq!(disk_too_full("/state", 256 * 1024 * 1024), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_a_volatile_file_system_has_a_name() {
        let found = ["/proc", "/dev/shm", "/no/such/path"].map(|path| volatile_file_system(Path::new(path)));

        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let shm = mounts.lines().any(|mount| mount.contains(" /dev/shm tmpfs ")).then_some("tmpfs");
        assert_eq!(found, [None, shm, None]);
    }
}
