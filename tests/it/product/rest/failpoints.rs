//! The worker dies before and after the commit of an edit: the next one has the old or the new state, and every answered edit.
//!
//! Each worker answers one edit and dies in the next. The connector is stopped, so that no task writes to the config topic.

use serde_json::{Value, json};

use crate::support::login::http;
use crate::support::tributary::Tributary;
use crate::support::{Error, Result, breakable, prefix};

crate::tests! {
    disturbing an_interrupted_edit_is_applied_whole_or_not_at_all within 240;
}

/// The fail points, and whether the edit is committed by then.
const FAILPOINTS: [(&str, bool); 2] = [("sent", false), ("committed", true)];
/// One writes to the config topic alone, the other to the offset topic in the same transaction.
const EDITS: [(&str, &str); 2] = [("PUT", "config"), ("PATCH", "offsets")];

async fn an_interrupted_edit_is_applied_whole_or_not_at_all() -> Result<()> {
    let (broker, group, http) = (breakable::take().await?, prefix("places"), http());
    // Short, so that the next worker is soon a member of the group.
    let properties = [("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300")];
    let mut worker = Tributary::start_in(&group, &broker.bootstrap(), "places", &properties).await?;
    let created = json!({"name": "numbers", "config": edit(&group, "config", 0), "initial_state": "STOPPED"});
    let (status, answer) = worker.ask(&http, "POST", "/connectors", Some(&created)).await?;
    assert_eq!(status, 201, "{answer}");
    worker.kill();

    let mut interrupted: Option<InterruptedEdit> = None;
    let cases = FAILPOINTS.into_iter().flat_map(|failpoint| EDITS.map(|edit| (failpoint, edit)));
    for (number, ((failpoint, is_written), (method, what))) in (1..).zip(cases) {
        worker.start_again_to_die(&format!("transaction.{group}-config-arbiter.{failpoint}:2")).await?;
        if let Some(interrupted) = interrupted.take() {
            interrupted.check(&worker, &http).await?;
        }
        let path = format!("/connectors/numbers/{what}");
        let [answered, cut_off] = [2 * number, 2 * number + 1].map(|number| edit(&group, what, number));
        let (status, answer) = worker.ask(&http, method, &path, Some(&answered)).await?;
        assert_eq!(status, 200, "{method} {what}: {answer}");
        let answer = worker.ask(&http, method, &path, Some(&cut_off)).await;
        assert!(
            answer.is_err(),
            "{method} {what} was answered before the worker died at {failpoint}: {answer:?}"
        );
        worker.dead().await?;
        interrupted = Some(InterruptedEdit { path, failpoint, answered, cut_off, is_written });
    }
    worker.start_again().await?;
    if let Some(interrupted) = interrupted {
        interrupted.check(&worker, &http).await?;
    }
    println!("rest: a worker died at {} fail points of {} kinds of edit", FAILPOINTS.len(), EDITS.len());
    Ok(())
}

/// An edit in which the worker died, and the answered one before it.
struct InterruptedEdit {
    path: String,
    failpoint: &'static str,
    answered: Value,
    cut_off: Value,
    /// Whether the interrupted edit is committed.
    is_written: bool,
}

impl InterruptedEdit {
    async fn check(&self, worker: &Tributary, http: &reqwest::Client) -> Result<()> {
        let Self { path, failpoint, answered, cut_off, is_written } = self;
        let (_, text) = worker.ask(http, "GET", path, None).await?;
        let found: Value = serde_json::from_str(&text).map_err(|error| Error(format!("{text}: {error}")))?;
        assert_eq!(found, *if *is_written { cut_off } else { answered }, "{path}, {failpoint}");
        Ok(())
    }
}

/// The body of an edit, which GET shows unchanged.
fn edit(group: &str, what: &str, number: u32) -> Value {
    match what {
        "config" => json!({
            "connector.class": "TestSource",
            "name": "numbers",
            "topic": format!("{group}.numbers"),
            "tasks.max": "1",
            "messages": (number + 1).to_string(),
        }),
        _ => json!({"offsets": [{"partition": {"task": 0}, "offset": {"count": number}}]}),
    }
}
