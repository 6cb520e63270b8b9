#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    Extension,
    body::{Body, Bytes},
    response::IntoResponse,
    routing::get,
};
use futures::StreamExt as _;
use http::Version;
use parking_lot::Mutex;
use rustls::pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Semaphore, mpsc, oneshot},
};

use super::*;

/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(60);
/// A limit that tests wait for.
const SHORT: Duration = Duration::from_millis(50);
/// An idle limit that tests wait for; long enough for a client to send its request.
const QUIET: Duration = Duration::from_secs(1);

#[tokio::test]
async fn http_1_and_2_work_with_and_without_tls() {
    let peer = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
    let router = Router::new().route("/", get(peer));
    let (tls, certificate) = tls();
    let plain = start(router.clone(), options()).await;
    let secure = start(router, ServerOptions { tls: Some(tls), ..options() }).await;
    let (plain, secure) = (url("http", &plain), url("https", &secure));
    let trusting = || client().tls_certs_only([certificate.clone()]);

    for (client, url, version) in [
        (client(), &plain, Version::HTTP_11),
        (client().http2_prior_knowledge(), &plain, Version::HTTP_2),
        (trusting().http1_only(), &secure, Version::HTTP_11),
        (trusting(), &secure, Version::HTTP_2),
    ] {
        let response = client.build().unwrap().get(url).send().await.unwrap();

        assert_eq!((response.status().as_u16(), response.version()), (200, version), "{url}");
        assert_eq!(response.text().await.unwrap(), "127.0.0.1", "{url}");
    }
}

#[tokio::test]
async fn a_hang_up_fails_one_request_only() {
    let router = Router::new()
        .route("/hang-up", get(|| async { (Extension(HangUp), "never sent").into_response() }))
        .route("/", get(|| async { "fine" }));
    let server = start(router, options()).await;
    let url = url("http", &server);

    for client in [client(), client().http2_prior_knowledge()] {
        let client = client.build().unwrap();

        let hung_up = client.get(format!("{url}hang-up")).send().await;
        let fine = client.get(&url).send().await.unwrap().text().await.unwrap();

        assert!(hung_up.is_err_and(|error| error.is_request()));
        assert_eq!(fine, "fine");
    }
}

#[tokio::test]
async fn a_hang_up_ends_the_connection_without_a_byte() {
    let router = Router::new().route("/", get(|| async { Extension(HangUp).into_response() }));
    let server = start(router, options()).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();

    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    timeout(LONG / 4, stream.read_to_end(&mut read)).await.unwrap().unwrap();

    assert_eq!(read, b"");
}

#[tokio::test]
async fn close_after_sends_the_response_and_ends_the_connection() {
    let port = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.port().to_string() };
    let last = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move {
        (Extension(CloseAfter), peer.port().to_string()).into_response()
    };
    let router = Router::new().route("/", get(port)).route("/last", get(last));
    let server = start(router, options()).await;
    let url = url("http", &server);

    for client in [client(), client().http2_prior_knowledge()] {
        let client = client.build().unwrap();
        let ask = async |path: &str| {
            let response = client.get(format!("{url}{path}")).send().await.unwrap();
            response.text().await.unwrap()
        };

        let (first, second, last) = (ask("").await, ask("").await, ask("last").await);
        // The client may not have seen the end yet, and then uses another connection anyway.
        let next = ask("").await;

        assert_eq!((&first, &first), (&second, &last), "a connection is used again and again");
        assert_ne!(next, last);
    }
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(b"GET /last HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    timeout(LONG / 4, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    assert!(read.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_silent_handshake_blocks_no_other_and_times_out() {
    let (tls, certificate) = tls();
    let router = Router::new().route("/", get(|| async { "fine" }));
    let server = start(router, ServerOptions { tls: Some(tls), handshake: SHORT, ..options() }).await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();

    let client = client().tls_certs_only([certificate]).build().unwrap();
    // Its own handshake has the same short limit: retry on a busy machine.
    let answered = async {
        loop {
            if let Ok(answer) = client.get(url("https", &server)).send().await {
                break answer.text().await.unwrap();
            }
        }
    };
    let fine = timeout(LONG, answered).await.unwrap();
    let mut read = Vec::new();
    silent.read_to_end(&mut read).await.unwrap();

    assert_eq!(fine, "fine");
    assert_eq!(read, b"");
}

