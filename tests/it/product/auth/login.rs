//! The browser played by hand: what it brings back, what strangers send, and what comes of either.

use std::io;
use std::sync::Arc;

use provider::auth::seal::Keyring;
use simulator::knobs::Pkce;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tributary::config;
use tributary::worker::grants::store::GrantStore;
use tributary::worker::grants::table::{GrantTable, Owners};
use tributary::worker::state::Tail;

use super::*;
use crate::product::simulator::receiver::is_guid;

crate::tests! {
    real a_login_puts_the_grant_in_the_topic_and_tells_the_person;
    real a_login_at_the_simulated_provider_needs_nobody;
    real a_page_that_waits_for_a_person_is_no_simulated_provider;
    real a_login_with_pkce_proves_who_began_it;
    real a_state_that_differs_cancels_the_login_before_the_code_is_used;
    real a_nonce_that_differs_keeps_the_tokens_out_of_the_topic;
    real a_refused_login_is_shown_to_the_person_and_the_terminal;
    real strangers_neither_end_a_login_nor_finish_it;
    real a_callback_without_a_state_cancels_the_login;
    real a_code_is_taken_by_hand_and_an_address_only_with_its_state;
    real a_key_that_is_not_the_workers_is_found_before_anybody_logs_in;
    real a_login_is_tried_with_one_call_to_the_api;
    real a_call_that_fails_is_told_and_the_grant_is_kept;
    real what_would_make_a_login_useless_or_harm_another_is_found_before_anybody_logs_in;
    plain a_key_that_is_missing_is_a_problem_of_the_configuration;
}

