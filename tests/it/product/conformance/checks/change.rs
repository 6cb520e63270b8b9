//! Checks 36 to 42: PUT and PATCH of a connector's config.

use serde_json::{Value, json};

use super::create::{INVALID, expect_location};
use crate::product::conformance::client::CheckOutcome;
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shapes;

pub(super) async fn put(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.changed_config();
    let answer = scene.client.put(&scene.path("t1", "/config"), &config).await?.expect(200)?;
    answer.of(&shapes::INFO)?.has("/config", &scene.echo("t1", &config))?;
    config_is(scene, "t1", &config).await
}

pub(super) async fn put_new(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.put(&scene.path("t2", "/config"), &scene.config()).await?.expect(201)?;
    let answer = answer.of(&shapes::INFO)?.has("/config", &scene.echo("t2", &scene.config()))?;
    expect_location(&answer, &scene.path("t2", ""))?;
    scene.client.delete(&scene.path("t2", "")).await?.expect_empty(204).map(drop)
}

pub(super) async fn put_other_name(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!({ "name": scene.name("other") }));
    scene.client.put(&scene.path("t1", "/config"), &config).await?.expect_error(400).map(drop)
}

pub(super) async fn put_invalid(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!({ "tasks.max": INVALID }));
    scene.client.put(&scene.path("t1", "/config"), &config).await?.expect_error(400)?;
    config_is(scene, "t1", &scene.changed_config()).await
}

pub(super) async fn patch(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.patch(&scene.path("t1", "/config"), &json!({ "tasks.max": "2" })).await?;
    let mut expected = scene.changed_config();
    expected["tasks.max"] = json!("2");
    answer.expect(200)?.of(&shapes::INFO)?.has("/config", &scene.echo("t1", &expected))?;
    config_is(scene, "t1", &expected).await
}

pub(super) async fn patch_null(scene: &CheckScene<'_>) -> CheckOutcome {
    let (key, _) = &scene.subject.change;
    let answer = scene.client.patch(&scene.path("t1", "/config"), &json!({ key: Value::Null })).await?;
    let expected = scene.config_with(&json!({ "tasks.max": "2" }));
    answer.expect(200)?.of(&shapes::INFO)?.has("/config", &scene.echo("t1", &expected))?;
    config_is(scene, "t1", &expected).await
}

pub(super) async fn patch_unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.patch(&scene.path("unknown", "/config"), &json!({ "tasks.max": "2" })).await?;
    answer.expect_error(404).map(drop)
}

async fn config_is(scene: &CheckScene<'_>, short: &str, config: &Value) -> CheckOutcome {
    let answer = scene.client.get(&scene.path(short, "/config")).await?.expect(200)?;
    answer.has("", &scene.echo(short, config)).map(drop)
}
