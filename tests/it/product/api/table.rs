//! Every failure of a call, caused by the simulator, and the verdict on it.

use std::{sync::Arc, time::Duration};

use base::{retry::Retry, secret::Secret};
use model::{AccountingResource, CompanyId};
use provider::{
    api::{Accounting, Acted, AnsweredBy, CallOptions, Cause, Error, Limit, Priority},
    auth::Tokens,
};
use simulator::{
    Simulator,
    knobs::{Effect, ExpiredToken, Fault, FaultTarget, HttpStatus, Latency, RetryHint},
    settings::Tls,
};

use super::{FREELY, Granted, LoggedOut, Stale, client, client_of, options, page, patient};
use crate::product::simulator::{KEY, pass, start};
use crate::support::tries::Tries;

crate::tests! {
    plain every_fault_has_its_cause_verdict_and_effect;
    plain a_named_wait_is_waited_out_or_reported;
    plain a_rejected_token_is_replaced_once;
    plain a_500_renews_the_token_only_if_it_has_expired;
    plain a_rejected_subscription_key_renews_no_token;
    plain a_token_without_the_scope_or_company_is_forbidden;
    plain a_timeout_names_its_limit;
    plain an_unreachable_provider_has_not_acted;
    plain a_response_above_the_limit_is_not_read;
    plain wrong_types_are_kept_in_records_and_rejected_elsewhere;
    plain a_call_without_a_token_sends_nothing;
    plain a_failing_provider_rests_and_one_probe_asks_again;
}

fn rule(effect: Effect) -> Fault {
    Fault { on: FaultTarget::default(), effect, share: 1.0, times: None, skip: 0 }
}

fn status(code: u16) -> Effect {
    Effect::Status(HttpStatus::new(code).unwrap())
}

fn html(code: u16) -> Effect {
    Effect::Html { status: HttpStatus::new(code).unwrap() }
}

/// Longer than the response limit.
fn oversized(code: u16) -> Effect {
    Effect::Oversized { bytes: 20 << 20, status: HttpStatus::new(code).unwrap() }
}

async fn companies(accounting: &Accounting, options: &CallOptions) -> Result<usize, Error> {
    accounting.companies_numbered(page(1, 100), options).await.map(|page| page.rows.len())
}

/// The first call of a new client.
async fn call(simulator: &Simulator, tokens: Arc<dyn Tokens>, options: &CallOptions) -> Result<usize, Error> {
    companies(&client(simulator).accounting(tokens), options).await
}

