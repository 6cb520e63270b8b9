//! Checks 81 and 82: for workers started with basic authentication and with a config provider.

use serde_json::json;

use super::topics::has_topic;
use crate::product::conformance::client::CheckOutcome;
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::subject::{Credentials, Subject};

pub(super) fn no_credentials(subject: &Subject) -> Option<&'static str> {
    subject.credentials.is_none().then_some("started without basic authentication")
}

pub(super) fn no_provider(subject: &Subject) -> Option<&'static str> {
    subject.provider.is_none().then_some("started without a config provider")
}

pub(super) async fn basic_auth(scene: &CheckScene<'_>) -> CheckOutcome {
    let nobody = scene.client.with_credentials(None);
    let right = scene
        .subject
        .credentials
        .clone()
        .unwrap_or(Credentials { user: String::new(), password: String::new() });
    let wrong = Credentials { password: format!("{}x", right.password), ..right };
    let impostor = scene.client.with_credentials(Some(wrong));
    for path in ["/", "/connectors", "/connector-plugins"] {
        // Connect answers with plain text.
        nobody.get(path).await?.expect(401)?;
        impostor.get(path).await?.expect(401)?;
        scene.client.get(path).await?.expect(200)?;
    }
    let body = json!({ "name": scene.name("intruder"), "config": scene.config() });
    nobody.post("/connectors", &body).await?.expect(401)?;
    scene.client.get(&scene.path("intruder", "")).await?.expect_error(404).map(drop)
}

pub(super) async fn secret(scene: &CheckScene<'_>) -> CheckOutcome {
    let Some(provider) = &scene.subject.provider else { return Ok(()) };
    let config = scene.config_with(&json!({ &provider.key: provider.reference }));
    let created = scene.create("secret", &config).await?.expect(201)?;
    created.has("/config", &scene.echo("secret", &config))?;
    has_topic(scene, "secret", &provider.secret).await?;

    let answer = scene.client.get(&scene.path("secret", "/config")).await?.expect(200)?;
    answer.has("", &scene.echo("secret", &config))?;
    for rest in ["", "/config", "/tasks", "/status"] {
        let answer = scene.client.get(&scene.path("secret", rest)).await?.expect(200)?;
        if answer.text().contains(&provider.secret) {
            return Err(answer.fault("expected the reference only, got the secret"));
        }
    }
    scene.client.delete(&scene.path("secret", "")).await?.expect_empty(204).map(drop)
}
