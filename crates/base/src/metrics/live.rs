//! Metrics of a worker's connectors and tasks, read at every scrape.
//!
//! Their labels are names of connectors, so their series come and go: a scrape shows only what exists.
//!
//! Names with the prefix `kafka_connect_` follow the common export rules for Kafka Connect's JMX metrics (jmx_exporter's
//! example, Strimzi's), so that dashboards for Kafka Connect also show this worker. If the two rules name a metric differently,
//! as for the state of a task, both exist. Two metrics of Kafka Connect do not apply and are left out: `connect_protocol`
//! (there is no such protocol here) and `leader_name` (there is no leader). The label `client_id` of the coordinator's
//! metrics is left out too: it would be the same on every worker.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

/// A metric whose series are read at every scrape.
#[derive(Debug)]
pub struct ScrapedMetric {
    /// Full Prometheus name.
    pub name: &'static str,
    /// Whether it only grows.
    pub is_counter: bool,
    /// One sentence for the reader of a dashboard.
    pub help: &'static str,
    /// Label keys, in order. A series may leave out the last ones.
    pub labels: &'static [&'static str],
}

macro_rules! live {
    ($($constant:ident = $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: ScrapedMetric = ScrapedMetric {
                name: $name,
                is_counter: live!(@ $kind),
                help: $help,
                labels: $labels,
            };
        )*
        /// Every metric that is read at a scrape.
        pub const ALL: &[ScrapedMetric] = &[$($constant),*];
    };
    (@ counter) => { true };
    (@ gauge) => { false };
}

const NONE: &[&str] = &[];
const STATE: &[&str] = &["state"];
const TOPIC: &[&str] = &["topic"];
const CONNECTOR: &[&str] = &["connector"];
const GRANT: &[&str] = &["grant"];
const CAUSE: &[&str] = &["connector", "cause"];
const TASK: &[&str] = &["connector", "task"];

