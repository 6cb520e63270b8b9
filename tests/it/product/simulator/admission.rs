//! What the gateway requires of a request: key, token, scopes, headers, a known path.

use simulator::{control, knobs::ExpiredToken};

use super::{
    Answer, Client, KEY, RESOURCES,
    gateway::by_gateway,
    lists::CUSTOMERS,
    pass,
    reads::{COMPANIES, PAYROLL, by_api, resource},
    segment, start, started,
};

crate::tests! {
    plain the_first_thing_that_is_missing_decides;
    plain an_expired_token_is_answered_401_or_500;
    plain what_the_gateway_does_not_know_gets_its_404;
    plain a_path_by_id_can_be_unknown_to_the_gateway;
    plain no_request_makes_it_fail;
}

async fn the_first_thing_that_is_missing_decides() {
    const HOOKS: &str = "/accounting-core/api/activities/prorates/webhooks/events";
    const IMPORT: &str = "/accounting-import/api/integrationFiles/a";
    const INV: &str = "/invoicing/api/webhooks";
    const LOGIN: &str = "/invoicing/api/users/login";
    let simulator = start(|_| {}).await;
    let token = |scopes: &[&str]| format!("Bearer {}", simulator.provider().identity.grant(scopes).0);
    let accounting = token(&["SVC.ES.NEWPOL.ACC.API"]);
    let core = token(&["SVC.ES.NEWPOL.COR.API"]);
    let payroll = token(&["SVC.ES.EquipoContex"]);
    let hooks = token(&["SVC.ES.Webhooks"]);
    let webhooks = token(&["SVC.ES.NEWPOL.COR.API", "SVC.ES.Webhooks"]);
    let invoicing = super::invoicing::chosen(&simulator, 0).await.authorization.unwrap();
    simulator.provider().turn(|knobs| knobs.invoicing.version_required = true);
    let (basic, lower) = (accounting.replace("Bearer", "Basic"), accounting.replace("Bearer", "bearer"));
    let bare = accounting.replace("Bearer ", "");
    let json = "application/json";
    let no_key = "Access denied due to missing subscription key. Make sure to include";
    let bad_key = "Access denied due to invalid subscription key.";
    let denied = "Authorization has been denied";

    // Key, Authorization, Content-Type, Api-Version; status and message. Errors about the key have the gateway's body.
    let table: &[(&str, &str, [&str; 4], u16, &str)] = &[
        ("GET", COMPANIES, ["", "", "", ""], 401, no_key),
        ("GET", COMPANIES, ["other", &accounting, "", ""], 401, bad_key),
        ("GET", COMPANIES, [KEY, "", "", ""], 401, denied),
        ("GET", COMPANIES, [KEY, &basic, "", ""], 401, denied),
        ("GET", COMPANIES, [KEY, &bare, "", ""], 401, denied),
        ("GET", COMPANIES, [KEY, "Bearer", "", ""], 401, denied),
        ("GET", COMPANIES, [KEY, "Bearer unknown", "", ""], 401, "the access token is not valid"),
        ("GET", COMPANIES, [KEY, &payroll, "", ""], 403, "the token lacks the scope SVC.ES.NEWPOL.ACC.API"),
        ("GET", COMPANIES, [KEY, &core, "", ""], 403, "the token lacks the scope SVC.ES.NEWPOL.ACC.API"),
        ("GET", HOOKS, [KEY, &core, "", ""], 403, "the token lacks the scope SVC.ES.Webhooks"),
        ("GET", HOOKS, [KEY, &accounting, "", ""], 403, "the token lacks the scope SVC.ES.NEWPOL.COR.API"),
        ("GET", HOOKS, [KEY, &hooks, "", ""], 403, "the token lacks the scope SVC.ES.NEWPOL.COR.API"),
        ("GET", IMPORT, [KEY, &core, "", ""], 403, "the token lacks the scope SVC.ES.NEWPOL.ACC.API"),
        ("GET", PAYROLL, [KEY, &accounting, "", ""], 403, "the token lacks the scope SVC.ES.EquipoContex"),
        ("GET", COMPANIES, [KEY, &accounting, "", ""], 415, "Content-Type"),
        ("GET", COMPANIES, [KEY, &accounting, "text/plain", ""], 415, "Content-Type"),
        ("GET", COMPANIES, [KEY, &accounting, "application/jsonx", ""], 415, "Content-Type"),
        ("GET", HOOKS, [KEY, &webhooks, json, ""], 400, "webhooks are managed with context none"),
        ("GET", INV, [KEY, "", json, "2.0"], 401, denied),
        ("GET", INV, [KEY, &invoicing, "", ""], 415, "Content-Type"),
        ("GET", INV, ["", &invoicing, json, "2.0"], 401, no_key),
        ("GET", INV, ["other", &invoicing, json, "2.0"], 401, bad_key),
        ("GET", INV, [KEY, &invoicing, json, ""], 400, "Api-Version"),
        ("GET", INV, [KEY, &invoicing, json, "1.0"], 400, "Api-Version"),
        ("GET", INV, [KEY, &invoicing, json, "2"], 400, "Api-Version"),
        ("GET", INV, [KEY, &invoicing, json, "2.0"], 200, ""),
        ("POST", LOGIN, ["", "", json, "2.0"], 401, no_key),
        ("POST", LOGIN, ["other", "", json, "2.0"], 401, bad_key),
        ("POST", LOGIN, [KEY, "", json, ""], 400, "Api-Version"),
        ("POST", LOGIN, [KEY, "", json, "1.0"], 400, "Api-Version"),
        ("POST", LOGIN, [KEY, "", json, "2"], 400, "Api-Version"),
        ("POST", LOGIN, [KEY, "", json, "2.0"], 400, "body: no JSON"),
        ("GET", COMPANIES, [KEY, &accounting, json, ""], 200, ""),
        ("GET", COMPANIES, [KEY, &lower, json, ""], 200, ""),
        ("GET", COMPANIES, [KEY, &accounting, "Application/JSON; charset=utf-8", ""], 200, ""),
    ];
    let client = Client::bare(&simulator);
    for (method, path, headers, status, message) in table {
        let mut request = client.http.request(method.parse().unwrap(), format!("{}{path}", client.base));
        let names = ["ocp-apim-subscription-key", "authorization", "content-type", "api-version"];
        for (name, value) in names.into_iter().zip(headers).filter(|(_, value)| !value.is_empty()) {
            request = request.header(name, *value);
        }
        let answer = Answer::read(request.send().await.unwrap()).await.unwrap();

        if message.starts_with("Access") {
            by_gateway(&answer, *status, None, message);
        } else if *status == 200 {
            assert_eq!(answer.status, 200, "{method} {path} {headers:?}");
        } else {
            by_api(&answer, *status);
            assert!(answer.json()["message"].as_str().unwrap().starts_with(message), "{path}: {answer:?}");
        }
    }
}

