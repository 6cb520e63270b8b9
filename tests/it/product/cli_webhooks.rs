//! `tributary webhooks sign` and `send`: signatures and test deliveries that a receiver accepts.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::product::simulator::receiver::{Receiver, Reply, certified, is_guid, signature};
use crate::support::command::{stderr, stdout, tributary, tributary_given};
use crate::support::tributary::Tributary;
use crate::support::{Shared, prefix, run_directory};

crate::tests! {
    plain a_body_is_signed_byte_for_byte_whatever_it_holds;
    plain a_connector_provides_secrets_of_rotation_and_hooks;
    plain a_connector_is_found_by_name_in_connectors_dir;
    real a_connector_is_found_by_name_on_the_workers;
    plain an_invalid_secret_is_refused_and_never_shown;
    plain a_delivery_has_the_provider_s_format;
    plain each_of_several_deliveries_has_its_own_id;
    plain given_bytes_are_sent_unchanged;
    plain an_invoicing_delivery_is_signed_by_its_hook;
    plain only_200_is_a_success;
    plain a_redirect_is_not_followed;
    plain an_echo_is_checked_as_the_provider_does;
    plain a_private_certificate_is_trusted_only_if_named;
    plain a_missing_or_wrong_address_is_a_command_line_problem;
}

const SECRET: &str = "a-secret-of-more-than-32-characters!";
const PREVIOUS: &str = "the-secret-before-that-of-32-characters";
const BODY: &[u8] = b"{\"text\":\"\xff not UTF-8\r\n\"}\n";

/// A connector for both APIs, with secrets in variables.
fn connector(name: &str) -> String {
    let directory = run_directory::create(name).unwrap();
    let file: PathBuf = directory.join("hooks.json");
    fs::write(
        &file,
        r#"{"name":"hooks","config":{"connector.class":"WebhookSource","topic.prefix":"acme",
            "accounting.resources":"all","accounting.secret":"${env:HOOKS}",
            "accounting.secret.previous":"${env:HOOKS_BEFORE}",
            "invoicing.hooks":"Customer:Created","invoicing.secret":"${env:HOOKS}",
            "invoicing.secret.previous":"${env:HOOKS_BEFORE}",
            "invoicing.signature.header":"x-invoicing","invoicing.segment":"Billing",
            "subscriptions.manage":"false"}}"#,
    )
    .unwrap();
    file.display().to_string()
}

async fn run(arguments: &[&str]) -> Output {
    tributary(arguments, &[("HOOKS", SECRET), ("HOOKS_BEFORE", PREVIOUS)]).await
}

/// Sends test deliveries for a connector file, with further arguments.
async fn send(connector: &str, url: &str, about: &[&str]) -> Output {
    run(&[&["webhooks", "send", "--connector", connector, "--url", url], about].concat()).await
}

