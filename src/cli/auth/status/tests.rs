use provider::auth::{
    grant::{GrantLogin, IssuedTokens, RefreshBase, RefreshCause, RefreshIntent, RefreshOrigin},
    seal,
};

use super::*;
use crate::{cli::auth::grants_topic::UnreadableGrant, logins::table::grant_key};

/// Noon of a day in 2026.
const NOON: i64 = 1_794_744_000_000;

fn grant(login_ms: i64) -> Grant {
    let login = GrantLogin {
        id: "1".to_owned(),
        at_ms: login_ms,
        subject: "0e5c9c3a".to_owned(),
        shown: Some("ana@example.com\u{1b}[2J".to_owned()),
        client_id: "client".to_owned(),
        auth_url: "https://login.example.com/".to_owned(),
        origins: vec!["https://api.example.com".to_owned()],
        tenant: Some("tenant-1".to_owned()),
    };
    let issued = IssuedTokens {
        access: "never shown".into(),
        expires_in: Some(Duration::from_secs(3_600)),
        refresh: Some("never shown".into()),
        scopes: Some(vec!["openid".to_owned(), "SVC.ES.Webhooks".to_owned()]),
        at_ms: NOON - 10 * MINUTE,
    };
    Grant::log_in(None, "books", Area::Accounting, login, issued).unwrap()
}

fn refreshing(grant: &Grant) -> (Grant, RefreshBase) {
    let origin = RefreshOrigin { worker: "10.0.0.7:8083".to_owned(), begun_ms: NOON - MINUTE };
    let intent = RefreshIntent {
        id: "i".to_owned(),
        cause: RefreshCause::Due,
        origin,
        window_ms: 5_000,
        withdrawn: false,
    };
    let base = grant.base(&intent);
    (grant.begin(1, intent).unwrap(), base)
}

fn known(grant: Result<Grant, UnreadableGrant>) -> StoredGrant {
    StoredGrant { name: "books".to_owned(), kid: Some("00ff".to_owned()), written_ms: Some(NOON), grant }
}

fn line(grant: Result<Grant, UnreadableGrant>) -> GrantSummary {
    GrantSummary::new(known(grant), &LoginLifetimes { known: BTreeMap::new(), all: false }, NOON)
}

#[test]
fn a_login_needs_a_person_a_week_before_its_end() {
    for (age, needed, days) in [
        (0, false, 30),
        (23 * DAY - MINUTE, false, 7),
        (23 * DAY + MINUTE, true, 6),
        (30 * DAY - MINUTE, true, 0),
        (40 * DAY, true, 0),
    ] {
        let line = line(Ok(grant(NOON - age)));

        assert_eq!((line.needs_a_person, line.days_left()), (needed, Some(days)), "{age}");
        assert_eq!(line.remark.is_some(), needed, "{age}");
    }
}

#[test]
fn every_state_has_its_remark() {
    let ready = grant(NOON - DAY);
    let (refreshing, base) = refreshing(&ready);
    let lost = refreshing.lose(&base, "invalid_grant", NOON - MINUTE).unwrap();
    let unknown = UnreadableGrant::OtherKey { ours: "11ee".to_owned() };

    for (grant, state, needed, remark) in [
        (Ok(ready.clone()), "ready", false, ""),
        (Ok(refreshing), "refreshing", false, "10.0.0.7:8083"),
        (Ok(lost), "lost", true, "invalid_grant"),
        (Ok(ready.log_out(NOON)), "logged out", false, "since"),
        (
            Err(unknown),
            "unreadable",
            true,
            "encrypted with the key 00ff; grant.encryption.key is the key 11ee",
        ),
        (Err(UnreadableGrant::NoKey), "unreadable", true, "00ff; grant.encryption.key is not set here"),
    ] {
        let line = line(grant);

        assert_eq!((line.state, line.needs_a_person), (state, needed));
        assert!(line.remark.unwrap_or_default().contains(remark), "{state}");
    }
}

#[test]
fn a_configured_lifetime_overrides_the_documented_one() {
    let ends = (None, Some(Duration::from_secs(15 * 86_400)));
    let known_ends = BTreeMap::from([(("books".to_owned(), Area::Accounting), ends)]);
    let lifetimes = LoginLifetimes { known: known_ends, all: true };

    let line = GrantSummary::new(known(Ok(grant(NOON - 90 * DAY))), &lifetimes, NOON);

    assert_eq!((line.login_ms, line.needs_a_person), (None, false));
    assert_eq!(line.refresh_ms, Some(NOON - 10 * MINUTE + 15 * DAY));
}

