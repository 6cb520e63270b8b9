//! Logins with a scripted browser: valid and invalid callbacks, foreign requests, and their results.

use std::io;
use std::sync::Arc;

use provider::auth::seal::Keyring;
use simulator::knobs::Pkce;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tributary::{
    config,
    logins::{
        store::GrantStore,
        table::{GrantTable, TopicOwners},
    },
    state::Table,
};

use super::*;
use crate::product::simulator::receiver::is_guid;

crate::tests! {
    real a_login_stores_the_grant_and_confirms_it;
    real a_simulated_login_needs_no_person;
    real simulated_login_fails_at_a_page_that_waits_for_a_person;
    real another_state_cancels_the_login_before_the_exchange;
    real another_nonce_keeps_the_tokens_out_of_the_topic;
    real a_rejected_login_is_shown_in_browser_and_terminal;
    real foreign_requests_neither_end_nor_finish_a_login;
    real a_code_can_be_pasted_and_a_url_needs_its_state;
    real another_key_than_the_workers_is_found_before_a_login;
    real a_login_is_tested_with_one_api_call;
    real a_failed_test_call_is_reported_and_the_grant_kept;
    real useless_and_harmful_logins_are_refused_before_they_start;
    plain a_missing_key_is_a_configuration_error;
}

async fn a_login_stores_the_grant_and_confirms_it(shared: &'static Shared) -> Result<()> {
    // A provider that requires PKCE, which is on by default.
    let scene = Scene::new(shared, "auth-login", |settings| {
        settings.knobs.identity.pkce = Pkce::Required;
    })
    .await;
    let login = scene.login(&[]);

    let address = login.address().await?;
    let callback = scene.enter(&address).await;
    let (status, page) = scene.get(&callback).await;

    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    assert!(status == 200 && page.contains("Logged in"), "{status} {page}");
    assert_eq!(callback.host_str(), Some("localhost"));
    let [state, nonce] = ["state", "nonce"].map(|name| parameter(&address, name));
    assert_ne!(state, nonce);
    assert!([state, nonce].into_iter().all(|text| is_guid(&text.into())));
    let (code, grants) = scene.grants().await;
    assert_eq!((code, grants.len()), (Some(0), 1), "{grants:?}");
    let grant = &grants[0];
    assert_eq!((&grant["grant"], &grant["state"]), (&json!("accounting"), &json!("ready")), "{grant}");
    assert_eq!(grant["scopes"].as_array().unwrap().len(), 6, "{grant}");
    assert!(page.contains(grant["who"].as_str().unwrap()), "{page}");
    assert_eq!(scene.exchanges().len(), 1, "{:?}", scene.exchanges());
    assert_eq!(scene.leaks(&login), Vec::<String>::new());
    Ok(())
}

async fn a_simulated_login_needs_no_person(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-simulated", |_| {}).await;

    let connector = scene.connector.display().to_string();
    let output = scene.auth(&["login", "accounting", "--connector", &connector, "--simulated"]).await;

    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let (code, grants) = scene.grants().await;
    assert_eq!((code, grants.len(), &grants[0]["state"]), (Some(0), 1, &json!("ready")), "{grants:?}");
    Ok(())
}

async fn simulated_login_fails_at_a_page_that_waits_for_a_person(shared: &'static Shared) -> Result<()> {
    // It shows the page for any request, as a real provider would.
    let scene = Scene::new(shared, "auth-unlike", |_| {}).await;
    let page = axum::Router::new().fallback(async || "log in here");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, page).await });
    let mut connector: Value = serde_json::from_slice(&std::fs::read(&scene.connector).unwrap()).unwrap();
    connector["config"]["provider.auth.url"] = json!(elsewhere);
    std::fs::write(&scene.connector, connector.to_string()).unwrap();

    let file = scene.connector.display().to_string();
    let output = scene.auth(&["login", "accounting", "--connector", &file, "--simulated"]).await;

    serving.abort();
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("waits for a person"), "{}", stderr(&output));
    Ok(())
}

