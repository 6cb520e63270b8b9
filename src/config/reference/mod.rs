//! Every key as markdown, out of the same declarations that parse and validate.

use super::{
    connector::{self, record, webhook},
    key::{ConfigKey, Fallback, Type},
    worker_keys,
};

/// The configuration reference, as `tributary config reference` prints it and `config/REFERENCE.md` holds it.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    section(&mut text, "Worker", "In the worker's properties file.", worker_keys::KEYS);
    text.push_str(CLIENTS);
    section(&mut text, "Both connectors", "In a connector's configuration.", connector::keys::KEYS);
    text.push_str(TOPIC_SETTINGS);
    section(&mut text, "WebhookSource", "Beside the keys of both connectors.", webhook::keys::KEYS);
    section(&mut text, "RecordSource", "Beside the keys of both connectors.", record::keys::KEYS);
    text
}

const HEAD: &str = "\
# Configuration reference

Made by `tributary config reference`; change the declarations in `src/config`, not this file.

The worker reads a Java properties file (UTF-8). Each of its keys can also come from the environment, as in the Connect
images, and then wins over the file: `CONNECT_BOOTSTRAP_SERVERS` is `bootstrap.servers`. One underscore is a dot, two are
an underscore, three are a dash.

Connectors are flat JSON maps of texts, posted to the REST API or put as files into `connectors.dir`.

A key of type `password` may refer to a secret kept elsewhere; a reference that does not resolve is an error, and so is one
in any other key:

| Reference | Value |
|---|---|
| `${env:NAME}` | an environment variable |
| `${file:PATH:KEY}` | a key of a properties file |
| `${dir:PATH:FILE}` | a file in a directory, as Kubernetes and Docker mount secrets; one newline at its end is dropped |

The worker's own file may use all three. Connectors may use the providers that `config.providers` lists, inside their allow
lists: `config.providers.<name>.param.allowed.paths` names directories for `file` and `dir`,
`config.providers.env.param.allowlist.pattern` names variables by a regular expression. A provider without an allow list is
closed to connectors, and so are the worker's own secrets: whatever its settings refer to or name as a file, `CONNECT_*`
variables, `state.dir`, `/proc`, `/sys` and `/dev`. Kafka's provider classes are taken under any name:
`EnvVarConfigProvider`, `FileConfigProvider`, `DirectoryConfigProvider`.

An unknown key is a warning, and an error where it can only be a mistake. Keys of type `password` are never shown; give them
as references.
";

const CLIENTS: &str = "
### Kafka clients

Settings behind `producer.`, `consumer.` and `admin.` go to the clients of that kind, as
[librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md) names them. `security.protocol`,
`sasl.*`, `ssl.*`, `client.*`, `socket.*`, `reconnect.backoff.*` and a few more go to all of them without a prefix.
`sasl.jaas.config` is translated for PLAIN and SCRAM. Java key and trust stores are not read: use `ssl.ca.location`,
`ssl.certificate.location` and `ssl.key.location` with PEM files.

For OAUTHBEARER set `sasl.oauthbearer.token.endpoint.url` (https, or `file:///path` of a token), and for a token endpoint
`sasl.oauthbearer.client.id`, `sasl.oauthbearer.client.secret` and `sasl.oauthbearer.scope`.

Further settings of an internal topic follow its prefix: `offset.storage.segment.bytes` sets `segment.bytes`.
";

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