async fn every_fault_has_its_cause_verdict_and_effect() {
    use Acted::{No, Unknown, Yes};
    let simulator = start(|_| {}).await;
    let tokens = Granted::accounting(&simulator);
    type Expected = fn(&Cause) -> bool;
    let rows: Vec<(Effect, Option<u16>, Expected, Retry, Acted)> = vec![
        (status(302), Some(302), |c| matches!(c, Cause::Redirect), Retry::Never, No),
        (status(400), Some(400), |c| matches!(c, Cause::Refused), Retry::Never, No),
        (status(401), Some(401), |c| matches!(c, Cause::Token { .. }), Retry::Never, No),
        (status(403), Some(403), |c| matches!(c, Cause::Forbidden { by: AnsweredBy::Api }), Retry::Never, No),
        (status(404), Some(404), |c| matches!(c, Cause::NotFound { by: AnsweredBy::Api }), Retry::Never, No),
        (
            Effect::UnknownPath,
            Some(404),
            |c| matches!(c, Cause::NotFound { by: AnsweredBy::Gateway }),
            Retry::Never,
            No,
        ),
        (status(410), Some(410), |c| matches!(c, Cause::Gone { by: AnsweredBy::Api }), Retry::Never, No),
        (
            status(408),
            Some(408),
            |c| matches!(c, Cause::Timeout { limit: Limit::Provider }),
            Retry::Later,
            Unknown,
        ),
        (status(500), Some(500), |c| matches!(c, Cause::Server { .. }), Retry::Later, Unknown),
        (status(503), Some(503), |c| matches!(c, Cause::Server { .. }), Retry::Later, Unknown),
        (Effect::Drop, None, |c| matches!(c, Cause::Unreachable(_)), Retry::Later, Unknown),
        (Effect::LoseAnswer, None, |c| matches!(c, Cause::Unreachable(_)), Retry::Later, Unknown),
        (Effect::Truncate, Some(200), |c| matches!(c, Cause::Truncated(_)), Retry::Later, Yes),
        (Effect::InvalidJson, Some(200), |c| matches!(c, Cause::Malformed { .. }), Retry::Later, Yes),
        (Effect::WrongContentType, Some(200), |c| matches!(c, Cause::NotJson), Retry::Later, Yes),
        (html(200), Some(200), |c| matches!(c, Cause::NotJson), Retry::Later, Yes),
        (
            html(404),
            Some(404),
            |c| matches!(c, Cause::NotFound { by: AnsweredBy::Unknown }),
            Retry::Never,
            No,
        ),
        (html(410), Some(410), |c| matches!(c, Cause::Gone { by: AnsweredBy::Unknown }), Retry::Never, No),
        (html(502), Some(502), |c| matches!(c, Cause::Server { .. }), Retry::Later, Unknown),
        (oversized(200), Some(200), |c| matches!(c, Cause::TooLarge { .. }), Retry::Never, Yes),
        (oversized(400), Some(400), |c| matches!(c, Cause::Refused), Retry::Never, No),
        (oversized(500), Some(500), |c| matches!(c, Cause::Server { .. }), Retry::Later, Unknown),
    ];

    for (effect, code, expected, verdict, acted) in rows {
        simulator.provider().set_faults(vec![rule(effect.clone())]);
        let error = call(&simulator, Arc::clone(&tokens) as _, &patient()).await.unwrap_err();

        assert!(expected(&error.cause), "{effect:?}: {error:?}");
        assert_eq!(
            (error.status, error.retry(), error.acted),
            (code, verdict, acted),
            "{effect:?}: {error:?}"
        );
        let shown = error.to_string();
        assert!(shown.starts_with("GET accounting/api/companies") && shown.len() < 300, "{shown}");
    }
    simulator.provider().set_faults(vec![]);
    assert_eq!(call(&simulator, tokens, &patient()).await.unwrap(), 3);
}

/// Whether a verdict names the rest of this many seconds.
fn about(verdict: Retry, seconds: u64) -> bool {
    let (from, to) = (Duration::from_secs(seconds - 9), Duration::from_secs(seconds));
    matches!(verdict, Retry::After(wait) if from <= wait && wait <= to)
}

async fn a_named_wait_is_waited_out_or_reported() {
    let simulator = start(|_| {}).await;
    let tokens = Granted::accounting(&simulator);
    let soon = || CallOptions::within(Priority::Webhook, Duration::from_secs(10));
    for hint in [RetryHint::Both, RetryHint::RetryAfter, RetryHint::Message] {
        simulator.provider().set_faults(vec![rule(Effect::Throttle { seconds: 17, tells: hint })]);
        let error = call(&simulator, Arc::clone(&tokens) as _, &soon()).await.unwrap_err();

        assert!(matches!(error.cause, Cause::Throttled { .. }), "{hint:?}: {error:?}");
        assert!(about(error.retry(), 17), "{hint:?}: {error:?}");
        assert_eq!((error.status, error.acted), (Some(429), Acted::No), "{hint:?}");
    }
    simulator.provider().set_faults(vec![rule(Effect::Quota { seconds: 7_200 })]);
    let error = call(&simulator, Arc::clone(&tokens) as _, &soon()).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Quota { .. }), "{error:?}");
    assert!(about(error.retry(), 3_600), "an hour at most: {error:?}");

    for hint in [RetryHint::Both, RetryHint::Nothing] {
        let twice = Fault { times: Some(2), ..rule(Effect::Throttle { seconds: 1, tells: hint }) };
        simulator.provider().set_faults(vec![twice]);
        let before = simulator.provider().gateway.request_count();

        assert_eq!(call(&simulator, Arc::clone(&tokens) as _, &patient()).await.unwrap(), 3, "{hint:?}");
        assert_eq!(simulator.provider().gateway.request_count() - before, 3, "{hint:?}");
    }
}

