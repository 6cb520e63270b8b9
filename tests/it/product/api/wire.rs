//! Every typed call against the simulated provider, and its requests on the wire.

use std::{sync::Arc, time::UNIX_EPOCH};

use base::{
    retry::{ErrorChain, Retry},
    secret::Secret,
};
use model::{
    AccountingResource, CompanyId, InvoicingAction, InvoicingEntity, InvoicingHook, Moment, RecordId,
    Traceparent, WebhookId,
};
use provider::api::{
    Accounting, Acted, AnsweredBy, ApiOptions, CallOptions, Cause, SubscribeRequest, UrlChange,
    invoicing::{InvoicingTokens, NewHook, Password},
};
use simulator::{
    Simulator,
    catalog::Resource,
    knobs::{
        AcknowledgeTime, ChangeAnswer, CompaniesContext, CompanyContext, Effect, Fault, FaultTarget,
        HttpStatus, MissingBody, ReceiverUrls,
    },
    settings::Tls,
    world::Place,
};

use super::{FREELY, Granted, client, client_of, options, page, patient};
use crate::product::simulator::{Client, RESOURCES, noon, receiver::Receiver, segment, start};

crate::tests! {
    plain requests_use_http_2_traces_and_compression;
    plain lists_and_records_are_what_the_provider_has;
    plain every_resource_is_read_and_managed_at_its_own_path;
    plain a_webhook_is_created_changed_and_deleted;
    plain a_rejected_subscription_shows_the_reason_without_secret;
    plain the_company_list_learns_its_context;
    plain a_company_by_id_learns_its_context;
    plain a_missing_webhook_is_the_apis_word_whatever_its_body;
    plain a_missing_record_is_the_apis_word_once_its_path_has_answered;
    plain a_lost_response_may_have_been_acted_on;
    plain invoicing_logs_in_by_password_and_manages_its_hooks;
}

async fn first_company(simulator: &Simulator) -> CompanyId {
    CompanyId::new(Client::accounting(simulator).companies().await.remove(0)).unwrap()
}

