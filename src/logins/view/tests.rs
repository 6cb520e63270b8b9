use provider::{
    HostPolicy,
    auth::grant::samples::{login, ready},
};

use super::*;
use crate::{
    config::samples::record_config,
    config::{Connector, Providers},
};

fn given(id: &str, serial: u64) -> GrantView {
    let access = Access { header: format!("Bearer {id}-{serial}").into(), serial, expires_ms: None };
    GrantView::Ready(Arc::new(CheckedToken { access, area: Area::Accounting, login: login(id) }))
}

fn client(changed: &[(&str, &str)], area: Area) -> GrantClient {
    let mut config = record_config();
    for (key, value) in changed {
        config.insert((*key).into(), (*value).into());
    }
    let (connector, _) = Connector::parse("staging", &config, &Providers::new([])).unwrap();
    let Connector::RecordSource(source) = connector else { panic!("it is a RecordSource") };
    GrantClient { connector: "staging".to_owned(), area, provider: Arc::new(source.provider) }
}

#[test]
fn connector_gets_no_token_of_another_client_service_or_area() {
    let view = given("first", 1);
    let problem = |changed: &[(&str, &str)], area| client(changed, area).problem(&view);

    assert!(problem(&[], Area::Accounting).is_none());
    for (changed, area) in [
        (&[("oauth.client.id", "staging-client")][..], Area::Accounting),
        (&[("provider.auth.url", "https://staging.example.com")][..], Area::Accounting),
        (&[][..], Area::Payroll),
    ] {
        let error = problem(changed, area).unwrap();
        assert!(matches!(error, Error::Distrusted { .. }), "{error}");
        assert!(error.to_string().contains("oauth.grant") && !error.to_string().contains("staging-client"));
    }
}

#[test]
fn connector_gets_no_token_for_another_origin() {
    let view = given("first", 1);
    for base in [
        "https://stranger.example.com",
        "https://api.example.com:8443",
        "https://api.example.com.stranger.net",
        "https://login.example.com",
    ] {
        let client = client(&[("provider.base.url", base)], Area::Accounting);
        let GrantView::Ready(token) = &view else { panic!("it is good") };

        let error = client.problem(&view).unwrap();

        assert!(!client.may_have(token), "{base}");
        assert!(matches!(error, Error::Elsewhere { .. }) && error.retry() == Retry::Never, "{error}");
        let message = error.to_string();
        assert!(
            message.contains("provider.base.url") && message.contains("tributary auth login accounting"),
            "{message}"
        );
        assert!(!message.contains("stranger") && !message.contains("8443"), "{message}");
    }
    let same = client(&[("provider.base.url", "https://api.example.com:443/base/")], Area::Accounting);
    assert!(same.problem(&view).is_none(), "another path is the same origin");
}

#[test]
fn login_without_origins_needs_its_host_listed() {
    let old = GrantLogin { origins: Vec::new(), ..login("first") };
    let access = Access { header: "Bearer old".into(), serial: 1, expires_ms: None };
    let view = GrantView::Ready(Arc::new(CheckedToken { access, area: Area::Accounting, login: old }));
    for (listed, is_good) in [
        (&[][..], false),
        (&["*.example.com"][..], false),
        (&["api.example.com", "login.example.com"][..], true),
    ] {
        let mut client = client(&[], Area::Accounting);
        Arc::make_mut(&mut client.provider).transport.hosts = HostPolicy::listing(listed);

        assert_eq!(client.problem(&view).is_none(), is_good, "{listed:?}");
    }
}

#[test]
fn tokens_of_another_login_differ_at_any_serial() {
    assert!(given("first", 1).covers(&given("first", 1)));
    assert!(!given("first", 1).covers(&given("second", 1)), "a login over an unreadable record");
    let refused =
        |login: &str| GrantView::ClientRefused { code: "x".into(), login: login.into(), serial: 57 };
    assert!(refused("first").covers(&given("first", 57)));
    assert!(!refused("first").covers(&given("first", 58)));
    assert!(!refused("first").covers(&given("second", 1)));
}

#[test]
fn a_login_resolves_earlier_problems() {
    let resolved = |view: GrantView| view.is_resolved_by(&ready("acc"));

    assert!(
        resolved(GrantView::Absent)
            && resolved(GrantView::LoggedOut)
            && resolved(GrantView::Lost { reason: "x".into() })
    );
    let distrusted = |login: &str| GrantView::Distrusted { rule: "x".into(), login: login.into() };
    assert!(resolved(distrusted("another")) && !resolved(distrusted("first")));
    let refused = |login: &str| GrantView::ClientRefused { code: "x".into(), login: login.into(), serial: 9 };
    assert!(resolved(refused("another")) && !resolved(refused("first")));
}
