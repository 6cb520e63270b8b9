//! The part of `/metrics` on connectors, tasks and the group, built for each scrape.
//!
//! ```text
//! supervisor's handle ─┐
//! recorders of tasks  ─┼─▶ page in Prometheus' text format
//! configs, tables     ─┤
//! membership          ─┤
//! access, grants      ─┤
//! state topics        ─┘
//! ```
//!
//! - A worker shows its own connectors and tasks, as every worker of Kafka Connect does: the sum over all workers is the cluster.
//! - Nothing is kept between two scrapes, so a connector that is deleted or moves away disappears here too.
//! - A metric that a class does not feed is not shown for its tasks.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use base::metrics::live::{self, ScrapePage, ScrapedMetric};
use kafka::{Membership, Rebalances};

use crate::{
    connect::supervisor::{InstanceId, RunningInstance, Startups, SupervisorHandle},
    logins::access::ApiAccess,
    plugin::{
        Plugins,
        recorder::{Measured, Spread, TaskTotals},
    },
    state::{StateTables, state_topic::StateTopics, statuses::RunState},
};

/// Sources of a scrape.
#[derive(Clone)]
pub(super) struct Scrape {
    /// What runs here.
    pub(super) handle: SupervisorHandle,
    /// Tables of the config, offset and status topics.
    pub(super) state: StateTables,
    /// The worker's membership in its group.
    pub(super) membership: Membership,
    /// Classes.
    pub(super) plugins: Plugins,
    /// The provider's APIs, and the grants that they take.
    pub(super) access: ApiAccess,
    /// Tables of the state topics.
    pub(super) state_topics: StateTopics,
}

impl Scrape {
    /// The whole page.
    pub(super) fn text(&self) -> String {
        let mut page = ScrapePage::default();
        let running = self.handle.running();
        instances(&mut page, &running, |id| self.handle.recorder(id)?.measured());
        for one in &running {
            let (Some(task), Some(recorder)) = (one.id.task, self.handle.recorder(&one.id)) else { continue };
            for (shard, lag) in recorder.lag() {
                let labels = [&*one.id.connector, &task.to_string(), &shard.to_string()];
                page.put(&live::SHARD_LAG, &labels, lag.as_secs_f64());
            }
            if let Some(age) = recorder.companies_age(Instant::now()) {
                let labels = [&*one.id.connector, &task.to_string()];
                page.put(&live::COMPANIES_AGE, &labels, age.as_secs_f64());
            }
        }
        let connectors = running.iter().filter(|one| one.id.task.is_none());
        self.classes(&mut page, connectors.map(|one| &*one.id.connector));
        startups(&mut page, &CONNECTOR_STARTUPS, self.handle.connector_startups());
        startups(&mut page, &TASK_STARTUPS, self.handle.task_startups());
        group(&mut page, self.membership.rebalances(), SystemTime::now());
        page.put(&live::LEASE_LEFT, &[], self.membership.lease_left().as_secs_f64());
        let outage = self.membership.outage().map_or(Duration::ZERO, |outage| outage.lasted);
        page.put(&live::GROUP_OUTAGE, &[], outage.as_secs_f64());
        page.put(&live::PARTITIONS, &[], self.membership.owned().borrow().len() as f64);
        let StateTables { configs, offsets, statuses } = &self.state;
        for (topic, silence) in [
            ("config", configs.silent_for()),
            ("offset", offsets.silent_for()),
            ("status", statuses.silent_for()),
        ] {
            page.put(&live::TOPIC_SILENCE, &[topic], silence.unwrap_or_default().as_secs_f64());
        }
        let now = since_1970(SystemTime::now()).as_millis();
        self.access.measure();
        self.access.grants().measure(&mut page, i64::try_from(now).unwrap_or(i64::MAX));
        self.state_topics.measure(&mut page);
        page.to_string()
    }

    fn classes<'a>(&self, page: &mut ScrapePage, connectors: impl Iterator<Item = &'a str>) {
        self.state.configs.read(|configs| {
            for name in connectors {
                let config = configs.connectors().get(name).map(|connector| &connector.config);
                let class = config.and_then(|config| config.get("connector.class"));
                // An unknown class has no type and no version.
                let Some(class) = class.and_then(|class| self.plugins.find(class)) else { continue };
                page.put(&live::CONNECTOR_CLASS, &[name, class.class()], 1.0);
                page.put(&live::CONNECTOR_TYPE, &[name, "source"], 1.0);
                page.put(&live::CONNECTOR_VERSION, &[name, env!("CARGO_PKG_VERSION")], 1.0);
            }
        });
    }
}

