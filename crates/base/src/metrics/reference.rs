//! Every metric as markdown, out of the same declarations that register them.

use std::fmt::Write as _;

use super::{ALL, MetricKind, live};

/// Values of a label that are told one by one; of more their number is told.
const TOLD: usize = 12;

const HEAD: &str = "\
# Metrics

Made by `tributary config metrics`; change the declarations in `crates/base/src/metrics`, not this file.

Every series of the first table is there from the start of a worker, with 0. Those of the second are read at each scrape: their labels
are names of connectors, tasks and the like, so they come and go with them. Companies are never labels.
";

/// The reference of metrics, as `tributary config metrics` prints it and `config/METRICS.md` holds it.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    heading(&mut text, "Kept");
    for metric in ALL {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let labels: Vec<String> = metric.labels.iter().map(|(key, values)| label(key, values)).collect();
        row(&mut text, (metric.name, kind), &labels.join("; "), metric.help);
    }
    heading(&mut text, "Read at each scrape");
    for metric in live::ALL {
        let kind = if metric.is_counter { "counter" } else { "gauge" };
        let labels: Vec<String> = metric.labels.iter().map(|key| format!("`{key}`")).collect();
        row(&mut text, (metric.name, kind), &labels.join("; "), metric.help);
    }
    text
}

fn heading(text: &mut String, title: &str) {
    // Text takes everything.
    let _always =
        write!(text, "\n## {title}\n\n| Name | Type | Labels | What it tells |\n|---|---|---|---|\n");
}

fn row(text: &mut String, (name, kind): (&str, &str), labels: &str, help: &str) {
    let _always = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
}

fn label(key: &str, values: &[&str]) -> String {
    match values {
        // It would have to be written anew for every version.
        _ if key == "version" => format!("`{key}`"),
        values if values.len() <= TOLD => format!("`{key}`: {}", values.join(", ")),
        values => format!("`{key}`: one of {}", values.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_shipped_metrics_are_up_to_date() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/METRICS.md");
        let shipped = std::fs::read_to_string(file).unwrap_or_default();

        assert!(
            shipped == reference(),
            "config/METRICS.md differs from the declarations; run `tributary config metrics > config/METRICS.md`"
        );
    }
}
