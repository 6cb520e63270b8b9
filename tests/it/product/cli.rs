//! The binary: exit codes, reports of all problems, and `check` on a real cluster.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::command::{stderr, stdout, tributary};
use crate::support::{self, Shared, run_directory, tributary::Tributary};

crate::tests! {
    plain the_reference_is_the_file_in_the_repository;
    plain all_configuration_problems_are_reported_with_exit_code_2;
    plain problems_of_all_parts_are_reported_together;
    plain a_variable_that_is_not_utf8_is_refused_by_name;
    plain schemas_without_a_connector_are_a_problem;
    plain a_wrong_command_line_ends_with_exit_code_2;
    plain a_missing_broker_fails_the_check_with_exit_code_1 within 90;
    real a_check_of_a_fresh_cluster_creates_nothing;
    real a_secret_is_in_no_output_of_any_command;
    real a_check_fails_for_missing_topics_and_a_bad_certificate;
    real a_check_reports_the_owner_of_the_topics within 120;
}

const SECRET: &str = "a-secret-of-more-than-32-characters!";

/// A worker's properties and a connector of each class, for a cluster at these addresses.
struct Files {
    directory: PathBuf,
    worker: String,
}

impl Files {
    fn write(name: &str, bootstrap: &str, registry: &str) -> Self {
        let directory = run_directory::create(name).unwrap();
        let connectors = directory.join("connectors");
        fs::create_dir_all(&connectors).unwrap();
        let prefix = support::prefix(name);
        let shared = format!(
            r#""topic.prefix":"{prefix}","topic.creation.default.partitions":3,
               "topic.creation.default.replication.factor":1,
               "provider.base.url":"https://api.example.com","provider.auth.url":"https://login.example.com",
               "provider.subscription.key":"${{env:PROVIDER_KEY}}","oauth.client.id":"client",
               "oauth.client.secret":"${{env:OAUTH_SECRET}}""#
        );
        fs::write(
            connectors.join("records.json"),
            format!(
                r#"{{"name":"records","config":{{"connector.class":"RecordSource",
                    "enrich.resources":"customers","snapshot.lists":"payroll",{shared}}}}}"#
            ),
        )
        .unwrap();
        fs::write(
            connectors.join("webhooks.json"),
            format!(
                r#"{{"name":"webhooks","config":{{"connector.class":"WebhookSource",
                    "accounting.resources":"customers","accounting.secret":"${{env:WEBHOOK_SECRET}}",{shared}}}}}"#
            ),
        )
        .unwrap();
        let worker = directory.join("worker.properties");
        fs::write(
            &worker,
            format!(
                "bootstrap.servers={bootstrap}\nvalue.converter.schema.registry.url={registry}\n\
                 state.dir={}\nconnectors.dir={}\ngrant.encryption.key=${{env:GRANT_KEY}}\n\
                 config.providers=env\n\
                 config.providers.env.param.allowlist.pattern=PROVIDER_KEY|OAUTH_SECRET|WEBHOOK_SECRET\n",
                directory.join("state").display(),
                connectors.display()
            ),
        )
        .unwrap();
        Self { worker: worker.display().to_string(), directory }
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let environment = [
            ("PROVIDER_KEY", SECRET),
            ("OAUTH_SECRET", SECRET),
            ("WEBHOOK_SECRET", SECRET),
            ("GRANT_KEY", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"),
            ("RUST_LOG", "debug"),
        ];
        tributary(&[arguments, &["--config", &self.worker]].concat(), &environment).await
    }
}

async fn the_reference_is_the_file_in_the_repository() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/REFERENCE.md");

    let output = tributary(&["config", "reference"], &[]).await;

    assert!(output.status.success());
    let stale = "config/REFERENCE.md is stale: tributary config reference > config/REFERENCE.md";
    assert!(stdout(&output) == fs::read_to_string(file).unwrap(), "{stale}");
}