async fn another_state_cancels_the_login_before_the_exchange(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-state", |settings| settings.knobs.identity.bend_state = true).await;
    let login = scene.login(&[]);

    let callback = scene.enter(&login.address().await?).await;
    let (status, page) = scene.get(&callback).await;

    assert_eq!(login.code().await?, Some(1), "{}", login.said());
    assert!(status == 400 && page.contains("Not trusted"), "{status} {page}");
    assert_eq!(scene.exchanges(), Vec::<Value>::new());
    assert_eq!(scene.grants().await, (Some(0), Vec::new()));
    Ok(())
}

async fn another_nonce_keeps_the_tokens_out_of_the_topic(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-nonce", |settings| settings.knobs.identity.bend_nonce = true).await;
    let login = scene.login(&[]);

    let callback = scene.enter(&login.address().await?).await;
    let (status, page) = scene.get(&callback).await;

    assert_eq!(login.code().await?, Some(1), "{}", login.said());
    assert!(
        status == 502 && !page.contains("Logged in") && page.contains("identity token"),
        "{status} {page}"
    );
    assert_eq!(scene.grants().await, (Some(0), Vec::new()));
    assert_eq!(scene.leaks(&login), Vec::<String>::new());
    Ok(())
}

async fn a_rejected_login_is_shown_in_browser_and_terminal(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-refused", |settings| {
        settings.knobs.identity.refuse_login = Some("<b>no licence</b>\u{7}".to_owned());
    })
    .await;
    let login = scene.login(&[]);

    let callback = scene.enter(&login.address().await?).await;
    let (_, page) = scene.get(&callback).await;

    assert_eq!(login.code().await?, Some(1), "{}", login.said());
    assert!(page.contains("access_denied") && page.contains("&lt;b&gt;no licence"), "{page}");
    assert!(!page.contains("<b>no licence"), "{page}");
    assert!(login.said().contains("no licence") && !login.said().contains('\u{7}'), "{}", login.said());
    assert_eq!(scene.exchanges(), Vec::<Value>::new());
    Ok(())
}

