//! Each transition alone; all their orders are in [`model`].

mod model;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use super::{
    samples::{AT_MS, intent, issued, login, ready},
    *,
};

const LONG: Duration = Duration::from_secs(15);

fn refreshing(id: &str) -> (Grant, RefreshBase) {
    let begun = ready("acc").begin(1, intent(id)).unwrap();
    let base = begun.base(begun.intent().unwrap());
    (begun, base)
}

/// A refresh in progress of a grant that is bound to this tenant.
fn refreshing_for(tenant: Option<&str>) -> (Grant, RefreshBase) {
    let (mut begun, base) = refreshing("i");
    begun.login.tenant = tenant.map(str::to_owned);
    (begun, base)
}

/// Token set `number` with these claims.
fn issued_with(number: u32, claims: &serde_json::Value) -> IssuedTokens {
    let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
    IssuedTokens { access: format!("e30.{payload}.{number}").into(), ..issued(number) }
}

fn recovered(id: &str) -> (Grant, RefreshBase) {
    let (begun, base) = refreshing("i");
    let again = begun.recover(&base, LONG, intent(id)).unwrap();
    let base = again.base(again.intent().unwrap());
    (again, base)
}

fn refresh_token(grant: &Grant) -> &str {
    grant.tokens().unwrap().refresh.reveal()
}

#[test]
fn a_refresh_begins_only_on_a_ready_grant_of_its_serial() {
    let (begun, _) = refreshing("i");

    assert_eq!(begun.intent().unwrap().id, "i");
    assert_eq!(ready("acc").begin(2, intent("i")).unwrap_err(), GrantConflict::Changed);
    assert_eq!(begun.begin(1, intent("j")).unwrap_err(), GrantConflict::Changed);
    assert_eq!(ready("acc").log_out(AT_MS).begin(1, intent("i")).unwrap_err(), GrantConflict::Changed);
}

#[test]
fn a_response_without_refresh_token_keeps_the_old_one() {
    let (begun, base) = refreshing("i");

    let rotated = begun.answer(&base, issued(2)).unwrap();
    let kept = begun.answer(&base, IssuedTokens { refresh: None, ..issued(2) }).unwrap();

    assert!(matches!(rotated.state, GrantState::Ready { .. }));
    assert_eq!((rotated.serial, refresh_token(&rotated)), (2, "refresh-2"));
    assert_eq!((kept.serial, refresh_token(&kept)), (2, "refresh-1"));
    assert_eq!(kept.tokens().unwrap().access.reveal(), "access-2");
    assert_eq!(
        rotated.answer(&base, issued(3)).unwrap_err(),
        GrantConflict::Changed,
        "an answer counts once"
    );
}

#[test]
fn a_response_counts_until_the_next_login_or_logout() {
    let (begun, first) = refreshing("i");
    let (again, second) = recovered("j");
    let lost = again.lose(&second, "invalid_grant", AT_MS).unwrap();
    let relogged = Grant::log_in(Some(&again), "acc", Area::Accounting, login("second"), issued(7)).unwrap();

    for grant in [&begun, &again, &lost, &again.withdraw(&second).unwrap()] {
        let salvaged = grant.answer(&first, issued(2)).unwrap();
        assert_eq!((salvaged.serial, refresh_token(&salvaged)), (2, "refresh-2"), "{:?}", grant.state);
    }
    assert_eq!(relogged.serial, 2, "a serial is never used twice");
    assert_eq!(relogged.answer(&first, issued(2)).unwrap_err(), GrantConflict::Changed);
    assert_eq!(begun.log_out(AT_MS).answer(&first, issued(2)).unwrap_err(), GrantConflict::Changed);
}

#[test]
fn no_recovery_before_the_window_and_the_grace_are_over() {
    let (begun, base) = refreshing("i");
    let almost = LONG - Duration::from_millis(1);

    assert_eq!(begun.recover(&base, almost, intent("j")).unwrap_err(), GrantConflict::Early);
    let again = begun.recover(&base, LONG, intent("j")).unwrap();

    let stands = again.intent().unwrap();
    assert_eq!((stands.id.as_str(), stands.cause), ("j", RefreshCause::Recovery));
    assert_eq!(stands.origin.worker, "worker of i", "the first refresh is named");
    assert_eq!(again.recover(&base, LONG, intent("k")).unwrap_err(), GrantConflict::Changed);
}

