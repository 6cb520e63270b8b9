//! The proxy: held bytes arrive later, and cut connections end at once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::Proxy;

crate::tests! {
    plain bytes_pass_an_open_proxy_both_ways;
    plain held_bytes_arrive_once_the_proxy_is_healed;
    plain requests_pass_while_only_responses_are_stalled;
    plain a_cut_closes_connections_and_refuses_new_ones_until_healed;
    plain a_slow_proxy_applies_its_delay_and_rate;
    plain a_dropped_proxy_closes_its_connections;
    plain the_end_of_one_direction_leaves_the_other_open;
}

/// Time without a byte that counts as silence.
const SILENCE: Duration = Duration::from_millis(150);
/// Limit for each step.
const LONG: Duration = Duration::from_secs(10);

async fn bytes_pass_an_open_proxy_both_ways() {
    let (_proxy, mut client, mut server) = connected().await;

    client.write_all(b"ask").await.unwrap();
    let asked = receive(&mut server, 3).await;
    server.write_all(b"answer").await.unwrap();
    let answered = receive(&mut client, 6).await;

    assert_eq!((asked, answered), (b"ask".to_vec(), b"answer".to_vec()));
}

async fn held_bytes_arrive_once_the_proxy_is_healed() {
    let (proxy, mut client, mut server) = connected().await;

    proxy.stall();
    client.write_all(b"held").await.unwrap();
    assert!(is_silent(&mut server).await, "bytes passed a stalled proxy");
    proxy.heal();

    assert_eq!(receive(&mut server, 4).await, b"held");
}

async fn requests_pass_while_only_responses_are_stalled() {
    let (proxy, mut client, mut server) = connected().await;

    proxy.stall_responses();
    client.write_all(b"ask").await.unwrap();
    let asked = receive(&mut server, 3).await;
    server.write_all(b"answer").await.unwrap();
    assert!(is_silent(&mut client).await, "a response passed");
    proxy.heal();

    assert_eq!(asked, b"ask");
    assert_eq!(receive(&mut client, 6).await, b"answer");
}

async fn a_cut_closes_connections_and_refuses_new_ones_until_healed() {
    let (listener, address) = listen().await;
    let proxy = Proxy::to(address).await.unwrap();
    let (mut client, mut server) = join(&proxy, &listener).await;

    proxy.cut();
    assert!(is_closed(&mut client).await && is_closed(&mut server).await, "a cut connection stayed open");
    let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(is_closed(&mut refused).await, "a connection passed the cut");
    proxy.heal();
    let (mut client, mut server) = join(&proxy, &listener).await;
    client.write_all(b"again").await.unwrap();

    assert_eq!(receive(&mut server, 5).await, b"again");
}

async fn a_slow_proxy_applies_its_delay_and_rate() {
    let (proxy, mut client, mut server) = connected().await;
    proxy.slow(Duration::from_millis(100), 1_000);
    let started = Instant::now();

    client.write_all(&[7; 100]).await.unwrap();
    receive(&mut server, 100).await;

    assert!(started.elapsed() >= Duration::from_millis(200), "took only {:?}", started.elapsed());
}

async fn a_dropped_proxy_closes_its_connections() {
    let (proxy, mut client, mut server) = connected().await;

    drop(proxy);

    assert!(is_closed(&mut client).await && is_closed(&mut server).await);
}

async fn the_end_of_one_direction_leaves_the_other_open() {
    let (_proxy, mut client, mut server) = connected().await;

    client.shutdown().await.unwrap();
    assert!(is_closed(&mut server).await, "the end did not arrive");
    server.write_all(b"late").await.unwrap();

    assert_eq!(receive(&mut client, 4).await, b"late");
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn join(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    let (server, _) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    (client, server)
}

async fn connected() -> (Proxy, TcpStream, TcpStream) {
    let (listener, address) = listen().await;
    let proxy = Proxy::to(address).await.unwrap();
    let (client, server) = join(&proxy, &listener).await;
    (proxy, client, server)
}

async fn receive(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(LONG, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
    bytes
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(SILENCE, stream.read_u8()).await.is_err()
}

/// Whether the other side has ended its direction, by a close or a reset.
async fn is_closed(stream: &mut TcpStream) -> bool {
    !matches!(timeout(LONG, stream.read(&mut [0])).await, Ok(Ok(1)) | Err(_))
}
