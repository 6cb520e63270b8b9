//! Imports go down only: these tests read manifests and sources, and report each crate or module that names a forbidden one.
//!
//! Every path to a `crate::module` counts, in `use` lines and elsewhere, however it is written (`super::super`, groups).
//! Comments and text do not count. Unit tests count too, except for cycles: a unit test that needs the layer above belongs in
//! this binary.

mod cycles;
mod examples;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use examples::*;
use source::{Mention, Source};

crate::tests! {
    plain imports_go_down_only;
    plain manifests_name_only_crates_below;
    plain crates_share_tests_lints_and_versions;
    plain modules_form_no_unlisted_cycle;
    plain upward_import_is_found_however_it_is_written;
    plain sideways_import_is_found_unless_it_is_its_own_module;
    plain text_and_comments_are_no_import;
    plain crate_outside_its_home_is_found;
    plain module_or_crate_without_a_place_is_found;
    plain super_super_out_of_a_room_is_found;
    plain forbidden_dependency_in_a_manifest_is_found;
    plain what_a_crate_does_not_share_is_found;
    plain cycle_is_found_at_each_level;
    plain cycle_through_unit_tests_does_not_count;
    plain known_cycle_may_only_shrink;
}

/// This directory, for messages.
const HERE: &str = "tests/it/repository/layering";

/// The root package as its own code calls it.
const ROOT: &str = "tributary";
/// Our other crates, each with those of ours that it may depend on. The root may depend on all.
const CRATES: [(&str, &[&str]); 6] = [
    ("base", &[]),
    ("model", &[]),
    ("server", &["base"]),
    // Shares no code with the product, except how bytes get in and out: one misreading of the provider must not hide in both.
    ("simulator", &["server"]),
    ("kafka", &["base", "model"]),
    ("provider", &["base", "model"]),
];
/// Replaces a crate of crates.io and names none of ours.
const NOT_OURS: &str = "openssl-sys";

/// The root's modules. Each may name those of lower levels, none of the same level: that keeps the three wings apart.
const LEVELS: [(&str, u8); 18] = [
    ("main", 10),
    ("lib", 10),
    ("cli", 9),
    ("worker", 8),
    ("connect", 7),
    ("records", 7),
    ("webhooks", 7),
    ("plugin", 6),
    ("logins", 5),
    ("state", 4),
    ("publish", 3),
    ("avro", 2),
    ("spool", 2),
    ("telemetry", 2),
    ("config", 1),
    ("store", 1),
    ("allocator", 0),
    ("cycles", 0),
];

/// Crates that only these places may name; other code calls the functions there.
const HOMES: [(&str, &[&str]); 5] = [
    ("simulator", &["src/cli", "crates/simulator"]),
    ("fjall", &["src/store"]),
    ("rdkafka", &["crates/kafka"]),
    ("rdkafka_sys", &["crates/kafka"]),
    // The Kafka crate fetches the token for SASL with it, the simulator delivers webhooks, the listener's tests send requests.
    (
        "reqwest",
        &[
            "crates/provider",
            "src/avro",
            "src/cli/auth/simulated",
            "src/cli/client",
            "src/cli/connectors",
            "src/cli/demo",
            "src/cli/webhooks",
            "crates/kafka/src/oauth",
            "crates/server/src/tests",
            "crates/simulator",
        ],
    ),
];
/// The macros that make a metric, and the only place that may use them.
const METRIC_MACROS: [&str; 6] =
    ["counter", "gauge", "histogram", "describe_counter", "describe_gauge", "describe_histogram"];
const METRICS_HOME: &str = "crates/base/src/metrics";

/// Cycles that are still to be removed: the crate and the modules that reach each other. There are none: add none.
const KNOWN_CYCLES: &[(&str, &[&str])] = &[];

async fn imports_go_down_only() {
    let files = rust_files();
    assert!(files.len() > 100, "only {} files", files.len());

    assert_none(files.iter().flat_map(|(path, text)| check(path, text)));
}