#[test]
fn withdrawing_undoes_a_refresh_and_keeps_a_recovery_open() {
    let (begun, first) = refreshing("i");
    let (again, second) = recovered("j");

    let undone = begun.withdraw(&first).unwrap();
    let open = again.withdraw(&second).unwrap();

    assert!(undone.serial == 1 && matches!(undone.state, GrantState::Ready { .. }));
    assert_eq!(again.withdraw(&first).unwrap_err(), GrantConflict::Changed);
    let orphan = open.base(open.intent().unwrap());
    let next = open.recover(&orphan, Duration::ZERO, intent("k")).unwrap();
    assert_eq!(next.intent().unwrap().patience(), LONG, "the next may present it");
}

#[test]
fn a_loss_after_a_recovery_names_the_first_refresh() {
    let (begun, first) = refreshing("i");
    let (again, second) = recovered("j");

    let plain = begun.lose(&first, "invalid_grant", AT_MS).unwrap();
    let orphaned = again.lose(&second, "invalid_grant", AT_MS).unwrap();

    assert!(matches!(plain.state, GrantState::Lost { origin: None, .. }), "{:?}", plain.state);
    assert!(
        matches!(&orphaned.state, GrantState::Lost { origin: Some(origin), .. } if origin.worker == "worker of i"),
        "{:?}",
        orphaned.state
    );
    assert_eq!(again.lose(&first, "invalid_grant", AT_MS).unwrap_err(), GrantConflict::Changed);
    assert_eq!(refresh_token(&orphaned), "refresh-1", "an answer may still turn up");
}

#[test]
fn first_token_with_a_tenant_binds_the_grant() {
    let (unbound, base) = refreshing_for(None);

    let still = unbound.answer(&base, issued(2)).unwrap();
    let bound = unbound.answer(&base, issued_with(2, &json!({ "svc.es.clientid": "a" }))).unwrap();

    assert_eq!((still.serial, still.login.tenant.as_deref()), (2, None));
    assert_eq!((bound.serial, bound.login.tenant.as_deref()), (2, Some("a")));
    assert_eq!(bound.log_out(AT_MS).login.tenant.as_deref(), Some("a"), "a logout keeps it");
    let (begun, base) = refreshing_for(Some("a"));
    let same = begun.answer(&base, issued_with(2, &json!({ "svc.es.clientid": "a" }))).unwrap();
    assert_eq!((same.serial, same.login.tenant.as_deref()), (2, Some("a")));
}

#[test]
fn grant_of_an_earlier_version_is_bound_by_its_token() {
    let (unbound, base) = refreshing_for(None);
    let refreshed = unbound.answer(&base, issued_with(2, &json!({ "svc.es.clientid": "a" }))).unwrap();
    let mut old = refreshed.clone();
    old.login.tenant = None;

    assert_eq!(old.tenant().as_deref(), Some("a"));
    assert!(old.check_tenant(Some("b")).is_err());
}

#[test]
fn answer_for_another_tenant_loses_the_grant() {
    let (begun, base) = refreshing_for(Some("a"));

    let lost = begun.answer(&base, issued_with(2, &json!({ "svc.es.clientid": "b" }))).unwrap();

    let mismatch = TenantMismatch { bound: "a".to_owned(), found: Some("b".to_owned()) };
    assert!(
        matches!(&lost.state, GrantState::Lost { reason: LossReason::Tenant(why), origin: None, .. } if *why == mismatch),
        "{:?}",
        lost.state
    );
    assert_eq!(
        (lost.serial, refresh_token(&lost), lost.login.tenant.as_deref()),
        (1, "refresh-1", Some("a"))
    );
    let read = Grant::from_bytes(&lost.to_bytes()).unwrap();
    assert_eq!(format!("{read:?}"), format!("{lost:?}"));
    let other = lost.answer(&base, issued_with(2, &json!({ "svc.es.clientid": "a" }))).unwrap();
    assert!(matches!(other.state, GrantState::Ready { .. }), "an answer for the right tenant may follow");
}

