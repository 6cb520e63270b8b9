//! Tokens: claims, signatures, lifetimes, and the end of a grant.

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;
use simulator::knobs::{Effect, IdentityEndpoint, IdentityFault, RefreshLife};
use url::Url;

use super::{
    ACCOUNTING_SCOPES, Client, PAYROLL_SCOPES,
    identity::{NONCE, callback_token, code, exchange, log_in, login_client, refresh, refused},
    noon, pass,
    receiver::is_guid,
    start, started,
};

crate::tests! {
    plain access_tokens_have_exactly_the_documented_claims;
    plain tokens_verify_with_the_keys_that_discovery_leads_to;
    plain the_callback_carries_an_identity_token_when_asked_to;
    plain lifetimes_are_what_their_knobs_say;
    plain the_issuer_is_on_another_host_than_the_identity_provider;
    plain the_old_key_verifies_while_it_is_kept;
    plain a_payload_begins_with_its_id_twice_when_asked_to;
    plain a_login_keeps_its_tenant_until_a_knob_changes_it;
    plain a_refresh_answers_as_a_code_does_and_its_token_works;
    plain a_grant_ends_30_days_after_the_login_or_15_after_its_use;
    plain an_absolute_refresh_token_that_is_not_rotated_stays_the_same;
    plain an_old_refresh_token_used_again_ends_the_whole_grant;
    plain an_answer_that_is_lost_leaves_the_work_done;
    plain tokens_of_one_simulator_are_unknown_to_another;
}

const DAY: i64 = 86_400;
/// Claims of both tokens in the document's table.
const COMMON: &str = "$id iss aud exp nbf auth_time client_id scope sub idp svc.es.clientid svc.es.idcda usr owapp mem \
                      oun amr";
const ACCOUNTING_ONLY: [&str; 5] =
    ["given_name", "lang", "email", "svc.es.modules", "svc.es.keyusercorrelationid"];
const PAYROLL_ONLY: [&str; 2] = ["svc.es.equipouserid", "svc.es.secondclientid"];
const GUIDS: [&str; 6] = ["sub", "usr", "owapp", "mem", "oun", "svc.es.keyusercorrelationid"];

pub(super) fn base64_url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn part(token: &str, number: usize) -> String {
    let encoded = token.split('.').nth(number).unwrap();
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).unwrap()).unwrap()
}

fn claims(token: &str) -> Value {
    serde_json::from_str(&part(token, 1)).unwrap()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} is no text in {value}"))
}

/// Whether the key with the token's `kid` has signed it.
fn verifies(token: &str, keys: &Value) -> bool {
    let header: Value = serde_json::from_str(&part(token, 0)).unwrap();
    let Some(key) = keys["keys"].as_array().unwrap().iter().find(|key| key["kid"] == header["kid"]) else {
        return false;
    };
    let [n, e] = ["n", "e"].map(|name| URL_SAFE_NO_PAD.decode(text(key, name)).unwrap());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    RsaPublicKeyComponents { n: &n, e: &e }
        .verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature)
        .is_ok()
}