/// States as Kafka Connect's metrics write them, and the metric that counts a connector's tasks in each. A task is never
/// stopped.
const STATES: [(RunState, &str, Option<&ScrapedMetric>); 6] = [
    (RunState::Running, "running", Some(&live::CONNECTOR_RUNNING)),
    (RunState::Paused, "paused", Some(&live::CONNECTOR_PAUSED)),
    (RunState::Stopped, "stopped", None),
    (RunState::Failed, "failed", Some(&live::CONNECTOR_FAILED)),
    (RunState::Unassigned, "unassigned", Some(&live::CONNECTOR_UNASSIGNED)),
    (RunState::Restarting, "restarting", Some(&live::CONNECTOR_RESTARTING)),
];

fn instances(
    page: &mut ScrapePage,
    running: &[RunningInstance],
    measured: impl Fn(&InstanceId) -> Option<Measured>,
) {
    let (tasks, connectors): (Vec<&RunningInstance>, Vec<&RunningInstance>) =
        running.iter().partition(|one| one.id.task.is_some());
    for (state, word, _) in STATES {
        let count = |all: &[&RunningInstance]| all.iter().filter(|one| one.state == state).count() as f64;
        page.put(&live::CONNECTORS, &[word], count(&connectors));
        if state != RunState::Stopped {
            page.put(&live::TASKS, &[word], count(&tasks));
        }
    }
    for (metric, count) in [
        (&live::CONNECTOR_COUNT, connectors.len()),
        (&live::ASSIGNED_CONNECTORS, connectors.len()),
        (&live::TASK_COUNT, tasks.len()),
        (&live::ASSIGNED_TASKS, tasks.len()),
    ] {
        page.put(metric, &[], count as f64);
    }
    for one in connectors {
        page.put(&live::CONNECTOR_STATUS, &[&one.id.connector, word(one.state)], 1.0);
    }
    let mut by_connector: BTreeMap<&str, Vec<RunState>> = BTreeMap::new();
    for one in tasks {
        by_connector.entry(&one.id.connector).or_default().push(one.state);
        task(page, one, measured(&one.id));
    }
    for (connector, states) in by_connector {
        page.put(&live::CONNECTOR_TASKS, &[connector], states.len() as f64);
        page.put(&live::CONNECTOR_DESTROYED, &[connector], 0.0);
        for (state, _, metric) in STATES {
            if let Some(metric) = metric {
                let count = states.iter().filter(|one| **one == state).count();
                page.put(metric, &[connector], count as f64);
            }
        }
    }
}

