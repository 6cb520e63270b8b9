//! Faults and limits of the gateway, on the wire.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use simulator::{
    Simulator,
    clock::SECOND,
    knobs::{Effect, Fault, FaultTarget, HttpStatus, Latency, Rate, ReceiverUrls, RetryHint},
    settings::Tls,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Answer, Client, KEY, pass, start, started};

crate::tests! {
    plain a_throttled_request_has_the_retry_hint_of_its_rule;
    plain a_rate_limits_requests_per_window_and_key;
    plain a_quota_that_is_used_up_is_a_403_with_retry_after;
    plain statuses_have_the_body_of_gateway_or_api;
    plain a_truncated_answer_is_shorter_than_it_announced;
    plain each_effect_changes_its_part_of_the_answer;
    plain long_answers_are_compressed_for_clients_that_ask;
    plain a_status_without_a_body_has_no_length;
    plain a_body_may_have_a_mebibyte;
    plain a_delayed_request_meets_the_knobs_that_hold_when_it_resumes;
    plain a_lost_answer_leaves_the_work_done;
    plain answers_take_as_long_as_their_latency_says;
    plain rules_are_asked_in_order_and_count_what_they_skip_and_hit;
    plain a_rule_hits_only_what_its_target_names;
    plain a_share_of_requests_is_hit_and_the_same_ones_again;
    plain the_date_header_follows_the_provider_s_clock;
    plain tls_is_trusted_by_its_certificate_alone_and_speaks_http_2;
    plain faults_happen_over_http_2_too;
    plain the_journal_has_every_request_with_its_status_and_fault;
}

const COMPANIES: &str = "/accounting/api/companies";

pub(super) fn rule(effect: Effect) -> Fault {
    Fault { on: FaultTarget::default(), effect, share: 1.0, times: None, skip: 0 }
}

fn faults(simulator: &Simulator, faults: Vec<Fault>) {
    simulator.provider().turn(|knobs| knobs.faults = faults);
}

async fn statuses(client: &Client, path: &str, count: usize) -> Vec<u16> {
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(client.get(path).await.status);
    }
    found
}

/// Asserts an error with the gateway's body, this `Retry-After`, and this part of a message.
#[track_caller]
pub(super) fn by_gateway(answer: &Answer, status: u16, retry_after: Option<&str>, message: &str) {
    assert_eq!((answer.status, answer.header("retry-after")), (status, retry_after), "{answer:?}");
    let body = answer.json();
    assert_eq!(body["statusCode"], status, "{answer:?}");
    assert!(body["message"].as_str().unwrap().contains(message), "{answer:?}");
}

async fn a_throttled_request_has_the_retry_hint_of_its_rule() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;

    for (hint, header, message) in [
        (RetryHint::Both, Some("17"), "in 17 seconds"),
        (RetryHint::RetryAfter, Some("17"), ""),
        (RetryHint::Message, None, "in 17 seconds"),
        (RetryHint::Nothing, None, ""),
    ] {
        faults(&simulator, vec![rule(Effect::Throttle { seconds: 17, tells: hint })]);
        let answer = client.get(COMPANIES).await;

        by_gateway(&answer, 429, header, message);
        let has_digits = answer.json()["message"].as_str().unwrap().bytes().any(|byte| byte.is_ascii_digit());
        assert_eq!(has_digits, !message.is_empty(), "{hint:?}: {answer:?}");
    }
}

async fn a_rate_limits_requests_per_window_and_key() {
    let (simulator, client) = started(Client::accounting, |settings| {
        settings.subscription_keys = vec![KEY.to_owned(), "another".to_owned()];
        settings.knobs.gateway.rate = Some(Rate { requests: 3, seconds: 10.0, tells: RetryHint::Both });
    })
    .await;
    let other = Client { key: Some("another".to_owned()), ..client.clone() };

    assert_eq!(statuses(&client, COMPANIES, 5).await, [200, 200, 200, 429, 429]);
    pass(&simulator, 4);
    let refused = client.get(COMPANIES).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("6")));
    assert_eq!(other.get(COMPANIES).await.status, 200, "each key has its own rate");
    pass(&simulator, 6);
    assert_eq!(statuses(&client, COMPANIES, 4).await, [200, 200, 200, 429]);
    // A wrong key does not count.
    let stranger = Client { key: Some("unknown".to_owned()), ..client.clone() };
    assert_eq!(stranger.get(COMPANIES).await.status, 401);
}

