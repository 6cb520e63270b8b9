//! Checks 83 to 85: the calls of common tools, with their paths, queries, headers and bodies, and what each tool needs from the
//! answers.

mod akhq;
pub(crate) mod console;
mod kafka_ui;
pub(crate) mod kcctl;
pub(crate) mod terraform;

use serde_json::{Map, Value};

use super::client::{CheckOutcome, RestAnswer, RestClient};
use super::scene::CheckScene;
use super::shape::brief;
use super::shapes;

/// The three tools with a user interface; the faults of all of them.
pub(crate) async fn consoles(scene: &CheckScene<'_>) -> CheckOutcome {
    let outcomes = [
        ("kafka-ui", kafka_ui::replay(scene).await),
        ("AKHQ", akhq::replay(scene).await),
        ("Console", console::replay(scene).await),
    ];
    let faults: Vec<_> = outcomes
        .into_iter()
        .filter_map(|(tool, outcome)| outcome.err().map(|fault| format!("{tool}: {fault}")))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Major and minor version as kcctl reads them: two numbers and a dot between, then a dot or the end.
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The listing with `info` and `status`, both of which every connector must have; retried, since a connector that was just created or
/// removed may have only one of them.
async fn listing(scene: &CheckScene<'_>, tool: &RestClient, own: &str) -> CheckOutcome {
    let name = scene.name(own);
    scene
        .eventually(async || {
            let answer = tool.get("/connectors?expand=info&expand=status").await?.expect(200)?;
            let answer = answer.map_of(&shapes::EXPANDED)?;
            if answer.json.get(&name).is_none() {
                return Err(answer.fault(&format!("expected {name}, got {}", brief(&answer.json))));
            }
            members(&answer.json).try_for_each(|connector| joined(&answer, connector))
        })
        .await
}

/// The tasks of `info` and of `status` are the same ones: tools join them by number.
fn joined(answer: &RestAnswer, connector: &Value) -> CheckOutcome {
    let numbers = |pointer: &str, key: &str| -> Vec<Value> {
        let tasks = connector.pointer(pointer).and_then(Value::as_array);
        tasks.into_iter().flatten().map(|task| task[key].clone()).collect()
    };
    let (known, shown) = (numbers("/info/tasks", "task"), numbers("/status/tasks", "id"));
    if known == shown {
        return Ok(());
    }
    Err(answer.fault(&format!("expected the same tasks in info and status, got {known:?} and {shown:?}")))
}

fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_object().into_iter().flat_map(Map::values)
}
