use model::{InvoicingAction, InvoicingEntity};
use provider::HostPolicy;

use super::*;
use crate::config::samples::{changed, properties};

const SECRET: &str = "hunter2-hunter2-hunter2-hunter2-hunter2";

fn sound() -> BTreeMap<String, String> {
    properties(&[
        ("connector.class", "WebhookSource"),
        ("topic.prefix", "acme"),
        ("accounting.resources", "customers, accounts"),
        ("accounting.secret", "${env:SECRET}"),
        ("invoicing.hooks", "Customer:Created,SaleInvoice:Updated"),
        ("invoicing.secret", "${env:SECRET}"),
        ("invoicing.login.mail", "a@example.com"),
        ("invoicing.login.password", "${env:SECRET}"),
        ("provider.base.url", "https://api.example.com"),
        ("provider.auth.url", "https://login.example.com"),
        ("provider.subscription.key", "${env:SECRET}"),
        ("oauth.client.id", "client"),
        ("oauth.client.secret", "${env:SECRET}"),
    ])
}

/// The sound configuration with these changes; an empty value removes the key.
fn parse(changes: &[(&str, &str)]) -> Result<(WebhookSource, Vec<Warning>), Problems> {
    let environment = [
        ("SECRET", SECRET),
        ("SHORT", "hunter2"),
        ("SIXTEEN", "hunter2-hunter2-"),
        ("OTHER", "another-secret-of-at-least-32-bytes"),
    ];
    let providers = Providers::new(environment.map(|(name, value)| (name.to_owned(), value.to_owned())));
    WebhookSource::parse("webhooks", &changed(sound(), changes), &providers)
}

#[test]
fn valid_configuration_is_read_as_written() {
    let (source, warnings) = parse(&[("invoicing.tenants", "7=acc:17:CM:9f, 8=b")]).unwrap();

    assert_eq!(warnings, []);
    assert_eq!(source.common.name, "webhooks");
    assert_eq!(source.common.errors.dead_letter_topic, "acme.dead-letters");
    assert_eq!(source.common.topic_creation.partitions, None);
    let accounting = source.accounting.unwrap();
    assert_eq!(
        accounting.resources,
        BTreeSet::from([AccountingResource::Accounts, AccountingResource::Customers])
    );
    assert_eq!(accounting.events.len(), 5);
    assert_eq!(accounting.secret.reveal(), SECRET);
    let invoicing = source.invoicing.unwrap();
    let created = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };
    assert!(invoicing.hooks.contains(&created) && invoicing.hooks.len() == 2);
    assert!(invoicing.own_addresses);
    assert_eq!(invoicing.tenants[&TenantId::new("7").unwrap()], CompanyId::new("acc:17:CM:9f").unwrap());
    assert!(
        matches!(invoicing.signature, SignatureTrust::Required { header, .. } if header == "ms-signature")
    );
    assert!(source.provider.is_some() && source.manage_subscriptions);
}

#[test]
fn connector_that_only_receives_needs_no_provider() {
    let keys = ["provider.base.url", "provider.auth.url", "provider.subscription.key", "oauth.client.id"];
    let mut changes: Vec<_> = keys.iter().map(|key| (*key, "")).collect();
    changes.extend([
        ("oauth.client.secret", ""),
        ("invoicing.login.mail", ""),
        ("invoicing.login.password", ""),
    ]);

    let managing = parse(&changes).unwrap_err().to_string();
    changes.push(("subscriptions.manage", "false"));
    let (receiving, _) = parse(&changes).unwrap();

    for key in keys {
        assert!(
            managing.contains(&format!("{key}: is required while subscriptions.manage is true")),
            "{managing}"
        );
    }
    assert!(receiving.provider.is_none());
}