#[test]
fn an_unused_grant_has_a_remark_if_all_connectors_are_known() {
    let remark = |all| {
        let lifetimes = LoginLifetimes { known: BTreeMap::new(), all };
        GrantSummary::new(known(Ok(grant(NOON - DAY))), &lifetimes, NOON).remark
    };

    assert!(remark(true).unwrap().contains("not refreshed"));
    assert_eq!(remark(false), None);
}

#[test]
fn a_login_without_an_origin_says_what_to_do() {
    let mut old = grant(NOON - DAY);
    old.login.origins.clear();

    let line = line(Ok(old));

    assert!(line.remark.unwrap().contains("provider.hosts.allowed"));
}

#[test]
fn table_and_json_show_the_tenant_or_that_it_is_unknown() {
    let mut unbound = grant(NOON - DAY);
    unbound.login.tenant = None;
    for (grant, cell, json) in [
        (Ok(grant(NOON - DAY)), "ana@example.com\\u{1b}[2J  tenant-1  ", json!("tenant-1")),
        (Ok(unbound), "ana@example.com\\u{1b}[2J  unknown  ", Value::Null),
        (Err(UnreadableGrant::NoKey), "unreadable  -    -       -  ", Value::Null),
    ] {
        let lines = [line(grant)];
        let mut shown = Vec::new();

        show(&lines, false, &mut shown).unwrap();

        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains(" TENANT ") && shown.contains(cell), "{shown}");
        assert_eq!(lines[0].json(false)["tenant"], json);
    }
}

#[test]
fn output_has_no_token_and_no_control_character() {
    let lines = [line(Ok(grant(NOON - DAY))), line(Err(UnreadableGrant::Sealed(seal::Error::Damaged)))];
    let mut shown = Vec::new();

    show(&lines, true, &mut shown).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    let json: Vec<String> = lines.iter().map(|line| line.json(true).to_string()).collect();

    for text in [&shown, &json.concat()] {
        assert!(!text.contains("never shown") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("books") && text.contains("SVC.ES.Webhooks"), "{text}");
        assert!(text.contains("https://api.example.com"), "{text}");
    }
    assert!(shown.contains("in 50 minutes") && shown.contains("29 days left"), "{shown}");
    assert!(shown.starts_with("Kafka does not answer"), "{shown}");
}

#[test]
fn a_local_copy_shows_name_key_and_time_without_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let ring = |text: &str| Keyring::new(&text.repeat(40).into(), None, "group").unwrap();
    let (ours, other) = (ring("a"), ring("b"));
    let envelope = ours.seal(&grant_key("books"), &grant(NOON), 1).unwrap();
    let (good, bad) = (directory.path().join("books.grant"), directory.path().join("bad.grant"));
    std::fs::write(good, serde_json::to_vec(&envelope).unwrap()).unwrap();
    std::fs::write(bad, "not JSON").unwrap();
    let seen = |name: &str, keys| local_copy(directory.path(), name.to_owned(), keys).unwrap();

    assert_eq!(seen("books", Some(&ours)).grant.unwrap().login.subject, "0e5c9c3a");
    for (keys, words) in [(Some(&other), "grant.encryption.key is the key"), (None, "is not set here")] {
        let known = seen("books", keys);
        assert_eq!(known.kid.as_deref(), Some(ours.kid()));
        assert!(known.written_ms.is_some());
        assert!(known.grant.unwrap_err().to_string().contains(words), "{words}");
    }
    assert!(matches!(seen("bad", Some(&ours)).grant, Err(UnreadableGrant::Sealed(seal::Error::Damaged))));
    assert!(local_copy(directory.path(), "none".to_owned(), None).is_none());
}

#[test]
fn distances_have_one_unit() {
    for (ms, text) in [
        (0, "in 0 minutes"),
        (119 * MINUTE, "in 119 minutes"),
        (120 * MINUTE, "in 2 hours"),
        (47 * 60 * MINUTE, "in 47 hours"),
        (2 * DAY, "in 2 days"),
        (-90 * MINUTE, "ended 90 minutes ago"),
        (i64::MAX, "in 106751991167 days"),
    ] {
        assert_eq!(distance(ms), text);
    }
}
