//! The dependency tree keeps one HTTP client, one TLS stack, one Avro, and one Rust crypto provider.
//!
//! Two reqwests or Avros have types that do not fit each other; a second crypto provider makes rustls panic
//! at run time because it cannot choose. `deny.toml` says the same to those who have cargo-deny.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

crate::tests! {
    plain the_tree_holds_each_single_crate_once_and_no_banned_one;
    plain a_second_version_and_a_banned_crate_are_found;
}

/// Exactly one version of each.
const SINGLE: [&str; 3] = ["apache-avro", "reqwest", "rustls"];
/// Not at all: ring beside aws-lc-rs is the second provider, native-tls the second OpenSSL user.
const BANNED: [&str; 2] = ["native-tls", "ring"];

async fn the_tree_holds_each_single_crate_once_and_no_banned_one() {
    let tree = cargo_tree(&["--prefix", "none", "--format", "{p}"]);

    let faults = faults(&tree);

    let mut report = String::new();
    for fault in &faults {
        let puller = cargo_tree(&["--invert", &fault.package]);
        report += &format!("{}; pulled in by:\n{puller}\n", fault.text);
    }
    assert!(faults.is_empty(), "{report}");
}

async fn a_second_version_and_a_banned_crate_are_found() {
    let tree = "tributary v0.1.0 (/here)\napache-avro v0.22.0\nreqwest v0.13.5\nrustls v0.23.46\n\
                reqwest v0.12.9 (*)\nring v0.17.8\nrustls v0.23.46 (*)\nring-like v1.0.0";

    let found: Vec<_> = faults(tree).into_iter().map(|fault| fault.package).collect();

    assert_eq!(found, ["reqwest@0.12.9", "reqwest@0.13.5", "ring@0.17.8"]);
    assert_eq!(faults("").len(), SINGLE.len(), "an empty tree must not pass for a good one");
}

struct Fault {
    /// As `cargo tree --invert` takes it.
    package: String,
    text: String,
}

fn faults(tree: &str) -> Vec<Fault> {
    let packages: BTreeSet<_> = tree.lines().filter_map(package).collect();
    let versions = |name: &str| -> Vec<_> {
        packages.iter().filter(|(known, _)| *known == name).map(|(_, version)| *version).collect()
    };
    let mut faults = Vec::new();
    for name in SINGLE {
        let found = versions(name);
        match found.as_slice() {
            [_] => {}
            [] => faults.push(Fault {
                package: name.to_owned(),
                text: format!("{name} is not in the tree: if it left for good, take it off the list"),
            }),
            several => faults.extend(several.iter().map(|version| Fault {
                package: format!("{name}@{version}"),
                text: format!(
                    "{name} {version} is one of {} versions ({})",
                    several.len(),
                    several.join(", ")
                ),
            })),
        }
    }
    for name in BANNED {
        faults.extend(versions(name).into_iter().map(|version| Fault {
            package: format!("{name}@{version}"),
            text: format!("{name} {version} is banned"),
        }));
    }
    faults
}

/// Name and version of a line such as `reqwest v0.13.5 (*)`.
fn package(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// For the target cargo builds for (`CARGO_BUILD_TARGET`, else this machine), with what tests and build
/// scripts use too.
fn cargo_tree(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let mut command = Command::new(cargo);
    command
        .args(["tree", "--offline", "--locked", "--all-features", "-e", "normal,build,dev"])
        .args(arguments);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    let output = command.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {errors}");
    text.into_owned()
}
