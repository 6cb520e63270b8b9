//! The login: authorization request, callback and code exchange, and their errors.

use reqwest::Method;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use simulator::{Simulator, knobs::Pkce};
use url::{Url, form_urlencoded};

use super::{ACCOUNTING_SCOPES, Answer, Client, PAYROLL_SCOPES, pass, started};

crate::tests! {
    plain the_login_page_has_one_button_that_grants_a_code;
    plain auto_logs_in_without_a_page_and_returns_the_state_unchanged;
    plain a_wrong_authorization_request_is_refused;
    plain redirect_addresses_are_https_or_localhost;
    plain a_refused_login_carries_an_error_instead_of_a_code;
    plain a_code_becomes_the_five_documented_fields;
    plain each_field_of_the_code_exchange_is_checked;
    plain a_code_is_good_for_five_minutes;
    plain a_verifier_is_refused_allowed_or_required_as_the_knob_says;
}

pub(super) const AUTHORIZE: &str = "/auth/core/connect/authorize";
pub(super) const TOKEN: &str = "/auth/core/connect/token";
const REDIRECT: &str = "https://client.example/callback";
const STATE: &str = "0f6c8f2e-6c0f-4f0e-9a52-0b8f4b8b7c11";
pub(super) const NONCE: &str = "5a3f1f0c-2f7f-4d58-8d3a-9f4c4c1f7e22";

/// The document's six parameters.
fn request(scope: &str) -> Vec<(&str, &str)> {
    vec![
        ("client_id", "simulated-client"),
        ("response_type", "code"),
        ("redirect_uri", REDIRECT),
        ("scope", scope),
        ("state", STATE),
        ("nonce", NONCE),
    ]
}

/// The document's five fields.
pub(super) fn exchange_of(code: &str) -> Vec<(&str, &str)> {
    vec![
        ("client_id", "simulated-client"),
        ("client_secret", "simulated-secret"),
        ("code", code),
        ("grant_type", "authorization_code"),
        ("redirect_uri", REDIRECT),
    ]
}

pub(super) fn with<'a>(
    mut fields: Vec<(&'a str, &'a str)>,
    name: &'a str,
    value: Option<&'a str>,
) -> Vec<(&'a str, &'a str)> {
    fields.retain(|(field, _)| *field != name);
    fields.extend(value.map(|value| (name, value)));
    fields
}

async fn authorize(client: &Client, parameters: &[(&str, &str)]) -> Answer {
    // The serializer writes spaces as `+`, as the document's scope list has them.
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let answer = client.http.get(format!("{}{AUTHORIZE}?{query}", client.base)).send().await.unwrap();
    Answer::read(answer).await.unwrap()
}

/// The address of a redirect, and its query.
#[track_caller]
fn callback(answer: &Answer) -> (String, Vec<(String, String)>) {
    assert_eq!(answer.status, 302, "{answer:?}");
    let url = Url::parse(answer.header("location").unwrap()).unwrap();
    let query = url.query_pairs().into_owned().collect();
    let mut address = url;
    address.set_query(None);
    (address.to_string(), query)
}

fn named<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
}

/// The same with `auto`, which presses the button of the page.
async fn press(client: &Client, mut parameters: Vec<(&str, &str)>) -> Answer {
    parameters.push(("auto", ""));
    authorize(client, &parameters).await
}

/// Logs in with `auto` and returns the code.
pub(super) async fn code(client: &Client, scopes: &[&str]) -> String {
    let scope = scopes.join(" ");
    let (_, query) = callback(&press(client, request(&scope)).await);
    named(&query, "code").unwrap_or_else(|| panic!("no code in {query:?}")).to_owned()
}

/// `id_token` of a callback.
pub(super) async fn callback_token(client: &Client) -> Option<String> {
    let (_, query) = callback(&press(client, request("openid")).await);
    named(&query, "id_token").map(str::to_owned)
}

/// Redeems a code.
pub(super) async fn exchange(client: &Client, code: &str) -> Result<Answer, reqwest::Error> {
    client.form(TOKEN, &exchange_of(code)).await
}

/// Uses a refresh token.
pub(super) async fn refresh(client: &Client, token: &str) -> Result<Answer, reqwest::Error> {
    let fields = [
        ("client_id", "simulated-client"),
        ("client_secret", "simulated-secret"),
        ("grant_type", "refresh_token"),
        ("refresh_token", token),
    ];
    client.form(TOKEN, &fields).await
}

/// Logs in and returns the token response.
pub(super) async fn log_in(client: &Client, scopes: &[&str]) -> Value {
    exchange(client, &code(client, scopes).await).await.unwrap().ok()
}

/// Asserts an OAuth error.
#[track_caller]
pub(super) fn refused(answer: &Answer, status: u16, error: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.json()["error"], error, "{answer:?}");
}

