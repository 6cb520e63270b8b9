//! Many malformed requests to a worker process: each is answered, none with an internal error or a secret, and the worker keeps
//! running.
//!
//! The first requests are all that the API knows, in order. The others are drawn from a seed: each starts as a known one, and then
//! its method, path, query, headers and body are each sometimes replaced by rubbish, so that most pass the first check and few the
//! last. `TRIBUTARY_TEST_CYCLES_FUZZ` is the number of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::dice::{Dice, seed};
use crate::support::tributary::Tributary;
use crate::support::{Error, Result, Shared, cycles, prefix, run_directory};

/// Requests of the gate.
const REQUESTS: u32 = 250;

crate::tests! {
    // An edit takes tens of milliseconds, on a busy machine ten times as many.
    real no_request_brings_out_a_fault_or_a_secret limit (120 + u64::from(cycles("FUZZ", REQUESTS)) / 4);
}

/// The value of a reference, which no answer and no log line may show.
const REFERRED: &str = "referred-hunter2";
/// Sent as a value, which only the echo of a configuration may show.
const SENT: &str = "sent-hunter2";

/// The requests that the API knows: method, path with the name of a connector at `@`, query.
const KNOWN: [(&str, &str, &str); 37] = [
    ("PUT", "/connectors/@/config", ""),
    ("PUT", "/connectors/@/config", ""),
    ("POST", "/connectors", ""),
    ("PATCH", "/connectors/@/config", ""),
    ("GET", "/connectors/@/config", ""),
    ("GET", "/connectors/@/status", ""),
    ("GET", "/connectors/@/tasks", ""),
    ("GET", "/connectors/@/topics", ""),
    ("GET", "/connectors/@/offsets", ""),
    ("GET", "/connectors", "?expand=status&expand=info"),
    ("GET", "/connectors/@/tasks/0/status", ""),
    ("PUT", "/connectors/@/pause", ""),
    ("PUT", "/connectors/@/resume", ""),
    ("PUT", "/connectors/@/stop", ""),
    ("POST", "/connectors/@/restart", "?includeTasks=true"),
    ("POST", "/connectors/@/tasks/0/restart", ""),
    ("PATCH", "/connectors/@/offsets", ""),
    ("DELETE", "/connectors/@/offsets", ""),
    ("PUT", "/connectors/@/topics/reset", ""),
    ("GET", "/connectors/@/subscriptions", "?all=true"),
    ("GET", "/connectors/@/subscriptions/plan", ""),
    ("POST", "/connectors/@/subscriptions/apply", ""),
    ("POST", "/connectors/@/subscriptions/remove", ""),
    ("GET", "/connectors/@/gaps", ""),
    ("POST", "/connectors/@/gaps/accept", ""),
    ("GET", "/connectors/@/snapshots", ""),
    ("POST", "/connectors/@/snapshots", ""),
    ("GET", "/connectors/@/snapshots/a%2Fb", ""),
    ("PUT", "/connectors/@/snapshots/r/pause", ""),
    ("PUT", "/connectors/@/snapshots/r/resume", ""),
    ("PUT", "/connectors/@/snapshots/r/stop", ""),
    ("GET", "/connectors/@/certificates", "?limit=5&uncertified=true"),
    ("DELETE", "/connectors/@", ""),
    ("PUT", "/connector-plugins/TestSource/config/validate", ""),
    ("PUT", "/admin/loggers/tributary", ""),
    ("PUT", "/admin/loggers/tributary.kafka", "?scope=cluster"),
    ("GET", "/admin/loggers", ""),
];
const METHODS: [&str; 9] = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW"];
const NAMES: [&str; 14] =
    ["a", "b", "a%20b", "%2e%2e", "..", ".", "%ff", "%00", "%0a", "%F0%9F%90%88", "a%2Fb", "", "%", "%zz"];
