//! Checks 79 and 80: a failed task, and a deleted connector.

use serde_json::json;

use crate::product::conformance::client::CheckOutcome;
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shapes;

/// The connector whose task fails; the checks of the tools use it too.
pub(crate) const FAILING: &str = "failing";

pub(super) async fn shows(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!(scene.subject.failure));
    scene.create(FAILING, &config).await?.expect(201)?;
    scene
        .eventually(async || scene.status(FAILING).await?.has("/tasks/0/state", &json!("FAILED")).map(drop))
        .await?;
    scene.status(FAILING).await?.has("/connector/state", &json!("RUNNING"))?;
    let answer = scene.client.get(&scene.path(FAILING, "/tasks/0/status")).await?.expect(200)?;
    let answer = answer.of(&shapes::TASK_STATE)?.has("/state", &json!("FAILED"))?;
    match answer.json["trace"].as_str() {
        Some(trace) if !trace.trim().is_empty() => {}
        trace => return Err(answer.fault(&format!("expected a trace, got {trace:?}"))),
    }
    let path = scene.path(FAILING, "/restart?includeTasks=true&onlyFailed=true");
    let answer = scene.client.order(&path).await?.expect(202)?.of(&shapes::STATUS)?;
    answer.has("/connector/state", &json!("RUNNING"))?.has("/tasks/0/state", &json!("RESTARTING"))?;
    scene
        .eventually(async || scene.status(FAILING).await?.has("/tasks/0/state", &json!("FAILED")).map(drop))
        .await
}

pub(super) async fn delete(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.delete(&scene.path("t1", "")).await?.expect_empty(204)?;
    scene.until_gone("t1").await?;
    scene.client.delete(&scene.path("t1", "")).await?.expect_error(404).map(drop)
}
