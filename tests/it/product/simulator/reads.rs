//! Reads: documented fields, all nineteen paths by id, and `context`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use simulator::{
    Simulator,
    catalog::{Kind, Resource},
    control,
    knobs::{CompaniesContext, CompanyContext, DisabledShows, HttpStatus, LeftOut, MissingBody},
    world::WorldChange,
};

use super::{Answer, Client, RESOURCES, segment, start, started};

crate::tests! {
    plain every_read_has_exactly_the_documented_fields_and_types;
    plain context_must_be_what_the_endpoint_asks_for;
    plain the_company_list_takes_the_context_its_knob_says;
    plain a_company_is_read_with_the_context_its_knob_says;
    plain a_missing_record_is_answered_as_the_knobs_say;
    plain records_leave_out_what_the_knobs_say;
    plain an_unknown_company_has_the_status_its_knob_says;
    plain one_company_never_sees_the_records_of_another;
    plain records_of_no_company_are_read_with_context_none;
    plain a_disabled_record_shows_where_its_knob_says;
}

pub(super) const COMPANIES: &str = "/accounting/api/companies";
const CUSTOMERS: &str = "/accounting/api/customers";
const ACCOUNTS: &str = "/accounting/api/accounts";
pub(super) const PAYROLL: &str = "/payroll/api/companies?pageNumber=1&pageSize=25";

pub(super) fn resource(name: &str) -> Resource {
    serde_json::from_value(Value::from(name)).unwrap()
}

/// Asserts an error with the API's body, which begins with `ok` and `httpCode`.
#[track_caller]
pub(super) fn by_api(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    let body = answer.json();
    assert_eq!((&body["ok"], &body["httpCode"]), (&false.into(), &status.into()), "{answer:?}");
    let compact = answer.body.replace(' ', "");
    assert!(compact.starts_with(&format!("{{\"ok\":false,\"httpCode\":{status}")), "{answer:?}");
}

/// A kind of value in the document's tables.
#[derive(Clone, Copy)]
enum Is {
    Text,
    Integer,
    /// ISO 8601, UTC, with this many digits of a second.
    Time(usize),
    /// A string of digits.
    Numeric,
}

impl Is {
    fn fits(self, value: &Value) -> bool {
        let text = value.as_str();
        match self {
            Self::Text => text.is_some(),
            Self::Integer => value.is_u64(),
            Self::Numeric => text.is_some_and(|text| text.parse::<i64>().is_ok()),
            Self::Time(digits) => text.is_some_and(|text| {
                let shape: String =
                    text.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
                shape == format!("0000-00-00T00:00:00.{}Z", "0".repeat(digits))
            }),
        }
    }
}

