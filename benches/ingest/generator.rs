//! Sends deliveries over persistent HTTP/1.1 connections with as little overhead as possible.
//!
//! One thread sends, another one is the clock. A request is a template in which ids and signature are overwritten; one call
//! sends it, another reads the answer. Every delivery is new, because receivers drop duplicates.
//!
//! - Without a rate, every connection sends one request after the other. Each is one company, so its order is known.
//! - With a rate, request k is due at `k / rate`, whatever happened to the others; a free connection takes the next request
//!   that is due, and its latency counts from when it was due. So a stalled receiver is charged for every request it delayed.
//!   The clock is a thread that sleeps: tokio's timers would be a millisecond late.
//!
//! A broken connection is reopened and its request counted; whether that request arrived is unknown.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::TlsConnector;

use crate::oracle::delivery::{Maker, SIGNATURE_HEADER};
use crate::oracle::ledger::{Answer, Ledger};
use crate::oracle::senders::Target;
use crate::oracle::worker::SECRET;

/// Longer than the provider waits, so that a late answer is recorded as late.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Delay before the next connection attempt.
const RECONNECT_DELAY: Duration = Duration::from_millis(50);

/// What to send.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) connections: u32,
    /// Deliveries a second; `None` for full speed.
    pub(crate) rate: Option<u32>,
    /// Companies in deliveries with a rate.
    pub(crate) companies: u32,
    pub(crate) time: Duration,
}

/// Result of a load.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Time to each answer, in microseconds, sorted.
    pub(crate) micros: Vec<u32>,
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests without an answer.
    pub(crate) broken: u64,
    pub(crate) took: Duration,
}

impl Outcome {
    /// Answers a second.
    pub(crate) fn rate(&self) -> f64 {
        self.micros.len() as f64 / self.took.as_secs_f64()
    }

    /// Milliseconds within which this share of the answers arrived.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let last = self.micros.len().saturating_sub(1);
        self.micros.get((last as f64 * part) as usize).map_or(f64::NAN, |micros| f64::from(*micros) / 1000.0)
    }

    /// Whether every request was answered 200.
    pub(crate) fn is_clean(&self) -> bool {
        self.broken == 0 && self.statuses.keys().all(|status| *status == 200)
    }
}

/// Deliveries and their ledger. No two deliveries of a book have the same number.
#[derive(Clone)]
pub(crate) struct Book {
    pub(crate) maker: Maker,
    pub(crate) ledger: Arc<Ledger>,
    next: Arc<AtomicU64>,
}

impl Book {
    pub(crate) fn new() -> Self {
        let maker = Maker::new(SECRET, std::process::id());
        Self { maker, ledger: Arc::new(Ledger::new()), next: Arc::default() }
    }
}

/// Sends from a separate thread; ends after the load's duration, or soon after `stop` is set.
pub(crate) async fn run(target: &Target, load: Load, book: &Book, stop: Arc<AtomicBool>) -> Outcome {
    let (target, book) = (target.clone(), book.clone());
    let sending = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, send(&target, load, book, stop))
    });
    sending.await.unwrap()
}

/// Sends to a receiver in this process: a smoke test.
pub(crate) fn try_out() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let router = axum::Router::new().fallback(async || axum::http::StatusCode::OK);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        for rate in [None, Some(500)] {
            let load = Load { connections: 4, rate, companies: 8, time: Duration::from_millis(200) };
            let target = Target { url: url.clone(), certificate: None };
            let outcome = run(&target, load, &Book::new(), Arc::default()).await;
            assert!(outcome.is_clean() && !outcome.micros.is_empty(), "{outcome:?}");
        }
        serving.abort();
    });
}

/// State shared by the connections.
struct Shared {
    book: Book,
    place: Place,
    load: Load,
    clock: Arc<Clock>,
    /// Number of the next request.
    turn: Cell<u64>,
    outcome: RefCell<Outcome>,
}

/// When requests are due.
struct Clock {
    began: Instant,
    ends: Instant,
    stop: Arc<AtomicBool>,
    rate: Option<u32>,
    /// Requests that are due and not yet taken by a connection.
    due: Semaphore,
    /// Requests that became due in total; `u64::MAX` until the clock has ended.
    total: AtomicU64,
}

