//! Overload by bytes, connections and streams: the excess is refused, and other deliveries are accepted.

use std::{cell::Cell, net::Ipv4Addr, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    stream::{self, FuturesUnordered},
};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{Mutex, MutexGuard, Notify},
    time::{Instant, timeout},
};

use super::rig::{ACCOUNTING, PATIENCE, Rig, SECRET, event, exchange, sign, signed};
use crate::support::lost;

crate::tests! {
    plain strangers_with_large_bodies_keep_no_small_delivery_out;
    plain new_requests_are_refused_while_too_many_verified_bytes_wait;
    plain ten_thousand_idle_connections_of_one_address_block_no_other;
    plain ten_thousand_idle_connections_block_no_delivery;
    plain only_idle_connections_make_room_for_a_delivery;
    plain a_flood_of_resets_ends_its_own_connection_alone;
    plain a_head_without_end_is_refused;
}

/// The provider waits this long for an answer.
const PROVIDER_WAITS: Duration = Duration::from_secs(5);
/// An address that no other client here uses.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn head(length: usize) -> String {
    let signature = sign("a stranger's secret", b"");
    format!(
        "POST {ACCOUNTING} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nsvc-webhook-signature: {signature}\r\n\
         content-length: {length}\r\n\r\n"
    )
}

async fn strangers_with_large_bodies_keep_no_small_delivery_out() {
    let rig = Rig::with(|setup| {
        setup.set("body.limit.bytes", "1048576");
        setup.receiver.unverified_bytes = 400_000;
    })
    .await;
    let large = signed(&[b' '; 150_000]);
    // It sends all but the last byte.
    let mut stranger = TcpStream::connect(rig.address).await.unwrap();
    stranger.write_all(head(200_001).as_bytes()).await.unwrap();
    stranger.write_all(&[b' '; 200_000]).await.unwrap();

    // Once that has been read there is no room for another large body, which is refused before it is sent.
    let turned_away = timeout(PATIENCE, async {
        loop {
            let mut second = TcpStream::connect(rig.address).await.unwrap();
            second.write_all(head(150_000).as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            match timeout(Duration::from_millis(100), second.read_exact(&mut answer)).await {
                Ok(read) => break read.map(|_| answer),
                // The first is still being read, so the receiver waits for this body.
                Err(_) => continue,
            }
        }
    });
    assert_eq!(&turned_away.await.unwrap().unwrap(), b"HTTP/1.1 503");
    let answer = rig.ask(&signed(&event("1"))).await;
    assert_eq!(answer.status, 200);
    drop(stranger);
    let later = timeout(PATIENCE, async {
        loop {
            match rig.send(&large).await.first().map(|answer| answer.status) {
                Some(503) | None => tokio::task::yield_now().await,
                status => break status,
            }
        }
    });

    assert_eq!(later.await.unwrap(), Some(200));
    assert_eq!(rig.taken.drain().len(), 2);
}

async fn new_requests_are_refused_while_too_many_verified_bytes_wait() {
    let rig = Rig::with(|setup| setup.receiver.verified_bytes = 100).await;
    rig.taken.hold(true);
    let (first, second) = (signed(&event("1")), signed(&event("2")));
    let waiting = async { rig.ask(&first).await };
    let others = async {
        rig.taken.came().await;
        rig.taken.hold(false);
        let turned_away = rig.ask(&second).await;
        rig.taken.release();
        turned_away
    };

    let (first, turned_away) = tokio::join!(waiting, others);
    let again = rig.ask(&second).await;

    assert_eq!([first.status, turned_away.status, again.status], [200, 503, 200]);
    assert!(turned_away.header("retry-after").is_some());
    assert_eq!(rig.taken.drain().len(), 2);
}

/// The number of idle connections: ten thousand, or as many as the machine allows beside `served` ones and those of other tests. One
/// test at a time has such a crowd, as long as it holds the guard.
async fn crowd(served: usize) -> (usize, MutexGuard<'static, ()>) {
    static CROWD: Mutex<()> = Mutex::const_new(());
    let alone = CROWD.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
    let left = limit.maximum.map_or(u64::MAX, |most| most.saturating_sub(served as u64 + 3_000));
    let many = left.min(10_000) as usize;
    assert!(many > served + served / 8, "{limit:?}");
    (many, alone)
}

/// A connection from this address that sends the first byte of a head and no more.
async fn idle(rig: &Rig, from: Ipv4Addr) -> TcpStream {
    let mut stream = rig.connect_from(from).await;
    // A byte, since only data completes a connection beyond the kernel's queue of a busy listener.
    stream.write_all(b"P").await.ok();
    stream
}

async fn ten_thousand_idle_connections_of_one_address_block_no_other() {
    const ALLOWED: usize = 100;
    let (many, _alone) = crowd(ALLOWED).await;
    let rig = Rig::with(|setup| {
        setup.server.per_address = ALLOWED;
        // Longer than the test, so that the allowed connections stay.
        setup.server.head = Duration::from_secs(600);
    })
    .await;
    let delivery = signed(&event("1"));

    let connect = |_| idle(&rig, Ipv4Addr::LOCALHOST);
    let mut idle: Vec<_> = stream::iter(0..many).map(connect).buffer_unordered(256).collect().await;
    let began = Instant::now();
    let answers = exchange(rig.connect_from(ELSEWHERE).await, &delivery).await;
    let elapsed = lost::promised(began.into_std());

    assert_eq!(answers[0].status, 200);
    assert!(elapsed < PROVIDER_WAITS, "{elapsed:?}");
    // All connections beyond the limit of an address are ended.
    let reading = idle.iter_mut().map(|stream| async move { stream.read(&mut [0; 1]).await.is_ok() });
    let mut ended = reading.collect::<FuturesUnordered<_>>();
    let count = timeout(PATIENCE, ended.by_ref().take(many - ALLOWED).count()).await;
    assert_eq!(count.unwrap(), many - ALLOWED);
    assert!(ended.next().now_or_never().is_none(), "more than all but {ALLOWED}");
}

async fn ten_thousand_idle_connections_block_no_delivery() {
    const PER_ADDRESS: usize = 512;
    const CONNECTIONS: usize = 4_096;
    let (many, _alone) = crowd(CONNECTIONS).await;
    // The defaults of a worker.
    let rig = Rig::with(|setup| {
        setup.server.connections = CONNECTIONS;
        setup.server.per_address = PER_ADDRESS;
        setup.server.head = Duration::from_secs(15);
    })
    .await;
    // No address reaches its limit, and together they try to open more than twice the allowed connections.
    let sender = |number: usize| Ipv4Addr::new(127, 0, 1, (number / (PER_ADDRESS - 12)) as u8);

    let (full, done) = (Notify::new(), Cell::new(false));
    let crowding = async {
        let connecting = stream::iter(0..many).map(|number| idle(&rig, sender(number)));
        let mut connecting = connecting.buffer_unordered(256);
        let mut held = Vec::new();
        while let Some(stream) = connecting.next().await {
            held.push(stream);
            if held.len() == CONNECTIONS {
                full.notify_one();
            }
        }
        done.set(true);
        held
    };
    let delivering = async {
        full.notified().await;
        let mut answered = Vec::new();
        let mut last = false;
        while !last {
            last = done.get();
            let delivery = signed(&event(&answered.len().to_string()));
            let began = Instant::now();
            let answers = exchange(rig.connect_from(ELSEWHERE).await, &delivery).await;
            answered.push((answers.first().map(|answer| answer.status), lost::promised(began.into_std())));
        }
        answered
    };
    let (_held, answered) = tokio::join!(crowding, delivering);

    let in_time =
        |(status, elapsed): &(Option<u16>, Duration)| *status == Some(200) && *elapsed < PROVIDER_WAITS;
    assert!(answered.iter().all(in_time), "{answered:?}");
    let longest = answered.iter().map(|(_, elapsed)| *elapsed).max().unwrap();
    println!(
        "receiver: {many} idle connections, {} deliveries among them, longest {longest:?}",
        answered.len()
    );
}

async fn only_idle_connections_make_room_for_a_delivery() {
    let rig = Rig::with(|setup| {
        setup.server.connections = 4;
        // Longer than the test, so that being idle alone ends no connection.
        setup.server.head = Duration::from_secs(600);
    })
    .await;
    rig.taken.hold(true);
    let (first, second) = (signed(&event("1")), signed(&event("2")));
    let begun = Notify::new();
    let at_work = async {
        let second = async {
            begun.notified().await;
            rig.ask(&second).await
        };
        let (first, second) = tokio::join!(rig.ask(&first), second);
        [first.status, second.status]
    };
    let others = async {
        rig.taken.came().await;
        begun.notify_one();
        rig.taken.came().await;
        rig.taken.hold(false);
        let mut waiting = Vec::new();
        for host in 10..20 {
            waiting.push(idle(&rig, Ipv4Addr::new(127, 0, 0, host)).await);
        }
        let mut answered = Vec::new();
        for number in 3..6 {
            let delivery = signed(&event(&number.to_string()));
            let answers = exchange(rig.connect_from(ELSEWHERE).await, &delivery).await;
            answered.extend(answers.iter().map(|answer| answer.status));
        }
        rig.taken.release();
        rig.taken.release();
        answered
    };

    let (at_work, answered) = timeout(PATIENCE, async { tokio::join!(at_work, others) }).await.unwrap();

    assert_eq!((at_work, answered.as_slice()), ([200; 2], &[200; 3][..]));
}

async fn a_flood_of_resets_ends_its_own_connection_alone() {
    let rig = Rig::start().await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1_u32..4_001).step_by(2) {
        // A complete GET of /, and its reset.
        bytes.extend([0, 0, 3, 1, 5]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend([0x82, 0x84, 0x86]);
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend([0, 0, 0, 8]);
    }
    let mut flood = TcpStream::connect(rig.address).await.unwrap();

    let (mut from, mut to) = flood.split();
    let mut read = Vec::new();
    // The client keeps the connection open, so the server ends it.
    let talk = async { tokio::join!(to.write_all(&bytes), from.read_to_end(&mut read)) };
    timeout(PATIENCE, talk).await.expect("the flood does not end the connection").1.ok();

    // ENHANCE_YOUR_CALM.
    let goodbye = [0, 0, 0, 11];
    assert!(read.windows(4).any(|four| four == goodbye), "{read:x?}");
    assert_eq!(rig.ask(&signed(&event("1"))).await.status, 200);
}

async fn a_head_without_end_is_refused() {
    let rig = Rig::start().await;
    let body = event("1");
    let long = |length: usize| {
        let mut request = String::from_utf8(signed(&body)).unwrap();
        request.insert_str(request.find("host").unwrap(), &format!("x: {}\r\n", "a".repeat(length)));
        request
    };
    let many: String = (0..1_000).map(|number| format!("x-{number}: a\r\n")).collect();
    let many = String::from_utf8(signed(&body)).unwrap().replace("host", &format!("{many}host"));

    assert_eq!(rig.ask(long(16 << 10).as_bytes()).await.status, 200);
    for (what, request) in [("long", long(100 << 10)), ("many", many)] {
        let answers = rig.send(request.as_bytes()).await;

        assert!(
            answers.len() < 2 && answers.iter().all(|answer| answer.status == 431),
            "{what}: {answers:?}"
        );
    }
    assert_eq!(rig.taken.drain().len(), 1);
    let signature = sign(SECRET, &body);
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}{ACCOUNTING}", rig.address);
    let send = |length: usize| {
        let request = client.post(&url).header("svc-webhook-signature", &signature).body(body.clone());
        request.header("x", "a".repeat(length)).timeout(PATIENCE).send()
    };
    assert_eq!(send(1_000).await.unwrap().status(), 200);
    assert!(send(100 << 10).await.map_or(true, |answer| answer.status() == 431));
    assert_eq!(rig.taken.drain().len(), 1);
}