async fn requests_use_http_2_traces_and_compression() {
    let simulator = start(|settings| {
        settings.tls = Tls::Generated;
        settings.world.customers = 50;
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let options = ApiOptions { api_version: Some("2.1".to_owned()), ..options(&simulator, Some(&directory)) };
    let client = client_of(&options, FREELY);
    let company = first_company(&simulator).await;
    let accounting = client.accounting(Granted::accounting(&simulator));
    // Learn the number of the first page before.
    accounting.customers(&company, page(1, 1), &patient()).await.unwrap();
    let before = simulator.provider().gateway.request_count();
    let trace: Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let traced = CallOptions { trace: Some(trace), ..patient() };

    // Long enough to be compressed, and read completely.
    assert_eq!(accounting.customers(&company, page(1, 100), &traced).await.unwrap().rows.len(), 50);
    accounting.companies_numbered(page(1, 100), &patient()).await.unwrap();
    let password = Secret::new(simulator.provider().settings.invoicing.password.clone());
    let mail = simulator.provider().settings.invoicing.mail.clone();
    client.log_in(&mail, &password, &patient()).await.unwrap();

    let requests = simulator.provider().gateway.requests(before, 10);
    let [customers, companies, login] = [0, 1, 2].map(|place| &requests[place].1);
    for request in [customers, companies, login] {
        assert_eq!(request.protocol, "HTTP/2.0", "{request:?}");
        assert!(request.encoding.as_deref().unwrap().contains("gzip"), "{request:?}");
    }
    let traces = [customers, companies, login]
        .map(|request| request.traceparent.as_deref().unwrap().parse::<Traceparent>().unwrap().to_string());
    // Version and trace id end at 35, the parent id at 52; the last two digits are the flags.
    let sent = trace.to_string();
    assert_eq!(traces[0][..35], sent[..35]);
    assert!(traces[0].ends_with("-01") && traces[0][36..52] != sent[36..52], "{}", traces[0]);
    assert_ne!(traces[1][3..35], traces[2][3..35]);
    assert_eq!(customers.company.as_deref(), Some(company.as_str()));
    assert_eq!((companies.api_version.as_deref(), login.api_version.as_deref()), (None, Some("2.1")));
}

async fn lists_and_records_are_what_the_provider_has() {
    let simulator = start(|settings| settings.knobs.reads.template_accounts = 1).await;
    let raw = Client::accounting(&simulator);
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));

    let companies = accounting.companies_numbered(page(1, 100), &patient()).await.unwrap();
    let ids: Vec<_> = companies.rows.iter().map(|row| row.correlation_id.clone().unwrap()).collect();
    assert_eq!(ids, raw.companies().await);
    let date = companies.times.date.unwrap().duration_since(UNIX_EPOCH).unwrap();
    let date = Moment::from_micros(i64::try_from(date.as_micros()).unwrap());
    assert_eq!(Some(date), Moment::parse(&noon().iso()));
    assert!(companies.times.sent <= companies.times.answered);

    let company = CompanyId::new(ids[1].clone()).unwrap();
    let there = raw.company(company.as_str());
    let customers = accounting.customers(&company, page(2, 3), &patient()).await.unwrap();
    let expected = there.get("/accounting/api/customers?pageNumber=2&pageSize=3").await.rows();
    let rows: Vec<_> = customers.rows.iter().map(|row| json(&row.to_json())).collect();
    assert_eq!((&rows, customers.number, customers.asked), (&expected, 2, 3));
    let written = customers.raw.iter().map(|row| json(std::str::from_utf8(row).unwrap()));
    assert_eq!(written.collect::<Vec<_>>(), expected);
    assert_eq!(customers.rows[0].company_id, company);

    let accounts = accounting.accounts(&company, page(1, 100), &patient()).await.unwrap();
    assert_eq!(accounts.rows.len(), 5);
    let template = accounts.rows.iter().find(|row| row.correlation_id.is_none()).unwrap();
    assert_eq!(template.state.as_deref(), Some("Template"));

    let id = accounts.rows[0].correlation_id.clone().unwrap();
    let path = format!("/accounting/api/accounts/{}", segment(&id));
    let record = RecordId::new(id).unwrap();
    let document =
        accounting.record(AccountingResource::Accounts, Some(&company), &record, &patient()).await.unwrap();
    assert_eq!(document.json, there.get(&path).await.body);
    let unknown = RecordId::new("no/such?id#").unwrap();
    let error = accounting.record(AccountingResource::Accounts, Some(&company), &unknown, &patient()).await;
    assert!(matches!(error.unwrap_err().cause, Cause::NotFound { by: provider::api::AnsweredBy::Api }));
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

async fn every_resource_is_read_and_managed_at_its_own_path() {
    let simulator = start(|settings| settings.world.tenant_resources = [Resource::Persons].into()).await;
    let company = first_company(&simulator).await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));

    for (resource, (_, path)) in AccountingResource::all().zip(RESOURCES) {
        let before = simulator.provider().gateway.request_count();
        let names = accounting.event_names(resource, &patient()).await.unwrap();
        assert!(
            !names.is_empty() && names.iter().all(|name| name.starts_with("Svc.")),
            "{resource}: {names:?}"
        );

        let company = (resource != AccountingResource::Persons).then_some(&company);
        let missing = RecordId::new("missing").unwrap();
        let error = accounting.record(resource, company, &missing, &patient()).await.unwrap_err();
        assert!(matches!(error.cause, Cause::NotFound { .. }), "{resource}: {error:?}");
        let targets: Vec<_> = simulator.provider().gateway.requests(before, 10);
        let mut targets: Vec<_> = targets.iter().map(|(_, request)| request.target.as_str()).collect();
        // A company is requested with each context until one works.
        targets.dedup();
        assert_eq!(targets, [format!("{path}/webhooks/events"), format!("{path}/missing")]);
    }
}

pub(super) fn subscription(events: Vec<String>) -> SubscribeRequest {
    SubscribeRequest {
        application: "tributary".into(),
        url: "https://receiver.example/webhooks/accounting/books".into(),
        secret: Secret::new("a-secret-for-signing-deliveries"),
        events,
    }
}