fn task(page: &mut ScrapePage, one: &RunningInstance, measured: Option<Measured>) {
    let number = one.id.task.unwrap_or_default().to_string();
    let (connector, number) = (&*one.id.connector, number.as_str());
    page.put(&live::CONNECTOR_STATUS, &[connector, word(one.state), number], 1.0);
    page.put(&live::TASK_STATUS, &[connector, number, word(one.state)], 1.0);
    let labels = [connector, number];
    let mut put = |metric, value| page.put(metric, &labels, value);
    put(&live::RUNNING_RATIO, one.running_ratio());
    put(&live::PAUSE_RATIO, one.pause_ratio());
    put(&live::STATE_SECONDS, one.since.as_secs_f64());
    put(&live::RESTARTS, one.starts.saturating_sub(1) as f64);
    let Some(measured) = measured else { return };

    let TaskTotals { polled, written, active, errors, last_record } = measured.totals;
    put(&live::POLL_TOTAL, polled as f64);
    put(&live::WRITE_TOTAL, written as f64);
    put(&live::ACTIVE, active as f64);
    let parts = [
        (&live::POLL_RATE, measured.poll_rate),
        (&live::WRITE_RATE, measured.write_rate),
        (&live::COMMIT_SUCCESS, measured.commit_success),
        (&live::COMMIT_FAILURE, measured.commit_success.map(|part| 1.0 - part)),
        (&live::LAST_RECORD, last_record.map(|at| since_1970(at).as_secs_f64())),
    ];
    for (metric, value) in parts {
        if let Some(value) = value {
            put(metric, value);
        }
    }
    let spreads: [(
        Option<Spread>,
        Option<&'static ScrapedMetric>,
        &'static ScrapedMetric,
        &'static ScrapedMetric,
    ); 5] = [
        (measured.polls, None, &live::POLL_MAX, &live::POLL_AVG),
        (measured.batches, None, &live::BATCH_MAX, &live::BATCH_AVG),
        (measured.actives, None, &live::ACTIVE_MAX, &live::ACTIVE_AVG),
        (measured.commits, None, &live::COMMIT_MAX, &live::COMMIT_AVG),
        (measured.transactions, Some(&live::TRANSACTION_MIN), &live::TRANSACTION_MAX, &live::TRANSACTION_AVG),
    ];
    for (spread, least, most, average) in spreads {
        let Some(spread) = spread else { continue };
        put(most, spread.most);
        put(average, spread.average);
        if let Some(least) = least {
            put(least, spread.least);
        }
    }
    for (metric, count) in [
        (&live::FAILURES, errors.failures),
        (&live::ERRORS, errors.errors),
        (&live::SKIPPED, errors.skipped),
        (&live::RETRIES, errors.retries),
        (&live::LOGGED, errors.logged),
        (&live::DEAD_LETTERS, errors.dead_letters),
        (&live::DEAD_LETTER_FAILURES, errors.dead_letter_failures),
    ] {
        put(metric, count as f64);
    }
    // Zero before the first error, as in Kafka Connect.
    put(&live::LAST_ERROR, errors.last.map_or(0.0, |at| since_1970(at).as_millis() as f64));
}

