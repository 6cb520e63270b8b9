//! The harness: what fails a test, and the report about tests that did not run.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::dice::repeat;
use crate::support::harness::run_limited;
use crate::support::jars::parse_java_version;
use crate::support::shared::left_out_block;
use crate::support::tries::report;
use crate::support::{cycles, parse_cycles, parse_seed, ports, prefix};

crate::tests! {
    plain a_panic_fails_the_test_with_its_message;
    plain an_error_fails_the_test_with_its_text;
    plain a_test_that_never_ends_fails_with_its_name;
    plain the_block_of_left_out_tests_names_each_and_the_remedy;
    plain too_many_failed_first_tries_fail_the_run;
    plain prefixes_are_never_the_same;
    plain free_ports_are_all_different_and_below_the_kernels_own;
    plain cycles_are_a_number_above_zero;
    plain every_loop_is_in_the_table_and_has_its_own_name;
    plain a_seed_is_a_number_and_its_command_names_the_test;
    plain java_versions_old_and_new_are_read;
}

const LIMIT: Duration = Duration::from_secs(10);

/// Without `panic!`, which would print a backtrace into the report of a successful run.
async fn a_panic_fails_the_test_with_its_message() {
    let body = || async { std::panic::resume_unwind(Box::new("boom")) };

    let result = run_limited("failing", LIMIT, Box::new(move || Box::pin(body())));

    assert_eq!(result, Err("panicked: boom".to_owned()));
}

async fn an_error_fails_the_test_with_its_text() {
    let result = run_limited("failing", LIMIT, Box::new(|| Box::pin(async { Err("boom".to_owned()) })));

    assert_eq!(result, Err("boom".to_owned()));
}

async fn a_test_that_never_ends_fails_with_its_name() {
    let result = run_limited("endless", Duration::from_millis(20), Box::new(|| Box::pin(pending())));

    assert_eq!(result, Err("endless has not ended within 20ms".to_owned()));
}

async fn the_block_of_left_out_tests_names_each_and_the_remedy() {
    let left_out = [("first::test".to_owned(), "no `java`"), ("second::test".to_owned(), "no `mvn`")];

    let block = left_out_block(&left_out);

    for part in [
        "LEFT OUT: 2 tests",
        "first::test: no `java`",
        "second::test: no `mvn`",
        "openjdk-17-jre-headless maven",
    ] {
        assert!(block.contains(part), "{part:?} is not in {block}");
    }
}

async fn too_many_failed_first_tries_fail_the_run() {
    let failed = |count| vec!["slow".to_owned(); count];

    assert_eq!(report(0, &[]), (String::new(), false));
    assert_eq!(report(6, &[]), ("0 of 6 checks with several tries failed on the first\n".to_owned(), false));
    let (text, is_too_many) = report(6, &failed(2));
    assert_eq!(text, "2 of 6 checks with several tries failed on the first: slow, slow\n");
    assert!(!is_too_many, "a third may fail");
    assert!(report(6, &failed(3)).1 && report(14, &failed(5)).1, "more than a third may not");
    assert!(!report(5, &failed(5)).1, "five checks are too few to judge");
}

async fn prefixes_are_never_the_same() {
    let prefixes: HashSet<_> = (0..100).map(|_| prefix("same")).collect();

    assert_eq!(prefixes.len(), 100);
}

async fn free_ports_are_all_different_and_below_the_kernels_own() {
    let ports: HashSet<_> = ports::free::<20>().unwrap().into_iter().collect();

    assert_eq!(ports.len(), 20);
    assert!(ports.iter().all(|port| (20_000..32_000).contains(port)), "{ports:?}");
}

async fn cycles_are_a_number_above_zero() {
    assert_eq!(parse_cycles("VARIABLE", " 12 ").unwrap(), 12);
    for wrong in ["0", "-1", "many", ""] {
        let error = parse_cycles("VARIABLE", wrong).unwrap_err();
        assert!(error.contains("VARIABLE is"), "{error}");
    }
    assert!(cycles("HARNESS", 3) > 0);
}

/// A name in two files would be two loops with one variable.
async fn every_loop_is_in_the_table_and_has_its_own_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = rust_files(&root.join("src"));
    files.extend(rust_files(&root.join("tests/it")));
    // This file has no loop.
    files.retain(|file| *file != root.join("tests/it/rig/harness.rs"));
    let mut used: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // Drawn unit tests name it in a call of `seeds`.
        let calls = ["cycles(\"", "seeds(\""].into_iter().flat_map(|call| text.split(call).skip(1));
        for call in calls {
            used.entry(call.split('"').next().unwrap().to_owned()).or_default().insert(file.clone());
        }
    }

    let main = fs::read_to_string(root.join("tests/it/main.rs")).unwrap();
    let table = main.lines().skip_while(|line| !line.starts_with("//! | loop |")).skip(2);
    let rows = table.take_while(|line| line.starts_with("//! | `"));
    let listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let shared: Vec<_> = used.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(shared.is_empty(), "names of two loops: {shared:?}");
    let names: BTreeSet<&str> = used.keys().map(String::as_str).collect();
    assert_eq!(listed.iter().copied().collect::<BTreeSet<&str>>(), names, "the table of tests/it/main.rs");
    assert_eq!(listed.len(), used.len(), "a loop is listed twice: {listed:?}");
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let (directories, files): (Vec<_>, Vec<_>) =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).partition(|path| path.is_dir());
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let below = directories.iter().flat_map(|directory| rust_files(directory));
    files.into_iter().filter(is_rust).chain(below).collect()
}

async fn a_seed_is_a_number_and_its_command_names_the_test() {
    assert_eq!(parse_seed(" 20410 ").unwrap(), 20_410);
    for wrong in ["-1", "today", ""] {
        assert!(parse_seed(wrong).is_err(), "{wrong:?} was taken");
    }
    let name = "rig::harness::a_seed_is_a_number_and_its_command_names_the_test";
    assert_eq!(repeat(7), format!("TRIBUTARY_TEST_SEED=7 cargo test --test it -- {name}"));
}

async fn java_versions_old_and_new_are_read() {
    assert_eq!(parse_java_version("openjdk version \"17.0.15\" 2025-04-15"), Some(17));
    assert_eq!(parse_java_version("openjdk version \"25-ea\" 2025-09-16"), Some(25));
    assert_eq!(parse_java_version("java version \"1.8.0_292\""), Some(1));
    assert_eq!(parse_java_version("command not found"), None);
}
