//! Settings passed through to librdkafka, and Java settings that it does not have.
//!
//! `producer.`, `consumer.` and `admin.` go to the clients of that role, connection and security settings without a
//! prefix to all of them. Worker files written for Kafka Connect use Java names: settings that can be
//! translated safely are, others are refused with the name of the setting to use. librdkafka checks names and values, and the
//! code that creates the clients enforces the settings that our guarantees need; here only files are checked for existence.

use std::{collections::BTreeMap, path::Path};

use base::secret::Secret;
use kafka::Kafka;

use super::{
    key::{ConfigKey, Rule, Type},
    problem::Problem,
    reader::SettingsReader,
    unknown_keys::matches_any,
};

/// Names, or with a trailing dot prefixes of names, that go to every client when set without a role prefix.
const COMMON: &str = "api.version. broker.address. client. connections.max.idle.ms debug enable.ssl.certificate.verification \
    https. log.connection.close metadata.max.age.ms metadata.recovery. reconnect.backoff. retry.backoff. \
    sasl. security.protocol socket. ssl. statistics.interval.ms topic.metadata.";

/// Java settings that librdkafka does not have, with what to do instead.
const JAVA_ONLY: &[(&str, &str)] = &[
    ("ssl.truststore.", "convert the store to PEM and name the file in ssl.ca.location"),
    ("ssl.keystore.certificate.chain", "use ssl.certificate.pem"),
    ("ssl.keystore.key", "use ssl.key.pem"),
    (
        "ssl.keystore.type",
        "remove it: ssl.keystore.location takes PKCS#12; for PEM use ssl.certificate.location and ssl.key.location",
    ),
    ("ssl.protocol ssl.enabled.protocols", "remove it: TLS 1.2 and 1.3 are negotiated"),
    (
        "ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm \
     ssl.secure.random.implementation ssl.engine.factory.class security.providers \
     sasl.client.callback.handler.class max.block.ms max.poll.records default.api.timeout.ms \
     interceptor.classes key.serializer value.serializer key.deserializer value.deserializer",
        "remove it",
    ),
    ("sasl.login.", "for OAUTHBEARER set sasl.oauthbearer.token.endpoint.url, .client.id and .client.secret"),
    ("sasl.kerberos.ticket.renew.", "remove it: Kerberos is not built in"),
    ("send.buffer.bytes", "use socket.send.buffer.bytes"),
    ("receive.buffer.bytes", "use socket.receive.buffer.bytes"),
    ("buffer.memory", "remove it: the worker bounds what waits for Kafka, see intake.memory.bytes"),
    ("max.request.size", "use message.max.bytes"),
    ("fetch.max.wait.ms", "use fetch.wait.max.ms"),
    ("metric.reporters metrics. auto.include.jmx.reporter", "remove it: metrics are on /metrics"),
    ("partitioner.class", "remove it: the company in the key decides the partition"),
];

/// Whether an undeclared worker key belongs to a Kafka client.
pub(crate) fn is_client_setting(name: &str) -> bool {
    matches!(name.split_once('.'), Some(("producer" | "consumer" | "admin", _))) || matches_any(COMMON, name)
}

/// Collects the settings of all clients. `declared` names the worker's own keys, such as `admin.auth.user`.
pub(crate) fn read(
    reader: &mut SettingsReader<'_>,
    bootstrap_servers: String,
    declared: fn(&str) -> bool,
) -> Kafka {
    let mut kafka = Kafka { bootstrap_servers, ..Kafka::default() };
    for (name, raw) in reader.values() {
        if declared(name) || !is_client_setting(name) {
            continue;
        }
        let (setting, target) = match name.split_once('.') {
            Some(("producer", setting)) => (setting, &mut kafka.producer),
            Some(("consumer", setting)) => (setting, &mut kafka.consumer),
            Some(("admin", setting)) => (setting, &mut kafka.admin),
            _ => (name.as_str(), &mut kafka.common),
        };
        if let Some((rule, remedy)) = refusal(setting, raw.trim()) {
            reader.problems.add(name, rule, remedy);
        } else if let Some(value) = reader.undeclared(name, raw) {
            insert(reader, target, name, setting, value);
        }
    }
    kafka
}

