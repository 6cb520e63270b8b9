//! Behavior of the client on unusual responses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use base::{
    metrics::ApiWait,
    retry::{ErrorChain, Retry},
    secret::Secret,
};
use model::{AccountingResource, CompanyId, Moment, RecordId, WebhookId};
use provider::{
    api::{
        Acted, AnsweredBy, Budget, CallOptions, Cause, Client, Limit, PayrollRequest, Priority, Rates, Reach,
    },
    auth::{self, Access, Tokens, http::ProviderClock},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::Notify,
    time::{Instant, timeout},
};

use super::wire::subscription;
use super::{
    FREELY, LONG, Stale,
    canned::{Canned, Reply, answer},
    client_of, page, patient,
};

crate::tests! {
    plain a_wait_of_a_failing_host_is_reported;
    plain a_read_bypasses_caches_and_reports_the_age;
    plain a_failed_post_with_an_expired_token_is_not_repeated;
    plain a_call_holds_no_permit_while_it_waits_for_a_token;
    plain the_company_list_is_retried_once_with_the_other_context;
    plain a_missing_permission_costs_one_token_and_names_the_login;
    plain a_silent_host_opens_the_circuit_even_for_short_calls;
    plain a_connect_timeout_names_its_limit;
    plain an_html_page_is_reported_with_its_first_words;
    plain an_unsendable_token_is_reported_and_not_sent;
    plain only_200_is_a_success_of_a_read;
    plain only_the_requested_record_proves_its_path;
}

fn json(status: u16, body: &str) -> Reply {
    Reply::Now(answer(status, "content-type: application/json\r\n", body))
}

async fn a_wait_of_a_failing_host_is_reported() {
    let provider = Canned::start(|_| Reply::Now(answer(503, "retry-after: 9\r\n", "busy"))).await;
    let accounting = client_of(&provider.options(), FREELY).accounting(Arc::new(Stale::default()));

    let error = accounting.event_names(AccountingResource::Accounts, &patient()).await.unwrap_err();

    assert_eq!((error.retry(), error.acted), (Retry::After(Duration::from_secs(9)), Acted::Unknown));
    assert_eq!((error.reach(), error.excerpt.as_deref()), (Reach::Everything, Some("busy")));
}

async fn a_read_bypasses_caches_and_reports_the_age() {
    let provider = Canned::start(|_| Reply::Now(answer(200, "age: 7\r\n", "[]"))).await;
    let accounting = client_of(&provider.options(), FREELY).accounting(Arc::new(Stale::default()));

    let companies = accounting.companies_numbered(page(1, 10), &patient()).await.unwrap();

    assert_eq!(companies.times.age, Some(Duration::from_secs(7)));
    assert!(provider.heads()[0].contains("cache-control: no-cache"), "{:?}", provider.heads());
}

/// Tokens that live for a while; waiting for the second one fails.
#[derive(Debug)]
struct Ending {
    life: Duration,
    given: AtomicUsize,
    wanted: Notify,
}

impl Ending {
    fn new(life: Duration) -> Arc<Self> {
        Arc::new(Self { life, given: AtomicUsize::new(0), wanted: Notify::new() })
    }
}

#[async_trait]
impl Tokens for Ending {
    async fn token(&self, end: Instant) -> Result<Access, auth::Error> {
        let serial = self.given.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        if serial > 1 {
            self.wanted.notify_one();
            tokio::time::sleep_until(end).await;
            return Err(auth::Error::Pending { grant: "acc".into(), waited: Duration::ZERO });
        }
        let life_ms = i64::try_from(self.life.as_millis()).unwrap();
        let expires_ms = Some(Moment::now().micros() / 1_000 + life_ms);
        Ok(Access { header: Secret::new("Bearer first"), serial, expires_ms })
    }

    async fn instead_of(&self, _: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.token(end).await
    }
}

async fn a_failed_post_with_an_expired_token_is_not_repeated() {
    let late = Duration::from_secs(12);
    let provider = Canned::start(move |_| Reply::After(late, answer(500, "", ""))).await;
    let tokens = Ending::new(late / 2);
    let accounting = client_of(&provider.options(), FREELY).accounting(Arc::clone(&tokens) as _);

    let wanted = subscription(vec!["Svc.A".into()]);
    let error = accounting.subscribe(AccountingResource::Accounts, &wanted, &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::Server { .. }), "{error:?}");
    assert_eq!((error.acted, provider.heads().len()), (Acted::Unknown, 1));
    assert_eq!(tokens.given.load(Ordering::Relaxed), 1);
}

