//! Slow clients and requests without end: each is cut off, and no other client waits for them.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, interval, timeout},
};

use super::rig::{ACCOUNTING, LIMIT, PATIENCE, Rig, SECRET, event, sign, signed};

crate::tests! {
    plain a_head_that_comes_byte_by_byte_is_cut_off;
    plain a_body_that_comes_byte_by_byte_is_answered_408_and_cut_off;
    plain a_body_that_is_in_time_may_come_in_pieces;
    plain a_body_without_end_is_cut_off_after_little;
    plain a_body_announced_beyond_all_measure_is_not_read;
}

/// A short limit, and yet a long time on an idle machine.
const SHORT: Duration = Duration::from_millis(250);
/// Bytes that the sockets of both sides may buffer.
const SOCKETS: u64 = 16 << 20;

fn head(signature: &str, rest: &str) -> String {
    format!("POST {ACCOUNTING} HTTP/1.1\r\nhost: a\r\nsvc-webhook-signature: {signature}\r\n{rest}\r\n\r\n")
}

/// Sends one byte after another until the connection ends; the bytes that were read meanwhile.
async fn drip(mut stream: TcpStream) -> Vec<u8> {
    let (mut from, mut to) = stream.split();
    let mut read = Vec::new();
    let dripping = async {
        let mut pace = interval(SHORT / 50);
        while to.write_all(b"a").await.is_ok() {
            pace.tick().await;
        }
    };
    let reading = async { from.read_to_end(&mut read).await.ok() };
    let both = async { tokio::join!(dripping, reading) };
    timeout(PATIENCE, both).await.expect("a sender that never ends was never cut off");
    read
}

async fn a_head_that_comes_byte_by_byte_is_cut_off() {
    let rig = Rig::with(|setup| setup.server.head = SHORT).await;
    let (began, delivery) = (Instant::now(), signed(&event("1")));
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    stream.write_all(format!("POST {ACCOUNTING} HTTP/1.1\r\nhost: a\r\nx: ").as_bytes()).await.unwrap();
    let good = async {
        loop {
            // On a busy machine this request may be late as well.
            match rig.send(&delivery).await.pop() {
                Some(answer) if answer.status != 408 => break answer,
                _ => {}
            }
        }
    };

    let (read, good) = tokio::join!(drip(stream), timeout(PATIENCE, good));
    let good = good.expect("the other client is not answered");

    assert!(began.elapsed() >= SHORT);
    assert!(read.is_empty() || read.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&read));
    assert_eq!(good.status, 200);
}

async fn a_body_that_comes_byte_by_byte_is_answered_408_and_cut_off() {
    let rig = Rig::with(|setup| setup.receiver.body_time = SHORT).await;

    for length in ["content-length: 60000", "transfer-encoding: chunked"] {
        // The limit is the same with and without a valid signature.
        for signature in [&sign(SECRET, b""), "none"] {
            let began = Instant::now();
            let mut stream = TcpStream::connect(rig.address).await.unwrap();
            stream.write_all(head(signature, length).as_bytes()).await.unwrap();
            // One long chunk, of which only a few bytes come.
            if length.starts_with('t') {
                stream.write_all(b"eeee\r\n").await.unwrap();
            }

            let read = String::from_utf8(drip(stream).await).unwrap();

            let status = if signature == "none" { "401" } else { "408" };
            assert!(read.starts_with(&format!("HTTP/1.1 {status}")), "{length}: {read}");
            assert!(read.contains("connection: close") && read.ends_with("\r\n\r\n"), "{length}: {read}");
            assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        }
    }
    assert_eq!(rig.taken.drain().len(), 0);
}

async fn a_body_that_is_in_time_may_come_in_pieces() {
    let rig = Rig::start().await;
    let body = event("1");
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let length = format!("connection: close\r\ncontent-length: {}", body.len());

    stream.write_all(head(&sign(SECRET, &body), &length).as_bytes()).await.unwrap();
    for piece in body.chunks(7) {
        stream.write_all(piece).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut read = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut read)).await.unwrap().unwrap();

    assert!(read.starts_with("HTTP/1.1 200"), "{read}");
    assert!(matches!(rig.taken.drain().as_slice(), [(delivery, _)] if delivery.body == body));
}

async fn a_body_without_end_is_cut_off_after_little() {
    const WHOLE: u64 = 10 << 30;
    let rig = Rig::start().await;
    let piece = super::rig::chunk(&[b' '; 16 << 10]);

    for (what, signature) in
        [("signed by a stranger", sign("a stranger's secret", b"")), ("unsigned", String::new())]
    {
        let mut stream = TcpStream::connect(rig.address).await.unwrap();
        stream.write_all(head(&signature, "transfer-encoding: chunked").as_bytes()).await.unwrap();
        let mut sent = 0;
        let send_all = async {
            while sent < WHOLE && stream.write_all(&piece).await.is_ok() {
                sent += piece.len() as u64;
            }
        };
        timeout(PATIENCE, send_all).await.expect("neither taken nor cut off");

        assert!(sent < 4 * LIMIT as u64 + SOCKETS, "{what}: {sent} bytes were taken");
    }
    assert_eq!(rig.ask(&signed(&event("1"))).await.status, 200);
    assert_eq!(rig.taken.drain().len(), 1);
}

async fn a_body_announced_beyond_all_measure_is_not_read() {
    let rig = Rig::start().await;
    let signature = sign(SECRET, b"");

    for length in [4 * LIMIT as u64 + 1, 10 << 30, u64::MAX >> 2] {
        // No byte of the body is sent: the answer comes without waiting for it.
        let answer = rig.ask(head(&signature, &format!("content-length: {length}")).as_bytes()).await;

        assert_eq!((answer.status, answer.header("connection")), (413, Some("close")), "{length}");
    }
}
