//! The Terraform provider for Kafka Connect: apply, change, plan again without a difference, destroy.

use serde_json::{Value, json};

use crate::product::conformance::client::{CheckOutcome, RestClient};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shapes;

/// Its client names the character set of its JSON.
const HEADERS: &[(&str, &str)] =
    &[("accept", "application/json"), ("content-type", "application/json; charset=utf-8")];
const NAME: &str = "terraform";

pub(crate) async fn replay(scene: &CheckScene<'_>) -> CheckOutcome {
    let terraform = scene.client.sending(HEADERS);
    // The provider insists on the name in the config; a number stays one in its request.
    let config = scene.echo(NAME, &scene.config_with(&json!({ "tasks.max": 1 })));
    let body = json!({ "name": scene.name(NAME), "config": config });
    let answer = terraform.post("/connectors", &body).await?.expect(201)?.of(&shapes::INFO)?;
    answer.has("/config", &as_texts(&config))?;
    scene.eventually(async || terraform.get(&scene.path(NAME, "")).await?.expect(200).map(drop)).await?;
    no_difference(scene, &terraform, &config).await?;

    let mut changed = config;
    let (key, value) = &scene.subject.change;
    changed[key] = json!(value);
    let answer = terraform.put(&scene.path(NAME, "/config"), &changed).await?.expect(200)?;
    answer.of(&shapes::INFO)?.has("/config", &as_texts(&changed))?;
    no_difference(scene, &terraform, &changed).await?;

    scene.eventually(async || status(scene, &terraform).await).await?;
    terraform.delete(&scene.path(NAME, "")).await?.expect_empty(204)?;
    scene.eventually(async || terraform.get(&scene.path(NAME, "")).await?.expect(404).map(drop)).await
}

/// As many keys as were sent and the same values as texts: neither defaults nor masks.
async fn no_difference(scene: &CheckScene<'_>, terraform: &RestClient, config: &Value) -> CheckOutcome {
    scene
        .eventually(async || {
            let answer = terraform.get(&scene.path(NAME, "/config")).await?.expect(200)?;
            answer.has("", &as_texts(config)).map(drop)
        })
        .await?;
    let info = terraform.get(&scene.path(NAME, "")).await?.expect(200)?.of(&shapes::INFO)?;
    info.has("/config", &as_texts(config)).map(drop)
}

/// The connector's state is decoded as a map of texts.
async fn status(scene: &CheckScene<'_>, terraform: &RestClient) -> CheckOutcome {
    let answer = terraform.get(&scene.path(NAME, "/status")).await?.expect(200)?.of(&shapes::STATUS)?;
    let members = answer.json["connector"].as_object().into_iter().flatten();
    for (key, value) in members {
        if !value.is_string() {
            return Err(answer.fault(&format!("expected connector.{key} to be a text, got {value}")));
        }
    }
    Ok(())
}

fn as_texts(config: &Value) -> Value {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    config.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), json!(text(value)))).collect()
}