async fn a_quota_that_is_used_up_is_a_403_with_retry_after() {
    let (simulator, client) = started(Client::accounting, |settings| {
        settings.knobs.gateway.quota = Some(Rate { requests: 2, seconds: 3_600.0, tells: RetryHint::Both });
    })
    .await;

    assert_eq!(statuses(&client, COMPANIES, 2).await, [200, 200]);
    let counted = client.get(COMPANIES).await;
    simulator.provider().turn(|knobs| {
        knobs.gateway.quota = None;
        knobs.faults = vec![rule(Effect::Quota { seconds: 3_600 })];
    });
    let ruled = client.get(COMPANIES).await;

    for answer in [counted, ruled] {
        by_gateway(&answer, 403, Some("3600"), "quota");
    }
}

async fn statuses_have_the_body_of_gateway_or_api() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;

    for (effect, status, member) in [
        (Effect::Status(HttpStatus::new(422).unwrap()), 422, "httpCode"),
        (Effect::Status(HttpStatus::SERVER_ERROR), 500, "httpCode"),
        (Effect::Status(HttpStatus::new(502).unwrap()), 502, "statusCode"),
        (Effect::Status(HttpStatus::new(503).unwrap()), 503, "statusCode"),
        (Effect::Status(HttpStatus::new(504).unwrap()), 504, "statusCode"),
        (Effect::UnknownPath, 404, "statusCode"),
    ] {
        faults(&simulator, vec![rule(effect.clone())]);
        let answer = client.get(COMPANIES).await;

        assert_eq!(answer.status, status, "{effect:?}");
        assert_eq!(answer.json()[member], status, "{effect:?}: {answer:?}");
    }
}

async fn a_truncated_answer_is_shorter_than_it_announced() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let whole = client.get(COMPANIES).await.body;
    faults(&simulator, vec![rule(Effect::Truncate)]);

    let mut request = client.http.get(format!("{}{COMPANIES}", client.base));
    request = request.header("ocp-apim-subscription-key", KEY).header("content-type", "application/json");
    let mut answer = request.header("authorization", client.authorization.unwrap()).send().await.unwrap();

    assert_eq!((answer.status().as_u16(), answer.content_length()), (200, Some(whole.len() as u64)));
    let mut received = Vec::new();
    let error = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
            Ok(None) => panic!("{} bytes came as if that were all", received.len()),
            Err(error) => break error,
        }
    };
    assert!(error.is_body() || error.is_decode(), "{error:?}");
    assert!(!received.is_empty() && received.len() < whole.len(), "{} bytes", received.len());
    assert!(whole.as_bytes().starts_with(&received));
}

async fn each_effect_changes_its_part_of_the_answer() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let right = client.get(COMPANIES).await;
    let rows = right.rows();
    let total = |answer: &Answer| answer.header("x-pagination").map(|text| text.contains("\"totalCount\":6"));
    simulator.provider().turn(|knobs| knobs.reads.accounting_pagination = true);

    type Check<'a> = &'a dyn Fn(&Answer) -> bool;
    let cases: [(Effect, Check<'_>); 6] = [
        (Effect::InvalidJson, &|answer| {
            right.body.starts_with(&answer.body) && answer.body.len() < right.body.len()
        }),
        (Effect::WrongContentType, &|answer| {
            answer.header("content-type") == Some("text/html") && answer.body == right.body
        }),
        (Effect::WrongTypes, &|answer| {
            answer.rows()[0]["vatName"] == rows[0]["vatName"].as_str().unwrap().len()
        }),
        (Effect::Wrapped, &|answer| answer.json()["items"] == json!(rows)),
        (Effect::WithoutIds, &|answer| answer.rows()[0].get("correlationId").is_none()),
        (Effect::WrongTotal { surplus: 3 }, &|answer| total(answer) == Some(true)),
    ];
    for (effect, check) in cases {
        faults(&simulator, vec![rule(effect.clone())]);
        let answer = client.get(COMPANIES).await;

        assert_eq!((answer.status, check(&answer)), (200, true), "{effect:?}: {answer:?}");
        if let Some(length) = answer.header("content-length") {
            assert_eq!(length, answer.body.len().to_string(), "{effect:?}");
        }
    }
    faults(&simulator, vec![rule(Effect::FirstPage)]);
    let second = client.get(&format!("{COMPANIES}?pageNumber=2&pageSize=1")).await;
    assert_eq!(second.rows(), rows[..1]);
}