/// Attempts, successes, failures, and the shares of the last two.
type StartupMetrics = [&'static ScrapedMetric; 5];

const CONNECTOR_STARTUPS: StartupMetrics = [
    &live::CONNECTOR_ATTEMPTS,
    &live::CONNECTOR_SUCCESSES,
    &live::CONNECTOR_FAILURES,
    &live::CONNECTOR_SUCCESS_PART,
    &live::CONNECTOR_FAILURE_PART,
];
const TASK_STARTUPS: StartupMetrics = [
    &live::TASK_ATTEMPTS,
    &live::TASK_SUCCESSES,
    &live::TASK_FAILURES,
    &live::TASK_SUCCESS_PART,
    &live::TASK_FAILURE_PART,
];

fn startups(page: &mut ScrapePage, metrics: &StartupMetrics, counted: Startups) {
    let Startups { attempts, successes, failures } = counted;
    // Starts in progress count as neither.
    let ended = (successes + failures) as f64;
    let values = [
        attempts as f64,
        successes as f64,
        failures as f64,
        successes as f64 / ended,
        failures as f64 / ended,
    ];
    for (metric, value) in metrics.iter().zip(values) {
        page.put(metric, &[], value);
    }
}

fn group(page: &mut ScrapePage, rebalances: Rebalances, now: SystemTime) {
    page.put(&live::REBALANCES, &[], rebalances.completed as f64);
    page.put(&live::REBALANCING, &[], f64::from(u8::from(rebalances.under_way)));
    if let Some(generation) = rebalances.generation {
        page.put(&live::EPOCH, &[], f64::from(generation));
    }
    if rebalances.timed > 0 {
        let average = rebalances.took / rebalances.timed;
        page.put(&live::REBALANCE_MAX, &[], rebalances.longest.as_millis() as f64);
        page.put(&live::REBALANCE_AVG, &[], average.as_millis() as f64);
    }
    if let Some(last) = rebalances.last {
        let since = now.duration_since(last).unwrap_or_default();
        page.put(&live::SINCE_REBALANCE, &[], since.as_millis() as f64);
    }
}

fn word(state: RunState) -> &'static str {
    STATES.iter().find(|(known, _, _)| *known == state).map_or("unknown", |(_, word, _)| word)
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Recorder;

    fn running(connector: &str, task: Option<u32>, state: RunState) -> RunningInstance {
        RunningInstance {
            id: InstanceId { connector: connector.into(), task },
            state,
            starts: 2,
            since: Duration::from_secs(4),
            age: Duration::from_secs(8),
            ran: Duration::from_secs(6),
            paused: Duration::from_secs(2),
        }
    }

    fn shown(
        instances_here: &[RunningInstance],
        measured: impl Fn(&InstanceId) -> Option<Measured>,
    ) -> String {
        let mut page = ScrapePage::default();
        instances(&mut page, instances_here, measured);
        page.to_string()
    }

    #[test]
    fn task_state_is_shown_in_both_spellings() {
        let all = [
            running("a", None, RunState::Running),
            running("a", Some(0), RunState::Running),
            running("a", Some(1), RunState::Failed),
            running("b", None, RunState::Stopped),
        ];

        let text = shown(&all, |_| None);

        for line in [
            r#"kafka_connect_connector_status{connector="a",status="failed",task="1"} 1"#,
            r#"kafka_connect_connector_status{connector="b",status="stopped"} 1"#,
            r#"kafka_connect_connector_task_status{connector="a",task="1",status="failed"} 1"#,
            r#"kafka_connect_connector_task_running_ratio{connector="a",task="0"} 0.75"#,
            r#"kafka_connect_connector_task_pause_ratio{connector="a",task="0"} 0.25"#,
            r#"kafka_connect_worker_connector_total_task_count{connector="a"} 2"#,
            r#"kafka_connect_worker_connector_failed_task_count{connector="a"} 1"#,
            r#"kafka_connect_worker_connector_paused_task_count{connector="a"} 0"#,
            r#"kafka_connect_worker_connector_destroyed_task_count{connector="a"} 0"#,
            "kafka_connect_worker_connector_count 2",
            "kafka_connect_coordinator_assigned_tasks 2",
            r#"tributary_tasks{state="failed"} 1"#,
            r#"tributary_connectors{state="stopped"} 1"#,
            r#"tributary_task_restarts_total{connector="a",task="0"} 1"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("source_record"), "no task has measured anything\n{text}");
    }

    #[test]
    fn only_fed_metrics_are_shown() {
        let recorder = Recorder::default();
        recorder.polled(10, Duration::from_millis(4));
        recorder.written(10);

        let text = shown(&[running("a", Some(0), RunState::Running)], |_| recorder.measured());

        for line in [
            r#"kafka_connect_source_task_source_record_poll_total{connector="a",task="0"} 10"#,
            r#"kafka_connect_source_task_source_record_write_total{connector="a",task="0"} 10"#,
            r#"kafka_connect_source_task_poll_batch_max_time_ms{connector="a",task="0"} 4"#,
            r#"kafka_connect_source_task_source_record_active_count_max{connector="a",task="0"} 10"#,
            r#"kafka_connect_task_error_total_record_failures{connector="a",task="0"} 0"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("transaction_size") && !text.contains("offset_commit"), "{text}");
    }

    #[test]
    fn rebalance_duration_is_shown_once_one_was_timed() {
        let shown = |rebalances| {
            let mut page = ScrapePage::default();
            group(&mut page, rebalances, SystemTime::UNIX_EPOCH);
            page.to_string()
        };
        let timed = Rebalances {
            completed: 3,
            timed: 2,
            took: Duration::from_millis(300),
            longest: Duration::from_millis(250),
            ..Rebalances::default()
        };

        let (before, after) = (shown(Rebalances::default()), shown(timed));

        assert!(!before.contains("time_ms"), "{before}");
        assert!(after.contains("kafka_connect_worker_rebalance_rebalance_avg_time_ms 150\n"), "{after}");
        assert!(after.contains("kafka_connect_worker_rebalance_rebalance_max_time_ms 250\n"), "{after}");
    }

    #[test]
    fn startup_percentages_are_shown_after_the_first_start() {
        let shown = |counted| {
            let mut page = ScrapePage::default();
            startups(&mut page, &TASK_STARTUPS, counted);
            page.to_string()
        };

        let under_way = shown(Startups { attempts: 1, successes: 0, failures: 0 });
        let ended = shown(Startups { attempts: 5, successes: 3, failures: 1 });

        assert!(!under_way.contains("percentage"), "{under_way}");
        assert!(ended.contains("kafka_connect_worker_task_startup_success_percentage 0.75\n"), "{ended}");
        assert!(ended.contains("kafka_connect_worker_task_startup_attempts_total 5\n"), "{ended}");
    }
}
