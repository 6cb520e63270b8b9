//! What goes on inside: what is logged, what is counted and given back. What senders see is held by the integration tests,
//! over real connections.

use std::{
    collections::BTreeMap,
    future::ready,
    io,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use http::StatusCode;
use tower_service::Service as _;

use super::*;
use crate::{
    config::{Providers, WebhookSource},
    secret::Secret,
    telemetry::heard::heard,
    webhooks::{
        receivers::{Receiver, Taking, Trust},
        signature,
    },
};

const SECRET: &str = "hunter2-hunter2-hunter2";
const PATH: &str = "/webhooks/accounting/hooks/customers";

/// Takes everything.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Take for Counting {
    fn take(&self, _: Delivery, _: Reading, _: Instant) -> impl Future<Output = Outcome> + Send {
        self.0.fetch_add(1, Ordering::Relaxed);
        ready(Outcome::Durable)
    }
}

fn receiver() -> Receiver {
    let config: BTreeMap<String, String> = [
        ("connector.class", "WebhookSource"),
        ("topic.prefix", "acme"),
        ("accounting.resources", "all"),
        ("accounting.secret", SECRET),
        ("invoicing.hooks", "Customer:Created"),
        ("invoicing.secret", "another-secret-of-another-api-0123456789"),
        ("subscriptions.manage", "false"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let (source, _) = WebhookSource::parse("hooks", &config, &Providers::new([])).unwrap();
    Receiver::of(&source, "dead".to_owned(), Taking::All).unwrap()
}

fn routes(options: Options) -> (Router, Arc<Counting>) {
    let receivers = Receivers::new();
    receivers.set(vec![Arc::new(receiver())]);
    let take = Arc::new(Counting::default());
    (router(receivers, Arc::clone(&take), mpsc::channel(1).0, options), take)
}

async fn post(router: &Router, signature: &str, body: Body) -> StatusCode {
    let request = Request::post(PATH).header("svc-webhook-signature", signature).body(body).unwrap();
    router.clone().call(request).await.unwrap().status()
}

#[test]
fn what_is_read_for_nobody_is_what_a_connector_takes_that_sets_no_limits() {
    let receiver = receiver();
    let (accounting, invoicing) = (receiver.accounting.unwrap(), receiver.invoicing.unwrap());
    let Trust::Signed { header, .. } = invoicing.trust else { panic!("nothing is signed") };

    assert_eq!(accounting.body_limit, deliver::NOBODYS_LIMIT);
    assert_eq!(invoicing.body_limit, deliver::NOBODYS_INVOICING_LIMIT);
    assert_eq!(header, deliver::NOBODYS_HEADER);
}

const ACKNOWLEDGE: &[u8] = br#"{"EventType":{"EventType":"Acknowledge"},"WebhookId":"a name"}"#;

#[tokio::test]
async fn no_secret_signature_or_body_is_in_any_log_line() {
    let good = br#"{"OutgoingId":"1","EventType":{"EventType":"CustomerUpdated"},"JsonData":"a name"}"#;
    let signed = signature::sign(&Secret::new(SECRET), good);
    let acknowledged = signature::sign(&Secret::new(SECRET), ACKNOWLEDGE);

    let text = heard(
        false,
        |text| ["verified", "refused", "dropped"].iter().all(|word| text.contains(word)),
        async || {
            let (router, take) = routes(Options::default());
            let taken = post(&router, &signed, Body::from(&good[..])).await;
            let forged = post(&router, &signed, Body::from("a name")).await;
            // Nobody listens, which is worth a line.
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
async fn a_subscription_that_is_kept_here_is_not_accepted_before_somebody_can_know_of_it() {
    let (asked, mut heard) = mpsc::channel(1);
    let mut kept = receiver();
    kept.told.manages = true;
    let receivers = Receivers::new();
    receivers.set(vec![Arc::new(kept)]);
    let options = Options { acknowledge_time: Duration::from_millis(50), ..Options::default() };
    let router = router(receivers, Arc::new(Counting::default()), asked, options);
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
async fn a_body_that_is_not_read_to_its_end_gives_back_what_it_held() {
    let (router, take) = routes(Options { unverified_bytes: 1_300, ..Options::default() });
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
    let (router, take) = routes(Options { body_time, ..Options::default() });
    let began = Instant::now();
    let never = futures::stream::pending::<Result<Bytes, io::Error>>();

    let status = post(&router, &signature::sign(&Secret::new(SECRET), b""), Body::from_stream(never)).await;

    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert!(began.elapsed() >= body_time);
    assert_eq!(take.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nobody_is_told_that_a_connector_is_not_there_before_that_is_known() {
    let receivers = Receivers::new();
    receivers.set_partial(true);
    let routes =
        router(receivers.clone(), Arc::new(Counting::default()), mpsc::channel(1).0, Options::default());
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

    receivers.set_partial(false);

    for ((method, path), expected) in
        paths.into_iter().zip([StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND])
    {
        assert_eq!(ask(method, path).await, (expected, false), "{method} {path}");
    }
}