async fn long_answers_are_compressed_for_clients_that_ask() {
    let simulator = start(|settings| settings.world.companies = 40).await;
    let mut client = Client::accounting(&simulator);
    client.http = reqwest::Client::builder().no_proxy().no_gzip().build().unwrap();
    let asking = client.header("accept-encoding", "gzip");
    // The response is not read as text, because it may be compressed.
    let get = async |client: &Client, path: &str| {
        let request =
            client.http.get(format!("{}{path}", client.base)).header("content-type", "application/json");
        let request = request.header("ocp-apim-subscription-key", KEY);
        let request = request.header("authorization", client.authorization.as_deref().unwrap());
        let request =
            client.headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        request.send().await.unwrap()
    };

    let long = get(&asking, COMPANIES).await;
    let short = get(&asking, &format!("{COMPANIES}?pageSize=1")).await;
    assert!(long.headers().contains_key("content-encoding") && long.content_length().unwrap() < 9_000);
    assert!(!short.headers().contains_key("content-encoding"));
    assert!(!get(&client, COMPANIES).await.headers().contains_key("content-encoding"));
    faults(&simulator, vec![rule(Effect::Truncate)]);
    let cut = get(&asking, COMPANIES).await;
    assert!(cut.headers().contains_key("content-encoding") && cut.bytes().await.is_err());
    faults(&simulator, Vec::new());
    simulator.provider().turn(|knobs| knobs.gateway.gzip = false);
    assert!(!get(&asking, COMPANIES).await.headers().contains_key("content-encoding"));
}

async fn a_status_without_a_body_has_no_length() {
    let simulator = start(|_| {}).await;

    for status in [204, 304] {
        faults(&simulator, vec![rule(Effect::Status(HttpStatus::new(status).unwrap()))]);
        let mut stream = TcpStream::connect(simulator.address()).await.unwrap();
        let request = format!("GET {COMPANIES} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();

        let answer = answer.to_lowercase();
        assert!(answer.starts_with(&format!("http/1.1 {status} ")), "{answer}");
        assert!(answer.ends_with("\r\n\r\n") && !answer.contains("content-"), "{answer}");
    }
}

async fn a_body_may_have_a_mebibyte() {
    const LIMIT: usize = 1 << 20;
    let simulator = start(|_| {}).await;
    let client = Client { authorization: None, ..Client::accounting(&simulator) };

    // Whitespace after JSON is allowed; the empty object has no mail.
    for (bytes, status) in [(LIMIT, 400), (LIMIT + 1, 413)] {
        let body = format!("{{}}{}", " ".repeat(bytes - 2));
        let answer = client.try_send(Method::POST, "/invoicing/api/users/login", Some(body)).await.unwrap();
        assert_eq!(answer.status, status, "{bytes}");
    }
}

async fn a_delayed_request_meets_the_knobs_that_hold_when_it_resumes() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let second = Fault { times: Some(1), skip: 1, ..rule(Effect::Status(HttpStatus::SERVER_ERROR)) };
    let once = Some(Rate { requests: 1, seconds: 60.0, tells: RetryHint::Both });

    for (fault, rate, expected) in [(Some(second), None, (200, 500)), (None, once, (200, 429))] {
        let provider = simulator.provider();
        provider.turn(|knobs| knobs.gateway.latency = Latency::Fixed { milliseconds: 2_000.0 });
        let before = provider.gateway.request_count();
        let meanwhile = async {
            while provider.gateway.request_count() == before {
                tokio::task::yield_now().await;
            }
            provider.turn(|knobs| {
                knobs.gateway.latency = Latency::None;
                knobs.faults.extend(fault);
                knobs.gateway.rate = rate;
            });
            client.get(COMPANIES).await.status
        };
        let (delayed, meanwhile) = tokio::join!(client.get(COMPANIES), meanwhile);

        assert_eq!((meanwhile, delayed.status), expected);
        faults(&simulator, Vec::new());
    }
}

