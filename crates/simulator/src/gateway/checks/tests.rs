#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use axum::{body::to_bytes, http::Request, response::IntoResponse as _};
use serde_json::Value;

use super::*;
use crate::{Provider, knobs::Rate, settings::Settings};

const KEY: (&str, &str) = ("Ocp-Apim-Subscription-Key", "simulated-subscription-key");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const VERSION: (&str, &str) = ("Api-Version", "2.0");
const ACC: &str = "/accounting/api/customers";
const HOOKS: &str = "/accounting-core/api/activities/prorates/webhooks/events";
const IMPORT: &str = "/accounting-import/api/integrationFiles/a";
const PAY: &str = "/payroll/api/companies";
const INV: &str = "/invoicing/api/webhooks";
const LOGIN: &str = "/invoicing/api/users/login";

type Headers<'a> = &'a [(&'a str, &'a str)];

/// The scopes of a token are its text, with commas between.
fn judge(_: &Gateway, _: Area, bearer: &str, _: Ticks) -> TokenStatus {
    match bearer {
        "expired" => TokenStatus::Expired,
        "unknown" => TokenStatus::Unknown,
        scopes => TokenStatus::Valid(Caller {
            subject: "ana".to_owned(),
            scopes: scopes.split(',').map(str::to_owned).collect::<Arc<_>>(),
            invoicing_company: None,
        }),
    }
}

fn admit_with(gateway: &Gateway, method: &str, path: &str, headers: Headers<'_>) -> Result<Call, ApiError> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    admit(gateway, area(path).unwrap(), &parts, Context::Absent, judge)
}

async fn told(refusal: ApiError) -> (u16, String) {
    let answer = refusal.into_response();
    let status = answer.status().as_u16();
    let body: Value = serde_json::from_slice(&to_bytes(answer.into_body(), 10_000).await.unwrap()).unwrap();
    let by_gateway = body["statusCode"] == status;
    let by_api = body["ok"] == false && body["httpCode"] == status;
    assert!(by_gateway != by_api, "{body}");
    let by = if by_gateway { "gateway" } else { "api" };
    (status, format!("{by}: {}", body["message"].as_str().unwrap()))
}

