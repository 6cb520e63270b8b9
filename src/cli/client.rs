//! The command line's HTTP client: trust of private certificates, and a worker's REST API.

use std::{
    env,
    error::Error,
    ffi::OsString,
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
pub(super) use reqwest::Method;
use reqwest::{Certificate, Client, ClientBuilder, Identity, StatusCode};
use serde_json::{Value, json};
use url::Url;

use super::{Result, failure, outside, problem};
use crate::config::{Problem, worker::rest_address};

/// A worker answers within ten seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Address and credentials of a worker, and the output format.
#[derive(Args)]
pub(super) struct ConnectionArgs {
    /// Address of any worker; default: the address in the worker's properties
    #[arg(long, global = true, env = "TRIBUTARY_URL")]
    url: Option<Url>,
    /// Worker properties, for the address in rest.advertised.* or listeners; default: only the environment (CONNECT_*), and
    /// http://127.0.0.1:8083 if that names no listener
    #[arg(long, global = true, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// User, if the worker requires authentication
    #[arg(long, global = true, env = "TRIBUTARY_USER")]
    user: Option<String>,
    /// Password of the user; prefer the variable, which other users of the machine cannot see
    #[arg(long, global = true, env = "TRIBUTARY_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// PEM file with the certificate to trust, if no public authority has signed the worker's https certificate
    #[arg(long, global = true, env = "TRIBUTARY_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the client certificate, if the worker's https listener requires one
    #[arg(long, global = true, env = "TRIBUTARY_CERTIFICATE", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, global = true, env = "TRIBUTARY_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    pub(super) format: OutputArgs,
}

/// Output format of commands that query a worker or list something.
#[derive(Args)]
pub(super) struct OutputArgs {
    /// Output format: table, or JSON for scripts
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// The same as --output json
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
}

impl OutputArgs {
    pub(super) fn output(&self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.output }
    }

    pub(super) fn is_json(&self) -> bool {
        self.output() == OutputFormat::Json
    }
}

