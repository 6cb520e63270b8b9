use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use axum::{
    body::{Body, to_bytes},
    extract::ConnectInfo,
    routing::{get, post, put},
};
use serde_json::Value;
use tokio::sync::Notify;
use tower_service::Service as _;

use base::secret::Secret;
use model::Quote;

use super::*;
use crate::{
    config::worker::{Rest, RestLogin},
    telemetry::captured_logs::captured_logs,
};

const ADMINISTRATOR: &str = "root:correct horse battery";
const READER: &str = "watcher:staple staple staple";

fn login(credentials: &str) -> Option<RestLogin> {
    let (user, password) = credentials.split_once(':').unwrap();
    Some(RestLogin { user: user.to_owned(), password: Secret::new(password) })
}

fn settings() -> Rest {
    Rest {
        advertised_host: "127.0.0.1".to_owned(),
        advertised_port: 0,
        advertised_tls: false,
        tls: None,
        client_auth: None,
        reload_interval: Duration::from_secs(10),
        proxies: vec!["10.0.0.0/8".parse().unwrap()],
        administrator: login(ADMINISTRATOR),
        reader: login(READER),
        open_paths: vec!["/health".to_owned(), "/metrics".to_owned()],
        hosts: vec!["127.0.0.1".to_owned(), "connect.example.com".to_owned()],
        allowed_origins: Vec::new(),
        allowed_methods: vec!["GET".to_owned(), "PUT".to_owned()],
    }
}