async fn send(target: &Target, load: Load, book: Book, stop: Arc<AtomicBool>) -> Outcome {
    let place = Place::of(target);
    let mut streams = Vec::new();
    // Connect before the clock starts, so that connecting is not measured.
    for _ in 0..load.connections {
        streams.push(place.connect().await.unwrap());
    }
    let began = Instant::now();
    let clock = Arc::new(Clock {
        began,
        ends: began + load.time,
        stop,
        rate: load.rate,
        due: Semaphore::new(0),
        total: AtomicU64::new(u64::MAX),
    });
    let pace = load.rate.map(|rate| {
        let (clock, connections) = (Arc::clone(&clock), load.connections as usize);
        std::thread::spawn(move || clock.run(rate, connections))
    });
    let (turn, outcome) = (Cell::new(0), RefCell::default());
    let shared = Rc::new(Shared { book, place, load, clock, turn, outcome });
    let mut tasks = JoinSet::new();
    for (number, stream) in streams.into_iter().enumerate() {
        tasks.spawn_local(connection(Rc::clone(&shared), number as u32, stream));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    if let Some(pace) = pace {
        pace.join().unwrap();
    }
    let mut outcome = shared.outcome.take();
    outcome.took = began.elapsed();
    outcome.micros.sort_unstable();
    outcome
}

impl Clock {
    /// Releases requests when they are due, until the end.
    fn run(&self, rate: u32, connections: usize) {
        let mut given = 0;
        while !self.is_over() {
            let due = (self.began.elapsed().as_secs_f64() * f64::from(rate)) as u64 + 1;
            self.due.add_permits((due - given) as usize);
            given = due;
            std::thread::sleep(self.due_at(given).saturating_sub(self.began.elapsed()));
        }
        self.total.store(given, Ordering::Release);
        // One permit per connection, so that each wakes up and ends.
        self.due.add_permits(connections);
    }

    fn due_at(&self, turn: u64) -> Duration {
        Duration::from_secs_f64(turn as f64 / f64::from(self.rate.unwrap_or(1)))
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends || self.stop.load(Ordering::Relaxed)
    }
}

async fn connection(shared: Rc<Shared>, number: u32, mut stream: Box<dyn Stream>) {
    let mut request = Request::new(&shared.place);
    let mut answer = Vec::with_capacity(1024);
    while let Some((company, due)) = shared.next(number).await {
        let delivery = shared.book.next.fetch_add(1, Ordering::Relaxed);
        request.write(&shared.book.maker, company, delivery);
        let maker = &shared.book.maker;
        let place = shared.book.ledger.sent(maker.id(company, delivery), maker.company(company));
        let sent = Instant::now();
        let asked =
            tokio::time::timeout(ANSWER_TIMEOUT, exchange(&mut *stream, request.bytes(), &mut answer));
        let asked = asked.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        // The ledger gets only the receiver's own time, without the wait for a free connection.
        let took = sent.elapsed();
        match asked {
            Ok(status) => {
                shared.book.ledger.answered(place, Answer::Status { status, took, own: took, proper: true });
                let mut outcome = shared.outcome.borrow_mut();
                *outcome.statuses.entry(status).or_default() += 1;
                outcome.micros.push(due.elapsed().as_micros() as u32);
            }
            Err(error) => {
                let silent = error.kind() == io::ErrorKind::TimedOut;
                let answer = if silent { Answer::Silent(took) } else { Answer::Broken(took) };
                shared.book.ledger.answered(place, answer);
                shared.outcome.borrow_mut().broken += 1;
                match shared.reconnect().await {
                    Some(next) => stream = next,
                    None => return,
                }
            }
        }
    }
}

impl Shared {
    /// The company of the next request, and when it was due.
    async fn next(&self, connection: u32) -> Option<(u32, Instant)> {
        if self.clock.rate.is_none() {
            return (!self.clock.is_over()).then(|| (connection, Instant::now()));
        }
        // Requests that were due before the end are still sent: skipping them would hide the slowest answers.
        self.clock.due.acquire().await.ok()?.forget();
        let turn = self.turn.replace(self.turn.get() + 1);
        if turn >= self.clock.total.load(Ordering::Acquire) {
            return None;
        }
        Some(((turn % u64::from(self.load.companies)) as u32, self.clock.began + self.clock.due_at(turn)))
    }

    async fn reconnect(&self) -> Option<Box<dyn Stream>> {
        while !self.clock.is_over() {
            if let Ok(stream) = self.place.connect().await {
                return Some(stream);
            }
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
        None
    }
}

/// Sends a request, reads the whole answer and returns its status.
async fn exchange(stream: &mut dyn Stream, request: &[u8], answer: &mut Vec<u8>) -> io::Result<u16> {
    stream.write_all(request).await?;
    stream.flush().await?;
    answer.clear();
    loop {
        if stream.read_buf(answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&answer[..end]).map_err(io::Error::other)?;
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        if answer.len() >= end + 4 + length.unwrap_or(0) {
            return status.ok_or_else(|| io::Error::other("the answer is no HTTP"));
        }
    }
}

/// Where and how to connect.
struct Place {
    address: SocketAddr,
    path: String,
    tls: Option<TlsConnector>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

impl Place {
    fn of(target: &Target) -> Self {
        let url: url::Url = target.url.parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], url.port().unwrap()));
        let tls = target.certificate.as_ref().map(|pem| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
            let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            TlsConnector::from(Arc::new(config))
        });
        Self { address, path: url.path().to_owned(), tls }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from("127.0.0.1").map_err(io::Error::other)?;
                Box::new(tls.connect(name, stream).await?)
            }
        })
    }
}

/// A request in one buffer.
struct Request {
    bytes: Vec<u8>,
    body: Vec<u8>,
    head: usize,
    signature: usize,
}

impl Request {
    fn new(place: &Place) -> Self {
        let mut body = Vec::new();
        let blank = Maker::new("any", 0).write(0, 0, &mut body);
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             x-forwarded-for: 198.51.100.7\r\n{SIGNATURE_HEADER}: ",
            place.path,
            place.address,
            body.len()
        );
        let signature = head.len();
        head += std::str::from_utf8(&blank).unwrap();
        head += "\r\n\r\n";
        let head_bytes = head.len();
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body);
        Self { bytes, body, head: head_bytes, signature }
    }

    fn write(&mut self, maker: &Maker, company: u32, number: u64) {
        let signature = maker.write(company, number, &mut self.body);
        self.bytes[self.signature..][..signature.len()].copy_from_slice(&signature);
        self.bytes[self.head..].copy_from_slice(&self.body);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