/// Adds one setting under librdkafka's name for it.
fn insert(
    reader: &mut SettingsReader<'_>,
    target: &mut BTreeMap<String, Secret>,
    name: &str,
    setting: &str,
    value: Secret,
) {
    match setting {
        "sasl.jaas.config" => match login(value.reveal()) {
            Ok((user, password)) => {
                target.insert("sasl.username".to_owned(), user);
                target.insert("sasl.password".to_owned(), password);
            }
            Err(rule) => reader.problems.add(
                name,
                rule,
                "set sasl.username and sasl.password, or for OAUTHBEARER sasl.oauthbearer.token.endpoint.url, \
                 .client.id and .client.secret",
            ),
        },
        // Java disables the check with an empty value, librdkafka with `none`.
        "ssl.endpoint.identification.algorithm" if value.is_empty() => {
            target.insert(setting.to_owned(), Secret::new("none"));
        }
        _ if value.is_empty() => {}
        _ => {
            if let Err(problem) = file(setting, value.reveal()) {
                reader.problems.add(name, problem.rule, problem.remedy);
            }
            target.insert(setting.to_owned(), value);
        }
    }
}

/// Checks that the file of a `….location` exists.
fn file(setting: &str, value: &str) -> Result<(), Problem> {
    const FILE: ConfigKey = ConfigKey::new(Type::String, "").rule(Rule::File);
    // ssl.ca.location may be a directory, or `probe` for the system's usual places.
    let elsewhere = setting == "ssl.ca.location" && (value == "probe" || Path::new(value).is_dir());
    if elsewhere || !setting.ends_with(".location") { Ok(()) } else { FILE.check(value) }
}

/// Rule and remedy for a setting that must not be given, or not with this value.
fn refusal(setting: &str, value: &str) -> Option<(&'static str, &'static str)> {
    if let Some((_, remedy)) = JAVA_ONLY.iter().find(|(patterns, _)| matches_any(patterns, setting)) {
        return Some(("is a setting of the Java client that librdkafka does not have", remedy));
    }
    let is_java_store = setting == "ssl.keystore.location" && value.to_ascii_lowercase().ends_with(".jks");
    is_java_store.then_some((
        "is a Java keystore, which librdkafka cannot read",
        "convert it: keytool -importkeystore -deststoretype PKCS12; or use ssl.certificate.location and \
         ssl.key.location with PEM files",
    ))
}

/// Name and password from `sasl.jaas.config` for PLAIN and SCRAM. The error never contains the text.
fn login(jaas: &str) -> Result<(Secret, Secret), String> {
    let module = jaas.split_whitespace().next().unwrap_or_default();
    if !["PlainLoginModule", "ScramLoginModule"].iter().any(|known| module.ends_with(known)) {
        return Err("can only be translated for PlainLoginModule and ScramLoginModule".to_owned());
    }
    let option = |name| option(jaas, name).ok_or_else(|| format!("has no {name}"));
    Ok((option("username")?, option("password")?))
}

