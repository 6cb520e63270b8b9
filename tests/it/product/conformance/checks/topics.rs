//! Checks 53 to 55: the topics a connector has written.

use serde_json::json;

use crate::product::conformance::client::{CheckOutcome, RestAnswer};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::brief;
use crate::product::conformance::shapes;

pub(super) async fn topics(scene: &CheckScene<'_>) -> CheckOutcome {
    has_topic(scene, "t1", &scene.subject.topic).await
}

/// Waits until the connector is known to have written this topic.
pub(crate) async fn has_topic(scene: &CheckScene<'_>, short: &str, topic: &str) -> CheckOutcome {
    scene
        .eventually(async || {
            let answer = fetch(scene, short).await?;
            let topics = &answer.json[scene.name(short)]["topics"];
            if topics.as_array().is_some_and(|topics| topics.iter().any(|known| known == topic)) {
                return Ok(());
            }
            Err(answer.fault(&format!("expected topic {topic}, got {}", brief(topics))))
        })
        .await
}

pub(super) async fn unknown(scene: &CheckScene<'_>) -> CheckOutcome {
    is_empty(scene, "unknown").await
}

/// The connector is paused; otherwise its next record would add the topic again.
pub(super) async fn reset(scene: &CheckScene<'_>) -> CheckOutcome {
    scene.client.set(&scene.path("t1", "/pause")).await?.expect_empty(202)?;
    scene.until_all("t1", "PAUSED").await?;
    scene.client.set(&scene.path("t1", "/topics/reset")).await?.expect_empty(202)?;
    scene.eventually(async || is_empty(scene, "t1").await).await?;
    scene.client.set(&scene.path("t1", "/resume")).await?.expect_empty(202)?;
    scene.until_running("t1").await
}

async fn is_empty(scene: &CheckScene<'_>, short: &str) -> CheckOutcome {
    fetch(scene, short).await?.has(&format!("/{}/topics", scene.name(short)), &json!([])).map(drop)
}

async fn fetch(scene: &CheckScene<'_>, short: &str) -> Result<RestAnswer, String> {
    scene.client.get(&scene.path(short, "/topics")).await?.expect(200)?.map_of(&shapes::TOPICS)
}
