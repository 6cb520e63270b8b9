//! What a request must bring to be answered: key, token, scopes, headers, a path the gateway knows.

use simulator::{control, knobs::ExpiredToken};

use super::{
    ACCOUNTING_SCOPES, Answer, Client, KEY, PAYROLL_SCOPES, RESOURCES,
    lists::CUSTOMERS,
    pass,
    reads::{COMPANIES, PAYROLL, by_api, resource},
    segment, start,
};

crate::tests! {
    plain a_missing_or_unknown_token_gets_a_401_unlike_that_of_the_key;
    plain an_expired_token_is_answered_401_or_500;
    plain a_token_without_the_areas_scope_is_forbidden;
    plain every_call_needs_the_json_content_type;
    plain what_the_gateway_does_not_know_gets_its_404;
    plain a_path_by_id_can_be_unknown_to_the_gateway;
    plain nothing_that_is_sent_makes_it_fail_on_its_own_account;
}

/// The gateway's own body: `statusCode` and `message`.
#[track_caller]
fn by_gateway(answer: &Answer, status: u16, says: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let body = answer.json();
    assert_eq!(body["statusCode"], status, "{answer:?}");
    assert!(body["message"].as_str().unwrap().contains(says), "{answer:?}");
}

async fn a_missing_or_unknown_token_gets_a_401_unlike_that_of_the_key() {
    let simulator = start(|_| {}).await;
    let good = Client::accounting(&simulator);
    let token = good.authorization.clone().unwrap().replace("Bearer ", "");

    for (authorization, status) in [
        (None, 401),
        (Some(String::new()), 401),
        (Some("Bearer ".to_owned()), 401),
        (Some("Bearer unknown".to_owned()), 401),
        (Some(token.clone()), 401),
        (Some(format!("Basic {token}")), 401),
        (Some(format!("Bearer {token}x")), 401),
        (Some(format!("Bearer {token}")), 200),
        (Some(format!("bearer {token}")), 200),
    ] {
        let answer = Client { authorization: authorization.clone(), ..good.clone() }.get(COMPANIES).await;

        assert_eq!(answer.status, status, "{authorization:?}");
        if status == 401 {
            by_api(&answer, 401);
            assert!(!answer.body.contains("subscription key"), "{answer:?}");
        }
    }
}

async fn an_expired_token_is_answered_401_or_500() {
    let simulator = start(|_| {}).await;
    let client = Client::accounting(&simulator);

    pass(&simulator, 3_599);
    assert_eq!(client.get(COMPANIES).await.status, 200);
    pass(&simulator, 1);

    for (knob, status) in [(ExpiredToken::Unauthorized, 401), (ExpiredToken::ServerError, 500)] {
        simulator.provider().turn(|knobs| knobs.gateway.expired_token = knob);
        by_api(&client.get(COMPANIES).await, status);
    }
    by_api(&client.token("never issued").get(COMPANIES).await, 401);
}

async fn a_token_without_the_areas_scope_is_forbidden() {
    let simulator = start(|_| {}).await;
    let (accounting, payroll) = (Client::accounting(&simulator), Client::payroll(&simulator));

    assert_eq!((accounting.get(COMPANIES).await.status, payroll.get(PAYROLL).await.status), (200, 200));
    by_api(&payroll.get(COMPANIES).await, 403);
    by_api(&accounting.get(PAYROLL).await, 403);
    for (client, path) in [
        (Client::with_scopes(&simulator, &ACCOUNTING_SCOPES[..2]), COMPANIES),
        (Client::with_scopes(&simulator, &PAYROLL_SCOPES[..2]), PAYROLL),
    ] {
        by_api(&client.get(path).await, 403);
    }
}

async fn every_call_needs_the_json_content_type() {
    let simulator = start(|_| {}).await;
    let client = Client::accounting(&simulator);

    for (kind, status) in [
        (None, 415),
        (Some("text/plain"), 415),
        (Some("application/json"), 200),
        (Some("Application/JSON; charset=utf-8"), 200),
    ] {
        let mut request = client.http.get(format!("{}{COMPANIES}", client.base));
        request = request.header("ocp-apim-subscription-key", KEY);
        request = request.header("authorization", client.authorization.as_deref().unwrap());
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }

        assert_eq!(request.send().await.unwrap().status(), status, "{kind:?}");
    }
}

async fn what_the_gateway_does_not_know_gets_its_404() {
    let simulator = start(|_| {}).await;
    let client = Client::accounting(&simulator);

    for path in
        ["/", "/accounting/api", "/accounting/api/nothing", "/accounting/api/nothing/1", "/payroll/api/x"]
    {
        by_gateway(&client.get(path).await, 404, "not found");
    }
    // Lists and methods that the document does not show.
    for path in ["/accounting/api/suppliers", "/accounting-core/api/persons", "/payroll/api/companies/1"] {
        by_gateway(&client.get(path).await, 404, "not found");
    }
    by_gateway(&client.delete(COMPANIES).await, 404, "not found");
}

async fn a_path_by_id_can_be_unknown_to_the_gateway() {
    let simulator = start(|_| {}).await;
    let client = Client::accounting(&simulator);

    for (name, prefix) in RESOURCES {
        simulator.provider().turn(|knobs| knobs.gateway.unknown_paths = [resource(name)].into());

        for (other, other_prefix) in RESOURCES {
            let record = control::records(simulator.provider(), resource(other)).swap_remove(0);
            let company = client.company(record.company.as_deref().unwrap());
            let answer = company.get(&format!("{other_prefix}/{}", segment(&record.id))).await;

            assert_eq!(
                answer.status,
                if name == other { 404 } else { 200 },
                "{other} while {name} is unknown"
            );
            if name == other {
                by_gateway(&answer, 404, "not found");
            }
        }
        if prefix == CUSTOMERS {
            let company = client.company(&client.companies().await[0]);
            assert_eq!(company.get(CUSTOMERS).await.status, 200, "the list is another path");
        }
    }
}

async fn nothing_that_is_sent_makes_it_fail_on_its_own_account() {
    let simulator = start(|_| {}).await;
    let client = Client::accounting(&simulator);
    let company = client.company(&client.companies().await[0]);
    let long = "x".repeat(4_000);

    for path in [
        "/accounting/api/customers/%00",
        "/accounting/api/customers/%FF%FE",
        "/accounting/api/customers/..%2F..%2Fetc",
        "/accounting/api/customers//",
        "/accounting/api/customers/a/b/c",
        "/accounting/api/customers?pageNumber=%FF&pageSize=%00",
        "/accounting/api/customers?&&==&pageSize",
        "/accounting-core/api/activities/estimations",
        &format!("/accounting/api/customers/{long}"),
        &format!("/accounting/api/customers?pageSize={long}"),
    ] {
        let status = company.get(path).await.status;

        assert!((400..500).contains(&status), "{path}: {status}");
    }
}