async fn a_body_is_signed_byte_for_byte_whatever_it_holds() {
    let directory = run_directory::create("webhooks-sign").unwrap();
    let (body, secret) = (directory.join("body"), directory.join("secret"));
    fs::write(&body, BODY).unwrap();
    fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let (body, secret) = (body.display().to_string(), secret.display().to_string());
    let environment = [("HOOKS", SECRET)];

    let piped = tributary_given(&["webhooks", "sign", "--secret-env", "HOOKS"], &environment, BODY).await;
    let dashed =
        tributary_given(&["webhooks", "sign", "-", "--secret-env", "HOOKS"], &environment, BODY).await;
    let from_file = tributary(&["webhooks", "sign", &body, "--secret-file", &secret], &[]).await;

    let expected = format!("svc-webhook-signature: {}\n", signature(SECRET, BODY));
    for output in [piped, dashed, from_file] {
        assert_eq!(stdout(&output), expected, "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(0));
    }
}

async fn a_connector_provides_secrets_of_rotation_and_hooks() {
    let file = connector("webhooks-secrets");
    // printf 'Customer:Created' | openssl dgst -sha256 -hmac "$SECRET", and so on for the previous one.
    let derived = |secret: &str| {
        let digest = signature(secret, b"Customer:Created");
        digest.strip_prefix("sha256=").unwrap().to_lowercase()
    };
    let sign = async |more: &[&str]| {
        let arguments = [&["webhooks", "sign", "--connector", &file], more].concat();
        let environment = [("HOOKS", SECRET), ("HOOKS_BEFORE", PREVIOUS)];
        let output = tributary_given(&arguments, &environment, BODY).await;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };

    let (now, before) = (sign(&[]).await, sign(&["--previous"]).await);
    let hook = sign(&["--invoicing", "Customer:Created"]).await;
    let hook_before = sign(&["--invoicing", "Customer:Created", "--previous", "--header", "x-other"]).await;

    assert_eq!(now, format!("svc-webhook-signature: {}\n", signature(SECRET, BODY)));
    assert_eq!(before, format!("svc-webhook-signature: {}\n", signature(PREVIOUS, BODY)));
    assert_eq!(hook, format!("x-invoicing: {}\n", signature(&derived(SECRET), BODY)));
    assert_eq!(hook_before, format!("x-other: {}\n", signature(&derived(PREVIOUS), BODY)));
    let scoped = fs::read_to_string(&file).unwrap();
    let scope = r#""invoicing.secret.scope":"connector","subscriptions.manage""#;
    fs::write(&file, scoped.replace(r#""subscriptions.manage""#, scope)).unwrap();
    let whole = sign(&["--invoicing", "Customer:Created"]).await;
    assert_eq!(whole, format!("x-invoicing: {}\n", signature(SECRET, BODY)));
}

async fn a_connector_is_found_by_name_in_connectors_dir() {
    let file = PathBuf::from(connector("webhooks-named"));
    let directory = file.parent().unwrap();
    let records = r#"{"name":"records","config":{"connector.class":"RecordSource","topic.prefix":"acme",
        "enrich.resources":"customers","provider.base.url":"https://a.example","provider.auth.url":"https://b.example",
        "provider.subscription.key":"${env:HOOKS}","oauth.client.id":"c","oauth.client.secret":"${env:HOOKS}"}}"#;
    fs::write(directory.join("records.json"), records).unwrap();
    let mut receiver = Receiver::accepting().await;
    let worker = directory.join("worker.properties");
    let lines = format!(
        "value.converter.schema.registry.url=http://127.0.0.1:1\nconnectors.dir={}\nstate.dir={}\n\
         webhook.listeners={}\nwebhook.plaintext=true\nwebhook.proxies=127.0.0.1\n\
         config.providers=env\nconfig.providers.env.param.allowlist.pattern=HOOKS.*\n",
        directory.display(),
        directory.join("state").display(),
        receiver.url("")
    );
    fs::write(&worker, lines).unwrap();
    let worker = worker.display().to_string();

    let sent = run(&["webhooks", "send", "--config", &worker, "--connector", "hooks"]).await;
    let wrong = run(&["webhooks", "send", "--config", &worker, "--connector", "records"]).await;

    assert_eq!(sent.status.code(), Some(0), "{}{}", stdout(&sent), stderr(&sent));
    let received = receiver.next().await;
    assert_eq!(received.path, "/webhooks/accounting/hooks/customers");
    assert_eq!(received.header("svc-webhook-signature"), Some(signature(SECRET, &received.body).as_str()));
    assert_eq!(wrong.status.code(), Some(2), "{}", stdout(&wrong));
    assert!(stderr(&wrong).contains("is a RecordSource, which receives no deliveries"), "{}", stderr(&wrong));
}

async fn a_connector_is_found_by_name_on_the_workers(shared: &'static Shared) {
    let registry = ("value.converter.schema.registry.url", shared.registry());
    let worker = Tributary::start(shared.bootstrap(), "webhooks-worker", &[registry]).await.unwrap();
    let prefix = prefix("webhooks-worker");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let config = serde_json::json!({
        "connector.class": "WebhookSource", "topic.prefix": prefix, "accounting.resources": "customers",
        "accounting.secret": SECRET, "subscriptions.manage": "false",
    });
    let created =
        client.put(format!("{}/connectors/hooks/config", worker.url())).json(&config).send().await.unwrap();
    let arguments =
        ["webhooks", "sign", "--config", worker.config().to_str().unwrap(), "--connector", "hooks"];

    let output = tributary_given(&arguments, &[], BODY).await;

    assert_eq!(created.status(), 201);
    let expected = format!("svc-webhook-signature: {}\n", signature(SECRET, BODY));
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

async fn an_invalid_secret_is_refused_and_never_shown() {
    let file = connector("webhooks-refused");
    let unset = [("HOOKS", SECRET)];
    for (arguments, environment, expected) in [
        (&["--secret-env", "SHORT"][..], &[("SHORT", "hunter2")][..], "holds 7 bytes"),
        (&["--secret-env", "ABSENT"], &[], "--secret-env = ABSENT: names no variable"),
        (&["--secret-file", "/no/such/file"], &[], "--secret-file = /no/such/file: cannot be read"),
        (&[], &[], "--connector: is missing"),
        (&["--secret-env", "HOOKS", "--secret-file", "x"], &unset, "cannot be used with"),
        (&["--connector", "/no/such.json"], &[], "/no/such.json"),
        (&["--connector", &file], &unset, "HOOKS_BEFORE"),
        (
            &["--secret-env", "HOOKS", "--invoicing", "Customer:Removed"],
            &unset,
            "it names no invoicing action",
        ),
        (
            &["--secret-env", "HOOKS", "--invoicing", "CompanyData:Deleted"],
            &unset,
            "does not offer that action; known are Updated",
        ),
    ] {
        let output = tributary(&[&["webhooks", "sign"], arguments].concat(), environment).await;

        let said = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{expected} is not in: {said}");
        assert!(!said.contains("hunter2") && !said.contains(SECRET), "{said}");
    }
}

async fn a_delivery_has_the_provider_s_format() {
    let file = connector("webhooks-delivery");
    let mut receiver = Receiver::accepting().await;
    let about = ["--resource", "input-invoices", "--event", "Created", "--company", "company-7"];

    let output = send(&file, &receiver.url(""), &about).await;

    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", stderr(&output));
    assert!(said.starts_with("200 OK in ") && said.ends_with(" ms\n"), "{said}");
    let received = receiver.next().await;
    assert_eq!(received.path, "/webhooks/accounting/hooks/input-invoices");
    assert_eq!(received.header("svc-webhook-signature"), Some(signature(SECRET, &received.body).as_str()));
    let body = received.json();
    for id in ["WebhookId", "OutgoingId", "ConversationId", "UserIdentifier"] {
        assert!(is_guid(&body[id]), "{id}: {body}");
    }
    assert_eq!(received.event(), "InputInvoiceCreated");
    assert_eq!(body["ExtraPartitionInformation"]["PartitionClientId"], "company-7");
    assert_eq!(body["Timestamp"].to_string().len(), 18, "{body}");
    assert!(is_guid(&received.data()["CorrelationId"]), "{body}");
}

async fn each_of_several_deliveries_has_its_own_id() {
    let file = connector("webhooks-several");
    let mut receiver = Receiver::accepting().await;

    let output = send(&file, &receiver.url(""), &["--count", "5"]).await;

    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", stderr(&output));
    assert!(said.contains("5: 200 OK") && said.contains("5 sent, 5 answered 200"), "{said}");
    let mut ids: Vec<String> =
        receiver.several(5).await.iter().map(|one| one.json()["OutgoingId"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

async fn given_bytes_are_sent_unchanged() {
    let mut receiver = Receiver::accepting().await;
    let url = receiver.url("/any/where");
    let arguments = ["webhooks", "send", "--secret-env", "HOOKS", "--url", &url, "--body", "-"];

    let output = tributary_given(&arguments, &[("HOOKS", SECRET)], BODY).await;

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let received = receiver.next().await;
    assert_eq!((received.path.as_str(), &received.body[..]), ("/any/where", BODY));
    assert_eq!(received.header("svc-webhook-signature"), Some(signature(SECRET, BODY).as_str()));
}

async fn an_invoicing_delivery_is_signed_by_its_hook() {
    let file = connector("webhooks-invoicing");
    let mut receiver = Receiver::accepting().await;
    let about = ["--invoicing", "Customer:Created", "--tenant", "42"];

    let output = send(&file, &receiver.url("/"), &about).await;

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let received = receiver.next().await;
    assert_eq!(received.path, "/api/webhooks/incoming/Billing/customer-created");
    let derived = signature(SECRET, b"Customer:Created").strip_prefix("sha256=").unwrap().to_lowercase();
    assert_eq!(received.header("x-invoicing"), Some(signature(&derived, &received.body).as_str()));
    let body: Value = received.json();
    assert_eq!((body["Entity"].as_str(), body["TenantId"].as_str()), (Some("Customer"), Some("42")));
}

async fn only_200_is_a_success() {
    for (reply, expected) in [
        (Reply::Status(202), "202 Accepted"),
        (Reply::Status(401), "401 Unauthorized"),
        (Reply::Header(503, "retry-after", "5"), "503 Service Unavailable"),
    ] {
        let receiver = Receiver::scripted(move |_| reply).await;

        let output = run(&["webhooks", "send", "--secret-env", "HOOKS", "--url", &receiver.url("/x")]).await;

        assert_eq!(output.status.code(), Some(1), "{expected}");
        assert!(stdout(&output).contains(expected), "{}", stdout(&output));
    }
    let refused = run(&["webhooks", "send", "--secret-env", "HOOKS", "--url", "http://127.0.0.1:1/x"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).starts_with("error: "), "{}", stderr(&refused));
}

async fn a_redirect_is_not_followed() {
    let mut receiver = Receiver::scripted(|_| Reply::Header(307, "location", "/elsewhere")).await;

    let output = run(&["webhooks", "send", "--secret-env", "HOOKS", "--url", &receiver.url("/x")]).await;

    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert_eq!(receiver.taken().len(), 1);
}

async fn an_echo_is_checked_as_the_provider_does() {
    let mut good = Receiver::scripted(|_| Reply::Echo).await;
    let wrong = Receiver::scripted(|_| Reply::Text("something else")).await;
    let silent = Receiver::accepting().await;

    let echoed = run(&["webhooks", "send", "--echo", "--url", &good.url("")]).await;

    assert_eq!(echoed.status.code(), Some(0), "{}{}", stdout(&echoed), stderr(&echoed));
    let asked = good.next().await;
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", "/api/webhooks/incoming/Invoicing"));
    assert!(is_guid(&asked.query.strip_prefix("echo=").unwrap().into()), "{}", asked.query);
    for receiver in [wrong, silent] {
        let refused = run(&["webhooks", "send", "--echo", "--url", &receiver.url("")]).await;

        assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
        assert!(stdout(&refused).contains("invalid echo: the body is not"), "{}", stdout(&refused));
    }
}

async fn a_private_certificate_is_trusted_only_if_named() {
    let (tls, root) = certified("localhost");
    let receiver = Receiver::secure(tls, |_| Reply::Status(200)).await;
    let file = run_directory::create("webhooks-tls").unwrap().join("root.pem");
    fs::write(&file, root).unwrap();
    let url = format!("https://localhost:{}/x", receiver.address.port());
    let arguments = ["webhooks", "send", "--secret-env", "HOOKS", "--url", &url];

    let unknown = run(&arguments).await;
    let named = run(&[&arguments[..], &["--ca", file.to_str().unwrap()]].concat()).await;

    assert_eq!(unknown.status.code(), Some(1), "{}", stdout(&unknown));
    assert_eq!(named.status.code(), Some(0), "{}", stderr(&named));
}

async fn a_missing_or_wrong_address_is_a_command_line_problem() {
    for (arguments, expected) in [
        (&[][..], "--url: is missing"),
        (&["--url", "http://127.0.0.1:1"], "no --connector to take it from"),
        (&["--url", "ftp://127.0.0.1/x"], "must be an http or https address"),
        (&["--url", "127.0.0.1"], "--url"),
        (&["--url", "http://127.0.0.1:1/x", "--event", "no word"], "--event"),
        (&["--url", "http://127.0.0.1:1/x", "--resource", "costumers"], "unknown accounting resource"),
        (&["--url", "http://127.0.0.1:1/x", "--count", "0"], "--count"),
        (
            &["--url", "http://127.0.0.1:1/x", "--body", "/no/such/file"],
            "body = /no/such/file: cannot be read",
        ),
        (&["--url", "http://127.0.0.1:1/x", "--ca", "/no/such/file"], "--ca = /no/such/file"),
    ] {
        let output = run(&[&["webhooks", "send", "--secret-env", "HOOKS"], arguments].concat()).await;

        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{expected} is not in: {said}");
    }
}
