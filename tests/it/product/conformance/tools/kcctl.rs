//! kcctl: info, get plugins, apply, get connectors, describe, patch, restart, pause, resume, stop, offsets,
//! loggers, delete.

use serde_json::json;

use super::members;
use crate::product::conformance::checks::topics::has_topic;
use crate::product::conformance::checks::{CLASS_NOT_FOUND, FAILING, expect_start};
use crate::product::conformance::client::{CheckOutcome, RestClient, segment};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes;

/// A MicroProfile REST client sends and takes JSON.
const HEADERS: &[(&str, &str)] = &[("accept", "application/json"), ("content-type", "application/json")];
/// The newest feature that it probes: a level for the whole cluster.
const NEEDED: (u32, u32) = (3, 7);
const NAME: &str = "kcctl";

pub(crate) async fn replay(scene: &CheckScene<'_>) -> CheckOutcome {
    let kcctl = scene.client.sending(HEADERS);
    info(&kcctl).await?;
    plugins(scene, &kcctl).await?;
    apply(scene, &kcctl).await?;
    get_and_describe(scene, &kcctl).await?;
    patch(scene, &kcctl).await?;
    restart(scene, &kcctl).await?;
    offsets(scene, &kcctl).await?;
    loggers(scene, &kcctl).await?;
    kcctl.delete(&scene.path(NAME, "")).await?.expect_empty(204)?;
    scene.until_gone(NAME).await
}

async fn info(kcctl: &RestClient) -> CheckOutcome {
    let answer = kcctl.get("/").await?.expect(200)?.of(&shapes::SERVER_INFO)?;
    let version = answer.json["version"].as_str().and_then(super::version);
    if version.is_none_or(|version| version < NEEDED) {
        let (major, minor) = NEEDED;
        return Err(answer.fault(&format!("expected version {major}.{minor} or newer, got {version:?}")));
    }
    Ok(())
}

async fn plugins(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    let answer = kcctl.get("/connector-plugins?connectorsOnly=false").await?.expect(200)?;
    answer.list_of(&shapes::PLUGIN)?;
    let path = format!("/connector-plugins/{}/config", segment(scene.subject.class()));
    kcctl.get(&path).await?.expect(200)?.list_of(&shapes::KEY_DEFINITION).map(drop)
}

/// A dry run first, then an unknown class, then the real one.
async fn apply(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    let path = format!("/connector-plugins/{}/config/validate", segment(scene.subject.simple_class()));
    let config = scene.config_with(&json!({ "name": "dummy-name" }));
    let answer = kcctl.put(&path, &config).await?.expect(200)?.of(&shapes::VALIDATION)?;
    answer.has("/error_count", &json!(0))?;

    let class = format!("com.example.{}", scene.name("kcctl-class"));
    let unknown = json!({ "name": scene.name(NAME), "config": { "connector.class": class } });
    let answer = kcctl.post("/connectors/", &unknown).await?.expect_error(400)?;
    expect_start(&answer, CLASS_NOT_FOUND)?;

    kcctl.get("/connectors/").await?.expect(200)?.list()?;
    let body = json!({ "name": scene.name(NAME), "config": scene.config() });
    let answer = kcctl.post("/connectors/", &body).await?.expect(201)?;
    answer.of(&shapes::INFO)?;
    scene.until_running(NAME).await
}

async fn get_and_describe(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    let answer = kcctl.get("/connectors?expand=status").await?.expect(200)?;
    for connector in members(&answer.json) {
        answer.check(&shapes::STATUS, &connector["status"])?;
    }
    for short in [NAME, FAILING] {
        kcctl.get(&scene.path(short, "")).await?.expect(200)?.of(&shapes::INFO)?;
        kcctl.get(&scene.path(short, "/config")).await?.expect(200)?;
        kcctl.get(&scene.path(short, "/tasks")).await?.expect(200)?.list_of(&shapes::TASK_INFO)?;
        let status = kcctl.get(&scene.path(short, "/status")).await?.expect(200)?.of(&shapes::STATUS)?;
        for task in status.list_at("/tasks")? {
            if task["state"] == "FAILED" && !task["trace"].is_string() {
                return Err(status.fault(&format!("expected a trace for a FAILED task, got {}", brief(task))));
            }
        }
        let topics = kcctl.get(&scene.path(short, "/topics")).await?.expect(200)?.map_of(&shapes::TOPICS)?;
        if members(&topics.json).next().is_none() {
            return Err(topics.fault("expected at least one entry, got none"));
        }
    }
    Ok(())
}

/// Reads the config and puts it back changed: not PATCH.
async fn patch(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    let path = scene.path(NAME, "/config");
    let mut config = kcctl.get(&path).await?.expect(200)?.json;
    let (key, value) = &scene.subject.change;
    config[key] = json!(value);
    let answer = kcctl.put(&path, &config).await?.expect(200)?.of(&shapes::INFO)?;
    answer.has("/config", &config)?;
    scene.until_running(NAME).await
}

async fn restart(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    kcctl.order(&scene.path(NAME, "/restart")).await?.expect_empty(204)?;
    scene.until_running(NAME).await?;
    let path = scene.path(NAME, "/restart?includeTasks=true&onlyFailed=false");
    kcctl.order(&path).await?.expect(202)?.of(&shapes::STATUS)?;
    scene.until_running(NAME).await?;
    kcctl.order(&scene.path(NAME, "/tasks/0/restart")).await?.expect_empty(204)?;
    scene.until_running(NAME).await?;
    kcctl.set(&scene.path(NAME, "/pause")).await?.expect_empty(202)?;
    scene.until_all(NAME, "PAUSED").await?;
    kcctl.set(&scene.path(NAME, "/resume")).await?.expect_empty(202)?;
    scene.until_running(NAME).await?;
    // Without a record there would be no offset afterwards.
    has_topic(scene, NAME, &scene.subject.topic).await?;
    kcctl.set(&scene.path(NAME, "/stop")).await?.expect_empty(204)?;
    scene.until_stopped(NAME).await
}

/// Offsets of the stopped connector are written back, then removed.
async fn offsets(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    let path = scene.path(NAME, "/offsets");
    let offsets = kcctl.get(&path).await?.expect(200)?.of(&shapes::OFFSETS)?;
    if offsets.list_at("/offsets")?.is_empty() {
        return Err(offsets.fault("expected an offset after a graceful stop, got none"));
    }
    kcctl.patch(&path, &offsets.json).await?.expect(200)?.of(&shapes::MESSAGE)?;
    kcctl.delete(&path).await?.expect(200)?.of(&shapes::MESSAGE).map(drop)
}

async fn loggers(scene: &CheckScene<'_>, kcctl: &RestClient) -> CheckOutcome {
    kcctl.get("/admin/loggers/").await?.expect(200)?.map_of(&shapes::LOGGER)?;
    let root = kcctl.get("/admin/loggers/root").await?.expect(200)?.of(&shapes::LOGGER)?;
    let level = root.json["level"].as_str().unwrap_or_default();
    scene.root_level.get_or_init(|| level.to_owned());
    let body = json!({ "level": level });
    kcctl.put("/admin/loggers/root", &body).await?.expect(200)?.list()?;
    kcctl.put("/admin/loggers/root?scope=cluster", &body).await?.expect_empty(204).map(drop)
}
