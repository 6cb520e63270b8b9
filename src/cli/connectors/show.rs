//! Tables and traces of connectors, and whether a person has to act.

use std::io::{self, Write};

use serde_json::Value;

use crate::cli::{
    declarations,
    table::{columns, each, harmless, text},
};

/// One line per connector.
pub(super) fn table(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let rows = found.as_object().into_iter().flatten().map(|(name, one)| {
        let (connector, tasks) = (&one["status"]["connector"], each(&one["status"]["tasks"]));
        let states: Vec<String> =
            tasks.iter().map(|task| format!("{}:{}", task["id"], text(&task["state"]))).collect();
        [
            harmless(name),
            text(&one["info"]["config"]["connector.class"]),
            text(&connector["state"]),
            text(&connector["worker_id"]),
            if states.is_empty() { "-".to_owned() } else { states.join(" ") },
            one[declarations::DECLARATION]["state"].as_str().unwrap_or_default().to_owned(),
        ]
    });
    let rows: Vec<[String; 6]> = rows.collect();
    // Trailing blanks are cut, so a list without files does not show this column.
    let file = if rows.iter().any(|row| !row[5].is_empty()) { "FILE" } else { "" };
    columns(["NAME", "CLASS", "STATE", "WORKER", "TASKS", file], rows, out)
}

/// One line per source partition.
pub(super) fn offsets(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let rows = each(&found["offsets"])
        .iter()
        .map(|entry| [entry["partition"].to_string(), entry["offset"].to_string()]);
    columns(["PARTITION", "OFFSET"], rows.collect(), out)
}

/// Whether a connector or task has failed or a file is refused.
pub(super) fn needs_attention(found: &Value) -> bool {
    let refused = |one: &Value| one[declarations::DECLARATION]["state"] == "refused";
    instances(found).iter().any(|(_, instance)| instance["state"] == "FAILED")
        || found.as_object().into_iter().flatten().any(|(_, one)| refused(one))
}

/// Names of connectors and tasks with the traces of their failures or restarts.
pub(super) fn traces(found: &Value) -> Vec<(String, String)> {
    let trace = |instance: &Value| match instance["trace"].as_str().filter(|trace| !trace.is_empty()) {
        Some(trace) => Some(trace.to_owned()),
        None => (instance["state"] == "FAILED").then(|| "no trace".to_owned()),
    };
    instances(found).into_iter().filter_map(|(name, instance)| Some((name, trace(instance)?))).collect()
}

fn instances(found: &Value) -> Vec<(String, &Value)> {
    let mut instances = Vec::new();
    for (name, one) in found.as_object().into_iter().flatten() {
        let status = &one["status"];
        let tasks = each(&status["tasks"]).iter().map(|task| (format!("{name}-{}", task["id"]), task));
        instances.extend([(name.clone(), &status["connector"])].into_iter().chain(tasks));
    }
    instances
}
