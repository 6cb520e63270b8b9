//! `tributary auth login`, and the person in front of it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use url::Url;

use super::process::Process;
use super::{Error, Result};

const LIMIT: Duration = Duration::from_secs(60);

/// A running `tributary auth login … --no-browser`, killed when dropped.
pub(crate) struct Login {
    pub(crate) process: Process,
}

impl Login {
    /// Starts one for a connector, given by its file or its name.
    pub(crate) fn begin(connector: &Path, config: &Path, log: &Path, arguments: &[&str]) -> Result<Self> {
        Self::begin_for("accounting", connector, config, log, arguments)
    }

    /// As [`Login::begin`], for another API than accounting.
    pub(crate) fn begin_for(
        area: &str,
        connector: &Path,
        config: &Path,
        log: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.env_clear().env("RUST_LOG", "trace");
        command.args(["auth", "login", area, "--no-browser", "--connector"]).arg(connector);
        command.arg("--config").arg(config).args(arguments);
        fs::remove_file(log).ok();
        Ok(Self { process: Process::spawn_listening("auth login", command, log)? })
    }

    /// The address that it prints for the person.
    pub(crate) async fn address(&self) -> Result<Url> {
        let mut address = None;
        self.process
            .ready(LIMIT, async || {
                let said = self.process.said();
                address = said
                    .lines()
                    .find(|line| line.starts_with("  http"))
                    .and_then(|line| Url::parse(line.trim()).ok());
                address.is_some() && (said.contains("come back to") || said.contains("Paste"))
            })
            .await?;
        Ok(address.unwrap())
    }

    pub(crate) async fn code(&self) -> Result<Option<i32>> {
        Ok(self.process.wait(LIMIT).await?.code())
    }

    pub(crate) fn said(&self) -> String {
        self.process.said()
    }

    /// Plays the person until the command succeeds; the address that the browser was redirected to.
    pub(crate) async fn finish(&self, http: &reqwest::Client) -> Result<Url> {
        let callback = enter(http, &self.address().await?).await;
        http.get(callback.clone()).send().await.map_err(|error| Error(format!("come back: {error}")))?;
        match self.code().await? {
            Some(0) => Ok(callback),
            code => Err(self.process.error(&format!("auth login ended with {code:?}"))),
        }
    }
}

/// A browser that follows no redirects.
pub(crate) fn http() -> reqwest::Client {
    let browser = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    browser.timeout(LIMIT).build().unwrap()
}

/// Presses the simulated provider's button; the address that the browser is redirected to.
pub(crate) async fn enter(http: &reqwest::Client, address: &Url) -> Url {
    let mut address = address.clone();
    address.query_pairs_mut().append_pair("auto", "1");
    let answer = http.get(address).send().await.unwrap();
    assert_eq!(answer.status(), 302);
    Url::parse(answer.headers()["location"].to_str().unwrap()).unwrap()
}

/// A parameter of an address.
pub(crate) fn parameter(address: &Url, name: &str) -> String {
    address.query_pairs().find(|(known, _)| known == name).unwrap().1.into_owned()
}
