//! The shipped dashboard and alerting rules query only what exists: metrics of the product's list, with their labels and values, and
//! functions that fit their kind. Renaming a metric fails here until both follow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::metrics::{self, MetricKind, live};
use model::{GapCause, SubscriptionPhase};
use serde_json::Value;
use tributary::state::runs::RunPhase;

use super::{
    queries::{PromQuery, QueriedMetric},
    rules,
};

crate::tests! {
    plain board_queries_only_existing_metrics;
    plain alerts_query_existing_metrics_and_have_a_runbook;
    plain every_alert_has_a_unit_test;
    plain metrics_that_need_an_alert_have_one;
    plain query_of_a_missing_metric_is_found;
}

/// Metrics that Prometheus itself adds about a target.
const OF_PROMETHEUS: [&str; 1] = ["up"];
/// Labels that it adds to every series.
const OF_TARGETS: [&str; 2] = ["instance", "job"];
/// Functions for counters.
const FOR_COUNTERS: [&str; 3] = ["rate", "irate", "increase"];
/// Rows of the board.
const ROWS: [&str; 9] = [
    "At a glance",
    "Ingest",
    "Spool",
    "Enrichment",
    "Snapshot",
    "Subscriptions and gaps",
    "Tokens",
    "API budget",
    "Worker",
];
/// The unit tests for `promtool test rules`.
const UNIT_TESTS: &str = include_str!("../../../tools/alerts_test.yml");
/// Lower bounds that show that the right files were read.
const LEAST_PANELS: usize = 50;
const LEAST_ALERTS: usize = 30;

