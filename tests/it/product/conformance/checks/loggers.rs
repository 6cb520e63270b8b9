//! Checks 75 to 78: the levels of loggers.

use serde_json::{Value, json};

use crate::product::conformance::client::{CheckOutcome, RestAnswer};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes;

const ROOT: &str = "/admin/loggers/root";

pub(super) async fn all(scene: &CheckScene<'_>) -> CheckOutcome {
    let root = fetch(scene, ROOT).await?;
    let level = root.json["level"].as_str().unwrap_or_default();
    scene.root_level.get_or_init(|| level.to_owned());
    let answer = scene.client.get("/admin/loggers").await?.expect(200)?.map_of(&shapes::LOGGER)?;
    let listed = answer.json.as_object().is_some_and(|loggers| match scene.subject.strict {
        // Connect lists the loggers that log4j2 has at the moment, which may lack the root.
        true => !loggers.is_empty(),
        false => loggers.contains_key("root"),
    });
    if listed {
        return Ok(());
    }
    Err(answer.fault(&format!("expected loggers and the root among them, got {}", brief(&answer.json))))
}

pub(super) async fn unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.get("/admin/loggers/no.such").await?.expect_error(404)?.says("no.such").map(drop)
}

pub(super) async fn put(scene: &CheckScene<'_>) -> CheckOutcome {
    let level = if known_level(scene)? == "DEBUG" { "INFO" } else { "DEBUG" };
    let answer = scene.client.put(ROOT, &json!({ "level": level })).await?.expect(200)?;
    let root = fetch(scene, ROOT).await;
    restore(scene, "").await?.expect(200)?;

    let changed: Vec<_> = answer.list()?.iter().filter_map(Value::as_str).collect();
    if changed.is_empty() || changed.len() != answer.list()?.len() {
        return Err(answer.fault(&format!("expected names of loggers, got {}", brief(&answer.json))));
    }
    let root = root?.has("/level", &json!(level))?;
    // Connect dates the loggers that it lists as changed; the root is one of them only while log4j2 has it.
    let dated = if scene.subject.strict && !changed.contains(&"root") {
        fetch(scene, &format!("/admin/loggers/{}", changed[0])).await?
    } else {
        root
    };
    if dated.json["last_modified"].is_number() {
        return Ok(());
    }
    Err(dated.fault(&format!("expected last_modified to be a number, got {}", brief(&dated.json))))
}

pub(super) async fn cluster(scene: &CheckScene<'_>) -> CheckOutcome {
    restore(scene, "?scope=cluster").await?.expect_empty(204)?;
    for scope in ["", "?scope=cluster"] {
        let path = format!("{ROOT}{scope}");
        scene.client.put(&path, &json!({})).await?.expect_error(400)?;
        scene.client.put(&path, &json!({ "level": "LOUD" })).await?.expect_error(404)?;
    }
    Ok(())
}

async fn fetch(scene: &CheckScene<'_>, path: &str) -> Result<RestAnswer, String> {
    scene.client.get(path).await?.expect(200)?.of(&shapes::LOGGER)
}

async fn restore(scene: &CheckScene<'_>, scope: &str) -> Result<RestAnswer, String> {
    let level = known_level(scene)?;
    scene.client.put(&format!("{ROOT}{scope}"), &json!({ "level": level })).await
}

/// Remembers the level first, so that it can be restored.
fn known_level<'a>(scene: &'a CheckScene<'_>) -> Result<&'a str, String> {
    let level = scene.root_level.get().map(String::as_str);
    level.ok_or_else(|| "expected the root logger's level from check 75, got none".to_owned())
}