async fn manifests_name_only_crates_below() {
    let mut checked = BTreeSet::new();
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        if let Ok(manifest) = fs::read_to_string(directory.join("Cargo.toml")) {
            faults.extend(check_manifest(&name, &manifest));
            checked.insert(name);
        }
    }

    assert_none(faults);
    for (name, _) in CRATES {
        assert!(checked.contains(name), "crates/{name} has no Cargo.toml: remove it from CRATES in {HERE}");
    }
}

async fn crates_share_tests_lints_and_versions() {
    let root_manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let tested = root_manifest.lines().find(|line| line.starts_with("default-members")).unwrap();
    for (name, _) in CRATES {
        let manifest = fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).unwrap();
        assert_none(unshared(name, &manifest, tested));
    }
}

async fn modules_form_no_unlisted_cycle() {
    assert_none(cycles::check(&rust_files(), KNOWN_CYCLES));
}

/// Faults in the imports of one file; `path` starts at the repository's root.
fn check(path: &str, text: &str) -> Vec<String> {
    let Some(place) = Place::of(path) else { return Vec::new() };
    let source = Source::read(place.module.clone(), text);
    let mentions = source.mentions();
    let mut faults = if place.krate == ROOT { check_levels(path, &mentions) } else { Vec::new() };
    faults.extend(check_rooms(path, &place, &mentions));
    faults.extend(check_homes(path, &source));
    faults.dedup();
    faults
}

/// The root's modules name lower levels only.
fn check_levels(path: &str, mentions: &[Mention]) -> Vec<String> {
    let module = path.split('/').nth(1).unwrap_or_default().trim_end_matches(".rs");
    let Some(level) = level(module) else {
        return vec![format!("{path}: module {module} has no level: give it one in LEVELS in {HERE}")];
    };
    let mut faults = Vec::new();
    for Mention { line, path: named, .. } in mentions {
        let Some(name) = named.first().filter(|name| *name != module) else { continue };
        let fault = match self::level(name) {
            Some(other) if other < level => continue,
            Some(_) => format!("{module} must not name crate::{name}: imports go down only"),
            None if name == "*" => "crate::* hides which modules are meant: name them".to_owned(),
            None => format!("crate::{name} has no level: give it one in LEVELS in {HERE}"),
        };
        faults.push(format!("{path}:{line}: {fault}"));
    }
    faults
}

/// `super::super` stays in the file's second-level module in the root crate, and in its top-level module elsewhere.
fn check_rooms(path: &str, place: &Place, mentions: &[Mention]) -> Vec<String> {
    let depth = if place.krate == ROOT { 2 } else { 1 };
    let room = &place.module[..place.module.len().min(depth)];
    let leaves = |mention: &&Mention| {
        mention.supers > 1 && mention.within.len().saturating_sub(mention.supers) < room.len()
    };
    let fault = |Mention { line, .. }: &Mention| {
        format!("{path}:{line}: super::super leads out of {}: write the path from crate::", room.join("::"))
    };
    mentions.iter().filter(leaves).map(fault).collect()
}

/// Crates are named in their homes only.
fn check_homes(path: &str, source: &Source) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let is_in =
        |home: &str| stem.strip_prefix(home).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut faults = Vec::new();
    for (package, homes) in HOMES {
        if !homes.iter().any(|home| is_in(home)) {
            for line in source.lines_naming(package) {
                faults.push(format!("{path}:{line}: {package} may be named in {} only", homes.join(", ")));
            }
        }
    }
    if !is_in(METRICS_HOME) {
        for line in source.lines_naming_any_of("metrics", &METRIC_MACROS) {
            faults.push(format!(
                "{path}:{line}: metrics are made in {METRICS_HOME} only: add a function there"
            ));
        }
    }
    faults
}

