//! The login with mail and password, the selection of a company, and tokens.

use serde_json::json;
use simulator::knobs::ExpiredToken;

use super::{HOOKS, LOGIN, Stage, authorized, chosen, log_in, members, select, without_token};
use crate::product::simulator::{Client, pass};

crate::tests! {
    plain a_login_returns_the_token_the_user_and_the_companies;
    plain a_select_returns_the_token_that_opens_webhooks;
    plain a_login_that_is_wrong_or_incomplete_is_refused;
    plain a_select_that_is_wrong_is_refused;
    plain a_token_lives_an_hour_and_a_refresh_token_longer;
    plain tokens_of_one_api_open_no_other;
}

async fn a_login_returns_the_token_the_user_and_the_companies() {
    let stage = Stage::start(|_| {}).await;

    let login = log_in(&stage.simulator).await;

    let expected = "token refreshToken mail locale name id version isAdvisor companies";
    assert_eq!(members(&login), expected.split(' ').collect());
    assert!(login["token"].as_str().unwrap().starts_with("Bearer "), "{login}");
    assert_eq!(login["mail"], "ana@example.com");
    assert!(login["id"].is_u64() && login["isAdvisor"].is_boolean(), "{login}");
    for member in ["refreshToken", "locale", "name", "version"] {
        assert!(login[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {login}");
    }
    let companies = login["companies"].as_array().unwrap();
    assert_eq!(companies.len(), 2);
    for company in companies {
        assert_eq!(members(company), "id name idCDA default companyStatus".split(' ').collect());
        assert!(company["id"].is_u64() && company["companyStatus"].is_u64(), "{company}");
        assert!(company["name"].is_string() && company["idCDA"].is_string(), "{company}");
    }
    let defaults = companies.iter().filter(|company| company["default"] == true).count();
    assert_eq!(defaults, 1);
}

async fn a_select_returns_the_token_that_opens_webhooks() {
    let stage = Stage::start(|_| {}).await;
    let login = log_in(&stage.simulator).await;
    let client = authorized(&stage.client, &login);
    assert_eq!(client.get(HOOKS).await.status, 403, "no company was chosen");

    let answer = select(&client, &login["companies"][1]["id"], &login["refreshToken"]).await.ok();

    assert_eq!(members(&answer), "companyStatus token refreshToken productType".split(' ').collect());
    assert!(answer["companyStatus"].is_u64(), "{answer}");
    assert_ne!(answer["token"], login["token"]);
    let list = authorized(&stage.client, &answer).get(HOOKS).await;
    assert_eq!(list.ok(), json!([]));
}

async fn a_login_that_is_wrong_or_incomplete_is_refused() {
    let stage = Stage::start(|_| {}).await;
    let client = without_token(&stage.simulator);
    let (mail, password) = ("ana@example.com", "simulated-password");

    for (status, body) in [
        (401, json!({ "mail": mail, "password": "wrong" })),
        (401, json!({ "mail": "eva@example.com", "password": password })),
        (400, json!({ "mail": mail })),
        (400, json!({ "password": password })),
        (400, json!({ "mail": mail, "password": 7 })),
        (400, json!([mail, password])),
        (400, json!("text")),
    ] {
        let answer = client.post(LOGIN, &body).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert_eq!(answer.json()["ok"], false, "{body}: {answer:?}");
    }
    for body in ["", "{", "mail=ana%40example.com"] {
        let answer = client.try_send(reqwest::Method::POST, LOGIN, Some(body.to_owned())).await.unwrap();
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
}

async fn a_select_that_is_wrong_is_refused() {
    let stage = Stage::start(|_| {}).await;
    let login = log_in(&stage.simulator).await;
    let client = authorized(&stage.client, &login);
    let (company, refresh) = (&login["companies"][0]["id"], &login["refreshToken"]);
    let access = login["token"].as_str().unwrap().trim_start_matches("Bearer ");

    for (status, company, body) in [
        (404, &json!(7), refresh),
        (404, &json!(-1), refresh),
        (401, company, &json!("unknown")),
        (401, company, &json!(access)),
        (400, company, &json!({ "refreshToken": refresh })),
        (400, company, &json!(null)),
    ] {
        let answer = select(&client, company, body).await;
        assert_eq!(answer.status, status, "{company} {body}: {answer:?}");
    }
    let bare = select(&without_token(&stage.simulator), company, refresh).await;
    assert_eq!(bare.status, 401, "without a token: {bare:?}");
}

async fn a_token_lives_an_hour_and_a_refresh_token_longer() {
    let stage = Stage::start(|_| {}).await;
    let login = log_in(&stage.simulator).await;
    let (company, refresh) = (&login["companies"][0]["id"], &login["refreshToken"]);

    pass(&stage.simulator, 3_599);
    let before = stage.client.get(HOOKS).await.status;
    let again = select(&authorized(&stage.client, &login), company, refresh).await.ok();
    pass(&stage.simulator, 1);
    let expired = stage.client.get(HOOKS).await.status;
    stage.turn(|knobs| knobs.gateway.expired_token = ExpiredToken::ServerError);
    let expired_otherwise = stage.client.get(HOOKS).await.status;
    let second = authorized(&stage.client, &again).get(HOOKS).await.status;

    assert_eq!((before, expired, expired_otherwise, second), (200, 401, 500, 200));
    let fresh = chosen(&stage.simulator, 0).await;
    let later = log_in(&stage.simulator).await;
    let choose = async || select(&fresh, company, &later["refreshToken"]).await.status;
    assert_eq!((choose().await, choose().await), (200, 200));
    stage.turn(|knobs| knobs.invoicing.refresh_once = true);
    assert_eq!(choose().await, 401, "it has chosen a company before");
    pass(&stage.simulator, 30 * 86_400);
    stage.turn(|knobs| knobs.invoicing.refresh_once = false);
    let relogged = log_in(&stage.simulator).await;
    let ended = select(&authorized(&stage.client, &relogged), company, &later["refreshToken"]).await;
    assert_eq!(ended.status, 401, "thirty days have passed");
}

async fn tokens_of_one_api_open_no_other() {
    let stage = Stage::start(|_| {}).await;
    let accounting = Client::accounting(&stage.simulator);

    let invoicing = accounting.header("api-version", "2.0").get(HOOKS).await;
    let companies = stage.client.get("/accounting/api/companies").await;

    assert_eq!((invoicing.status, companies.status), (401, 401));
}