/// Sends bytes to the callback's port and returns the response.
async fn raw(address: &Url, head: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", address.port().unwrap())).await?;
    // An oversized head is rejected while it is sent.
    stream.write_all(head.as_bytes()).await.ok();
    let mut answer = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap().ok();
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn foreign_requests_neither_end_nor_finish_a_login(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-strangers", |_| {}).await;
    let login = scene.login(&[]);
    let address = login.address().await?;
    let callback = scene.enter(&address).await;
    let target = format!("{}?{}", callback.path(), callback.query().unwrap());
    let port = callback.port().unwrap();
    let host = format!("localhost:{port}");
    let long = format!("{}?state={}", callback.path(), "x".repeat(1 << 20));

    for (method, target, host, status) in [
        ("POST", target.as_str(), host.as_str(), Some("405")),
        ("PUT", &target, &host, Some("405")),
        ("HEAD", &target, &host, Some("405")),
        ("OPTIONS", &target, &host, Some("405")),
        ("GET", &target, "attacker.example", Some("421")),
        ("GET", &target, &format!("127.0.0.1:{port}"), Some("421")),
        ("GET", &target, &format!("localhost.attacker.example:{port}"), Some("421")),
        ("GET", &target, "localhost", Some("421")),
        ("GET", &target, &format!("localhost:{}", port.wrapping_add(1)), Some("421")),
        ("GET", "/favicon.ico", &host, Some("404")),
        ("GET", "/", &host, Some("404")),
        ("GET", &format!("/{target}"), &host, Some("404")),
        ("GET", &target.replacen('?', "/?", 1), &host, Some("404")),
        ("GET", &target.replacen(callback.path(), &callback.path().to_uppercase(), 1), &host, Some("404")),
        ("GET", &format!("/elsewhere?{}", callback.query().unwrap()), &host, Some("404")),
        ("GET", &long, &host, None),
    ] {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let answer = raw(&callback, &head).await.unwrap();
        let shown: String = target.chars().take(80).collect();
        if let Some(status) = status {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {shown} {host}: {answer}");
        }
        assert!(!answer.contains("Logged in"), "{method} {shown} {host}: {answer}");
    }
    assert!(login.process.ended().is_none() && scene.exchanges().is_empty(), "{}", login.said());

    let status = async || {
        let answer = scene.http.get(callback.clone()).send().await;
        answer.map(|answer| answer.status().as_u16()).ok()
    };
    let statuses = tokio::join!(status(), status());

    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    // The second callback is rejected, or comes after the listener has closed.
    assert!(
        matches!(statuses, (Some(200), None | Some(409)) | (None | Some(409), Some(200))),
        "a callback is good once: {statuses:?}"
    );
    assert_eq!(scene.exchanges().len(), 1);
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    Ok(())
}

async fn a_code_can_be_pasted_and_a_url_needs_its_state(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-paste", |_| {}).await;

    // Out of band: the provider shows the code.
    let login = scene.login(&["--paste"]);
    let mut address = login.address().await?;
    address.query_pairs_mut().append_pair("auto", "1");
    let (_, page) = scene.get(&address).await;
    let code = page.split_once("<code>").unwrap().1.split_once("</code>").unwrap().0;
    login.process.write_line("")?;
    login.process.write_line(code)?;
    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    assert_eq!(scene.leaks(&login), Vec::<String>::new());
    drop(login);

    // A redirect URI without a listener: the browser ends there, and its URL contains the code.
    let redirect = [("oauth.redirect.uri", "https://client.example/back")];
    for bent in [true, false] {
        let scene = Scene::with(shared, "auth-paste-address", &redirect, |settings| {
            settings.knobs.identity.bend_state = bent;
        })
        .await;
        let login = scene.login(&[]);
        let callback = scene.enter(&login.address().await?).await;
        login.process.write_line(callback.as_str())?;

        assert_eq!(login.code().await?, Some(i32::from(bent)), "{}", login.said());
        assert_eq!(scene.exchanges().len(), usize::from(!bent));
    }
    Ok(())
}

async fn another_key_than_the_workers_is_found_before_a_login(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-key", |_| {}).await;
    let login = scene.login(&[]);
    let callback = scene.enter(&login.address().await?).await;
    scene.get(&callback).await;
    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    drop(login);
    let other = fs::read_to_string(&scene.config).unwrap().replace(ENCRYPTION_KEY, &"k".repeat(40));
    fs::write(&scene.config, other).unwrap();

    let login = scene.login(&[]);

    assert_eq!(login.code().await?, Some(2), "{}", login.said());
    assert!(
        login.said().contains("grant.encryption.key") && !login.said().contains("  http"),
        "{}",
        login.said()
    );
    let (code, grants) = scene.grants().await;
    assert_eq!((code, &grants[0]["state"]), (Some(1), &json!("unreadable")), "{grants:?}");
    drop(login);
    // The old key is lost: `--new-key` starts over.
    let login = scene.login(&["--new-key"]);
    let callback = scene.enter(&login.address().await?).await;
    scene.get(&callback).await;
    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    assert_eq!(scene.grants().await.0, Some(0));
    Ok(())
}

/// Logs in. Returns the output, and the requests to the APIs.
async fn called(scene: &Scene, arguments: &[&str]) -> Result<(String, Vec<String>)> {
    let before = scene.simulator.provider().gateway.request_count();
    let login = scene.login(arguments);
    let callback = scene.enter(&login.address().await?).await;
    scene.get(&callback).await;
    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    assert_eq!(scene.leaks(&login), Vec::<String>::new());
    let requests = scene.simulator.provider().gateway.requests(before, usize::MAX);
    Ok((login.said(), requests.into_iter().map(|(_, request)| request.target).collect()))
}

async fn a_login_is_tested_with_one_api_call(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-call", |_| {}).await;

    let (said, requests) = called(&scene, &[]).await?;
    let (silent, none) = called(&scene, &["--no-call"]).await?;

    assert!(said.contains("the accounting API answers: its first company is "), "{said}");
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert!(request.starts_with("/accounting/api/companies?") && request.contains("pageSize=1"), "{request}");
    assert!(!silent.contains("the accounting API"), "{silent}");
    assert_eq!(none, Vec::<String>::new());
    Ok(())
}

async fn a_failed_test_call_is_reported_and_the_grant_kept(shared: &'static Shared) -> Result<()> {
    let wrong = [("provider.subscription.key", "a-key-that-is-not-registered")];
    let nowhere = [("provider.base.url", "http://127.0.0.1:1")];
    let narrow = [("oauth.scopes", "openid,offline_access,SVC.ES.Webhooks")];

    for (name, settings, words) in [
        (
            "auth-call-key",
            &wrong,
            "the provider rejected the subscription key: check provider.subscription.key",
        ),
        ("auth-call-away", &nowhere, "cannot reach the provider"),
        ("auth-call-scope", &narrow, "the provider forbids the request"),
    ] {
        let scene = Scene::with(shared, name, settings, |_| {}).await;

        let (said, _) = called(&scene, &[]).await?;

        let warning = said.lines().find(|line| line.starts_with("warning: the grant is stored, but "));
        assert!(warning.is_some_and(|line| line.contains(words)), "{name}: {said}");
        let (code, grants) = scene.grants().await;
        assert_eq!((code, &grants[0]["state"]), (Some(0), &json!("ready")), "{grants:?}");
    }
    Ok(())
}

async fn a_missing_key_is_a_configuration_error() {
    let directory = run_directory::create("auth-no-key").unwrap();
    let config = directory.join("worker.properties");
    // Nothing listens there: without a key, nothing is contacted.
    fs::write(
        &config,
        "bootstrap.servers=127.0.0.1:1\ngroup.id=g\nlisteners=http://127.0.0.1:0\n\
        state.dir=unused\nvalue.converter.schema.registry.url=http://127.0.0.1:1\n",
    )
    .unwrap();

    let config = config.display().to_string();
    let output = tributary(&["auth", "logout", "accounting", "--config", &config], &[]).await;

    let said = crate::support::command::stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("grant.encryption.key"), "{said}");
}

