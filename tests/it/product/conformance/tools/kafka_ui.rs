//! kafka-ui: list, show, create by form, change, restart, pause, resume, stop, reset offsets, delete.

use serde_json::json;

use super::listing;
use crate::product::conformance::client::{CheckOutcome, RestClient, segment};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shapes;

/// Content types come with bodies only.
const HEADERS: &[(&str, &str)] = &[("accept", "application/json"), ("user-agent", "ReactorNetty/1.2.0")];
const NAME: &str = "kafka-ui";

pub(super) async fn replay(scene: &CheckScene<'_>) -> CheckOutcome {
    let ui = scene.client.sending(HEADERS);
    ui.get("/").await?.expect(200)?.of(&shapes::SERVER_INFO)?;
    create(scene, &ui).await?;
    show(scene, &ui).await?;
    ui.put(&scene.path(NAME, "/config"), &scene.changed_config()).await?.expect(200)?.of(&shapes::INFO)?;
    scene.until_running(NAME).await?;
    ui.order(&scene.path(NAME, "/restart?includeTasks=false&onlyFailed=false")).await?.expect_empty(204)?;
    scene.until_running(NAME).await?;
    ui.order(&scene.path(NAME, "/tasks/0/restart")).await?.expect_empty(204)?;
    scene.until_running(NAME).await?;
    // Shown to its user as "stop it first".
    ui.delete(&scene.path(NAME, "/offsets")).await?.expect_error(400)?;
    ui.set(&scene.path(NAME, "/pause")).await?.expect_empty(202)?;
    scene.until_all(NAME, "PAUSED").await?;
    ui.set(&scene.path(NAME, "/resume")).await?.expect_empty(202)?;
    scene.until_running(NAME).await?;
    ui.set(&scene.path(NAME, "/stop")).await?.expect_empty(204)?;
    scene.until_stopped(NAME).await?;
    ui.delete(&scene.path(NAME, "/offsets")).await?.expect(200)?.of(&shapes::MESSAGE)?;
    ui.delete(&scene.path(NAME, "")).await?.expect_empty(204)?;
    scene.until_gone(NAME).await
}

async fn create(scene: &CheckScene<'_>, ui: &RestClient) -> CheckOutcome {
    ui.get("/connector-plugins").await?.expect(200)?.list_of(&shapes::PLUGIN)?;
    let path = format!("/connector-plugins/{}/config/validate", segment(scene.subject.class()));
    let config = scene.echo(NAME, &scene.config());
    ui.put(&path, &config).await?.expect(200)?.of(&shapes::VALIDATION)?;
    scene.create_running(ui, NAME).await
}

/// The listing, the connector, and each task with its status.
async fn show(scene: &CheckScene<'_>, ui: &RestClient) -> CheckOutcome {
    listing(scene, ui, NAME).await?;
    ui.get(&scene.path(NAME, "")).await?.expect(200)?.of(&shapes::INFO)?;
    ui.get(&scene.path(NAME, "/config")).await?.expect(200)?;
    ui.get(&scene.path(NAME, "/status")).await?.expect(200)?.of(&shapes::STATUS)?;
    ui.get(&scene.path(NAME, "/topics")).await?.expect(200)?.map_of(&shapes::TOPICS)?;
    let tasks = ui.get(&scene.path(NAME, "/tasks")).await?.expect(200)?.list_of(&shapes::TASK_INFO)?;
    for task in tasks.list()? {
        let id = &task["id"]["task"];
        let path = scene.path(NAME, &format!("/tasks/{id}/status"));
        ui.get(&path).await?.expect(200)?.of(&shapes::TASK_STATE)?.has("/id", &json!(id))?;
    }
    Ok(())
}
