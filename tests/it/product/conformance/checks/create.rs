//! Checks 7 to 21: POST /connectors.

use reqwest::Method;
use serde_json::{Value, json};

use crate::product::conformance::client::{Body, CheckOutcome, RestAnswer};
use crate::product::conformance::scene::CheckScene;
use crate::product::conformance::shape::shorten;
use crate::product::conformance::shapes;

/// A value of `tasks.max` that every worker refuses.
pub(super) const INVALID: &str = "zero";
/// The text by which kcctl recognizes an unknown class.
pub(crate) const CLASS_NOT_FOUND: &str = "Failed to find any class that implements Connector";

pub(super) async fn creates(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config();
    let answer = scene.create("t1", &config).await?.expect(201)?.of(&shapes::INFO)?;
    let answer = answer.has("/type", &json!("source"))?.has("/name", &json!(scene.name("t1")))?;
    let answer = answer.has("/config", &scene.echo("t1", &config))?;
    expect_location(&answer, &scene.path("t1", ""))
}

pub(super) fn expect_location(answer: &RestAnswer, path: &str) -> CheckOutcome {
    match answer.header("location") {
        Some(location) if location.ends_with(path) => Ok(()),
        location => Err(answer.fault(&format!("expected a Location that ends {path}, got {location:?}"))),
    }
}

pub(super) async fn twice(scene: &CheckScene<'_>) -> CheckOutcome {
    let body = json!({ "name": scene.name("t1"), "config": scene.config() });
    scene.client.post("/connectors/", &body).await?.expect_error(409)?.says("already exists")?;
    let invalid = scene.config_with(&json!({ "tasks.max": INVALID }));
    scene.create("t1", &invalid).await?.expect_error(400).map(drop)
}

pub(super) async fn wrong_content_type(scene: &CheckScene<'_>) -> CheckOutcome {
    let body = json!({ "name": scene.name("text"), "config": scene.config() }).to_string();
    let body = Body::Raw("text/plain", &body);
    scene.client.call(Method::POST, "/connectors", body).await?.expect_error(415).map(drop)
}

pub(super) async fn malformed(scene: &CheckScene<'_>) -> CheckOutcome {
    let body = Body::Raw("application/json", "{bad");
    scene.client.call(Method::POST, "/connectors", body).await?.expect_refusal().map(drop)
}

pub(super) async fn unknown_member(scene: &CheckScene<'_>) -> CheckOutcome {
    let body = json!({ "name": scene.name("member"), "config": scene.config(), "surprise": 1 });
    scene.client.post("/connectors", &body).await?.expect_refusal().map(drop)
}

pub(super) async fn no_class(scene: &CheckScene<'_>) -> CheckOutcome {
    let value = "a-value-that-may-be-secret";
    let config = json!({ "some.key": value });
    let answer = scene.create("classless", &config).await?.expect_error(400)?;
    let answer = answer.says("contains no connector type")?;
    // Connect prints the whole config here; other workers must not.
    if !scene.subject.strict && answer.message().contains(value) {
        return Err(answer.fault(&format!("expected no values in the message, got {:?}", answer.message())));
    }
    Ok(())
}

/// A new class name each time: Connect remembers classes that it did not find, and then puts the name of an exception before the text
/// that clients know.
pub(super) async fn unknown_class(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = json!({ "connector.class": format!("com.example.{}", scene.name("class")) });
    let answer = scene.create("unknown-class", &config).await?.expect_error(400)?;
    expect_start(&answer, CLASS_NOT_FOUND)?;
    let answer = scene.create("unknown-class", &config).await?.expect_error(400)?.says(CLASS_NOT_FOUND)?;
    if scene.subject.strict { Ok(()) } else { expect_start(&answer, CLASS_NOT_FOUND) }
}

/// An error unless the message starts with this text.
pub(crate) fn expect_start(answer: &RestAnswer, text: &str) -> CheckOutcome {
    if answer.message().starts_with(text) {
        return Ok(());
    }
    let got = shorten(answer.message());
    Err(answer.fault(&format!("expected a message that begins {text:?}, got {got:?}")))
}

pub(super) async fn other_name(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!({ "name": scene.name("b") }));
    scene.create("a", &config).await?.expect_error(400).map(drop)
}

pub(super) async fn invalid_value(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!({ "tasks.max": INVALID }));
    let answer = scene.create("invalid", &config).await?.expect_error(400)?.says("tasks.max")?;
    // Connect counts two errors: not a number, and then null.
    let message = answer.message();
    let count = message.split_once(" error(s)").and_then(|(before, _)| before.rsplit(' ').next());
    if count.and_then(|count| count.parse::<u32>().ok()).is_none_or(|count| count == 0) {
        return Err(answer.fault(&format!("expected \"N error(s)\" with N above 0, got {message:?}")));
    }
    answer.says("/config/validate").map(drop)
}

pub(super) async fn empty_name(scene: &CheckScene<'_>) -> CheckOutcome {
    let body = json!({ "name": "", "config": scene.config() });
    scene.client.post("/connectors", &body).await?.expect_error(400).map(drop)
}

pub(super) async fn blanks(scene: &CheckScene<'_>) -> CheckOutcome {
    let name = scene.name("blanks");
    let body = json!({ "name": format!("  {name} "), "config": scene.config() });
    let answer = scene.client.post("/connectors", &body).await?.expect(201)?.of(&shapes::INFO)?;
    answer.has("/name", &json!(name))?.has("/config/name", &json!(name))?;
    scene
        .eventually(async || scene.client.get(&scene.path("blanks", "")).await?.expect(200).map(drop))
        .await?;
    remove(scene, "blanks").await
}

pub(super) async fn number(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!({ "tasks.max": 1 }));
    let answer = scene.create("number", &config).await?.expect(201)?.of(&shapes::INFO)?;
    answer.has("/config/tasks.max", &json!("1"))?;
    remove(scene, "number").await
}

pub(super) async fn null(scene: &CheckScene<'_>) -> CheckOutcome {
    let config = scene.config_with(&json!({ "some.key": Value::Null }));
    scene.create("null", &config).await?.expect_error(400).map(drop)
}

pub(super) async fn initially_stopped(scene: &CheckScene<'_>) -> CheckOutcome {
    create_in(scene, "stopped", "STOPPED").await?;
    scene.until_stopped("stopped").await?;
    remove(scene, "stopped").await
}

pub(super) async fn initially_paused(scene: &CheckScene<'_>) -> CheckOutcome {
    create_in(scene, "paused", "paused").await?;
    scene
        .eventually(async || {
            scene.status("paused").await?.has("/connector/state", &json!("PAUSED")).map(drop)
        })
        .await?;
    remove(scene, "paused").await
}

async fn create_in(scene: &CheckScene<'_>, short: &str, state: &str) -> CheckOutcome {
    let body = json!({ "name": scene.name(short), "config": scene.config(), "initial_state": state });
    scene.client.post("/connectors", &body).await?.expect(201)?.of(&shapes::INFO).map(drop)
}

/// Removes connectors that no later check needs.
async fn remove(scene: &CheckScene<'_>, short: &str) -> CheckOutcome {
    scene.client.delete(&scene.path(short, "")).await?.expect_empty(204).map(drop)
}
