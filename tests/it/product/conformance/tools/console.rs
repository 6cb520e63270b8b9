//! Redpanda Console: list, show, the error card, create by form, change, restart, pause, resume, stop, topics,
//! delete.

use serde_json::json;

use super::listing;
use crate::product::conformance::checks::FAILING;
use crate::product::conformance::client::{CheckOutcome, RestClient, segment};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes;

const HEADERS: &[(&str, &str)] = &[
    ("accept", "application/json"),
    ("content-type", "application/json"),
    ("user-agent", "CloudHut-Connect-Client"),
];
/// An empty user and password, which it sends if none is configured.
const NOBODY: (&str, &str) = ("authorization", "Basic Og==");
const NAME: &str = "console";

pub(super) async fn replay(scene: &CheckScene<'_>) -> CheckOutcome {
    let mut console = scene.client.sending(HEADERS);
    if scene.subject.credentials.is_none() {
        console = console.sending(&[NOBODY]);
    }
    console.get("/").await?.expect(200)?.of(&shapes::SERVER_INFO)?;
    create(scene, &console).await?;
    show(scene, &console).await?;
    console
        .put(&scene.path(NAME, "/config"), &scene.changed_config())
        .await?
        .expect(200)?
        .of(&shapes::INFO)?;
    scene.until_running(NAME).await?;
    console.order(&scene.path(NAME, "/restart?includeTasks=true&onlyFailed=true")).await?.expect(202)?;
    console.order(&scene.path(NAME, "/tasks/0/restart")).await?.expect_empty(204)?;
    scene.until_running(NAME).await?;
    console.set(&scene.path(NAME, "/pause")).await?.expect_empty(202)?;
    scene.until_all(NAME, "PAUSED").await?;
    console.set(&scene.path(NAME, "/topics/reset")).await?.expect_empty(202)?;
    console.set(&scene.path(NAME, "/resume")).await?.expect_empty(202)?;
    scene.until_running(NAME).await?;
    console.set(&scene.path(NAME, "/stop")).await?.expect_empty(204)?;
    scene.until_stopped(NAME).await?;
    console.delete(&scene.path(NAME, "")).await?.expect_empty(204)?;
    scene.until_gone(NAME).await?;
    // Without a code in the body it does not show the message.
    console.get(&scene.path(NAME, "")).await?.expect_error(404).map(drop)
}

/// Settings as numbers, as its form has them.
async fn create(scene: &CheckScene<'_>, console: &RestClient) -> CheckOutcome {
    console.get("/connector-plugins").await?.expect(200)?.list_of(&shapes::PLUGIN)?;
    let path = format!("/connector-plugins/{}/config/validate", segment(scene.subject.class()));
    let config = scene.config_with(&json!({ "tasks.max": 1 }));
    let validated = scene.echo(NAME, &config);
    console.put(&path, &validated).await?.expect(200)?.of(&shapes::VALIDATION)?;
    let body = json!({ "name": scene.name(NAME), "config": config });
    console.post("/connectors", &body).await?.expect(201)?.of(&shapes::INFO)?;
    scene.until_running(NAME).await
}

async fn show(scene: &CheckScene<'_>, console: &RestClient) -> CheckOutcome {
    listing(scene, console, NAME).await?;
    let answer = console.get(&scene.path(FAILING, "/status")).await?.expect(200)?.of(&shapes::STATUS)?;
    let trace = &answer.json["tasks"][0]["trace"];
    if error_card(trace.as_str().unwrap_or_default()).is_empty() {
        return Err(answer.fault(&format!("expected a trace with something to show, got {}", brief(trace))));
    }
    console.get(&scene.path(NAME, "")).await?.expect(200)?.of(&shapes::INFO)?;
    console.get(&scene.path(NAME, "/config")).await?.expect(200)?;
    console.get(&scene.path(NAME, "/status")).await?.expect(200)?.of(&shapes::STATUS)?;
    console.get(&scene.path(NAME, "/topics")).await?.expect(200)?.map_of(&shapes::TOPICS).map(drop)
}

/// The text that its error card shows of a trace: no frames, a cause if there is one, and only what follows the first colon.
pub(crate) fn error_card(trace: &str) -> &str {
    let shown = |line: &&str| !line.ends_with(')') && !line.to_lowercase().ends_with("exception");
    let lines: Vec<_> = trace.lines().map(str::trim).filter(|line| !line.is_empty()).filter(shown).collect();
    let line = lines.iter().find(|line| line.starts_with("Caused by")).or(lines.first());
    line.and_then(|line| line.split_once(':')).map_or("", |(_, text)| text.trim())
}
