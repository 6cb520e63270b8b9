//! AKHQ: list, show, probe every plugin, create by form, change, pause, resume, restart, delete.

use reqwest::Method;
use serde_json::{Value, json};

use super::listing;
use crate::product::conformance::client::{Body, CheckOutcome, RestClient, segment};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shapes;

/// On every call, also on those without a body.
const HEADERS: &[(&str, &str)] = &[("accept", "application/json"), ("content-type", "application/json")];
/// A blank, which its client writes as `%20`.
const NAME: &str = "akhq form";

pub(super) async fn replay(scene: &CheckScene<'_>) -> CheckOutcome {
    let akhq = scene.client.sending(HEADERS);
    probe(scene, &akhq).await?;
    scene.create_running(&akhq, NAME).await?;
    show(scene, &akhq).await?;
    akhq.put(&scene.path(NAME, "/config"), &scene.changed_config()).await?.expect(200)?.of(&shapes::INFO)?;
    scene.until_running(NAME).await?;
    // Its client has a body for each of these: JSON's null with PUT, an empty JSON text with POST.
    akhq.put(&scene.path(NAME, "/pause"), &Value::Null).await?.expect_empty(202)?;
    scene.until_all(NAME, "PAUSED").await?;
    akhq.put(&scene.path(NAME, "/resume"), &Value::Null).await?.expect_empty(202)?;
    scene.until_running(NAME).await?;
    akhq.post(&scene.path(NAME, "/restart"), &json!("")).await?.expect_empty(204)?;
    scene.until_running(NAME).await?;
    akhq.post(&scene.path(NAME, "/tasks/0/restart"), &json!("")).await?.expect_empty(204)?;
    akhq.call(Method::DELETE, &scene.path(NAME, ""), Body::None).await?.expect_empty(204)?;
    scene.until_gone(NAME).await
}

/// It validates every plugin with almost no settings to learn its keys; a null definition breaks it.
async fn probe(scene: &CheckScene<'_>, akhq: &RestClient) -> CheckOutcome {
    let plugins = akhq.get("/connector-plugins").await?.expect(200)?.list_of(&shapes::PLUGIN)?;
    for class in plugins.list()?.iter().filter_map(|plugin| plugin["class"].as_str()) {
        let path = format!("/connector-plugins/{}/config/validate", segment(class));
        let config = json!({ "connector.class": class, "topics": scene.subject.topic });
        akhq.put(&path, &config).await?.expect(200)?.of(&shapes::VALIDATION)?;
    }
    Ok(())
}

async fn show(scene: &CheckScene<'_>, akhq: &RestClient) -> CheckOutcome {
    listing(scene, akhq, NAME).await?;
    akhq.get(&scene.path(NAME, "/status")).await?.expect(200)?.of(&shapes::STATUS)?;
    let info = akhq.get(&scene.path(NAME, "")).await?.expect(200)?.of(&shapes::INFO)?;
    let info = info.has("/name", &json!(scene.name(NAME)))?;
    info.has("/config/connector.class", &json!(scene.subject.class())).map(drop)
}
