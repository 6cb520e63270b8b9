//! A public listener with its routes, a sink that records deliveries, and clients that write raw bytes.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_lc_rs::hmac;
use server::Server;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, mpsc},
    time::timeout,
};
use tributary::{
    config::{Providers, WebhookSource},
    webhooks::{
        delivery::{Delivery, DeliveryContent},
        intake::{Accept, DeliveryOutcome},
        receiver::{self, AcknowledgeNote, Oversized},
        receiver_table::{FaultyReceiver, Receiver, ReceiverState, Receivers},
    },
};

/// Limit for each step; only a failing test reaches it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const SECRET: &str = "the accounting secret of today";
pub(super) const PREVIOUS: &str = "the accounting secret of yesterday";
pub(super) const MASTER: &str = "the invoicing secret of today, long enough";
pub(super) const PREVIOUS_MASTER: &str = "the invoicing secret of yesterday, long enough";
pub(super) const ACCOUNTING: &str = "/webhooks/accounting/hooks";
pub(super) const INVOICING: &str = "/api/webhooks/incoming/Invoicing";
/// Bytes of the largest accounting delivery here.
pub(super) const LIMIT: usize = 64 << 10;

/// Records deliveries, and answers them as the test says.
pub(super) struct DeliverySink {
    deliveries: Mutex<Vec<(Delivery, DeliveryContent)>>,
    outcome: Mutex<DeliveryOutcome>,
    /// Whether answers wait for [`DeliverySink::release`].
    held: Mutex<bool>,
    came: Notify,
    release: Notify,
}

impl DeliverySink {
    async fn take(&self, delivery: Delivery, content: DeliveryContent) -> DeliveryOutcome {
        self.deliveries.lock().unwrap().push((delivery, content));
        let held = *self.held.lock().unwrap();
        self.came.notify_one();
        if held {
            self.release.notified().await;
        }
        *self.outcome.lock().unwrap()
    }

    fn accept(self: &Arc<Self>) -> Accept {
        let taken = Arc::clone(self);
        Arc::new(move |delivery, content, _| {
            let taken = Arc::clone(&taken);
            Box::pin(async move { taken.take(delivery, content).await })
        })
    }

    /// The deliveries since the last call.
    pub(super) fn drain(&self) -> Vec<(Delivery, DeliveryContent)> {
        std::mem::take(&mut *self.deliveries.lock().unwrap())
    }

    /// Sets the outcome of later deliveries.
    pub(super) fn end_with(&self, outcome: DeliveryOutcome) {
        *self.outcome.lock().unwrap() = outcome;
    }

    /// Sets whether answers wait for [`DeliverySink::release`].
    pub(super) fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
    }

    /// Sends one held answer.
    pub(super) fn release(&self) {
        self.release.notify_one();
    }

    /// Waits until another delivery has come.
    pub(super) async fn came(&self) {
        timeout(PATIENCE, self.came.notified()).await.unwrap();
    }
}

/// Settings of a rig.
pub(super) struct RigSettings {
    pub(super) config: BTreeMap<String, String>,
    pub(super) server: server::ServerOptions,
    pub(super) receiver: receiver::ReceiverOptions,
}

impl RigSettings {
    pub(super) fn set(&mut self, key: &str, value: &str) {
        self.config.insert(key.to_owned(), value.to_owned());
    }
}

/// A listener on loopback with one connector, `hooks`.
pub(super) struct Rig {
    pub(super) address: SocketAddr,
    pub(super) taken: Arc<DeliverySink>,
    pub(super) acknowledged: mpsc::Receiver<AcknowledgeNote>,
    pub(super) oversized: mpsc::Receiver<Oversized>,
    receivers: Receivers,
    source: WebhookSource,
    config: BTreeMap<String, String>,
    pub(super) _server: Server,
}