impl ConnectionArgs {
    fn address(&self, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Url> {
        match &self.url {
            Some(url) => Ok(url.clone()),
            None => Ok(rest_address(self.config.as_deref(), environment)?),
        }
    }

    #[cfg(test)]
    pub(super) fn to(url: &str) -> Self {
        let (url, config) = (Some(Url::parse(url).unwrap()), None);
        let format = OutputArgs { output: OutputFormat::Table, json: false };
        Self { url, config, user: None, password: None, ca: None, certificate: None, key: None, format }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    Table,
    Json,
}

impl OutputFormat {
    /// Prints JSON, or the table that `people` writes.
    pub(super) fn show(
        self,
        found: &Value,
        out: &mut dyn Write,
        people: impl FnOnce(&Value, &mut dyn Write) -> io::Result<()>,
    ) -> Result {
        match self {
            Self::Json => writeln!(out, "{found:#}"),
            Self::Table => people(found, out),
        }
        .map_err(outside)
    }
}

/// A client that trusts the certificates of the file or, without one, those of the system.
pub(super) fn builder(ca: Option<&Path>) -> Result<ClientBuilder> {
    let builder = Client::builder();
    let Some(file) = ca else { return Ok(builder) };
    let unusable = |fault: &dyn fmt::Display| {
        let rule = format!("must be a file with PEM certificates: {fault}");
        problem(
            "--ca",
            &*file.to_string_lossy(),
            rule,
            "name the certificate of the authority that signed the worker's",
        )
    };
    let pem = fs::read(file).map_err(|error| unusable(&error.kind()))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
    if certificates.is_empty() {
        return Err(unusable(&"it holds none").into());
    }
    Ok(builder.tls_certs_only(certificates))
}

/// The client certificate and its key, if given.
fn identity(certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Identity>, Problem> {
    let (certificate, key) = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (certificate, _) => {
            let (missing, given) =
                if certificate.is_some() { ("--key", "--certificate") } else { ("--certificate", "--key") };
            let rule = format!("is required beside {given}");
            return Err(problem(missing, None, rule, "name both files of the client certificate"));
        }
    };
    let read = |option: &str, file: &Path| {
        fs::read(file).map_err(|error| {
            let rule = format!("must be a PEM file: {}", error.kind());
            problem(option, &*file.to_string_lossy(), rule, "correct the path or its permissions")
        })
    };
    let pem = [read("--certificate", certificate)?, read("--key", key)?].join(&b'\n');
    let identity = Identity::from_pem(&pem).map_err(|_| {
        let rule = "must hold PEM certificates, and --key their private key in PEM, not encrypted";
        problem(
            "--certificate",
            &*certificate.to_string_lossy(),
            rule,
            "name the two files of one client certificate",
        )
    })?;
    Ok(Some(identity))
}

/// A worker's REST API.
#[derive(Clone)]
pub(super) struct RestClient {
    client: Client,
    url: Url,
    user: Option<(String, Option<String>)>,
    pub(super) output: OutputFormat,
}

impl RestClient {
    pub(super) fn new(access: &ConnectionArgs) -> Result<Self> {
        let mut builder = builder(access.ca.as_deref())?.timeout(REQUEST_TIMEOUT);
        if let Some(identity) = identity(access.certificate.as_deref(), access.key.as_deref())? {
            builder = builder.identity(identity);
        }
        let user = access.user.clone().map(|user| (user, access.password.clone()));
        let url = access.address(env::vars_os())?;
        Ok(Self { client: builder.build()?, url, user, output: access.format.output() })
    }

    /// The worker of this process.
    #[cfg(feature = "simulator")]
    pub(super) fn local(url: Url, limit: Duration) -> Result<Self> {
        let client = Client::builder().no_proxy().timeout(limit).build()?;
        Ok(Self { client, url, user: None, output: OutputFormat::Json })
    }

    pub(super) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value> {
        self.send(Method::GET, path, query, None).await?.json()
    }

    pub(super) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        out: &mut dyn Write,
        people: impl FnOnce(&Value, &mut dyn Write) -> io::Result<()>,
    ) -> Result {
        let found = self.get(path, query).await?;
        self.output.show(&found, out, people)
    }

    /// Sends a request about a connector whose answer has no content to show, and prints `done`.
    pub(super) async fn order(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        done: &str,
        out: &mut dyn Write,
    ) -> Result {
        self.send(method, path, query, None).await?;
        let connector = path.get(1).copied().unwrap_or_default();
        let answer = json!({ "connector": connector, "done": done });
        self.output.show(&answer, out, |_, out| writeln!(out, "{connector}: {done}"))
    }

    /// Runs `act` on each item until one fails, and prints a line for each. JSON output lists the items before a failure too, since
    /// they are done; `all` writes it.
    pub(super) async fn each_in_turn<T>(
        &self,
        wanted: impl IntoIterator<Item = T>,
        mut act: impl AsyncFnMut(T) -> Result<(String, &'static str)>,
        all: impl FnOnce(&[(String, &'static str)]) -> Value,
        out: &mut dyn Write,
    ) -> Result {
        let mut acted = Vec::new();
        let ended: Result = async {
            for one in wanted {
                let (name, done) = act(one).await?;
                // Immediately, because the next item may take long.
                if self.output == OutputFormat::Table {
                    writeln!(out, "{name}: {done}")?;
                }
                acted.push((name, done));
            }
            Ok(())
        }
        .await;
        if acted.is_empty() { ended } else { ended.and(self.output.show(&all(&acted), out, |_, _| Ok(()))) }
    }

    /// Sends a request; an answer other than a success is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<RestResponse> {
        self.request(method, path, query, body).await?.accepted()
    }

    /// Sends a request and returns any answer.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<RestResponse> {
        // A URL drops such segments, so the request would address another connector, or all of them.
        if let Some(&name) = path.iter().find(|part| matches!(**part, "." | "..")) {
            let remedy = "`tributary connectors list` shows the existing names";
            return Err(problem("name", name, "is not a valid connector name", remedy).into());
        }
        let mut url = self.url.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => return Err(failure(format!("{} is no http address", self.url))),
        };
        let mut request = self.client.request(method, url).query(query);
        if let Some((user, password)) = &self.user {
            request = request.basic_auth(user, password.as_ref());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| {
            outside(WorkerUnreachable { url: self.url.clone(), source: error.without_url() })
        };
        let answer = request.send().await.map_err(unreachable)?;
        Ok(RestResponse {
            status: answer.status(),
            body: answer.bytes().await.map_err(unreachable)?.to_vec(),
        })
    }
}

/// Host and port, without the user and password that a URL may contain.
fn host(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}", url.host_str().unwrap_or_default())
}

#[derive(Debug, thiserror::Error)]
#[error("ask the worker at {}://{}", url.scheme(), host(url))]
pub(super) struct WorkerUnreachable {
    url: Url,
    #[source]
    source: reqwest::Error,
}

impl WorkerUnreachable {
    pub(super) fn remedy(&self) -> String {
        let mut remedy = "start a worker there, or name another with --url or TRIBUTARY_URL, or its properties with --config or \
                          TRIBUTARY_CONFIG"
            .to_owned();
        if self.url.scheme() == "https" {
            remedy += "; --ca or TRIBUTARY_CA names a private certificate to trust, --certificate and --key the client \
                       certificate if the worker requires one";
        }
        remedy
    }
}

pub(super) struct RestResponse {
    pub(super) status: StatusCode,
    body: Vec<u8>,
}

impl RestResponse {
    /// Returns itself if the status is a success, else an error with the worker's message.
    pub(super) fn accepted(self) -> Result<Self> {
        if self.status.is_success() {
            return Ok(self);
        }
        let message = self.message().unwrap_or_else(|| self.status.to_string());
        Err(outside(RequestRejected { message, status: self.status }))
    }

    /// The worker's error message.
    pub(super) fn message(&self) -> Option<String> {
        let answer: Value = serde_json::from_slice(&self.body).ok()?;
        answer["message"].as_str().map(str::to_owned)
    }

    pub(super) fn json(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&self.body)?)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct RequestRejected {
    message: String,
    status: StatusCode,
}

/// Whether a request that failed so may succeed if it is sent again: the worker does not answer, or cannot do it now.
pub(super) fn may_succeed_later(error: &(dyn Error + 'static)) -> bool {
    let rejected = error.downcast_ref::<RequestRejected>();
    let is_passing =
        |status: StatusCode| status.is_server_error() || matches!(status.as_u16(), 408 | 409 | 429);
    error.is::<WorkerUnreachable>() || rejected.is_some_and(|rejected| is_passing(rejected.status))
}

impl RequestRejected {
    pub(super) fn remedy(&self) -> Option<&'static str> {
        let is_unknown = self.status == StatusCode::UNAUTHORIZED;
        is_unknown.then_some("set TRIBUTARY_USER and TRIBUTARY_PASSWORD")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::CommandError;

    #[test]
    fn an_unusable_certificate_is_a_command_line_problem() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        fs::write(&empty, "no certificate\n").unwrap();

        for file in [empty, directory.path().join("absent.pem")] {
            let Err(CommandError::Configuration(problems)) = builder(Some(&file)) else {
                panic!("{file:?} was taken")
            };
            assert!(problems.to_string().contains("--ca"), "{problems}");
        }
        assert!(builder(None).is_ok());
    }

    #[test]
    fn a_client_certificate_needs_both_files_in_pem() {
        let directory = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
        let [certificate, key, empty, absent] =
            ["certificate", "key", "empty", "absent"].map(|file| directory.path().join(file));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        fs::write(&empty, "").unwrap();
        let refused = |certificate: Option<&PathBuf>, key: Option<&PathBuf>| {
            let found = identity(certificate.map(PathBuf::as_path), key.map(PathBuf::as_path));
            found.map(|_| "it was taken").unwrap_err().to_string()
        };

        assert!(identity(None, None).is_ok_and(|identity| identity.is_none()));
        assert!(identity(Some(&certificate), Some(&key)).is_ok_and(|identity| identity.is_some()));
        assert!(refused(Some(&certificate), None).starts_with("--key: is required"));
        assert!(refused(None, Some(&key)).starts_with("--certificate: is required"));
        assert!(refused(Some(&certificate), Some(&absent)).starts_with("--key = "));
        assert!(refused(Some(&certificate), Some(&empty)).starts_with("--certificate = "));
    }

    #[test]
    fn worker_properties_give_the_address() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("worker.properties");
        let found = |properties: &str, environment: &[(&str, &str)]| {
            fs::write(&file, properties).unwrap();
            let access = ConnectionArgs {
                url: None,
                config: Some(file.clone()),
                ..ConnectionArgs::to("http://127.0.0.1:1")
            };
            let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            match access.address(environment) {
                Ok(url) => url.to_string(),
                Err(CommandError::Configuration(problems)) => problems.to_string(),
                Err(_) => panic!("another failure"),
            }
        };
        let advertised = "listeners=https://0.0.0.0:8443\nrest.advertised.host.name=connect.example.com\n";
        for (properties, environment, expected) in [
            ("", &[][..], "http://127.0.0.1:8083/"),
            ("listeners=http://127.0.0.1:9083", &[], "http://127.0.0.1:9083/"),
            ("listeners=http://:9083,https://:9443", &[], "http://127.0.0.1:9083/"),
            ("listeners=https://[::]:9443", &[], "https://[::1]:9443/"),
            (advertised, &[], "https://connect.example.com:8443/"),
            (&format!("{advertised}rest.advertised.port=443"), &[], "https://connect.example.com/"),
            ("listeners=http://127.0.0.1:9083", &[("CONNECT_LISTENERS", "http://h:1")], "http://h:1/"),
            // Problems in other settings do not matter here.
            ("listeners=http://127.0.0.1:9083\nnonsense=1", &[], "http://127.0.0.1:9083/"),
        ] {
            assert_eq!(found(properties, environment), expected, "{properties}");
        }
        let refused = found("listeners=http://127.0.0.1:0", &[]);
        assert!(refused.starts_with("listeners") && refused.contains("--url"), "{refused}");
        let absent = ConnectionArgs {
            url: None,
            config: Some("absent.properties".into()),
            ..ConnectionArgs::to("http://h")
        };
        assert!(matches!(absent.address([]), Err(CommandError::Configuration(_))));
        let named =
            ConnectionArgs { config: Some("absent.properties".into()), ..ConnectionArgs::to("http://h:7") };
        assert_eq!(named.address([]).ok().unwrap().as_str(), "http://h:7/");
    }
}
