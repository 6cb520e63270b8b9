//! Checks the current schemas against those of every release.
//!
//! `schemas/history/<version>/` keeps the `.avsc` files as released. The current schemas must read records of
//! each of them, and every version heading of the changelog must have its folder, so that a release cannot forget it.

use std::{fs, path::Path};

use apache_avro::Schema;

use model::SchemaKind;

use crate::avro::{compatibility::incompatibility, schemas::embedded};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What the current schemas cannot read of a history folder, one line each.
fn unreadable(history: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for version in entries(history) {
        let files = entries(&version);
        if files.is_empty() {
            problems.push(format!("{} holds no schema", version.display()));
        }
        for file in files {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap();
            let Some(kind) =
                SchemaKind::ALL.into_iter().find(|kind| name.strip_suffix(".avsc") == Some(kind.name()))
            else {
                problems.push(format!("{} has no current schema that reads it", file.display()));
                continue;
            };
            let old = Schema::parse_str(&fs::read_to_string(&file).unwrap()).unwrap();
            if let Some(breach) = incompatibility(&old, &embedded(kind).unwrap().schema) {
                problems.push(format!("{}: field {}: {}", file.display(), breach.field, breach.rule));
            }
        }
    }
    problems
}

/// Versions with a `## [x.y.z] - date` heading.
fn released(changelog: &str) -> Vec<&str> {
    let headings = changelog.lines().filter_map(|line| line.strip_prefix("## ["));
    headings.filter_map(|rest| rest.split_once("] - ")).map(|(version, _)| version).collect()
}

fn without_folder<'c>(changelog: &'c str, history: &Path) -> Vec<&'c str> {
    released(changelog).into_iter().filter(|version| !history.join(version).is_dir()).collect()
}

/// The sorted entries; none for a missing folder.
fn entries(directory: &Path) -> Vec<std::path::PathBuf> {
    let Ok(listing) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn current_schemas_read_every_released_one() {
    let problems = unreadable(&Path::new(ROOT).join("schemas/history"));

    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_released_version_has_left_its_schemas() {
    let changelog = fs::read_to_string(Path::new(ROOT).join("CHANGELOG.md")).unwrap();

    let missing = without_folder(&changelog, &Path::new(ROOT).join("schemas/history"));

    assert!(missing.is_empty(), "copy schemas/*.avsc to schemas/history/<version> for {missing:?}");
}

#[test]
fn release_that_current_schemas_cannot_read_is_found() {
    let history = tempfile::tempdir().unwrap();
    let todays = embedded(SchemaKind::Customer).unwrap().text;
    let write = |version: &str, file: &str, text: &str| {
        let folder = history.path().join(version);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), text).unwrap();
    };
    write("0.1.0", "Customer.avsc", todays);
    write("0.2.0", "Customer.avsc", &todays.replace(r#""companyId""#, r#""company""#));
    write("0.3.0", "Supplier.avsc", todays);
    fs::create_dir(history.path().join("0.4.0")).unwrap();

    let problems = unreadable(history.path());

    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert!(problems[0].contains("0.2.0") && problems[0].contains("field companyId"), "{problems:#?}");
    assert!(problems[1].contains("Supplier.avsc"), "{problems:#?}");
    assert!(problems[2].contains("0.4.0"), "{problems:#?}");
}

#[test]
fn a_release_without_a_folder_is_found() {
    let history = tempfile::tempdir().unwrap();
    fs::create_dir(history.path().join("0.1.0")).unwrap();
    let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - 2026-12-01\n";

    let missing = without_folder(changelog, history.path());

    assert_eq!(missing, ["0.2.0"]);
}
