use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::auth::tests::stub::{Act, Stub, TOKEN, provider};

const GOOD: &str = r#"{"access_token":"new-access","refresh_token":"new-refresh","expires_in":60}"#;

fn identity(stub: &Stub) -> Identity {
    Identity::new(&stub.provider(), ProviderClock::new(Duration::from_secs(300))).unwrap()
}

fn open() -> Gate {
    Arc::new(|| true)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

async fn refresh(identity: &Identity) -> RefreshOutcome {
    identity.refresh(&Secret::new("old+refresh"), open(), soon()).await
}

/// An outcome in a word.
fn word(outcome: &RefreshOutcome) -> String {
    match outcome {
        RefreshOutcome::Granted(_) => "granted".into(),
        RefreshOutcome::Refused(code) => format!("refused {code}"),
        RefreshOutcome::NotSent(_) => "not sent".into(),
        RefreshOutcome::Unknown(_) => "unknown".into(),
    }
}

#[tokio::test]
async fn the_response_decides_whether_the_provider_may_have_acted() {
    let stub = Stub::start().await;
    let identity = identity(&stub);
    let long = format!(r#"{{"access_token":"{}"}}"#, "a".repeat(300 * 1024));

    for (act, expected) in [
        (Act::json(200, GOOD), "granted"),
        (Act::with_headers(200, "", GOOD), "granted"),
        (Act::json(400, r#"{"error":"invalid_grant"}"#), "refused invalid_grant"),
        (Act::json(400, r#"{"error":"invalid_grant","error_description":7}"#), "refused invalid_grant"),
        (Act::json(400, r#"{"error":"invalid_client"}"#), "refused invalid_client"),
        (Act::json(401, r#"{"error":"unauthorized_client"}"#), "refused unauthorized_client"),
        (Act::json(400, r#"{"error":"odd <b>\u0007word"}"#), "refused oddbword"),
        (Act::json(400, r#"{"error":"temporarily_unavailable"}"#), "not sent"),
        (Act::json(400, r#"{"error":"server_error"}"#), "unknown"),
        (Act::answer(400, "text/html", "<html>"), "unknown"),
        (Act::json(400, ""), "unknown"),
        (Act::json(403, r#"{"statusCode":403}"#), "unknown"),
        (Act::answer(404, "text/html", "<html>"), "not sent"),
        (Act::json(404, r#"{"statusCode":404}"#), "not sent"),
        (Act::json(429, r#"{"error":"slow_down"}"#), "not sent"),
        (Act::answer(503, "text/html", "<html>"), "unknown"),
        (Act::with_headers(503, "retry-after: 7\r\n", ""), "not sent"),
        (Act::json(403, r#"{"error":"Forbidden"}"#), "unknown"),
        (Act::json(403, r#"{"error":"invalid_grant"}"#), "refused invalid_grant"),
        (Act::json(408, r#"{"error":"Request Timeout"}"#), "unknown"),
        (Act::json(409, r#"{"error":"invalid_grant"}"#), "unknown"),
        (Act::json(413, r#"{"error":"too large"}"#), "not sent"),
        (Act::json(500, r#"{"error":"invalid_grant"}"#), "unknown"),
        (Act::json(502, ""), "unknown"),
        (Act::json(504, ""), "unknown"),
        (Act::with_headers(302, "location: http://127.0.0.1:1/\r\n", ""), "not sent"),
        (Act::json(204, ""), "unknown"),
        (Act::answer(200, "text/html", "<html>"), "unknown"),
        (Act::answer(200, "text/html", GOOD), "granted"),
        (Act::answer(200, "application/jwt", GOOD), "granted"),
        (Act::json(200, &format!("\u{feff}{GOOD}")), "granted"),
        (Act::json(200, ""), "unknown"),
        (Act::json(200, "null"), "unknown"),
        (Act::json(200, r#"{"access_token":" "}"#), "unknown"),
        (Act::json(200, r#"{"access_token":"a"#), "unknown"),
        (Act::json(200, r#"{"access_token":5,"refresh_token":"r"}"#), "unknown"),
        (Act::json(200, r#"{"error":"invalid_grant"}"#), "unknown"),
        (Act::json(200, &long), "unknown"),
        (Act::Say("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{".into()), "unknown"),
        (Act::Say("SSH-2.0-not-http\r\n".into()), "unknown"),
        (Act::Cut, "unknown"),
    ] {
        stub.on(TOKEN, act.clone());

        let outcome = refresh(&identity).await;

        assert_eq!(word(&outcome), expected, "{act:?} gives {outcome:?}");
    }
}

#[tokio::test]
async fn a_refresh_sends_exactly_the_documented_form() {
    let stub = Stub::start().await;
    stub.on(TOKEN, Act::json(200, GOOD));

    let outcome = refresh(&identity(&stub)).await;

    let RefreshOutcome::Granted(granted) = outcome else { panic!("{outcome:?}") };
    assert_eq!(granted.access.reveal(), "new-access");
    assert_eq!(granted.refresh.unwrap().reveal(), "new-refresh");
    let [(head, body)] = &stub.seen(TOKEN)[..] else { panic!("{:?}", stub.seen(TOKEN)) };
    assert!(head.starts_with("POST /auth/core/connect/token HTTP/1.1\r\n"), "{head}");
    let head = head.to_lowercase();
    assert!(head.contains("content-type: application/x-www-form-urlencoded"), "{head}");
    // Some services require a content length.
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    assert!(!head.contains("authorization"), "{head}");
    let mut fields: Vec<_> = url::form_urlencoded::parse(body.as_bytes()).collect();
    fields.sort();
    let expected = [
        ("client_id", "client"),
        ("client_secret", "se&cret"),
        ("grant_type", "refresh_token"),
        ("refresh_token", "old+refresh"),
    ];
    assert_eq!(fields, expected.map(|(name, value)| (name.into(), value.into())));
}

#[tokio::test]
async fn a_token_is_not_presented_once_the_gate_is_closed() {
    let stub = Stub::start().await;
    stub.on(TOKEN, Act::json(200, GOOD));
    let identity = identity(&stub);
    let asked = Arc::new(AtomicUsize::new(0));
    let gate = {
        let asked = Arc::clone(&asked);
        Arc::new(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            false
        })
    };

    let outcome = identity.refresh(&Secret::new("old-refresh"), gate, soon()).await;

    assert!(matches!(outcome, RefreshOutcome::NotSent(Error::Late)), "{outcome:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(stub.seen(TOKEN).is_empty(), "{:?}", stub.seen(TOKEN));
}

#[tokio::test]
async fn the_gate_is_called_only_once_connected() {
    // A listener without a server: it accepts connections, but the TLS handshake never ends.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
    let identity = Identity::new(&provider(&url), ProviderClock::new(Duration::ZERO)).unwrap();
    let gate = Arc::new(|| panic!("asked before there is anybody to send to"));

    let end = Instant::now() + Duration::from_millis(200);
    let outcome = identity.refresh(&Secret::new("old-refresh"), gate, end).await;

    assert!(matches!(outcome, RefreshOutcome::NotSent(Error::Silent)), "{outcome:?}");
}

#[tokio::test]
async fn an_unreachable_service_has_not_acted() {
    let url = Url::parse("http://127.0.0.1:1").unwrap();
    let identity = Identity::new(&provider(&url), ProviderClock::new(Duration::ZERO)).unwrap();

    let outcome = refresh(&identity).await;

    assert!(matches!(outcome, RefreshOutcome::NotSent(Error::Unreachable(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_service_that_never_answers_may_have_acted() {
    let stub = Stub::start().await;
    stub.on(TOKEN, Act::Hang);
    let identity = identity(&stub);

    let token = Secret::new("old-refresh");
    let end = Instant::now() + Duration::from_secs(8);
    let (outcome, ()) = tokio::join!(identity.refresh(&token, open(), end), stub.asked(TOKEN));

    assert!(matches!(outcome, RefreshOutcome::Unknown(Error::Silent)), "{outcome:?}");
    assert_eq!(stub.seen(TOKEN).len(), 1);
}

#[tokio::test]
async fn a_named_wait_comes_with_the_verdict() {
    let stub = Stub::start().await;
    stub.on(TOKEN, Act::with_headers(503, "retry-after: 17\r\n", ""));

    let outcome = refresh(&identity(&stub)).await;

    let RefreshOutcome::NotSent(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.retry(), Retry::After(Duration::from_secs(17)));
}

#[tokio::test]
async fn expires_in_counts_from_the_date_of_its_response() {
    let stub = Stub::start().await;
    let date = "content-type: application/json\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    stub.on(TOKEN, Act::with_headers(200, date, GOOD));

    let outcome = refresh(&identity(&stub)).await;

    let RefreshOutcome::Granted(granted) = outcome else { panic!("{outcome:?}") };
    let late = granted.access_expires_ms.unwrap() - (784_111_777_000 + 60_000);
    assert!((0..30_000).contains(&late), "{late}");
}

#[tokio::test]
async fn no_error_contains_words_of_the_provider() {
    let stub = Stub::start().await;
    let identity = identity(&stub);

    for body in [r#"{"access_token":["s3cret"]}"#, "s3cret", r#"{"access_token":"s3cret""#] {
        for act in [Act::json(200, body), Act::answer(200, "text/s3cret", body), Act::json(400, body)] {
            stub.on(TOKEN, act);

            let outcome = refresh(&identity).await;

            let (RefreshOutcome::Unknown(error) | RefreshOutcome::NotSent(error)) = outcome else {
                panic!("{outcome:?}")
            };
            let shown = format!("{error:?} {error} {}", base::retry::ErrorChain(&error));
            assert!(!shown.contains("s3cret") && !shown.contains("old+refresh"), "{shown}");
        }
    }
}

#[tokio::test]
async fn an_exchange_sends_code_redirect_and_verifier() {
    let stub = Stub::start().await;
    stub.on(TOKEN, Act::json(200, GOOD));
    let redirect = "http://localhost:8400/Callback";

    let verifier = Secret::new("verifier");
    identity(&stub).redeem(&Secret::new("c0de"), redirect, Some(&verifier)).await.unwrap();

    let [(_, body)] = &stub.seen(TOKEN)[..] else { panic!("{:?}", stub.seen(TOKEN)) };
    let mut fields: Vec<_> = url::form_urlencoded::parse(body.as_bytes()).collect();
    fields.sort();
    let expected = [
        ("client_id", "client"),
        ("client_secret", "se&cret"),
        ("code", "c0de"),
        ("code_verifier", "verifier"),
        ("grant_type", "authorization_code"),
        ("redirect_uri", redirect),
    ];
    assert_eq!(fields, expected.map(|(name, value)| (name.into(), value.into())));
}
