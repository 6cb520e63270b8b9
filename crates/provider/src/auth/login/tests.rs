use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::*;
use crate::auth::tests::stub::{Act, FIRST, ISSUER, SECOND, Stub, TOKEN};

const REDIRECT: &str = "http://localhost:8400/callback";
/// Time of the stub's clock, by the `Date` of its responses.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const NOW: i64 = 784_111_777;

fn begin(stub: &Stub, pkce: bool) -> PendingLogin {
    let mut provider = stub.provider();
    provider.oauth.pkce = pkce;
    let clock = ProviderClock::new(Duration::from_secs(300));
    PendingLogin::begin(&provider, Area::Accounting, REDIRECT, &clock).unwrap()
}

fn asked(login: &PendingLogin) -> BTreeMap<String, String> {
    login.address().query_pairs().into_owned().collect()
}

/// Tokens for a login with this nonce.
fn tokens(nonce: &str) -> (Value, Value) {
    let times = json!({ "iss": ISSUER, "exp": NOW + 300, "nbf": NOW, "sub": "a user" });
    let with = |more: Value| {
        let mut payload = times.clone();
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        payload
    };
    let access = with(
        json!({ "aud": format!("{ISSUER}/resources"), "client_id": "client", "scope": ["openid", "x"] }),
    );
    (access, with(json!({ "aud": "client", "nonce": nonce })))
}

fn say(stub: &Stub, answer: &Value) {
    let headers = format!("content-type: application/json\r\ndate: {DATE}\r\n");
    stub.on(TOKEN, Act::with_headers(200, &headers, &answer.to_string()));
}

/// Logs in at a stub whose responses `bend` changes.
async fn enter(bend: impl FnOnce(&mut Value, &mut Value, &mut Value)) -> Result<CompletedLogin, Error> {
    let stub = Stub::start().await;
    stub.publish(&[FIRST.published()]);
    let login = begin(&stub, false);
    let asked = asked(&login);
    let (mut access, mut identity) = tokens(&asked["nonce"]);
    let mut answer = json!({ "refresh_token": "r", "expires_in": 300 });
    bend(&mut access, &mut identity, &mut answer);
    for (name, payload) in [("access_token", access), ("id_token", identity)] {
        if answer.get(name).is_none() {
            answer[name] = FIRST.sign(&payload).into();
        }
    }
    say(&stub, &answer);

    let code = login.accept(&format!("code=c0de&state={}", asked["state"])).unwrap();
    login.finish(code).await
}

#[tokio::test]
async fn an_authorization_url_has_fresh_state_and_nonce() {
    let stub = Stub::start().await;

    let (first, second) = (begin(&stub, false), begin(&stub, false));

    let (asked, again) = (asked(&first), asked(&second));
    assert_eq!(first.address().path(), "/auth/core/connect/authorize");
    assert_eq!(asked["client_id"], "client");
    assert_eq!(asked["response_type"], "code");
    assert_eq!(asked["redirect_uri"], REDIRECT);
    assert_eq!(asked["scope"], Area::Accounting.scopes().join(" "));
    assert!(first.address().query().unwrap().contains("scope=offline_access+openid+"));
    let mut names: Vec<_> = asked.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["client_id", "nonce", "redirect_uri", "response_type", "scope", "state"]);
    let drawn = [&asked["state"], &asked["nonce"], &again["state"], &again["nonce"]];
    for (number, guid) in drawn.into_iter().enumerate() {
        let parts: Vec<usize> = guid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{guid}");
        assert!(guid[14..].starts_with('4') && "89ab".contains(&guid[19..20]), "{guid}");
        assert!(!drawn[..number].contains(&guid), "drawn twice: {guid}");
    }
    let shown = format!("{first:?}");
    assert!(!shown.contains(&asked["state"]) && !shown.contains(&asked["nonce"]), "{shown}");
}

