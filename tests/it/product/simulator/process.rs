//! `tributary simulate` as a process: output, service, shutdown.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Command, ExitStatus},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{process::Process, run_directory};

crate::tests! {
    plain the_command_prints_its_addresses_and_stops_on_a_signal;
    plain the_command_serves_https_with_the_certificate_it_prints;
    plain a_frozen_clock_and_a_seed_give_the_same_world_twice;
    plain a_port_that_is_taken_ends_the_command_with_exit_code_1;
    plain wrong_knobs_end_the_command_with_exit_code_2;
    plain wrong_options_end_the_command_with_exit_code_2;
}

const PATIENCE: Duration = Duration::from_secs(30);

struct Simulate {
    process: Process,
    directory: PathBuf,
}

impl Simulate {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let directory = run_directory::create(name).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command
            .arg("simulate")
            .args(["--companies", "2", "--payroll-companies", "3"])
            .args(arguments)
            .env_clear();
        let process = Process::spawn(name, command, &directory.join("log")).unwrap();
        Self { process, directory }
    }

    /// Waits until it has printed everything and returns that.
    async fn printed(&self) -> String {
        self.process.ready(PATIENCE, async || self.process.said().contains("/_control\n")).await.unwrap();
        self.process.said()
    }

    async fn ended(self) -> (ExitStatus, String) {
        let status = self.process.wait(PATIENCE).await.unwrap();
        (status, self.process.said())
    }
}

/// The value printed after a name.
fn value<'a>(printed: &'a str, name: &str) -> &'a str {
    let line = printed.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in\n{printed}")).trim()
}

async fn the_command_prints_its_addresses_and_stops_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let simulate =
            Simulate::start("simulate", &["--port", "0", "--changes-per-second", "0", "--seed", "9"]);
        let printed = simulate.printed().await;
        let (base, auth) = (value(&printed, "provider.base.url"), value(&printed, "provider.auth.url"));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let get = async |url: String| http.get(url).send().await.unwrap().text().await.unwrap();

        let summary: Value =
            serde_json::from_str(&get(value(&printed, "knobs and truth").to_owned()).await).unwrap();
        assert_eq!((&summary["seed"], &summary["changes"]), (&9.into(), &0.into()));
        let companies = get(format!("{base}/_control/truth/records/companies")).await;
        assert_eq!(companies.lines().count(), 2);
        let discovery = get(format!("{auth}/auth/core/.well-known/openid-configuration")).await;
        assert!(discovery.contains("jwks_uri"), "{discovery}");
        // The printed client and key are valid.
        let form = format!(
            "grant_type=refresh_token&refresh_token=x&client_id={}&client_secret={}",
            value(&printed, "oauth.client.id"),
            value(&printed, "oauth.client.secret"),
        );
        let request = http.post(format!("{auth}/auth/core/connect/token")).body(form);
        let answer =
            request.header("content-type", "application/x-www-form-urlencoded").send().await.unwrap();
        assert!(answer.text().await.unwrap().contains("invalid_grant"));
        let request = http.get(format!("{base}/accounting/api/companies"));
        let key = value(&printed, "provider.subscription.key");
        let answer = request.header("ocp-apim-subscription-key", key).send().await.unwrap();
        assert!(!answer.text().await.unwrap().contains("subscription key"));

        simulate.process.signal(signal).unwrap();

        let (status, said) = simulate.ended().await;
        assert_eq!(status.code(), Some(0), "{signal:?}: {said}");
    }
}

async fn the_command_serves_https_with_the_certificate_it_prints() {
    let simulate = Simulate::start("simulate-tls", &["--port", "0", "--tls"]);
    let printed = simulate.printed().await;
    let from = printed.find("-----BEGIN CERTIFICATE-----").unwrap();
    let certificate = reqwest::Certificate::from_pem(&printed.as_bytes()[from..]).unwrap();
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([certificate]).build().unwrap();

    for name in ["provider.base.url", "provider.auth.url"] {
        let address = value(&printed, name);
        assert!(address.starts_with("https://"), "{address}");
        let answer = http.get(format!("{address}/_control")).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, reqwest::Version::HTTP_2));
    }
}

