//! Checks 22 to 35: GET of connectors and tasks.

use serde_json::json;

use crate::product::conformance::client::{CheckOutcome, RestAnswer};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::{self, brief};
use crate::product::conformance::shapes;

pub(super) async fn expand_status(scene: &CheckScene<'_>) -> CheckOutcome {
    scene
        .eventually(async || {
            let answer = expanded(scene, "expand=status", &["status"]).await?;
            answer.check(&shapes::STATUS, &answer.json[scene.name("t1")]["status"])
        })
        .await
}

pub(super) async fn expand_both(scene: &CheckScene<'_>) -> CheckOutcome {
    scene
        .eventually(async || {
            let answer = expanded(scene, "expand=info&expand=status", &["info", "status"]).await?;
            answer.check(&shapes::EXPANDED, &answer.json[scene.name("t1")])
        })
        .await
}

pub(super) async fn expand_unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    expanded(scene, "expand=bogus", &[]).await.map(drop)
}

/// The listing, in which `t1` must have exactly these members.
async fn expanded(scene: &CheckScene<'_>, query: &str, members: &[&str]) -> Result<RestAnswer, String> {
    let answer = scene.client.get(&format!("/connectors?{query}")).await?.expect(200)?;
    let name = scene.name("t1");
    let found = answer.json.get(&name).ok_or_else(|| format!("expected {name} in {}", brief(&answer.json)));
    found.and_then(|one| shape::exactly(one, members)).map_err(|fault| answer.fault(&fault))?;
    Ok(answer)
}

pub(super) async fn info(scene: &CheckScene<'_>) -> CheckOutcome {
    scene
        .eventually(async || {
            let answer = scene.client.get(&scene.path("t1", "")).await?.expect(200)?.of(&shapes::INFO)?;
            answer.has("/tasks/0", &json!({ "connector": scene.name("t1"), "task": 0 })).map(drop)
        })
        .await
}

pub(super) async fn unknown_info(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get(&scene.path("unknown", "")).await?.expect_error(404)?;
    answer.has("/message", &json!(format!("Connector {} not found", scene.unknown()))).map(drop)
}

pub(super) async fn config(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get(&scene.path("t1", "/config")).await?.expect(200)?;
    answer.has("", &scene.echo("t1", &scene.config())).map(drop)
}

pub(super) async fn unknown_config(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.get(&scene.path("unknown", "/config")).await?.expect_error(404).map(drop)
}

pub(super) async fn status(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.until_running("t1").await?;
    let answer = scene.status("t1").await?.has("/name", &json!(scene.name("t1")))?;
    let answer = answer.has("/type", &json!("source"))?;
    match answer.json["connector"].get("trace") {
        None => Ok(()),
        Some(trace) => Err(answer.fault(&format!("expected no trace while RUNNING, got {}", brief(trace)))),
    }
}

pub(super) async fn unknown_status(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get(&scene.path("unknown", "/status")).await?.expect_error(404)?;
    answer.has("/message", &json!(format!("No status found for connector {}", scene.unknown()))).map(drop)
}

pub(super) async fn tasks(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get(&scene.path("t1", "/tasks")).await?.expect(200)?;
    let answer = answer.list_of(&shapes::TASK_INFO)?;
    answer.has("/0/id", &json!({ "connector": scene.name("t1"), "task": 0 })).map(drop)
}

pub(super) async fn unknown_tasks(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.get(&scene.path("unknown", "/tasks")).await?.expect_error(404).map(drop)
}

pub(super) async fn task_status(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get(&scene.path("t1", "/tasks/0/status")).await?.expect(200)?;
    let answer = answer.of(&shapes::TASK_STATE)?.has("/id", &json!(0))?.has("/state", &json!("RUNNING"))?;
    match answer.json.get("trace") {
        None => Ok(()),
        Some(trace) => Err(answer.fault(&format!("expected no trace while RUNNING, got {}", brief(trace)))),
    }
}

pub(super) async fn unknown_task(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.get(&scene.path("t1", "/tasks/99/status")).await?.expect_error(404)?;
    answer.says("No status found for task").map(drop)
}

pub(super) async fn task_not_a_number(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.get(&scene.path("t1", "/tasks/abc/status")).await?.expect_error(404).map(drop)
}