async fn a_login_puts_the_grant_in_the_topic_and_tells_the_person(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-login", |_| {}).await;
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

async fn a_login_at_the_simulated_provider_needs_nobody(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-simulated", |_| {}).await;

    let connector = scene.connector.display().to_string();
    let output = scene.auth(&["login", "accounting", "--connector", &connector, "--simulated"]).await;

    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let (code, grants) = scene.grants().await;
    assert_eq!((code, grants.len(), &grants[0]["state"]), (Some(0), 1, &json!("ready")), "{grants:?}");
    Ok(())
}

async fn a_page_that_waits_for_a_person_is_no_simulated_provider(shared: &'static Shared) -> Result<()> {
    // It shows the page whatever it is asked, as a real one would.
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

async fn a_login_with_pkce_proves_who_began_it(shared: &'static Shared) -> Result<()> {
    // PKCE is on by default.
    let scene = Scene::new(shared, "auth-pkce", |settings| {
        settings.knobs.identity.pkce = Pkce::Required;
    })
    .await;
    let login = scene.login(&[]);

    let callback = scene.enter(&login.address().await?).await;
    let (_, page) = scene.get(&callback).await;

    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    assert!(page.contains("Logged in"), "{page}");
    Ok(())
}

async fn a_state_that_differs_cancels_the_login_before_the_code_is_used(
    shared: &'static Shared,
) -> Result<()> {
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

async fn a_nonce_that_differs_keeps_the_tokens_out_of_the_topic(shared: &'static Shared) -> Result<()> {
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

async fn a_refused_login_is_shown_to_the_person_and_the_terminal(shared: &'static Shared) -> Result<()> {
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

/// Sends bytes to the callback's port and reads what comes back.
async fn raw(address: &Url, head: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", address.port().unwrap())).await?;
    // A head beyond every limit is refused while it is sent.
    stream.write_all(head.as_bytes()).await.ok();
    let mut answer = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap().ok();
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn strangers_neither_end_a_login_nor_finish_it(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-strangers", |_| {}).await;
    let login = scene.login(&[]);
    let address = login.address().await?;
    let callback = scene.enter(&address).await;
    let target = format!("{}?{}", callback.path(), callback.query().unwrap());
    let host = format!("localhost:{}", callback.port().unwrap());
    let long = format!("{}?state={}", callback.path(), "x".repeat(1 << 20));

    for (method, target, host, status) in [
        ("POST", target.as_str(), host.as_str(), Some("405")),
        ("PUT", &target, &host, Some("405")),
        ("GET", &target, "attacker.example", Some("421")),
        ("GET", &target, &format!("127.0.0.1:{}", callback.port().unwrap()), Some("421")),
        ("GET", "/favicon.ico", &host, Some("404")),
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
    // The second is told so, or comes when nobody listens any more.
    assert!(
        matches!(statuses, (Some(200), None | Some(409)) | (None | Some(409), Some(200))),
        "a callback is good once: {statuses:?}"
    );
    assert_eq!(scene.exchanges().len(), 1);
    assert!(TcpStream::connect(("127.0.0.1", callback.port().unwrap())).await.is_err());
    Ok(())
}

async fn a_callback_without_a_state_cancels_the_login(shared: &'static Shared) -> Result<()> {
    let scene = Scene::new(shared, "auth-stateless", |_| {}).await;
    let login = scene.login(&[]);
    let mut callback = scene.enter(&login.address().await?).await;
    let code = parameter(&callback, "code");
    callback.set_query(Some(&format!("code={code}")));

    let (status, page) = scene.get(&callback).await;

    assert_eq!(login.code().await?, Some(1), "{}", login.said());
    assert!(status == 400 && page.contains("Not trusted"), "{status} {page}");
    assert_eq!(scene.exchanges(), Vec::<Value>::new());
    Ok(())
}

async fn a_code_is_taken_by_hand_and_an_address_only_with_its_state(shared: &'static Shared) -> Result<()> {
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

    // An address of our own: the browser ends at a place where nobody listens, and its address says all.
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

async fn a_key_that_is_not_the_workers_is_found_before_anybody_logs_in(
    shared: &'static Shared,
) -> Result<()> {
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
    // The key is lost for good: whoever says so may begin anew.
    let login = scene.login(&["--new-key"]);
    let callback = scene.enter(&login.address().await?).await;
    scene.get(&callback).await;
    assert_eq!(login.code().await?, Some(0), "{}", login.said());
    assert_eq!(scene.grants().await.0, Some(0));
    Ok(())
}

/// Logs in; what the command said, and what was asked of the APIs.
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

async fn a_login_is_tried_with_one_call_to_the_api(shared: &'static Shared) -> Result<()> {
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

async fn a_call_that_fails_is_told_and_the_grant_is_kept(shared: &'static Shared) -> Result<()> {
    let wrong = [("provider.subscription.key", "a-key-that-nobody-has-registered")];
    let nowhere = [("provider.base.url", "http://127.0.0.1:1")];
    let narrow = [("oauth.scopes", "openid,offline_access,SVC.ES.Webhooks")];

    for (name, settings, words) in [
        (
            "auth-call-key",
            &wrong,
            "the provider refuses the subscription key: check provider.subscription.key",
        ),
        ("auth-call-away", &nowhere, "reach the provider"),
        ("auth-call-scope", &narrow, "the provider forbids it"),
    ] {
        let scene = Scene::with(shared, name, settings, |_| {}).await;

        let (said, _) = called(&scene, &[]).await?;

        let warning = said.lines().find(|line| line.starts_with("warning: the grant is kept, but "));
        assert!(warning.is_some_and(|line| line.contains(words)), "{name}: {said}");
        let (code, grants) = scene.grants().await;
        assert_eq!((code, &grants[0]["state"]), (Some(0), &json!("ready")), "{grants:?}");
    }
    Ok(())
}

async fn a_key_that_is_missing_is_a_problem_of_the_configuration() {
    let directory = run_directory::create("auth-no-key").unwrap();
    let config = directory.join("worker.properties");
    // Nothing listens there: without a key nobody is asked.
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

async fn what_would_make_a_login_useless_or_harm_another_is_found_before_anybody_logs_in(
    shared: &'static Shared,
) -> Result<()> {
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
    refused("another origin", &["accounting.oauth.grant", "good for http://127.0.0.1", "--replace"]).await;
    fs::write(&scene.connector, &connector).unwrap();

    let ahead = format!("grant.encryption.key={}\ngrant.encryption.key.previous=", "k".repeat(40));
    fs::write(&scene.config, config.replace("grant.encryption.key=", &ahead)).unwrap();
    refused("a key that no worker has yet", &["grant.encryption.key.previous", "auth status"]).await;
    fs::write(&scene.config, &config).unwrap();

    let worker = config::Worker::load(Some(&scene.config), []).unwrap().config;
    let book = Tail::<GrantTable>::follow(&worker.kafka, &worker.topics.grant.name, 1).await.unwrap();
    let keys = Arc::new(Keyring::new(&ENCRYPTION_KEY.into(), None, &worker.group.id).unwrap());
    let theirs = Owners { group: "theirs".into(), work_topic: "their-work".into() };
    GrantStore::new(&worker.kafka, book, keys).claim(&theirs, false, LIMIT).await.unwrap();
    refused("a topic of others", &["grant.storage.topic", "theirs", "their-work"]).await;
    Ok(())
}
