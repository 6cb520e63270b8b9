//! Checks 43 to 52, 59 and 65: pause, resume, restart, stop.

use serde_json::json;

use crate::product::conformance::client::{CheckOutcome, RestAnswer};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes;

pub(super) async fn pause(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.until_running("t1").await?;
    for _ in 0..2 {
        scene.client.set(&scene.path("t1", "/pause")).await?.expect_empty(202)?;
        scene.until_all("t1", "PAUSED").await?;
    }
    Ok(())
}

pub(super) async fn pause_unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.set(&scene.path("unknown", "/pause")).await?.expect_error(404)?;
    answer.has("/message", &json!(format!("Unknown connector {}", scene.unknown()))).map(drop)
}

pub(super) async fn resume(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.set(&scene.path("t1", "/resume")).await?.expect_empty(202)?;
    scene.until_running("t1").await
}

pub(super) async fn restart(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.order(&scene.path("t1", "/restart")).await?.expect_empty(204)?;
    scene.until_running("t1").await
}

pub(super) async fn restart_with_tasks(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.order(&scene.path("t1", "/restart?includeTasks=true")).await?.expect(202)?;
    let answer = answer.of(&shapes::STATUS)?.has("/connector/state", &json!("RESTARTING"))?;
    let tasks = answer.list_at("/tasks")?;
    if tasks.is_empty() || tasks.iter().any(|task| task["state"] != "RESTARTING") {
        return Err(answer.fault(&format!("expected tasks, all RESTARTING, got {}", answer.json["tasks"])));
    }
    scene.until_running("t1").await
}

pub(super) async fn restart_failed_tasks(scene: &CheckScene<'_>) -> CheckOutcome {
    nothing_restarts(scene, "/restart?includeTasks=true&onlyFailed=true").await
}

pub(super) async fn restart_only_failed(scene: &CheckScene<'_>) -> CheckOutcome {
    nothing_restarts(scene, "/restart?onlyFailed=true").await
}

/// Eventually: an earlier restart may still show.
async fn nothing_restarts(scene: &CheckScene<'_>, rest: &str) -> CheckOutcome {
    let all_running = |answer: &RestAnswer| {
        let tasks = answer.json["tasks"].as_array().map(Vec::as_slice).unwrap_or_default();
        answer.json["connector"]["state"] == "RUNNING" && tasks.iter().all(|task| task["state"] == "RUNNING")
    };
    scene
        .eventually(async || {
            let answer =
                scene.client.order(&scene.path("t1", rest)).await?.expect(202)?.of(&shapes::STATUS)?;
            if all_running(&answer) {
                return Ok(());
            }
            Err(answer.fault(&format!("expected everything RUNNING, got {}", brief(&answer.json))))
        })
        .await
}

pub(super) async fn restart_unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    for query in ["", "?includeTasks=true"] {
        let path = scene.path("unknown", &format!("/restart{query}"));
        scene.client.order(&path).await?.expect_error(404)?;
    }
    Ok(())
}

pub(super) async fn restart_task(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.order(&scene.path("t1", "/tasks/0/restart")).await?.expect_empty(204)?;
    scene.until_running("t1").await
}

pub(super) async fn restart_unknown_task(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.order(&scene.path("t1", "/tasks/99/restart")).await?.expect_error(404).map(drop)
}

pub(super) async fn stop(scene: &CheckScene<'_>) -> CheckOutcome {
    for _ in 0..2 {
        scene.client.set(&scene.path("t1", "/stop")).await?.expect_empty(204)?;
        scene.until_stopped("t1").await?;
        let info = scene.client.get(&scene.path("t1", "")).await?.expect(200)?.of(&shapes::INFO)?;
        info.has("/tasks", &json!([]))?;
    }
    Ok(())
}

pub(super) async fn resume_stopped(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.set(&scene.path("t1", "/resume")).await?.expect_empty(202)?;
    scene.until_running("t1").await?;
    let info = scene.client.get(&scene.path("t1", "")).await?.expect(200)?.of(&shapes::INFO)?;
    info.has("/tasks/0", &json!({ "connector": scene.name("t1"), "task": 0 }))?;
    // Its offsets were removed and its topics reset, so that new records show again.
    super::topics::topics(scene).await
}