async fn a_call_holds_no_permit_while_it_waits_for_a_token() {
    let provider = Canned::start(|_| json(200, "[]")).await;
    // The second permit comes after five seconds, when the token has expired.
    let rates = Rates { application: 0.2, company: 0.2, in_flight: 1 };
    let budget = Budget::new(rates);
    let clock = ProviderClock::new(Duration::from_secs(300));
    let client = Client::new(&provider.options(), budget.clone(), clock).unwrap();
    let tokens = Ending::new(Duration::from_secs(1));
    drop(budget.admit(Priority::Webhook, None, Instant::now() + LONG).await.unwrap());

    let accounting = client.accounting(Arc::clone(&tokens) as _);
    let call = tokio::spawn(async move { accounting.companies_numbered(page(1, 10), &patient()).await });
    timeout(LONG, tokens.wanted.notified()).await.unwrap();

    assert_eq!(budget.status().in_flight, 0, "a turn is kept while a token is waited for");
    timeout(LONG, budget.admit(Priority::Repair, None, Instant::now() + LONG)).await.unwrap().unwrap();
    call.abort();
    assert_eq!(provider.heads(), Vec::<String>::new());
}

async fn the_company_list_is_retried_once_with_the_other_context() {
    for status in [400, 403, 404, 422, 500] {
        let provider = Canned::start(move |head| match head.contains("\r\ncontext: none") {
            true => json(200, "[]"),
            false => json(status, "{}"),
        })
        .await;
        let client = client_of(&provider.options(), FREELY);

        for requests in [2, 3, 4] {
            // The client remembers it, for all its users.
            let accounting = client.accounting(Arc::new(Stale::default()));
            accounting.companies_numbered(page(1, 10), &patient()).await.unwrap();
            assert_eq!(provider.heads().len(), requests, "{status}");
        }
    }
    for (status, requests) in [(503, 1), (401, 2), (404, 2)] {
        let provider = Canned::start(move |_| json(status, "{}")).await;
        let accounting = client_of(&provider.options(), FREELY).accounting(Arc::new(Stale::default()));

        let error = accounting.companies_numbered(page(1, 10), &patient()).await.unwrap_err();

        assert_eq!((error.status, provider.heads().len()), (Some(status), requests));
    }
}

/// One valid token, and a remedy.
#[derive(Debug, Default)]
struct Named(Stale);

#[async_trait]
impl Tokens for Named {
    async fn token(&self, end: Instant) -> Result<Access, auth::Error> {
        self.0.token(end).await
    }

    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.0.instead_of(refused, end).await
    }

    fn remedy(&self) -> Option<String> {
        Some("the grant books: run `tributary auth login`".into())
    }
}

async fn a_missing_permission_costs_one_token_and_names_the_login() {
    let provider = Canned::start(|head| match head.contains("/webhooks/events") {
        true => json(401, "{}"),
        false => json(200, "[]"),
    })
    .await;
    let tokens = Arc::new(Named::default());
    let accounting = client_of(&provider.options(), FREELY).accounting(Arc::clone(&tokens) as _);
    accounting.companies_numbered(page(1, 10), &patient()).await.unwrap();

    for requests in [3, 4, 5] {
        let error = accounting.event_names(AccountingResource::Accounts, &patient()).await.unwrap_err();
        let shown = ErrorChain(&error).to_string();
        assert!(shown.contains("the grant books: run `tributary auth login`"), "{shown}");
        assert_eq!((error.retry(), error.reach()), (Retry::Never, Reach::Grant));
        assert_eq!((tokens.0.0.load(Ordering::Relaxed), provider.heads().len()), (1, requests));
    }
    // The refusal is per endpoint: at another one the token may have expired.
    accounting.event_names(AccountingResource::Customers, &patient()).await.unwrap_err();
    assert_eq!(tokens.0.0.load(Ordering::Relaxed), 2);
}

async fn a_silent_host_opens_the_circuit_even_for_short_calls() {
    let provider = Canned::start(|_| Reply::Never).await;
    let mut options = provider.options();
    options.transport.read = Duration::from_millis(400);
    options.transport.connect = Duration::from_millis(200);
    let accounting = client_of(&options, FREELY).accounting(Arc::new(Stale::default()));
    let short = || CallOptions::within(Priority::Webhook, Duration::from_millis(300));

    let mut calls = 0;
    loop {
        calls += 1;
        let error = accounting.companies_numbered(page(1, 10), &short()).await.unwrap_err();
        if matches!(error.cause, Cause::Waited { what: ApiWait::Circuit, .. }) {
            break;
        }
        // A loaded machine may miss some deadlines before sending, which says nothing about the host, or sleep while the circuit
        // is open.
        assert!(calls < 20, "{error:?}");
    }

    assert!(calls > 5, "it was left alone after {} calls", calls - 1);
}

async fn a_connect_timeout_names_its_limit() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // These connections are never accepted, so the backlog fills up.
    let mut waiting = Vec::new();
    while let Ok(stream) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    let provider = Canned::start(|_| Reply::Never).await;
    let mut options = provider.options();
    options.base_url = format!("http://{address}").parse().unwrap();
    options.transport.connect = Duration::from_millis(200);

    let accounting = client_of(&options, FREELY).accounting(Arc::new(Stale::default()));
    let error = accounting.companies_numbered(page(1, 10), &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::Timeout { limit: Limit::Connect }), "{error:?}");
    assert_eq!((error.retry(), error.acted), (Retry::Later, Acted::No));
}

