//! Checks 66 to 74: plugins, their keys, and validation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::product::conformance::client::{CheckOutcome, RestAnswer, segment};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes::{self, CONNECTOR_PLUGIN_TYPES};

pub(super) async fn connectors(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get("/connector-plugins").await?.expect(200)?.list_of(&shapes::PLUGIN)?;
    for plugin in answer.list()? {
        if !plugin["type"].as_str().is_some_and(|kind| CONNECTOR_PLUGIN_TYPES.contains(&kind)) {
            return Err(answer.fault(&format!("expected sources and sinks only, got {plugin}")));
        }
    }
    if !classes(&answer)?.contains(scene.subject.class()) {
        return Err(answer.fault(&format!(
            "expected {}, got {}",
            scene.subject.class(),
            brief(&answer.json)
        )));
    }
    Ok(())
}

pub(super) async fn all(scene: &CheckScene<'_>) -> CheckOutcome {
    let connectors = scene.client.get("/connector-plugins").await?.expect(200)?;
    let all = scene.client.get("/connector-plugins?connectorsOnly=false").await?.expect(200)?;
    let all = all.list_of(&shapes::PLUGIN)?;
    let mut expected = classes(&connectors)?;
    expected.insert(scene.subject.class().to_owned());
    let missing: Vec<_> = expected.difference(&classes(&all)?).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(all.fault(&format!("expected the connectors too, got none of {}", missing.join(", "))))
}

fn classes(answer: &RestAnswer) -> Result<BTreeSet<String>, String> {
    Ok(answer.list()?.iter().filter_map(|plugin| plugin["class"].as_str()).map(str::to_owned).collect())
}

pub(super) async fn keys(scene: &CheckScene<'_>) -> CheckOutcome {
    for name in [scene.subject.class(), scene.subject.simple_class()] {
        let path = format!("/connector-plugins/{}/config", segment(name));
        let answer = scene.client.get(&path).await?.expect(200)?.list_of(&shapes::KEY_DEFINITION)?;
        let names: BTreeSet<_> = answer.list()?.iter().filter_map(|key| key["name"].as_str()).collect();
        for expected in ["name", "connector.class", "tasks.max"] {
            if !names.contains(expected) {
                return Err(answer.fault(&format!("expected the key {expected}, got {names:?}")));
            }
        }
        for key in answer.list()? {
            if key["required"] == true && !key["default_value"].is_null() {
                return Err(answer.fault(&format!("expected a required key without default, got {key}")));
            }
        }
    }
    Ok(())
}

pub(super) async fn unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get("/connector-plugins/Nope/config").await?.expect_error(404)?;
    answer.has("/message", &json!("Unknown plugin Nope.")).map(drop)
}

pub(super) async fn validate(scene: &CheckScene<'_>) -> CheckOutcome {
    valid(scene, scene.subject.class()).await
}

pub(super) async fn validate_short(scene: &CheckScene<'_>) -> CheckOutcome {
    valid(scene, scene.subject.simple_class()).await?;
    valid(scene, scene.subject.short_class()).await
}

async fn valid(scene: &CheckScene<'_>, plugin: &str) -> CheckOutcome {
    let config = scene.echo("t1", &scene.config());
    let answer = ask(scene, plugin, &config).await?.has("/error_count", &json!(0))?;
    answer.has("/name", &json!(scene.subject.class())).map(drop)
}

pub(super) async fn validate_bare(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = json!({ "connector.class": scene.subject.class(), "topics": "a" });
    let answer = ask(scene, scene.subject.class(), &config).await?;
    let with_errors =
        |entry: &&Value| entry["value"]["errors"].as_array().is_some_and(|list| !list.is_empty());
    let counted = answer.list_at("/configs")?.iter().filter(with_errors).count();
    if answer.json["error_count"].as_u64() == Some(0) || counted == 0 {
        return Err(
            answer.fault(&format!("expected errors, got {} and {counted}", answer.json["error_count"]))
        );
    }
    Ok(())
}

pub(super) async fn validate_other_class(scene: &CheckScene<'_>) -> CheckOutcome {
    let path = "/connector-plugins/NoSuchConnector/config/validate";
    let answer = scene.client.put(path, &scene.config()).await?.expect_error(400)?;
    answer.says("does not match").map(drop)
}

pub(super) async fn validate_password(scene: &CheckScene<'_>) -> CheckOutcome {
    let (key, secret) = (&scene.subject.password_key, "a-password-of-the-suite");
    let config = scene.echo("t1", &scene.config_with(&json!({ key: secret })));
    let answer = ask(scene, scene.subject.class(), &config).await?;
    let entry = answer.list_at("/configs")?.iter().find(|entry| entry["value"]["name"] == key.as_str());
    match entry {
        Some(entry) if entry["value"]["value"] == "[hidden]" => {}
        entry => {
            let got = entry.map_or_else(|| "none".to_owned(), brief);
            return Err(answer.fault(&format!("expected {key} to be [hidden], got {got}")));
        }
    }
    if answer.text().contains(secret) {
        return Err(answer.fault("expected the password nowhere in the answer, got it elsewhere"));
    }
    Ok(())
}

async fn ask(scene: &CheckScene<'_>, plugin: &str, config: &Value) -> Result<RestAnswer, String> {
    let path = format!("/connector-plugins/{}/config/validate", segment(plugin));
    scene.client.put(&path, config).await?.expect(200)?.of(&shapes::VALIDATION)
}
