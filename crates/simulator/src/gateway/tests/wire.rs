//! FaultCounters that change the body, compression, and requests that latency holds up, seen by a client over a socket.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::knobs::Status;

fn status(status: u16) -> Effect {
    Effect::Status(Status::new(status).unwrap())
}

/// A gateway for a client of each version of HTTP.
async fn rigs() -> [Rig; 2] {
    let http2 = reqwest::Client::builder().http2_prior_knowledge();
    [Rig::start().await, Rig::with(http2).await]
}

#[tokio::test]
async fn wrong_types_have_the_members_and_none_of_their_types() {
    let rig = Rig::start().await;
    rig.fault(Effect::WrongTypes);

    let answer = rig.login().send().await.unwrap();

    assert_eq!(answer.status(), 200);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body, json!({ "peer": "127.0.0.1".len(), "bytes": "2" }));
    assert_eq!((rig.reached(), rig.journal()), (1, vec![(Some(200), Some("wrongTypes"))]));
}

#[tokio::test]
async fn a_page_for_people_comes_instead_of_the_work() {
    for status in [200, 302, 503] {
        let rig = Rig::start().await;
        rig.fault(Effect::Html { status: Status::new(status).unwrap() });

        let answer = rig.login().send().await.unwrap();

        assert_eq!(answer.status().as_u16(), status);
        assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
        assert!(answer.text().await.unwrap().starts_with("<!DOCTYPE html>"));
        assert_eq!((rig.reached(), rig.journal()), (0, vec![(Some(status), Some("html"))]));
    }
}

#[tokio::test]
async fn an_oversized_answer_has_the_length_asked_for_compressed_or_not() {
    for (status, kind) in [(200, "application/json; charset=utf-8"), (500, "text/html; charset=utf-8")] {
        for gzip in [true, false] {
            let rig = Rig::start().await;
            rig.provider.turn(|knobs| knobs.gateway.gzip = gzip);
            rig.fault(Effect::Oversized { bytes: 300_000, status: Status::new(status).unwrap() });

            let answer = rig.login().send().await.unwrap();

            assert_eq!(
                (answer.status().as_u16(), &answer.headers()["content-type"]),
                (status, &kind.parse().unwrap())
            );
            // The client takes the length away where it decompresses.
            assert_eq!(answer.content_length(), (!gzip).then_some(300_000));
            let body = answer.bytes().await.unwrap();
            assert_eq!(body.len(), 300_000);
            assert_eq!(serde_json::from_slice::<Value>(&body).ok(), (status == 200).then(|| json!([])));
        }
    }
}

#[tokio::test]
async fn an_answer_is_compressed_for_those_who_ask_and_only_when_it_is_long() {
    let plain = reqwest::Client::builder().no_gzip();
    let rig = Rig::with(plain).await;
    let long = |request: reqwest::RequestBuilder| async {
        rig.fault(Effect::Oversized { bytes: 5_000, status: Status::OK });
        request.send().await.unwrap()
    };

    let asked = long(rig.login().header("accept-encoding", "gzip")).await;
    let not_asked = long(rig.login()).await;
    rig.provider.turn(|knobs| knobs.faults.clear());
    let short = rig.login().header("accept-encoding", "gzip").send().await.unwrap();
    rig.provider.turn(|knobs| knobs.gateway.gzip = false);
    let off = long(rig.login().header("accept-encoding", "gzip")).await;

    let encodings =
        [&asked, &not_asked, &short, &off].map(|answer| answer.headers().contains_key("content-encoding"));
    assert_eq!(encodings, [true, false, false, false]);
    assert!(asked.content_length().is_some_and(|length| length < 1_000));
    assert_eq!(short.json::<Value>().await.unwrap(), right());
}

#[tokio::test]
async fn a_compressed_answer_can_be_cut_off_in_its_middle() {
    let rig = Rig::with(reqwest::Client::builder().no_gzip()).await;
    rig.fault(Effect::Truncate);

    let request = rig.login().header("padding", "long").header("accept-encoding", "gzip");
    let answer = request.send().await.unwrap();

    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert!(answer.bytes().await.is_err());
}

#[tokio::test]
async fn a_status_without_a_body_tells_no_length_of_it() {
    let rig = Rig::start().await;

    for number in [204, 304] {
        rig.fault(status(number));
        let mut stream = TcpStream::connect(rig.server.address()).await.unwrap();
        let request = format!("GET {CUSTOMERS} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();

        let answer = answer.to_lowercase();
        assert!(answer.starts_with(&format!("http/1.1 {number} ")), "{answer}");
        assert!(answer.ends_with("\r\n\r\n") && !answer.contains("content-"), "{answer}");
    }
    for rig in rigs().await {
        rig.fault(status(204));
        let answer = rig.login().send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("content-length")), (204, false));
    }
}

/// A request that is still held up by latency when the knobs are turned.
async fn held_up(rig: &Rig, turn: impl FnOnce(&mut Knobs)) -> u16 {
    // Long enough for all that is to happen meanwhile, also on a busy machine.
    rig.provider.turn(|knobs| knobs.gateway.latency = Latency::Fixed { milliseconds: 3_000.0 });
    let (mut turn, before) = (Some(turn), rig.provider.gateway.request_count());
    let seen = async {
        while rig.provider.gateway.request_count() == before {
            tokio::task::yield_now().await;
        }
        rig.provider.turn(|knobs| {
            knobs.gateway.latency = Latency::None;
            turn.take().unwrap()(knobs);
        });
        rig.login().send().await.unwrap().status()
    };
    let (late, meanwhile) = tokio::join!(rig.login().send(), seen);
    assert_eq!(meanwhile, 200);
    late.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_request_held_up_meets_the_rules_that_stand_when_it_goes_on() {
    let rig = Rig::start().await;
    let second = Fault { on: Target::default(), effect: status(500), share: 1.0, times: Some(1), skip: 1 };

    let late = held_up(&rig, |knobs| knobs.faults = vec![second]).await;
    let next = rig.login().send().await.unwrap().status();

    assert_eq!((late, next.as_u16()), (500, 200));
}

#[tokio::test]
async fn a_request_held_up_is_counted_in_the_window_that_stands_when_it_goes_on() {
    let rig = Rig::start().await;
    let rate = |requests| Some(Rate { requests, seconds: 60.0, tells: RetryHint::Both });
    rig.provider.turn(|knobs| knobs.gateway.rate = rate(5));

    let late = held_up(&rig, |knobs| knobs.gateway.rate = rate(1)).await;
    let next = rig.login().send().await.unwrap().status();

    assert_eq!((late, next.as_u16()), (429, 429));
}
