//! The worker's own secrets, which no connector configuration may read even if an allow list covers them.
//!
//! These are: every variable, file and key of a file that the worker's settings refer to, every file that they name as a
//! `.location`, `.file` or `keytab`, the properties file itself, `state.dir`, `CONNECT_*` and `TRIBUTARY_*` variables, and the files
//! in which the kernel shows processes and devices. Files are also compared by device and inode, so that a hard link to one is
//! protected as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use super::ProviderKind;
use crate::config::worker_keys::STATE_DIR;

/// Prefixes of the variables that the worker and its command line read.
const WORKER_VARIABLES: [&str; 2] = ["CONNECT_", "TRIBUTARY_"];
/// Directories in which the kernel shows processes and devices.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

#[derive(Debug, Default)]
pub(super) struct WorkerSecrets {
    variables: BTreeSet<String>,
    /// Whole files.
    files: BTreeSet<PathBuf>,
    /// Single keys of properties files; connectors may use the other keys.
    keys: BTreeSet<(PathBuf, String)>,
    trees: Vec<PathBuf>,
}

impl WorkerSecrets {
    pub(super) fn of(
        settings: &BTreeMap<String, String>,
        file: Option<&Path>,
        sources: &BTreeMap<String, ProviderKind>,
    ) -> Self {
        let mut secrets = Self { trees: KERNEL_TREES.map(PathBuf::from).to_vec(), ..Self::default() };
        secrets.files.extend(file.map(Path::to_owned));
        let state = settings.get(STATE_DIR.name).map(|path| path.trim()).filter(|path| !path.is_empty());
        secrets.trees.extend(state.or(STATE_DIR.default_value()).map(PathBuf::from));
        for (name, value) in settings {
            let value = value.trim();
            if [".location", ".file", "keytab"].iter().any(|end| name.ends_with(end)) {
                secrets.files.insert(PathBuf::from(value));
            }
            secrets.files.extend(value.strip_prefix("file://").map(PathBuf::from));
            for reference in value.split("${").skip(1) {
                let reference = reference.split('}').next().unwrap_or_default();
                let Some((provider, target)) = reference.split_once(':') else { continue };
                let Some(kind) = sources.get(provider) else { continue };
                let Some((path, key)) = kind.split(target) else { continue };
                match kind {
                    ProviderKind::Environment => drop(secrets.variables.insert(key.to_owned())),
                    ProviderKind::File => drop(secrets.keys.insert((path.to_owned(), key.to_owned()))),
                    ProviderKind::Directory => drop(secrets.files.insert(path.join(key))),
                }
            }
        }
        secrets
    }

    pub(super) fn has_variable(&self, name: &str) -> bool {
        WORKER_VARIABLES.iter().any(|start| name.starts_with(start)) || self.variables.contains(name)
    }

    /// `real` is the path without links, `file` the file opened there, `key` the requested key; `None` for the whole file.
    pub(super) fn has_file(&self, real: &Path, file: &File, key: Option<&str>) -> bool {
        let in_tree = |tree: &PathBuf| tree.canonicalize().is_ok_and(|tree| real.starts_with(tree));
        // The path may have become a link between the check and the opening; the kernel knows which file was opened.
        #[cfg(target_os = "linux")]
        if std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .is_ok_and(|opened| opened != real)
        {
            return true;
        }
        // A file that cannot be compared counts as a secret.
        let Ok(identity) = file.metadata() else { return true };
        let identity = (identity.dev(), identity.ino());
        let is_same = |path: &Path| {
            path == real || std::fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == identity)
        };
        let shares_key =
            |(path, guarded): &(PathBuf, String)| key.is_none_or(|key| key == guarded) && is_same(path);
        self.trees.iter().any(in_tree)
            || self.files.iter().any(|path| is_same(path))
            || self.keys.iter().any(shares_key)
    }
}