live! {
    // Ours.
    TASKS = gauge "tributary_tasks" STATE, "Tasks that this worker has, by state.";
    CONNECTORS = gauge "tributary_connectors" STATE, "Connectors that this worker has, by state.";
    RESTARTS = counter "tributary_task_restarts_total" TASK,
        "Restarts of a task on this worker, by request or after a failure.";
    LAST_RECORD = gauge "tributary_task_last_record_timestamp_seconds" TASK,
        "When a task last wrote a record, in seconds since 1970.";
    STATE_SECONDS = gauge "tributary_task_state_seconds" TASK, "How long a task has been in its current state.";
    SHARD_LAG = gauge "tributary_shard_lag_seconds" &["connector", "task", "shard"],
        "Age of the oldest delivery whose record a shard has neither published nor parked; 0 while there is none.";
    COMPANIES_AGE = gauge "tributary_companies_age_seconds" TASK,
        "Time since a task last read the list of companies completely; before the first time, since it started to try. Without it, events of unknown companies wait.";
    LEASE_LEFT = gauge "tributary_group_lease_seconds" NONE,
        "How much longer this worker may act on its partitions without an answer from Kafka; 0 while it may not.";
    GROUP_OUTAGE = gauge "tributary_group_lapse_seconds" NONE,
        "How long this worker has been unable to act on all its partitions; 0 while it can.";
    PARTITIONS = gauge "tributary_group_partitions" NONE, "Partitions of the work topic that this worker owns.";
    TOPIC_SILENCE = gauge "tributary_tail_silence_seconds" TOPIC,
        "How long Kafka has not answered the reader of one of the worker's internal topics; 0 while it does.";
    GRANT_STATE = gauge "tributary_grant_state" &["grant", "state"],
        "Always 1; the label state has the state of a grant that a connector names.";
    TOKEN_EXPIRY = gauge "tributary_token_expiry_timestamp_seconds" &["grant", "token"],
        "When a token of a grant expires by the provider's clock, in seconds since 1970; `login` is the end of the login itself.";
    GRANT_INTENT = gauge "tributary_grant_intent_seconds" GRANT,
        "How long a refresh of a grant has been in progress; 0 while none is.";
    SUBSCRIPTIONS = gauge "tributary_subscriptions" &["connector", "family", "phase"],
        "Subscriptions of a connector by phase, from its ledger: the same on every worker.";
    GAPS_OPEN = gauge "tributary_gaps_open" CAUSE,
        "Gaps that are not repaired, by cause, from the ledger: the same on every worker.";
    GAP_OPEN_SECONDS = gauge "tributary_gap_open_seconds" CAUSE,
        "How long the oldest gap of a cause has been open; absent while none is.";
    SNAPSHOT_STATE = gauge "tributary_snapshot_state" &["connector", "state"],
        "Runs of a connector by state, from its ledger: the same on every worker.";
    SNAPSHOT_COLLECTIONS = gauge "tributary_snapshot_collections" CONNECTOR,
        "Known lists of the unfinished runs; each is a list of one company or of one shard.";
    SNAPSHOT_COLLECTIONS_REMAINING = gauge "tributary_snapshot_collections_remaining" CONNECTOR,
        "Lists of the unfinished runs that are not finished.";
    RECONCILE_MISMATCHES = gauge "tributary_reconcile_mismatch_records" &["connector", "kind"],
        "Records that differ between source and topic after the last finished verification, by kind; every kind has a series.";
    RECONCILE_COMPARED = gauge "tributary_reconcile_compared_records" CONNECTOR,
        "Rows compared by the last finished verification.";
    RECONCILE_UNPROVED = gauge "tributary_reconcile_unproved_lists" CONNECTOR,
        "Lists of the last finished verification that are not proved complete; 0 for a sample, which proves nothing.";
    RECONCILE_ENDED = gauge "tributary_reconcile_ended_timestamp_seconds" CONNECTOR,
        "When the last finished verification ended, in seconds since 1970.";

    // connector-metrics.
    CONNECTOR_STATUS = gauge "kafka_connect_connector_status" &["connector", "status", "task"],
        "Always 1; the label status has the state of a task (jmx_exporter) or, without a task, of the connector (Strimzi).";
    CONNECTOR_CLASS = gauge "kafka_connect_connector_connector_class" &["connector", "connector_class"],
        "Always 1; the label has the class of a connector.";
    CONNECTOR_TYPE = gauge "kafka_connect_connector_connector_type" &["connector", "connector_type"],
        "Always 1; the label has the type of a connector.";
    CONNECTOR_VERSION = gauge "kafka_connect_connector_connector_version" &["connector", "connector_version"],
        "Always 1; the label has the version of a connector's class.";

    // connector-task-metrics.
    TASK_STATUS = gauge "kafka_connect_connector_task_status" &["connector", "task", "status"],
        "Always 1; the label status has the state of a task (Strimzi).";
    RUNNING_RATIO = gauge "kafka_connect_connector_task_running_ratio" TASK,
        "Fraction of its lifetime that a task was running, from 0 to 1.";
    PAUSE_RATIO = gauge "kafka_connect_connector_task_pause_ratio" TASK,
        "Fraction of its lifetime that a task was paused, from 0 to 1.";
    COMMIT_MAX = gauge "kafka_connect_connector_task_offset_commit_max_time_ms" TASK,
        "Longest offset commit in the last minute, in milliseconds.";
    COMMIT_AVG = gauge "kafka_connect_connector_task_offset_commit_avg_time_ms" TASK,
        "Average duration of an offset commit in the last minute, in milliseconds.";
    COMMIT_SUCCESS = gauge "kafka_connect_connector_task_offset_commit_success_percentage" TASK,
        "Fraction of the offset commits in the last minute that succeeded, from 0 to 1.";
    COMMIT_FAILURE = gauge "kafka_connect_connector_task_offset_commit_failure_percentage" TASK,
        "Fraction of the offset commits in the last minute that failed, from 0 to 1.";
    BATCH_MAX = gauge "kafka_connect_connector_task_batch_size_max" TASK,
        "Records in the largest batch of the last minute.";
    BATCH_AVG = gauge "kafka_connect_connector_task_batch_size_avg" TASK,
        "Records in an average batch of the last minute.";

    // source-task-metrics.
    POLL_TOTAL = counter "kafka_connect_source_task_source_record_poll_total" TASK,
        "Records that a task has read from its source.";
    POLL_RATE = gauge "kafka_connect_source_task_source_record_poll_rate" TASK,
        "Records per second that a task has read from its source in the last minute.";
    WRITE_TOTAL = counter "kafka_connect_source_task_source_record_write_total" TASK,
        "Records of a task that Kafka has acknowledged.";
    WRITE_RATE = gauge "kafka_connect_source_task_source_record_write_rate" TASK,
        "Records per second of a task that Kafka has acknowledged in the last minute.";
    POLL_MAX = gauge "kafka_connect_source_task_poll_batch_max_time_ms" TASK,
        "Longest time that reading a batch took in the last minute, in milliseconds.";
    POLL_AVG = gauge "kafka_connect_source_task_poll_batch_avg_time_ms" TASK,
        "Average time that reading a batch took in the last minute, in milliseconds.";
    ACTIVE = gauge "kafka_connect_source_task_source_record_active_count" TASK,
        "Records read and not yet acknowledged.";
    ACTIVE_MAX = gauge "kafka_connect_source_task_source_record_active_count_max" TASK,
        "Most records read and not yet acknowledged in the last minute.";
    ACTIVE_AVG = gauge "kafka_connect_source_task_source_record_active_count_avg" TASK,
        "Average of the records read and not yet acknowledged in the last minute.";
    TRANSACTION_MIN = gauge "kafka_connect_source_task_transaction_size_min" TASK,
        "Records in the smallest transaction of the last minute.";
    TRANSACTION_MAX = gauge "kafka_connect_source_task_transaction_size_max" TASK,
        "Records in the largest transaction of the last minute.";
    TRANSACTION_AVG = gauge "kafka_connect_source_task_transaction_size_avg" TASK,
        "Records in an average transaction of the last minute.";

    // task-error-metrics; gauges to the rules, since their names do not end in total.
    FAILURES = gauge "kafka_connect_task_error_total_record_failures" TASK,
        "Failures that ended a task.";
    ERRORS = gauge "kafka_connect_task_error_total_record_errors" TASK,
        "Errors that a task tolerated.";
    SKIPPED = gauge "kafka_connect_task_error_total_records_skipped" TASK, "Records skipped because of errors.";
    RETRIES = gauge "kafka_connect_task_error_total_retries" TASK, "Retried operations.";
    LOGGED = gauge "kafka_connect_task_error_total_errors_logged" TASK, "Errors that were logged.";
    DEAD_LETTERS = gauge "kafka_connect_task_error_deadletterqueue_produce_requests" TASK,
        "Records sent to the dead-letter topic.";
    DEAD_LETTER_FAILURES = gauge "kafka_connect_task_error_deadletterqueue_produce_failures" TASK,
        "Records that could not be written to the dead-letter topic.";
    LAST_ERROR = gauge "kafka_connect_task_error_last_error_timestamp" TASK,
        "When a task last had an error, in milliseconds since 1970.";

    // connect-worker-metrics.
    CONNECTOR_COUNT = gauge "kafka_connect_worker_connector_count" NONE, "Connectors that this worker has.";
    TASK_COUNT = gauge "kafka_connect_worker_task_count" NONE, "Tasks that this worker has.";
    CONNECTOR_ATTEMPTS = counter "kafka_connect_worker_connector_startup_attempts_total" NONE,
        "Attempts to start connectors on this worker.";
    CONNECTOR_SUCCESSES = counter "kafka_connect_worker_connector_startup_success_total" NONE,
        "Successful starts of connectors on this worker.";
    CONNECTOR_FAILURES = counter "kafka_connect_worker_connector_startup_failure_total" NONE,
        "Failed starts of connectors on this worker.";
    CONNECTOR_SUCCESS_PART = gauge "kafka_connect_worker_connector_startup_success_percentage" NONE,
        "Fraction of the starts of connectors that succeeded, from 0 to 1.";
    CONNECTOR_FAILURE_PART = gauge "kafka_connect_worker_connector_startup_failure_percentage" NONE,
        "Fraction of the starts of connectors that failed, from 0 to 1.";
    TASK_ATTEMPTS = counter "kafka_connect_worker_task_startup_attempts_total" NONE,
        "Attempts to start tasks on this worker.";
    TASK_SUCCESSES = counter "kafka_connect_worker_task_startup_success_total" NONE,
        "Successful starts of tasks on this worker.";
    TASK_FAILURES = counter "kafka_connect_worker_task_startup_failure_total" NONE,
        "Failed starts of tasks on this worker.";
    TASK_SUCCESS_PART = gauge "kafka_connect_worker_task_startup_success_percentage" NONE,
        "Fraction of the starts of tasks that succeeded, from 0 to 1.";
    TASK_FAILURE_PART = gauge "kafka_connect_worker_task_startup_failure_percentage" NONE,
        "Fraction of the starts of tasks that failed, from 0 to 1.";
    CONNECTOR_TASKS = gauge "kafka_connect_worker_connector_total_task_count" CONNECTOR,
        "Tasks of a connector that this worker has.";
    CONNECTOR_RUNNING = gauge "kafka_connect_worker_connector_running_task_count" CONNECTOR,
        "Running tasks of a connector that this worker has.";
    CONNECTOR_PAUSED = gauge "kafka_connect_worker_connector_paused_task_count" CONNECTOR,
        "Paused tasks of a connector that this worker has.";
    CONNECTOR_FAILED = gauge "kafka_connect_worker_connector_failed_task_count" CONNECTOR,
        "Failed tasks of a connector that this worker has.";
    CONNECTOR_UNASSIGNED = gauge "kafka_connect_worker_connector_unassigned_task_count" CONNECTOR,
        "Tasks of a connector that this worker has and that have not started yet.";
    CONNECTOR_DESTROYED = gauge "kafka_connect_worker_connector_destroyed_task_count" CONNECTOR,
        "Destroyed tasks of a connector on this worker: always 0, since ended tasks are not kept.";
    CONNECTOR_RESTARTING = gauge "kafka_connect_worker_connector_restarting_task_count" CONNECTOR,
        "Restarting tasks of a connector that this worker has.";

    // connect-coordinator-metrics and connect-worker-rebalance-metrics.
    ASSIGNED_CONNECTORS = gauge "kafka_connect_coordinator_assigned_connectors" NONE,
        "Connectors assigned to this worker.";
    ASSIGNED_TASKS = gauge "kafka_connect_coordinator_assigned_tasks" NONE, "Tasks assigned to this worker.";
    EPOCH = gauge "kafka_connect_worker_rebalance_epoch" NONE, "Generation of the group of workers.";
    REBALANCES = counter "kafka_connect_worker_rebalance_completed_rebalances_total" NONE,
        "Rebalances of the group that this worker has taken part in.";
    REBALANCING = gauge "kafka_connect_worker_rebalance_rebalancing" NONE,
        "Whether a rebalance is in progress: 1 or 0.";
    REBALANCE_MAX = gauge "kafka_connect_worker_rebalance_rebalance_max_time_ms" NONE,
        "Longest rebalance that this worker has taken part in, in milliseconds.";
    REBALANCE_AVG = gauge "kafka_connect_worker_rebalance_rebalance_avg_time_ms" NONE,
        "Average duration of a rebalance that this worker has taken part in, in milliseconds.";
    SINCE_REBALANCE = gauge "kafka_connect_worker_rebalance_time_since_last_rebalance_ms" NONE,
        "Time since the last rebalance, in milliseconds.";
}