#[tokio::test]
async fn a_stop_waits_for_running_requests_and_takes_no_new_ones() {
    for http2 in [false, true] {
        let (server, mut started, release) = start_held().await;
        let address = server.address();
        let client = if http2 { client().http2_prior_knowledge() } else { client() }.build().unwrap();
        let running = tokio::spawn(client.get(url("http", &server)).send());
        started.recv().await.unwrap();

        let stopping = tokio::spawn(server.stop(LONG));
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!stopping.is_finished());
        release.send(()).unwrap();

        assert_eq!(running.await.unwrap().unwrap().text().await.unwrap(), "held", "http2: {http2}");
        assert!(stopping.await.unwrap(), "http2: {http2}");
    }
}

#[tokio::test]
async fn a_stop_cuts_requests_at_its_deadline() {
    for http2 in [false, true] {
        let (server, mut started, mut release) = start_held().await;
        let client = if http2 { client().http2_prior_knowledge() } else { client() }.build().unwrap();
        let running = tokio::spawn(client.get(url("http", &server)).send());
        started.recv().await.unwrap();

        let finished = server.stop(SHORT).await;

        assert!(!finished, "http2: {http2}");
        assert!(running.await.unwrap().is_err(), "http2: {http2}");
        // The handler ends too, not only its connection.
        release.closed().await;
    }
}

#[tokio::test]
async fn a_stop_without_requests_ends_idle_connections_at_once() {
    let (server, _, _) = start_held().await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();

    let finished = server.stop(LONG).await;
    let mut read = Vec::new();
    // A connection that the server has not accepted yet is reset.
    silent.read_to_end(&mut read).await.ok();

    assert!(finished);
    assert_eq!(read, b"");
}

#[tokio::test]
async fn dropping_the_server_cuts_everything() {
    let (server, mut started, mut release) = start_held().await;
    let running = tokio::spawn(client().build().unwrap().get(url("http", &server)).send());
    started.recv().await.unwrap();

    drop(server);

    assert!(running.await.unwrap().is_err());
    release.closed().await;
}

