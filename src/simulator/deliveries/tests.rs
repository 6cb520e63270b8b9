#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use url::Url;

use super::{
    About, Attempt, Body, End, Entry, Family, Order, Purpose,
    rig::{Receiver, Reply, Rig, within},
};
use crate::simulator::{
    Error, Provider,
    accounting::WebhookState,
    knobs::{Accepts, AcknowledgeTime, Latency},
    random::Guid,
    settings::Settings,
};

fn order(webhook: Guid, url: &str, lane: u64, body: &str, retries: &[u64]) -> Order {
    Order {
        family: Family::Accounting,
        webhook,
        purpose: Purpose::Event,
        url: Url::parse(url).unwrap(),
        body: Body::Same(Bytes::from(body.to_owned()), None),
        signature_header: None,
        lane,
        retries: retries.into(),
        gone_ends: false,
        about: About { event: "event".into(), company: None, record: None, sequence: None, outgoing: None },
    }
}

fn entries(rig: &Rig) -> Vec<Entry> {
    rig.provider.deliveries.entries(0, 1_000).into_iter().map(|(_, entry)| entry).collect()
}

fn ends(rig: &Rig) -> Vec<Option<End>> {
    entries(rig).into_iter().map(|entry| entry.end).collect()
}

/// Sends bodies `0`, `1`, … in one lane while nothing leaves, then lets them go and waits for the end.
async fn send_in_one_lane(rig: &Rig, receiver: &Receiver, count: usize) -> Vec<String> {
    let webhook = rig.webhook(&receiver.url()).await;
    rig.provider.turn(|knobs| knobs.delivery.hold = true);
    for number in 0..count {
        let order = order(webhook, &receiver.url(), 1, &number.to_string(), &[]);
        rig.provider.deliveries.send(&rig.provider, order);
    }
    rig.provider.turn(|knobs| knobs.delivery.hold = false);
    rig.idle().await;
    receiver.texts()
}

#[tokio::test]
async fn a_lane_sends_one_after_the_other_while_another_lane_goes_ahead() {
    let receiver = Receiver::start(|_, request| match request.text().as_str() {
        "first" => Reply::Held,
        _ => Reply::Status(200),
    })
    .await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;
    let send = |lane, body| {
        rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), lane, body, &[]))
    };

    send(1, "first");
    send(1, "second");
    send(2, "aside");
    receiver.wait_for(2).await;
    let before: BTreeSet<String> = receiver.texts().into_iter().collect();
    receiver.release();
    rig.idle().await;

    assert_eq!(before, BTreeSet::from(["first".to_owned(), "aside".to_owned()]));
    assert_eq!(receiver.texts()[2..], ["second"]);
    assert_eq!(ends(&rig), [Some(End::Accepted); 3]);
}

#[tokio::test]
async fn a_retry_holds_up_nobody_and_ends_as_given_up_after_the_last_wait() {
    let receiver = Receiver::start(|_, request| match request.text().as_str() {
        "bad" => Reply::Status(503),
        _ => Reply::Status(200),
    })
    .await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;
    let send = |body, retries: &[u64]| {
        rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, body, retries))
    };

    send("bad", &[80, 1]);
    send("good", &[]);
    rig.idle().await;

    assert_eq!(receiver.texts(), ["bad", "good", "bad", "bad"]);
    assert_eq!(ends(&rig), [Some(End::GivenUp), Some(End::Accepted)]);
    let statuses: Vec<_> = entries(&rig)[0].attempts.iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [Some(503); 3]);
    assert_eq!(rig.state(webhook), Some(WebhookState::Disabled));
}