async fn all_configuration_problems_are_reported_with_exit_code_2() {
    let directory = run_directory::create("cli-problems").unwrap();
    let state = directory.join("state");
    let worker = directory.join("worker.properties");
    fs::write(
        &worker,
        format!(
            "bootstrap.servres=localhost:1\nsession.timeout.ms=soon\nstate.dir={}\nsasl.password=${{env:NOT_SET}}\n\
             webhook.listenrs=http://127.0.0.1:1\nbroken=\\u12\nconnectors.dir={}/absent\n",
            state.display(),
            directory.display()
        ),
    )
    .unwrap();

    let output = tributary(&["check", "--config", &worker.display().to_string()], &[]).await;

    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for expected in
        ["bootstrap.servers", "session.timeout.ms: must be", "NOT_SET", "webhook.listeners", "\\u"]
    {
        assert!(errors.contains(expected), "{expected} is not in:\n{errors}");
    }
    assert!(stdout(&output).is_empty(), "{}", stdout(&output));
    assert!(!state.exists(), "something was started");
}

async fn problems_of_all_parts_are_reported_together() {
    let directory = run_directory::create("cli-together").unwrap();
    let (worker, inside, given) =
        (directory.join("worker.properties"), directory.join("inside.json"), directory.join("given.json"));
    let lines = format!(
        "session.timeout.ms=soon\nproducer.linger.ms=abc\nproducer.lingr=1\nproducer.acks=1\nconnectors.dir={}\n",
        directory.display()
    );
    fs::write(&worker, lines).unwrap();
    fs::write(&inside, r#"{"name": "inside", "config": {"connector.class": "Nothing"}}"#).unwrap();
    fs::write(&given, r#"{"name": "given", "config": {}}"#).unwrap();
    let [worker, given] = [worker, given].map(|path| path.display().to_string());

    let arguments = ["check", "--config", &worker, "--connector", &given];
    let output = tributary(&arguments, &[("RUST_LOG", "tributary=loud")]).await;

    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for expected in [
        "session.timeout.ms: must be",
        "\nproducer.linger.ms: ",
        "\nproducer.lingr: ",
        "\nproducer.acks: ",
        "inside.json: connector.class: Failed to find",
        "given.json: connector.class: is required",
        "RUST_LOG = tributary=loud",
    ] {
        assert!(errors.contains(expected), "{expected} is not in:\n{errors}");
    }
}

async fn a_variable_that_is_not_utf8_is_refused_by_name() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    let latin = OsStr::from_bytes(b"hunter2\xe9");
    command.arg("check").env_clear().env("CONNECT_GROUP_ID", latin).env("FOREIGN", latin).env(latin, latin);

    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();

    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("CONNECT_GROUP_ID: must be UTF-8 text"), "{errors}");
    assert!(!errors.contains("hunter2") && !errors.contains("FOREIGN"), "{errors}");
}

async fn schemas_without_a_connector_are_a_problem() {
    let registry = ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9");

    let output = tributary(&["schemas", "check"], &[registry, ("CONNECT_GROUP_ID", "")]).await;

    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--connector") && errors.contains("connectors.dir"), "{errors}");
    assert!(errors.contains("WARN") && errors.contains("CONNECT_GROUP_ID"), "{errors}");
}

async fn a_wrong_command_line_ends_with_exit_code_2() {
    for arguments in [&["chek"][..], &[], &["check", "--config", "/no/such/file"]] {
        let output = tributary(arguments, &[]).await;

        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(tributary(&["--help"], &[]).await.status.code(), Some(0));
}

async fn a_missing_broker_fails_the_check_with_exit_code_1() {
    let files = Files::write("cli-away", "127.0.0.1:9", "http://127.0.0.1:9");

    let output = files.run(&["check"]).await;

    let report = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{report}{}", stderr(&output));
    assert!(report.contains("FAILED   Kafka: ") && report.contains("correct bootstrap.servers"), "{report}");
    assert!(report.contains("FAILED   schema registry: "), "{report}");
    assert!(report.contains("ok       state directory: "), "{report}");
    assert!(!files.directory.join("state").exists(), "the check left the state directory behind");
}

async fn a_check_of_a_fresh_cluster_creates_nothing(shared: &'static Shared) {
    let files = Files::write("cli-check", shared.bootstrap(), shared.registry());

    let first = files.run(&["check"]).await;
    let second = files.run(&["check"]).await;

    for output in [first, second] {
        let report = stdout(&output);
        assert!(output.status.success(), "{report}{}", stderr(&output));
        assert!(report.contains("topics of the worker: 0 exist and fit, 5 would be created: "), "{report}");
        assert!(report.contains("owner of the topics: not written yet"), "{report}");
        // Events and records of customers, payroll, certificates, state, fences, dead letters.
        assert!(report.contains("topics of records: 0 exist and fit, 7 would be created"), "{report}");
        assert!(report.contains("topics of webhooks: 0 exist and fit, 3 would be created"), "{report}");
        assert!(report.contains("schemas of records: 4 subjects fit"), "{report}");
    }
}

async fn a_check_fails_for_missing_topics_and_a_bad_certificate(shared: &'static Shared) {
    let files = Files::write("cli-missing", shared.bootstrap(), shared.registry());
    let lines = fs::read_to_string(&files.worker).unwrap();
    let garbage = files.directory.join("garbage.pem");
    fs::write(&garbage, "no certificate\n").unwrap();
    let garbage = garbage.display();
    let certificate = format!(
        "listeners=https://127.0.0.1:0\nlisteners.https.ssl.certificate.location={garbage}\n\
         listeners.https.ssl.key.location={garbage}\n"
    );
    fs::write(&files.worker, format!("{lines}topic.creation.enable=false\n{certificate}")).unwrap();

    let output = files.run(&["check"]).await;

    let report = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.contains("FAILED   topics of records: missing"), "{report}");
    assert!(
        report.contains("FAILED   certificate of the admin listeners: set up TLS"),
        "a start would fail with this: {report}"
    );
    assert!(report.contains(".accounting.customers.events") && report.contains("create them"), "{report}");
}

