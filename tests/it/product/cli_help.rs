//! Version, completions, and output formats of the binary.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::command::{stderr, stdout, tributary};
use crate::support::run_directory;

#[allow(dead_code, reason = "the build script, of which one function is tested")]
#[path = "../../../build.rs"]
mod build;

crate::tests! {
    plain the_version_names_the_build_and_no_path;
    plain a_release_names_its_commit_and_changes;
    plain completions_name_every_command;
    plain a_closed_output_pipe_is_no_error;
    plain an_unreachable_worker_has_a_remedy;
    plain lists_are_tables_or_json;
}

async fn the_version_names_the_build_and_no_path() {
    let output = tributary(&["--version"], &[]).await;

    let said = stdout(&output);
    assert!(output.status.success());
    let build = said.trim_end().strip_prefix(concat!("tributary ", env!("CARGO_PKG_VERSION")));
    assert!(build.is_some_and(|build| build.is_empty() || build.starts_with(" (")), "{said}");
    assert!(!said.contains('/'), "{said}");
}

async fn a_release_names_its_commit_and_changes() {
    // Outside of this repository, which git would find from a subdirectory.
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let none = build::commit(root);
    let git = |arguments: &[&str]| {
        let names = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"];
        let mut command = Command::new("git");
        command.arg("-C").arg(root).args(names).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    assert_eq!(none, None, "where there is no repository there is no commit");
    if !git(&["init"]) {
        return println!("without git there is no commit to name, and nothing more to test");
    }
    fs::create_dir(root.join("src")).unwrap();
    let source = root.join("src/main.rs");
    fs::write(&source, "one").unwrap();
    assert!(git(&["add", "."]) && git(&["commit", "-m", "first"]));

    let clean = build::commit(root).unwrap();
    let below = build::commit(&root.join("src"));
    fs::write(&source, "two").unwrap();
    let changed = build::commit(root).unwrap();

    assert!(clean.len() == 12 && clean.chars().all(|letter| letter.is_ascii_hexdigit()), "{clean}");
    assert_eq!(below, None, "a repository above is not ours");
    assert_eq!(changed, format!("{clean}, changed since"));
}

async fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = tributary(&["completions", shell], &[]).await;

        let script = stdout(&output);
        assert!(output.status.success(), "{shell}: {}", stderr(&output));
        for command in ["connectors", "dead-letters", "certificates", "completions", "--only-failed"] {
            let written = script.contains(command) || script.contains(command.trim_start_matches("--"));
            assert!(written, "{command} is not in the script for {shell}");
        }
    }
    let script = run_directory::create("completions").unwrap().join("tributary.bash");
    fs::write(&script, tributary(&["completions", "bash"], &[]).await.stdout).unwrap();
    assert!(is_sound(&script), "bash cannot read {}", script.display());
}

/// Whether bash can parse a script; true without bash.
fn is_sound(script: &Path) -> bool {
    Command::new("bash").arg("-n").arg(script).status().is_ok_and(|status| status.success())
        || Command::new("bash").arg("--version").stdout(Stdio::null()).status().is_err()
}

async fn a_closed_output_pipe_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["config", "reference"]).env_clear().stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();

    drop(child.stdout.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();

    assert!(output.status.success(), "{}", output.status);
    assert_eq!(stderr(&output), "");
}

async fn an_unreachable_worker_has_a_remedy() {
    let plain = tributary(&["connectors", "list", "--url", "http://127.0.0.1:9"], &[]).await;
    let tls = tributary(&["gaps", "list", "hooks", "--url", "https://me:hidden@127.0.0.1:9"], &[]).await;

    let (plain, tls) = ((plain.status.code(), stderr(&plain)), (tls.status.code(), stderr(&tls)));
    assert_eq!((plain.0, tls.0), (Some(1), Some(1)), "{}{}", plain.1, tls.1);
    assert!(plain.1.starts_with("error: ask the worker at http://127.0.0.1:9: "), "{}", plain.1);
    let remedy = "\nremedy: start a worker there, or name another with --url or TRIBUTARY_URL";
    assert!(plain.1.contains(remedy) && !plain.1.contains("--ca"), "{}", plain.1);
    assert!(tls.1.contains(remedy) && tls.1.contains("--ca") && !tls.1.contains("hidden"), "{}", tls.1);
}

async fn lists_are_tables_or_json() {
    let table = tributary(&["schemas", "list"], &[]).await;
    let json = tributary(&["schemas", "list", "--output", "json"], &[]).await;
    let short = tributary(&["schemas", "list", "--json"], &[]).await;

    let table = stdout(&table);
    assert!(
        table.starts_with("SCHEMA ") && table.lines().next().unwrap().ends_with("FINGERPRINT"),
        "{table}"
    );
    let lines: Vec<serde_json::Value> =
        stdout(&json).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len() + 1, table.lines().count());
    assert!(lines.iter().all(|line| line["schema"]["type"] == "record"), "{lines:?}");
    assert_eq!(json.stdout, short.stdout);
}