#[test]
fn invoicing_scopes_replace_mail_and_password() {
    let without = [("invoicing.login.mail", ""), ("invoicing.login.password", "")];
    let message = parse(&without).map(|_| ()).unwrap_err().to_string();
    assert!(
        message.contains("invoicing.login.mail: is required to register invoicing hooks, unless"),
        "{message}"
    );

    let (source, _) = parse(&[&without[..], &[("invoicing.oauth.scopes", "openid,inv")]].concat()).unwrap();

    assert!(source.invoicing.is_some_and(|invoicing| invoicing.login.is_none()));
    let oauth = source.provider.unwrap().oauth;
    let login = oauth.logins.invoicing;
    assert_eq!((login.grant.as_str(), login.scopes.len()), ("invoicing", 2));
}

#[test]
fn supplied_token_replaces_mail_and_password() {
    let token = ("invoicing.login.token", "${env:OTHER}");
    let (source, _) =
        parse(&[token, ("invoicing.login.mail", ""), ("invoicing.login.password", "")]).unwrap();

    let login = source.invoicing.unwrap().login;
    assert!(matches!(login, Some(InvoicingLogin::Token(token)) if token.reveal().starts_with("another")));
    let message = parse(&[token, ("invoicing.login.company", "7")]).map(|_| ()).unwrap_err().to_string();
    for key in ["invoicing.login.mail", "invoicing.login.password", "invoicing.login.company"] {
        assert!(message.contains(&format!("{key}: contradicts invoicing.login.token")), "{message}");
    }
}

#[test]
fn secret_scope_is_hook_unless_set() {
    for (setting, expected) in [(None, SecretScope::Hook), (Some("connector"), SecretScope::Connector)] {
        let changes: Vec<_> = setting.map(|value| ("invoicing.secret.scope", value)).into_iter().collect();

        let (source, _) = parse(&changes).unwrap();

        let SignatureTrust::Required { scope, .. } = source.invoicing.unwrap().signature else { panic!() };
        assert_eq!(scope, expected);
    }
}

