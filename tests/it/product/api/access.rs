//! State that the tasks of a worker share when they call the provider.

use std::{sync::Arc, time::Duration};

use base::{
    retry::{ErrorChain, Retry},
    secret::Secret,
};
use provider::{
    api::{CallOptions, Cause, Priority, Rates},
    auth,
};
use simulator::Simulator;
use tributary::{
    config::connector::InvoicingLogin,
    logins::{
        Grants, IdentityHosts,
        access::{ApiAccess, ApiUser},
    },
};

use super::{FREELY, page, patient};
use crate::product::{
    access::provider,
    simulator::{invoicing::chosen, start},
};

crate::tests! {
    plain connectors_of_one_invoicing_user_log_in_once;
    plain a_rejected_password_is_tried_once_per_start;
    plain a_supplied_token_needs_no_login_and_a_refused_one_a_person;
    plain connectors_with_the_same_key_share_a_budget;
    plain a_call_without_grants_sends_nothing;
}

fn access() -> ApiAccess {
    ApiAccess::new(Grants::default(), Arc::new(IdentityHosts::new(Duration::from_secs(300))), |_| true)
}

fn login(simulator: &Simulator, password: Option<&str>) -> InvoicingLogin {
    let account = &simulator.provider().settings.invoicing;
    let password = Secret::new(password.unwrap_or(&account.password));
    InvoicingLogin::Password { mail: account.mail.clone(), password, company: None }
}

/// Number of login requests to invoicing.
fn logins(simulator: &Simulator) -> usize {
    let requests = simulator.provider().gateway.requests(0, usize::MAX);
    requests.iter().filter(|(_, request)| request.target.ends_with("/users/login")).count()
}

async fn connectors_of_one_invoicing_user_log_in_once() {
    let simulator = start(|_| {}).await;
    let (access, provider) = (access(), provider(&simulator));
    let login = login(&simulator, None);
    let of = |connector| {
        let party = ApiUser { rates: Some(FREELY), ..ApiUser::new(connector, &provider) };
        access.invoicing(&party, &login).unwrap()
    };

    let (books, shop, again) = (of("books"), of("shop"), of("books"));
    let ask = patient();
    let answers = tokio::join!(books.hooks(&ask), shop.hooks(&ask), again.hooks(&ask));

    assert!(answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok(), "{answers:?}");
    assert_eq!(logins(&simulator), 1);
}

async fn a_rejected_password_is_tried_once_per_start() {
    let simulator = start(|_| {}).await;
    let (access, provider) = (access(), provider(&simulator));
    let (wrong, right) = (login(&simulator, Some("wrong-password")), login(&simulator, None));
    let party = ApiUser { rates: Some(FREELY), ..ApiUser::new("books", &provider) };

    for begun in 1..=2 {
        let invoicing = access.invoicing(&party, &wrong).unwrap();
        for _ in 0..3 {
            let error = invoicing.hooks(&patient()).await.unwrap_err();
            assert_eq!(error.retry(), Retry::Never);
            assert!(!ErrorChain(&error).to_string().contains("wrong-password"), "{error:?}");
        }
        assert_eq!(logins(&simulator), begun);
    }
    access.invoicing(&party, &right).unwrap().hooks(&patient()).await.unwrap();

    assert_eq!(logins(&simulator), 3);
}

async fn a_supplied_token_needs_no_login_and_a_refused_one_a_person() {
    let simulator = start(|_| {}).await;
    let (access, provider) = (access(), provider(&simulator));
    let party = ApiUser { rates: Some(FREELY), ..ApiUser::new("books", &provider) };
    let token = chosen(&simulator, 0).await.authorization.unwrap();
    let begun = logins(&simulator);

    // With and without the scheme that the provider writes before it.
    for token in [&*token, token.strip_prefix("Bearer ").unwrap()] {
        let invoicing = access.invoicing(&party, &InvoicingLogin::Token(Secret::new(token))).unwrap();
        invoicing.hooks(&patient()).await.unwrap();
    }
    let refused = access.invoicing(&party, &InvoicingLogin::Token(Secret::new("hunter2"))).unwrap();
    let sent = simulator.provider().gateway.request_count();
    for _ in 0..3 {
        let error = refused.hooks(&patient()).await.unwrap_err();
        let reported = ErrorChain(&error).to_string();
        assert_eq!(error.retry(), Retry::Never);
        assert!(reported.contains("invoicing.login.token") && !reported.contains("hunter2"), "{reported}");
    }

    assert_eq!(simulator.provider().gateway.request_count(), sent + 1, "it is sent once");
    assert_eq!(logins(&simulator), begun);
}

async fn connectors_with_the_same_key_share_a_budget() {
    let simulator = start(|_| {}).await;
    let access = access();
    let provider = provider(&simulator);
    let mut slower = provider.clone();
    slower.transport.read = Duration::from_secs(20);
    // The first request is admitted at once; each further one waits for fifty seconds.
    let rates = Some(Rates { application: 0.02, company: 100.0, ..Rates::default() });
    let login = login(&simulator, None);
    let first = access.invoicing(&ApiUser { rates, ..ApiUser::new("books", &provider) }, &login).unwrap();
    let other = access.invoicing(&ApiUser { rates, ..ApiUser::new("shop", &slower) }, &login).unwrap();
    let brief = || CallOptions::within(Priority::Webhook, Duration::from_secs(5));

    first.hooks(&brief()).await.unwrap_err();
    let sent = simulator.provider().gateway.request_count();
    let error = other.hooks(&brief()).await.unwrap_err();

    assert_eq!(sent, 1, "the login took the one turn that there was");
    assert_eq!(simulator.provider().gateway.request_count(), sent, "another client has a separate budget");
    assert!(error.status.is_none(), "{error:?}");
}

async fn a_call_without_grants_sends_nothing() {
    let simulator = start(|_| {}).await;
    let (access, provider) = (access(), provider(&simulator));
    let accounting = access.accounting(&ApiUser::new("books", &provider)).unwrap();

    let error = accounting.companies_numbered(page(1, 10), &patient()).await.unwrap_err();

    let Cause::Access(cause) = &error.cause else { panic!("{error:?}") };
    assert!(matches!(**cause, auth::Error::NoKey), "{cause:?}");
    assert_eq!(simulator.provider().gateway.request_count(), 0);
}