/// A client at the identity provider's address.
pub(super) fn login_client(simulator: &Simulator) -> Client {
    Client { base: simulator.auth_url().as_str().trim_end_matches('/').to_owned(), ..Client::bare(simulator) }
}

async fn the_login_page_has_one_button_that_grants_a_code() {
    let (_simulator, client) = started(login_client, |_| {}).await;
    let scope = ACCOUNTING_SCOPES.join(" ");

    let page = authorize(&client, &request(&scope)).await;

    assert_eq!(page.status, 200, "{page:?}");
    assert!(page.header("content-type").unwrap().starts_with("text/html"), "{page:?}");
    assert_eq!(page.body.matches("<button").count(), 1, "{page:?}");
    let (_, form) = page.body.split_once("action=\"").unwrap();
    let (action, form) = form.split_once('"').unwrap();
    // No value in this request is escaped.
    let fields: Vec<(&str, &str)> = form
        .split("name=\"")
        .skip(1)
        .map(|field| {
            let (name, rest) = field.split_once("\" value=\"").unwrap();
            (name, rest.split_once('"').unwrap().0)
        })
        .collect();
    assert_eq!(action, AUTHORIZE);
    let pressed = authorize(&client, &fields).await;
    let (address, query) = callback(&pressed);
    assert_eq!(address, REDIRECT);
    assert_eq!(named(&query, "state"), Some(STATE));
    exchange(&client, named(&query, "code").unwrap()).await.unwrap().ok();
}

async fn auto_logs_in_without_a_page_and_returns_the_state_unchanged() {
    let (_simulator, client) = started(login_client, |_| {}).await;

    for state in [STATE, "a b+c&d=é\"%41", "?#/"] {
        let scope = PAYROLL_SCOPES.join(" ");
        let (address, query) = callback(&press(&client, with(request(&scope), "state", Some(state))).await);

        assert_eq!(address, REDIRECT);
        assert_eq!(named(&query, "state"), Some(state), "{query:?}");
        assert!(named(&query, "code").is_some_and(|code| !code.is_empty()), "{query:?}");
        assert_eq!(named(&query, "error"), None);
    }
}

async fn a_wrong_authorization_request_is_refused() {
    let (_simulator, client) = started(login_client, |_| {}).await;

    // Without a valid client and address, nothing is redirected.
    for (name, value) in [
        ("client_id", None),
        ("client_id", Some("stranger")),
        ("redirect_uri", None),
        ("redirect_uri", Some("ftp://client.example/callback")),
    ] {
        let answer = authorize(&client, &with(request("openid"), name, value)).await;

        assert_eq!((answer.status, answer.header("location")), (400, None), "{name} {value:?}");
    }
    for (name, value, error) in [
        ("response_type", None, "invalid_request"),
        ("response_type", Some("token"), "unsupported_response_type"),
        ("response_type", Some("code id_token"), "unsupported_response_type"),
        ("scope", None, "invalid_request"),
        ("scope", Some("openid SVC.ES.Unknown"), "invalid_scope"),
        ("scope", Some(""), "invalid_request"),
        ("state", None, "invalid_request"),
        ("nonce", None, "invalid_request"),
    ] {
        let answer = authorize(&client, &with(request("openid"), name, value)).await;

        let (address, query) = callback(&answer);
        assert_eq!(address, REDIRECT);
        assert_eq!(named(&query, "error"), Some(error), "{name} {value:?}: {query:?}");
        assert!(named(&query, "error_description").is_some(), "{query:?}");
        assert_eq!(named(&query, "code"), None);
        let state = (name != "state").then_some(STATE);
        assert_eq!(named(&query, "state"), state, "{name}");
    }
}

async fn redirect_addresses_are_https_or_localhost() {
    let (_simulator, client) = started(login_client, |_| {}).await;

    for (address, status) in [
        ("https://client.example/callback", 302),
        ("http://localhost:4711/callback", 302),
        // Desktop apps have no address: the page shows the code.
        ("urn:ietf:wg:oauth:2.0:oob", 200),
        ("http://127.0.0.1:4711/callback", 400),
        ("http://127.0.0.1/callback", 400),
        ("http://[::1]:4711/callback", 400),
        ("http://localhost:80@evil.example/callback", 400),
        ("https://client.example/callback#part", 400),
        ("http://client.example/callback", 400),
        ("http://localhost.evil.example:80/callback", 400),
        ("not an address", 400),
    ] {
        let answer = press(&client, with(request("openid"), "redirect_uri", Some(address))).await;

        assert_eq!(answer.status, status, "{address}: {answer:?}");
    }
}