async fn a_lost_answer_leaves_the_work_done() {
    let simulator = start(|settings| settings.knobs.delivery.receivers = ReceiverUrls::Any).await;
    let client = Client::accounting(&simulator).context("none");
    let body = json!({
        "thirdPartyApplicationName": "tests",
        "url": "http://127.0.0.1:9/hook",
        "secret": "secret",
        "eventTypes": ["Svc.ACC.Customers.CustomerUpdated"],
    });
    const SUBSCRIBE: &str = "/accounting/api/customers/webhooks/subscribe";

    for (effect, done) in [(Effect::Drop, 0), (Effect::LoseAnswer, 1)] {
        faults(&simulator, vec![rule(effect.clone())]);
        let answer = client.try_send(Method::POST, SUBSCRIBE, Some(body.to_string())).await;

        assert!(answer.is_err(), "{effect:?}: {answer:?}");
        assert_eq!(simulator.provider().accounting.webhooks().len(), done, "{effect:?}");
    }
}

async fn answers_take_as_long_as_their_latency_says() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let took = async || {
        let began = Instant::now();
        assert_eq!(client.get(COMPANIES).await.status, 200);
        began.elapsed()
    };
    took().await;

    for latency in [Latency::Fixed { milliseconds: 70.0 }, Latency::Uniform { from: 70.0, to: 90.0 }] {
        simulator.provider().turn(|knobs| knobs.gateway.latency = latency);
        assert!(took().await >= Duration::from_millis(70), "{latency:?}");
        simulator.provider().turn(|knobs| {
            knobs.gateway.latency = Latency::None;
            knobs.faults = vec![Fault { times: Some(1), ..rule(Effect::Delay(latency)) }];
        });
        assert!(took().await >= Duration::from_millis(70), "a delay of {latency:?}");
    }
}

async fn rules_are_asked_in_order_and_count_what_they_skip_and_hit() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let throttle = Effect::Throttle { seconds: 1, tells: RetryHint::Both };
    let rules = vec![
        Fault { skip: 1, times: Some(2), ..rule(throttle) },
        Fault { times: Some(2), ..rule(Effect::Status(HttpStatus::SERVER_ERROR)) },
    ];

    for _ in 0..2 {
        faults(&simulator, Vec::new());
        faults(&simulator, rules.clone());
        assert_eq!(statuses(&client, COMPANIES, 6).await, [500, 429, 429, 500, 200, 200]);
    }
}

async fn a_rule_hits_only_what_its_target_names() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let companies = client.companies().await;
    let [first, second] = [0, 1].map(|number: usize| client.company(&companies[number]));
    const CUSTOMERS: &str = "/accounting/api/customers";
    let text = |text: &str| Some(text.to_owned());

    // The companies, both companies' customers, page 2 of the first's, another method.
    for (target, hit) in [
        (FaultTarget::default(), [true; 5]),
        (FaultTarget { path: text(CUSTOMERS), ..FaultTarget::default() }, [false, true, true, true, true]),
        (
            FaultTarget { company: text(&companies[0]), ..FaultTarget::default() },
            [false, true, false, true, true],
        ),
        (FaultTarget { page: Some(2), ..FaultTarget::default() }, [false, false, false, true, false]),
        (FaultTarget { method: text("PUT"), ..FaultTarget::default() }, [false, false, false, false, true]),
        (
            FaultTarget { ending: text("companies"), ..FaultTarget::default() },
            [true, false, false, false, false],
        ),
        (FaultTarget { path: text(CUSTOMERS), method: text("DELETE"), ..FaultTarget::default() }, [false; 5]),
    ] {
        faults(
            &simulator,
            vec![Fault { on: target.clone(), ..rule(Effect::Status(HttpStatus::new(418).unwrap())) }],
        );
        let found = [
            client.get(COMPANIES).await,
            first.get(CUSTOMERS).await,
            second.get(CUSTOMERS).await,
            first.get(&format!("{CUSTOMERS}?pageNumber=2&pageSize=1")).await,
            first.put(CUSTOMERS, &json!({})).await,
        ];

        assert_eq!(found.map(|answer| answer.status == 418), hit, "{target:?}");
    }
}

async fn a_share_of_requests_is_hit_and_the_same_ones_again() {
    let mut runs = Vec::new();
    for seed in [5, 5, 6] {
        let (simulator, client) = started(Client::accounting, |settings| settings.world.seed = seed).await;
        faults(&simulator, vec![Fault { share: 0.5, ..rule(Effect::Status(HttpStatus::SERVER_ERROR)) }]);
        runs.push(statuses(&client, COMPANIES, 40).await);
    }

    let hits = runs[0].iter().filter(|status| **status == 500).count();
    assert!((8..=32).contains(&hits), "{hits} of 40");
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}