impl Rig {
    pub(super) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut RigSettings)) -> Self {
        for secret in [SECRET, PREVIOUS, MASTER, PREVIOUS_MASTER] {
            crate::support::traced::hide("a secret of a receiver", secret);
        }
        let config = [
            ("connector.class", "WebhookSource"),
            ("topic.prefix", "acme"),
            ("accounting.resources", "all"),
            ("accounting.secret", SECRET),
            ("accounting.secret.previous", PREVIOUS),
            ("invoicing.hooks", "Customer:Created,Customer:Updated,SaleInvoice:Updated"),
            ("invoicing.secret", MASTER),
            ("invoicing.secret.previous", PREVIOUS_MASTER),
            ("subscriptions.manage", "false"),
        ];
        let (oversized_sender, oversized) = mpsc::channel(4);
        let mut setup = RigSettings {
            config: config.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            server: server::ServerOptions { connections: 4_096, ..server::ServerOptions::default() },
            // Generous, because the machine may be busy; tests of this limit shorten it.
            receiver: receiver::ReceiverOptions {
                body_time: PATIENCE,
                oversized: Some(oversized_sender),
                acknowledge_time: Duration::from_millis(100),
                ..receiver::ReceiverOptions::default()
            },
        };
        setup.set("body.limit.bytes", &LIMIT.to_string());
        change(&mut setup);
        let (source, _) = WebhookSource::parse("hooks", &setup.config, &Providers::new([])).unwrap();
        let receivers = Receivers::new();
        let taken = Arc::new(DeliverySink {
            deliveries: Mutex::default(),
            outcome: Mutex::new(DeliveryOutcome::Durable),
            held: Mutex::new(false),
            came: Notify::new(),
            release: Notify::new(),
        });
        let (acknowledged_sender, acknowledged) = mpsc::channel(1);
        let router = receiver::router(receivers.clone(), taken.accept(), acknowledged_sender, setup.receiver);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = Server::start(listener, router, setup.server).unwrap();
        let rig = Self {
            address: server.address(),
            taken,
            acknowledged,
            oversized,
            receivers,
            source,
            config: setup.config,
            _server: server,
        };
        rig.set_state(ReceiverState::Running);
        rig
    }

    /// Sets which deliveries the connector accepts.
    pub(super) fn set_state(&self, state: ReceiverState) {
        let receiver = Receiver::of(&self.source, "acme.dead-letters".to_owned(), state).unwrap();
        self.receivers.set(vec![Arc::new(receiver)], Vec::new());
    }

    /// Makes the connector faulty.
    pub(super) fn fail(&self) {
        self.receive(Vec::new(), &["hooks"]);
    }

    /// The receiver of a connector that is configured like `hooks`, with these changes.
    pub(super) fn receiver(
        &self,
        name: &str,
        changes: &[(&str, &str)],
        state: ReceiverState,
    ) -> Arc<Receiver> {
        let mut config = self.config.clone();
        config.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let (source, _) = WebhookSource::parse(name, &config, &Providers::new([])).unwrap();
        Arc::new(Receiver::of(&source, "acme.dead-letters".to_owned(), state).unwrap())
    }

    /// Receives these connectors alone; `faulty` ones have the segment too.
    pub(super) fn receive(&self, receivers: Vec<Arc<Receiver>>, faulty: &[&str]) {
        let segment = || Some("Invoicing".to_owned());
        let faulty =
            faulty.iter().map(|name| FaultyReceiver { connector: (*name).to_owned(), segment: segment() });
        self.receivers.set(receivers, faulty.collect());
    }

    /// Sets whether configurations are still missing.
    pub(super) fn set_not_loaded(&self, not_loaded: bool) {
        self.receivers.set_not_loaded(not_loaded);
    }

    /// Sends one request and reads its answer.
    pub(super) async fn ask(&self, request: &[u8]) -> Answer {
        let answers = self.send(request).await;
        assert_eq!(answers.len(), 1, "{answers:?} to {}", String::from_utf8_lossy(request));
        answers.into_iter().next().unwrap()
    }

    /// Sends bytes over a new connection, and reads all answers until it ends.
    pub(super) async fn send(&self, bytes: &[u8]) -> Vec<Answer> {
        exchange(TcpStream::connect(self.address).await.unwrap(), bytes).await
    }

    /// Sends bytes and closes this direction, so that a receiver that waits for more does not hang.
    pub(super) async fn send_and_end(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut read = Vec::new();
        let talk = async {
            // After an early refusal the connection may close before all is written.
            stream.write_all(bytes).await.ok();
            stream.shutdown().await.ok();
            stream.read_to_end(&mut read).await.ok();
        };
        timeout(PATIENCE, talk)
            .await
            .unwrap_or_else(|_| panic!("no end to {}", String::from_utf8_lossy(bytes)));
        Answer::all(&read)
    }

    /// A connection from this address of loopback.
    pub(super) async fn connect_from(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }
}