#[tokio::test]
async fn open_connections_stay_within_the_limit() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let release = Arc::new(Semaphore::new(0));
    let (events, mut started) = mpsc::channel(8);
    let handler = {
        let (most, release) = (Arc::clone(&most), Arc::clone(&release));
        || async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            events.send(()).await.unwrap();
            release.acquire().await.unwrap().forget();
            now.fetch_sub(1, Ordering::SeqCst);
            [("connection", "close")]
        }
    };
    let server =
        start(Router::new().route("/", get(handler)), ServerOptions { connections: 2, ..options() }).await;

    // All clients ask before any request is released, so a third slot would show.
    let mut clients = Vec::new();
    for number in 0..8 {
        let mut client = TcpStream::connect(server.address()).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        clients.push(client);
        // The running requests of these two keep them from being evicted.
        if number < 2 {
            started.recv().await.unwrap();
        }
    }
    for _ in 2..8 {
        release.add_permits(1);
        started.recv().await.unwrap();
    }
    release.add_permits(2);

    for mut client in clients {
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 200"));
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn idle_connections_are_evicted_oldest_first() {
    let (tls, certificate) = tls();
    let router = Router::new().route("/", get(|| async { "fine" }));
    for tls in [None, Some(tls)] {
        let (scheme, half) = match tls {
            None => ("http", &b"GET / HTTP/1.1\r\nhost:"[..]),
            // The start of the first handshake message.
            Some(_) => ("https", &b"\x16\x03\x01\x02\x00\x01"[..]),
        };
        let server = start(router.clone(), ServerOptions { tls, connections: 3, ..options() }).await;
        // Nothing, half of a message, and a request that was answered.
        let mut silent = TcpStream::connect(server.address()).await.unwrap();
        let mut halfway = TcpStream::connect(server.address()).await.unwrap();
        halfway.write_all(half).await.unwrap();
        let mut kept = Vec::new();
        let mut ask = async || {
            let client = client().tls_certs_only([certificate.clone()]).build().unwrap();
            let answer = client.get(url(scheme, &server)).send().await.unwrap().text().await.unwrap();
            // Keeps its connection open.
            kept.push(client);
            answer
        };
        assert_eq!(ask().await, "fine");

        for stream in [&mut silent, &mut halfway] {
            assert_eq!(ask().await, "fine");
            let ended = timeout(LONG / 2, stream.read(&mut [0; 1])).await;
            assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{scheme}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_with_a_running_request_is_not_evicted() {
    for http2 in [false, true] {
        let (events, mut started) = mpsc::channel(8);
        let release = Arc::new(Semaphore::new(0));
        let handler = {
            let release = Arc::clone(&release);
            // Reads its whole body, as the delivery handler does.
            |body: Bytes| async move {
                events.send(()).await.unwrap();
                release.acquire().await.unwrap().forget();
                body
            }
        };
        let router =
            Router::new().route("/held", axum::routing::post(handler)).route("/", get(|| async { "fine" }));
        let server = start(router, ServerOptions { connections: 2, ..options() }).await;
        let address = server.address();
        let client = if http2 { client().http2_prior_knowledge() } else { client() }.build().unwrap();
        let held = tokio::spawn(client.post(format!("http://{address}/held")).body("mine").send());
        started.recv().await.unwrap();
        let mut reading = TcpStream::connect(address).await.unwrap();
        let head = b"POST /held HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\nha";
        reading.write_all(head).await.unwrap();

        // Wait for much longer than an idle connection could stay.
        let ask = || reqwest::Client::builder().no_proxy().build().unwrap().get(url("http", &server)).send();
        let kept_out = timeout(Duration::from_secs(3), ask()).await;
        reading.write_all(b"lf").await.unwrap();
        release.add_permits(2);
        let mut read = Vec::new();
        timeout(LONG / 2, reading.read_to_end(&mut read)).await.unwrap().unwrap();

        assert!(kept_out.is_err(), "http2: {http2}");
        assert!(read.starts_with(b"HTTP/1.1 200") && read.ends_with(b"half"), "http2: {http2}");
        assert_eq!(held.await.unwrap().unwrap().text().await.unwrap(), "mine", "http2: {http2}");
        assert!(timeout(LONG / 2, ask()).await.unwrap().is_ok(), "http2: {http2}");
    }
}

#[tokio::test]
async fn an_address_at_its_limit_is_refused_and_others_are_served() {
    let options =
        ServerOptions { per_address: 2, exempt: vec!["127.0.0.3/32".parse().unwrap()], ..options() };
    let server = start(Router::new().route("/", get(|| async { "fine" })), options).await;
    let ask = async |host: u8| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
        let mut stream = socket.connect(server.address()).await.unwrap();
        // A refused connection may be closed before this is sent.
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.ok();
        let served = timeout(LONG / 2, stream.read(&mut [0; 1])).await.unwrap().is_ok_and(|read| read == 1);
        served.then_some(stream)
    };

    let mut one = vec![ask(1).await.unwrap(), ask(1).await.unwrap()];
    assert!(ask(1).await.is_none());
    assert!(ask(2).await.is_some());
    for _ in 0..5 {
        one.push(ask(3).await.unwrap());
    }
    one.swap_remove(0);

    timeout(LONG / 2, async { while ask(1).await.is_none() {} }).await.unwrap();
}

#[tokio::test]
async fn a_connection_without_a_whole_request_times_out() {
    let server = start(Router::new(), ServerOptions { head: SHORT, ..options() }).await;
    let preface_and_settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    for sent in
        [&b""[..], b"GET / HT", b"GET / HTTP/1.1\r\nhost: a\r\n", b"PRI * HTTP/2.0", preface_and_settings]
    {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(sent).await.unwrap();

        let mut read = Vec::new();
        let ended = timeout(LONG / 4, stream.read_to_end(&mut read)).await;

        assert!(ended.is_ok(), "{}", String::from_utf8_lossy(sent));
    }
}

#[tokio::test]
async fn a_slow_handler_or_body_is_not_inactivity() {
    let (events, mut started) = mpsc::channel(4);
    let (release, held) = mpsc::channel::<()>(4);
    let held = Arc::new(tokio::sync::Mutex::new(held));
    let handler = || async move {
        events.send(()).await.unwrap();
        held.lock().await.recv().await.unwrap();
        let slow = futures::stream::once(async move {
            events.send(()).await.unwrap();
            held.lock().await.recv().await.unwrap();
            Ok::<_, Infallible>(Bytes::from_static(b"late"))
        });
        Body::from_stream(slow)
    };
    let server =
        start(Router::new().route("/", get(handler)), ServerOptions { head: QUIET, ..options() }).await;
    let address = server.address();
    let answer = tokio::spawn(async move {
        let response = client().build().unwrap().get(format!("http://{address}/")).send().await;
        response.unwrap().text().await
    });

    for _ in ["the handler", "the body"] {
        timeout(LONG, started.recv()).await.unwrap().unwrap();
        // Two idle times in a row exceed the limit, whenever the handler started.
        silence(address).await;
        silence(address).await;
        release.send(()).await.unwrap();
    }

    assert_eq!(answer.await.unwrap().unwrap(), "late");
}

#[tokio::test]
async fn a_client_that_reads_no_response_times_out() {
    let (gone, was_dropped) = oneshot::channel::<()>();
    let gone = Arc::new(Mutex::new(Some(gone)));
    let handler = || async move {
        let kept = gone.lock().take();
        Body::from_stream(futures::stream::repeat(Bytes::from_static(&[0; 65_536])).map(move |chunk| {
            let _kept = &kept;
            Ok::<_, Infallible>(chunk)
        }))
    };
    let server =
        start(Router::new().route("/", get(handler)), ServerOptions { head: QUIET, ..options() }).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();

    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();

    assert!(timeout(LONG / 4, was_dropped).await.unwrap().is_err());
}

#[tokio::test]
async fn a_connection_is_reused_for_further_requests() {
    let peers = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&peers);
    let handler = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move {
        seen.lock().insert(peer);
    };
    let server = start(Router::new().route("/", get(handler)), options()).await;
    let client = client().build().unwrap();

    for _ in 0..5 {
        client.get(url("http", &server)).send().await.unwrap().bytes().await.unwrap();
    }

    assert_eq!(peers.lock().len(), 1);
}

/// Waits for the idle time: until a silent connection was ended.
async fn silence(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    timeout(LONG / 4, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
}

/// A server whose only handler reports its start and answers once released. The release channel closes when the handler is gone.
async fn start_held() -> (Server, mpsc::Receiver<()>, oneshot::Sender<()>) {
    let (events, started) = mpsc::channel(1);
    let (release, held) = oneshot::channel::<()>();
    let held = Arc::new(Mutex::new(Some(held)));
    let handler = || async move {
        let held = held.lock().take().unwrap();
        events.send(()).await.unwrap();
        held.await.unwrap();
        "held"
    };
    (start(Router::new().route("/", get(handler)), options()).await, started, release)
}

async fn start(router: Router, options: ServerOptions) -> Server {
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    Server::start(listener, router, options).unwrap()
}

fn options() -> ServerOptions {
    ServerOptions { tls: None, connections: 16, handshake: LONG, head: LONG, ..ServerOptions::default() }
}

fn client() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().timeout(LONG)
}

fn url(scheme: &str, server: &Server) -> String {
    format!("{scheme}://{}/", server.address())
}

/// A TLS configuration that offers both versions, and its certificate.
fn tls() -> (Arc<rustls::ServerConfig>, reqwest::Certificate) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (Arc::new(config), reqwest::Certificate::from_der(&certificate).unwrap())
}