async fn an_expired_token_is_answered_401_or_500() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;

    pass(&simulator, 3_599);
    assert_eq!(client.get(COMPANIES).await.status, 200);
    pass(&simulator, 1);

    for (knob, status) in [(ExpiredToken::Unauthorized, 401), (ExpiredToken::ServerError, 500)] {
        simulator.provider().turn(|knobs| knobs.gateway.expired_token = knob);
        by_api(&client.get(COMPANIES).await, status);
    }
    by_api(&client.token("never issued").get(COMPANIES).await, 401);
}

async fn what_the_gateway_does_not_know_gets_its_404() {
    let (_simulator, client) = started(Client::accounting, |_| {}).await;

    for path in [
        "/",
        "/accounting/api",
        "/accounting/customers",
        "/accounting/apis/companies",
        "/accounting/api/nothing",
        "/accounting/api/nothing/1",
        "/payroll/api/x",
    ] {
        by_gateway(&client.get(path).await, 404, None, "not found");
    }
    // Lists and methods that the document does not have.
    for path in ["/accounting/api/suppliers", "/accounting-core/api/persons", "/payroll/api/companies/1"] {
        by_gateway(&client.get(path).await, 404, None, "not found");
    }
    by_gateway(&client.delete(COMPANIES).await, 404, None, "not found");
}

async fn a_path_by_id_can_be_unknown_to_the_gateway() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;

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
                by_gateway(&answer, 404, None, "not found");
            }
        }
        if prefix == CUSTOMERS {
            let company = client.company(&client.companies().await[0]);
            assert_eq!(company.get(CUSTOMERS).await.status, 200, "the list is another path");
        }
    }
}

async fn no_request_makes_it_fail() {
    let (_simulator, client) = started(Client::accounting, |_| {}).await;
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