#[tokio::test]
async fn what_an_answer_is_worth_follows_from_status_purpose_and_cookies() {
    for (reply, accepts, purpose, accepted, error) in [
        (Reply::Status(200), Accepts::Only200, Purpose::Event, true, None),
        (Reply::Status(204), Accepts::Only200, Purpose::Event, false, None),
        (Reply::Status(204), Accepts::Any2xx, Purpose::Event, true, None),
        (Reply::Status(204), Accepts::Any2xx, Purpose::Acknowledge, false, None),
        (Reply::Status(401), Accepts::Any2xx, Purpose::Event, false, None),
        (Reply::Cookie, Accepts::Any2xx, Purpose::Event, false, Some("cookies in the answer")),
        (Reply::Redirect, Accepts::Any2xx, Purpose::Event, false, None),
        (Reply::Endless, Accepts::Only200, Purpose::Event, true, None),
    ] {
        let receiver = Receiver::start(move |_, _| reply).await;
        let rig = Rig::start(|knobs| knobs.delivery.accepts = accepts);
        let webhook = rig.webhook(&receiver.url()).await;
        let mut order = order(webhook, &receiver.url(), 1, "{}", &[]);
        if purpose == Purpose::Acknowledge {
            // Awaits a contract again, on the same address.
            rig.provider.turn(|knobs| knobs.accounting.strict_transitions = false);
            rig.provider.turn(|knobs| knobs.accounting.acknowledge = AcknowledgeTime::Never);
            let path = format!("/accounting/api/customers/webhooks/change/{webhook}");
            let body = format!(r#"{{"webhookId":"{webhook}","url":"{}"}}"#, receiver.url());
            assert_eq!(rig.call("PUT", &path, &body).await.0, 200);
            order.purpose = purpose;
        }

        rig.provider.deliveries.send(&rig.provider, order);
        rig.idle().await;

        let entry = entries(&rig).remove(0);
        let end = if accepted { End::Accepted } else { End::GivenUp };
        assert_eq!(entry.end, Some(end), "{reply:?} {accepts:?} {purpose:?}");
        assert_eq!(entry.attempts[0].error.as_deref(), error, "{reply:?}");
        assert_eq!(receiver.received().len(), 1, "{reply:?}");
    }
}

#[tokio::test]
async fn a_receiver_that_takes_too_long_or_is_not_there_has_failed() {
    let silent = Receiver::start(|_, _| Reply::Held).await;
    let rig = Rig::start(|knobs| knobs.delivery.time_limit = 2_000);

    for url in [silent.url(), "http://127.0.0.1:1/hook".to_owned()] {
        let webhook = rig.webhook(&url).await;
        rig.provider.deliveries.send(&rig.provider, order(webhook, &url, 1, "{}", &[]));
    }
    rig.idle().await;

    let attempts: Vec<Attempt> = entries(&rig).into_iter().flat_map(|entry| entry.attempts).collect();
    assert_eq!(ends(&rig), [Some(End::GivenUp); 2]);
    assert_eq!((attempts[0].status, attempts[0].error.as_deref()), (None, Some("time limit")));
    assert!(attempts[0].took >= 2_000, "{attempts:?}");
    assert!(attempts[1].error.as_deref().unwrap().starts_with("connection: "), "{attempts:?}");
}

#[tokio::test]
async fn a_delivery_whose_webhook_is_disabled_before_its_attempt_is_abandoned() {
    let receiver = Receiver::always(500).await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;
    rig.provider.turn(|knobs| knobs.delivery.hold = true);
    rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, "first", &[]));
    rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, "second", &[]));

    rig.provider.turn(|knobs| knobs.delivery.hold = false);
    rig.idle().await;

    assert_eq!(receiver.texts(), ["first"]);
    assert_eq!(ends(&rig), [Some(End::GivenUp), Some(End::Abandoned)]);
}

#[tokio::test]
async fn a_lost_delivery_is_journaled_and_never_sent() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.delivery.lose = 0.5);

    let texts = send_in_one_lane(&rig, &receiver, 40).await;

    let ends = ends(&rig);
    let expected: Vec<String> =
        (0..40).filter(|&at| ends[at] == Some(End::Accepted)).map(|at| at.to_string()).collect();
    assert_eq!(texts, expected);
    assert_eq!(ends.iter().filter(|end| **end == Some(End::Lost)).count(), 40 - texts.len());
    assert!((5..35).contains(&texts.len()), "{}", texts.len());
}

#[tokio::test]
async fn a_duplicate_has_the_same_body_and_an_entry_of_its_own() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.delivery.duplicate = 1.0);

    let texts = send_in_one_lane(&rig, &receiver, 2).await;

    assert_eq!(texts, ["0", "0", "1", "1"]);
    let hashes: Vec<u64> = entries(&rig).iter().map(|entry| entry.body_hash).collect();
    assert_eq!(ends(&rig), [Some(End::Accepted); 4]);
    assert_eq!((hashes[0], hashes[2]), (hashes[1], hashes[3]));
    assert_ne!(hashes[0], hashes[2]);
}

#[tokio::test]
async fn reordering_moves_some_and_loses_none_and_the_seed_decides_which() {
    let run = async |seed| {
        let receiver = Receiver::always(200).await;
        let mut settings = Settings::default();
        settings.world.seed = seed;
        let rig = Rig::with(settings, |knobs| knobs.delivery.reorder = 0.3);
        let texts = send_in_one_lane(&rig, &receiver, 30).await;
        texts.into_iter().map(|text| text.parse().unwrap()).collect::<Vec<u32>>()
    };

    let (first, second, other) = tokio::join!(run(1), run(1), run(2));

    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..30).collect::<Vec<u32>>());
    assert_ne!(first, sorted);
    assert_eq!(first, second);
    assert_ne!(first, other);
}

