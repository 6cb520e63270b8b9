//! `tributary run`: a worker, until it is told to stop.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Failure, load::Loaded, outside};
use crate::{
    telemetry::{LogLevel, Logs, Metrics},
    worker::{
        herder::{Level, LoggerLevel, Loggers},
        plugins::Plugins,
        service::{Process, Service},
    },
};

pub(super) async fn run(
    loaded: Loaded,
    logs: Logs,
    metrics: &Metrics,
    with_test_source: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // Taken first, so that a signal during the start still ends it in order.
    let mut terminated = signal(SignalKind::terminate()).map_err(outside)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(outside)?;
    let worker = Arc::new(loaded.worker);
    let metrics = metrics.clone();
    let process = Process {
        loggers: Arc::new(ProcessLoggers(logs)),
        metrics: Arc::new(move || metrics.render()),
        plugins: Plugins::of(&worker, with_test_source),
    };
    let service = Service::bind(worker, &process).await.map_err(outside)?;
    for address in service.addresses() {
        writeln!(out, "{} listens on {address}", service.worker_id()).map_err(outside)?;
    }
    out.flush().map_err(outside)?;

    let stop = CancellationToken::new();
    let running = service.run(&process, stop.clone());
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return ended.map_err(outside),
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    stop.cancel();
    running.await.map_err(outside)
}

/// The process's log filter, in Kafka Connect's words.
#[derive(Debug)]
struct ProcessLoggers(Logs);

impl Loggers for ProcessLoggers {
    fn levels(&self) -> BTreeMap<String, LoggerLevel> {
        let shown = |(name, logger): (String, crate::telemetry::Logger)| {
            (name, LoggerLevel { level: level(logger.level), last_modified: logger.changed })
        };
        self.0.loggers().into_iter().map(shown).collect()
    }

    fn set(&self, logger: &str, wanted: Level) -> Vec<String> {
        let wanted = match wanted {
            Level::Off => LogLevel::OFF,
            Level::Error => LogLevel::ERROR,
            Level::Warn => LogLevel::WARN,
            Level::Info => LogLevel::INFO,
            Level::Debug => LogLevel::DEBUG,
            Level::Trace => LogLevel::TRACE,
        };
        self.0.set(logger, wanted)
    }
}

fn level(shown: LogLevel) -> Level {
    match shown {
        LogLevel::OFF => Level::Off,
        LogLevel::ERROR => Level::Error,
        LogLevel::WARN => Level::Warn,
        LogLevel::INFO => Level::Info,
        LogLevel::DEBUG => Level::Debug,
        _ => Level::Trace,
    }
}