async fn a_rejected_token_is_replaced_once() {
    let simulator = start(|_| {}).await;
    let tokens = Granted::accounting(&simulator);
    pass(&simulator, 3_601);
    let count = || simulator.provider().gateway.request_count();

    assert_eq!(call(&simulator, Arc::clone(&tokens) as _, &patient()).await.unwrap(), 3);
    assert_eq!((tokens.renewals(), count()), (1, 2));

    let stale = Arc::new(Stale::default());
    let error = call(&simulator, Arc::clone(&stale) as _, &patient()).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Token { .. }), "{error:?}");
    assert_eq!(error.retry(), Retry::Never);
    assert_eq!((stale.0.load(std::sync::atomic::Ordering::Relaxed), count()), (1, 4));
    assert!(!format!("{error:?}").contains("made-up"), "{error:?}");
}

async fn a_500_renews_the_token_only_if_it_has_expired() {
    let simulator = start(|settings| settings.knobs.gateway.expired_token = ExpiredToken::ServerError).await;
    let tokens = Granted::accounting(&simulator);
    simulator.provider().set_faults(vec![Fault { times: Some(1), ..rule(status(500)) }]);
    // Not the company list, which retries with another context.
    let accounting = client(&simulator).accounting(Arc::clone(&tokens) as _);
    let error = accounting.event_names(AccountingResource::Accounts, &patient()).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Server { .. }) && tokens.renewals() == 0, "{error:?}");

    pass(&simulator, 3_601);
    assert_eq!(call(&simulator, Arc::clone(&tokens) as _, &patient()).await.unwrap(), 3);

    assert_eq!(tokens.renewals(), 1);
}

async fn a_rejected_subscription_key_renews_no_token() {
    let simulator = start(|_| {}).await;
    let tokens = Granted::accounting(&simulator);
    let mut wrong = options(&simulator, None);
    wrong.subscription_key = Secret::new("no-key-of-ours");

    let error = companies(&client_of(&wrong, FREELY).accounting(Arc::clone(&tokens) as _), &patient()).await;

    let error = error.unwrap_err();
    assert!(matches!(error.cause, Cause::Key), "{error:?}");
    assert_eq!((error.retry(), error.status, tokens.renewals()), (Retry::Never, Some(401), 0));
    assert_eq!(simulator.provider().gateway.request_count(), 1);
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("no-key-of-ours") && !shown.contains(KEY), "{shown}");
}

async fn a_token_without_the_scope_or_company_is_forbidden() {
    let simulator = start(|_| {}).await;
    let payroll = Granted::payroll(&simulator);
    let scope = call(&simulator, payroll, &patient()).await.unwrap_err();
    assert!(matches!(scope.cause, Cause::Forbidden { by: AnsweredBy::Api }), "{scope:?}");
    assert!(scope.excerpt.as_deref().unwrap().contains("lacks the scope"), "{scope}");

    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let unknown = CompanyId::new("unknown").unwrap();
    let company = accounting.customers(&unknown, page(1, 10), &patient()).await.unwrap_err();

    assert!(matches!(company.cause, Cause::Forbidden { by: AnsweredBy::Api }), "{company:?}");
    assert_eq!(company.retry(), Retry::Never);
}

async fn a_timeout_names_its_limit() {
    let simulator = start(|_| {}).await;
    let tokens = Granted::accounting(&simulator);
    simulator.provider().set_faults(vec![rule(Effect::Delay(Latency::Fixed { milliseconds: 60_000.0 }))]);
    let short = Duration::from_secs(2);
    let limited = async |adjust: fn(&mut provider::Transport, Duration), within: Duration| {
        let mut options = options(&simulator, None);
        adjust(&mut options.transport, short);
        let accounting = client_of(&options, FREELY).accounting(Arc::clone(&tokens) as _);
        let error =
            companies(&accounting, &CallOptions::within(Priority::Webhook, within)).await.unwrap_err();
        assert_eq!((error.retry(), error.acted), (Retry::Later, Acted::Unknown), "{error:?}");
        match error.cause {
            Cause::Timeout { limit } => limit,
            other => panic!("{other:?}"),
        }
    };

    assert_eq!(limited(|transport, short| transport.read = short, super::LONG).await, Limit::Read);
    assert_eq!(limited(|transport, short| transport.request = short, super::LONG).await, Limit::Request);
    // Enough time to send, even on a loaded machine.
    assert_eq!(limited(|_, _| {}, Duration::from_secs(3)).await, Limit::Call);
}