async fn a_webhook_is_created_changed_and_deleted() {
    let receiver = Receiver::accepting().await;
    let simulator = start(|settings| {
        settings.knobs.accounting.acknowledge = AcknowledgeTime::BeforeAnswer;
        settings.knobs.delivery.receivers = ReceiverUrls::Any;
    })
    .await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let resource = AccountingResource::IssuedInvoices;
    let events = accounting.event_names(resource, &patient()).await.unwrap();
    let wanted = SubscribeRequest { url: receiver.url("/books"), ..subscription(events.clone()) };

    let made = accounting.subscribe(resource, &wanted, &patient()).await.unwrap();
    assert_eq!((made.state, made.errors.len()), (Some(3), 0));
    let id = made.webhook.unwrap();
    let webhook = accounting.webhook(resource, &id, &patient()).await.unwrap();
    assert_eq!(webhook.url.as_ref(), Some(&wanted.url));
    assert_eq!(webhook.application.as_deref(), Some("tributary"));
    let names: Vec<_> = webhook.events.iter().filter_map(|event| event.semantic_name.clone()).collect();
    assert_eq!(names, events);
    assert_eq!(webhook.deleted, Some(false));
    assert!(!format!("{webhook:?}").contains(wanted.secret.reveal()), "{webhook:?}");

    for enable in [false, true] {
        let done = accounting.set_enabled(resource, &id, enable, &patient()).await.unwrap();
        assert_eq!((done.state, done.webhook.as_ref()), (Some(7), Some(&id)));
        assert_eq!(accounting.webhook(resource, &id, &patient()).await.unwrap().active, Some(enable));
    }
    for answer in [ChangeAnswer::Result, ChangeAnswer::Record, ChangeAnswer::Nothing] {
        simulator.provider().turn(|knobs| knobs.accounting.change_answer = answer);
        let url = receiver.url(&format!("/{answer:?}"));
        let changed = accounting.change_url(resource, &id, &url, &patient()).await.unwrap();
        match (answer, &changed) {
            (ChangeAnswer::Result, UrlChange::Operation(_)) | (ChangeAnswer::Nothing, UrlChange::Nothing) => {
            }
            (ChangeAnswer::Record, UrlChange::Webhook(webhook)) => {
                assert_eq!(webhook.url.as_ref(), Some(&url))
            }
            _ => panic!("{answer:?}: {changed:?}"),
        }
        assert_eq!(accounting.webhook(resource, &id, &patient()).await.unwrap().url, Some(url));
    }

    assert_eq!(accounting.delete_webhook(resource, &id, &patient()).await.unwrap().state, Some(5));
    let gone = accounting.webhook(resource, &id, &patient()).await.unwrap();
    assert_eq!((gone.deleted, gone.active), (Some(true), Some(false)));
    let unknown = WebhookId::new("..").unwrap();
    let error = accounting.webhook(resource, &unknown, &patient()).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Unaddressable) && error.acted == Acted::No, "{error:?}");
}

async fn a_rejected_subscription_shows_the_reason_without_secret() {
    let simulator = start(|_| {}).await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let mut wrong = subscription(vec!["a-secret-for-signing-deliveries".into()]);
    wrong.application = String::new();

    let error = accounting.subscribe(AccountingResource::Accounts, &wrong, &patient()).await.unwrap_err();

    assert!(matches!(error.cause, Cause::Refused), "{error:?}");
    assert_eq!((error.retry(), error.acted), (Retry::Never, Acted::No));
    let shown = ErrorChain(&error).to_string();
    assert!(shown.contains("thirdPartyApplicationName") && !shown.contains("a-secret"), "{shown}");
}

