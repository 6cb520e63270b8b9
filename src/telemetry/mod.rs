//! Logs and metrics of the process, installed once by the binary.
//!
//! Logs go to stderr, as text for people or as one JSON object per line for collectors; `RUST_LOG`-style filters choose what is
//! shown, and [`Filters`] changes them while the process runs. Metrics are recorded in memory and rendered in Prometheus' text format
//! on request. [`Metrics::keep_up`] must run: without it, histogram samples accumulate until the next scrape.

use std::{
    convert::Infallible,
    env,
    ffi::OsStr,
    io::{self, IsTerminal},
    time::Duration,
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

pub use self::filters::{EffectiveLevel, Filters, LoggerError, logger_name};

use base::metrics::{self, MetricKind};

use crate::config::worker::LogFormat;

#[cfg(test)]
pub(crate) mod captured_logs;
mod filters;

/// How often histogram samples are folded into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why logs or metrics could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter does not parse.
    #[error("log filter {filter:?} does not parse; write it like info,tributary=debug")]
    Filter {
        /// As given.
        filter: String,
        /// What the parser said.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A subscriber is already installed.
    #[error("install the log subscriber")]
    Logs(#[source] tracing_subscriber::util::TryInitError),
    /// A histogram without buckets, or a recorder that is already installed.
    #[error("install the metrics recorder")]
    Metrics(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sends logs to stderr from now on. The returned [`Filters`] choose which.
pub fn install_logs(format: LogFormat, filter: &str) -> Result<Filters, Error> {
    let (filters, layer) = Filters::new(filter)?;
    let registry = tracing_subscriber::registry().with(layer);
    match format {
        LogFormat::Text => {
            let layer = fmt::layer().with_writer(io::stderr).with_ansi(is_colored(&io::stderr()));
            registry.with(layer).try_init()
        }
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(io::stderr)).try_init(),
    }
    .map_err(Error::Logs)?;
    Ok(filters)
}

/// Whether to color this output: only on a terminal, and not if `NO_COLOR` is set.
#[must_use]
pub fn is_colored(output: &impl IsTerminal) -> bool {
    output.is_terminal() && wants_colors(env::var_os("NO_COLOR").as_deref())
}

fn wants_colors(no_color: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty)
}

/// Parses a filter such as `info,tributary::kafka=debug`.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(filters::with_log_targets(text))
        .map_err(|source| Error::Filter { filter: text.to_owned(), source })
}

/// The metrics of the process.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Records metrics for the whole process from now on, every series starting at zero.
    pub fn install() -> Result<Self, Error> {
        let recorder = recorder()?;
        let handle = recorder.handle();
        ::metrics::set_global_recorder(recorder).map_err(|error| Error::Metrics(error.into()))?;
        metrics::register();
        metrics::cache_series();
        Ok(Self(handle))
    }

    /// Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Folds histogram samples into their buckets every few seconds, until the future is dropped.
    pub async fn keep_up(&self) -> Infallible {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            self.0.run_upkeep();
        }
    }
}

/// A recorder that knows every histogram's buckets.
fn recorder() -> Result<PrometheusRecorder, Error> {
    let mut builder = PrometheusBuilder::new();
    for metric in metrics::ALL {
        if let MetricKind::Histogram(buckets) = metric.kind {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
                .map_err(|error| Error::Metrics(error.into()))?;
        }
    }
    Ok(builder.build_recorder())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_variable_disables_colors() {
        let wanted = [None, Some(""), Some("1")].map(|text| wants_colors(text.map(OsStr::new)));

        assert_eq!(wanted, [true, true, false]);
    }

    fn rendered(act: impl FnOnce()) -> String {
        let recorder = recorder().unwrap();
        let handle = recorder.handle();
        ::metrics::with_local_recorder(&recorder, || {
            metrics::register();
            act();
        });
        handle.render()
    }

    #[test]
    fn every_metric_is_exported_from_the_start() {
        let text = rendered(|| {});

        for metric in metrics::ALL {
            assert!(
                text.contains(&format!("# HELP {} {}", metric.name, metric.help)),
                "{} lacks help",
                metric.name
            );
            let series = text.lines().filter(|line| line.starts_with(metric.name)).count();
            let labels: usize = metric.labels.iter().map(|(_, values)| values.len()).product();
            assert!(series >= labels, "{} shows {series} series of {labels}", metric.name);
        }
    }

    #[test]
    fn counters_end_in_total_and_nothing_else_does() {
        for metric in metrics::ALL {
            assert_eq!(
                matches!(metric.kind, MetricKind::Counter),
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
            assert!(metric.name.starts_with("tributary_"), "{}", metric.name);
        }
    }

    #[test]
    fn acknowledgement_is_counted_by_bucket_and_origin() {
        let text = rendered(|| {
            metrics::records_published("snapshot", 3);
            metrics::published_after(Duration::from_millis(7));
        });

        assert!(text.contains(r#"tributary_records_published_total{origin="snapshot"} 3"#), "{text}");
        assert!(text.contains(r#"tributary_publish_seconds_bucket{le="0.005"} 0"#), "{text}");
        assert!(text.contains(r#"tributary_publish_seconds_bucket{le="0.01"} 1"#), "{text}");
    }

    #[test]
    fn a_filter_that_does_not_parse_is_refused_by_name() {
        let error = install_logs(LogFormat::Text, "tributary=loud").unwrap_err();

        assert!(error.to_string().contains("tributary=loud"), "{error}");
    }
}
