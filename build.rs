//! Passes the commit of a release build to the compiler, for `tributary --version` and REST.
//!
//! - Debug builds have no commit: otherwise every commit would rebuild everything.
//! - `TRIBUTARY_COMMIT` names the commit if there is no repository, as in the build of an image.
//! - Without git, without a repository, or inside another repository, the commit is unknown, which is not an error.

use std::{env, path::Path, process::Command};

/// Environment variable that names the commit.
const GIVEN: &str = "TRIBUTARY_COMMIT";
/// Shown instead of a commit in debug builds.
const DEBUG: &str = "debug build";
/// The sources of the binary.
const SOURCES: [&str; 6] = ["src", "crates", "schemas", "Cargo.toml", "Cargo.lock", "build.rs"];

fn main() {
    println!("cargo::rerun-if-env-changed={GIVEN}");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var(GIVEN).ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let root = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let root = Path::new(&root);
    let build = match given {
        Some(given) => format!(" ({given})"),
        None if is_release => {
            watch(root);
            commit(root).map_or_else(String::new, |commit| format!(" ({commit})"))
        }
        None => format!(" ({DEBUG})"),
    };
    println!("cargo::rustc-env=TRIBUTARY_BUILD={build}");
    // For REST, where Kafka Connect shows only the commit.
    let bare = build.trim_matches([' ', '(', ')']);
    let revision = bare.split(',').next().filter(|_| bare != DEBUG).unwrap_or_default();
    println!("cargo::rustc-env=TRIBUTARY_REVISION={revision}");
}

/// Reruns this script after a checkout or a change of a source, which needs a build anyway.
fn watch(root: &Path) {
    let history = git(root, &["rev-parse", "--git-path", "logs/HEAD"]).map(|path| root.join(path));
    let sources = SOURCES.iter().map(|path| root.join(path));
    // A missing path would count as changed in every build.
    for path in history.into_iter().chain(sources).filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// The commit of this directory if it is the root of a repository, and whether it has uncommitted changes.
pub(crate) fn commit(root: &Path) -> Option<String> {
    let below = git(root, &["rev-parse", "--show-prefix"])?;
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"]).filter(|_| below.is_empty())?;
    let arguments = [&["status", "--porcelain", "--untracked-files=no", "--"][..], &SOURCES].concat();
    let is_changed = git(root, &arguments).is_some_and(|changes| !changes.is_empty());
    Some(if is_changed { format!("{commit}, changed since") } else { commit })
}

/// The output of git; `None` if git is missing or fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let said = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(said).ok()?.trim_end().to_owned())
}