async fn keys(client: &Client) -> Value {
    let discovery = client.get("/auth/core/.well-known/openid-configuration").await.ok();
    let answer = client.http.get(text(&discovery, "jwks_uri")).send().await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

async fn access_tokens_have_exactly_the_documented_claims() {
    let (simulator, client) = started(login_client, |_| {}).await;
    pass(&simulator, 7);
    let now = noon().seconds() + 7;

    for (scopes, only) in [(&ACCOUNTING_SCOPES[..], &ACCOUNTING_ONLY[..]), (&PAYROLL_SCOPES, &PAYROLL_ONLY)] {
        let answer = log_in(&client, scopes).await;
        let claims = claims(text(&answer, "access_token"));

        let mut expected: Vec<&str> = COMMON.split(' ').chain(only.iter().copied()).collect();
        expected.sort_unstable();
        let mut found: Vec<&str> = claims.as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
        for (name, value) in claims.as_object().unwrap() {
            match name.as_str() {
                "exp" | "nbf" | "auth_time" => assert!(value.is_i64(), "{name}: {value}"),
                "scope" | "amr" => assert!(value.as_array().unwrap().iter().all(Value::is_string), "{name}"),
                name if GUIDS.contains(&name) => assert!(is_guid(value), "{name}: {value}"),
                name => assert!(value.is_string(), "{name}: {value}"),
            }
        }
        assert_eq!((&claims["nbf"], &claims["exp"]), (&now.into(), &(now + 3_600).into()));
        assert_eq!(claims["auth_time"], now);
        assert_eq!(claims["client_id"], "simulated-client");
        assert_eq!(claims["scope"], Value::from(scopes));
        for address in ["iss", "aud"] {
            assert_eq!(Url::parse(text(&claims, address)).unwrap().scheme(), "https", "{address}");
        }
        if only == ACCOUNTING_ONLY {
            assert!(text(&claims, "svc.es.modules").contains(';'), "{claims}");
        }
    }
}

async fn tokens_verify_with_the_keys_that_discovery_leads_to() {
    let (simulator, client) = started(login_client, |_| {}).await;

    let answer = log_in(&client, &ACCOUNTING_SCOPES).await;
    let keys = keys(&client).await;

    for key in keys["keys"].as_array().unwrap() {
        assert_eq!((&key["kty"], &key["use"], &key["alg"]), (&"RSA".into(), &"sig".into(), &"RS256".into()));
    }
    for name in ["access_token", "id_token"] {
        let token = text(&answer, name);
        let header: Value = serde_json::from_str(&part(token, 0)).unwrap();
        assert_eq!((&header["alg"], &header["typ"]), (&"RS256".into(), &"JWT".into()));
        for field in ["$id", "x5t", "kid"] {
            assert!(header[field].is_string(), "{field} in {header}");
        }
        assert!(verifies(token, &keys), "{name}");
        let forged = token.replacen('.', &format!(".{}", base64_url(b"{\"sub\":\"x\"}")), 1);
        assert!(!verifies(&forged, &keys), "a forged {name} verifies");
    }
    // The identity token has the nonce and is not an access token.
    let identity = claims(text(&answer, "id_token"));
    assert_eq!(identity["nonce"], NONCE);
    assert_eq!(identity["aud"], "simulated-client");
    assert_eq!(identity["sub"], claims(text(&answer, "access_token"))["sub"]);
    let misused = Client { base: client.base.clone(), ..Client::accounting(&simulator) };
    let misused = misused.token(text(&answer, "id_token"));
    assert_eq!(misused.get("/accounting/api/companies").await.status, 401);
}

async fn the_callback_carries_an_identity_token_when_asked_to() {
    let (simulator, client) = started(login_client, |_| {}).await;

    assert_eq!(callback_token(&client).await, None);
    simulator.provider().turn(|knobs| knobs.identity.callback_id_token = true);
    let token = callback_token(&client).await.unwrap();

    assert!(verifies(&token, &keys(&client).await));
    assert_eq!(claims(&token)["nonce"], NONCE);
    // It is not an access token, either.
    let api = Client::accounting(&simulator).token(&token);
    assert_eq!(api.get("/accounting/api/companies").await.status, 401);
}

async fn the_issuer_is_on_another_host_than_the_identity_provider() {
    let (simulator, client) = started(login_client, |_| {}).await;

    let discovery = client.get("/auth/core/.well-known/openid-configuration").await.ok();
    let token = log_in(&client, &ACCOUNTING_SCOPES).await;

    let issuer = Url::parse(text(&discovery, "issuer")).unwrap();
    assert_ne!(issuer.host_str(), simulator.auth_url().host_str());
    let claims = claims(text(&token, "access_token"));
    assert_eq!(claims["iss"], discovery["issuer"]);
    assert_eq!(claims["aud"], format!("{}/resources", text(&discovery, "issuer")));
    for (endpoint, path) in [
        ("authorization_endpoint", "/auth/core/connect/authorize"),
        ("token_endpoint", "/auth/core/connect/token"),
    ] {
        assert_eq!(text(&discovery, endpoint), format!("{}{path}", client.base), "{endpoint}");
    }
}

async fn the_old_key_verifies_while_it_is_kept() {
    let (simulator, client) = started(login_client, |_| {}).await;
    let old = log_in(&client, &["openid"]).await;
    let old = text(&old, "access_token");

    simulator.provider().identity.rotate_keys(true).unwrap();
    let new = log_in(&client, &["openid"]).await;
    let new = text(&new, "access_token");
    let both = keys(&client).await;
    simulator.provider().identity.rotate_keys(false).unwrap();
    let neither = keys(&client).await;

    assert_ne!(part(old, 0), part(new, 0));
    assert!(verifies(old, &both) && verifies(new, &both));
    assert_eq!(neither["keys"].as_array().unwrap().len(), 1);
    assert!(!verifies(old, &neither) && !verifies(new, &neither));
}

async fn a_payload_begins_with_its_id_twice_when_asked_to() {
    let (_simulator, client) =
        started(login_client, |settings| settings.knobs.identity.duplicate_id_claim = true).await;

    let answer = log_in(&client, &PAYROLL_SCOPES).await;

    let payload = part(text(&answer, "access_token"), 1);
    assert_eq!(payload.matches("\"$id\":").count(), 2, "{payload}");
    let members: Vec<&str> = payload.split(',').take(2).collect();
    assert!(members.iter().all(|member| member.trim_start_matches('{').starts_with("\"$id\":")), "{payload}");
}

async fn a_login_keeps_its_tenant_until_a_knob_changes_it() {
    let (simulator, client) = started(login_client, |_| {}).await;
    let tenant = |answer: &Value| claims(text(answer, "access_token")).get("svc.es.clientid").cloned();
    let knobs = |chosen: Option<&str>, refreshed: Option<&str>| {
        simulator.provider().turn(|knobs| {
            knobs.identity.tenant = chosen.map(str::to_owned);
            knobs.identity.refreshed_tenant = refreshed.map(str::to_owned);
        });
    };
    let plain = log_in(&client, &ACCOUNTING_SCOPES).await;
    assert_eq!(tenant(&plain), Some("tenant-1".into()));

    knobs(Some("chosen"), None);
    let mut answer = log_in(&client, &PAYROLL_SCOPES).await;
    assert_eq!(tenant(&answer), Some("chosen".into()));
    for (chosen, refreshed, expected) in
        [(None, None, Some("chosen")), (None, Some("moved"), Some("moved")), (None, Some(""), None)]
    {
        knobs(chosen, refreshed);
        answer = refresh(&client, text(&answer, "refresh_token")).await.unwrap().ok();
        assert_eq!(tenant(&answer), expected.map(Value::from), "{refreshed:?}");
    }
    knobs(Some(""), None);
    assert_eq!(tenant(&log_in(&client, &ACCOUNTING_SCOPES).await), None);
}

async fn a_refresh_answers_as_a_code_does_and_its_token_works() {
    let (simulator, client) = started(login_client, |_| {}).await;
    let first = log_in(&client, &ACCOUNTING_SCOPES).await;
    pass(&simulator, 3_600);

    let second = refresh(&client, text(&first, "refresh_token")).await.unwrap().ok();

    let fields = |answer: &Value| answer.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&first), fields(&second));
    assert_eq!((&second["expires_in"], &second["token_type"]), (&3600.into(), &"Bearer".into()));
    let api = Client::accounting(&simulator);
    let mut statuses = Vec::new();
    for answer in [&first, &second] {
        statuses.push(api.token(text(answer, "access_token")).get("/accounting/api/companies").await.status);
    }
    assert_eq!(statuses, [401, 200]);
    let [before, after] = [&first, &second].map(|answer| claims(text(answer, "access_token")));
    assert_eq!((&before["auth_time"], &before["scope"]), (&after["auth_time"], &after["scope"]));
    refused(&refresh(&client, "never issued").await.unwrap(), 400, "invalid_grant");
    refused(&refresh(&client, text(&second, "access_token")).await.unwrap(), 400, "invalid_grant");
}

