//! Checks 36 to 42: PUT and PATCH of a connector's config.

use serde_json::{Value, json};

use super::create::{INVALID, expect_location};
use crate::product::conformance::client::Outcome;
use crate::product::conformance::scene::Scene;
use crate::product::conformance::shapes;

pub(super) async fn put(scene: &Scene<'_>) -> Outcome {
    let config = scene.changed_config();
    let answer = scene.client.put(&scene.path("t1", "/config"), &config).await?.expect(200)?;
    answer.of(&shapes::INFO)?.has("/config", &scene.echo("t1", &config))?;
    config_is(scene, "t1", &config).await
}

pub(super) async fn put_new(scene: &Scene<'_>) -> Outcome {
    let answer = scene.client.put(&scene.path("t2", "/config"), &scene.config()).await?.expect(201)?;
    let answer = answer.of(&shapes::INFO)?.has("/config", &scene.echo("t2", &scene.config()))?;
    expect_location(&answer, &scene.path("t2", ""))?;
    scene.client.delete(&scene.path("t2", "")).await?.expect_empty(204).map(drop)
}

pub(super) async fn put_other_name(scene: &Scene<'_>) -> Outcome {
    let config = scene.config_with(&json!({ "name": scene.name("other") }));
    scene.client.put(&scene.path("t1", "/config"), &config).await?.expect_error(400).map(drop)
}

pub(super) async fn put_invalid(scene: &Scene<'_>) -> Outcome {
    let config = scene.config_with(&json!({ "tasks.max": INVALID }));
    scene.client.put(&scene.path("t1", "/config"), &config).await?.expect_error(400)?;
    config_is(scene, "t1", &scene.changed_config()).await
}

pub(super) async fn patch(scene: &Scene<'_>) -> Outcome {
    let answer = scene.client.patch(&scene.path("t1", "/config"), &json!({ "tasks.max": "2" })).await?;
    let mut expected = scene.changed_config();
    expected["tasks.max"] = json!("2");
    answer.expect(200)?.of(&shapes::INFO)?.has("/config", &scene.echo("t1", &expected))?;
    config_is(scene, "t1", &expected).await
}

pub(super) async fn patch_null(scene: &Scene<'_>) -> Outcome {
    let (key, _) = &scene.subject.change;
    let answer = scene.client.patch(&scene.path("t1", "/config"), &json!({ key: Value::Null })).await?;
    let expected = scene.config_with(&json!({ "tasks.max": "2" }));
    answer.expect(200)?.of(&shapes::INFO)?.has("/config", &scene.echo("t1", &expected))?;
    config_is(scene, "t1", &expected).await
}

pub(super) async fn patch_unknown(scene: &Scene<'_>) -> Outcome {
    let answer = scene.client.patch(&scene.path("unknown", "/config"), &json!({ "tasks.max": "2" })).await?;
    answer.expect_error(404).map(drop)
}

async fn config_is(scene: &Scene<'_>, short: &str, config: &Value) -> Outcome {
    let answer = scene.client.get(&scene.path(short, "/config")).await?.expect(200)?;
    answer.has("", &scene.echo(short, config)).map(drop)
}
