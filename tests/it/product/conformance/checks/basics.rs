//! Checks 1 to 6: the worker itself, and unknown paths.

use reqwest::Method;
use serde_json::{Value, json};

use crate::product::conformance::client::{Body, CheckOutcome};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes;
use crate::product::conformance::tools;

pub(super) async fn server_info(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get("/").await?.expect(200)?.of(&shapes::SERVER_INFO)?;
    let version = answer.json["version"].as_str().unwrap_or_default();
    tools::version(version).map(drop).ok_or_else(|| {
        answer.fault(&format!("expected a version of numbers such as 3.9 or 3.9.0-x, got {version:?}"))
    })
}

pub(super) async fn health(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get("/health").await?.expect(200)?.of(&shapes::HEALTH)?;
    answer.has("/status", &json!("healthy")).map(drop)
}

pub(super) async fn connectors(scene: &CheckScene<'_>) -> CheckOutcome {
    list(scene, "/connectors").await
}

pub(super) async fn connectors_with_slash(scene: &CheckScene<'_>) -> CheckOutcome {
    list(scene, "/connectors/").await
}

async fn list(scene: &CheckScene<'_>, path: &str) -> CheckOutcome {
    let answer = scene.client.get(path).await?.expect(200)?;
    let names = answer.list()?;
    if !names.iter().all(Value::is_string) {
        return Err(answer.fault(&format!("expected a list of texts, got {}", brief(&answer.json))));
    }
    if scene.subject.fresh && !names.is_empty() {
        return Err(answer.fault(&format!("expected no connectors yet, got {}", brief(&answer.json))));
    }
    Ok(())
}

pub(super) async fn unknown_path(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.get("/nope").await?.expect_error(404).map(drop)
}

pub(super) async fn wrong_verb(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.call(Method::PATCH, "/connectors", Body::None).await?.expect_error(405).map(drop)
}