fn shipped(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn board() -> Value {
    serde_json::from_str(&shipped("grafana/dashboards/tributary.json")).unwrap()
}

fn alerts() -> Vec<rules::AlertRule> {
    rules::parse(&shipped("prometheus/alerts.yml")).unwrap()
}

/// What can be queried under a name.
struct Series {
    grows: bool,
    /// Labels, with their values if these are known.
    labels: BTreeMap<&'static str, Option<BTreeSet<String>>>,
}

/// Every name that a page of metrics can contain.
fn offered() -> BTreeMap<String, Series> {
    let mut offered = BTreeMap::new();
    let texts = |values: &[&str]| Some(values.iter().map(|value| (*value).to_owned()).collect());
    for metric in metrics::ALL {
        let labels = || metric.labels.iter().map(|(key, values)| (*key, texts(values))).collect();
        let mut add = |end: &str, grows, labels| {
            offered.insert(format!("{}{end}", metric.name), Series { grows, labels });
        };
        match metric.kind {
            MetricKind::Counter => add("", true, labels()),
            MetricKind::Gauge => add("", false, labels()),
            MetricKind::Histogram(bounds) => {
                let mut buckets: BTreeMap<_, _> = labels();
                // As exported, and as Prometheus 3 writes them.
                let bounds = bounds.iter().flat_map(|bound| [format!("{bound}"), format!("{bound:?}")]);
                buckets.insert("le", Some(bounds.chain(["+Inf".to_owned()]).collect()));
                add("_bucket", true, buckets);
                add("_sum", true, labels());
                add("_count", true, labels());
            }
        }
    }
    for metric in live::ALL {
        let labels = metric.labels.iter().map(|label| (*label, known(metric.name, label))).collect();
        offered.insert(metric.name.to_owned(), Series { grows: metric.is_counter, labels });
    }
    for name in OF_PROMETHEUS {
        offered.insert(name.to_owned(), Series { grows: false, labels: BTreeMap::new() });
    }
    offered
}

/// Values of a label that come from a closed set elsewhere.
fn known(metric: &str, label: &str) -> Option<BTreeSet<String>> {
    let names: Vec<&str> = match (metric, label) {
        ("tributary_subscriptions", "phase") => {
            SubscriptionPhase::ALL.iter().map(|phase| phase.name()).collect()
        }
        ("tributary_gaps_open" | "tributary_gap_open_seconds", "cause") => {
            GapCause::ALL.iter().map(|cause| cause.name()).collect()
        }
        ("tributary_snapshot_state", "state") => RunPhase::NAMES.to_vec(),
        _ => return None,
    };
    Some(names.into_iter().map(str::to_owned).collect())
}

/// What is wrong with a query.
fn faults(offered: &BTreeMap<String, Series>, text: &str) -> Vec<String> {
    let query = match PromQuery::parse(text) {
        Ok(query) if query.metrics.is_empty() => return vec![format!("names no metric: {text}")],
        Ok(query) => query,
        Err(fault) => return vec![fault],
    };
    let mut faults = Vec::new();
    for named in &query.metrics {
        match offered.get(&named.metric) {
            Some(series) => faults.extend(misfits(series, named)),
            None => faults.push(format!("there is no {}", named.metric)),
        }
    }
    for label in query.labels.iter().filter(|label| !OF_TARGETS.contains(&label.as_str())) {
        let has = |named: &QueriedMetric| {
            offered.get(&named.metric).is_some_and(|series| series.labels.contains_key(label.as_str()))
        };
        if !query.metrics.iter().any(has) {
            faults.push(format!("none of its metrics has the label {label}"));
        }
    }
    faults
}

fn misfits(series: &Series, named: &QueriedMetric) -> Vec<String> {
    let QueriedMetric { metric, function, matchers } = named;
    let mut faults = Vec::new();
    if let Some(function) = function.as_deref().filter(|function| FOR_COUNTERS.contains(function))
        && !series.grows
    {
        faults.push(format!("{function}() of {metric}, which does not only grow"));
    }
    for matcher in matchers.iter().filter(|matcher| !OF_TARGETS.contains(&matcher.label.as_str())) {
        match series.labels.get(matcher.label.as_str()) {
            None => faults.push(format!("{metric} has no label {}", matcher.label)),
            Some(None) => {}
            Some(Some(known)) => faults.extend(
                matcher
                    .values()
                    .into_iter()
                    .filter(|value| !known.contains(*value))
                    .map(|value| format!("{metric}: {} is never {value}", matcher.label)),
            ),
        }
    }
    faults
}

async fn board_queries_only_existing_metrics() {
    let (board, offered) = (board(), offered());

    let (rows, panels): (Vec<&Value>, Vec<&Value>) =
        board["panels"].as_array().unwrap().iter().partition(|panel| panel["type"] == "row");
    let titles: Vec<&str> = rows.iter().filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(titles, ROWS);
    assert!(panels.len() >= LEAST_PANELS, "{} panels", panels.len());
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "ids of panels");
    let mut wrong = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(
            panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title}: no description"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}: no query");
        for target in targets {
            let expr = target["expr"].as_str().unwrap();
            wrong.extend(faults(&offered, expr).iter().map(|fault| format!("{title}: {fault}")));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let datasource = shipped("grafana/provisioning/datasources/prometheus.yml");
    let chosen = board["templating"]["list"][0]["current"]["value"].as_str().unwrap();
    assert!(datasource.contains(&format!("uid: {chosen}\n")), "{chosen}: {datasource}");
}