/// Writes and reads until the connection ends, as `connection: close` requires.
pub(super) async fn exchange(mut stream: TcpStream, bytes: &[u8]) -> Vec<Answer> {
    let (mut from, mut to) = stream.split();
    let mut read = Vec::new();
    let reading = async {
        // A reset after the answer is the end as well.
        from.read_to_end(&mut read).await.ok();
    };
    // A client that is cut off while it writes has its answer already, or gets none.
    let writing = async { to.write_all(bytes).await.ok() };
    let both = async { tokio::join!(reading, writing) };
    timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("no end to {}", String::from_utf8_lossy(bytes)));
    Answer::all(&read)
}

/// An answer as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Header lines, without the date.
    pub(super) headers: Vec<String>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// All answers in what a connection sent.
    fn all(mut bytes: &[u8]) -> Vec<Self> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
            let head = str::from_utf8(&bytes[..end]).unwrap();
            let mut lines = head.split("\r\n").map(str::to_owned);
            let status = lines.next().unwrap()["HTTP/1.1 ".len()..][..3].parse().unwrap();
            let headers: Vec<_> = lines.filter(|line| !line.starts_with("date:")).collect();
            let length = headers.iter().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            let body = bytes[end + 4..][..length].to_vec();
            bytes = &bytes[end + 4 + length..];
            answers.push(Self { status, headers, body });
        }
        answers
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A request with a body of stated length, after which the connection ends.
pub(super) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n", body.len());
    [text.as_bytes(), body].concat()
}

/// An accounting delivery with this signature.
pub(super) fn accounting(signature: &str, body: &[u8]) -> Vec<u8> {
    request("POST", ACCOUNTING, &[("svc-webhook-signature", signature)], body)
}

/// An accounting delivery as the provider sends it.
pub(super) fn signed(body: &[u8]) -> Vec<u8> {
    accounting(&sign(SECRET, body), body)
}

/// The signature, made without the product's code.
pub(super) fn sign(secret: &str, body: &[u8]) -> String {
    let digest = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body);
    digest.as_ref().iter().fold("sha256=".to_owned(), |text, byte| format!("{text}{byte:02X}"))
}

/// The secret of an invoicing hook, derived without the product's code.
pub(super) fn hook_secret(master: &str, hook: &str) -> String {
    sign(master, hook.as_bytes())["sha256=".len()..].to_lowercase()
}

/// The body of an event with this id.
pub(super) fn event(id: &str) -> Vec<u8> {
    let event = serde_json::json!({
        "WebhookId": "5e1d0c6e-0b52-4bd0-9d32-1b6f0d0f7a01",
        "OutgoingId": id,
        "TenantId": "17",
        "ExtraPartitionInformation": {"PartitionClientId": "acc:17:CM:9f", "UserName": "ann"},
        "EventType": {
            "AppName": "Svc", "Domain": "ACC", "Resource": "Customers", "EventType": "CustomerUpdated",
            "SemanticName": "Svc.ACC.Customers.CustomerUpdated",
        },
        "Timestamp": 638_000_000_000_000_000_i64,
        "JsonData": "{\"CorrelationId\":\"acc:17:CU:1\",\"SequenceVersion\":\"7\"}",
    });
    serde_json::to_vec(&event).unwrap()
}

/// Bytes as one chunk.
pub(super) fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
