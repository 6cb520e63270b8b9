//! A real Kafka Connect worker, to compare with: distributed mode, one worker, its own topics.
//!
//! Its jars come apart from Kafka's and only when a test asks for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::jars;
use super::process::Process;
use super::{Error, Result, ports, prefix, run_directory};

/// It answers from its listener long before it has read its topics and is ready.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How a worker differs from a plain one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// The user and the password without which requests are refused.
    pub(crate) user: Option<(String, String)>,
    /// Whether `${file:path:key}` is resolved.
    pub(crate) file_provider: bool,
}

/// One worker.
pub(crate) struct Connect {
    port: u16,
    process: Process,
}

impl Connect {
    /// A worker on the Kafka at `bootstrap` that says it is healthy.
    pub(crate) async fn start(bootstrap: &str, options: Options) -> Result<Self> {
        ports::retry("Failed to bind", async || Self::try_start(bootstrap, &options).await).await
    }

    /// Where its REST API is.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `text` with the end of the worker's log below it.
    pub(crate) fn error(&self, text: &str) -> Error {
        self.process.error(text)
    }

    async fn try_start(bootstrap: &str, options: &Options) -> Result<Self> {
        let directory = run_directory::create("connect")?;
        let [port] = ports::free::<1>()?;
        let file = directory.join("connect.properties");
        write(&file, &properties(bootstrap, port, options))?;
        let mut command = jars::connect().await?;
        if let Some((user, password)) = &options.user {
            let login = login_file(&directory, user, password)?;
            command.arg(format!("-Djava.security.auth.login.config={}", login.display()));
        }
        command.arg("org.apache.kafka.connect.cli.ConnectDistributed").arg(&file);
        let process = Process::spawn("connect", command, &directory.join("connect.log"))?;
        let connect = Self { port, process };
        connect.ready(options).await?;
        Ok(connect)
    }

    async fn ready(&self, options: &Options) -> Result<()> {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build();
        let client = client.map_err(|error| Error(format!("build a client for Connect: {error}")))?;
        let url = format!("{}/health", self.url());
        let healthy = async || {
            let mut request = client.get(&url);
            if let Some((user, password)) = &options.user {
                request = request.basic_auth(user, Some(password));
            }
            request.send().await.is_ok_and(|response| response.status().is_success())
        };
        self.process.ready(START_LIMIT, healthy).await
    }
}

fn properties(bootstrap: &str, port: u16, options: &Options) -> String {
    let group = prefix("connect");
    // Offsets are flushed every second, not every minute: a test sees them.
    let mut text = format!(
        "bootstrap.servers={bootstrap}\n\
         group.id={group}\n\
         config.storage.topic={group}-configs\n\
         offset.storage.topic={group}-offsets\n\
         status.storage.topic={group}-status\n\
         config.storage.replication.factor=1\n\
         offset.storage.replication.factor=1\n\
         status.storage.replication.factor=1\n\
         offset.storage.partitions=3\n\
         status.storage.partitions=3\n\
         key.converter=org.apache.kafka.connect.json.JsonConverter\n\
         value.converter=org.apache.kafka.connect.json.JsonConverter\n\
         offset.flush.interval.ms=1000\n\
         plugin.discovery=service_load\n\
         listeners=http://127.0.0.1:{port}\n"
    );
    if options.user.is_some() {
        text += "rest.extension.classes=\
                 org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension\n";
    }
    if options.file_provider {
        text += "config.providers=file\n\
                 config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n";
    }
    text
}

/// Java's login configuration, and beside it the file with the password.
fn login_file(directory: &Path, user: &str, password: &str) -> Result<PathBuf> {
    let (login, passwords) = (directory.join("login.conf"), directory.join("passwords.properties"));
    // Java reads such files as Latin-1; an escape is an escape in any character set.
    let password: String = password.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    write(&passwords, &format!("{user}={password}\n"))?;
    let module = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule";
    write(&login, &format!("KafkaConnect {{ {module} required file=\"{}\"; }};\n", passwords.display()))?;
    Ok(login)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|error| Error(format!("write {}: {error}", file.display())))
}