#[test]
fn each_rule_is_enforced_with_a_remedy() {
    let table: &[(&[(&str, &str)], &str)] = &[
        (
            &[("accounting.resources", "costumers")],
            "accounting.resources: must be names of accounting resources, or all (it is not an accounting \
             resource; did you mean customers?)",
        ),
        (&[("invoicing.oauth.scopes", "inv")], "invoicing.login.mail: contradicts invoicing.oauth.scopes"),
        (
            &[("invoicing.oauth.scopes", "inv"), ("invoicing.oauth.grant", "payroll")],
            "invoicing.oauth.grant: must differ from accounting.oauth.grant and payroll.oauth.grant",
        ),
        (
            &[
                ("invoicing.oauth.scopes", "inv"),
                ("invoicing.login.mail", ""),
                ("invoicing.login.token", "${env:OTHER}"),
            ],
            "invoicing.login.token: contradicts invoicing.oauth.scopes",
        ),
        (&[("invoicing.login.mail", "")], "unless invoicing.login.token or invoicing.oauth.scopes is set"),
        (&[("invoicing.secret.scope", "both")], "invoicing.secret.scope: must be one of hook, connector"),
        (&[("invoicing.hook.address", "both")], "invoicing.hook.address: must be one of own, shared"),
        (&[("invoicing.hooks", "Costumer:Created")], "it names no invoicing entity; did you mean Customer?"),
        (&[("invoicing.hooks", "Customer:Removed")], "it names no invoicing action; known are Created"),
        (
            &[("invoicing.hooks", "CompanyData:Created")],
            "invoicing.hooks: must be entity:action pairs of the invoicing API, or all \
             (its entity does not offer that action; known are Updated)",
        ),
        (&[("accounting.events", "Exploded")], "accounting.events: must be Created"),
        (&[("accounting.secret", "${env:SHORT}")], "accounting.secret: must be 16 to 128 bytes long"),
        (&[("invoicing.secret", "${env:SHORT}")], "must be 32 to 128 bytes long"),
        (
            &[("accounting.secret", "")],
            "accounting.secret: is required when accounting.resources is not empty",
        ),
        (
            &[("accounting.secret.previous", "${env:SHORT}")],
            "accounting.secret.previous: must be 16 to 128 bytes long",
        ),
        (&[("invoicing.secret", "${env:SIXTEEN}")], "invoicing.secret: must be 32 to 128 bytes long"),
        (&[("subscriptions.poll", "1")], "subscriptions.poll: is not a key of a WebhookSource"),
        (&[("gap.marign.ms", "1")], "did you mean gap.margin.ms?"),
        (
            &[("subscriptions.retry.backoff.max.ms", "10")],
            "subscriptions.retry.backoff.max.ms: is less than subscriptions.retry.backoff.ms",
        ),
        (&[("subscriptions.silence.factor", "1")], "must be a number of at least 1.5, or off"),
        (&[("invoicing.secret", "")], "invoicing.secret: is required"),
        (&[("accounting.secret.previous", "${env:SECRET}")], "nothing was rotated"),
        (&[("invoicing.signature.policy", "off")], "needs source.addresses"),
        (&[("invoicing.signature.policy", "maybe")], "must be one of require, off"),
        (&[("source.addresses", "example.com")], "source.addresses: must be an IP address"),
        (&[("accounting.resources", ""), ("invoicing.hooks", "")], "would do nothing"),
        (&[("exactly.once.support", "required")], "the provider may deliver twice"),
        (&[("provider.base.url", "http://api.example.com")], "must be https"),
        (&[("provider.base.url", "https://u:hunter2@api.example.com")], "must not hold credentials"),
        (&[("provider.base.url", "https://169.254.169.254")], "must name a public host"),
        (&[("provider.base.url", "http://localhost:9999")], "must name a public host"),
        (&[("provider.auth.url", "https://0x7f000001")], "must name a public host"),
        (&[("invoicing.egress.proxy", "http://10.0.0.1:3128")], "must name a public host"),
        (&[("invoicing.tenants", "7=a,7=b")], "names a tenant twice"),
        (&[("name", "other")], "differs from the connector's name"),
        (&[("tasks.max", "0")], "tasks.max: must be a whole number from 1 to 10000"),
        (&[("transforms", "a"), ("transforms.a.type", "b")], "transforms.a.type: is not supported"),
        (
            &[("value.converter", "org.apache.kafka.connect.json.JsonConverter")],
            "this class is not supported",
        ),
        (&[("page.size", "10")], "page.size: is not a key of a WebhookSource; move it to a RecordSource"),
        (&[("state.dir", "/x")], "move it to the worker's properties"),
        (&[("producer.override.acks", "1")], "set it behind producer. in the worker's properties"),
        (&[("topic.creation.groups", "a")], "is not supported"),
        (&[("topic.creation.default.cleanup.policy", "delete")], "cannot be set for all topics"),
        (&[("topic.prefix", "a b")], "topic.prefix: must be a prefix of topic names"),
        (&[("errors.retry.timeout", "-2")], "errors.retry.timeout: must be a whole number of at least -1"),
        (&[("errors.retry.delay.max.ms", "0")], "must be a whole number from 1 to 86400000"),
        (&[("errors.tolerance", "maybe")], "errors.tolerance: must be one of none, all"),
        (&[("errors.log.include.messages", "true")], "contents are never logged"),
        (&[("oauth.redirect.uri", "http://127.0.0.1/cb")], "oauth.redirect.uri"),
        (&[("body.limit.bytes", "31457281")], "must be a whole number from 1024 to 31457280"),
        (
            &[("errors.deadletterqueue.topic.name", "acme.accounting.customers")],
            "is another topic of the prefix",
        ),
    ];

    for (changes, expected) in table {
        let message = parse(changes).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(expected), "{changes:?}\n=> {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_worker_decides_which_hosts_a_connector_may_name() {
    let hosts = HostPolicy::listing(&["api.example.com", "10.0.0.1:3128", "login.example.com:443"]);
    let providers = Providers::new([("SECRET".to_owned(), SECRET.to_owned())]).with_hosts(hosts);
    let parsed_with = |key: &str, value: &str| {
        WebhookSource::parse("webhooks", &changed(sound(), &[(key, value)]), &providers).map(drop)
    };

    assert!(parsed_with("invoicing.egress.proxy", "http://10.0.0.1:3128").is_ok());
    for (key, value) in [
        ("provider.base.url", "https://stranger.example.com"),
        ("provider.base.url", "https://api.example.com.stranger.net"),
        ("provider.auth.url", "https://login.example.com:8443"),
        ("invoicing.egress.proxy", "http://10.0.0.1:3129"),
    ] {
        let problems = parsed_with(key, value).unwrap_err();
        let [problem] = &problems.iter().collect::<Vec<_>>()[..] else { panic!("{problems}") };
        assert_eq!(problem.key, key);
        assert!(problem.rule.contains("provider.hosts.allowed"), "{problem}");
        let words = format!("{} {}", problem.rule, problem.remedy);
        assert!(!words.contains("stranger") && !words.contains("8443") && !words.contains("3129"), "{words}");
    }
}

#[test]
fn unsigned_deliveries_are_possible_from_named_networks_only() {
    let (source, _) =
        parse(&[("invoicing.signature.policy", "off"), ("source.addresses", "10.0.0.0/8,192.0.2.7")])
            .unwrap();

    assert!(matches!(source.invoicing.as_ref().unwrap().signature, SignatureTrust::Off));
    let networks: Vec<_> = source.source_addresses.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "192.0.2.7/32"]);
}

