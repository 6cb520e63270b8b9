//! Open files: as many as the public listeners need, as far as the system lets this process have them.
//!
//! Every connection is an open file, and so is all that Kafka, the spool and the REST API use. Without room for them a delivery
//! could be accepted and not be kept, so the listeners are what has to do with less.

use crate::config::worker::ReceiverSettings;

/// What all but the public listeners needs: the REST API's connections, those to brokers, the files of the spool.
const RESERVE: u64 = 1_536;

/// Raises the limit of open files where the public listeners need more. Where it cannot be raised far enough, they are left as
/// many connections as it allows, and a warning says so.
pub(super) fn ensure(webhook: &mut ReceiverSettings) {
    let listeners = webhook.listeners.len() as u64;
    if listeners == 0 {
        return;
    }
    let wanted = listeners.saturating_mul(webhook.connections as u64).saturating_add(RESERVE);
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

/// Connections that each listener may have with this many files: what the reserve leaves, or half if that is more.
fn allowed(files: u64, listeners: u64) -> u64 {
    let left = files.saturating_sub(RESERVE).max(files / 2);
    (left / listeners).max(1)
}

/// Makes the limit this high, or as high as it may be. What it is then.
#[cfg(target_os = "linux")]
fn raise(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return wanted };
    let most = limit.maximum.map_or(wanted, |most| most.min(wanted));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }) {
        Ok(()) => most,
        Err(error) => {
            tracing::warn!(%error, current, most, "the limit of open files cannot be raised");
            current
        }
    }
}

/// Other systems keep the limit that they have.
#[cfg(not(target_os = "linux"))]
const fn raise(wanted: u64) -> u64 {
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listeners_share_what_the_reserve_leaves_and_never_have_none() {
        for (files, listeners, expected) in
            [(4_096, 1, 2_560), (4_096, 2, 1_280), (1_024, 1, 512), (2, 4, 1), (0, 1, 1)]
        {
            assert_eq!(allowed(files, listeners), expected, "{files} files, {listeners} listeners");
        }
    }
}