const RESTS: [&str; 16] = [
    "",
    "/",
    "/config",
    "/status",
    "/tasks",
    "/tasks/0/status",
    "/tasks/-1/restart",
    "/tasks/99999999999/status",
    "/restart",
    "/pause",
    "/resume",
    "/stop",
    "/topics",
    "/topics/reset",
    "/offsets",
    "/tasks-config",
];
const PATHS: [&str; 12] = [
    "/",
    "/connectors",
    "/connectors/",
    "/connector-plugins",
    "/connector-plugins/TestSource/config",
    "/connector-plugins/TestSource/config/validate",
    "/connector-plugins/%ff/config/validate",
    "/admin/loggers",
    "/admin/loggers/tributary",
    "/admin/loggers/%5B%5D%3D",
    "/health",
    "//",
];
const QUERIES: [&str; 8] = [
    "",
    "?expand=status&expand=info",
    "?expand=%ff",
    "?includeTasks=true&onlyFailed=maybe",
    "?scope=cluster",
    "?connectorsOnly=false",
    "?&&==&",
    "?forward=true#x",
];
const HEADERS: [&str; 12] = [
    "Content-Type: application/json\r\n",
    "Content-Type: text/plain\r\n",
    "Content-Type: application/json; charset=\"\r\n",
    "Accept: text/html\r\n",
    "Accept: */*;q=0\r\n",
    "Accept: ,,,;;q=\r\n",
    "Authorization: Basic !!!\r\n",
    "Authorization: Bearer x\r\n",
    "Origin: null\r\n",
    "Origin: http://127.0.0.1\r\n",
    "X-Odd: \u{e4}\u{f6}\r\n",
    "Expect: 100-continue\r\n",
];
const VALUES: [&str; 16] = [
    "1",
    "\"1\"",
    "0",
    "-1",
    "1e400",
    "99999999999999999999",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"zero\"",
    "\"${env:NOT_THERE}\"",
    "\"${file:/etc/shadow:x}\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
];
const KEYS: [&str; 16] = [
    "connector.class",
    "tasks.max",
    "topic",
    "messages",
    "fail.after",
    "secret",
    "name",
    "config",
    "offsets",
    "partition",
    "offset",
    "level",
    "initial_state",
    "transforms",
    "sercet",
    "\\u0000",
];

impl Dice {
    fn now_and_then(&mut self) -> bool {
        self.below(6) == 0
    }

    fn one<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.index(all.len())]
    }
}

struct FuzzRequest {
    /// The bytes to send.
    bytes: Vec<u8>,
    /// For a report.
    line: String,
}

/// The request of this turn.
fn request(dice: &mut Dice, turn: usize, host: &str, topic: &str, reference: &str) -> FuzzRequest {
    let is_drawn = turn >= KNOWN.len();
    let (mut method, path, mut query) = KNOWN[if is_drawn { dice.index(KNOWN.len()) } else { turn }];
    let mut target = path.replace('@', if is_drawn { dice.one(&NAMES[..3]) } else { NAMES[0] });
    let mut headers = HEADERS[0].to_owned();
    let mut body = fitting(dice, method, path, topic, reference);
    if is_drawn && dice.now_and_then() {
        method = dice.one(&METHODS);
    }
    if is_drawn && dice.now_and_then() {
        target = match dice.below(2) {
            0 => dice.one(&PATHS).to_owned(),
            _ => format!("/connectors/{}{}", dice.one(&NAMES), dice.one(&RESTS)),
        };
    }
    if is_drawn && dice.now_and_then() {
        query = dice.one(&QUERIES);
    }
    if is_drawn && dice.now_and_then() {
        headers = format!("{}{}", dice.one(&HEADERS), dice.one(&HEADERS[3..]));
    }
    if is_drawn && dice.now_and_then() {
        body = rubbish(dice);
    }
    let line = format!("{method} {target}{query}");
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    FuzzRequest { bytes: [head.into_bytes(), body].concat(), line }
}