async fn a_frozen_clock_and_a_seed_give_the_same_world_twice() {
    let arguments =
        ["--port", "0", "--seed", "9", "--changes-per-second", "0", "--frozen-at", "2026-11-15T09:00:00.5Z"];
    let mut worlds = Vec::new();
    for name in ["simulate-once", "simulate-twice"] {
        let simulate = Simulate::start(name, &arguments);
        let printed = simulate.printed().await;
        let control = value(&printed, "knobs and truth");
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let step = http.post(format!("{control}/step")).body(r#"{"changes":50}"#).send().await.unwrap();
        assert_eq!(step.status().as_u16(), 200);
        let get = async |path: &str| {
            http.get(format!("{control}{path}")).send().await.unwrap().text().await.unwrap()
        };
        assert_eq!(get("/clock").await, r#"{"now":"2026-11-15T09:00:00.5000000Z"}"#);
        worlds.push([get("/truth/records/customers").await, get("/truth/records/accounts").await]);
    }

    assert!(worlds[0][0].contains("2026-11-15T09:00:00.5"), "no change is dated by the clock");
    assert_eq!(worlds[0], worlds[1]);
}

async fn a_port_that_is_taken_ends_the_command_with_exit_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();

    let (status, said) = Simulate::start("simulate-busy", &["--port", &port]).ended().await;

    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("127.0.0.1:{port}")), "{said}");
}

async fn wrong_knobs_end_the_command_with_exit_code_2() {
    let directory = run_directory::create("simulate-knobs").unwrap();
    let file = directory.join("knobs.json");
    let path = file.display().to_string();

    for (knobs, named) in [
        (r#"{"reads":{"maxPageSice":7}}"#, "maxPageSice"),
        (r#"{"reads":{"order":"sideways"}}"#, "sideways"),
        (r#"{"gateway":{"rate":{"requests":"many","seconds":1}}}"#, "many"),
        ("{", "--knobs"),
    ] {
        fs::write(&file, knobs).unwrap();
        let (status, said) =
            Simulate::start("simulate-wrong", &["--port", "0", "--knobs", &path]).ended().await;

        assert_eq!(status.code(), Some(2), "{knobs}: {said}");
        assert!(said.contains(named) && said.contains("--knobs") && said.contains(&path), "{knobs}: {said}");
    }
    fs::write(&file, r#"{"reads":{"maxPageSize":7}}"#).unwrap();
    let simulate = Simulate::start("simulate-right", &["--port", "0", "--knobs", &path]);
    let printed = simulate.printed().await;
    let knobs = format!("{}/_control/knobs", value(&printed, "provider.base.url"));
    let knobs = reqwest::Client::builder().no_proxy().build().unwrap().get(knobs).send().await.unwrap();
    let knobs: Value = serde_json::from_str(&knobs.text().await.unwrap()).unwrap();
    assert_eq!((&knobs["reads"]["maxPageSize"], &knobs["changesPerSecond"]), (&7.into(), &1.0.into()));
    assert!(simulate.directory.exists());
}

async fn wrong_options_end_the_command_with_exit_code_2() {
    for arguments in [
        &["--port", "99999"][..],
        &["--companies", "1000001"],
        &["--certificate", "chain.pem"],
        &["--knobs", "no-such-file.json"],
        &["--changes-per-second", "many"],
        &["--changes-per-second", "inf"],
        &["--changes-per-second", "NaN"],
        &["--changes-per-second=-3"],
        &["--customers", "4294967295"],
        &["--payroll-companies", "4294967295"],
        &["--frozen-at", "noon"],
        &["--frozen-at", "2026-11-15"],
        &["--unknown"],
    ] {
        let (status, said) = Simulate::start("simulate-options", arguments).ended().await;

        assert_eq!(status.code(), Some(2), "{arguments:?}: {said}");
    }
}
