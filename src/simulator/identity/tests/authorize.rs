//! Authorization requests, the login page, and the way back.

use super::*;
use crate::simulator::knobs::Pkce;

#[tokio::test]
async fn a_login_through_the_page_gives_a_code_and_the_state_back() {
    let simulated = Simulated::new();

    let page = simulated.authorize(&request(ACCOUNTING)).await;
    let (action, ticket) = form(&page.text);
    let pressed = simulated.post(&action, FORM, encode(&[("ticket", &ticket)])).await;

    assert_eq!((page.status, page.text.matches("<button").count()), (200, 1));
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert!(!page.text.contains("<script"));
    let (url, parameters) = pressed.location();
    assert!(url.as_str().starts_with("https://client.example/callback?code="));
    assert_eq!(parameters.keys().collect::<Vec<_>>(), ["code", "state"]);
    assert_eq!(parameters["state"], "a state");
    assert_eq!(simulated.redeem(&parameters["code"]).await.status, 200);
}

#[tokio::test]
async fn the_button_works_once_and_not_for_ever() {
    let simulated = Simulated::new();
    let tickets = [
        form(&simulated.authorize(&request(ACCOUNTING)).await.text).1,
        form(&simulated.authorize(&request(ACCOUNTING)).await.text).1,
    ];

    let first = simulated.post(LOGIN, FORM, encode(&[("ticket", &tickets[0])])).await;
    let again = simulated.post(LOGIN, FORM, encode(&[("ticket", &tickets[0])])).await;
    simulated.advance(601);
    let late = simulated.post(LOGIN, FORM, encode(&[("ticket", &tickets[1])])).await;
    let unknown = simulated.post(LOGIN, FORM, "ticket=%ff").await;
    let huge = simulated.post(LOGIN, FORM, "x".repeat(2 << 20)).await;

    assert_eq!(first.status, 302);
    assert_eq!([again.status, late.status, unknown.status, huge.status], [400; 4]);
}

#[tokio::test]
async fn errors_about_client_or_redirect_are_shown_and_all_others_sent_back() {
    let simulated = Simulated::new();
    let good = request(ACCOUNTING);
    let local = "http://127.0.0.1:8080/callback";

    for parameters in [
        changed(&good, "client_id", None),
        changed(&good, "client_id", Some("somebody")),
        changed(&good, "redirect_uri", None),
        changed(&good, "redirect_uri", Some(local)),
        changed(&good, "redirect_uri", Some("http://client.example/callback")),
        [&good[..], &[("redirect_uri", "https://evil.example/")]].concat(),
        [&good[..], &[("client_id", "simulated-client")]].concat(),
    ] {
        let answer = simulated.authorize(&parameters).await;
        assert_eq!(answer.status, 400, "{parameters:?}");
        assert!(answer.headers.get("location").is_none(), "{parameters:?}");
    }
    for (name, value, error) in [
        ("response_type", None, "invalid_request"),
        ("response_type", Some("token"), "unsupported_response_type"),
        ("response_type", Some("code id_token"), "unsupported_response_type"),
        ("response_mode", Some("fragment"), "invalid_request"),
        ("scope", None, "invalid_request"),
        ("scope", Some(" "), "invalid_scope"),
        ("scope", Some("openid everything"), "invalid_scope"),
        ("scope", Some("openid+offline_access"), "invalid_scope"),
        ("nonce", None, "invalid_request"),
        ("nonce", Some(""), "invalid_request"),
    ] {
        let (url, parameters) = simulated.authorize(&changed(&good, name, value)).await.location();
        assert_eq!(url.host_str(), Some("client.example"));
        assert_eq!((&*parameters["error"], &*parameters["state"]), (error, "a state"), "{name} {value:?}");
        assert!(!parameters["error_description"].is_empty() && !parameters.contains_key("code"));
    }
    let (_, parameters) = simulated.authorize(&changed(&good, "state", None)).await.location();
    assert_eq!(parameters["error"], "invalid_request");
    assert!(!parameters.contains_key("state"));
    assert!(simulated.0.identity.issued().is_empty());
}

#[tokio::test]
async fn localhost_is_accepted_and_a_query_of_the_redirect_stays() {
    let simulated = Simulated::new();
    let good = [&request(ACCOUNTING)[..], &[("auto", "")]].concat();

    let redirect = "http://localhost:4711/callback?tenant=7";
    let (url, parameters) =
        simulated.authorize(&changed(&good, "redirect_uri", Some(redirect))).await.location();

    assert!(url.as_str().starts_with("http://localhost:4711/callback?tenant=7&code="));
    let exchange = exchange(&parameters["code"]);
    assert_eq!(simulated.token(&changed(&exchange, "redirect_uri", Some(redirect))).await.status, 200);
}

