//! Logs, metrics and budgets of the receiver. What senders see is tested by the integration tests,
//! over real connections.

use std::{
    collections::BTreeMap,
    future::ready,
    io,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http::{StatusCode, Version};
use tokio::time::Instant;
use tower_service::Service as _;

use base::secret::Secret;

use super::*;
use crate::{
    config::{Providers, WebhookSource},
    telemetry::captured_logs::captured_logs,
    webhooks::{
        intake::{Accept, DeliveryOutcome},
        receiver_table::{Receiver, ReceiverState, Receivers, Trust},
        signature,
    },
};

const SECRET: &str = "hunter2-hunter2-hunter2";
const PATH: &str = "/webhooks/accounting/hooks/customers";

/// Takes everything.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Counting {
    fn accept(self: &Arc<Self>) -> Accept {
        let counting = Arc::clone(self);
        Arc::new(move |_, _, _| {
            counting.0.fetch_add(1, Ordering::Relaxed);
            ready(DeliveryOutcome::Durable).boxed()
        })
    }
}

fn config() -> BTreeMap<String, String> {
    [
        ("connector.class", "WebhookSource"),
        ("topic.prefix", "acme"),
        ("accounting.resources", "all"),
        ("accounting.secret", SECRET),
        ("invoicing.hooks", "Customer:Created"),
        ("invoicing.secret", "another-secret-of-another-api-0123456789"),
        ("subscriptions.manage", "false"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn receiver() -> Receiver {
    let (source, _) = WebhookSource::parse("hooks", &config(), &Providers::new([])).unwrap();
    Receiver::of(&source, "dead".to_owned(), ReceiverState::Running).unwrap()
}

fn routes(options: ReceiverOptions) -> (Router, Arc<Counting>) {
    let receivers = Receivers::new();
    receivers.set(vec![Arc::new(receiver())], Vec::new());
    let take = Arc::new(Counting::default());
    (router(receivers, take.accept(), mpsc::channel(1).0, options), take)
}

async fn post(router: &Router, signature: &str, body: Body) -> StatusCode {
    let request = Request::post(PATH).header("svc-webhook-signature", signature).body(body).unwrap();
    router.clone().call(request).await.unwrap().status()
}

#[test]
fn limits_for_unknown_connectors_are_the_defaults() {
    let receiver = receiver();
    let (accounting, invoicing) = (receiver.accounting.unwrap(), receiver.invoicing.unwrap());
    let Trust::Signed { header, .. } = invoicing.trust else { panic!("nothing is signed") };

    assert_eq!(accounting.body_limit, address::UNKNOWN_ACCOUNTING_BODY_LIMIT);
    assert_eq!(invoicing.body_limit, address::UNKNOWN_INVOICING_BODY_LIMIT);
    assert_eq!(header, address::UNKNOWN_SIGNATURE_HEADER);
}

const ACKNOWLEDGE: &[u8] = br#"{"EventType":{"EventType":"Acknowledge"},"WebhookId":"a name"}"#;

#[tokio::test]
async fn no_secret_signature_or_body_is_in_any_log_line() {
    let good = br#"{"OutgoingId":"1","EventType":{"EventType":"CustomerUpdated"},"JsonData":"a name"}"#;
    let signed = signature::sign(&Secret::new(SECRET), good);
    let acknowledged = signature::sign(&Secret::new(SECRET), ACKNOWLEDGE);

    let text = captured_logs(
        false,
        |text| ["verified", "refused", "dropped"].iter().all(|word| text.contains(word)),
        async || {
            let (router, take) = routes(ReceiverOptions::default());
            let taken = post(&router, &signed, Body::from(&good[..])).await;
            let forged = post(&router, &signed, Body::from("a name")).await;
            // The channel is full, which is logged.
            let dropped = post(&router, &acknowledged, Body::from(ACKNOWLEDGE)).await;

            assert_eq!([taken, forged, dropped], [StatusCode::OK, StatusCode::UNAUTHORIZED, StatusCode::OK]);
            assert_eq!(take.0.load(Ordering::Relaxed), 1);
        },
    )
    .await;

    assert!(text.contains("verified") && text.contains("refused") && text.contains("dropped"), "{text}");
    for hidden in ["hunter2", "a name", &signed[7..], &signed[7..].to_lowercase()] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

#[tokio::test]
async fn a_managed_subscription_is_accepted_only_once_recorded() {
    let (asked, mut heard) = mpsc::channel(1);
    let mut kept = receiver();
    kept.advertised.manages = true;
    let receivers = Receivers::new();
    receivers.set(vec![Arc::new(kept)], Vec::new());
    let options =
        ReceiverOptions { acknowledge_time: Duration::from_millis(50), ..ReceiverOptions::default() };
    let router = router(receivers, Arc::<Counting>::default().accept(), asked, options);
    let signed = signature::sign(&Secret::new(SECRET), ACKNOWLEDGE);

    let unheard = post(&router, &signed, Body::from(ACKNOWLEDGE)).await;
    let dropped = post(&router, &signed, Body::from(ACKNOWLEDGE)).await;
    let (_, nobody) = heard.recv().await.unwrap();
    drop(nobody);
    let (known, ()) = tokio::join!(post(&router, &signed, Body::from(ACKNOWLEDGE)), async {
        let (_, durable) = heard.recv().await.unwrap();
        durable.send(()).unwrap();
    });

    let later = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!([unheard, dropped, known], [later, later, StatusCode::OK]);
}

#[tokio::test]
async fn slow_body_of_an_acknowledge_counts_for_its_answer() {
    let (asked, mut heard) = mpsc::channel(1);
    let mut kept = receiver();
    kept.advertised.manages = true;
    let receivers = Receivers::new();
    receivers.set(vec![Arc::new(kept)], Vec::new());
    let acknowledge_time = Duration::from_secs(60);
    let options =
        ReceiverOptions { body_time: 2 * acknowledge_time, acknowledge_time, ..ReceiverOptions::default() };
    let router = router(receivers, Arc::<Counting>::default().accept(), asked, options);
    let signed = signature::sign(&Secret::new(SECRET), ACKNOWLEDGE);
    let request = Request::post(PATH).header("svc-webhook-signature", signed);
    let mut request = request.body(Body::from(ACKNOWLEDGE)).unwrap();
    let began = Instant::now();
    request.extensions_mut().insert(server::Arrived(began - acknowledge_time));

    let answer = router.clone().call(request).await.unwrap();

    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(began.elapsed() < acknowledge_time / 2, "{:?}", began.elapsed());
    assert!(heard.try_recv().is_ok());
}

#[tokio::test]
async fn oversized_delivery_is_refused_for_good_only_once_reported() {
    let mut config = config();
    config.insert("body.limit.bytes".to_owned(), "2000".to_owned());
    let (source, _) = WebhookSource::parse("hooks", &config, &Providers::new([])).unwrap();
    let receivers = Receivers::new();
    let receiver = Receiver::of(&source, "dead".to_owned(), ReceiverState::Running).unwrap();
    receivers.set(vec![Arc::new(receiver)], Vec::new());
    let (oversized, mut reports) = mpsc::channel(1);
    let options = ReceiverOptions { oversized: Some(oversized), ..ReceiverOptions::default() };
    let router = router(receivers, Arc::<Counting>::default().accept(), mpsc::channel(1).0, options);
    let body = vec![b' '; 2_001];
    let signed = signature::sign(&Secret::new(SECRET), &body);

    let reported = post(&router, &signed, Body::from(body.clone())).await;
    let unreported = post(&router, &signed, Body::from(body.clone())).await;
    reports.try_recv().unwrap();
    let again = post(&router, &signed, Body::from(body)).await;

    let (refused, later) = (StatusCode::PAYLOAD_TOO_LARGE, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!([reported, unreported, again], [refused, later, refused]);
}

#[tokio::test]
async fn an_aborted_body_returns_its_memory() {
    let (router, take) = routes(ReceiverOptions { unverified_bytes: 1_300, ..ReceiverOptions::default() });
    const BODY: &[u8] = &[b' '; 900];
    let signed = signature::sign(&Secret::new(SECRET), BODY);
    let pieces = |ends: bool| {
        let all = futures::stream::iter(BODY.chunks(300).map(|piece| Ok(Bytes::copy_from_slice(piece))));
        let broken = futures::stream::iter((!ends).then(|| Err(io::Error::other("cut"))));
        Body::from_stream(all.chain(broken))
    };

    for _ in 0..3 {
        assert_eq!(post(&router, &signed, pieces(false)).await, StatusCode::BAD_REQUEST);
    }
    // Had any of them kept its bytes, there would be no room now.
    assert_eq!(post(&router, &signed, pieces(true)).await, StatusCode::OK);
    let whole = BODY.repeat(2);
    let too_much = post(&router, &signature::sign(&Secret::new(SECRET), &whole), Body::from(whole)).await;

    assert_eq!(too_much, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(take.0.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_body_must_be_there_in_time_and_a_handler_waits_no_longer() {
    let body_time = Duration::from_millis(50);
    let (router, take) = routes(ReceiverOptions { body_time, ..ReceiverOptions::default() });
    let began = Instant::now();
    let never = futures::stream::pending::<Result<Bytes, io::Error>>();

    let status = post(&router, &signature::sign(&Secret::new(SECRET), b""), Body::from_stream(never)).await;

    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert!(began.elapsed() >= body_time);
    assert_eq!(take.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn unknown_connectors_get_503_until_configs_are_loaded() {
    let receivers = Receivers::new();
    receivers.set_not_loaded(true);
    let routes = router(
        receivers.clone(),
        Arc::<Counting>::default().accept(),
        mpsc::channel(1).0,
        ReceiverOptions::default(),
    );
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = routes.clone().call(request).await.unwrap();
        (answer.status(), answer.headers().contains_key("retry-after"))
    };
    let guid = "/api/webhooks/incoming/Invoicing?echo=6f9619ff8b86d011b42d00cf4fc964ff";
    let paths = [("POST", PATH), ("POST", "/api/webhooks/incoming/Invoicing"), ("GET", guid)];
    for (method, path) in paths {
        assert_eq!(ask(method, path).await, (StatusCode::SERVICE_UNAVAILABLE, true), "{method} {path}");
    }
    assert_eq!(ask("POST", "/elsewhere").await, (StatusCode::NOT_FOUND, false));

    receivers.set_not_loaded(false);

    for ((method, path), expected) in
        paths.into_iter().zip([StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND])
    {
        assert_eq!(ask(method, path).await, (expected, false), "{method} {path}");
    }
}

/// The connector of the other tests with every hook, a secret of now and one before it.
fn invoicing_routes(options: ReceiverOptions) -> (Router, Arc<Counting>) {
    let mut config = config();
    for (key, value) in [
        ("invoicing.hooks", "all"),
        ("invoicing.secret.previous", "the-invoicing-secret-before-it-0123456789"),
    ] {
        config.insert(key.to_owned(), value.to_owned());
    }
    let (source, _) = WebhookSource::parse("hooks", &config, &Providers::new([])).unwrap();
    let receivers = Receivers::new();
    let receiver = Receiver::of(&source, "dead".to_owned(), ReceiverState::Running).unwrap();
    receivers.set(vec![Arc::new(receiver)], Vec::new());
    let take = Arc::new(Counting::default());
    (router(receivers, take.accept(), mpsc::channel(1).0, options), take)
}

const OWN: &str = "/api/webhooks/incoming/Invoicing/customer-created";
const SHARED: &str = "/api/webhooks/incoming/Invoicing";
const FORGED: &str = "sha256=0000000000000000000000000000000000000000000000000000000000000000";

/// A request with a signature for either family, from an address.
async fn post_from(router: &Router, from: [u8; 4], path: &str, signature: &str, body: Body) -> StatusCode {
    let request =
        Request::post(path).header("svc-webhook-signature", signature).header("ms-signature", signature);
    let mut request = request.body(body).unwrap();
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((from, 1))));
    router.clone().call(request).await.unwrap().status()
}

/// Every length here is a multiple of it.
const PIECE: usize = 64 << 10;

/// Bytes that are hashed for one forged request: what its source may have hashed until it is refused.
async fn hashed(path: &str, length: usize, chunked: bool) -> (StatusCode, u64) {
    let limit = |burst| ReceiverOptions {
        hash_limit: HashLimit { burst, per_second: 0, free: 0 },
        ..ReceiverOptions::default()
    };
    let body = || {
        let pieces = vec![Bytes::from(vec![b' '; PIECE]); length.div_ceil(PIECE)];
        match chunked {
            true => Body::from_stream(futures::stream::iter(pieces.into_iter().map(Ok::<_, io::Error>))),
            false => Body::from(vec![b' '; length]),
        }
    };
    let status = post_from(&invoicing_routes(limit(1 << 40)).0, [192, 0, 2, 1], path, FORGED, body()).await;
    // The smallest budget, in pieces, with which a second request is still let in.
    let (mut low, mut high) = (0_u64, 64);
    while low < high {
        let pieces = u64::midpoint(low, high);
        let (router, _) = invoicing_routes(limit(pieces * PIECE as u64 + 1));
        post_from(&router, [192, 0, 2, 1], path, FORGED, body()).await;
        let again = post_from(&router, [192, 0, 2, 1], path, FORGED, Body::empty()).await;
        (low, high) =
            if again == StatusCode::SERVICE_UNAVAILABLE { (pieces + 1, high) } else { (low, pieces) };
    }
    (status, low * PIECE as u64)
}

#[tokio::test]
async fn a_forged_invoicing_body_costs_at_most_an_accounting_one() {
    const MIB: usize = 1 << 20;
    let (refused, accounting) = hashed(PATH, MIB, false).await;
    assert_eq!((refused, accounting), (StatusCode::UNAUTHORIZED, MIB as u64));

    for path in
        [OWN, SHARED, "/api/webhooks/incoming/Others", "/api/webhooks/incoming/Others/customer-created"]
    {
        for chunked in [false, true] {
            let (status, bytes) = hashed(path, MIB, chunked).await;
            println!(
                "forged 1 MiB to {path}, chunked {chunked}: {bytes} bytes hashed, accounting {accounting}"
            );

            assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
            let most = if chunked { 2 * (256 << 10) } else { 0 };
            assert!(bytes <= most, "{path}, chunked {chunked}: {bytes}");
        }
    }
    let (status, own) = hashed(OWN, 256 << 10, false).await;
    assert_eq!((status, own), (StatusCode::UNAUTHORIZED, 2 * (256 << 10)), "two keys");
}

#[tokio::test]
async fn a_spent_source_is_refused_and_another_is_not() {
    let body = b"{}";
    let master = Secret::new("another-secret-of-another-api-0123456789");
    let hook = InvoicingHook::from_slug("customer-created").unwrap();
    let good = signature::sign(&signature::hook_secret(&master, hook.entity, hook.action), body);
    let hash_limit = HashLimit { burst: 10, per_second: 0, free: 0 };
    let (forger, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);

    let text = captured_logs(
        false,
        |text| text.contains("webhook.proxies"),
        async || {
            let (router, take) =
                invoicing_routes(ReceiverOptions { hash_limit, ..ReceiverOptions::default() });
            let mut forged = Vec::new();
            for _ in 0..4 {
                forged.push(post_from(&router, forger, OWN, FORGED, Body::from(&body[..])).await);
            }
            let (refused, spent) = (StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(forged, [refused, refused, refused, spent]);
            for path in [OWN, SHARED, PATH] {
                assert_eq!(
                    post_from(&router, forger, path, &good, Body::from(&body[..])).await,
                    spent,
                    "{path}"
                );
            }
            // A valid signature gives its bytes back, however many deliveries there are.
            for _ in 0..20 {
                for path in [OWN, SHARED] {
                    assert_eq!(
                        post_from(&router, other, path, &good, Body::from(&body[..])).await,
                        StatusCode::OK
                    );
                }
            }
            assert_eq!(take.0.load(Ordering::Relaxed), 40);
        },
    )
    .await;

    assert_eq!(text.matches("webhook.proxies").count(), 1, "{text}");

    // Bodies of the usual size at the own address of a hook are verified even then.
    let hash_limit = HashLimit { burst: 0, per_second: 0, free: 4 };
    let (router, _) = invoicing_routes(ReceiverOptions { hash_limit, ..ReceiverOptions::default() });
    let answers = [
        post_from(&router, forger, OWN, &good, Body::from(&body[..])).await,
        post_from(&router, forger, OWN, FORGED, Body::from("{  }")).await,
        post_from(&router, forger, SHARED, &good, Body::from(&body[..])).await,
    ];
    let throttled = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(answers, [StatusCode::OK, throttled, throttled]);
}

#[test]
fn a_missing_and_a_wrong_signature_count_apart_per_family() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let shown = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let accounting: &[_] = &["svc-webhook-signature"];
    let invoicing: &[_] = &["ms-signature"];
    let twice: &[_] = &["svc-webhook-signature", "svc-webhook-signature"];
    let cases = [
        (PATH, &[][..], FORGED, "accounting", "unsigned"),
        (PATH, invoicing, FORGED, "accounting", "unsigned"),
        (PATH, accounting, FORGED, "accounting", "signature"),
        (PATH, accounting, "base64==", "accounting", "signature"),
        (PATH, twice, FORGED, "accounting", "signature"),
        (OWN, &[], FORGED, "invoicing", "unsigned"),
        (OWN, accounting, FORGED, "invoicing", "unsigned"),
        (OWN, invoicing, FORGED, "invoicing", "signature"),
        (SHARED, &[], FORGED, "invoicing", "unsigned"),
        (SHARED, invoicing, FORGED, "invoicing", "signature"),
        ("/webhooks/accounting/others", &[], FORGED, "accounting", "unknown"),
        ("/api/webhooks/incoming/Others", invoicing, FORGED, "invoicing", "unknown"),
        ("/elsewhere", accounting, FORGED, "none", "route"),
    ];

    ::metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let (router, _) = invoicing_routes(ReceiverOptions::default());
            for (path, headers, signature, _, reason) in cases {
                let request = headers
                    .iter()
                    .fold(Request::post(path), |request, name| request.header(*name, signature));
                let status =
                    router.clone().call(request.body(Body::from("{}")).unwrap()).await.unwrap().status();
                let expected =
                    if reason == "route" { StatusCode::NOT_FOUND } else { StatusCode::UNAUTHORIZED };
                assert_eq!(status, expected, "{path} {headers:?}");
            }
        });
    });

    let text = shown.render();
    for (.., family, reason) in cases {
        let count = cases.iter().filter(|(.., other, why)| (*other, *why) == (family, reason)).count();
        let line =
            format!(r#"tributary_deliveries_refused_total{{family="{family}",reason="{reason}"}} {count}"#);
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

/// Bytes that are taken of a body of this length, sent in pieces over this version, and the answer.
async fn drained(
    version: Version,
    path: &str,
    signature: Option<&str>,
    length: usize,
) -> (StatusCode, usize) {
    let (router, _) = invoicing_routes(ReceiverOptions::default());
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let pieces = vec![Bytes::from(vec![b' '; PIECE]); length.div_ceil(PIECE)];
    let pieces = futures::stream::iter(pieces.into_iter().map(move |piece| {
        counted.fetch_add(piece.len(), Ordering::Relaxed);
        Ok::<_, io::Error>(piece)
    }));
    let mut request = Request::post(path).version(version);
    for header in ["svc-webhook-signature", "ms-signature"] {
        request = signature.into_iter().fold(request, |request, value| request.header(header, value));
    }
    let status =
        router.clone().call(request.body(Body::from_stream(pieces)).unwrap()).await.unwrap().status();
    (status, taken.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_refusal_over_http_2_takes_the_body_first() {
    const HALF: usize = 512 << 10;
    let cases = [
        (PATH, None, StatusCode::UNAUTHORIZED),
        ("/webhooks/accounting/others", None, StatusCode::UNAUTHORIZED),
        (OWN, None, StatusCode::UNAUTHORIZED),
        (OWN, Some(FORGED), StatusCode::PAYLOAD_TOO_LARGE),
        ("/elsewhere", None, StatusCode::NOT_FOUND),
    ];
    for (path, signature, expected) in cases {
        assert_eq!(drained(Version::HTTP_2, path, signature, HALF).await, (expected, HALF), "{path}");
        // There is a bound: one that is longer loses its stream.
        let (status, taken) = drained(Version::HTTP_2, path, signature, 64 * HALF).await;
        assert!(status == expected && taken < 4 * HALF, "{path}: {status} {taken}");
        // Over HTTP/1.1 the connection is closed behind the answer.
        let (status, taken) = drained(Version::HTTP_11, path, signature, HALF).await;
        assert!(status == expected && taken < HALF, "{path}: {status} {taken}");
    }
}