async fn alerts_query_existing_metrics_and_have_a_runbook() {
    let (alerts, offered) = (alerts(), offered());

    assert!(alerts.len() >= LEAST_ALERTS, "{} alerts", alerts.len());
    let (mut names, mut wrong) = (BTreeSet::new(), Vec::new());
    for alert in &alerts {
        let name = alert["alert"].as_str();
        assert!(name.starts_with("Tributary") && names.insert(name), "{name}");
        let said = |key: &str| alert.get(key).map(String::as_str).unwrap_or_default();
        assert!(["critical", "warning"].contains(&said("severity")), "{name}: {}", said("severity"));
        for key in ["summary", "description", "runbook"] {
            assert!(!said(key).is_empty(), "{name}: no {key}");
        }
        assert!(said("runbook").starts_with("1. "), "{name}: what to do first?");
        wrong.extend(faults(&offered, said("expr")).iter().map(|fault| format!("{name}: {fault}")));
        wrong
            .extend(unlabelled(alert).iter().map(|label| format!("{name}: its result has no label {label}")));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Labels that the texts of an alert show and that its expression aggregates away.
fn unlabelled(alert: &rules::AlertRule) -> Vec<String> {
    let mut labels = PromQuery::parse(&alert["expr"]).unwrap().labels;
    if labels.is_empty() && !alert["expr"].contains("sum(") {
        labels = OF_TARGETS.map(str::to_owned).to_vec();
    }
    let texts = ["summary", "description", "runbook"].map(|key| alert[key].as_str()).join(" ");
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let shown = texts.split("$labels.").skip(1).map(|rest| rest.split(|letter| !is_letter(letter)).next());
    shown.flatten().filter(|label| !labels.iter().any(|one| one == label)).map(str::to_owned).collect()
}

async fn every_alert_has_a_unit_test() {
    let alerts = alerts();
    let names: BTreeSet<&str> = alerts.iter().map(|alert| alert["alert"].as_str()).collect();

    let tested = tested(UNIT_TESTS);

    let untested: Vec<&&str> = names.difference(&tested).collect();
    let unknown: Vec<&&str> = tested.difference(&names).collect();
    assert!(untested.is_empty(), "alerts that tests/tools/alerts_test.yml never sees fire: {untested:?}");
    assert!(unknown.is_empty(), "tests/tools/alerts_test.yml tests what is no alert: {unknown:?}");
}

/// Alerts that unit tests expect to fire: among samples, or by name.
fn tested(text: &str) -> BTreeSet<&str> {
    let sampled = text.split("labels: '{alertname=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let named = text.lines().filter_map(|line| line.trim_start().strip_prefix("alertname: "));
    sampled.chain(named).collect()
}

async fn metrics_that_need_an_alert_have_one() {
    let alerts = alerts();
    let asks = |help: &str| help.contains("Alert on");
    let wanted: Vec<&str> = metrics::ALL.iter().filter(|one| asks(one.help)).map(|one| one.name).collect();

    let asked: BTreeSet<String> = alerts
        .iter()
        .flat_map(|alert| PromQuery::parse(&alert["expr"]).unwrap().metrics)
        .map(|named| named.metric)
        .collect();

    assert!(!wanted.is_empty());
    let forgotten: Vec<&str> = wanted.into_iter().filter(|name| !asked.contains(*name)).collect();
    assert_eq!(forgotten, Vec::<&str>::new());
}

async fn query_of_a_missing_metric_is_found() {
    let offered = offered();

    for sound in [
        r#"sum by (le, family) (rate(tributary_delivery_seconds_bucket{le=~"5|5.0"}[5m]))"#,
        r#"max by (connector) (tributary_subscriptions{phase="disabled"}) > 0"#,
        "rate(tributary_api_wait_seconds_sum[5m]) / tributary_api_budget_ratio",
        r#"up{job="tributary"} == 0"#,
    ] {
        assert_eq!(faults(&offered, sound), Vec::<String>::new(), "{sound}");
    }
    for (bad, fault) in [
        ("tributary_spool_entry", "there is no tributary_spool_entry"),
        ("rate(tributary_delivery_seconds[5m])", "there is no tributary_delivery_seconds"),
        ("rate(tributary_spool_entries_bucket[5m])", "there is no tributary_spool_entries_bucket"),
        ("rate(tributary_spool_entries[5m])", "rate() of tributary_spool_entries, which does not only grow"),
        (
            r#"tributary_deliveries_total{outcome=~"full|lost"}"#,
            "tributary_deliveries_total: outcome is never lost",
        ),
        (r#"tributary_deliveries_total{result="full"}"#, "tributary_deliveries_total has no label result"),
        (r#"tributary_subscriptions{phase="gone"}"#, "tributary_subscriptions: phase is never gone"),
        ("sum by (company) (tributary_deliveries_total)", "none of its metrics has the label company"),
        ("vector(0)", "names no metric: vector(0)"),
    ] {
        assert_eq!(faults(&offered, bad), [fault], "{bad}");
    }
}