async fn an_unreachable_provider_has_not_acted() {
    let simulator = start(|settings| settings.tls = Tls::Generated).await;
    let tokens = Granted::accounting(&simulator);
    let directory = tempfile::tempdir().unwrap();
    let mut nobody = options(&simulator, Some(&directory));
    nobody.base_url = "http://127.0.0.1:1".parse().unwrap();
    let mut untrusted = options(&simulator, Some(&directory));
    untrusted.transport.authorities = None;

    for options in [nobody, untrusted] {
        let accounting = client_of(&options, FREELY).accounting(Arc::clone(&tokens) as _);
        let error = companies(&accounting, &patient()).await.unwrap_err();

        assert!(matches!(error.cause, Cause::Unreachable(_)), "{error:?}");
        assert_eq!((error.retry(), error.acted, error.status), (Retry::Later, Acted::No, None), "{error:?}");
    }
}

async fn a_response_above_the_limit_is_not_read() {
    let simulator = start(|_| {}).await;
    let mut options = options(&simulator, None);
    options.transport.response_limit = 100;

    let accounting = client_of(&options, FREELY).accounting(Granted::accounting(&simulator));
    let error = companies(&accounting, &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::TooLarge { limit: 100 }), "{error:?}");
    assert_eq!((error.retry(), error.acted), (Retry::Never, Acted::Yes));
}

async fn wrong_types_are_kept_in_records_and_rejected_elsewhere() {
    let simulator = start(|_| {}).await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    simulator.provider().set_faults(vec![rule(Effect::WrongTypes)]);

    let companies = accounting.companies_numbered(page(1, 100), &patient()).await.unwrap();
    let names = accounting.event_names(AccountingResource::Accounts, &patient()).await.unwrap_err();
    let password = Secret::new("simulated-password");
    let login = client(&simulator).log_in("ana@example.com", &password, &patient()).await;

    assert_eq!(companies.rows.len(), 3);
    let company = &companies.rows[0];
    assert!(company.chart_of_account_id.is_none() && !company.to_json().is_empty(), "{company:?}");
    for error in [names, login.unwrap_err()] {
        assert!(matches!(error.cause, Cause::Malformed { .. }), "{error:?}");
        assert_eq!(error.retry(), Retry::Later);
    }
}

async fn a_call_without_a_token_sends_nothing() {
    let simulator = start(|_| {}).await;

    let error = call(&simulator, Arc::new(LoggedOut), &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::Access(_)), "{error:?}");
    assert_eq!((error.retry(), error.acted), (Retry::Never, Acted::No));
    assert_eq!(simulator.provider().gateway.request_count(), 0);
}

async fn a_failing_provider_rests_and_one_probe_asks_again() {
    let simulator = start(|_| {}).await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let count = || simulator.provider().gateway.request_count();
    simulator.provider().set_faults(vec![rule(status(503))]);

    for _ in 0..5 {
        companies(&accounting, &patient()).await.unwrap_err();
    }
    assert_eq!(count(), 5);
    let (mut tries, mut left) = (Tries::of("an open circuit makes a call wait"), 0..10);
    let (sent, waited) = loop {
        let sent = count();
        let short = CallOptions::within(Priority::Webhook, Duration::from_millis(100));
        let error = companies(&accounting, &short).await.unwrap_err();
        if tries.held(matches!(error.cause, Cause::Waited { .. })) {
            break (sent, error);
        }
        // The machine slept while the circuit was open: this was the probe, and the circuit opens for longer.
        assert!(left.next().is_some(), "{error:?}");
    };
    assert!(matches!(waited.retry(), Retry::After(_)), "{waited:?}");
    assert_eq!(count(), sent, "an open circuit lets nothing through");

    let slow = Effect::Delay(Latency::Fixed { milliseconds: 1_000.0 });
    simulator.provider().set_faults(vec![Fault { times: Some(1), ..rule(slow) }]);
    let (long, calls) = (patient(), 10);
    let answers = futures::future::join_all((0..calls).map(|_| companies(&accounting, &long)));
    let alone = async {
        loop {
            let requests = simulator.provider().gateway.requests(sent, 100);
            match requests.first() {
                Some((_, probe)) if probe.status.is_some() => return,
                Some(_) => assert_eq!(requests.len(), 1, "others went beside the probe"),
                None => {}
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (answers, ()) = tokio::join!(answers, alone);

    assert!(answers.into_iter().all(|answer| answer.unwrap() == 3));
    assert_eq!(count(), sent + calls as u64);
}