async fn a_grant_ends_30_days_after_the_login_or_15_after_its_use() {
    for (life, uses, rest) in [
        (RefreshLife::Absolute, vec![14 * DAY, 14 * DAY, 2 * DAY - 1], 1),
        (RefreshLife::Sliding, vec![15 * DAY - 1; 4], 15 * DAY),
    ] {
        let (simulator, client) =
            started(login_client, |settings| settings.knobs.identity.refresh = life).await;
        let mut answer = log_in(&client, &ACCOUNTING_SCOPES).await;

        for seconds in uses {
            pass(&simulator, seconds);
            let next = refresh(&client, text(&answer, "refresh_token")).await.unwrap().ok();
            assert_ne!(next["refresh_token"], answer["refresh_token"]);
            answer = next;
        }
        pass(&simulator, rest);

        refused(&refresh(&client, text(&answer, "refresh_token")).await.unwrap(), 400, "invalid_grant");
    }
}

async fn lifetimes_are_what_their_knobs_say() {
    let (simulator, client) = started(login_client, |settings| {
        let knobs = &mut settings.knobs.identity;
        (knobs.code_seconds, knobs.access_seconds, knobs.absolute_seconds) = (10, 20, 30);
    })
    .await;
    let late = code(&client, &ACCOUNTING_SCOPES).await;
    let answer = log_in(&client, &ACCOUNTING_SCOPES).await;
    let api = Client::accounting(&simulator).token(text(&answer, "access_token"));
    let read = async || api.get("/accounting/api/companies").await.status;

    assert_eq!(answer["expires_in"], 20);
    assert_eq!(claims(text(&answer, "access_token"))["exp"], noon().seconds() + 20);
    pass(&simulator, 10);
    refused(&exchange(&client, &late).await.unwrap(), 400, "invalid_grant");
    pass(&simulator, 9);
    assert_eq!(read().await, 200);
    pass(&simulator, 1);
    assert_eq!(read().await, 401);
    pass(&simulator, 10);
    refused(&refresh(&client, text(&answer, "refresh_token")).await.unwrap(), 400, "invalid_grant");
}

