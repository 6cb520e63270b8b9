//! What the gateway does with requests that nothing is wrong with, or only with themselves.

use super::*;

#[tokio::test]
async fn a_path_or_method_nobody_knows_is_the_gateways_404_whatever_else_is_missing() {
    let rig = Rig::start().await;
    rig.provider.turn(|knobs| {
        knobs.gateway.unknown_paths.insert(crate::simulator::catalog::Resource::Customers);
    });

    for (method, path) in [
        (Method::GET, "/accounting/api/nothing"),
        (Method::GET, "/accounting/api/customers/a/b"),
        (Method::GET, "/payroll/api/%ff%00"),
        (Method::DELETE, CUSTOMERS),
        (Method::GET, LOGIN),
        (Method::GET, "/accounting/api/customers/a"),
        (Method::GET, "/elsewhere"),
    ] {
        let answer = rig.request(method.clone(), path).send().await.unwrap();

        assert_eq!(answer.status(), 404, "{method} {path}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body, json!({ "statusCode": 404, "message": "Resource not found" }), "{method} {path}");
    }
    assert_eq!(rig.status(Method::HEAD, CUSTOMERS).await, 404);
    assert_eq!(rig.status(Method::GET, CUSTOMERS).await, 401);
}

#[tokio::test]
async fn what_is_none_of_the_apis_is_not_touched_by_faults_or_the_journal() {
    let rig = Rig::start().await;
    rig.fault(Effect::Drop);

    let status = rig.status(Method::GET, "/accounting/customers").await;

    assert_eq!(status, 404);
    assert_eq!(rig.provider.gateway.request_count(), 0);
}

#[tokio::test]
async fn a_body_passes_whole_up_to_its_limit_and_not_beyond() {
    let rig = Rig::start().await;
    let chunked = |size: usize| {
        let chunks = std::iter::repeat_n(Ok::<_, std::convert::Infallible>(vec![b'a'; 1_024]), size / 1_024);
        reqwest::Body::wrap_stream(futures::stream::iter(chunks))
    };

    let whole = rig.login().body(vec![b'a'; BODY_LIMIT]).send().await.unwrap();
    let whole_chunked = rig.login().body(chunked(BODY_LIMIT)).send().await.unwrap();
    let announced = rig.login().body(vec![b'a'; BODY_LIMIT + 1]).send().await;
    let chunked = rig.login().body(chunked(BODY_LIMIT + 1_024)).send().await;

    assert_eq!(whole.json::<Value>().await.unwrap()["bytes"], BODY_LIMIT);
    assert_eq!(whole_chunked.json::<Value>().await.unwrap()["bytes"], BODY_LIMIT);
    let refused = |answer: reqwest::Result<reqwest::Response>| answer.unwrap().status();
    assert_eq!([refused(announced), refused(chunked)], [413, 413]);
    assert_eq!(rig.reached(), 2);
}

#[tokio::test]
async fn every_limit_tells_when_to_come_back_in_the_way_chosen() {
    let told = "Rate limit is exceeded. Try again in 60 seconds.";
    let untold = "Rate limit is exceeded.";
    let quota_told = "Out of call volume quota. Quota will be replenished in 00:01:00.";
    let quota_untold = "Out of call volume quota.";
    for (tells, header, rate_message, quota_message) in [
        (Tells::Both, Some("60"), told, quota_told),
        (Tells::RetryAfter, Some("60"), untold, quota_untold),
        (Tells::Message, None, told, quota_told),
        (Tells::Nothing, None, untold, quota_untold),
    ] {
        for (quota, status, message) in [(false, 429, rate_message), (true, 403, quota_message)] {
            let rig = Rig::start().await;
            let limit = Some(Rate { requests: 1, seconds: 60.0, tells });
            rig.provider.turn(|knobs| match quota {
                false => knobs.gateway.rate = limit,
                true => knobs.gateway.quota = limit,
            });

            let passed = rig.login().send().await.unwrap().status();
            let refused = rig.login().send().await.unwrap();
            rig.provider.clock.advance(59 * SECOND);
            let early = rig.login().send().await.unwrap().status();
            rig.provider.clock.advance(SECOND);
            let later = rig.login().send().await.unwrap().status();

            assert_eq!([passed.as_u16(), early.as_u16(), later.as_u16()], [200, status, 200], "{tells:?}");
            assert_eq!(refused.status(), status, "{tells:?}");
            let found = refused.headers().get("retry-after").map(|told| told.to_str().unwrap().to_owned());
            assert_eq!(found.as_deref(), header, "{tells:?}");
            let body: Value = refused.json().await.unwrap();
            assert_eq!(body, json!({ "statusCode": status, "message": message }), "{tells:?}");
        }
    }
}

#[tokio::test]
async fn the_journal_has_every_request_in_order() {
    let rig = Rig::start().await;

    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    rig.login().header("traceparent", trace).send().await.unwrap();
    rig.provider.clock.advance(SECOND);
    let list = rig.request(Method::GET, "/accounting/api/customers?pageNumber=1&pageSize=5");
    list.header("context", r#"{"clientId":"acme"}"#).send().await.unwrap();
    rig.request(Method::DELETE, "/payroll/api/nothing").header("context", "{").send().await.unwrap();

    let gateway = &rig.provider.gateway;
    let entries = serde_json::to_value(gateway.requests(0, 10)).unwrap();
    let at = rig.provider.clock.now().0;
    let list = "/accounting/api/customers?pageNumber=1&pageSize=5";
    let mut login = entry("POST", at - SECOND, LOGIN, None, 200);
    (login["traceparent"], login["apiVersion"]) = (trace.into(), "2.0".into());
    assert_eq!(
        entries,
        json!([
            [0, login],
            [1, entry("GET", at, list, Some("acme"), 401)],
            [2, entry("DELETE", at, "/payroll/api/nothing", None, 404)],
        ])
    );
    assert_eq!(gateway.request_count(), 3);
    assert_eq!(gateway.requests(1, 1)[0].1.method, "GET");
}

#[tokio::test]
async fn the_journal_keeps_the_first_2_kib_of_what_a_client_may_make_long() {
    let rig = Rig::start().await;
    let path = format!("/accounting/api/{}", "p".repeat(3_000));
    // The 2,048th byte is the second of an é.
    let company = format!("a{}", "é".repeat(1_500));
    let context = json!({ "clientId": company }).to_string();

    let request = rig.request(Method::GET, &path).header("context", context.as_bytes());
    assert_eq!(request.send().await.unwrap().status(), 404);

    let (_, entry) = rig.provider.gateway.requests(0, 1).remove(0);
    assert_eq!(entry.target, path[..2_048]);
    assert_eq!(entry.company.as_deref(), Some(&company[..2_047]));
}

#[tokio::test]
async fn a_gateway_before_no_routes_knows_no_path() {
    let provider = Provider::new(Settings::default()).unwrap();
    let mut router = guard(&provider, Router::new()).with_state(Arc::clone(&provider));
    let request = HttpRequest::get("/accounting/api/companies").body(Body::empty()).unwrap();

    let answer = tower_service::Service::call(&mut router, request).await.unwrap();

    assert_eq!(answer.status(), 404);
    assert_eq!(provider.gateway.request_count(), 1);
}

fn entry(method: &str, at: i64, target: &str, company: Option<&str>, status: u16) -> Value {
    json!({
        "at": at, "method": method, "target": target, "company": company, "protocol": "HTTP/1.1", "traceparent": null,
        "encoding": "gzip", "apiVersion": null, "status": status, "fault": null,
    })
}