async fn a_check_reports_the_owner_of_the_topics(shared: &'static Shared) {
    let registry = ("value.converter.schema.registry.url", shared.registry());
    let worker = Tributary::start(shared.bootstrap(), "cli-owner", &[registry]).await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let created = client
        .put(format!("{}/connectors/counts/config", worker.url()))
        .json(&serde_json::json!({ "connector.class": "TestSource", "topic": support::prefix("cli-owner") }))
        .send()
        .await
        .unwrap();
    assert_eq!(created.status(), 201);
    let config = worker.config().to_str().unwrap();

    let own = tributary(&["check", "--config", config], &[("TRIBUTARY_TEST_PLUGINS", "true")]).await;
    let lacking = tributary(&["check", "--config", config], &[]).await;
    let renamed = worker.config().with_file_name("renamed.properties");
    let other = fs::read_to_string(config).unwrap().replace("group.id=", "group.id=other-");
    fs::write(&renamed, other).unwrap();
    let foreign = tributary(&["check", "--config", renamed.to_str().unwrap()], &[]).await;
    let spoilt = worker.config().with_file_name("spoilt.properties");
    let lines = fs::read_to_string(config).unwrap();
    // The status topic has two partitions.
    let two = lines.replace("-status\n", "-new\n").replace("-config\n", "-status\n");
    fs::write(&spoilt, two).unwrap();
    let wrong = tributary(&["check", "--config", spoilt.to_str().unwrap()], &[]).await;

    let report = stdout(&own);
    assert!(own.status.success(), "{report}{}", stderr(&own));
    assert!(report.contains("topics of the worker: all five exist and fit"), "{report}");
    assert!(report.contains("ok       owner of the topics: "), "{report}");
    let report = stdout(&lacking);
    assert!(lacking.status.success(), "a missing class is only a warning: {report}");
    assert!(
        report.contains("warning  owner of the topics: ") && report.contains("counts: TestSource"),
        "{report}"
    );
    let report = stdout(&foreign);
    assert_eq!(foreign.status.code(), Some(1), "{report}");
    assert!(report.contains("FAILED   owner of the topics: ") && report.contains("--adopt"), "{report}");
    let report = stdout(&wrong);
    assert_eq!(wrong.status.code(), Some(1), "{report}");
    assert!(report.contains("FAILED   topics of the worker: ") && report.contains("1 partition"), "{report}");
}

async fn a_secret_is_in_no_output_of_any_command(shared: &'static Shared) {
    let files = Files::write("cli-secret", shared.bootstrap(), shared.registry());

    for arguments in [&["check"][..], &["schemas", "check"], &["schemas", "register"]] {
        let output = files.run(arguments).await;

        let said = stdout(&output) + &stderr(&output);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(
            !said.contains(SECRET) && !said.contains("00112233"),
            "{arguments:?} shows a secret:\n{said}"
        );
    }
    assert!(files.directory.join("connectors/webhooks.json").exists());
}