async fn every_read_has_exactly_the_documented_fields_and_types() {
    use Is::{Integer, Numeric, Text, Time};
    let versions = [("version", Time(7)), ("sequenceVersion", Numeric)];
    let company_fields = [
        ("vatName vatNumber state correlationId", Text),
        ("chartOfAccountId accountLength", Integer),
        versions[0],
        versions[1],
    ];
    let names = "tradeName state vatNumber vatName accountCode correlationId vatNumberCorrelationId";
    let customer_fields = [(names, Text), ("accountCodeCorrelationId", Text), versions[0], versions[1]];
    let account_fields = [("correlationId code description state", Text), versions[0], versions[1]];
    let payroll_fields =
        [("companyCode", Integer), ("companyName identifierNumber", Text), ("lastUpdate", Time(3))];
    let (simulator, client) = started(Client::accounting, |settings| settings.world.customers = 40).await;
    let company = client.company(&client.companies().await[0]);
    let account = company.get(ACCOUNTS).await.rows()[0]["correlationId"].clone();
    let account = format!("{ACCOUNTS}/{}", segment(account.as_str().unwrap()));

    for (client, path, count, fields) in [
        (&client, COMPANIES, 3, &company_fields[..]),
        (&company, CUSTOMERS, 40, &customer_fields),
        (&company, ACCOUNTS, 4, &account_fields),
        (&company, &account, 1, &account_fields),
        (&Client::payroll(&simulator), PAYROLL, 5, &payroll_fields),
    ] {
        let fields = fields.iter().flat_map(|(names, is)| names.split(' ').map(move |name| (name, is)));
        let fields: BTreeMap<&str, &Is> = fields.collect();
        let answer = client.get(path).await;

        assert!(answer.header("content-type").unwrap().starts_with("application/json"), "{answer:?}");
        let body = answer.ok();
        let rows = body.as_array().cloned().unwrap_or_else(|| vec![body]);
        assert_eq!(rows.len(), count, "{path}");
        for row in rows {
            assert!(row.as_object().unwrap().keys().eq(fields.keys()), "{path}: {row}");
            for (name, is) in &fields {
                assert!(is.fits(&row[*name]), "{path}: {name} is {}", row[*name]);
            }
            assert!(row.get("state").is_none_or(|state| state == "Enabled"), "{path}");
        }
    }
    // Both documented forms occur.
    let customers = company.get(CUSTOMERS).await.rows();
    for field in ["vatNumber", "vatName", "vatNumberCorrelationId"] {
        let empty = customers.iter().filter(|row| row[field] == "").count();
        assert!((1..40).contains(&empty), "{field} is empty {empty} times");
    }
}

async fn context_must_be_what_the_endpoint_asks_for() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let company = client.companies().await.swap_remove(0);
    let own = client.company(&company);
    let account = own.get(ACCOUNTS).await.rows()[0]["correlationId"].as_str().unwrap().to_owned();
    let [account, itself] =
        [(ACCOUNTS, &account), (COMPANIES, &company)].map(|(list, id)| format!("{list}/{}", segment(id)));
    let quoted = json!(company).to_string();
    let spaced = format!("{{ \"clientId\" : {quoted} }}");
    let more = format!("{{\"clientId\":{quoted},\"more\":1}}");

    // Company list, a company by id, customers, accounts, an account by id.
    for (context, statuses) in [
        (None, [200, 400, 400, 400, 400]),
        (Some("none"), [400; 5]),
        (own.context.as_deref(), [400, 200, 200, 200, 200]),
        (Some(&*spaced), [400, 200, 200, 200, 200]),
        (Some(&*more), [400; 5]),
        (Some("{\"clientId\":\"unknown\"}"), [400, 403, 403, 403, 403]),
        (Some("None"), [400; 5]),
        (Some(""), [400; 5]),
        (Some("{}"), [400; 5]),
        (Some("{\"clientId\":"), [400; 5]),
        (Some("{\"clientId\":7}"), [400; 5]),
        (Some("{\"clientid\":\"x\"}"), [400; 5]),
        (Some("[\"x\"]"), [400; 5]),
        (Some("\"none\""), [400; 5]),
        (Some("null"), [400; 5]),
        (Some("{\"clientId\":\"\"}"), [400; 5]),
        (Some("{\"clientId\":\"a\",\"clientId\":\"a\"}"), [400; 5]),
        (Some(&*company), [400; 5]),
    ] {
        for (path, status) in [COMPANIES, &itself, CUSTOMERS, ACCOUNTS, &account].into_iter().zip(statuses) {
            let sent = Client { context: context.map(str::to_owned), ..client.clone() };
            let answer = sent.get(path).await;

            assert_eq!(answer.status, status, "{path} with {context:?}: {answer:?}");
            if status != 200 {
                by_api(&answer, status);
            }
        }
    }
    // Payroll ignores `context`.
    let payroll = Client::payroll(&simulator);
    assert_eq!(payroll.get(PAYROLL).await.status, 200);
    for context in ["none", "{\"clientId\":\"unknown\"}", "{"] {
        assert_eq!(payroll.context(context).get(PAYROLL).await.status, 200, "{context}");
    }
}

