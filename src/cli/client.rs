//! HTTP from the command line: one way to trust a private certificate, and one to reach a worker's REST API.

use std::{
    env,
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
pub(super) use reqwest::Method;
use reqwest::{Certificate, Client, ClientBuilder, Identity, StatusCode};
use serde_json::{Value, json};
use url::Url;

use super::{Failure, outside};
use crate::config::{Problem, worker::rest_address};

/// How long a worker may take to answer: it promises ten seconds.
const LIMIT: Duration = Duration::from_secs(15);

/// Where a worker is, and how its answers are shown.
#[derive(Args)]
pub(super) struct Access {
    /// Address of any worker; without it, the one that the worker's properties name
    #[arg(long, global = true, env = "TRIBUTARY_URL")]
    url: Option<Url>,
    /// Worker properties, whose rest.advertised.* or listeners lead to the worker; without it, the environment (CONNECT_*) alone,
    /// and http://127.0.0.1:8083 where that names no listener
    #[arg(long, global = true, env = "TRIBUTARY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// User, where the worker asks for one
    #[arg(long, global = true, env = "TRIBUTARY_USER")]
    user: Option<String>,
    /// Password of the user; better given by the variable, which other users of the machine cannot see
    #[arg(long, global = true, env = "TRIBUTARY_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// PEM file with the certificate to trust, for a worker whose https certificate no public authority has signed
    #[arg(long, global = true, env = "TRIBUTARY_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the client certificate, where the worker's https listener asks for one
    #[arg(long, global = true, env = "TRIBUTARY_CERTIFICATE", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, global = true, env = "TRIBUTARY_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

/// How what was found or done is shown, by every command that asks a worker or lists something.
#[derive(Args)]
pub(super) struct Format {
    /// Tables for people, or JSON for programs
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// The same as --output json
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
}

impl Format {
    pub(super) fn output(&self) -> Output {
        if self.json { Output::Json } else { self.output }
    }

    pub(super) fn is_json(&self) -> bool {
        self.output() == Output::Json
    }
}

impl Access {
    /// How answers are shown.
    pub(super) fn output(&self) -> Output {
        self.format.output()
    }

    /// The worker's properties.
    pub(super) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Where the worker is.
    fn address(&self, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Url, Failure> {
        match &self.url {
            Some(url) => Ok(url.clone()),
            None => rest_address(self.config(), environment).map_err(Failure::Configuration),
        }
    }

    /// To this address, with nothing else set.
    #[cfg(test)]
    pub(super) fn to(url: &str) -> Self {
        let (url, config) = (Some(Url::parse(url).unwrap()), None);
        let format = Format { output: Output::Table, json: false };
        Self { url, config, user: None, password: None, ca: None, certificate: None, key: None, format }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Table,
    Json,
}

/// Where REST has this of a connector.
pub(super) fn path_of(connector: &str, what: &str, rest: &[&str]) -> Vec<String> {
    ["connectors", connector, what].iter().chain(rest).map(|&part| part.to_owned()).collect()
}

/// A client that trusts what the system trusts or, where a file is given, what that holds and nothing else.
pub(super) fn builder(ca: Option<&Path>) -> Result<ClientBuilder, Failure> {
    let builder = Client::builder();
    let Some(file) = ca else { return Ok(builder) };
    let unusable = |fault: &dyn std::fmt::Display| Problem {
        key: "--ca".to_owned(),
        value: Some(file.display().to_string()),
        rule: format!("must be a file with PEM certificates: {fault}"),
        remedy: "name the certificate of the authority that signed the worker's".to_owned(),
    };
    let pem = fs::read(file).map_err(|error| unusable(&error.kind()))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
    if certificates.is_empty() {
        return Err(unusable(&"it holds none").into());
    }
    Ok(builder.tls_certs_only(certificates))
}

/// The client certificate and its key, where they are given.
fn identity(certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Identity>, Failure> {
    let problem = |option: &str, file: Option<&Path>, rule: String, remedy: &str| Problem {
        key: option.to_owned(),
        value: file.map(|file| file.display().to_string()),
        rule,
        remedy: remedy.to_owned(),
    };
    let (certificate, key) = match (certificate, key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => {
            let rule = "is required beside --certificate".to_owned();
            return Err(problem("--key", None, rule, "name the file with its private key").into());
        }
        (None, Some(_)) => {
            let rule = "is required beside --key".to_owned();
            return Err(problem("--certificate", None, rule, "name the file with its certificate").into());
        }
    };
    let read = |option: &str, file: &Path| {
        fs::read(file).map_err(|error| {
            let rule = format!("must be a PEM file: {}", error.kind());
            problem(option, Some(file), rule, "correct the path or its permissions")
        })
    };
    let pem = [read("--certificate", certificate)?, read("--key", key)?].join(&b'\n');
    let identity = Identity::from_pem(&pem).map_err(|_| {
        let rule = "must hold PEM certificates, and --key their private key in PEM, not encrypted".to_owned();
        problem("--certificate", Some(certificate), rule, "name the two files of one client certificate")
    })?;
    Ok(Some(identity))
}

/// A worker's REST API.
pub(super) struct Worker<'a> {
    client: Client,
    url: Url,
    access: &'a Access,
}

impl<'a> Worker<'a> {
    /// That is reached so.
    pub(super) fn new(access: &'a Access) -> Result<Self, Failure> {
        let mut builder = builder(access.ca.as_deref())?.timeout(LIMIT);
        if let Some(identity) = identity(access.certificate.as_deref(), access.key.as_deref())? {
            builder = builder.identity(identity);
        }
        let client = builder.build().map_err(outside)?;
        Ok(Self { client, url: access.address(env::vars_os())?, access })
    }

    pub(super) async fn get(&self, path: &[String], query: &[(&str, String)]) -> Result<Value, Failure> {
        let (_, body) = self.send(Method::GET, path, query, None).await?;
        serde_json::from_slice(&body).map_err(outside)
    }

    /// A command that answers with nothing worth showing.
    pub(super) async fn tell(
        &self,
        method: Method,
        path: &[String],
        query: &[(&str, String)],
        done: &str,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        self.send(method, path, query, None).await?;
        self.done(path.get(1).map_or("", String::as_str), done, out)
    }

    /// Says what was done with a connector.
    fn done<W: Write>(&self, connector: &str, done: &str, out: &mut W) -> Result<(), Failure> {
        let told = json!({ "connector": connector, "done": done });
        self.show(&told, out, |_, out| writeln!(out, "{connector}: {done}"))
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &[String],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let (status, body) = self.ask(method, path, query, body).await?;
        accepted(status, body)
    }

    /// The answer, whatever it is.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &[String],
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        // An address loses such parts when it is put together, and another connector, or all of them, would be meant.
        if let Some(name) = path.iter().find(|part| matches!(part.as_str(), "." | "..")) {
            return Err(Problem {
                key: "name".to_owned(),
                value: Some(name.clone()),
                rule: "is no name of a connector".to_owned(),
                remedy: "see `tributary connectors list` for those there are".to_owned(),
            }
            .into());
        }
        let mut url = self.url.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => return Err(refusal(format!("{} is no http address", self.url))),
        };
        let mut request = self.client.request(method, url).query(query);
        if let Some(user) = &self.access.user {
            request = request.basic_auth(user, self.access.password.as_ref());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unanswered = |error: reqwest::Error| {
            outside(Unanswered { url: self.url.clone(), source: error.without_url() })
        };
        let answer = request.send().await.map_err(unanswered)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(unanswered)?.to_vec();
        Ok((status, body))
    }

    /// A line for people, at once: what comes next may take long. Programs are told all of it in the end, by [`Self::show`].
    pub(super) fn say(&self, line: &str, out: &mut impl Write) -> Result<(), Failure> {
        match self.access.output() {
            Output::Json => Ok(()),
            Output::Table => writeln!(out, "{line}").map_err(outside),
        }
    }

    /// As JSON for programs, else as `people` read it.
    pub(super) fn show<W: Write>(
        &self,
        found: &Value,
        out: &mut W,
        people: impl FnOnce(&Value, &mut W) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        match self.access.output() {
            Output::Json => writeln!(out, "{found:#}"),
            Output::Table => people(found, out),
        }
        .map_err(outside)
    }
}

/// Host and port, without a name and password that an address may hold.
fn host(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}", url.host_str().unwrap_or_default())
}

/// Nobody answers where a worker should be.
#[derive(Debug, thiserror::Error)]
#[error("ask the worker at {}://{}", url.scheme(), host(url))]
pub(super) struct Unanswered {
    url: Url,
    #[source]
    source: reqwest::Error,
}

impl Unanswered {
    pub(super) fn remedy(&self) -> String {
        let mut remedy = "start a worker there, or name another with --url or TRIBUTARY_URL, or its properties with --config or \
                          TRIBUTARY_CONFIG"
            .to_owned();
        if self.url.scheme() == "https" {
            remedy += "; --ca or TRIBUTARY_CA names the certificate to trust where it is a private one, --certificate and \
                       --key the client certificate where the worker asks for one";
        }
        remedy
    }
}

/// What the worker said no to, in its own words.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refused {
    message: String,
    /// Unless this side found it out.
    status: Option<StatusCode>,
}

impl Refused {
    pub(super) fn remedy(&self) -> Option<&'static str> {
        match self.status? {
            StatusCode::UNAUTHORIZED => Some("name who you are with TRIBUTARY_USER and TRIBUTARY_PASSWORD"),
            _ => None,
        }
    }
}