/// One scrape; `Display` writes Prometheus' text format.
#[derive(Debug, Default)]
pub struct ScrapePage {
    families: BTreeMap<&'static str, MetricFamily>,
}

#[derive(Debug)]
struct MetricFamily {
    metric: &'static ScrapedMetric,
    series: Vec<(String, f64)>,
}

impl ScrapePage {
    /// Adds a series with its label values, in the metric's order. Values that are not finite are left out.
    pub fn put(&mut self, metric: &'static ScrapedMetric, labels: &[&str], value: f64) {
        if !value.is_finite() {
            return;
        }
        let family =
            self.families.entry(metric.name).or_insert_with(|| MetricFamily { metric, series: Vec::new() });
        let named: Vec<String> = metric
            .labels
            .iter()
            .zip(labels)
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        family.series.push((named.join(","), value));
    }
}

impl fmt::Display for ScrapePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, MetricFamily { metric, series }) in &self.families {
            writeln!(f, "# HELP {name} {}", metric.help)?;
            writeln!(f, "# TYPE {name} {}", if metric.is_counter { "counter" } else { "gauge" })?;
            for (labels, value) in series {
                match labels.as_str() {
                    "" => writeln!(f, "{name} {value}")?,
                    labels => writeln!(f, "{name}{{{labels}}} {value}")?,
                }
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

/// Escapes a label value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_counters_end_in_total() {
        let names: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();

        assert_eq!(names.len(), ALL.len());
        for ScrapedMetric { name, is_counter, help, labels } in ALL {
            assert!(name.starts_with("tributary_") || name.starts_with("kafka_connect_"), "{name}");
            assert_eq!(*is_counter, name.ends_with("_total"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\n', '\\']), "{name}: {help}");
            assert!(
                name.chars()
                    .chain(labels.iter().flat_map(|label| label.chars()))
                    .all(|letter| letter.is_ascii_lowercase() || letter == '_'),
                "{name}"
            );
        }
    }

    #[test]
    fn page_has_each_metric_once_with_escaped_labels() {
        let mut page = ScrapePage::default();
        page.put(&RUNNING_RATIO, &["b\"\\\n{}", "0"], 0.5);
        page.put(&TASK_COUNT, &[], 2.0);
        page.put(&RUNNING_RATIO, &["a", "1"], 1.0);
        page.put(&CONNECTOR_STATUS, &["a", "failed"], 1.0);
        page.put(&COMMIT_AVG, &["a", "1"], f64::NAN);

        let text = page.to_string();

        let samples: Vec<&str> =
            text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert_eq!(
            samples,
            [
                r#"kafka_connect_connector_status{connector="a",status="failed"} 1"#,
                r#"kafka_connect_connector_task_running_ratio{connector="b\"\\\n{}",task="0"} 0.5"#,
                r#"kafka_connect_connector_task_running_ratio{connector="a",task="1"} 1"#,
                "kafka_connect_worker_task_count 2",
            ]
        );
        assert_eq!(text.matches("# TYPE kafka_connect_connector_task_running_ratio gauge\n").count(), 1);
        assert!(text.contains("# HELP kafka_connect_worker_task_count Tasks that this worker has.\n"));
    }
}