async fn an_absolute_refresh_token_that_is_not_rotated_stays_the_same() {
    let (simulator, client) =
        started(login_client, |settings| settings.knobs.identity.rotate_absolute = false).await;
    let first = log_in(&client, &ACCOUNTING_SCOPES).await;
    let token = text(&first, "refresh_token");

    for _ in 0..2 {
        assert_eq!(refresh(&client, token).await.unwrap().ok()["refresh_token"], token);
    }
    simulator.provider().turn(|knobs| knobs.identity.omit_unrotated = true);

    assert_eq!(refresh(&client, token).await.unwrap().ok().get("refresh_token"), None);
}

async fn an_old_refresh_token_used_again_ends_the_whole_grant() {
    for (ends, left) in [(true, 400), (false, 200)] {
        let (simulator, client) = started(login_client, |settings| {
            settings.knobs.identity.refresh = RefreshLife::Sliding;
            settings.knobs.identity.reuse_ends_grant = ends;
        })
        .await;
        let first = log_in(&client, &ACCOUNTING_SCOPES).await;
        let second = refresh(&client, text(&first, "refresh_token")).await.unwrap().ok();

        refused(&refresh(&client, text(&first, "refresh_token")).await.unwrap(), 400, "invalid_grant");

        let api = Client::accounting(&simulator).token(text(&second, "access_token"));
        let read = api.get("/accounting/api/companies").await.status;
        let third = refresh(&client, text(&second, "refresh_token")).await.unwrap();
        assert_eq!((third.status, read), (left, if ends { 401 } else { 200 }), "ends: {ends}");
    }
}

async fn an_answer_that_is_lost_leaves_the_work_done() {
    let (simulator, client) =
        started(login_client, |settings| settings.knobs.identity.reuse_ends_grant = false).await;
    let (on, effect) = (IdentityEndpoint::Token, Effect::LoseAnswer);
    let rule = IdentityFault { on, effect, times: Some(1), after_work: false };
    let lose = || simulator.provider().turn(|knobs| knobs.identity.faults = vec![rule.clone()]);
    let answer = log_in(&client, &ACCOUNTING_SCOPES).await;
    let code = code(&client, &ACCOUNTING_SCOPES).await;

    lose();
    let lost = exchange(&client, &code).await;
    assert!(lost.is_err(), "{lost:?}");
    refused(&exchange(&client, &code).await.unwrap(), 400, "invalid_grant");

    lose();
    let lost = refresh(&client, text(&answer, "refresh_token")).await;
    assert!(lost.is_err(), "{lost:?}");
    refused(&refresh(&client, text(&answer, "refresh_token")).await.unwrap(), 400, "invalid_grant");
    // The lost tokens were issued all the same.
    let issued = simulator.provider().identity.issued();
    let live = issued.iter().filter(|token| token.kind == "refresh" && token.used.is_none()).count();
    assert_eq!(live, 2, "{issued:?}");
}

async fn tokens_of_one_simulator_are_unknown_to_another() {
    let [one, other] = [start(|_| {}).await, start(|_| {}).await];
    let mut answers = Vec::new();
    for simulator in [&one, &other] {
        answers.push(log_in(&login_client(simulator), &ACCOUNTING_SCOPES).await);
    }

    for (simulator, foreign) in [(&one, &answers[1]), (&other, &answers[0])] {
        let api = Client::accounting(simulator).token(text(foreign, "access_token"));
        assert_eq!(api.get("/accounting/api/companies").await.status, 401);
        let refresh = refresh(&login_client(simulator), text(foreign, "refresh_token")).await.unwrap();
        refused(&refresh, 400, "invalid_grant");
    }
}