async fn useless_and_harmful_logins_are_refused_before_they_start(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-useless", |_| {}).await;
    scene.login(&[]).finish(&scene.http).await?;
    let (config, connector) =
        (fs::read_to_string(&scene.config).unwrap(), fs::read_to_string(&scene.connector).unwrap());
    let refused = async |what: &str, expected: &[&str]| {
        let login = scene.login(&[]);
        let code = login.code().await.unwrap();
        let said = login.said();
        assert_eq!(code, Some(2), "{what}: {said}");
        assert!(expected.iter().all(|word| said.contains(word)), "{what}: {said}");
        assert!(!said.contains("  http"), "{what}: {said}");
    };

    fs::write(&scene.connector, connector.replace("simulated-client", "another-client")).unwrap();
    refused("another client", &["accounting.oauth.grant", "simulated-client", "--replace"]).await;
    fs::write(&scene.connector, &connector).unwrap();

    let mut elsewhere: Value = serde_json::from_str(&connector).unwrap();
    elsewhere["config"]["provider.base.url"] = json!("https://api.example.com");
    fs::write(&scene.connector, elsewhere.to_string()).unwrap();
    refused("another origin", &["accounting.oauth.grant", "valid for http://127.0.0.1", "--replace"]).await;
    fs::write(&scene.connector, &connector).unwrap();

    let ahead = format!("grant.encryption.key={}\ngrant.encryption.key.previous=", "k".repeat(40));
    fs::write(&scene.config, config.replace("grant.encryption.key=", &ahead)).unwrap();
    refused("a key that no worker has yet", &["grant.encryption.key.previous", "auth status"]).await;
    fs::write(&scene.config, &config).unwrap();

    let worker = config::Worker::load(Some(&scene.config), []).unwrap().config;
    let book = Table::<GrantTable>::follow(&worker.kafka, &worker.topics.grant.name, 1).await.unwrap();
    let keys = Arc::new(Keyring::new(&ENCRYPTION_KEY.into(), None, &worker.group.id).unwrap());
    let theirs = TopicOwners { group: "theirs".into(), work_topic: "their-work".into() };
    GrantStore::new(&worker.kafka, book, keys).claim(&theirs, false, LIMIT).await.unwrap();
    refused("a topic of others", &["grant.storage.topic", "theirs", "their-work"]).await;
    Ok(())
}