#[tokio::test]
async fn a_delayed_delivery_waits_and_keeps_its_place() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.delivery.delay = Latency::Uniform(20.0, 90.0));
    let begun = std::time::Instant::now();

    let texts = send_in_one_lane(&rig, &receiver, 5).await;

    assert!(begun.elapsed() >= Duration::from_millis(20), "{:?}", begun.elapsed());
    assert_eq!(texts, ["0", "1", "2", "3", "4"]);
}

#[tokio::test]
async fn nothing_leaves_while_deliveries_are_held() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.delivery.hold = true);
    let webhook = rig.webhook(&receiver.url()).await;

    rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, "{}", &[]));
    let idle = tokio::time::timeout(Duration::from_millis(50), rig.provider.deliveries.idle()).await;
    let before = receiver.received().len();
    rig.provider.turn(|knobs| knobs.delivery.hold = false);
    rig.idle().await;

    assert!(idle.is_err());
    assert_eq!((before, receiver.received().len()), (0, 1));
}

#[tokio::test]
async fn what_does_not_fit_the_queue_is_journaled_as_overflown() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|knobs| knobs.delivery.pending_limit = 2);

    let texts = send_in_one_lane(&rig, &receiver, 3).await;

    assert_eq!(texts, ["0", "1"]);
    assert_eq!(ends(&rig), [Some(End::Accepted), Some(End::Accepted), Some(End::Overflown)]);
}

#[tokio::test]
async fn no_more_than_the_knob_allows_are_on_their_way_at_once() {
    let receiver = Receiver::start(|_, _| Reply::Held).await;
    let rig = Rig::start(|knobs| knobs.delivery.concurrency = 2);
    let webhook = rig.webhook(&receiver.url()).await;

    for lane in 0..3 {
        rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), lane, "{}", &[]));
    }
    receiver.wait_for(2).await;
    // A third would have been started together with the first two, and so be there when a later knob has been seen.
    let before = receiver.received().len();
    rig.provider.turn(|knobs| knobs.delivery.concurrency = 3);
    let after = receiver.wait_for(3).await.len();
    receiver.release();
    rig.idle().await;

    assert_eq!((before, after), (2, 3));
}

#[tokio::test]
async fn a_receiver_that_never_answers_leaves_room_for_others() {
    let (black_hole, good) = (Receiver::start(|_, _| Reply::Held).await, Receiver::always(200).await);
    let rig = Rig::start(|knobs| {
        knobs.delivery.concurrency = 4;
        knobs.delivery.per_webhook = 2;
    });
    let stuck = rig.webhook(&black_hole.url()).await;
    let webhook = rig.webhook(&good.url()).await;

    for lane in 0..8 {
        rig.provider.deliveries.send(&rig.provider, order(stuck, &black_hole.url(), lane, "{}", &[]));
    }
    black_hole.wait_for(2).await;
    rig.provider.deliveries.send(&rig.provider, order(webhook, &good.url(), 9, "{}", &[]));
    good.wait_for(1).await;
    let stuck_then = black_hole.received().len();
    black_hole.release();
    rig.idle().await;

    assert_eq!((stuck_then, black_hole.received().len()), (2, 8));
    assert_eq!(ends(&rig), [Some(End::Accepted); 9]);
}

#[tokio::test]
async fn abandoning_very_many_lets_others_have_their_turn() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;
    rig.provider.turn(|knobs| knobs.delivery.hold = true);
    for lane in 0..1_000 {
        rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), lane, "{}", &[]));
    }
    assert!(rig.provider.accounting.disable(&rig.provider, webhook));
    rig.provider.turn(|knobs| knobs.delivery.hold = false);

    // One thread runs both, so this sees the loop only where it pauses.
    let abandoned = || ends(&rig).iter().flatten().count();
    while abandoned() == 0 {
        tokio::task::yield_now().await;
    }
    let first = abandoned();
    rig.idle().await;

    assert_eq!(first, 256);
    assert_eq!(ends(&rig), [Some(End::Abandoned); 1_000]);
}

#[tokio::test]
async fn a_name_is_where_the_knob_says_even_after_it_has_moved() {
    let (here, there) = (Receiver::always(200).await, Receiver::always(200).await);
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook("http://Hooks.Example/hook").await;
    let send = async |address: SocketAddr| {
        rig.provider.turn(|knobs| {
            knobs.delivery.resolve.insert("hooks.example".to_owned(), address);
        });
        let order = order(webhook, "http://hooks.example/hook", 1, "{}", &[]);
        rig.provider.deliveries.send(&rig.provider, order);
        rig.idle().await;
    };

    send(here.address).await;
    send(there.address).await;
    send(there.address).await;

    assert_eq!((here.received().len(), there.received().len()), (1, 2));
    assert_eq!(here.received()[0].headers["host"], "hooks.example");
}