/// The value of `name="value"`; inside quotes a backslash escapes the next character.
fn option(jaas: &str, name: &str) -> Option<Secret> {
    let (_, rest) = jaas
        .match_indices(name)
        .map(|(at, _)| (&jaas[..at], jaas[at + name.len()..].trim_start()))
        .find(|(before, rest)| before.ends_with(char::is_whitespace) && rest.starts_with('='))?;
    let rest = rest[1..].trim_start();
    let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        let end = rest.find(|c: char| c.is_whitespace() || c == ';').unwrap_or(rest.len());
        return Some(Secret::new(&rest[..end]));
    };
    let mut value = String::new();
    let mut letters = rest[1..].chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => value.extend(letters.next()),
            _ if letter == quote => return Some(Secret::new(value)),
            _ => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Providers, samples::properties};

    fn kafka(pairs: &[(&str, &str)]) -> Result<Kafka, String> {
        let values = properties(pairs);
        let providers = Providers::new([("SASL".to_owned(), "from-env".to_owned())]);
        let mut reader = SettingsReader::new(&values, &providers);
        let kafka = read(&mut reader, "kafka:9092".to_owned(), |name| name.starts_with("admin.auth."));
        reader.finish(kafka).map(|(kafka, _)| kafka).map_err(|problems| problems.to_string())
    }

    #[test]
    fn settings_reach_the_clients_they_are_meant_for() {
        let kafka = kafka(&[
            ("security.protocol", "SASL_SSL"),
            ("sasl.password", "${env:SASL}"),
            ("sasl.username", "${env:SASL}"),
            ("sasl.oauthbearer.token.endpoint.url", "https://login/token"),
            ("ssl.endpoint.identification.algorithm", ""),
            ("producer.linger.ms", "0"),
            ("consumer.fetch.wait.max.ms", "10"),
            ("admin.socket.timeout.ms", "5000"),
            ("admin.auth.user", "me"),
            ("group.id", "g"),
        ])
        .unwrap();

        let common: Vec<_> = kafka.common.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
        assert_eq!(
            common,
            [
                ("sasl.oauthbearer.token.endpoint.url", "https://login/token"),
                ("sasl.password", "from-env"),
                ("sasl.username", "from-env"),
                ("security.protocol", "SASL_SSL"),
                ("ssl.endpoint.identification.algorithm", "none"),
            ]
        );
        assert_eq!(kafka.producer["linger.ms"].reveal(), "0");
        assert_eq!(kafka.consumer["fetch.wait.max.ms"].reveal(), "10");
        assert_eq!(kafka.admin.keys().collect::<Vec<_>>(), ["socket.timeout.ms"]);
    }

    #[test]
    fn a_jaas_login_becomes_name_and_password() {
        let table = [
            r#"org.apache.kafka.common.security.plain.PlainLoginModule required username="us er" password="p\"w;=";"#,
            "org.apache.kafka.common.security.scram.ScramLoginModule required\n username = 'us er' password='p\"w;=';",
        ];

        for jaas in table {
            let kafka = kafka(&[("producer.sasl.jaas.config", jaas)]).unwrap();
            assert_eq!(kafka.producer["sasl.username"].reveal(), "us er");
            assert_eq!(kafka.producer["sasl.password"].reveal(), "p\"w;=");
        }
    }

    #[test]
    fn untranslatable_jaas_login_is_refused_without_its_text() {
        let table = [
            r#"OAuthBearerLoginModule required clientSecret="hunter2";"#,
            r#"PlainLoginModule required username="hunter2";"#,
            r#"PlainLoginModule required username="a" password="hunter2"#,
        ];

        for jaas in table {
            let message = kafka(&[("sasl.jaas.config", jaas)]).unwrap_err();
            assert!(message.contains("sasl.username") && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn java_settings_and_missing_files_are_refused_with_a_remedy() {
        let table = [
            (("ssl.truststore.location", "/a.jks"), "ssl.ca.location"),
            (("consumer.ssl.keystore.location", "/a.JKS"), "ssl.certificate.location"),
            (("producer.buffer.memory", "1"), "intake.memory.bytes"),
            (("ssl.ca.location", "/none.pem"), "create the file"),
            (("admin.ssl.key.location", "/etc"), "create the file"),
        ];

        for (pair, remedy) in table {
            let message = kafka(&[pair]).unwrap_err();
            assert!(message.starts_with(pair.0) && message.contains(remedy), "{message}");
        }
        assert!(kafka(&[("ssl.ca.location", "/etc")]).is_ok());
        assert!(kafka(&[("ssl.ca.location", "probe"), ("ssl.key.location", "/etc/hostname")]).is_ok());
    }
}
