//! Workers that receive over TLS, and the simulated provider that finds them under one name.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::Value;
use simulator::{Simulator, settings::Settings};
use tokio::time::sleep;
use url::Url;

use super::login::{Login, http};
use super::tributary::Tributary;
use super::{Error, Result, Shared, lost, prefix, run_directory};

/// Nothing waits this long when all is well; time that the machine lost does not count.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
/// Between two checks of a condition that gives no signal.
pub(crate) const STEP: Duration = Duration::from_millis(50);
/// The receivers' host name, which resolves to one of them.
pub(crate) const HOST: &str = "hooks.example.com";
const ENCRYPTION_KEY: &str = "the key of the grants here, long enough";

/// The Kafka and the registry of a [`Stage`].
#[derive(Debug, Clone)]
pub(crate) struct Backend {
    pub(crate) bootstrap: String,
    pub(crate) registry: String,
}

impl From<&Shared> for Backend {
    fn from(shared: &Shared) -> Self {
        Self { bootstrap: shared.bootstrap().to_owned(), registry: shared.registry().to_owned() }
    }
}

/// A provider whose clock runs, and workers of one group.
pub(crate) struct Stage {
    pub(crate) simulator: Simulator,
    pub(crate) workers: Vec<Tributary>,
    /// The group, and the beginning of its topics' names.
    pub(crate) group: String,
    pub(crate) http: reqwest::Client,
}

impl Stage {
    /// `count` healthy workers that receive, with `properties` over those they need. The provider, which was started with
    /// [`delivering`], delivers to the first.
    pub(crate) async fn start(
        backend: &Backend,
        name: &str,
        count: usize,
        properties: &[(&str, &str)],
        simulator: Simulator,
    ) -> Result<Self> {
        let group = prefix(name);
        let directory = run_directory::create(name)?;
        let (certificate, key) = certificate(&directory)?;
        let advertised = format!("https://{HOST}");
        let needed = [
            ("grant.encryption.key", ENCRYPTION_KEY),
            ("value.converter.schema.registry.url", &*backend.registry),
            ("webhook.listeners", "https://127.0.0.1:0"),
            ("webhook.ssl.certificate.location", &*certificate),
            ("webhook.ssl.key.location", &*key),
            ("webhook.advertised.url", &*advertised),
        ];
        let properties = [&needed[..], properties].concat();
        let workers = (0..count).map(|_| Tributary::start_in(&group, &backend.bootstrap, name, &properties));
        let workers = try_join_all(workers).await?;
        let stage = Self { simulator, workers, group, http: http() };
        stage.reach(0)?;
        Ok(stage)
    }

    /// Has the provider deliver to this worker from now on.
    pub(crate) fn reach(&self, worker: usize) -> Result<()> {
        let said = self.workers[worker].said();
        let address = said.lines().find_map(|line| line.split_once(" receives deliveries on "));
        let address = address.and_then(|(_, address)| address.trim().parse::<SocketAddr>().ok());
        let address = address.ok_or_else(|| self.workers[worker].error("it receives nowhere"))?;
        self.resolve(address);
        Ok(())
    }

    /// Has both host names of the receivers resolve to this address.
    pub(crate) fn resolve(&self, address: SocketAddr) {
        self.simulator.provider().turn(|knobs| {
            let names = [HOST.to_owned(), format!("other.{HOST}")];
            knobs.delivery.resolve.extend(names.map(|name| (name, address)));
        });
    }

    /// Logs in for a connector that exists; the address that the provider redirected the browser to.
    pub(crate) async fn login(&self, connector: &str) -> Result<Url> {
        self.login_for("accounting", connector).await
    }

    /// The same for another area.
    pub(crate) async fn login_for(&self, area: &str, connector: &str) -> Result<Url> {
        let log = run_directory::create("login")?.join("log");
        let login = Login::begin_for(area, Path::new(connector), self.workers[0].config(), &log, &[])?;
        login.finish(&self.http).await
    }

    /// Configures a connector, and retries until a worker accepts it. An attempt whose answer was late may have made the change,
    /// which the next attempt finds: 409.
    pub(crate) async fn configure(&self, connector: &str, config: &Value) -> Result<()> {
        let (path, began) = (format!("/connectors/{connector}/config"), Instant::now());
        loop {
            match self.ask(0, "PUT", &path, Some(config)).await {
                Ok((200 | 201, _)) => return Ok(()),
                Ok((409 | 503, _)) | Err(_) if lost::fair(began) < LIMIT => sleep(STEP).await,
                other => return Err(Error(format!("configure {connector}: {other:?}"))),
            }
        }
    }

    /// Sends a request to a worker's REST API.
    pub(crate) async fn ask(
        &self,
        worker: usize,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let (status, text) = self.workers[worker].ask(&self.http, method, path, body).await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// The samples of a metric that a worker serves, each with its labels, which may be empty.
    pub(crate) async fn metric(&self, worker: usize, name: &str) -> Result<Vec<(String, f64)>> {
        let (_, text) = self.workers[worker].ask(&self.http, "GET", "/metrics", None).await?;
        let one = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter_map(one).collect())
    }

    /// The worker that each task of a connector runs on, as worker `asked` reports it; `None` for a task that does not run or runs on
    /// none of these.
    pub(crate) async fn runs_on(&self, asked: usize, connector: &str) -> Result<Vec<Option<usize>>> {
        let (_, status) = self.ask(asked, "GET", &format!("/connectors/{connector}/status"), None).await?;
        let place = |task: &Value| {
            let id = task["worker_id"].as_str().filter(|id| !id.is_empty())?;
            let place = self.workers.iter().position(|worker| worker.url().ends_with(id));
            place.filter(|_| task["state"] == "RUNNING")
        };
        Ok(status["tasks"].as_array().into_iter().flatten().map(place).collect())
    }

    /// `text` with the ends of all workers' logs below it.
    pub(crate) fn error(&self, text: &str) -> Error {
        let logs: String = self.workers.iter().map(|worker| worker.error("").to_string()).collect();
        Error(format!("{text}\n{logs}"))
    }
}

/// Settings of a provider that delivers to workers of a stage: a running clock, trust in any certificate, few retries.
pub(crate) fn delivering(settings: &mut Settings) {
    settings.frozen_at = None;
    settings.knobs.delivery.trust_any = true;
    settings.knobs.accounting.retries = vec![100, 200];
}

/// Makes a certificate for the receivers; the paths of its file and of its key's.
fn certificate(directory: &Path) -> Result<(String, String)> {
    let certified = rcgen::generate_simple_self_signed([HOST.to_owned()])
        .map_err(|error| Error(format!("make a certificate: {error}")))?;
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| Error(format!("write {}: {error}", path.display())))
    };
    write(&certificate, certified.cert.pem())?;
    write(&key, certified.signing_key.serialize_pem())?;
    Ok((certificate.display().to_string(), key.display().to_string()))
}