#[tokio::test]
async fn a_code_refused_with_pkce_says_how_to_turn_it_off() {
    for (pkce, told) in [(true, true), (false, false)] {
        let stub = Stub::start().await;
        stub.on(TOKEN, Act::json(400, r#"{"error":"invalid_grant"}"#));
        let login = begin(&stub, pkce);
        let state = asked(&login)["state"].clone();

        let code = login.accept(&format!("code=c0de&state={state}")).unwrap();
        let error = login.finish(code).await.unwrap_err();

        let words = base::retry::ErrorChain(&error).to_string();
        assert_eq!(words.contains("oauth.pkce=false"), told, "{words}");
        assert!(words.contains("invalid_grant"), "{words}");
    }
}

#[tokio::test]
async fn a_callback_needs_the_state_of_its_login() {
    let stub = Stub::start().await;
    let login = begin(&stub, false);
    let state = asked(&login)["state"].clone();
    let upper = state.to_uppercase();
    let long = "x".repeat(MAX_QUERY_BYTES);

    for (query, expected) in [
        (format!("code=c&state={state}"), "taken"),
        (format!("state={state}&code=c&id_token=&session_state=x"), "taken"),
        (format!("code=c&state={upper}"), "not trusted"),
        (format!("code=c&state={state}x"), "not trusted"),
        ("code=c&state=".into(), "not trusted"),
        ("code=c".into(), "not trusted"),
        ("error=access_denied".into(), "not trusted"),
        ("error=access_denied&state=other".into(), "not trusted"),
        (String::new(), "not trusted"),
        (format!("code=c&state=other&state={state}"), "malformed"),
        (format!("code=c&code=d&state={state}"), "malformed"),
        (format!("state={state}"), "malformed"),
        (format!("code=&state={state}"), "malformed"),
        (format!("code=a%0d%0ab&state={state}"), "malformed"),
        (format!("code=c&state={state}&{long}"), "malformed"),
        (format!("error=access_denied&error_description=a%0Ab&state={state}"), "refused access_denied a b"),
        (format!("error=access_denied&code=c&state={state}"), "refused access_denied"),
    ] {
        let word = match login.accept(&query) {
            Ok(_) => "taken".into(),
            Err(CallbackError::NotTrusted) => "not trusted".into(),
            Err(CallbackError::Malformed(_)) => "malformed".into(),
            Err(CallbackError::Refused { code, description }) => {
                format!("refused {code} {}", description.unwrap_or_default()).trim().to_owned()
            }
        };
        assert_eq!(word, expected, "{query}");
    }
}

#[tokio::test]
async fn a_pasted_code_or_callback_url_is_accepted() {
    let stub = Stub::start().await;
    let login = begin(&stub, false);
    let state = asked(&login)["state"].clone();

    for (text, expected) in [
        (" c0de\n".to_owned(), Some("c0de")),
        (format!("{REDIRECT}?code=c0de&state={state}\r\n"), Some("c0de")),
        (format!("{REDIRECT}?code=c0de&state=other"), None),
        (format!("{REDIRECT}?code=c0de"), None),
        ("two words".into(), None),
        ("http://[".into(), None),
        (String::new(), None),
    ] {
        let pasted = login.accept_pasted(&text).ok();
        assert_eq!(pasted.as_ref().map(|found| found.code.reveal()), expected, "{text}");
    }
}

#[tokio::test]
async fn a_login_returns_verified_tokens() {
    let entered = enter(|_, _, _| {}).await.unwrap();

    assert_eq!(entered.granted.refresh.unwrap().reveal(), "r");
    assert_eq!(entered.claims.subject.as_deref(), Some("a user"));
    assert_eq!(entered.scopes, ["openid", "x"]);
}

#[tokio::test]
async fn tokens_of_another_login_client_person_or_key_are_rejected() {
    for (name, entered) in [
        ("nonce", enter(|_, identity, _| identity["nonce"] = "other".into()).await),
        ("no nonce", enter(|_, identity, _| identity["nonce"] = Value::Null).await),
        ("client", enter(|access, _, _| access["client_id"] = "other".into()).await),
        (
            "access audience",
            enter(|access, _, _| access["aud"] = "https://other.example/resources".into()).await,
        ),
        ("audience", enter(|_, identity, _| identity["aud"] = "other".into()).await),
        ("person", enter(|_, identity, _| identity["sub"] = "other".into()).await),
        ("issuer", enter(|access, _, _| access["iss"] = "https://other.example".into()).await),
        ("over", enter(|access, _, _| access["exp"] = (NOW - 3_600).into()).await),
        ("hash", enter(|_, identity, _| identity["at_hash"] = "AAAA".into()).await),
        ("key", enter(|access, _, answer| answer["access_token"] = SECOND.sign(access).into()).await),
        ("opaque", enter(|_, _, answer| answer["access_token"] = "opaque".into()).await),
    ] {
        assert!(matches!(entered, Err(Error::Distrusted { .. })), "{name}: {entered:?}");
    }
}

#[tokio::test]
async fn a_login_needs_a_refresh_token_and_an_identity_token() {
    for (scope, entered) in [
        ("openid", enter(|_, _, answer| answer["id_token"] = "".into()).await),
        ("offline_access", enter(|_, _, answer| answer["refresh_token"] = Value::Null).await),
    ] {
        let error = entered.unwrap_err();
        let told = format!("accounting.oauth.scopes must have {scope}");
        assert!(matches!(error, Error::Incomplete { .. }) && error.to_string().contains(&told), "{error}");
    }
}

#[tokio::test]
async fn a_bad_identity_token_in_the_callback_stops_the_exchange() {
    let stub = Stub::start().await;
    stub.publish(&[FIRST.published()]);
    let login = begin(&stub, false);
    let state = asked(&login)["state"].clone();
    let (_, mut identity) = tokens("of another login");
    identity["exp"] = i64::MAX.into();

    let code = login.accept(&format!("code=c&state={state}&id_token={}", FIRST.sign(&identity))).unwrap();
    let entered = login.finish(code).await;

    assert!(matches!(entered, Err(Error::Distrusted { .. })), "{entered:?}");
    assert!(stub.seen(TOKEN).is_empty());
}
