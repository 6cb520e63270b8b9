//! Opens an address in the browser, if there is one.

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::time::timeout;

use crate::cli::{Environment, poll_until};

/// How long to wait for an opener to fail. Some run as long as the browser.
const OPENER_TIMEOUT: Duration = Duration::from_secs(3);

const OPENER_POLL: Duration = Duration::from_millis(50);

/// Hands an address to the system's opener. Returns whether a browser probably shows it; print the address as well.
pub(super) async fn open(address: &str, environment: &Environment) -> bool {
    let Some(mut command) = opener(environment) else { return false };
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut opener) = command.spawn() else { return false };
    match timeout(OPENER_TIMEOUT, poll_until(OPENER_POLL, async || opener.try_wait().transpose())).await {
        Ok(ended) => ended.is_ok_and(|status| status.success()),
        // The opener still runs, and continues without this process.
        Err(_) => true,
    }
}

/// The system's opener; `None` without a display.
fn opener(environment: &Environment) -> Option<Command> {
    let is_set = |name: &str| {
        environment.iter().any(|(known, value)| known.as_os_str() == OsStr::new(name) && !value.is_empty())
    };
    if cfg!(target_os = "macos") {
        return Some(Command::new("open"));
    }
    // Without a display xdg-open would start a text browser in this terminal.
    ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().any(is_set).then(|| {
        let mut command = Command::new("xdg-open");
        command.env_clear().envs(environment.iter().cloned());
        command
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn without_a_display_nothing_is_opened() {
        let environment = vec![("PATH".into(), "/usr/bin".into()), ("DISPLAY".into(), "".into())];

        assert!(!open("http://localhost/", &environment).await);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_missing_opener_is_no_error() {
        let environment = vec![("PATH".into(), "/nowhere".into()), ("DISPLAY".into(), ":9".into())];

        assert!(!open("http://localhost/", &environment).await);
    }
}