async fn the_company_list_learns_its_context() {
    let simulator = start(|_| {}).await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let mut sent = Vec::new();

    for wanted in
        [CompaniesContext::None, CompaniesContext::None, CompaniesContext::Absent, CompaniesContext::Either]
    {
        simulator.provider().turn(|knobs| knobs.reads.companies_context = wanted);
        let before = simulator.provider().gateway.request_count();
        assert_eq!(
            accounting.companies_numbered(page(1, 10), &patient()).await.unwrap().rows.len(),
            3,
            "{wanted:?}"
        );
        sent.push(simulator.provider().gateway.request_count() - before);
    }

    assert_eq!(sent, [2, 1, 2, 1]);
}

async fn a_company_by_id_learns_its_context() {
    use CompanyContext::{Absent, Any, Company, None};
    let simulator = start(|_| {}).await;
    let id = RecordId::new(first_company(&simulator).await.as_str()).unwrap();
    let read = async |accounting: &Accounting| {
        let before = simulator.provider().gateway.request_count();
        let read = accounting.record(AccountingResource::Companies, Option::None, &id, &patient()).await;
        assert!(read.is_ok(), "{read:?}");
        simulator.provider().gateway.request_count() - before
    };
    for (wanted, first) in [(Company, 1), (None, 2), (Absent, 3), (Any, 1)] {
        let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
        simulator.provider().turn(|knobs| knobs.reads.records.company_context = wanted);

        assert_eq!((read(&accounting).await, read(&accounting).await), (first, 1), "{wanted:?}");
    }
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    for wanted in [None, Absent, Company] {
        simulator.provider().turn(|knobs| knobs.reads.records.company_context = wanted);
        read(&accounting).await;
        assert_eq!(read(&accounting).await, 1, "{wanted:?}");
    }
}

async fn a_missing_webhook_is_the_apis_word_whatever_its_body() {
    let simulator = start(|_| {}).await;
    let provider = simulator.provider();
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let (resource, id) =
        (AccountingResource::Customers, WebhookId::new("0b9d4c8e-0000-4000-8000-000000000000").unwrap());
    let unknown_events = Fault {
        on: FaultTarget { ending: Some("/webhooks/events".to_owned()), ..FaultTarget::default() },
        effect: Effect::UnknownPath,
        share: 1.0,
        times: None,
        skip: 0,
    };
    for status in [404, 410] {
        for body in MissingBody::ALL {
            for faults in [vec![], vec![unknown_events.clone()]] {
                provider.turn(|knobs| {
                    let records = &mut knobs.reads.records;
                    (records.missing_status, records.missing_body) = (HttpStatus::new(status).unwrap(), body);
                });
                let are_known = faults.is_empty();
                provider.set_faults(faults);

                let missing = [
                    accounting.webhook(resource, &id, &patient()).await.map(drop),
                    accounting.delete_webhook(resource, &id, &patient()).await.map(drop),
                    accounting.set_enabled(resource, &id, true, &patient()).await.map(drop),
                    accounting
                        .change_url(resource, &id, "https://hooks.example.com", &patient())
                        .await
                        .map(drop),
                ];

                let by = match body {
                    MissingBody::Gateway => AnsweredBy::Gateway,
                    MissingBody::Api => AnsweredBy::Api,
                    _ if are_known => AnsweredBy::Api,
                    _ => AnsweredBy::Unknown,
                };
                for error in missing.map(Result::unwrap_err) {
                    assert_eq!(
                        (error.status, error.missing()),
                        (Some(status), Some(by)),
                        "{body:?} {error:?}"
                    );
                }
            }
        }
    }
}

async fn a_missing_record_is_the_apis_word_once_its_path_has_answered() {
    let simulator = start(|_| {}).await;
    let company = first_company(&simulator).await;
    let (resource, there) = {
        let world = simulator.provider().world();
        let place = Place { resource: Resource::Journals, company: Some(0), index: 0 };
        (AccountingResource::Journals, RecordId::new(world.id(place)).unwrap())
    };
    let missing = RecordId::new("never-was").unwrap();
    for status in [HttpStatus::NOT_FOUND, HttpStatus::GONE] {
        for body in MissingBody::ALL {
            simulator.provider().turn(|knobs| {
                let records = &mut knobs.reads.records;
                (records.missing_status, records.missing_body) = (status, body);
            });
            let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
            let by = async || {
                let read = accounting.record(resource, Some(&company), &missing, &patient()).await;
                read.unwrap_err().missing()
            };
            let by_body = match body {
                MissingBody::Api => AnsweredBy::Api,
                MissingBody::Gateway => AnsweredBy::Gateway,
                _ => AnsweredBy::Unknown,
            };

            assert_eq!(by().await, Some(by_body), "{body:?}");
            accounting.record(resource, Some(&company), &there, &patient()).await.unwrap();
            // A refusal by the gateway needs a later proof.
            let after = if by_body == AnsweredBy::Gateway { AnsweredBy::Gateway } else { AnsweredBy::Api };
            assert_eq!(by().await, Some(after), "{body:?}");
        }
    }
}