async fn the_company_list_takes_the_context_its_knob_says() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;

    for (knob, absent, none) in [
        (CompaniesContext::Either, 200, 200),
        (CompaniesContext::Absent, 200, 400),
        (CompaniesContext::None, 400, 200),
    ] {
        simulator.provider().turn(|knobs| knobs.reads.companies_context = knob);

        assert_eq!(client.get(COMPANIES).await.status, absent, "{knob:?}");
        assert_eq!(client.context("none").get(COMPANIES).await.status, none, "{knob:?}");
    }
}

async fn a_company_is_read_with_the_context_its_knob_says() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let company = client.companies().await.swap_remove(0);
    let path = format!("{COMPANIES}/{}", segment(&company));
    let senders = [client.company(&company), client.context("none"), client];

    for (knob, statuses) in [
        (CompanyContext::Company, [200, 400, 400]),
        (CompanyContext::None, [400, 200, 400]),
        (CompanyContext::Absent, [400, 400, 200]),
        (CompanyContext::Any, [200; 3]),
    ] {
        simulator.provider().turn(|knobs| knobs.reads.records.company_context = knob);

        for (sender, status) in senders.iter().zip(statuses) {
            assert_eq!(sender.get(&path).await.status, status, "{knob:?} {:?}", sender.context);
        }
    }
}

async fn a_missing_record_is_answered_as_the_knobs_say() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let client = client.company(&client.companies().await[0]);
    let json = "application/json; charset=utf-8";

    for status in [HttpStatus::NOT_FOUND, HttpStatus::GONE] {
        for (body, kind, begins) in [
            (MissingBody::Api, json, "{\"ok\":false,\"httpCode\":4"),
            (MissingBody::Json, json, "{\"error\":{"),
            (MissingBody::Gateway, json, "{\"statusCode\":4"),
            (MissingBody::Empty, "", ""),
            (MissingBody::Text, "text/plain; charset=utf-8", "Not here"),
            (MissingBody::Html, "text/html; charset=utf-8", "<!DOCTYPE html>"),
        ] {
            simulator.provider().turn(|knobs| {
                let records = &mut knobs.reads.records;
                (records.missing_status, records.missing_body) = (status, body);
            });

            let answer = client.get("/accounting/api/journals/00000000-0000-0000-0000-000000000000").await;

            let found = (answer.status, answer.header("content-type").unwrap_or_default());
            assert_eq!(found, (status.get(), kind), "{body:?}");
            assert!(answer.body.starts_with(begins), "{body:?}: {answer:?}");
            assert_eq!(answer.body.is_empty(), begins.is_empty(), "{body:?}: {answer:?}");
        }
    }
}

async fn records_leave_out_what_the_knobs_say() {
    let simulator = start(|_| {}).await;
    let journal = control::records(simulator.provider(), Resource::Journals).swap_remove(0);
    let client = Client::accounting(&simulator).company(journal.company.as_deref().unwrap());
    let journal = format!("/accounting/api/journals/{}", segment(&journal.id));
    let account = client.get(ACCOUNTS).await.rows()[0]["correlationId"].as_str().unwrap().to_owned();
    let account = format!("{ACCOUNTS}/{}", segment(&account));
    simulator.provider().turn(|knobs| {
        let records = &mut knobs.reads.records;
        records.without_id = [Resource::Journals].into();
        records.without_sequence = [Resource::Journals].into();
        records.without_last_update = true;
        knobs.reads.template_accounts = 1;
    });

    for (knob, id, version) in [
        (LeftOut::Absent, None, None),
        (LeftOut::Null, Some(Value::Null), Some(Value::Null)),
        (LeftOut::Empty, Some(json!("")), Some(json!(""))),
        (LeftOut::Unreadable, Some(json!("")), Some(json!("unknown"))),
    ] {
        simulator.provider().turn(|knobs| knobs.reads.records.left_out = knob);

        let (bare, whole) = (client.get(&journal).await.ok(), client.get(&account).await.ok());
        let template = client.get(ACCOUNTS).await.rows().pop().unwrap();
        let payroll = Client::payroll(&simulator).get(PAYROLL).await.rows();

        assert_eq!(bare.get("correlationId"), id.as_ref(), "{knob:?}");
        assert_eq!(bare.get("sequenceVersion"), version.as_ref(), "{knob:?}");
        assert!(whole["correlationId"].is_string() && whole["sequenceVersion"].is_string(), "{whole}");
        assert_eq!((template.get("correlationId"), &template["state"]), (id.as_ref(), &json!("Template")));
        assert_eq!(payroll[0].get("lastUpdate"), version.as_ref(), "{knob:?}");
    }
}

