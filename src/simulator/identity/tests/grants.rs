//! How codes, refresh tokens and access tokens live and end.

use super::*;
use crate::simulator::knobs::RefreshLife;

#[tokio::test]
async fn a_code_is_good_once() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;

    let first = simulated.redeem(&code).await;
    let second = simulated.redeem(&code).await;

    assert_eq!(first.status, 200);
    assert_eq!(second.outcome(), refused());
    assert_eq!(simulated.refresh(&first.member("refresh_token")).await.status, 200);
}

#[tokio::test]
async fn a_refused_attempt_uses_the_code_up() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;

    let wrong = simulated.token(&changed(&exchange(&code), "redirect_uri", None)).await;
    let right = simulated.redeem(&code).await;

    assert_eq!((wrong.outcome().1.as_str(), right.outcome()), ("unauthorized_client", refused()));
}

#[tokio::test]
async fn a_wrong_secret_does_not_use_the_code_up() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;

    let wrong = simulated.token(&changed(&exchange(&code), "client_secret", Some("wrong"))).await;
    let right = simulated.redeem(&code).await;

    assert_eq!((wrong.status, right.status), (400, 200));
}

#[tokio::test]
async fn a_code_is_good_for_five_minutes_or_as_the_knob_says() {
    let simulated = Simulated::new();

    for (seconds, knob, status) in [(299, 300, 200), (300, 300, 400), (10, 10, 400), (9, 10, 200)] {
        simulated.turn(|knobs| knobs.code_seconds = knob);
        let code = simulated.code(ACCOUNTING).await;
        simulated.advance(seconds);
        assert_eq!(simulated.redeem(&code).await.status, status, "{seconds} of {knob}");
    }
}

#[tokio::test]
async fn an_access_token_ends_after_its_hour_and_comes_back_with_the_clock() {
    let simulated = Simulated::new();
    let access = simulated.login(ACCOUNTING).await.member("access_token");

    let mut standings = vec![simulated.standing(&access)];
    simulated.advance(3_599);
    standings.push(simulated.standing(&access));
    simulated.advance(1);
    standings.push(simulated.standing(&access));
    simulated.0.clock.skew(0);
    standings.push(simulated.standing(&access));

    assert_eq!(standings, ["valid", "valid", "expired", "valid"]);
    assert_eq!(simulated.standing("never issued"), "unknown");
}

#[tokio::test]
async fn an_absolute_grant_ends_thirty_days_after_the_login_however_often_it_is_refreshed() {
    let simulated = Simulated::new();
    let mut refresh = simulated.login(ACCOUNTING).await.member("refresh_token");

    for _ in 0..29 {
        simulated.advance(DAY);
        refresh = simulated.refresh(&refresh).await.member("refresh_token");
    }
    simulated.advance(DAY - 1);
    refresh = simulated.refresh(&refresh).await.member("refresh_token");
    simulated.advance(1);

    assert_eq!(simulated.refresh(&refresh).await.outcome(), refused());
}

#[tokio::test]
async fn a_sliding_grant_lives_on_while_it_is_used_and_rotates() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| {
        knobs.refresh = RefreshLife::Sliding;
        knobs.rotate_absolute = false;
    });
    let first = simulated.login(ACCOUNTING).await.member("refresh_token");
    let mut refresh = first.clone();

    for _ in 0..5 {
        simulated.advance(15 * DAY - 1);
        let next = simulated.refresh(&refresh).await.member("refresh_token");
        assert_ne!(next, refresh);
        refresh = next;
    }
    simulated.advance(15 * DAY);

    assert_eq!(simulated.refresh(&refresh).await.outcome(), refused());
}

#[tokio::test]
async fn a_capped_sliding_grant_ends_with_the_absolute_time() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| {
        knobs.refresh = RefreshLife::Sliding;
        knobs.sliding_capped = true;
    });
    let mut refresh = simulated.login(ACCOUNTING).await.member("refresh_token");

    for _ in 0..2 {
        simulated.advance(14 * DAY);
        refresh = simulated.refresh(&refresh).await.member("refresh_token");
    }
    simulated.advance(2 * DAY);
    let capped = simulated.refresh(&refresh).await;
    simulated.turn(|knobs| knobs.sliding_capped = false);
    let free = simulated.refresh(&refresh).await;

    assert_eq!((capped.outcome(), free.status), (refused(), 200));
}

#[tokio::test]
async fn a_refresh_token_used_twice_ends_the_grant_and_no_other() {
    let simulated = Simulated::new();
    let other = simulated.login(ACCOUNTING).await;
    let first = simulated.login(ACCOUNTING).await;
    let second = simulated.refresh(&first.member("refresh_token")).await;

    let reused = simulated.refresh(&first.member("refresh_token")).await;

    assert_eq!(reused.outcome(), refused());
    assert_eq!(simulated.refresh(&second.member("refresh_token")).await.outcome(), refused());
    assert_eq!(simulated.standing(&second.member("access_token")), "unknown");
    assert_eq!(simulated.standing(&other.member("access_token")), "valid");
    assert_eq!(simulated.refresh(&other.member("refresh_token")).await.status, 200);
}

