//! The limit of open files, raised as far as the public listeners need and the system allows.
//!
//! Every connection is an open file, and Kafka, the spool and the REST API need open files too. Without them an accepted delivery could
//! not be stored, so the listeners get fewer connections instead.

use crate::config::worker::ReceiverSettings;

/// Open files of everything but the public listeners: REST connections, broker connections, files of the spool.
const RESERVED_FILES: u64 = 1_536;

/// Raises the limit of open files if the public listeners need it. If it cannot be raised far enough, limits their connections and
/// logs a warning.
pub(super) fn ensure(webhook: &mut ReceiverSettings) {
    let listeners = webhook.listeners.len() as u64;
    if listeners == 0 {
        return;
    }
    let wanted = listeners.saturating_mul(webhook.connections as u64).saturating_add(RESERVED_FILES);
    let files = raise(wanted);
    if files < wanted {
        let allowed = allowed(files, listeners);
        tracing::warn!(
            files,
            wanted,
            allowed,
            "webhook.connections.max is {}, and the process may open {files} files: {allowed} connections are served at a \
             time; raise the limit (ulimit -n, LimitNOFILE) to {wanted}, or set webhook.connections.max to {allowed}",
            webhook.connections,
        );
        webhook.connections = usize::try_from(allowed).unwrap_or(usize::MAX);
    }
}

/// Connections per listener with this many files: the files without the reserve, or half of them if that is more.
fn allowed(files: u64, listeners: u64) -> u64 {
    let left = files.saturating_sub(RESERVED_FILES).max(files / 2);
    (left / listeners).max(1)
}

/// Raises the limit to `wanted`, or as far as the system allows, and returns it.
#[cfg(target_os = "linux")]
fn raise(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return wanted };
    let most = limit.maximum.map_or(wanted, |most| most.min(wanted));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }) {
        Ok(()) => most,
        Err(error) => {
            tracing::warn!(%error, current, most, "cannot raise the limit of open files");
            current
        }
    }
}

/// Other systems keep their limit.
#[cfg(not(target_os = "linux"))]
const fn raise(wanted: u64) -> u64 {
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_the_files_without_the_reserve() {
        for (files, listeners, expected) in
            [(4_096, 1, 2_560), (4_096, 2, 1_280), (1_024, 1, 512), (2, 4, 1), (0, 1, 1)]
        {
            assert_eq!(allowed(files, listeners), expected, "{files} files, {listeners} listeners");
        }
    }
}
