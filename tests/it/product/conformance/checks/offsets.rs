//! Checks 56 to 58 and 60 to 64: a connector's offsets.

use serde_json::{Value, json};

use crate::product::conformance::client::{CheckOutcome, RestAnswer};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shapes;

pub(super) async fn get(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.until_running("t1").await?;
    scene
        .eventually(async || {
            let answer = fetch(scene).await?;
            if answer.list_at("/offsets")?.is_empty() {
                return Err(answer.fault("expected an offset after a record, got none"));
            }
            scene.offsets.get_or_init(|| answer.json);
            Ok(())
        })
        .await
}

pub(super) async fn patch_running(scene: &CheckScene<'_>) -> CheckOutcome {
    let answer = scene.client.patch(&scene.path("t1", "/offsets"), seen(scene)?).await?;
    answer.expect_error(400)?.says("STOPPED").map(drop)
}

pub(super) async fn delete_paused(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.set(&scene.path("t1", "/pause")).await?.expect_empty(202)?;
    scene.until_all("t1", "PAUSED").await?;
    scene.client.delete(&scene.path("t1", "/offsets")).await?.expect_error(400)?.says("STOPPED").map(drop)
}

pub(super) async fn patch_nothing(scene: &CheckScene<'_>) -> CheckOutcome {
    for body in [json!({}), json!({ "offsets": [] })] {
        scene.client.patch(&scene.path("t1", "/offsets"), &body).await?.expect_error(400)?;
    }
    Ok(())
}

pub(super) async fn patch_list(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.patch(&scene.path("t1", "/offsets"), &json!([])).await?.expect_refusal().map(drop)
}

pub(super) async fn patch(scene: &CheckScene<'_>) -> CheckOutcome {
    let offsets = seen(scene)?;
    let answer = scene.client.patch(&scene.path("t1", "/offsets"), offsets).await?.expect(200)?;
    answer.of(&shapes::MESSAGE)?.says("altered")?;
    scene.eventually(async || fetch(scene).await?.has("", offsets).map(drop)).await
}

pub(super) async fn delete(scene: &CheckScene<'_>) -> CheckOutcome {
    for _ in 0..2 {
        let answer = scene.client.delete(&scene.path("t1", "/offsets")).await?.expect(200)?;
        answer.of(&shapes::MESSAGE)?.says("reset")?;
        scene.eventually(async || fetch(scene).await?.has("/offsets", &json!([])).map(drop)).await?;
    }
    Ok(())
}

pub(super) async fn unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    let path = scene.path("unknown", "/offsets");
    let offsets = json!({ "offsets": [{ "partition": { "a": "b" }, "offset": { "c": 1 } }] });
    scene.client.get(&path).await?.expect_error(404)?;
    scene.client.patch(&path, &offsets).await?.expect_error(404)?;
    scene.client.delete(&path).await?.expect_error(404).map(drop)
}

async fn fetch(scene: &CheckScene<'_>) -> Result<RestAnswer, String> {
    scene.client.get(&scene.path("t1", "/offsets")).await?.expect(200)?.of(&shapes::OFFSETS)
}

fn seen<'a>(scene: &'a CheckScene<'_>) -> Result<&'a Value, String> {
    scene.offsets.get().ok_or_else(|| "expected offsets from check 56, got none".to_owned())
}