#[test]
fn configuration_written_for_connect_is_accepted() {
    let (source, warnings) = parse(&[
        ("connector.class", "com.example.WebhookSourceConnector"),
        ("key.converter", "org.apache.kafka.connect.storage.StringConverter"),
        ("value.converter", "io.confluent.connect.avro.AvroConverter"),
        ("value.converter.schema.registry.url", "http://registry:8081"),
        ("topic.creation.default.retention.ms", "604800000"),
        ("errors.tolerance", "all"),
        ("errors.retry.timeout", "-1"),
        ("topics", "stray"),
    ])
    .unwrap();

    let warned: Vec<_> = warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(
        warned,
        ["topics", "value.converter.schema.registry.url", "errors.retry.timeout", "errors.tolerance"]
    );
    assert_eq!(source.common.topic_creation.settings["retention.ms"], "604800000");
}

#[test]
fn error_settings_without_effect_warn() {
    let retried = "temporary failures to publish are retried until they pass";
    let dead_lettered = "a record that cannot be published is always written to the dead letters";
    let table = [
        ("errors.retry.timeout", "0", retried),
        ("errors.retry.timeout", "-1", retried),
        ("errors.retry.delay.max.ms", "60000", "the backoff between attempts to publish is built in"),
        ("errors.tolerance", "all", dead_lettered),
        ("errors.tolerance", "none", dead_lettered),
    ];

    for (key, value, reason) in table {
        let (_, warnings) = parse(&[(key, value)]).unwrap();

        let message: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(message, [format!("{key}: has no effect here: {reason}")], "{key} = {value}");
    }
}

#[test]
fn a_literal_secret_warns_and_no_debug_output_shows_one() {
    let (source, warnings) =
        parse(&[("accounting.secret", SECRET), ("invoicing.egress.proxy", "http://user:hunter2@proxy:3128")])
            .unwrap();

    let warned: Vec<_> = warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(warned, ["accounting.secret", "invoicing.egress.proxy"]);
    let shown = format!("{source:?} {warnings:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn an_empty_api_version_is_not_the_default() {
    for (setting, expected) in [(None, Some("2.0")), (Some("3.1"), Some("3.1")), (Some(" "), None)] {
        let changes: Vec<_> = setting.map(|value| ("invoicing.api.version", value)).into_iter().collect();

        let (source, _) = parse(&changes).unwrap();

        assert_eq!(source.invoicing.unwrap().api_version.as_deref(), expected);
    }
    assert!(parse(&[("invoicing.api.version", "2 0")]).is_err());
}
