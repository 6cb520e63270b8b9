//! `tributary demo` as a user meets it: what it counts, and what it leaves up.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::command::{stderr, stdout, tributary};
use crate::support::{Result, process::Process, run_directory, traced};

crate::tests! {
    plain the_demo_finds_in_the_topics_all_that_was_answered_200_through_an_outage within 240;
    plain a_demo_that_is_kept_serves_where_it_says_and_ends_in_order within 480;
    plain a_demo_that_is_interrupted_before_the_count_has_verified_nothing within 60;
}

/// How long a demo may take to do what it is asked for; one that says all it can is slow.
fn limit() -> Duration {
    Duration::from_secs(if traced::is_on() { 400 } else { 100 })
}
/// The one of its promises that a machine may break which others keep busy.
const IN_TIME: &str = "every delivery is answered 200 in under 5 s";

/// What it counted for a promise, and whether that holds.
fn counted<'a>(said: &'a str, promise: &str) -> &'a str {
    said.lines().find_map(|line| line.strip_prefix(promise)).unwrap_or_default().trim()
}

/// Whether it counted that nothing is lost. One that was acknowledged late may be there twice.
fn is_kept(said: &str) -> bool {
    let kept = counted(said, "nothing acknowledged is lost");
    kept.contains(" 0 lost, ") && kept.ends_with("yes")
}

async fn the_demo_finds_in_the_topics_all_that_was_answered_200_through_an_outage() {
    let arguments = ["demo", "--seconds", "9", "--rate", "30", "--token-life", "5"];
    let mut output = tributary(&arguments, &[]).await;
    let first = stdout(&output);
    if !output.status.success() && counted(&first, IN_TIME).ends_with("NO") {
        // Once more: what is late by itself is so again. Late or not, nothing may be lost.
        assert!(is_kept(&first), "{first}");
        output = tributary(&arguments, &[]).await;
    }

    let said = stdout(&output);
    assert!(output.status.success(), "{said}\n{}", stderr(&output));
    assert!(!said.contains('\u{1b}'), "a pipe got what is for terminals:\n{said}");
    assert!(is_kept(&said), "{said}");
    let spooled = counted(&said, "without Kafka deliveries wait on disk");
    assert!(
        !spooled.starts_with("0 ") && spooled.ends_with("yes"),
        "nothing went through the spool:\n{said}"
    );
    assert!(said.lines().any(|line| line.contains(" s  cut off ")), "no line of the outage:\n{said}");
    // Tokens live for 5 seconds here, so the worker has refreshed the grant, around an outage in which it could not.
    let login = counted(&said, "a login lives on by itself");
    assert!(login.starts_with("task RUNNING, ") && !login.contains(" 0 renewals"), "{said}");
    for expected in [
        "provider   https://127.0.0.1:",
        " is logged in for accounting (",
        "SVC.ES.Webhooks), until 20",
        " is logged in for payroll (",
        " s  first event after ",
        "the provider disabled accounting/",
        "a repair asked for",
        "verified: the topics hold what the source holds, and all 15 promises hold",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in:\n{said}");
    }
    // Each of the other areas has shown something, and all of it holds.
    for (promise, shown) in [
        ("every invoicing notification is published as sent", " 0 lost, "),
        ("a deleted invoicing hook is registered again", "after "),
        ("payroll topic = payroll source", " 0 missing or different, certified"),
    ] {
        let told = counted(&said, promise);
        assert!(
            !told.starts_with("0 ") && told.contains(shown) && told.ends_with("yes"),
            "{promise}:\n{said}"
        );
    }
}

async fn a_demo_that_is_kept_serves_where_it_says_and_ends_in_order() -> Result<()> {
    let demo = Demo::start("demo-kept", &["--keep", "--seconds", "9", "--rate", "20"])?;
    // The last of what it tells; a log may go on below it.
    let is_up = |said: &str| {
        let told =
            said.split_once("staying up until Ctrl-C").and_then(|(_, after)| after.split_once("\nregistry "));
        told.is_some_and(|(_, registry)| registry.contains('\n'))
    };
    demo.process.ready(limit(), async || is_up(&demo.process.said())).await?;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let get = async |url: &str| client.get(url).send().await.unwrap().text().await.unwrap();
    let (rest, metrics) = (demo.place("REST API"), demo.place("metrics"));

    let connectors: Value = serde_json::from_str(&get(&format!("{rest}/connectors")).await).unwrap();
    let subjects = get(&format!("{}/subjects", demo.place("registry"))).await;
    let published = async || {
        let page = get(&metrics).await;
        let series = "tributary_records_published_total{origin=\"webhook\"} ";
        page.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok()).unwrap()
    };
    let before = published().await;
    let goes_on = demo.process.ready(limit(), async || published().await > before).await;
    demo.process.signal(Signal::TERM)?;
    let ended = demo.process.wait(limit()).await?;

    assert_eq!(connectors, serde_json::json!(["records", "webhooks"]));
    assert!(subjects.contains("demo.accounting.customers.events-value"), "{subjects}");
    goes_on?;
    assert!(ended.success(), "{ended}: {}", demo.process.said());
    // It tells what it trusts the provider by, in the directory of all it wrote.
    let said = demo.process.said();
    let (_, file) = said.split_once(", trust ").unwrap();
    let file = std::path::Path::new(file.split(')').next().unwrap());
    assert!(!file.parent().unwrap().exists(), "{} was left behind", file.display());
    Ok(())
}

async fn a_demo_that_is_interrupted_before_the_count_has_verified_nothing() -> Result<()> {
    let demo = Demo::start("demo-interrupted", &[])?;
    demo.says("Kafka, registry and provider are up").await?;

    demo.process.signal(Signal::INT)?;
    let ended = demo.process.wait(limit()).await?;

    assert_eq!(ended.code(), Some(1), "{}", demo.process.said());
    assert!(demo.process.said().contains("interrupted before the count: nothing is verified"));
    Ok(())
}

/// A demo that runs.
struct Demo {
    process: Process,
}

impl Demo {
    fn start(name: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.arg("demo").args(arguments).env_clear();
        let log = run_directory::create(name)?.join("demo.log");
        Ok(Self { process: Process::spawn(name, command, &log)? })
    }

    /// Waits until it has said so.
    async fn says(&self, text: &str) -> Result<()> {
        self.process.ready(limit(), async || self.process.said().contains(text)).await
    }

    /// What it told last of where something is.
    fn place(&self, what: &str) -> String {
        let said = self.process.said();
        let told = said.lines().rev().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        told.split_whitespace().next().unwrap_or_default().to_owned()
    }
}
