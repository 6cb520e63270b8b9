//! Every authentication mechanism of Kafka with every client of the product: right credentials work, wrong ones give a clear error in
//! time, and no secret appears in a log line or an error.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures::future::try_join_all;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::TcpListener;

use crate::support::visit::{CLIENTS, Fared, Visit};
use crate::support::{Broker, Options, Result, run_directory};

crate::tests! {
    plain process_exits_cleanly_during_client_handshakes;
    disturbing every_client_logs_in_by_every_mechanism_without_leaks within 240;
}

const PASSWORD: &str = "open-sesame-73";
const WRONG: &str = "open-barley-74";
/// The most verbose logs of librdkafka: a secret hidden here is hidden everywhere.
const ALL: (&str, &str) = ("debug", "all");

async fn process_exits_cleanly_during_client_handshakes() -> Result<()> {
    // To librdkafka each of them is a broker, with a thread that keeps reconnecting.
    let mut listeners = Vec::new();
    for host in 1..=30 {
        let listener = TcpListener::bind(format!("127.0.0.{host}:0")).await.unwrap();
        listeners.push(listener.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                drop(connection);
            }
        });
    }
    let at_once = [("reconnect.backoff.ms", "1"), ("reconnect.backoff.max.ms", "2")];
    let all = [("security.protocol", "SSL"), ("enable.sparse.connections", "false")];
    let visit = Visit::new(&listeners.join(","), &[at_once, all].concat());
    for _ in 0..6 {
        visit.hurry().await?;
    }
    Ok(())
}

async fn every_client_logs_in_by_every_mechanism_without_leaks() -> Result<()> {
    let directory = run_directory::create("security")?;
    let pki = Pki::create(&directory);
    let broker = start(&pki).await?;
    let (plain, scram) = (broker.listener("PLAIN")?, broker.listener("SCRAM")?);
    let (oauth, mutual) = (broker.listener("OAUTH")?, broker.listener("MUTUAL")?);
    let token = jwt();
    let token_file = directory.join("token");
    std::fs::write(&token_file, &token).unwrap();
    let token_file = format!("file://{}", token_file.display());
    let endpoint = serve_tokens(token.clone()).await;

    let login = |password: &'static str| [("sasl.username", "alice"), ("sasl.password", password)];
    let plain = |password| {
        let settings = [("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN"), ALL];
        Visit::new(&plain, &[settings.as_slice(), &login(password)].concat())
    };
    let scram = |password, ca: &str| {
        let settings = [
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("ssl.ca.location", ca),
            ALL,
        ];
        Visit::new(&scram, &[settings.as_slice(), &login(password)].concat())
    };
    let oauth = |url: &str, secret: &str| {
        let settings = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "OAUTHBEARER"),
            ("sasl.oauthbearer.token.endpoint.url", url),
            ("sasl.oauthbearer.client.id", "worker"),
            ("sasl.oauthbearer.client.secret", secret),
            ALL,
        ];
        Visit::new(&oauth, &settings)
    };
    let mutual = |certificate: &[(&str, &str)]| {
        let settings = [("security.protocol", "SSL"), ("ssl.ca.location", &pki.ca), ALL];
        Visit::new(&mutual, &[settings.as_slice(), certificate].concat())
    };
    let right = [
        ("PLAIN", plain(PASSWORD)),
        ("SCRAM-SHA-512 over TLS", scram(PASSWORD, &pki.ca)),
        ("OAUTHBEARER from a file", oauth(&token_file, PASSWORD)),
        ("OAUTHBEARER from an endpoint", oauth(&endpoint, PASSWORD)),
        (
            "mutual TLS",
            mutual(&[("ssl.certificate.location", &pki.client), ("ssl.key.location", &pki.client_key)]),
        ),
    ];
    let wrong = [
        ("PLAIN", plain(WRONG), "never", "Authentication failed"),
        ("SCRAM-SHA-512 over TLS", scram(WRONG, &pki.ca), "never", "Authentication failed"),
        ("an unknown authority", scram(PASSWORD, &pki.other_ca), "never", "certificate verify failed"),
        // Whether a retry can help depends on the endpoint.
        ("OAUTHBEARER from an endpoint", oauth(&endpoint, WRONG), "", "401"),
    ];

    let (right_reports, wrong_reports) = tokio::try_join!(
        try_join_all(right.iter().map(|(_, visit)| visit.run())),
        try_join_all(wrong.iter().map(|(_, visit, ..)| visit.run())),
    )?;

    for ((mechanism, _), report) in right.iter().zip(&right_reports) {
        let fared = CLIENTS.map(|client| (client, report.fared(client)));
        assert!(report.is_well(), "{mechanism}: {fared:?}");
    }
    for ((mechanism, _, verdict, reason), report) in wrong.iter().zip(&wrong_reports) {
        for client in CLIENTS {
            let fared = report.fared(client);
            let is_reported =
                matches!(&fared, Fared::Badly(error) if error.starts_with(verdict) && error.contains(reason));
            assert!(is_reported, "{client} with {mechanism}: {fared:?}");
        }
    }
    for report in right_reports.iter().chain(&wrong_reports) {
        for secret in [PASSWORD, WRONG, &token, &credentials()] {
            let line = report.0.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "a secret is in the log: {line:?}");
        }
    }
    Ok(())
}