#[tokio::test]
async fn an_https_receiver_is_trusted_by_its_root_or_by_the_knob_that_trusts_any() {
    let made = rcgen::generate_simple_self_signed(vec!["hooks.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    for (root, trust_any, protocol, accepted) in [
        (true, false, "h2", true),
        (true, false, "http/1.1", true),
        (false, true, "h2", true),
        (false, false, "h2", false),
    ] {
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let receiver = Receiver::with_tls(Arc::new(tls.clone())).await;
        let receiver_roots = if root { vec![made.cert.pem()] } else { Vec::new() };
        let rig = Rig::with(Settings { receiver_roots, ..Settings::default() }, |knobs| {
            knobs.delivery.trust_any = trust_any;
            knobs.delivery.resolve.insert("hooks.example".to_owned(), receiver.address);
        });
        let webhook = rig.webhook("https://hooks.example/hook").await;

        let order = order(webhook, "https://hooks.example/hook", 1, "{}", &[]);
        rig.provider.deliveries.send(&rig.provider, order);
        rig.idle().await;

        let entry = entries(&rig).remove(0);
        assert_eq!(entry.end == Some(End::Accepted), accepted, "{root} {trust_any} {protocol}: {entry:?}");
        assert_eq!(receiver.received().len(), usize::from(accepted));
    }
}

#[test]
fn roots_that_are_no_certificates_are_refused_at_the_start() {
    let settings = Settings { receiver_roots: vec!["no certificate".to_owned()], ..Settings::default() };

    let refused = Provider::new(settings);

    assert!(matches!(refused, Err(Error::Certificate { .. })), "{refused:?}");
}

#[tokio::test]
async fn each_attempt_of_a_numbered_body_gets_its_own_and_410_ends_the_attempts() {
    let receiver = Receiver::start(|number, _| Reply::Status(if number == 0 { 500 } else { 410 })).await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;
    let numbered = Order {
        body: Body::Numbered(Box::new(|attempt| (Bytes::from(format!("attempt {attempt}")), None))),
        gone_ends: true,
        ..order(webhook, &receiver.url(), 1, "", &[1, 1, 1])
    };

    rig.provider.deliveries.send(&rig.provider, numbered);
    rig.idle().await;

    assert_eq!(receiver.texts(), ["attempt 1", "attempt 2"]);
    assert_eq!(ends(&rig), [Some(End::GivenUp)]);
}

#[tokio::test]
async fn a_reserved_delivery_is_numbered_and_counted_but_leaves_only_when_let_go() {
    let receiver = Receiver::always(200).await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;

    let reserved =
        rig.provider.deliveries.reserve(&rig.provider, order(webhook, &receiver.url(), 1, "reserved", &[]));
    rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, "later", &[]));
    receiver.wait_for(1).await;
    drop(reserved);
    rig.idle().await;

    assert_eq!(receiver.texts(), ["later", "reserved"]);
    assert_eq!(ends(&rig), [Some(End::Accepted); 2]);
}

#[tokio::test]
async fn stopping_drops_what_is_on_its_way_and_leaves_it_without_an_end() {
    let receiver = Receiver::start(|_, _| Reply::Held).await;
    let rig = Rig::start(|_| {});
    let webhook = rig.webhook(&receiver.url()).await;
    rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, "first", &[]));
    rig.provider.deliveries.send(&rig.provider, order(webhook, &receiver.url(), 1, "second", &[]));
    receiver.wait_for(1).await;

    rig.stop.cancel();
    within(rig.provider.deliveries.idle()).await;

    assert_eq!(ends(&rig), [None, None]);
    assert_eq!(receiver.received().len(), 1);
}

#[test]
fn a_missed_event_is_journaled_as_such() {
    let provider = Provider::new(Settings::default()).unwrap();
    let about = About { event: "e".into(), company: None, record: None, sequence: Some(7), outgoing: None };

    let number = provider.deliveries.missed(&provider, Family::Accounting, Guid(1), about.clone());

    let (found, entry) = provider.deliveries.entries(0, 10).remove(0);
    assert_eq!((found, provider.deliveries.count()), (number, 1));
    assert_eq!((entry.end, entry.about, entry.body_hash), (Some(End::Missed), about, 0));
}