#[tokio::test]
async fn the_first_thing_that_is_missing_decides() {
    let mut settings = Settings::default();
    settings.knobs.invoicing.version_required = true;
    let provider = Provider::new(settings).unwrap();
    let wrong_key = ("Ocp-Apim-Subscription-Key", "other");
    let token = |token: &'static str| ("Authorization", token);
    let accounting = token("Bearer SVC.ES.NEWPOL.ACC.API");
    let core = token("Bearer SVC.ES.NEWPOL.COR.API");
    let webhooks = token("Bearer SVC.ES.NEWPOL.COR.API,SVC.ES.Webhooks");
    let text = ("Content-Type", "text/plain");

    let table: &[(&str, &str, Headers<'_>, u16, &str)] = &[
        (
            "GET",
            ACC,
            &[],
            401,
            "gateway: Access denied due to missing subscription key. Make sure to include",
        ),
        ("GET", ACC, &[("Ocp-Apim-Subscription-Key", "")], 401, "gateway: Access denied due to missing"),
        (
            "GET",
            ACC,
            &[wrong_key, accounting],
            401,
            "gateway: Access denied due to invalid subscription key.",
        ),
        ("GET", ACC, &[KEY], 401, "api: Authorization has been denied"),
        ("GET", ACC, &[KEY, token("Basic SVC.ES.NEWPOL.ACC.API")], 401, "api: Authorization has been"),
        ("GET", ACC, &[KEY, token("Bearer")], 401, "api: Authorization has been denied"),
        ("GET", ACC, &[KEY, token("Bearer   ")], 401, "api: Authorization has been denied"),
        ("GET", ACC, &[KEY, token("Bearer unknown")], 401, "api: the access token is not valid"),
        ("GET", ACC, &[KEY, token("Bearer expired")], 401, "api: the access token has expired"),
        (
            "GET",
            ACC,
            &[KEY, token("Bearer SVC.ES.EquipoContex")],
            403,
            "api: the token lacks the scope SVC.ES.N",
        ),
        ("GET", HOOKS, &[KEY, core], 403, "api: the token lacks the scope SVC.ES.Webhooks"),
        ("GET", HOOKS, &[KEY, accounting], 403, "api: the token lacks the scope SVC.ES.NEWPOL.COR.API"),
        ("GET", ACC, &[KEY, core], 403, "api: the token lacks the scope SVC.ES.NEWPOL.ACC.API"),
        ("GET", IMPORT, &[KEY, core], 403, "api: the token lacks the scope SVC.ES.NEWPOL.ACC.API"),
        (
            "GET",
            HOOKS,
            &[KEY, token("Bearer SVC.ES.Webhooks")],
            403,
            "api: the token lacks the scope SVC.ES.NEW",
        ),
        ("GET", PAY, &[KEY, accounting], 403, "api: the token lacks the scope SVC.ES.EquipoContex"),
        ("GET", ACC, &[KEY, accounting], 415, "api: Content-Type"),
        ("GET", ACC, &[KEY, accounting, text], 415, "api: Content-Type"),
        ("GET", ACC, &[KEY, accounting, ("Content-Type", "application/jsonx")], 415, "api: Content-Type"),
        ("GET", HOOKS, &[KEY, webhooks, JSON], 400, "api: webhooks are managed with context none"),
        ("GET", INV, &[KEY, VERSION, JSON], 401, "api: Authorization"),
        ("GET", LOGIN, &[KEY, VERSION, JSON], 401, "api: Authorization"),
        ("GET", INV, &[KEY, token("Bearer any")], 415, "api: Content-Type"),
        ("GET", INV, &[KEY, token("Bearer any"), JSON], 400, "api: Api-Version"),
        ("GET", INV, &[KEY, token("Bearer any"), JSON, ("Api-Version", "2")], 400, "api: Api-Version"),
        ("POST", LOGIN, &[VERSION, JSON], 401, "gateway: Access denied due to missing"),
        ("POST", LOGIN, &[KEY, JSON], 400, "api: Api-Version"),
    ];
    for (method, path, headers, status, message) in table {
        let refusal = admit_with(&provider.gateway, method, path, headers).unwrap_err();

        let (found, words) = told(refusal).await;

        assert_eq!(found, *status, "{method} {path} {headers:?}: {words}");
        assert!(words.starts_with(message), "{method} {path} {headers:?}: {words}");
    }
}

#[tokio::test]
async fn limits_come_after_the_key_and_before_the_token() {
    let provider = Provider::new(Settings::default()).unwrap();
    let none = Rate { requests: 0, seconds: 60.0, tells: crate::knobs::RetryHint::Both };
    provider.turn(|knobs| knobs.gateway.rate = Some(none));

    let no_key = admit_with(&provider.gateway, "GET", ACC, &[]).unwrap_err();
    let no_token = admit_with(&provider.gateway, "GET", ACC, &[KEY]).unwrap_err();

    assert_eq!(told(no_key).await.0, 401);
    assert_eq!(told(no_token).await.0, 429);
}

#[test]
fn a_path_belongs_to_an_area_by_whole_segments() {
    for (path, found) in [
        ("/accounting/api/customers", Some(Area::Accounting)),
        ("/accounting-core/api/persons", Some(Area::Core)),
        ("/accounting-import/api/integrationFiles", Some(Area::Import)),
        ("/payroll/api/", Some(Area::Payroll)),
        ("/invoicing/api/webhooks", Some(Area::Invoicing)),
        ("/invoicing/api", None),
        ("/invoicing/apis/webhooks", None),
        ("/accounting/customers", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(area(path), found, "{path}");
    }
}