fn served(settings: &Rest) -> Router {
    let ok = async || "ok";
    let panics = async || -> &'static str { panic!("hunter2 is the password") };
    let quoting =
        async || format!(r#"{{"trace":"GET x answered 422 ({}): refused"}}"#, Quote("internal hostname"));
    let router = Router::new()
        .route("/connectors", get(ok).post(ok))
        .route("/connectors/c/snapshots", get(ok).post(ok))
        .route("/connectors/c/snapshots/r/stop", put(ok))
        .route("/connector-plugins/P/config/validate", put(ok).post(ok))
        .route("/connectors/c/status", get(quoting))
        .route("/health", get(ok).post(ok))
        .route("/health/ready", get(quoting))
        .route("/health/live", get(ok))
        .route("/healthy", get(ok))
        .route("/metrics", get(ok))
        .route("/panic", get(panics).post(panics))
        .method_not_allowed_fallback(crate::connect::rest::not_allowed);
    protect(router, Security::new(settings).unwrap())
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let builder = Request::builder().method(method).uri(path);
    let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    builder.body(Body::empty()).unwrap()
}

fn basic(credentials: &str) -> String {
    format!("Basic {}", STANDARD.encode(credentials))
}

async fn ask(router: &Router, request: Request) -> Response {
    router.clone().call(request).await.unwrap()
}

async fn status(router: &Router, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    ask(router, request(method, path, headers)).await.status().as_u16()
}

#[tokio::test]
async fn only_callers_that_may_change_see_provider_quotes() {
    let router = served(&settings());
    let open = served(&Rest { administrator: None, reader: None, ..settings() });
    let (administrator, reader) = (basic(ADMINISTRATOR), basic(READER));
    for (what, router, path, authorization, sees) in [
        ("administrator", &router, "/connectors/c/status", Some(&administrator), true),
        ("reader", &router, "/connectors/c/status", Some(&reader), false),
        ("open path", &router, "/health/ready", None, false),
        ("without authentication", &open, "/connectors/c/status", None, true),
    ] {
        let mut headers = vec![("host", "127.0.0.1")];
        headers.extend(authorization.map(|value| ("authorization", value.as_str())));

        let answer = error_body(ask(router, request("GET", path, &headers)).await).await;

        let trace = answer["trace"].as_str().unwrap();
        assert_eq!(trace.contains("internal hostname"), sees, "{what}: {trace}");
        assert!(
            trace.starts_with("GET x answered 422 (") && trace.ends_with("): refused"),
            "{what}: {trace}"
        );
    }
}

async fn error_body(response: Response) -> Value {
    let bytes = to_bytes(response.into_body(), 1 << 16).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn reader_reads_and_validates_and_administrator_does_all() {
    let router = served(&settings());
    let table = [
        ("GET", "/connectors", 200, 200),
        ("HEAD", "/connectors", 200, 200),
        ("OPTIONS", "/connectors", 200, 200),
        ("POST", "/connectors", 403, 200),
        ("DELETE", "/connectors", 403, 405),
        ("GET", "/connectors/c/snapshots", 200, 200),
        ("POST", "/connectors/c/snapshots", 403, 200),
        ("PUT", "/connectors/c/snapshots/r/stop", 403, 200),
        ("PUT", "/connector-plugins/P/config/validate", 200, 200),
        ("POST", "/connector-plugins/P/config/validate", 403, 200),
        ("PUT", "/connectors/config/validate", 403, 404),
    ];

    for (method, path, reader, administrator) in table {
        let (as_reader, as_administrator) = (basic(READER), basic(ADMINISTRATOR));
        let reader_got = status(&router, method, path, &[("authorization", &as_reader)]).await;
        let administrator_got = status(&router, method, path, &[("authorization", &as_administrator)]).await;

        assert_eq!((reader_got, administrator_got), (reader, administrator), "{method} {path}");
        assert_eq!(status(&router, method, path, &[]).await, 401, "{method} {path}");
    }
}

#[tokio::test]
async fn without_configured_logins_every_caller_is_admitted() {
    let router = served(&Rest { administrator: None, reader: None, ..settings() });

    assert_eq!(status(&router, "POST", "/connectors", &[]).await, 200);
    assert_eq!(status(&router, "POST", "/connectors", &[("authorization", "Basic !!")]).await, 200);
}

#[tokio::test]
async fn dns_rebinding_needs_a_password() {
    let asked = served(&settings());
    let open = served(&Rest { administrator: None, reader: None, ..settings() });
    let rebound = [("host", "attacker.example:8083"), ("origin", "http://attacker.example:8083")];
    let own = [("host", "connect.example.com:8083"), ("origin", "http://connect.example.com:8083")];

    for (method, path, asked_for) in [
        ("POST", "/connectors", 401),
        ("GET", "/connectors", 401),
        ("POST", "/health", 401),
        ("GET", "/health", 200),
        ("GET", "/health/live", 200),
        ("GET", "/metrics", 200),
    ] {
        assert_eq!(status(&open, method, path, &rebound).await, 421, "{method} {path}");
        assert_eq!(status(&open, method, path, &own).await, 200, "{method} {path}");
        // As Kubernetes probes and metric scrapers address it.
        assert_eq!(status(&open, method, path, &[("host", "10.1.2.3:8083")]).await, 200, "{method} {path}");
        assert_eq!(status(&asked, method, path, &rebound).await, asked_for, "{method} {path}");
    }
    let body = error_body(ask(&open, request("GET", "/connectors", &rebound)).await).await;
    assert!(body["message"].as_str().unwrap().contains("admin.auth.anonymous.hosts"), "{body}");
    let administrator = basic(ADMINISTRATOR);
    let known = [("host", "behind.a.proxy"), ("authorization", administrator.as_str())];
    assert_eq!(status(&asked, "POST", "/connectors", &known).await, 200);
}

#[tokio::test]
async fn failed_logins_all_get_the_same_answer() {
    let router = served(&settings());
    let wrong = [
        basic("root:wrong"),
        basic("unknown:correct horse battery"),
        basic("root:staple staple staple"),
        basic("root"),
        basic(":"),
        "Basic !!!".to_owned(),
        "Basic".to_owned(),
        format!("Bearer {}", STANDARD.encode(ADMINISTRATOR)),
        format!("Basic {}", STANDARD.encode(b"root:\xff\xfe")),
    ];

    let mut bodies = Vec::new();
    for value in &wrong {
        let response = ask(&router, request("GET", "/connectors", &[("authorization", value)])).await;
        assert_eq!(response.status(), 401, "{value}");
        assert_eq!(
            response.headers()[header::WWW_AUTHENTICATE],
            "Basic realm=\"tributary\", charset=\"UTF-8\""
        );
        bodies.push(error_body(response).await);
    }

    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    assert_eq!(bodies[0]["error_code"], 401);
}

#[tokio::test]
async fn open_paths_are_open_for_reading_only() {
    let router = served(&settings());
    let closed = served(&Rest { open_paths: Vec::new(), ..settings() });

    assert_eq!(status(&router, "GET", "/health", &[]).await, 200);
    assert_eq!(status(&router, "GET", "/health/live", &[]).await, 200);
    assert_eq!(status(&router, "POST", "/health", &[]).await, 401);
    assert_eq!(status(&router, "GET", "/healthy", &[]).await, 401);
    assert_eq!(status(&closed, "GET", "/health", &[]).await, 401);
}

#[tokio::test]
async fn panic_text_is_not_in_the_answer() {
    let router = served(&Rest { administrator: None, reader: None, ..settings() });

    for method in ["GET", "POST"] {
        let response = ask(&router, request(method, "/panic", &[])).await;

        assert_eq!(response.status(), 500, "{method}");
        let body = error_body(response).await;
        assert_eq!(body["error_code"], 500);
        assert!(!body.to_string().contains("hunter2"), "{body}");
    }
    assert_eq!(status(&router, "GET", "/connectors", &[]).await, 200);
}

#[tokio::test]
async fn hanging_handler_is_answered_at_the_deadline() {
    let settings = Rest { administrator: None, reader: None, ..settings() };
    let mut security = Security::new(&settings).unwrap();
    assert!(security.deadline < Duration::from_secs(10));
    security.deadline = Duration::from_millis(50);
    let stuck =
        Router::new().route("/stuck", get(std::future::pending::<&str>).post(std::future::pending::<&str>));
    let router = protect(stuck, security);

    for method in ["GET", "POST"] {
        let response = ask(&router, request(method, "/stuck", &[])).await;

        assert!(error_body(response).await["message"].as_str().unwrap().starts_with("Request timed out."));
    }
}

#[tokio::test]
async fn slow_login_uses_up_the_time_of_its_request() {
    // So many iterations take longer than the deadline on any machine.
    let slow = login(
        "root:$pbkdf2-sha256$i=1000000$++++MDEyMzQ1Njc4OWFiY2Rl$Xd1pSv8YAdlDfCYZG2S3V8XUpvgZtxd2oXysIE2RqAI",
    );
    let mut security = Security::new(&Rest { administrator: slow, reader: None, ..settings() }).unwrap();
    security.deadline = Duration::from_millis(10);
    let router = protect(Router::new().route("/connectors", get(async || "ok")), security);

    let response = ask(&router, request("GET", "/connectors", &[("authorization", &basic("root:a"))])).await;

    assert!(error_body(response).await["message"].as_str().unwrap().starts_with("Request timed out."));
}

#[tokio::test]
async fn steps_of_a_request_share_its_deadline() {
    let settings = Rest { administrator: None, reader: None, ..settings() };
    let mut security = Security::new(&settings).unwrap();
    security.deadline = ANSWER_RESERVE + Duration::from_millis(50);
    let left = async || herder::TimeBudget::start().left().as_millis().to_string();
    let router = protect(Router::new().route("/connectors", post(left)), security);

    let response = ask(&router, request("POST", "/connectors", &[])).await;

    let left: u64 = error_body(response).await.as_u64().unwrap();
    assert!(left <= 50, "{left} ms");
}

#[tokio::test]
async fn change_finishes_after_its_client_disconnects() {
    let (go, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let finished = Arc::new(AtomicBool::new(false));
    let handler = {
        let (go, done, finished) = (Arc::clone(&go), Arc::clone(&done), Arc::clone(&finished));
        async move || {
            go.notified().await;
            finished.store(true, Ordering::SeqCst);
            done.notify_one();
        }
    };
    let settings = Rest { administrator: None, reader: None, ..settings() };
    let router =
        protect(Router::new().route("/connectors", post(handler)), Security::new(&settings).unwrap());

    let left =
        tokio::time::timeout(Duration::from_millis(20), ask(&router, request("POST", "/connectors", &[])));
    assert!(left.await.is_err(), "the handler waits");
    go.notify_one();
    tokio::time::timeout(Duration::from_secs(5), done.notified()).await.unwrap();

    assert!(finished.load(Ordering::SeqCst));
}

/// A request from this address, possibly a trusted proxy.
fn from(peer: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let mut request = request(method, path, headers);
    request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
    request
}

#[tokio::test]
async fn changes_and_refusals_leave_one_audit_line_each() {
    type Headers<'a> = Vec<(&'a str, &'a str)>;
    let (administrator, reader) = (basic(ADMINISTRATOR), basic(READER));
    let (wrong, swapped) = (basic("root:hunter2"), basic("hunter2:root"));
    let page = ("origin", "https://evil.example.com");
    let forged = "/connectors/%0aWARN%20audit%20forged?token=hunter2";
    let (direct, proxy) = ("192.0.2.7:4711", "10.0.0.7:4711");
    let client = ("x-forwarded-for", "hunter2, 198.51.100.9");
    let scene: [(&str, &str, &str, Headers<'_>); 9] = [
        (direct, "POST", "/connectors?scope=cluster", vec![("authorization", &administrator)]),
        (direct, "GET", "/connectors", vec![("authorization", &administrator)]),
        (direct, "GET", "/health", vec![]),
        (direct, "POST", "/connectors", vec![("authorization", &reader)]),
        (direct, "POST", "/connectors", vec![("authorization", &administrator), page]),
        (direct, "GET", "/connectors", vec![("authorization", &wrong)]),
        (direct, "DELETE", forged, vec![("authorization", &swapped), client]),
        (proxy, "GET", "/connectors", vec![client]),
        (proxy, "PUT", "/connector-plugins/P/config/validate", vec![]),
    ];
    let audit = |text: &str| -> Vec<Value> {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["target"] == "audit").collect()
    };

    let text = captured_logs(
        true,
        |text| audit(text).len() == 7,
        async || {
            let router = served(&settings());
            for (peer, method, path, headers) in &scene {
                ask(&router, from(peer, method, path, headers)).await;
            }
        },
    )
    .await;

    let lines = audit(&text);
    let shown = lines.iter().map(|line| {
        let fields = &line["fields"];
        let field = |name: &str| fields[name].as_str().unwrap_or("-");
        let what = (line["level"].as_str().unwrap(), field("message"), field("who"));
        let asked = (field("method"), field("path"), fields["status"].as_u64().unwrap());
        (what, asked, (field("remote"), field("forwarded")))
    });
    let shown: Vec<_> = shown.collect();
    let (change, refused) = (|who| ("INFO", "change", who), |who| ("WARN", "refused", who));
    assert_eq!(
        shown,
        [
            (change("root"), ("POST", "/connectors", 200), (direct, "-")),
            (refused("watcher"), ("POST", "/connectors", 403), (direct, "-")),
            (refused("root"), ("POST", "/connectors", 403), (direct, "-")),
            (refused("root"), ("GET", "/connectors", 401), (direct, "-")),
            (refused("unknown"), ("DELETE", "/connectors/%0aWARN%20audit%20forged", 401), (direct, "-")),
            (refused("unknown"), ("GET", "/connectors", 401), (proxy, "198.51.100.9")),
            (refused("unknown"), ("PUT", "/connector-plugins/P/config/validate", 401), (proxy, "-")),
        ]
    );
    assert!(!text.contains("correct horse") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn audit_lines_of_many_refusals_are_bounded() {
    let text = captured_logs(
        false,
        |text| text.contains("refused"),
        async || {
            let router = served(&settings());
            for number in 0..2_000_u16 {
                let [high, low] = number.to_be_bytes();
                let peer = format!("192.0.{high}.{low}:1");
                ask(&router, from(&peer, "POST", "/connectors", &[])).await;
            }
        },
    )
    .await;

    assert!(text.matches("refused").count() <= 60, "{text}");
}

#[tokio::test]
async fn failed_logins_delay_only_their_address() {
    let router = served(&settings());
    let (right, wrong) = (basic(ADMINISTRATOR), basic("root:wrong"));
    let answer = async |peer: &str, credentials: &str, more: &[(&str, &str)]| {
        let headers = [&[("authorization", credentials)], more].concat();
        let response = ask(&router, from(peer, "GET", "/connectors", &headers)).await;
        let wait = response.headers().get(header::RETRY_AFTER);
        let wait = wait.map(|wait| wait.to_str().unwrap().parse::<u64>().unwrap());
        (response.status().as_u16(), wait)
    };

    for here in ["127.0.0.1:1", "[2001:db8::1]:1"] {
        for _ in 0..5 {
            assert_eq!(answer(here, &wrong, &[]).await, (401, None), "{here}");
        }
        assert!(matches!(answer(here, &wrong, &[]).await, (429, Some(1..=6))), "{here}");
    }
    assert_eq!(answer("[2001:db8::2]:1", &wrong, &[]).await.0, 429, "the same /64");
    assert_eq!(answer("[2001:db8:0:1::1]:1", &right, &[]).await, (200, None));
    assert_eq!(answer("192.0.2.1:1", &right, &[]).await, (200, None));

    // Each client behind a trusted proxy is counted separately.
    let [bad, good] = ["198.51.100.1", "198.51.100.2"].map(|client| [("x-forwarded-for", client)]);
    for _ in 0..5 {
        answer("10.0.0.1:1", &wrong, &bad).await;
    }
    assert_eq!(answer("10.0.0.1:1", &wrong, &bad).await.0, 429);
    assert_eq!(answer("10.0.0.1:1", &right, &good).await.0, 200);
    // Open paths need no login, and a request without one is not a failed login.
    assert_eq!(ask(&router, from("127.0.0.1:1", "GET", "/health", &[])).await.status(), 200);
    for _ in 0..10 {
        assert_eq!(ask(&router, from("192.0.2.9:1", "GET", "/connectors", &[])).await.status(), 401);
    }
    assert_eq!(answer("192.0.2.9:1", &right, &[]).await.0, 200);
    // A success clears earlier failures.
    for _ in 0..3 {
        for _ in 0..4 {
            assert_eq!(answer("192.0.2.3:1", &wrong, &[]).await.0, 401);
        }
        assert_eq!(answer("192.0.2.3:1", &right, &[]).await.0, 200);
    }
}

#[tokio::test]
async fn oversized_head_is_refused() {
    let router = served(&settings());
    let (long, large) = ("x".repeat(9000), "x".repeat(33_000));

    assert_eq!(status(&router, "GET", &format!("/health?{long}"), &[]).await, 414);
    assert_eq!(status(&router, "GET", "/health", &[("x-large", &large)]).await, 431);
}

#[tokio::test]
async fn options_lists_the_methods_of_a_path() {
    let router = served(&Rest { administrator: None, reader: None, ..settings() });

    let response = ask(&router, request("OPTIONS", "/connectors", &[])).await;

    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[header::ALLOW], "GET,HEAD,POST");
}

#[tokio::test]
async fn only_named_origins_get_cors_headers() {
    let ours = "https://tools.example.com";
    let named = served(&Rest { allowed_origins: vec![ours.to_owned()], ..settings() });
    let any = served(&Rest { allowed_origins: vec!["*".to_owned()], ..settings() });
    let none = served(&settings());
    let cors_headers = async |router: &Router, origin: &str| {
        let response = ask(router, request("GET", "/health", &[("origin", origin)])).await;
        let header =
            |name| response.headers().get(name).map(|value: &HeaderValue| value.to_str().unwrap().to_owned());
        (header("access-control-allow-origin"), header("access-control-allow-credentials"))
    };

    assert_eq!(cors_headers(&named, ours).await, (Some(ours.to_owned()), Some("true".to_owned())));
    assert_eq!(cors_headers(&named, "https://evil.example.com").await, (None, None));
    assert_eq!(cors_headers(&any, ours).await, (Some("*".to_owned()), None));
    assert_eq!(cors_headers(&none, ours).await, (None, None));
}

#[tokio::test]
async fn preflight_needs_no_login() {
    let ours = "https://tools.example.com";
    let router = served(&Rest { allowed_origins: vec![ours.to_owned()], ..settings() });
    let ask_for = async |method: &str, origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", method)];
        let response = ask(&router, request("OPTIONS", "/connectors", &headers)).await;
        let methods = response.headers().get(header::ACCESS_CONTROL_ALLOW_METHODS).cloned();
        (response.status().as_u16(), methods.map(|value| value.to_str().unwrap().to_owned()))
    };

    assert_eq!(ask_for("PUT", ours).await, (200, Some("GET,PUT".to_owned())));
    assert_eq!(ask_for("DELETE", ours).await, (200, None));
    assert_eq!(ask_for("PUT", "https://evil.example.com").await, (200, None));
}

#[tokio::test]
async fn page_of_another_origin_changes_nothing() {
    let hosts = vec!["worker".to_owned()];
    let open = Rest { administrator: None, reader: None, hosts, ..settings() };
    let router = served(&open);
    let ours = "https://tools.example.com";
    let named = served(&Rest { allowed_origins: vec![ours.to_owned()], ..open });
    let host = ("host", "worker:8083");

    assert_eq!(status(&router, "POST", "/connectors", &[host]).await, 200, "no page");
    assert_eq!(status(&router, "POST", "/connectors", &[host, ("origin", "http://worker:8083")]).await, 200);
    let second = "http://worker:8083/connectors";
    assert_eq!(
        status(&router, "POST", second, &[("origin", "http://worker:8083")]).await,
        200,
        "over HTTP/2"
    );
    assert_eq!(status(&router, "POST", "/connectors", &[host, ("origin", ours)]).await, 403);
    assert_eq!(status(&router, "POST", "/connectors", &[host, ("origin", "null")]).await, 403);
    assert_eq!(status(&router, "POST", "/connectors", &[host, ("sec-fetch-site", "cross-site")]).await, 403);
    assert_eq!(
        status(&router, "GET", "/connectors", &[host, ("origin", ours)]).await,
        200,
        "reading is for the browser to refuse"
    );
    assert_eq!(status(&named, "POST", "/connectors", &[host, ("origin", ours)]).await, 200);
}
