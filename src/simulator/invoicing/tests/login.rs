//! Login, choice of a company, tokens.

use axum::http::Method;
use serde_json::{Value, json};

use super::{call, post, provider, provider_with, read, send};
use crate::simulator::{
    Provider,
    clock::SECOND,
    identity::{Caller, Standing},
};

fn bearer(answer: &Value) -> &str {
    answer["token"].as_str().unwrap().strip_prefix("Bearer ").unwrap()
}

fn caller(provider: &Provider, bearer: &str) -> Option<Caller> {
    match provider.invoicing.check(bearer, provider.clock.now()) {
        Standing::Valid(caller) => Some(caller),
        Standing::Expired | Standing::Unknown => None,
    }
}

fn good_login() -> Value {
    json!({ "mail": "ana@example.com", "password": "simulated-password" })
}

#[tokio::test]
async fn a_login_tells_tokens_user_and_companies() {
    let provider = provider();

    let (status, login) = post(&provider, None, "users/login", &good_login()).await;

    assert_eq!(status, 200);
    let members: Vec<&str> = login.as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        ["companies", "id", "isAdvisor", "locale", "mail", "name", "refreshToken", "token", "version"];
    assert_eq!(members, expected);
    assert_eq!(login["mail"], "ana@example.com");
    assert!(login["id"].is_u64() && login["isAdvisor"].is_boolean());
    let companies = login["companies"].as_array().unwrap();
    assert_eq!(companies.len(), 3);
    for (number, company) in (0..).zip(companies) {
        assert_eq!(company["id"], 40_001 + number);
        assert_eq!(company["idCDA"], provider.invoicing.tenant(number));
        assert_eq!(company["default"], number == 0);
        assert!(company["name"].is_string() && company["companyStatus"].is_u64());
    }
    let caller = caller(&provider, bearer(&login)).unwrap();
    assert_eq!((caller.subject.as_str(), caller.invoicing_company), ("ana@example.com", None));
}

#[tokio::test]
async fn a_wrong_login_is_refused_by_what_is_wrong_with_it() {
    let cases = [
        (json!({ "mail": "ana@example.com", "password": "other" }).to_string(), 401, "password"),
        (json!({ "mail": "eva@example.com", "password": "simulated-password" }).to_string(), 401, "mail"),
        (json!({ "mail": "ana@example.com" }).to_string(), 400, "password:"),
        (json!({ "mail": 1e300, "password": "simulated-password" }).to_string(), 400, "mail:"),
        (json!([]).to_string(), 400, "mail:"),
        ("{".to_owned(), 400, "body:"),
        (String::new(), 400, "body:"),
        ("[".repeat(1_000), 400, "body:"),
    ];
    let provider = provider();

    for (body, expected, word) in cases {
        let start: String = body.chars().take(60).collect();
        let (status, answer) =
            read(send(&provider, call(None), Method::POST, "users/login", body).await).await;

        assert_eq!(status, expected, "{start}");
        assert_eq!((&answer["ok"], &answer["httpCode"]), (&json!(false), &json!(expected)), "{start}");
        assert!(answer["message"].as_str().unwrap().contains(word), "{start}: {answer}");
    }
    let bad_text = vec![b'"', 0xff, b'"'];
    let (status, _) = read(send(&provider, call(None), Method::POST, "users/login", bad_text).await).await;
    assert_eq!(status, 400);
    assert!(provider.invoicing.issued().is_empty());
}

#[tokio::test]
async fn a_chosen_company_is_that_of_the_new_token() {
    let provider = provider();
    let (_, login) = post(&provider, None, "users/login", &good_login()).await;

    let (status, chosen) = post(&provider, None, "companies/40003/select", &login["refreshToken"]).await;

    assert_eq!(status, 200);
    let members: Vec<&str> = chosen.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["companyStatus", "productType", "refreshToken", "token"]);
    assert_eq!(caller(&provider, bearer(&chosen)).unwrap().invoicing_company, Some(2));
    assert_eq!(caller(&provider, bearer(&login)).unwrap().invoicing_company, None);
    let (again, _) = post(&provider, None, "companies/40001/select", &chosen["refreshToken"]).await;
    assert_eq!(again, 200);
}

#[tokio::test]
async fn a_company_that_cannot_be_chosen_is_refused() {
    let provider = provider();
    let (_, login) = post(&provider, None, "users/login", &good_login()).await;
    let refresh = &login["refreshToken"];
    let wrapped = json!({ "refreshToken": refresh });
    let access = json!(bearer(&login));
    let cases = [
        ("40004", refresh, 404),
        ("40000", refresh, 404),
        ("0", refresh, 404),
        ("99999999999999999999", refresh, 404),
        ("-1", refresh, 404),
        ("%FF", refresh, 404),
        ("40001", &wrapped, 400),
        ("40001", &Value::Null, 400),
        ("40001", &access, 401),
        ("40001", &json!("unknown"), 401),
    ];

    for (company, body, expected) in cases {
        let (status, answer) = post(&provider, None, &format!("companies/{company}/select"), body).await;

        assert_eq!(status, expected, "{company} {body}: {answer}");
        assert_eq!(answer["httpCode"], expected);
    }
}

#[tokio::test]
async fn tokens_expire_by_the_providers_clock_and_the_knob() {
    let provider = provider_with(|knobs| knobs.invoicing.token_seconds = 60);
    let (_, login) = post(&provider, None, "users/login", &good_login()).await;
    let granted = provider.invoicing.grant(&provider, 1);

    provider.clock.advance(59 * SECOND);
    let before = [bearer(&login), &granted].map(|token| caller(&provider, token).is_some());
    provider.clock.advance(SECOND);
    let after = [bearer(&login), &granted].map(|token| caller(&provider, token).is_some());

    assert_eq!((before, after), ([true, true], [false, false]));
    let standing = provider.invoicing.check(&granted, provider.clock.now());
    assert!(matches!(standing, Standing::Expired));
    provider.clock.advance(30 * 86_400 * SECOND);
    let (status, _) = post(&provider, None, "companies/40001/select", &login["refreshToken"]).await;
    assert_eq!(status, 401);
}