async fn an_html_page_is_reported_with_its_first_words() {
    let long = "a word ".repeat(1 << 20);
    let provider =
        Canned::start(move |_| Reply::Now(answer(200, "content-type: text/html\r\n", &long))).await;
    let accounting = client_of(&provider.options(), FREELY).accounting(Arc::new(Stale::default()));

    let error = accounting.companies_numbered(page(1, 10), &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::NotJson), "{error:?}");
    assert!(error.excerpt.is_some_and(|words| words.starts_with("a word a word") && words.len() == 200));
}

/// A token that is not a valid header value.
#[derive(Debug)]
struct Broken;

#[async_trait]
impl Tokens for Broken {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        Ok(Access { header: Secret::new("Bearer a\nb"), serial: 1, expires_ms: None })
    }

    async fn instead_of(&self, _: &Access, end: Instant) -> Result<Access, auth::Error> {
        self.token(end).await
    }
}

async fn an_unsendable_token_is_reported_and_not_sent() {
    let provider = Canned::start(|_| json(200, "[]")).await;
    let accounting = client_of(&provider.options(), FREELY).accounting(Arc::new(Broken));

    let error = accounting.companies_numbered(page(1, 10), &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::Unsendable), "{error:?}");
    assert_eq!((error.retry(), error.acted, error.reach()), (Retry::Never, Acted::No, Reach::Grant));
    assert!(provider.heads().is_empty());
}

/// Lists and records document status 200. Webhook operations document no status, so any 2xx is a success.
async fn only_200_is_a_success_of_a_read() {
    for (status, body) in [(200, "[]"), (201, "[]"), (202, ""), (203, "[]"), (204, ""), (206, "[]")] {
        let provider = Canned::start(move |head| {
            let is_record = head.starts_with("get /accounting/api/customers/r ")
                || head.starts_with("get /accounting/api/customers/webhooks/w ");
            json(status, if is_record || head.starts_with("put") { "{}" } else { body })
        })
        .await;
        let client = client_of(&provider.options(), FREELY);
        let accounting = client.accounting(Arc::new(Stale::default()));
        let payroll = client.payroll(Arc::new(Stale::default()));
        let invoicing = client.invoicing(Arc::new(Stale::default()));
        let (company, id) = (CompanyId::new("c").unwrap(), RecordId::new("r").unwrap());
        let webhook = WebhookId::new("w").unwrap();
        let wanted = PayrollRequest { page: page(1, 10), filter: None, order_by: None };

        let reads = [
            accounting.companies_numbered(page(1, 10), &patient()).await.map(drop),
            accounting.customers(&company, page(1, 10), &patient()).await.map(drop),
            accounting.accounts(&company, page(1, 10), &patient()).await.map(drop),
            accounting.record(AccountingResource::Customers, Some(&company), &id, &patient()).await.map(drop),
            accounting.event_names(AccountingResource::Customers, &patient()).await.map(drop),
            payroll.companies(wanted, &patient()).await.map(drop),
            accounting.webhook(AccountingResource::Customers, &webhook, &patient()).await.map(drop),
            invoicing.hooks(&patient()).await.map(drop),
        ];
        let url = "https://hooks.example.com";
        let managed = accounting.change_url(AccountingResource::Customers, &webhook, url, &patient()).await;

        assert!(managed.is_ok(), "{status}");
        for read in reads {
            let Err(error) = read else {
                assert_eq!(status, 200);
                continue;
            };
            assert_ne!(status, 200, "{error:?}");
            assert_eq!((error.status, error.retry()), (Some(status), Retry::Later), "{error:?}");
            assert!(ErrorChain(&error).to_string().contains("only 200 is documented"), "{error:?}");
        }
    }
}

async fn only_the_requested_record_proves_its_path() {
    let provider = Canned::start(|head| match head.split('?').next().unwrap_or_default() {
        head if head.contains("there") => json(200, r#"{"correlationId":"there"}"#),
        head if head.contains("other") => json(200, r#"{"correlationId":"welcome"}"#),
        _ => Reply::Now(answer(404, "", "")),
    })
    .await;
    let client = client_of(&provider.options(), FREELY).accounting(Arc::new(Stale::default()));
    let missing = async |first: &str| {
        let [first, id] = [first, "never-was"].map(|id| RecordId::new(id).unwrap());
        let read = async |id| client.record(AccountingResource::Journals, None, id, &patient()).await;
        read(&first).await.unwrap();
        read(&id).await.unwrap_err().missing()
    };

    assert_eq!(missing("other").await, Some(AnsweredBy::Unknown));
    assert_eq!(missing("there").await, Some(AnsweredBy::Api));
}
