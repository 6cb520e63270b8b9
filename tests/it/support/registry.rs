//! A real schema registry that a test may break: Apicurio, in memory, with the Confluent-compatible API.
//!
//! A kill, a stop or a restart loses all schemas; ids start at 1 again.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::jars::{self, Jars};
use super::process::Process;
use super::{Result, broker, ports, run_directory};

/// Where Apicurio serves what a Confluent registry serves under `/`.
const BASE_PATH: &str = "/apis/ccompat/v7";
const START_LIMIT: Duration = Duration::from_secs(180);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// One registry.
pub(crate) struct Registry {
    jars: &'static Jars,
    directory: PathBuf,
    port: u16,
    process: Process,
}

impl Registry {
    /// A registry that answers.
    pub(crate) async fn start() -> Result<Self> {
        let jars = jars::get()?;
        ports::retry("already in use", async || {
            let directory = run_directory::create("registry")?;
            let [port] = ports::free::<1>()?;
            let process = spawn(jars, port, &directory)?;
            let registry = Self { jars, directory, port, process };
            registry.ready().await.map(|()| registry)
        })
        .await
    }

    /// What a client takes as `schema.registry.url`.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}{BASE_PATH}", self.port)
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// SIGCONT, after [`Registry::pause`].
    pub(crate) fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// SIGTERM, and wait for an orderly end; also for a paused registry.
    pub(crate) async fn stop(&self) -> Result<()> {
        broker::stop(&self.process).await
    }

    /// Ends what still runs and starts an empty registry on the same port.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = spawn(self.jars, self.port, &self.directory)?;
        self.ready().await
    }

    /// Whether it answers within two seconds.
    pub(crate) async fn answers(&self) -> bool {
        answers(self.port).await
    }

    async fn ready(&self) -> Result<()> {
        self.process.ready(START_LIMIT, async || answers(self.port).await).await
    }
}

fn spawn(jars: &Jars, port: u16, directory: &std::path::Path) -> Result<Process> {
    Process::spawn("registry", jars.registry(port), &directory.join("registry.log"))
}

/// Writes the request by hand: an HTTP client would add its retries and its connection pool.
async fn answers(port: u16) -> bool {
    let asked = tokio::time::timeout(ANSWER_LIMIT, async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request =
            format!("GET {BASE_PATH}/subjects HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        Ok::<_, std::io::Error>(head)
    });
    asked.await.is_ok_and(|answer| answer.is_ok_and(|head| head == *b"HTTP/1.1 200"))
}