#[test]
fn answer_without_a_readable_tenant_keeps_grant_and_tenant() {
    let (begun, base) = refreshing_for(Some("a"));
    for issued in [
        issued_with(2, &json!({ "svc.es.clientid": "" })),
        issued_with(2, &json!({ "svc.es.clientid": 7 })),
        issued_with(2, &json!({ "svc.es.clientid": "a\u{202e}" })),
        issued_with(2, &json!({})),
        issued(2),
    ] {
        let kept = begun.answer(&base, issued).unwrap();

        assert!(matches!(kept.state, GrantState::Ready { .. }), "{:?}", kept.state);
        assert_eq!((kept.serial, kept.login.tenant.as_deref()), (2, Some("a")));
    }
}

#[test]
fn login_for_another_tenant_or_none_does_not_match() {
    let check = |bound: Option<&str>, found| {
        let (grant, _) = refreshing_for(bound);
        grant.check_tenant(found).map_err(|mismatch| mismatch.to_string())
    };

    for (bound, found) in [(None, None), (None, Some("a")), (Some("a"), Some("a"))] {
        assert_eq!(check(bound, found), Ok(()), "{bound:?} {found:?}");
    }
    for (found, words) in [(Some("b"), "is for the tenant b"), (None, "names no tenant")] {
        let expected = format!("the new token {words}, but the grant is bound to the tenant a");
        assert_eq!(check(Some("a"), found), Err(expected));
    }
}

#[test]
fn a_login_needs_a_refresh_token_and_a_logout_drops_tokens() {
    let without = IssuedTokens { refresh: None, ..issued(1) };

    assert!(Grant::log_in(None, "acc", Area::Payroll, login("first"), without).is_none());
    assert!(ready("acc").log_out(AT_MS).tokens().is_none());
}

#[test]
fn a_token_is_due_five_minutes_or_a_quarter_of_its_life_ahead() {
    let grant = |seconds| {
        let issued = IssuedTokens { expires_in: Some(Duration::from_secs(seconds)), ..issued(1) };
        Grant::log_in(None, "acc", Area::Accounting, login("first"), issued).unwrap()
    };
    let ahead = |seconds: u64, chance| {
        AT_MS + 1000 * i64::try_from(seconds).unwrap() - grant(seconds).due_ms(chance).unwrap()
    };

    assert_eq!([ahead(3_600, 0.0), ahead(3_600, 0.5), ahead(3_600, 1.0)], [240_000, 300_000, 360_000]);
    assert_eq!(ahead(8, 0.5), 2_000);
    assert_eq!(ready("acc").log_out(AT_MS).due_ms(0.5), None);
}

#[test]
fn a_refresh_token_ends_with_its_login_or_when_idle() {
    let day = Duration::from_secs(86_400);
    let (grant, after) = (ready("acc"), |days: i64| Some(AT_MS + days * 86_400_000));

    assert_eq!(grant.ends_ms(Some(30 * day), None), (after(30), after(30)));
    assert_eq!(grant.ends_ms(Some(30 * day), Some(15 * day)), (after(30), after(15)));
    assert_eq!(grant.ends_ms(None, Some(15 * day)), (None, after(15)));
    assert_eq!(grant.ends_ms(None, None), (None, None));
}

#[test]
fn a_grant_survives_serialization_in_every_state() {
    let (again, base) = recovered("j");
    let lost = again.lose(&base, "invalid_grant", AT_MS).unwrap();
    let quoted = IssuedTokens { access: "with \"quotes\" and \\".into(), ..issued(2) };
    let odd = again.answer(&base, quoted).unwrap();

    for grant in [&ready("acc"), &again, &lost, &odd, &ready("acc").log_out(AT_MS)] {
        let read = Grant::from_bytes(&grant.to_bytes()).unwrap();

        assert_eq!(format!("{read:?}"), format!("{grant:?}"));
        assert_eq!(*read.to_bytes(), *grant.to_bytes());
    }
    let earlier = String::from_utf8(ready("acc").to_bytes().to_vec()).unwrap();
    assert!(!earlier.contains("tenant"), "as earlier versions wrote it: {earlier}");
    assert!(Grant::from_bytes(b"{}").is_err());
    let out = String::from_utf8(ready("acc").log_out(AT_MS).to_bytes().to_vec()).unwrap();
    assert!(out.ends_with(r#""tokens":null,"state":{"is":"out","at_ms":43200000}}"#), "{out}");
    let impossible = out.replace(r#""is":"out","at_ms":43200000"#, r#""is":"ready""#);
    assert!(Grant::from_bytes(impossible.as_bytes()).is_err(), "ready without tokens");
    assert!(!format!("{odd:?}").contains("quotes"));
}