async fn the_date_header_follows_the_provider_s_clock() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;

    for (skew, date) in [
        (0, "Sun, 15 Nov 2026 12:00:00 GMT"),
        (3_600, "Sun, 15 Nov 2026 13:00:00 GMT"),
        (-86_400, "Sat, 14 Nov 2026 12:00:00 GMT"),
    ] {
        simulator.provider().clock.skew(skew * SECOND);
        let good = Client::accounting(&simulator).get(COMPANIES).await;
        let bad = Client { key: None, ..client.clone() }.get(COMPANIES).await;
        let nowhere = client.get("/nowhere").await;

        assert_eq!((good.status, good.header("date")), (200, Some(date)), "{skew}");
        assert_eq!((bad.status, bad.header("date")), (401, Some(date)), "{skew}");
        assert_eq!((nowhere.status, nowhere.header("date")), (404, Some(date)), "{skew}");
        for path in [
            "/",
            "/_control",
            "/_control/nothing",
            "/_control/step",
            "/auth/core/.well-known/jwks",
            "/auth/core/connect/authorize",
            "/auth/core/connect/token",
        ] {
            let answer = client.get(path).await;
            let dates: Vec<_> = answer.headers.get_all("date").iter().collect();
            assert_eq!(dates, [date], "{path} {skew}");
        }
    }
}

async fn tls_is_trusted_by_its_certificate_alone_and_speaks_http_2() {
    let (simulator, client) = started(Client::accounting, |settings| settings.tls = Tls::Generated).await;
    assert_eq!((simulator.base_url().scheme(), simulator.auth_url().scheme()), ("https", "https"));

    for base in [simulator.base_url(), simulator.auth_url()] {
        let client = Client { base: base.as_str().trim_end_matches('/').to_owned(), ..client.clone() };
        let answer = client.get(COMPANIES).await;

        assert_eq!((answer.status, answer.version), (200, reqwest::Version::HTTP_2), "{base}");
    }
    let old =
        reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .tls_certs_only([
                reqwest::Certificate::from_pem(simulator.certificate().unwrap().as_bytes()).unwrap()
            ]);
    let answer = Client { http: old.build().unwrap(), ..client.clone() }.get(COMPANIES).await;
    assert_eq!((answer.status, answer.version), (200, reqwest::Version::HTTP_11));

    // A client that does not know the certificate refuses it, and plain HTTP does not reach the simulator.
    let other = start(|settings| settings.tls = Tls::Generated).await;
    let stranger = Client { http: Client::bare(&other).http, ..client.clone() };
    assert!(stranger.try_send(Method::GET, COMPANIES, None).await.is_err());
    let plain = Client { base: client.base.replace("https", "http"), ..client };
    assert!(plain.try_send(Method::GET, COMPANIES, None).await.is_err());
}

async fn faults_happen_over_http_2_too() {
    let (simulator, client) = started(Client::accounting, |settings| settings.tls = Tls::Generated).await;
    assert_eq!(client.get(COMPANIES).await.version, reqwest::Version::HTTP_2);

    for effect in [Effect::Drop, Effect::LoseAnswer, Effect::Truncate] {
        faults(&simulator, vec![Fault { times: Some(5), ..rule(effect.clone()) }]);
        let answer = client.try_send(Method::GET, COMPANIES, None).await;

        assert!(answer.is_err(), "{effect:?}: {answer:?}");
        faults(&simulator, Vec::new());
        assert_eq!(client.get(COMPANIES).await.status, 200, "after {effect:?}");
    }
}

async fn the_journal_has_every_request_with_its_status_and_fault() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let company = client.companies().await.swap_remove(0);
    faults(&simulator, vec![Fault { skip: 1, times: Some(1), ..rule(Effect::Drop) }]);
    let path = "/accounting/api/customers?pageNumber=1&pageSize=2";

    client.company(&company).get(path).await;
    client.try_send(Method::GET, COMPANIES, None).await.unwrap_err();
    Client::bare(&simulator).get(COMPANIES).await;

    let journal = simulator.provider().gateway.requests(1, 10);
    let found: Vec<_> = journal
        .iter()
        .map(|(_, request)| (&*request.target, request.company.as_deref(), request.status, request.fault))
        .collect();
    assert_eq!(
        found,
        [
            (path, Some(&*company), Some(200), None),
            (COMPANIES, None, None, Some("drop")),
            (COMPANIES, None, Some(401), None),
        ]
    );
    assert_eq!(simulator.provider().gateway.request_count(), 4);
}
