//! What people have to subscribe by other means, who have the connector only receive: from its configuration, asking
//! nobody.
//!
//! A secret is named by its key and fingerprint. Those that are derived for hooks stand in no configuration, so they
//! can be printed, on request, where the configuration is a file that whoever asks can read anyway.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use serde_json::{Value, json};
use url::Url;

use model::{Fingerprint, Target};

use super::Receiving;
use crate::{
    cli::{
        Environment, Failure,
        client::{Access, Output},
        meant, outside,
        table::columns,
    },
    config::{Connector, Problem, Worker, connector::WebhookSource},
    webhooks::subscriptions::{AdvertisedPath, Wanted, secret_of, wanted},
};

pub(super) async fn plan(
    named: &str,
    receiving: &Receiving,
    access: &Access,
    environment: &Environment,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if receiving.show_secrets && !Path::new(named).is_file() {
        let rule = "is no file, and secrets are shown from a file only";
        return Err(problem("--show-secrets", named, rule, "name the connector's file (JSON)"));
    }
    let advertised = advertised(receiving, access, environment)?;
    let source = match meant::connector(named, access.config(), environment).await? {
        Connector::WebhookSource(source) => source,
        other => {
            let rule = format!("is a {}, which has no subscriptions", other.class().name());
            return Err(problem("connector", named, &rule, "name a WebhookSource"));
        }
    };
    let wanted = wanted(&source, &advertised).map_err(|path| {
        let key =
            if receiving.advertised_url.is_some() { "--advertised-url" } else { "webhook.advertised.url" };
        problem(key, advertised.as_str(), &path.to_string(), AdvertisedPath::REMEDY)
    })?;
    let found = found(&source, wanted, receiving.show_secrets);
    match access.output() {
        Output::Json => writeln!(out, "{found:#}"),
        Output::Table => table(&found, out),
    }
    .map_err(outside)
}

/// Where receivers are.
fn advertised(receiving: &Receiving, access: &Access, environment: &Environment) -> Result<Url, Failure> {
    if let Some(url) = &receiving.advertised_url {
        if url.scheme() != "https" || url.port_or_known_default() != Some(443) {
            let rule = "must be an https:// address on port 443, because the provider delivers nowhere else";
            return Err(problem(
                "--advertised-url",
                url.as_str(),
                rule,
                "write for example https://hooks.example.com",
            ));
        }
        return Ok(url.clone());
    }
    let missing = || Problem {
        key: "--advertised-url".to_owned(),
        value: None,
        rule: "is missing, and the worker's properties have no webhook.advertised.url".to_owned(),
        remedy: "name the receivers' address, or the properties of a worker with --config".to_owned(),
    };
    let worker = match Worker::load(access.config(), environment.clone()) {
        Ok(loaded) => loaded.config,
        Err(_) if access.config().is_none() => return Err(missing().into()),
        Err(rejected) => return Err(Failure::Configuration(rejected.problems)),
    };
    worker.webhook.advertised_url.ok_or_else(|| missing().into())
}

/// Everything that is declared.
fn found(source: &WebhookSource, wanted: BTreeMap<Target, Wanted>, show_secrets: bool) -> Value {
    let each = wanted.into_iter().map(|(target, wanted)| {
        let is_signed = wanted.fingerprint != Fingerprint::of("");
        let (key, derived) = match target {
            Target::Accounting(_) => ("accounting.secret", false),
            Target::Invoicing(_) => ("invoicing.secret", true),
        };
        let events = match (&target, &wanted.endings) {
            (Target::Accounting(_), Some(endings)) => json!(endings),
            (Target::Accounting(_), None) => json!(["all"]),
            (Target::Invoicing(hook), _) => json!([hook.action.provider_name()]),
        };
        let mut secret = json!({ "key": key, "fingerprint": wanted.fingerprint, "derived": derived });
        if let Some(derived) =
            secret_of(source, target, &wanted.fingerprint).filter(|_| show_secrets && derived)
        {
            secret["value"] = derived.reveal().into();
        }
        let secret = if is_signed { secret } else { Value::Null };
        json!({ "target": target, "url": wanted.url, "events": events, "secret": secret })
    });
    json!({ "connector": source.common.name, "subscriptions": each.collect::<Vec<_>>() })
}

fn table(found: &Value, out: &mut impl Write) -> io::Result<()> {
    let rows = found["subscriptions"].as_array().into_iter().flatten().map(|one| {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let events: Vec<String> = one["events"].as_array().into_iter().flatten().map(text).collect();
        let secret = &one["secret"];
        let from = match (secret["value"].as_str(), secret["derived"] == true) {
            (Some(value), _) => value.to_owned(),
            (None, true) => format!("derived from {}", text(&secret["key"])),
            (None, false) => text(&secret["key"]),
        };
        [text(&one["target"]), events.join(","), text(&secret["fingerprint"]), from, text(&one["url"])]
    });
    columns(["TARGET", "EVENTS", "FINGERPRINT", "SECRET", "URL"], rows.collect(), out)
}

fn problem(key: &str, value: &str, rule: &str, remedy: &str) -> Failure {
    let (key, value) = (key.to_owned(), Some(value.to_owned()));
    Problem { key, value, rule: rule.to_owned(), remedy: remedy.to_owned() }.into()
}
