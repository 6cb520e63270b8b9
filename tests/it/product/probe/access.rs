//! Missing credentials and scopes: each is named, and the other questions are answered.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use simulator::knobs::{Effect, Fault, FaultTarget, HttpStatus};

use super::ProbeScene;
use crate::support::command::{stderr, stdout};

crate::tests! {
    plain a_missing_scope_and_login_are_named_and_the_rest_answered;
    plain a_rejected_login_is_reported_without_its_reason;
    plain a_rejected_key_ends_each_api_after_one_request;
    plain an_odd_answer_ends_only_its_question;
    plain without_a_login_nothing_is_sent;
    plain wrong_options_are_refused_before_a_login;
    plain a_port_beside_a_redirect_address_is_refused;
}

async fn a_missing_scope_and_login_are_named_and_the_rest_answered() {
    let scopes = "offline_access,openid,SVC.ES.NEWPOL.COR.API,SVC.ES.NEWPOL.ACC.API,SVC.ES.NEWPOL.MNG.API";
    let scene = ProbeScene::new("probe-scope", &[("accounting.oauth.scopes", scopes)], |_| {}).await;

    let (code, report) = scene.report("accounting", &[]).await;

    assert_eq!(code, Some(1));
    let open = report.unanswered();
    let questions: BTreeSet<&str> = open.iter().map(|(question, _)| question.as_str()).collect();
    assert_eq!(questions, BTreeSet::from(["event-names", "list"]), "{open:?}");
    // 19 resources, and the list of payroll.
    assert_eq!(open.len(), 20, "{open:?}");
    let events = report.found("event-names", "journals");
    assert!(events.contains("SVC.ES.Webhooks") && events.contains("accounting.oauth.scopes"), "{events}");
    let payroll = report.found("list", "payroll");
    for words in ["grant.encryption.key", "tributary auth login payroll --connector", "--login payroll"] {
        assert!(payroll.contains(words), "{payroll}");
    }
    assert_eq!(report.found("by-id-path", "journals"), "known; context: the company");
}

async fn a_rejected_login_is_reported_without_its_reason() {
    let scene = ProbeScene::new("probe-refused-login", &[], |settings| {
        settings.knobs.identity.refuse_login = Some("ana@example.com has no licence".to_owned());
    })
    .await;

    let output = scene.probe(&["--login", "accounting,payroll", "--simulated"]).await;

    let (said, reason) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{reason}");
    assert!(said.contains("the provider rejected the login: access_denied"), "{said}");
    assert!(
        !said.contains("ana@example.com") && reason.contains("ana@example.com has no licence"),
        "{reason}"
    );
}

async fn a_rejected_key_ends_each_api_after_one_request() {
    let wrong = [("provider.subscription.key", "a-key-that-is-not-registered")];
    let scene = ProbeScene::new("probe-key", &wrong, |_| {}).await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    assert_eq!((code, &report.0["requests"]), (Some(1), &serde_json::json!(4)));
    for (question, about) in report.unanswered() {
        let reason = report.found(&question, &about);
        assert!(reason.contains("provider.subscription.key") || reason.contains("no "), "{reason}");
    }
    let reason = report.found("company-list-context", "companies");
    assert!(reason.contains("check provider.subscription.key"), "{reason}");
}

async fn an_odd_answer_ends_only_its_question() {
    let scene = ProbeScene::new("probe-odd", &[], |settings| {
        let at = |ending: &str| FaultTarget { ending: Some(ending.to_owned()), ..FaultTarget::default() };
        let odd = |ending, status| {
            let effect = Effect::Status(HttpStatus::new(status).unwrap());
            Fault { on: at(ending), effect, share: 1.0, times: None, skip: 0 }
        };
        let broken =
            Fault { on: at("/customers"), effect: Effect::Drop, share: 1.0, times: Some(1), skip: 0 };
        settings.knobs.faults =
            vec![odd("/customers/webhooks/events", 401), odd("/suppliers/webhooks/events", 302), broken];
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    let names = |resource: &str| ("event-names".to_owned(), resource.to_owned());
    assert_eq!((code, report.unanswered()), (Some(1), vec![names("customers"), names("suppliers")]));
}

async fn without_a_login_nothing_is_sent() {
    let scene = ProbeScene::new("probe-no-login", &[], |_| {}).await;

    let output = scene.probe(&[]).await;

    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    for words in [
        "QUESTION",
        "of the connector:\nnone from what was answered\n",
        "add --login accounting",
        "Not measurable",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(scene.simulator.provider().gateway.request_count(), 0);
}

async fn wrong_options_are_refused_before_a_login() {
    let scene = ProbeScene::new("probe-options", &[], |_| {}).await;
    let taken = scene.path("taken");
    fs::write(&taken, "not mine").unwrap();

    for (arguments, words) in [
        (&["--save", &taken][..], "--save"),
        (&["--login", "invoicing"], "must be accounting or payroll"),
        (&["--rate", "0"], "must be a number from 0.1 to 100"),
    ] {
        let output = scene.probe(arguments).await;
        let said = stderr(&output);
        assert!(output.status.code() == Some(2) && said.contains(words), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_to_string(&taken).unwrap(), "not mine");
    let mut connector: Value =
        serde_json::from_slice(&fs::read(scene.path("records.json")).unwrap()).unwrap();
    for (key, value) in [
        ("connector.class", "WebhookSource"),
        ("accounting.resources", "customers"),
        ("accounting.secret", "0123456789abcdef-first"),
    ] {
        connector["config"][key] = value.into();
    }
    fs::write(scene.path("records.json"), connector.to_string()).unwrap();
    let output = scene.probe(&["--login", "accounting"]).await;
    let said = stderr(&output);
    assert!(output.status.code() == Some(2) && said.contains("name a RecordSource"), "{said}");
    assert_eq!(scene.simulator.provider().identity.issued().len(), 0);
}

async fn a_port_beside_a_redirect_address_is_refused() {
    let redirect = [("oauth.redirect.uri", "http://localhost:8910/back")];
    let scene = ProbeScene::new("probe-port", &redirect, |_| {}).await;
    let saved = scene.path("probe.jsonl");

    let output = scene.probe(&["--login", "accounting", "--port", "8911", "--save", &saved]).await;

    let said = stderr(&output);
    assert!(output.status.code() == Some(2) && said.contains("conflicts with oauth.redirect.uri"), "{said}");
    assert!(!fs::exists(&saved).unwrap());
}