/// An answer that is a success; of any other, what it says.
pub(super) fn accepted(status: StatusCode, body: Vec<u8>) -> Result<(StatusCode, Vec<u8>), Failure> {
    if status.is_success() {
        return Ok((status, body));
    }
    let told: Value = serde_json::from_slice(&body).unwrap_or_default();
    let message = told["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
    Err(outside(Refused { message, status: Some(status) }))
}

pub(super) fn refusal(message: String) -> Failure {
    outside(Refused { message, status: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_cannot_be_used_is_a_mistake_of_the_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        fs::write(&empty, "no certificate\n").unwrap();

        for file in [empty, directory.path().join("absent.pem")] {
            let Err(Failure::Configuration(problems)) = builder(Some(&file)) else {
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
            let Err(Failure::Configuration(problems)) = found else { panic!("it was taken") };
            problems.to_string()
        };

        assert!(identity(None, None).is_ok_and(|identity| identity.is_none()));
        assert!(identity(Some(&certificate), Some(&key)).is_ok_and(|identity| identity.is_some()));
        assert!(refused(Some(&certificate), None).starts_with("--key: is required"));
        assert!(refused(None, Some(&key)).starts_with("--certificate: is required"));
        assert!(refused(Some(&certificate), Some(&absent)).starts_with("--key = "));
        assert!(refused(Some(&certificate), Some(&empty)).starts_with("--certificate = "));
    }

    #[test]
    fn the_worker_is_found_from_its_properties() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("worker.properties");
        let found = |properties: &str, environment: &[(&str, &str)]| {
            fs::write(&file, properties).unwrap();
            let access = Access { url: None, config: Some(file.clone()), ..Access::to("http://127.0.0.1:1") };
            let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            match access.address(environment) {
                Ok(url) => url.to_string(),
                Err(Failure::Configuration(problems)) => problems.to_string(),
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
            // A fault elsewhere is the worker's.
            ("listeners=http://127.0.0.1:9083\nnonsense=1", &[], "http://127.0.0.1:9083/"),
        ] {
            assert_eq!(found(properties, environment), expected, "{properties}");
        }
        let refused = found("listeners=http://127.0.0.1:0", &[]);
        assert!(refused.starts_with("listeners") && refused.contains("--url"), "{refused}");
        let absent = Access { url: None, config: Some("absent.properties".into()), ..Access::to("http://h") };
        assert!(matches!(absent.address([]), Err(Failure::Configuration(_))));
        let named = Access { config: Some("absent.properties".into()), ..Access::to("http://h:7") };
        assert_eq!(named.address([]).ok().unwrap().as_str(), "http://h:7/");
    }

    #[test]
    fn what_was_done_is_a_line_for_people_and_an_object_for_programs() {
        let said = |access: &Access| {
            let mut out = Vec::new();
            Worker::new(access).and_then(|worker| worker.done("hooks", "pausing", &mut out)).ok().unwrap();
            String::from_utf8(out).unwrap()
        };
        let people = Access::to("http://127.0.0.1:1");
        let programs =
            [Format { output: Output::Json, json: false }, Format { output: Output::Table, json: true }]
                .map(|format| Access { format, ..Access::to("http://127.0.0.1:1") });

        assert_eq!(said(&people), "hooks: pausing\n");
        for access in programs {
            let told: Value = serde_json::from_str(&said(&access)).unwrap();
            assert_eq!(told, json!({ "connector": "hooks", "done": "pausing" }));
        }
    }
}