/// Faults in the dependencies of `crates/{name}`. Dev-dependencies do not count.
fn check_manifest(name: &str, manifest: &str) -> Vec<String> {
    if name == NOT_OURS {
        return Vec::new();
    }
    let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
        return vec![format!("crates/{name} has no place: say in CRATES in {HERE} what it may depend on")];
    };
    let is_ours = |package: &&str| *package == ROOT || CRATES.iter().any(|(known, _)| known == package);
    let forbidden = dependencies(manifest)
        .into_iter()
        .filter(|(_, package)| is_ours(&package.as_str()) && !allowed.contains(&package.as_str()));
    forbidden
        .map(|(line, package)| {
            format!("crates/{name}/Cargo.toml:{line}: {name} must not depend on {package}")
        })
        .collect()
}

/// What a crate does not take from the workspace: a place among the `tested` crates, lints, versions of dependencies.
fn unshared(name: &str, manifest: &str, tested: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !tested.contains(&format!("\"crates/{name}\"")) {
        faults.push(format!("crates/{name} is not in default-members: `cargo test` leaves it out"));
    }
    if !manifest.contains("[lints]\nworkspace = true") {
        faults.push(format!("crates/{name}/Cargo.toml: `[lints] workspace = true` is missing"));
    }
    let mut lists_dependencies = false;
    for (line, text) in (1..).zip(manifest.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if let Some(header) = text.strip_prefix('[') {
            lists_dependencies = header.trim_end_matches(']').ends_with("dependencies");
        } else if lists_dependencies && !text.is_empty() && !text.contains("workspace = true") {
            faults.push(format!("crates/{name}/Cargo.toml:{line}: declare its version in the workspace"));
        }
    }
    faults
}

/// The names in the `[dependencies]` of a manifest, each with its line; ours without the prefix that their packages have.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut counts = false;
    for (line, text) in (1..).zip(manifest.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if let Some(header) = text.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            let (table, name) = header.rsplit_once('.').unwrap_or(("", header));
            let is_one = table.rsplit('.').next() == Some("dependencies");
            counts = is_one || matches!(name, "dependencies" | "build-dependencies");
            found.extend(is_one.then(|| (line, name.to_owned())));
        } else if counts {
            let key = text.split(['.', '=', ' ']).next().unwrap_or_default();
            // A renamed dependency shows in `package = "tributary-…"` or `path = "../…"`.
            let values = text.split('"').skip(1).step_by(2);
            let renamed = values.filter(|value| value.starts_with("tributary-") || value.starts_with("../"));
            let names = renamed
                .chain([key])
                .map(|name| name.trim_start_matches("../").trim_start_matches("tributary-"));
            found.extend(names.map(|name| (line, name.to_owned())));
        }
    }
    found.dedup();
    found
}

/// The crate and module of a file.
struct Place<'a> {
    krate: &'a str,
    module: Vec<String>,
}

impl<'a> Place<'a> {
    /// `path` is `src/worker/mod.rs` or `crates/kafka/src/lib.rs`. None for other files.
    fn of(path: &'a str) -> Option<Self> {
        let (krate, below) = match path.strip_prefix("src/") {
            Some(below) => (ROOT, below),
            None => path.strip_prefix("crates/")?.split_once("/src/")?,
        };
        let parts = below.trim_end_matches(".rs").split('/');
        let module =
            parts.filter(|part| !matches!(*part, "mod" | "lib" | "main")).map(str::to_owned).collect();
        (krate != NOT_OURS).then_some(Self { krate, module })
    }
}

fn level(module: &str) -> Option<u8> {
    LEVELS.iter().find(|(name, _)| *name == module).map(|(_, level)| *level)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The path, from the repository's root, and text of every source file of ours.
fn rust_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    add_rust_files(&root().join("src"), &mut files);
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let sources = entry.unwrap().path().join("src");
        if sources.is_dir() {
            add_rust_files(&sources, &mut files);
        }
    }
    files
}

fn add_rust_files(directory: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            files.push((path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/"), text));
        }
    }
}

fn assert_none(faults: impl IntoIterator<Item = String>) {
    let faults: Vec<_> = faults.into_iter().collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