async fn an_unknown_company_has_the_status_its_knob_says() {
    let simulator = start(|_| {}).await;
    let client = Client::accounting(&simulator).company("svc:1:CM:unknown");

    for status in [400, 403, 404] {
        simulator.provider().turn(|knobs| knobs.reads.unknown_company = HttpStatus::new(status).unwrap());

        for path in [CUSTOMERS, ACCOUNTS, "/accounting/api/customers/any"] {
            by_api(&client.get(path).await, status);
        }
    }
}

async fn one_company_never_sees_the_records_of_another() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    let other = client.companies().await.swap_remove(1);

    for (name, prefix) in RESOURCES {
        let record = control::records(simulator.provider(), resource(name)).swap_remove(0);
        assert_ne!(record.company.as_ref(), Some(&other));

        let answer = client.company(&other).get(&format!("{prefix}/{}", segment(&record.id))).await;

        by_api(&answer, 404);
    }
}

async fn records_of_no_company_are_read_with_context_none() {
    let (simulator, client) = started(Client::accounting, |settings| {
        settings.world.tenant_resources = [Resource::Persons, Resource::Journals].into()
    })
    .await;
    let company = client.companies().await.swap_remove(0);

    for (name, prefix) in
        [("persons", "/accounting-core/api/persons"), ("journals", "/accounting/api/journals")]
    {
        let record = control::records(simulator.provider(), resource(name)).swap_remove(0);
        let path = format!("{prefix}/{}", segment(&record.id));

        assert_eq!(record.company, None, "{name}");
        assert_eq!(client.context("none").get(&path).await.ok()["correlationId"], record.id);
        by_api(&client.company(&company).get(&path).await, 400);
    }
}

/// Disables the first customer and returns its company and its id.
fn disable_a_customer(simulator: &Simulator) -> (String, String) {
    let record = control::records(simulator.provider(), Resource::Customers).swap_remove(0);
    simulator.provider().change(|world, clock| {
        let (place, _) = world.find(Resource::Customers, &record.id).unwrap();
        ((), vec![WorldChange::Record(world.act(place, Kind::Disabled, clock).unwrap())])
    });
    (record.company.unwrap(), record.id)
}

async fn a_disabled_record_shows_where_its_knob_says() {
    let simulator = start(|_| {}).await;
    let (company, id) = disable_a_customer(&simulator);
    let client = Client::accounting(&simulator).company(&company);

    for (knob, listed, status) in [
        (DisabledShows::Everywhere, true, 200),
        (DisabledShows::ById, false, 200),
        (DisabledShows::Nowhere, false, 404),
    ] {
        simulator.provider().turn(|knobs| knobs.reads.disabled = knob);
        let rows = client.get(CUSTOMERS).await.rows();
        let read = client.get(&format!("{CUSTOMERS}/{}", segment(&id))).await;

        let row = rows.iter().find(|row| row["correlationId"] == *id);
        assert_eq!((row.is_some(), rows.len()), (listed, if listed { 4 } else { 3 }), "{knob:?}");
        assert!(row.is_none_or(|row| row["state"] == "Disabled"), "{row:?}");
        assert_eq!(read.status, status, "{knob:?}");
    }
}