/// One broker with a listener for each mechanism.
async fn start(pki: &Pki) -> Result<Broker> {
    const MODULES: &str = "org.apache.kafka.common.security";
    let plain = format!("{MODULES}.plain.PlainLoginModule required user_alice=\"{PASSWORD}\";");
    let scram = format!("{MODULES}.scram.ScramLoginModule required;");
    let oauth = format!(
        "{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";"
    );
    let options = Options::default()
        .listener("PLAIN", "SASL_PLAINTEXT")
        .listener("SCRAM", "SASL_SSL")
        .listener("OAUTH", "SASL_PLAINTEXT")
        .listener("MUTUAL", "SSL")
        .scram("SCRAM-SHA-512", "alice", PASSWORD)
        .property("listener.name.plain.sasl.enabled.mechanisms", "PLAIN")
        .property("listener.name.plain.plain.sasl.jaas.config", &plain)
        .property("listener.name.scram.sasl.enabled.mechanisms", "SCRAM-SHA-512")
        .property("listener.name.scram.scram-sha-512.sasl.jaas.config", &scram)
        .property("listener.name.oauth.sasl.enabled.mechanisms", "OAUTHBEARER")
        .property("listener.name.oauth.oauthbearer.sasl.jaas.config", &oauth)
        .property("ssl.keystore.type", "PEM")
        .property("ssl.keystore.location", &pki.broker)
        .property("listener.name.mutual.ssl.client.auth", "required")
        .property("ssl.truststore.type", "PEM")
        .property("ssl.truststore.location", &pki.ca);
    Broker::start(options).await
}

/// Paths of PEM files.
struct Pki {
    ca: String,
    /// Key and certificate in one.
    broker: String,
    client: String,
    client_key: String,
    /// Did not sign the broker's certificate.
    other_ca: String,
}

impl Pki {
    fn create(directory: &Path) -> Self {
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_string_lossy().into_owned()
        };
        let (ca, other) = (authority("authority"), authority("other authority"));
        let signed = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let certificate =
                CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let (broker, broker_key) = signed("127.0.0.1");
        let (client, client_key) = signed("worker");
        Self {
            broker: write("broker.pem", broker_key + &broker),
            client: write("client.pem", client),
            client_key: write("client.key", client_key),
            ca: write("ca.pem", ca.pem()),
            other_ca: write("other.pem", other.pem()),
        }
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(name, Vec::new());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate with the name of its issuer counts as self-signed, so each has a different name.
fn params(name: &str, addresses: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(addresses).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// An unsigned token, which a broker without a configured validator accepts.
fn jwt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = serde_json::json!({ "sub": "worker", "iat": now, "exp": now + 3600 });
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.", part(r#"{"alg":"none"}"#), part(&claims.to_string()))
}

/// The credentials of a client that knows the password.
fn credentials() -> String {
    STANDARD.encode(format!("worker:{PASSWORD}"))
}

/// Serves the token to clients that know the password; returns the endpoint's address.
async fn serve_tokens(token: String) -> String {
    let known = format!("Basic {}", credentials());
    let answer = move |headers: HeaderMap| async move {
        if headers.get("authorization").is_none_or(|given| *given != *known) {
            return Err(axum::http::StatusCode::UNAUTHORIZED);
        }
        Ok(Json(serde_json::json!({ "access_token": token, "expires_in": 3600 })))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, Router::new().route("/token", post(answer))).await });
    url
}