/// A valid body for a known request.
fn fitting(dice: &mut Dice, method: &str, path: &str, topic: &str, reference: &str) -> Vec<u8> {
    let config = format!(
        "{{\"connector.class\":\"TestSource\",\"topic\":\"{topic}\",\"tasks.max\":\"1\",\"secret\":\"{reference}\"}}"
    );
    let text = match (method, path) {
        ("POST", "/connectors") => {
            let name = dice.one(&["a", "b", "a b", " ", "..", "\\n"]);
            format!("{{\"name\":\"{name}\",\"config\":{config}}}")
        }
        ("PATCH", "/connectors/@/offsets") => {
            let count = dice.one(&VALUES);
            format!("{{\"offsets\":[{{\"partition\":{{\"task\":0}},\"offset\":{{\"count\":{count}}}}}]}}")
        }
        ("PATCH", _) => format!("{{{}}}", members(dice)),
        ("PUT", path) if path.starts_with("/admin") => "{\"level\":\"DEBUG\"}".to_owned(),
        ("PUT", path) if path.contains("config") => config,
        _ => return Vec::new(),
    };
    text.into_bytes()
}

fn rubbish(dice: &mut Dice) -> Vec<u8> {
    match dice.below(6) {
        0 => format!("{{\"name\":\"b\",\"config\":{{{}}}}}", members(dice)).into_bytes(),
        1 => format!("{{\"offsets\":[{{{}}}]}}", members(dice)).into_bytes(),
        2 => "[".repeat(dice.index(3000)).into_bytes(),
        3 => (0..dice.below(200)).map(|_| dice.below(256) as u8).collect(),
        _ => format!("{{{}}}", members(dice)).into_bytes(),
    }
}

fn members(dice: &mut Dice) -> String {
    let each = (0..dice.below(5)).map(|_| {
        let sent = format!("\"{SENT}\"");
        let value = if dice.below(4) == 0 { sent.as_str() } else { dice.one(&VALUES) };
        // Answers name a class or a level that does not exist, as in Kafka Connect.
        let key = if value == sent { dice.one(&KEYS[1..6]) } else { dice.one(&KEYS) };
        format!("\"{key}\":{value}")
    });
    each.collect::<Vec<_>>().join(",")
}

async fn send(address: &str, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // The worker may answer and close the connection before all of a refused request is sent.
    stream.write_all(bytes).await.ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn no_request_brings_out_a_fault_or_a_secret(shared: &'static Shared) -> Result<()> {
    let directory = run_directory::create("fuzz")?;
    let file = directory.join("secrets.properties");
    std::fs::write(&file, format!("secret={REFERRED}\n")).map_err(|error| Error(error.to_string()))?;
    let reference = format!("${{file:{}:secret}}", file.display());
    let worker =
        Tributary::start(shared.bootstrap(), "fuzz", &[("log.filter", "info,tributary=debug")]).await?;
    let address = worker.url().trim_start_matches("http://").to_owned();
    let topic = prefix("fuzz");
    let seed = seed();
    let mut dice = Dice(seed);
    let mut answers: BTreeMap<u16, u32> = BTreeMap::new();

    for turn in 0..cycles("FUZZ", REQUESTS) as usize {
        let request = request(&mut dice, turn, &address, &topic, &reference);
        let failed =
            |what: &str| worker.error(&format!("seed {seed}, request {turn}, {}: {what}", request.line));
        let answer = timeout(Duration::from_secs(15), send(&address, &request.bytes)).await;
        let answer = answer.map_err(|_| failed("no answer"))?.map_err(|error| failed(&error.to_string()))?;
        // 100-continue may come before the answer proper.
        let answer = answer.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&answer);
        let status: u16 = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
        *answers.entry(status).or_default() += 1;
        // 503 is right while Kafka or the worker's start takes long; no other 5xx is.
        if !matches!(status, 200..300 | 400..500 | 503) {
            return Err(failed(&format!("answered {answer}")));
        }
        if answer.contains(REFERRED) || status >= 400 && answer.contains(SENT) {
            return Err(failed(&format!("a secret is in {answer}")));
        }
        if !worker.runs() {
            return Err(failed("the worker has ended"));
        }
    }

    let ask = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let health = send(&address, ask.as_bytes()).await.map_err(|error| Error(error.to_string()))?;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let log = worker.said();
    for secret in [REFERRED, SENT, "panicked"] {
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{secret} is in the log: {line:?}");
    }
    println!("answers to rubbish by status: {answers:?}");
    // The requests must reach most parts of the API.
    for status in [200, 201, 202, 204, 400, 404, 405] {
        assert!(answers.contains_key(&status), "nothing was answered {status}: {answers:?}");
    }
    Ok(())
}
