//! The listeners and untrusted clients: TLS, client certificates, failed logins and the audit log, over real sockets. No Kafka is
//! needed, since the listeners decide before the API.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use reqwest::{Certificate, Client, ClientBuilder, Identity, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::starting::{start, start_at};
use crate::support::command::{stderr, tributary};
use crate::support::lost::timeout;
use crate::support::process::Process;
use crate::support::run_directory;

crate::tests! {
    plain a_renewed_rest_certificate_is_served_without_a_restart within 60;
    plain a_renewed_webhook_certificate_is_served_without_a_restart within 60;
    plain client_certificates_are_checked_in_the_handshake within 60;
    plain clients_of_a_removed_authority_are_refused within 60;
    plain the_command_line_shows_its_client_certificate within 60;
    plain refused_logins_are_audited_and_back_off within 60;
    plain a_page_that_rebinds_its_name_reads_no_open_path within 60;
}

/// For busy machines.
const LIMIT: Duration = Duration::from_secs(30);

/// PEM files of a listener and its clients.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let files = Self(run_directory::create(name).unwrap());
        files.renew();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        // Atomic, so that a concurrent read sees the old or the new file.
        let next = self.path("next");
        fs::write(&next, text).unwrap();
        fs::rename(&next, self.path(name)).unwrap();
    }

    /// Another certificate of the listener.
    fn renew(&self) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        self.write("chain.pem", &made.cert.pem());
        self.write("key.pem", &made.signing_key.serialize_pem());
    }

    /// Client authorities, each with one client in `NAME.pem` and `NAME.key`; the listener trusts the first.
    fn authorities(&self, names: &[&str]) {
        for (number, name) in names.iter().enumerate() {
            let issuer = authority(name);
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([format!("client-of-{name}")]).unwrap();
            self.write(&format!("{name}.pem"), &params.signed_by(&key, &issuer).unwrap().pem());
            self.write(&format!("{name}.key"), &key.serialize_pem());
            self.write(&format!("{name}.ca"), &issuer.pem());
            if number == 0 {
                self.write("authorities.pem", &issuer.pem());
            }
        }
    }

    /// The listener's properties.
    fn properties(&self, client_auth: Option<&str>) -> String {
        let mut lines = format!(
            "listeners=https://127.0.0.1:0\nlisteners.https.ssl.reload.interval.ms=100\n\
             listeners.https.ssl.certificate.location={}\nlisteners.https.ssl.key.location={}\n",
            self.path("chain.pem").display(),
            self.path("key.pem").display()
        );
        if let Some(client_auth) = client_auth {
            lines += &format!(
                "listeners.https.ssl.client.auth={client_auth}\nlisteners.https.ssl.ca.location={}\n",
                self.path("authorities.pem").display()
            );
        }
        lines
    }

    /// A client that trusts the listener as it is now.
    fn client(&self) -> ClientBuilder {
        let trusted = Certificate::from_pem(&fs::read(self.path("chain.pem")).unwrap()).unwrap();
        Client::builder().no_proxy().timeout(LIMIT).tls_certs_only([trusted])
    }

    /// The same with the certificate of a client.
    fn client_of(&self, authority: &str) -> ClientBuilder {
        let read = |end: &str| fs::read(self.path(&format!("{authority}.{end}"))).unwrap();
        self.client().identity(Identity::from_pem(&[read("pem"), read("key")].concat()).unwrap())
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Whether the worker answers this client on a new connection.
async fn answers(client: ClientBuilder, address: SocketAddr) -> bool {
    let asked = client.build().unwrap().get(format!("https://{address}/health/live")).send().await;
    asked.is_ok_and(|answer| answer.status() == StatusCode::OK)
}

/// Waits until the worker answers a client, or does not.
async fn until(answered: bool, address: SocketAddr, client: impl Fn() -> ClientBuilder) {
    let wait = async { while answers(client(), address).await != answered {} };
    timeout(LIMIT, wait).await.unwrap();
}

async fn a_renewed_rest_certificate_is_served_without_a_restart() {
    let files = Files::new("rest-renewed");
    let (address, stop, running) = start(&files.properties(None)).await;
    let (before, old) = (files.client().build().unwrap(), files.client());
    let url = format!("https://{address}/health/live");
    assert_eq!(before.get(&url).send().await.unwrap().status(), 200);

    files.renew();
    until(true, address, || files.client()).await;
    assert_eq!(before.get(&url).send().await.unwrap().status(), 200, "its connection lasts");
    assert!(!answers(old, address).await, "the old certificate is still served");
    // Half of a renewal: the key does not fit, and the certificate before stays.
    files.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
    for _ in 0..10 {
        assert!(answers(files.client(), address).await);
    }

    stop.cancel();
    running.await.unwrap().unwrap();
}

async fn a_renewed_webhook_certificate_is_served_without_a_restart() {
    let files = Files::new("webhook-renewed");
    let lines = format!(
        "listeners=http://127.0.0.1:0\nwebhook.listeners=https://127.0.0.1:0\nwebhook.ssl.reload.interval.ms=100\n\
         webhook.ssl.certificate.location={}\nwebhook.ssl.key.location={}\n",
        files.path("chain.pem").display(),
        files.path("key.pem").display()
    );
    let (address, stop, running) = start_at(&lines, |service| service.webhook_addresses()[0]).await;
    // The listener answers 404 here; without trust in its certificate there is no answer.
    let answers = async |client: ClientBuilder| {
        client.build().unwrap().get(format!("https://{address}/")).send().await.is_ok()
    };
    let old = files.client();
    assert!(answers(files.client()).await);

    files.renew();
    timeout(LIMIT, async { while !answers(files.client()).await {} }).await.unwrap();

    assert!(!answers(old).await, "the old certificate is still served");
    stop.cancel();
    running.await.unwrap().unwrap();
}

async fn client_certificates_are_checked_in_the_handshake() {
    for (client_auth, may_be_missing) in [("required", false), ("requested", true)] {
        let files = Files::new(&format!("rest-{client_auth}"));
        files.authorities(&["ours", "other"]);
        let (address, stop, running) = start(&files.properties(Some(client_auth))).await;

        for version in [reqwest::tls::Version::TLS_1_2, reqwest::tls::Version::TLS_1_3] {
            let of = |client: ClientBuilder| client.tls_version_min(version).tls_version_max(version);
            let case = format!("{client_auth}, {version:?}");
            assert!(answers(of(files.client_of("ours")), address).await, "{case}");
            let without = answers(of(files.client()), address).await;
            assert_eq!(without, may_be_missing, "{case}: no certificate");
            assert!(!answers(of(files.client_of("other")), address).await, "{case}: another authority");
        }

        stop.cancel();
        running.await.unwrap().unwrap();
    }
}

async fn clients_of_a_removed_authority_are_refused() {
    let files = Files::new("rest-authorities");
    files.authorities(&["ours", "next"]);
    let (address, stop, running) = start(&files.properties(Some("required"))).await;
    assert!(answers(files.client_of("ours"), address).await);
    // A client that could resume its session: it shook hands before.
    let earlier = files.client_of("ours").http1_only().pool_max_idle_per_host(0).build().unwrap();
    let url = format!("https://{address}/health/live");
    assert!(earlier.get(&url).send().await.is_ok());

    files.write("authorities.pem", &fs::read_to_string(files.path("next.ca")).unwrap());
    until(true, address, || files.client_of("next")).await;

    assert!(!answers(files.client_of("ours"), address).await);
    assert!(earlier.get(&url).send().await.is_err());
    stop.cancel();
    running.await.unwrap().unwrap();
}

async fn the_command_line_shows_its_client_certificate() {
    let files = Files::new("rest-cli");
    files.authorities(&["ours"]);
    let (address, stop, running) = start(&files.properties(Some("required"))).await;
    let url = format!("https://{address}");
    let text = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let (ca, certificate, key) = (text("chain.pem"), text("ours.pem"), text("ours.key"));
    let list = ["connectors", "list", "--url", &url, "--ca", &ca];

    let without = tributary(&list, &[]).await;
    let with = tributary(&[&list[..], &["--certificate", &certificate, "--key", &key]].concat(), &[]).await;

    let (without, with) = (stderr(&without), stderr(&with));
    assert!(without.starts_with("error: ask the worker at "), "{without}");
    assert!(without.contains("--certificate"), "{without}");
    assert!(with.contains("still starting up"), "the handshake was refused: {with}");
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// Sends a raw request and reads the whole answer.
async fn send(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

/// A worker process without a Kafka, and its address.
async fn spawn(name: &str, lines: &str) -> (Process, String) {
    let directory = run_directory::create(name).unwrap();
    let process = Process::spawn(name, command(&directory, lines), &directory.join("log")).unwrap();
    let mut address = String::new();
    let listens = async || {
        let said = process.said();
        let found = said.lines().find_map(|line| Some(line.split_once(" listens on ")?.1.to_owned()));
        address = found.unwrap_or_default();
        !address.is_empty()
    };
    process.ready(LIMIT, listens).await.unwrap();
    (process, address)
}

fn command(directory: &Path, lines: &str) -> Command {
    let properties = directory.join("worker.properties");
    let lines = format!(
        "bootstrap.servers=127.0.0.1:1\nlisteners=http://127.0.0.1:0\nlog.format=json\nstate.dir={}\n\
         value.converter.schema.registry.url=http://127.0.0.1:9\n{lines}",
        directory.join("state").display()
    );
    fs::write(&properties, lines).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["run", "--config"]).arg(properties).env_clear();
    command
}

async fn refused_logins_are_audited_and_back_off() {
    let lines = "admin.auth.method=basic\nadmin.auth.user=root\nadmin.auth.password=correct-horse\n\
                 admin.auth.proxies=127.0.0.1\n";
    let (process, address) = spawn("rest-audit", lines).await;
    let attempt = async |client: &str, login: &str| {
        let login = STANDARD.encode(login);
        let request = format!(
            "GET /connectors/%0aforged?token=hunter2 HTTP/1.0\r\nx-forwarded-for: {client}\r\n\
             authorization: Basic {login}\r\n\r\n"
        );
        let answer = send(&address, &request).await.to_lowercase();
        let waits = answer.contains("\r\nretry-after: ");
        (answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap(), waits)
    };

    for _ in 0..4 {
        assert_eq!(attempt("198.51.100.7", "root:hunter2").await, (401, false));
    }
    assert_eq!(attempt("198.51.100.7", "hunter2:root").await, (401, false));
    assert_eq!(attempt("198.51.100.7", "root:hunter2").await, (429, true));
    assert_ne!(attempt("198.51.100.8", "root:correct-horse").await.0, 429, "another address may log in");

    let said = process.said();
    let lines = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let audited: Vec<_> = lines
        .filter(|line| line["target"] == "audit")
        .map(|line| {
            let fields = &line["fields"];
            assert!(fields["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
            assert_eq!((&line["level"], &fields["path"]), (&"WARN".into(), &"/connectors/%0aforged".into()));
            assert_eq!(fields["forwarded"], "198.51.100.7", "{line}");
            (fields["who"].as_str().unwrap().to_owned(), fields["status"].as_u64().unwrap())
        })
        .collect();
    let (root, unknown) = ("root".to_owned(), "unknown".to_owned());
    let mut expected = vec![(root.clone(), 401); 4];
    expected.extend([(unknown, 401), (root, 429)]);
    assert_eq!(audited, expected, "{said}");
    assert!(!said.contains("hunter2") && !said.contains("correct-horse"), "{said}");
}

async fn a_page_that_rebinds_its_name_reads_no_open_path() {
    let (address, stop, running) = start("listeners=http://127.0.0.1:0\n").await;
    let status = async |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = send(&address.to_string(), &request).await;
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };

    for path in ["/health/live", "/metrics"] {
        assert_eq!(status(path, "attacker.example:8083").await, 421, "{path}");
        for host in ["10.1.2.3:8083", "[2001:db8::1]:8083", "localhost:8083", "127.0.0.1"] {
            assert_eq!(status(path, host).await, 200, "{path} by {host}");
        }
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}
