use std::{fs, panic, sync::mpsc, thread};

use axum::{Json, Router, http::HeaderMap, response::Redirect, routing::post};

use super::*;

fn jwt(claims: &str) -> String {
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}

fn take(settings: &[(&'static str, &'static str)]) -> Result<Option<TokenSource>, Error> {
    let mut user: BTreeMap<&str, (&str, &str)> =
        settings.iter().map(|(key, value)| (*key, (*key, *value))).collect();
    let source = TokenSource::take("producer", &mut user);
    assert!(user.keys().all(|key| !key.starts_with("sasl.oauthbearer.")), "librdkafka would refuse {user:?}");
    source
}

/// Serves one router on a free port until the test ends.
fn serve(router: Router) -> Url {
    let (address, addressed) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    Url::parse(&format!("http://{}/token", addressed.recv().unwrap())).unwrap()
}

fn endpoint(url: Url) -> TokenSource {
    TokenSource::Endpoint(TokenEndpoint {
        url,
        client_id: "worker".into(),
        client_secret: "hunter2".into(),
        scope: Some("kafka".into()),
        ca: None,
    })
}

#[test]
fn other_mechanisms_need_no_token() {
    assert!(take(&[("sasl.mechanisms", "SCRAM-SHA-512")]).unwrap().is_none());
    assert!(take(&[]).unwrap().is_none());
}

#[test]
fn missing_or_bad_endpoint_is_an_error_that_names_the_key() {
    const KEY: &str = "sasl.oauthbearer.token.endpoint.url";
    for settings in [
        vec![("sasl.mechanisms", "OAUTHBEARER")],
        vec![("sasl.mechanisms", "OAUTHBEARER"), (KEY, "ftp://issuer/token")],
        vec![("sasl.mechanisms", "OAUTHBEARER"), (KEY, "issuer")],
    ] {
        let error = take(&settings).unwrap_err().to_string();

        assert!(error.contains(KEY) && error.contains("file:///path"), "{error}");
    }
}

#[test]
fn endpoint_without_credentials_is_refused() {
    let settings =
        [("sasl.mechanisms", "OAUTHBEARER"), ("sasl.oauthbearer.token.endpoint.url", "https://issuer/token")];

    let error = take(&settings).unwrap_err().to_string();

    assert!(error.contains("sasl.oauthbearer.client.id"), "{error}");
}

