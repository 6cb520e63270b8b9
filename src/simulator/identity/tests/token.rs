//! The token endpoint: what it answers, whom it refuses, and how it fails on demand.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;
use crate::simulator::knobs::{BadClient, Latency};

#[tokio::test]
async fn a_code_becomes_exactly_the_documents_fields() {
    let simulated = Simulated::new();

    let answer = simulated.login(ACCOUNTING).await;

    let json = answer.json();
    let mut names: Vec<&String> = json.as_object().unwrap().keys().collect();
    names.sort_unstable();
    assert_eq!(names, ["access_token", "expires_in", "id_token", "refresh_token", "token_type"]);
    assert_eq!((&json["expires_in"], &json["token_type"]), (&3600.into(), &"Bearer".into()));
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(answer.headers["content-type"], "application/json; charset=utf-8");
    assert_eq!(simulated.standing(&answer.member("access_token")), "valid");
}

#[tokio::test]
async fn without_offline_access_there_is_no_refresh_token() {
    let simulated = Simulated::new();

    let answer = simulated.login("openid SVC.ES.NEWPOL.ACC.API").await;

    assert!(answer.json().get("refresh_token").is_none());
    assert!(simulated.0.identity.issued().iter().all(|issued| issued.kind != "refresh"));
}

#[tokio::test]
async fn every_wrong_exchange_has_its_error() {
    let simulated = Simulated::new();
    let table = [
        ("client_id", None, "invalid_client"),
        ("client_id", Some("somebody"), "invalid_client"),
        ("client_secret", None, "invalid_client"),
        ("client_secret", Some("wrong"), "invalid_client"),
        ("client_secret", Some("simulated-secret\u{fffd}"), "invalid_client"),
        ("grant_type", None, "unsupported_grant_type"),
        ("grant_type", Some("password"), "unsupported_grant_type"),
        ("grant_type", Some("refresh_token"), "invalid_request"),
        ("code", None, "invalid_grant"),
        ("code", Some("00000000000000000000000000000000"), "invalid_grant"),
        ("redirect_uri", None, "unauthorized_client"),
        ("redirect_uri", Some("https://client.example/Callback"), "unauthorized_client"),
        ("redirect_uri", Some("https://client.example/callback/"), "unauthorized_client"),
        ("code_verifier", Some("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"), "invalid_grant"),
    ];

    for (name, value, error) in table {
        let code = simulated.code(ACCOUNTING).await;
        let answer = simulated.token(&changed(&exchange(&code), name, value)).await;
        assert_eq!(answer.outcome(), (400, error.to_owned()), "{name} {value:?}");
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    let code = simulated.code(ACCOUNTING).await;
    let twice = [&exchange(&code)[..], &[("code", &code)]].concat();
    assert_eq!(simulated.token(&twice).await.outcome(), (400, "invalid_request".to_owned()));
}

#[tokio::test]
async fn only_a_form_is_read() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;
    let body = encode(&exchange(&code));
    let refused = (400, "invalid_request".to_owned());

    for content_type in ["application/json", "text/plain", "", "multipart/form-data"] {
        let answer = simulated.post(TOKEN, content_type, body.clone()).await;
        assert_eq!(answer.outcome(), refused, "{content_type}");
    }
    let huge = simulated.post(TOKEN, "application/x-www-form-urlencoded", "a".repeat((1 << 20) + 1)).await;
    let binary = simulated.post(TOKEN, "application/x-www-form-urlencoded", vec![0xff; 99]).await;
    let charset = simulated.post(TOKEN, "Application/X-WWW-Form-Urlencoded; charset=utf-8", body).await;

    assert_eq!(huge.outcome(), (413, "invalid_request".to_owned()));
    assert_eq!(binary.outcome(), (400, "invalid_client".to_owned()));
    assert_eq!(charset.status, 200);
}

#[tokio::test]
async fn credentials_may_be_sent_as_basic() {
    let simulated = Simulated::with(|settings| settings.client.secret = "a+b:c%/é".into());
    let encoded: String = form_urlencoded::byte_serialize("a+b:c%/é".as_bytes()).collect();

    for (header, status) in [
        (format!("Basic {}", STANDARD.encode("simulated-client:a+b:c%/é")), 200),
        (format!("basic {}", STANDARD.encode(format!("simulated-client:{encoded}"))), 200),
        (format!("Basic {}", STANDARD.encode("simulated-client:a b:c%/é")), 400),
        (format!("Basic {}", STANDARD.encode("somebody:a+b:c%/é")), 400),
        (format!("Basic {}", STANDARD.encode("simulated-client")), 400),
        (format!("Basic {}", STANDARD.encode([0xff, b':', 0xff])), 400),
        ("Basic %%%".to_owned(), 400),
        ("Basic".to_owned(), 400),
        ("Bearer token".to_owned(), 400),
    ] {
        let code = simulated.code(ACCOUNTING).await;
        let body = encode(&changed(&changed(&exchange(&code), "client_id", None), "client_secret", None));
        let request = Request::post(TOKEN)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("authorization", &header)
            .body(Body::from(body))
            .unwrap();
        let answer = simulated.call(request).await;
        assert_eq!(answer.status, status, "{header}");
        assert!(status == 200 || answer.outcome().1 == "invalid_client", "{header}");
    }
}

#[tokio::test]
async fn a_wrong_client_can_be_told_by_401_too() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| knobs.bad_client = BadClient::UnauthorizedClient);

    let answer = simulated.token(&changed(&exchange("code"), "client_secret", Some("wrong"))).await;

    assert_eq!(answer.outcome(), (401, "unauthorized_client".to_owned()));
    assert!(answer.headers.contains_key("www-authenticate"));
}

#[tokio::test]
async fn lost_answers_are_lost_after_the_work_was_done() {
    let simulated = Simulated::new();
    let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
    simulated.turn(|knobs| {
        knobs.lose_answers = 1;
        knobs.reuse_ends_grant = false;
    });

    let lost = simulated.refresh(&refresh).await;
    let again = simulated.refresh(&refresh).await;

    assert!(lost.hung_up && !again.hung_up);
    assert_eq!(again.outcome(), (400, "invalid_grant".to_owned()));
    assert_eq!(simulated.0.knobs().identity.lose_answers, 0);
    let issued = simulated.0.identity.issued();
    assert_eq!(issued.iter().filter(|issued| issued.kind == "refresh").count(), 2);
}

#[tokio::test]
async fn an_unavailable_endpoint_does_no_work() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;
    simulated.turn(|knobs| knobs.unavailable = 2);

    let refused = [simulated.redeem(&code).await.status, simulated.redeem(&code).await.status];
    let answered = simulated.redeem(&code).await.status;

    assert_eq!((refused, answered), ([503, 503], 200));
}

#[tokio::test]
async fn the_endpoint_waits_at_least_as_long_as_its_latency() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;
    simulated.turn(|knobs| knobs.latency = Latency::Fixed(60.0));

    let start = std::time::Instant::now();
    let answer = simulated.redeem(&code).await;

    assert_eq!(answer.status, 200);
    assert!(start.elapsed() >= Duration::from_millis(60));
}
