//! `tributary probe` against the simulated provider: [`drawn`] compares its findings with the knobs, [`limits`] has what strict and lenient
//! providers do not show, [`access`] what is missing, [`transcript`] what it prints, saves and sends.

mod access;
mod drawn;
mod limits;
mod transcript;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};
use simulator::{Simulator, settings::Settings};

use crate::product::simulator::{KEY, start};
use crate::support::command::{stderr, stdout, tributary};
use crate::support::harness::Test;
use crate::support::{ALLOWED_HOSTS, run_directory};

pub(crate) fn tests() -> Vec<Test> {
    [access::tests(), drawn::tests(), limits::tests(), transcript::tests()].into_iter().flatten().collect()
}

/// The simulator's client secret.
const CLIENT_SECRET: &str = "simulated-secret";
/// Companies; also customers, accounts and payroll companies, but for [`MORE`].
const COMPANIES: u32 = 8;
/// Customers and accounts of a company, and payroll companies.
const MORE: u32 = 60;

/// A provider, the files of a connector for it and of a worker that does not run, and no Kafka.
struct ProbeScene {
    simulator: Simulator,
    directory: PathBuf,
}

impl ProbeScene {
    /// With more settings of the connector.
    async fn new(name: &str, settings: &[(&str, &str)], adjust: impl FnOnce(&mut Settings)) -> Self {
        let simulator = start(|settings| {
            settings.frozen_at = None;
            let world = &mut settings.world;
            (world.companies, world.payroll_companies) = (COMPANIES, MORE);
            (world.customers, world.accounts) = (MORE, MORE);
            adjust(settings);
        })
        .await;
        let directory = run_directory::create(name).unwrap();
        // Nothing listens there.
        let worker = format!(
            "bootstrap.servers=127.0.0.1:1\ngroup.id={name}\nlisteners=http://127.0.0.1:0\n\
             state.dir={}\nvalue.converter.schema.registry.url=http://127.0.0.1:1\n\
             provider.hosts.allowed={ALLOWED_HOSTS}\n",
            directory.join("state").display(),
        );
        let address = simulator.base_url().to_string();
        let mut config = json!({
            "connector.class": "RecordSource",
            "topic.prefix": "acme",
            "provider.base.url": address,
            "provider.auth.url": address,
            "provider.subscription.key": KEY,
            "oauth.client.id": "simulated-client",
            "oauth.client.secret": CLIENT_SECRET,
        });
        for (key, value) in settings {
            config[*key] = json!(value);
        }
        fs::write(directory.join("worker.properties"), worker).unwrap();
        fs::write(directory.join("records.json"), json!({ "name": "records", "config": config }).to_string())
            .unwrap();
        Self { simulator, directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Runs the command with these arguments, as fast as it may.
    async fn probe(&self, arguments: &[&str]) -> Output {
        let (connector, config) = (self.path("records.json"), self.path("worker.properties"));
        let always = ["probe", "--connector", &connector, "--config", &config];
        let rate = if arguments.contains(&"--rate") { &[][..] } else { &["--rate", "100"] };
        tributary(&[&always[..], rate, arguments].concat(), &[]).await
    }

    /// Exit code and report of a run that logs in for these areas.
    async fn report(&self, areas: &str, arguments: &[&str]) -> (Option<i32>, ShownReport) {
        let login = ["--login", areas, "--simulated", "--output", "json"];
        let output = self.probe(&[&login[..], arguments].concat()).await;
        let report = serde_json::from_str(&stdout(&output));
        let report = report.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        (output.status.code(), ShownReport(report))
    }
}

/// The report of a run.
struct ShownReport(Value);

impl ShownReport {
    /// Question, subject, and what was found or `not answered: ` and the reason.
    fn findings(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let one = |finding: &Value| {
            let found = match &finding["unanswered"] {
                Value::Null => text(&finding["found"]),
                reason => format!("not answered: {}", text(reason)),
            };
            (text(&finding["question"]), text(&finding["about"]), found)
        };
        self.0["findings"].as_array().unwrap().iter().map(one).collect()
    }

    /// What was found.
    fn found(&self, question: &str, about: &str) -> String {
        let found = self.findings().into_iter().find(|(asked, of, _)| asked == question && of == about);
        found.unwrap_or_else(|| panic!("no {question} of {about}: {:#}", self.0)).2
    }

    /// The proposed settings.
    fn settings(&self) -> &Value {
        &self.0["settings"]
    }

    /// Questions and subjects without an answer.
    fn unanswered(&self) -> Vec<(String, String)> {
        let open = self.findings().into_iter().filter(|(.., found)| found.starts_with("not answered: "));
        open.map(|(question, about, _)| (question, about)).collect()
    }
}
