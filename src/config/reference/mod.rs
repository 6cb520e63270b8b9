//! Every key as markdown, out of the same declarations that parse and validate.

use super::{
    connector::{self, record, webhook},
    key::{ConfigKey, Fallback, Type},
    worker_keys,
};

/// The configuration reference, as `tributary config reference` prints it and `config/REFERENCE.md` holds it.
#[must_use]
pub fn reference() -> String {
    let mut text = include_str!("introduction.md").to_owned();
    section(&mut text, "Worker", "In the worker's properties file.", worker_keys::KEYS);
    text.push('\n');
    text.push_str(include_str!("kafka_clients.md"));
    section(&mut text, "Both connectors", "In a connector's configuration.", connector::keys::KEYS);
    text.push_str(TOPIC_SETTINGS);
    section(&mut text, "WebhookSource", "Beside the keys of both connectors.", webhook::keys::KEYS);
    section(&mut text, "RecordSource", "Beside the keys of both connectors.", record::keys::KEYS);
    text
}

const TOPIC_SETTINGS: &str = "
Further topic settings follow `topic.creation.default.`: `topic.creation.default.retention.ms` sets `retention.ms`.
";

fn section(text: &mut String, title: &str, where_to: &str, keys: &[ConfigKey]) {
    text.push_str(&format!("\n## {title}\n\n{where_to}\n"));
    let mut group = "";
    for key in keys {
        if key.group != group {
            group = key.group;
            text.push_str(&format!("\n### {group}\n\n{TABLE_HEAD}"));
        }
        let cells = [kind(key.kind), fallback(key.fallback), valid_values(key), escaped(key.documentation)];
        text.push_str(&format!("| `{}` | {} |\n", key.name, cells.join(" | ")));
    }
}

const TABLE_HEAD: &str = "| Key | Type | Default | Valid values | Meaning |\n|---|---|---|---|---|\n";

fn kind(kind: Type) -> String {
    format!("{kind:?}").to_lowercase()
}

fn fallback(fallback: Fallback) -> String {
    match fallback {
        Fallback::Required => "**required**".to_owned(),
        Fallback::Unset => "unset".to_owned(),
        Fallback::Text("") => "empty".to_owned(),
        Fallback::Text(text) => format!("`{text}`"),
    }
}

fn valid_values(key: &ConfigKey) -> String {
    // The type says as much.
    if key.kind == Type::Boolean { String::new() } else { escaped(&key.valid_values()) }
}

/// Text that markdown shows as it is, also inside a table.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<").replace('*', "\\*")
}

#[cfg(test)]
mod tests;
