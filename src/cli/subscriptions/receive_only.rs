//! The subscriptions that a person has to create for a connector that only receives, from its configuration, without any request.
//!
//! A secret is shown as its key and fingerprint. The derived secrets of hooks are in no configuration, so they can be printed on
//! request, but only if the configuration is a file, which the caller can read anyway.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use serde_json::{Value, json};
use url::Url;

use model::{Fingerprint, Target};

use super::ReceiveOnlyArgs;
use crate::{
    cli::{
        Environment, Result,
        client::ConnectionArgs,
        load, problem, resolve,
        table::{columns, each, text},
    },
    config::{
        Connector,
        connector::{SecretScope, SignatureTrust, WebhookSource},
    },
    webhooks::subscriptions::{AdvertisedPath, DesiredSubscription, secret_of, wanted},
};

pub(super) async fn plan(
    named: &str,
    receiving: &ReceiveOnlyArgs,
    access: &ConnectionArgs,
    environment: &Environment,
    out: &mut dyn Write,
) -> Result {
    if receiving.show_secrets && !Path::new(named).is_file() {
        let rule = "is not a file, and secrets are shown only from a file";
        return Err(problem("--show-secrets", named, rule, "name the connector's file (JSON)").into());
    }
    let advertised = advertised(receiving, access, environment)?;
    let source = match resolve::connector(named, access.config.as_deref(), environment).await? {
        Connector::WebhookSource(source) => source,
        other => {
            let rule = format!("is a {}, which has no subscriptions", other.class().name());
            return Err(problem("connector", named, rule, "name a WebhookSource").into());
        }
    };
    let wanted = wanted(&source, &advertised).map_err(|path| {
        let key =
            if receiving.advertised_url.is_some() { "--advertised-url" } else { "webhook.advertised.url" };
        problem(key, advertised.as_str(), path.to_string(), AdvertisedPath::REMEDY)
    })?;
    let found = found(&source, wanted, receiving.show_secrets);
    access.format.output().show(&found, out, table)
}

fn advertised(
    receiving: &ReceiveOnlyArgs,
    access: &ConnectionArgs,
    environment: &Environment,
) -> Result<Url> {
    if let Some(url) = &receiving.advertised_url {
        if url.scheme() != "https" || url.port_or_known_default() != Some(443) {
            let rule = "must be an https:// address on port 443, because the provider delivers nowhere else";
            let remedy = "write for example https://hooks.example.com";
            return Err(problem("--advertised-url", url.as_str(), rule, remedy).into());
        }
        return Ok(url.clone());
    }
    let missing = || {
        let rule = "is missing, and the worker's properties have no webhook.advertised.url";
        let remedy = "name the address of the receivers, or a worker's properties with --config";
        problem("--advertised-url", None, rule, remedy)
    };
    let worker = load::worker_if_any(access.config.as_deref(), environment)?;
    worker.and_then(|worker| worker.webhook.advertised_url).ok_or_else(|| missing().into())
}

fn found(source: &WebhookSource, wanted: BTreeMap<Target, DesiredSubscription>, show_secrets: bool) -> Value {
    let signature = source.invoicing.as_ref().map(|invoicing| &invoicing.signature);
    let derives = matches!(signature, Some(SignatureTrust::Required { scope: SecretScope::Hook, .. }));
    let each = wanted.into_iter().map(|(target, wanted)| {
        let is_signed = wanted.fingerprint != Fingerprint::of("");
        let (key, derived) = match target {
            Target::Accounting(_) => ("accounting.secret", false),
            Target::Invoicing(_) => ("invoicing.secret", derives),
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

fn table(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let rows = each(&found["subscriptions"]).iter().map(|one| {
        let events: Vec<String> = each(&one["events"]).iter().map(text).collect();
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