#[tokio::test]
async fn reuse_can_be_refused_without_ending_the_grant() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| knobs.reuse_ends_grant = false);
    let first = simulated.login(ACCOUNTING).await.member("refresh_token");
    let second = simulated.refresh(&first).await.member("refresh_token");

    let reused = simulated.refresh(&first).await;
    let current = simulated.refresh(&second).await;

    assert_eq!((reused.outcome(), current.status), (refused(), 200));
}

#[tokio::test]
async fn an_absolute_refresh_token_may_stay_the_same_and_be_left_out() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| knobs.rotate_absolute = false);
    let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");

    let same = simulated.refresh(&refresh).await;
    simulated.turn(|knobs| knobs.omit_unrotated = true);
    let omitted = simulated.refresh(&refresh).await;
    simulated.turn(|knobs| knobs.rotate_absolute = true);
    let rotated = simulated.refresh(&refresh).await;

    assert_eq!(same.member("refresh_token"), refresh);
    assert_eq!((omitted.status, omitted.json().get("refresh_token")), (200, None));
    assert_ne!(rotated.member("refresh_token"), refresh);
    assert_ne!(same.member("access_token"), omitted.member("access_token"));
}

#[tokio::test]
async fn revoking_ends_codes_and_tokens_but_not_the_next_login() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;
    let answer = simulated.login(ACCOUNTING).await;

    simulated.0.identity.revoke_all(simulated.0.clock.now());
    let next = simulated.login(ACCOUNTING).await;

    assert_eq!(simulated.standing(&answer.member("access_token")), "unknown");
    assert_eq!(simulated.refresh(&answer.member("refresh_token")).await.outcome(), refused());
    assert_eq!(simulated.redeem(&code).await.outcome(), refused());
    assert_eq!(simulated.standing(&next.member("access_token")), "valid");
    let issued = simulated.0.identity.issued();
    assert!(
        issued
            .iter()
            .filter(|token| token.grant == 1 && token.kind != "id")
            .all(|token| token.used.is_some())
    );
    assert!(issued.iter().any(|token| token.grant == 2 && token.used.is_none()));
}

#[tokio::test]
async fn every_token_is_in_the_journal_with_its_times() {
    let simulated = Simulated::new();
    let start = simulated.0.clock.now();
    let code = simulated.code(ACCOUNTING).await;
    simulated.advance(60);
    let later = simulated.0.clock.now();
    let answer = simulated.redeem(&code).await;

    let issued = simulated.0.identity.issued();

    let times: Vec<_> = issued
        .iter()
        .map(|token| {
            (token.kind, token.grant, token.at, token.expires.seconds() - token.at.seconds(), token.used)
        })
        .collect();
    assert_eq!(
        times,
        [
            ("code", 0, start, 300, Some(later)),
            ("refresh", 0, later, 30 * 86_400 - 60, None),
            ("access", 0, later, 3_600, None),
            ("id", 0, later, 300, None),
        ]
    );
    assert_eq!(issued[0].token, code);
    assert_eq!(issued[1].token, answer.member("refresh_token"));
    assert_eq!(issued[2].token, answer.member("access_token"));
    assert_eq!(issued[3].token, answer.member("id_token"));
}

#[tokio::test]
async fn a_grant_without_login_is_as_good_as_one_with() {
    let simulated = Simulated::new();

    let (access, refresh) = simulated.0.identity.grant(&simulated.0, &["openid", "SVC.ES.Webhooks"]);

    let Standing::Valid(caller) = simulated.0.identity.check(&access, simulated.0.clock.now()) else {
        panic!("not valid");
    };
    assert_eq!(*caller.scopes, ["openid", "SVC.ES.Webhooks"]);
    assert_eq!(simulated.refresh(&refresh).await.status, 200);
}

#[tokio::test]
async fn codes_and_tokens_of_another_run_are_nothing_worth() {
    let (one, other) = (Simulated::new(), Simulated::new());
    let code = one.code(ACCOUNTING).await;
    let answer = one.login(ACCOUNTING).await;
    other.code(ACCOUNTING).await;
    other.login(ACCOUNTING).await;

    assert_eq!(other.redeem(&code).await.outcome(), refused());
    assert_eq!(other.refresh(&answer.member("refresh_token")).await.outcome(), refused());
    assert_eq!(other.standing(&answer.member("access_token")), "unknown");
}

#[tokio::test]
async fn knobs_beyond_all_time_do_no_harm() {
    let simulated = Simulated::new();
    simulated.turn(|knobs| {
        knobs.code_seconds = u64::MAX;
        knobs.access_seconds = u64::MAX;
        knobs.absolute_seconds = u64::MAX;
    });

    let answer = simulated.login(ACCOUNTING).await;

    assert_eq!(simulated.standing(&answer.member("access_token")), "valid");
    assert_eq!(simulated.refresh(&answer.member("refresh_token")).await.status, 200);
}

fn refused() -> (u16, String) {
    (400, "invalid_grant".to_owned())
}
