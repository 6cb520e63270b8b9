//! `tributary run`: a worker, until a signal stops it.

use std::{io::Write, sync::Arc};

use tokio_util::sync::CancellationToken;

use base::durable;

use super::{Result, load::CheckedConfig, open_files, outside, signals::Signals};
use crate::{
    plugin::Plugins,
    telemetry::{Filters, Metrics},
    worker::{Process, Service},
};

pub(super) async fn run(
    loaded: CheckedConfig,
    logs: Filters,
    metrics: &Metrics,
    with_test_source: bool,
    adopt: bool,
    out: &mut dyn Write,
) -> Result {
    let mut signals = Signals::take()?;
    durable::create_private_files();
    let mut worker = loaded.worker;
    open_files::ensure(&mut worker.webhook);
    // Transparent huge pages nearly double a worker's memory and make nothing here faster. Ignore systems without them.
    #[cfg(target_os = "linux")]
    rustix::thread::disable_transparent_huge_pages(true).ok();
    let worker = Arc::new(worker);
    let metrics = metrics.clone();
    let process = Process {
        loggers: Arc::new(logs),
        metrics: Arc::new(move || metrics.render()),
        plugins: Plugins::of(&worker, with_test_source),
        adopt,
        embedded: None,
    };
    let service = Service::bind(worker, &process).await?;
    for address in service.addresses() {
        writeln!(out, "{} listens on {address}", service.worker_id())?;
    }
    for address in service.webhook_addresses() {
        writeln!(out, "{} receives deliveries on {address}", service.worker_id())?;
    }
    out.flush()?;

    let stop = CancellationToken::new();
    let running = service.run(&process, stop.clone());
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return ended.map_err(outside),
        () = signals.next() => {}
    }
    stop.cancel();
    running.await.map_err(outside)
}
