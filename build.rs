//! Tells the compiler which commit a release is built from, for `tributary --version` and REST.
//!
//! - A debug build does not say: everything would have to be built anew after every commit, whatever that changed.
//! - `TRIBUTARY_COMMIT` says it where there is no repository, as in the build of an image.
//! - Without git, without a repository, or below somebody else's, there is no commit to tell, which is no error.

use std::{env, path::Path, process::Command};

/// What the commit is, where somebody says so.
const GIVEN: &str = "TRIBUTARY_COMMIT";
/// What a build says that does not tell its commit.
const DEBUG: &str = "debug build";
/// What the binary is made of.
const SOURCES: [&str; 6] = ["src", "crates", "schemas", "Cargo.toml", "Cargo.lock", "build.rs"];

fn main() {
    println!("cargo::rerun-if-env-changed={GIVEN}");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var(GIVEN).ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let root = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let root = Path::new(&root);
    let told = match given {
        Some(given) => format!(" ({given})"),
        None if is_release => {
            watch(root);
            commit(root).map_or_else(String::new, |commit| format!(" ({commit})"))
        }
        None => format!(" ({DEBUG})"),
    };
    println!("cargo::rustc-env=TRIBUTARY_BUILD={told}");
    // For REST, where Kafka Connect tells a commit and nothing else.
    let bare = told.trim_matches([' ', '(', ')']);
    let revision = bare.split(',').next().filter(|_| bare != DEBUG).unwrap_or_default();
    println!("cargo::rustc-env=TRIBUTARY_REVISION={revision}");
}

/// Asks again once another commit is checked out or a source has changed, in which case there is something to build anyway.
fn watch(root: &Path) {
    let history = git(root, &["rev-parse", "--git-path", "logs/HEAD"]).map(|path| root.join(path));
    let sources = SOURCES.iter().map(|path| root.join(path));
    // A path that is not there would count as changed at every build.
    for path in history.into_iter().chain(sources).filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// The commit of this directory, if it is the root of a repository, and whether something was changed since.
pub(crate) fn commit(root: &Path) -> Option<String> {
    let below = git(root, &["rev-parse", "--show-prefix"])?;
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"]).filter(|_| below.is_empty())?;
    let arguments = [&["status", "--porcelain", "--untracked-files=no", "--"][..], &SOURCES].concat();
    let is_changed = git(root, &arguments).is_some_and(|changes| !changes.is_empty());
    Some(if is_changed { format!("{commit}, changed since") } else { commit })
}

/// What git says; `None` where there is none, or it refuses.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let said = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(said).ok()?.trim_end().to_owned())
}
