//! An identity service whose responses tests define byte by byte, and keys to sign with.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use aws_lc_rs::{
    encoding::{AsDer, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_SHA256},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use url::Url;

use base::secret::Secret;

use crate::{AreaLogin, AreaLogins, HostPolicy, OAuth, Provider, Transport};

/// Path of the token endpoint.
pub(in crate::auth) const TOKEN: &str = "/auth/core/connect/token";
/// Path of the discovery document.
pub(in crate::auth) const DISCOVERY: &str = "/auth/core/.well-known/openid-configuration";
/// Path of the keys that [`Stub::publish`] publishes.
pub(in crate::auth) const KEY_SET: &str = "/keys";
/// Issuer that [`Stub::publish`] publishes.
pub(in crate::auth) const ISSUER: &str = "https://cloud.example";

/// Response to a request.
#[derive(Debug, Clone)]
pub(in crate::auth) enum Act {
    /// These bytes, then close.
    Say(String),
    /// Close.
    Cut,
    /// No response.
    Hang,
}

impl Act {
    /// A complete response.
    pub(in crate::auth) fn answer(status: u16, kind: &str, body: &str) -> Self {
        Self::with_headers(status, &format!("content-type: {kind}\r\n"), body)
    }

    /// A JSON response.
    pub(in crate::auth) fn json(status: u16, body: &str) -> Self {
        Self::answer(status, "application/json", body)
    }

    /// A complete response with these header lines, each with its line end.
    pub(in crate::auth) fn with_headers(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        Self::Say(format!(
            "HTTP/1.1 {status} Said\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }
}

/// The running service; it ends with the test's runtime.
#[derive(Debug, Clone)]
pub(in crate::auth) struct Stub {
    pub(in crate::auth) url: Url,
    inner: Arc<Mutex<Inner>>,
    asked: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    acts: BTreeMap<String, Act>,
    seen: Vec<(String, String, String)>,
}

impl Stub {
    pub(in crate::auth) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let stub = Self { url, inner: Arc::default(), asked: Arc::default() };
        let serving = stub.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        stub
    }

    /// Sets the response for a path.
    pub(in crate::auth) fn on(&self, path: &str, act: Act) {
        self.inner.lock().acts.insert(path.to_owned(), act);
    }

    /// Publishes these keys.
    pub(in crate::auth) fn publish(&self, keys: &[Value]) {
        let place = self.url.join(KEY_SET).unwrap();
        self.on(
            DISCOVERY,
            Act::json(200, &json!({ "issuer": ISSUER, "jwks_uri": place.as_str() }).to_string()),
        );
        self.on(KEY_SET, Act::json(200, &json!({ "keys": keys }).to_string()));
    }

    /// Heads and bodies of the requests to a path so far.
    pub(in crate::auth) fn seen(&self, path: &str) -> Vec<(String, String)> {
        let inner = self.inner.lock();
        let to_path = inner.seen.iter().filter(|(to, ..)| to == path);
        to_path.map(|(_, head, body)| (head.clone(), body.clone())).collect()
    }

    /// Waits for a request to a path.
    pub(in crate::auth) async fn asked(&self, path: &str) {
        let wait = async {
            loop {
                let asked = self.asked.notified();
                if !self.seen(path).is_empty() {
                    return;
                }
                asked.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap();
    }

    /// Settings of a client of this service.
    pub(in crate::auth) fn provider(&self) -> Provider {
        provider(&self.url)
    }

    async fn serve(self, mut stream: TcpStream) {
        let Some((head, body)) = request(&mut stream).await else { return };
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let act = self.inner.lock().acts.get(&path).cloned().unwrap_or(Act::json(404, "{}"));
        self.inner.lock().seen.push((path, head, body));
        self.asked.notify_waiters();
        match act {
            Act::Say(bytes) => {
                let _closed = stream.write_all(bytes.as_bytes()).await;
                let _closed = stream.shutdown().await;
            }
            Act::Cut => {}
            Act::Hang => std::future::pending().await,
        }
    }
}

/// Settings of a client at this URL.
pub(crate) fn provider(url: &Url) -> Provider {
    let login = |grant: &str| AreaLogin { grant: grant.to_owned(), scopes: Vec::new() };
    Provider {
        base_url: url.clone(),
        auth_url: url.clone(),
        subscription_key: Secret::new("key"),
        oauth: OAuth {
            client_id: "client".into(),
            client_secret: Secret::new("se&cret"),
            logins: AreaLogins {
                accounting: login("accounting"),
                payroll: login("payroll"),
                invoicing: login("invoicing"),
            },
            redirect_uri: None,
            pkce: false,
            issuers: Vec::new(),
            audiences: Vec::new(),
            keys: None,
            login_lifetime: None,
            idle_lifetime: None,
        },
        transport: Transport {
            connect: Duration::from_secs(20),
            read: Duration::from_secs(20),
            request: Duration::from_secs(20),
            response_limit: 1 << 20,
            authorities: None,
            hosts: HostPolicy::listing(&[url.host_str().unwrap_or_default()]),
        },
    }
}

async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// A key that signs like the provider.
pub(in crate::auth) struct Signer {
    pair: KeyPair,
    pub(in crate::auth) kid: &'static str,
}

/// Generating a key is slow, so the tests share two.
pub(in crate::auth) static FIRST: LazyLock<Signer> = LazyLock::new(|| Signer::new("first"));
pub(in crate::auth) static SECOND: LazyLock<Signer> = LazyLock::new(|| Signer::new("second"));

impl Signer {
    fn new(kid: &'static str) -> Self {
        Self { pair: KeyPair::generate(KeySize::Rsa2048).unwrap(), kid }
    }

    /// Its entry in a key set.
    pub(in crate::auth) fn published(&self) -> Value {
        let key = self.pair.public_key();
        json!({
            "kty": "RSA",
            "kid": self.kid,
            "n": URL_SAFE_NO_PAD.encode(key.modulus().big_endian_without_leading_zero()),
            "e": URL_SAFE_NO_PAD.encode(key.exponent().big_endian_without_leading_zero()),
        })
    }

    /// The public key in PEM.
    pub(in crate::auth) fn pem(&self) -> String {
        let der: PublicKeyX509Der<'_> = self.pair.public_key().as_der().unwrap();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der.as_ref()))
    }

    /// A token with this payload.
    pub(in crate::auth) fn sign(&self, payload: &Value) -> String {
        self.sign_text(
            &json!({ "alg": "RS256", "kid": self.kid, "$id": "1" }).to_string(),
            &payload.to_string(),
        )
    }

    /// A token with this header and payload.
    pub(in crate::auth) fn sign_text(&self, header: &str, payload: &str) -> String {
        let signed = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let mut signature = vec![0; self.pair.public_modulus_len()];
        let random = SystemRandom::new();
        self.pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}
