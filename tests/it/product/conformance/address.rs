//! A worker that already runs, at an address from the environment.

use std::{env, fs};

use super::{Subject, run};

crate::tests! {
    plain the_worker_at_the_address_answers_as_connect_does within 200 given "TRIBUTARY_CONFORMANCE_URL";
}

async fn the_worker_at_the_address_answers_as_connect_does() -> Result<(), String> {
    let url = variable("TRIBUTARY_CONFORMANCE_URL")?;
    let file = variable("TRIBUTARY_CONFORMANCE_CONFIG")?;
    let facts = fs::read_to_string(&file).map_err(|error| format!("read {file}: {error}"))?;

    let report = run(&Subject::parse(&url, &facts)?).await;

    print!("{report}");
    report.into_result()
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("read {name}: {error}"))
}