#[test]
fn grant_sends_credentials_and_scope_and_honors_expires_in() {
    let token = jwt(r#"{"sub":"the-worker","exp":1}"#);
    let answer = Arc::new(token.clone());
    let router = Router::new().route(
        "/token",
        post(move |headers: HeaderMap, body: String| async move {
            let allowed = headers["authorization"] == "Basic d29ya2VyOmh1bnRlcjI="
                && body == "grant_type=client_credentials&scope=kafka";
            let token = if allowed { answer.as_str() } else { "" };
            Json(serde_json::json!({ "access_token": token, "expires_in": 300 }))
        }),
    );

    let fetched = endpoint(serve(router)).fetch().unwrap();

    assert_eq!(fetched.token, token);
    assert_eq!(fetched.principal_name, "the-worker");
    let left = fetched.lifetime_ms - now_ms();
    assert!((200_000..=300_000).contains(&left), "{left} ms");
}

#[test]
fn refusal_or_redirect_is_an_error_without_the_secret() {
    let router = Router::new().route("/token", post(|| async { Redirect::temporary("/elsewhere") }));

    let Err(error) = endpoint(serve(router)).fetch() else { panic!("a redirect is no token") };

    let text = format!("{error} {error:?}");
    assert!(text.contains("307"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn opaque_token_needs_expires_in() {
    let grant =
        |expires_in: Option<serde_json::Value>| TokenResponse { access_token: "opaque".into(), expires_in };

    assert_eq!(
        grant(Some(60.into())).into_token("worker").map(|token| token.principal_name).ok().as_deref(),
        Some("worker")
    );
    assert!(grant(None).into_token("worker").is_err());
}

#[test]
fn jwt_file_is_read_each_time() {
    let path = std::env::temp_dir().join(format!("tributary-token-{}", std::process::id()));
    let source = TokenSource::File(path.clone());
    fs::write(&path, jwt(r#"{"sub":"first","exp":4000000000}"#) + "\n").unwrap();
    let first = source.fetch().unwrap();

    fs::write(&path, jwt(r#"{"sub":"second","exp":4000000001.5}"#)).unwrap();
    let second = source.fetch().unwrap();

    fs::remove_file(&path).unwrap();
    assert_eq!((first.principal_name.as_str(), first.lifetime_ms), ("first", 4_000_000_000_000));
    assert_eq!((second.principal_name.as_str(), second.lifetime_ms), ("second", 4_000_000_001_500));
    assert!(!first.token.ends_with('\n'));
    assert!(source.fetch().is_err(), "the file is gone");
}

#[test]
fn expires_in_may_be_text_or_huge_but_must_be_seconds() {
    let lifetime = |json: &str| {
        let grant: TokenResponse =
            serde_json::from_str(&format!(r#"{{"access_token":"opaque","expires_in":{json}}}"#)).unwrap();
        grant.into_token("worker").map(|token| token.lifetime_ms - now_ms())
    };

    assert!((50_000..=60_000).contains(&lifetime("\"60\"").unwrap()));
    assert!(lifetime("18446744073709551615").unwrap() > 1 << 60);
    assert!(lifetime("\"soon\"").unwrap_err().contains("whole number of seconds"));
}

#[test]
fn cached_token_is_returned_while_the_next_is_fetched() {
    let router = Router::new().route("/token", post(|| async { std::future::pending::<String>().await }));
    let tokens = Arc::new(TokenCache::new(endpoint(serve(router))));
    assert!(tokens.current().is_none());
    let token = |lifetime_ms| CachedToken { text: "t".into(), principal_name: "p".into(), lifetime_ms };
    *tokens.last.lock() = Some(token(now_ms() + 60_000));
    let fetcher = Arc::clone(&tokens);
    thread::spawn(move || fetcher.next());
    while !tokens.fetching.load(Ordering::Acquire) {
        thread::yield_now();
    }

    let current = tokens.current();

    assert_eq!(current.map(|token| token.principal_name).as_deref(), Some("p"));
    assert!(tokens.next().is_none(), "one request at a time");
    *tokens.last.lock() = Some(token(now_ms() - 1));
    assert!(tokens.current().is_none(), "it has ended");
}

#[test]
fn fetch_that_panics_does_not_stop_later_ones() {
    let fetching = AtomicBool::new(false);

    let panicked = panic::catch_unwind(|| {
        let _running = RunningFetch::begin(&fetching).unwrap();
        assert!(RunningFetch::begin(&fetching).is_none(), "one at a time");
        panic!("a bug");
    });

    assert!(panicked.is_err() && RunningFetch::begin(&fetching).is_some());
}

#[test]
fn authorities_are_read_once_when_a_client_is_created() {
    let directory = std::env::temp_dir().join(format!("tributary-authorities-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("ca.pem");
    let source = |ca: &AuthorityFile| {
        let TokenSource::Endpoint(endpoint) = endpoint(Url::parse("https://issuer/token").unwrap()) else {
            panic!("it is an endpoint")
        };
        TokenSource::Endpoint(TokenEndpoint { ca: Some(ca.clone()), ..endpoint })
    };
    let ca = AuthorityFile::new(path.display().to_string());

    // The client is created all the same; the fetch returns the error.
    let tokens = TokenCache::new(source(&ca));
    let error = tokens.next().unwrap().map(drop).unwrap_err().to_string();
    assert!(error.contains("ca.pem must be a PEM file of certificates"), "{error}");
    fs::write(&path, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n").unwrap();
    TokenCache::new(source(&ca));
    fs::remove_dir_all(&directory).unwrap();

    assert_eq!(ca.authorities().map(<[_]>::len), Ok(1));
}