async fn a_refused_login_carries_an_error_instead_of_a_code() {
    let (_simulator, client) = started(login_client, |settings| {
        settings.knobs.identity.refuse_login = Some("no licence".to_owned())
    })
    .await;

    let (_, query) = callback(&press(&client, request("openid")).await);

    assert_eq!(named(&query, "error"), Some("access_denied"), "{query:?}");
    assert_eq!(named(&query, "error_description"), Some("no licence"));
    assert_eq!((named(&query, "state"), named(&query, "code")), (Some(STATE), None));
}

async fn a_code_becomes_the_five_documented_fields() {
    let (_simulator, client) = started(login_client, |_| {}).await;

    for scopes in [&ACCOUNTING_SCOPES[..], &PAYROLL_SCOPES] {
        let answer = exchange(&client, &code(&client, scopes).await).await.unwrap();

        let body = answer.ok();
        let fields: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["access_token", "expires_in", "id_token", "refresh_token", "token_type"]);
        assert_eq!((&body["expires_in"], &body["token_type"]), (&3600.into(), &"Bearer".into()));
        for token in ["access_token", "id_token"] {
            assert_eq!(body[token].as_str().unwrap().split('.').count(), 3, "{token} is no JWT");
        }
        assert!(body["refresh_token"].as_str().is_some_and(|token| !token.is_empty()));
        assert!(answer.header("content-type").unwrap().starts_with("application/json"));
    }
    // Without offline_access there is no refresh token.
    assert_eq!(log_in(&client, &["openid", "SVC.ES.NEWPOL.ACC.API"]).await.get("refresh_token"), None);
}

async fn each_field_of_the_code_exchange_is_checked() {
    let (_simulator, client) = started(login_client, |_| {}).await;

    for (name, value, error) in [
        ("client_id", None, "invalid_client"),
        ("client_id", Some("stranger"), "invalid_client"),
        ("client_secret", None, "invalid_client"),
        ("client_secret", Some("Simulated-secret"), "invalid_client"),
        ("code", None, "invalid_grant"),
        ("code", Some("never issued"), "invalid_grant"),
        ("grant_type", None, "unsupported_grant_type"),
        ("grant_type", Some("password"), "unsupported_grant_type"),
        ("redirect_uri", None, "unauthorized_client"),
        ("redirect_uri", Some("https://client.example/Callback"), "unauthorized_client"),
        ("redirect_uri", Some("https://client.example/callback?"), "unauthorized_client"),
    ] {
        let code = code(&client, &ACCOUNTING_SCOPES).await;
        let answer = client.form(TOKEN, &with(exchange_of(&code), name, value)).await.unwrap();

        assert_eq!(answer.json()["error"], error, "{name} {value:?}: {answer:?}");
        assert_eq!(answer.status, 400, "{name} {value:?}");
    }
    let json = client.try_send(Method::POST, TOKEN, Some("{}".to_owned())).await.unwrap();
    refused(&json, 400, "invalid_request");
    assert_eq!(client.get(TOKEN).await.status, 405);
}

async fn a_code_is_good_for_five_minutes() {
    let (simulator, client) = started(login_client, |_| {}).await;
    let codes = [code(&client, &ACCOUNTING_SCOPES).await, code(&client, &ACCOUNTING_SCOPES).await];

    pass(&simulator, 299);
    exchange(&client, &codes[0]).await.unwrap().ok();
    pass(&simulator, 1);

    refused(&exchange(&client, &codes[1]).await.unwrap(), 400, "invalid_grant");
}

async fn a_verifier_is_refused_allowed_or_required_as_the_knob_says() {
    const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let (simulator, client) = started(login_client, |_| {}).await;
    let challenge = super::tokens::base64_url(&Sha256::digest(VERIFIER));

    for (knob, challenged, verifier, error) in [
        (Pkce::Refused, false, Some(VERIFIER), Some("invalid_grant")),
        (Pkce::Allowed, true, Some(VERIFIER), None),
        (Pkce::Allowed, false, None, None),
        (Pkce::Allowed, true, None, Some("invalid_grant")),
        (Pkce::Required, true, Some(VERIFIER), None),
        (Pkce::Required, true, Some("another verifier that is long enough to be one"), Some("invalid_grant")),
    ] {
        simulator.provider().turn(|knobs| knobs.identity.pkce = knob);
        let mut parameters = request("openid");
        if challenged {
            parameters.extend([("code_challenge", &*challenge), ("code_challenge_method", "S256")]);
        }
        let (_, query) = callback(&press(&client, parameters).await);
        let code = named(&query, "code").unwrap_or_else(|| panic!("{knob:?}: {query:?}"));

        let answer = client.form(TOKEN, &with(exchange_of(code), "code_verifier", verifier)).await.unwrap();

        match error {
            None => drop(answer.ok()),
            Some(error) => refused(&answer, 400, error),
        }
    }
    let (_, query) = callback(&press(&client, request("openid")).await);
    assert_eq!(named(&query, "error"), Some("invalid_request"), "a challenge is required: {query:?}");
}
