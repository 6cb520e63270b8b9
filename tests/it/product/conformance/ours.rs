//! The worker of this repository, started as a process: every check holds.
//!
//! Its facts are in `tests/peers/conformance/test-source.json`, which can also be used for a running worker.

use std::fs;

use serde_json::{Value, json};

use super::{Subject, run};
use crate::support::tributary::Tributary;
use crate::support::{Error, Shared, prefix, run_directory};

crate::tests! {
    real our_worker_passes within 500;
}

const USER: &str = "operator";
const PASSWORD: &str = "a password: with §";
/// `hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt-of-the-tests", 2000)`.
const HASH: &str =
    "$pbkdf2-sha256$i=2000$c2FsdC1vZi10aGUtdGVzdHM$MNeXyYIpXKns7nNkNHY5qMCS1v7Qnyoi05dlfhLM3To";

async fn our_worker_passes(shared: &'static Shared) -> Result<(), String> {
    let directory = run_directory::create("conformance").map_err(text)?;
    let (secrets, topic) = (directory.join("secrets.properties"), prefix("secret"));
    fs::write(&secrets, format!("topic={topic}\n")).map_err(|error| error.to_string())?;
    let login = [("admin.auth.method", "basic"), ("admin.auth.user", USER), ("admin.auth.password", HASH)];
    let worker = Tributary::start(shared.bootstrap(), "secured", &login).await.map_err(text)?;
    let mut facts = facts();
    facts["credentials"] = json!({ "user": USER, "password": PASSWORD });
    facts["provider"]["reference"] = json!(format!("${{file:{}:topic}}", secrets.display()));
    facts["provider"]["secret"] = json!(topic);

    check(&worker, &facts, 85).await
}

/// `asked` is the number of checks that apply, so that one that is left out by mistake is a failure.
async fn check(worker: &Tributary, facts: &Value, asked: usize) -> Result<(), String> {
    let report = run(&Subject::parse(worker.url(), &facts.to_string())?).await;

    if report.asked() != asked {
        return Err(format!("{} checks were made, not {asked}\n{report}", report.asked()));
    }
    report.into_result().map_err(|fault| worker.error(&fault).to_string())
}

/// The facts of the file, for a new worker and a new topic.
fn facts() -> Value {
    let mut facts: Value =
        serde_json::from_str(include_str!("../../../peers/conformance/test-source.json")).unwrap();
    let topic = prefix("numbers");
    facts["config"]["topic"] = json!(topic);
    facts["topic"] = json!(topic);
    facts["fresh"] = json!(true);
    facts
}

fn text(error: Error) -> String {
    error.to_string()
}
