use super::*;
use crate::{
    auth::grant::samples::{login, ready},
    config::{Connector, Providers},
    worker::plugins::samples::record_config,
};

fn given(id: &str, serial: u64) -> View {
    let access = Access { header: format!("Bearer {id}-{serial}").into(), serial, expires_ms: None };
    View::Good(Arc::new(Given { access, area: Area::Accounting, login: login(id) }))
}

fn asker(changed: &[(&str, &str)], area: Area) -> Asker {
    let mut config = record_config();
    for (key, value) in changed {
        config.insert((*key).into(), (*value).into());
    }
    let (connector, _) = Connector::parse("staging", &config, &Providers::new([])).unwrap();
    let Connector::RecordSource(source) = connector else { panic!("it is a RecordSource") };
    let (grant, connector) = ("accounting".to_owned(), "staging".to_owned());
    Asker { grant, provider: source.provider, area, connector }
}

#[test]
fn a_connector_gets_no_token_of_another_client_or_identity_service_or_area() {
    let view = given("first", 1);
    let problem = |changed: &[(&str, &str)], area| asker(changed, area).problem(&view);

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
fn tokens_of_another_login_are_others_whatever_their_serial() {
    assert!(given("first", 1).covers(&given("first", 1)));
    assert!(!given("first", 1).covers(&given("second", 1)), "a login over a record that nobody could read");
    let refused = |login: &str| View::Client { code: "x".into(), login: login.into(), serial: 57 };
    assert!(refused("first").covers(&given("first", 57)));
    assert!(!refused("first").covers(&given("first", 58)));
    assert!(!refused("first").covers(&given("second", 1)));
}

#[test]
fn what_stood_before_a_login_is_not_held_against_it() {
    let mended = |view: View| view.is_mended_by(&ready("acc"));

    assert!(mended(View::Absent) && mended(View::Out) && mended(View::Lost { reason: "x".into() }));
    let distrusted = |login: &str| View::Distrusted { rule: "x".into(), login: login.into() };
    assert!(mended(distrusted("another")) && !mended(distrusted("first")));
    let refused = |login: &str| View::Client { code: "x".into(), login: login.into(), serial: 9 };
    assert!(mended(refused("another")) && !mended(refused("first")));
}