async fn a_lost_response_may_have_been_acted_on() {
    let simulator = start(|settings| settings.knobs.delivery.hold = true).await;
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    let events = accounting.event_names(AccountingResource::Accounts, &patient()).await.unwrap();
    let on = FaultTarget { method: Some("POST".into()), ..FaultTarget::default() };
    simulator.provider().set_faults(vec![Fault {
        on,
        effect: Effect::LoseAnswer,
        share: 1.0,
        times: Some(1),
        skip: 0,
    }]);

    let error = accounting.subscribe(AccountingResource::Accounts, &subscription(events), &patient()).await;

    let error = error.unwrap_err();
    assert_eq!((error.acted, error.retry()), (Acted::Unknown, Retry::Later), "{error:?}");
    let posts = simulator.provider().gateway.requests(1, 10);
    assert_eq!(posts.len(), 1, "a POST that may have been acted on was sent again: {posts:?}");
}

pub(super) fn way(simulator: &Simulator, password: &str) -> Password {
    let account = &simulator.provider().settings.invoicing;
    Password { mail: account.mail.clone(), password: Secret::new(password), company: None }
}

async fn invoicing_logs_in_by_password_and_manages_its_hooks() {
    let simulator = start(|settings| {
        settings.world.invoicing_companies = 2;
        settings.knobs.invoicing.check_origin = false;
        settings.knobs.delivery.hold = true;
    })
    .await;
    let client = client(&simulator);
    let password = simulator.provider().settings.invoicing.password.clone();
    let login = InvoicingTokens::new(client.clone(), Arc::new(way(&simulator, &password)));
    let invoicing = client.invoicing(Arc::new(login));
    assert_eq!(invoicing.hooks(&patient()).await.unwrap(), []);
    let new = NewHook {
        uri: "https://receiver.example/api/webhooks/incoming/Invoicing".into(),
        hook: InvoicingHook { entity: InvoicingEntity::SaleInvoice, action: InvoicingAction::Updated },
        secret: Secret::new("0123456789-0123456789-0123456789-abc"),
        is_paused: true,
        application_name: "tributary".into(),
        description: "books".into(),
    };

    let made = invoicing.create_hook(&new, &patient()).await.unwrap().unwrap();
    simulator.provider().turn(|knobs| knobs.invoicing.silent = true);
    assert_eq!(invoicing.create_hook(&new, &patient()).await.unwrap(), None);
    let hooks = invoicing.hooks(&patient()).await.unwrap();

    assert_eq!((hooks.len(), &hooks[0]), (2, &made));
    assert_eq!(made.entity.as_deref().zip(made.action.as_deref()), Some(("SaleInvoice", "Updated")));
    assert_eq!((made.is_paused, made.description.as_deref()), (Some(true), Some("books")));
    // The user's default company is the first.
    assert!(simulator.provider().invoicing.hooks().iter().all(|hook| hook.subject.company == 0));
    for hook in hooks {
        invoicing.delete_hook(&hook.id.unwrap(), &patient()).await.unwrap();
    }
    assert_eq!(invoicing.hooks(&patient()).await.unwrap(), []);
    let short = NewHook { secret: Secret::new("too-short"), ..new };
    let error = invoicing.create_hook(&short, &patient()).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Refused) && error.excerpt.is_some(), "{error:?}");
    assert!(!ErrorChain(&error).to_string().contains("too-short"), "{error}");
}