#[tokio::test]
async fn only_registered_redirects_are_used_where_any_is_registered() {
    let simulated = Simulated::with(|settings| {
        settings.client.redirect_uris = vec!["https://client.example/other".into()]
    });
    let good = request(ACCOUNTING);

    let other = simulated.authorize(&good).await;
    let registered =
        simulated.authorize(&changed(&good, "redirect_uri", Some("https://client.example/other"))).await;

    assert_eq!((other.status, registered.status), (400, 200));
}

#[tokio::test]
async fn an_out_of_band_login_shows_the_code_on_a_page() {
    let simulated = Simulated::new();
    let band = "urn:ietf:wg:oauth:2.0:oob";
    let good = [&changed(&request(ACCOUNTING), "redirect_uri", Some(band))[..], &[("auto", "1")]].concat();

    let page = simulated.authorize(&good).await;
    let refused = simulated.authorize(&changed(&good, "scope", Some("all"))).await;

    let code = page.text.rsplit_once("<code>").unwrap().1.split_once('<').unwrap().0;
    assert_eq!(page.status, 200);
    let exchange = exchange(code);
    assert_eq!(simulated.token(&changed(&exchange, "redirect_uri", Some(band))).await.status, 200);
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("invalid_scope"));
}

#[tokio::test]
async fn a_refused_login_tells_the_client_why() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| knobs.refuse_login = Some("the user said no & left".into()));

    let (_, at_once) =
        simulated.authorize(&[&request(PAYROLL)[..], &[("auto", "1")]].concat()).await.location();
    let (action, ticket) = form(&simulated.authorize(&request(PAYROLL)).await.text);
    let (_, pressed) = simulated.post(&action, FORM, encode(&[("ticket", &ticket)])).await.location();

    assert_eq!(at_once, pressed);
    assert_eq!(at_once["error"], "access_denied");
    assert_eq!(at_once["error_description"], "the user said no & left");
    assert_eq!(at_once["state"], "a state");
    assert!(!at_once.contains_key("code"));
}

#[tokio::test]
async fn nothing_a_client_sends_becomes_part_of_the_page() {
    let simulated = Simulated::new();
    let good = request(ACCOUNTING);
    let nasty = "\"><script>alert(1)</script>";
    let redirect = format!("https://client.example/{nasty}");

    for parameters in [
        changed(&good, "state", Some(nasty)),
        changed(&good, "nonce", Some(nasty)),
        changed(&good, "redirect_uri", Some(&redirect)),
        changed(&good, "redirect_uri", Some(nasty)),
        changed(&good, "client_id", Some(nasty)),
    ] {
        let page = simulated.authorize(&parameters).await;
        assert!(page.text.contains("<main>") && !page.text.contains("<script"), "{parameters:?}");
    }
    let page = simulated.authorize(&changed(&good, "redirect_uri", Some(&redirect))).await;
    assert!(page.text.contains("&quot;&gt;&lt;script&gt;"), "{}", page.text);
}

#[tokio::test]
async fn odd_queries_get_a_page() {
    let simulated = Simulated::new();

    for query in
        ["", "%", "%ff=%fe", "client_id", &format!("state={}", "x".repeat(20_000)), &"&".repeat(9_000)]
    {
        let answer = simulated.get(&format!("{AUTHORIZE}?{query}"), &[]).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    assert_eq!(simulated.get(AUTHORIZE, &[]).await.status, 400);
}

#[tokio::test]
async fn a_challenge_binds_the_code_to_its_verifier() {
    const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let simulated = Simulated::new();
    simulated.turn(|knobs| knobs.pkce = Pkce::Required);
    let bare = [&request(ACCOUNTING)[..], &[("auto", "1")]].concat();
    let good = [&bare[..], &[("code_challenge", CHALLENGE), ("code_challenge_method", "S256")]].concat();

    let (_, without) = simulated.authorize(&bare).await.location();
    let mut outcomes = Vec::new();
    for verifier in [Some(VERIFIER), Some(CHALLENGE), None] {
        let (_, parameters) = simulated.authorize(&good).await.location();
        let exchange = exchange(&parameters["code"]);
        outcomes.push(simulated.token(&changed(&exchange, "code_verifier", verifier)).await.outcome());
    }

    assert_eq!(without["error"], "invalid_request");
    let refused = || (400, "invalid_grant".to_owned());
    assert_eq!(outcomes, [(200, String::new()), refused(), refused()]);
}

const FORM: &str = "application/x-www-form-urlencoded";
const LOGIN: &str = "/auth/core/login";

/// Where the page's form posts to, and its ticket.
fn form(page: &str) -> (String, String) {
    let value = |before: &str| {
        let rest = page.split_once(before).unwrap_or_else(|| panic!("no {before} in {page}")).1;
        rest.split_once('"').unwrap().0.to_owned()
    };
    assert!(page.contains("<form method=\"post\""));
    (value("action=\""), value("name=\"ticket\" value=\""))
}
