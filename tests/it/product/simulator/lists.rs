//! Lists: pages, filter, order, empty lists, and the fields of rows.

use serde_json::Value;
use simulator::{
    Simulator,
    knobs::{EmptyList, OverMax, PayrollTotal},
};

use super::{Client, ids, reads::by_api, segment, started};

crate::tests! {
    plain pages_count_from_one_and_together_are_the_list;
    plain a_page_that_is_no_whole_number_above_zero_is_refused;
    plain an_oversized_page_is_clamped_or_refused;
    plain payroll_needs_both_paging_parameters;
    plain a_knob_adds_the_pagination_header;
    plain a_payroll_filter_passes_what_it_says_and_nothing_else;
    plain a_payroll_filter_that_is_not_understood_is_refused;
    plain payroll_is_ordered_by_the_field_that_is_asked_for;
    plain an_empty_list_has_the_form_its_knob_says;
    plain thin_rows_carry_less_than_the_record_and_agree_with_it;
    plain extra_fields_and_template_accounts_appear_when_asked_for;
}

pub(super) const CUSTOMERS: &str = "/accounting/api/customers";
pub(super) const ACCOUNTS: &str = "/accounting/api/accounts";
pub(super) const PAYROLL: &str = "/payroll/api/companies";

/// A simulator with one company, and a client for that company.
pub(super) async fn one_company(customers: u32) -> (Simulator, Client) {
    let (simulator, client) = started(Client::accounting, |settings| {
        (settings.world.companies, settings.world.customers) = (1, customers);
    })
    .await;
    let company = client.companies().await.swap_remove(0);
    (simulator, client.company(&company))
}

async fn pages_count_from_one_and_together_are_the_list() {
    let (simulator, client) = one_company(7).await;
    let payroll = Client::payroll(&simulator);
    simulator.provider().turn(|knobs| knobs.reads.payroll_paging_required = false);

    for (client, list, length) in [(&client, CUSTOMERS, 7), (&client, ACCOUNTS, 4), (&payroll, PAYROLL, 5)] {
        let whole = client.get(list).await.rows();
        assert_eq!(whole.len(), length);
        for size in [1, 2, 3, length, length + 1, 1_000] {
            let mut found = Vec::new();
            for page in 1..=length.div_ceil(size) {
                let rows = client.get(&format!("{list}?pageNumber={page}&pageSize={size}")).await.rows();
                assert_eq!(rows.len(), size.min(length - found.len()), "page {page} of {size}");
                found.extend(rows);
            }
            assert_eq!(found, whole, "{list} by {size}");
            let past = length.div_ceil(size) + 1;
            for page in [past, past + 1, 2_147_483_647] {
                let answer = client.get(&format!("{list}?pageNumber={page}&pageSize={size}")).await;
                assert_eq!(answer.rows(), Vec::<Value>::new(), "page {page} of {size}");
            }
        }
    }
}

async fn a_page_that_is_no_whole_number_above_zero_is_refused() {
    let (simulator, client) = one_company(3).await;
    let payroll = Client::payroll(&simulator);

    for wrong in ["0", "-1", "1.5", "x", "", "%201", "+1", "0x1", "99999999999999999999"] {
        for (client, list) in [(&client, CUSTOMERS), (&client, ACCOUNTS), (&payroll, PAYROLL)] {
            by_api(&client.get(&format!("{list}?pageNumber={wrong}&pageSize=2")).await, 400);
            by_api(&client.get(&format!("{list}?pageNumber=1&pageSize={wrong}")).await, 400);
        }
    }
}

async fn an_oversized_page_is_clamped_or_refused() {
    let (simulator, client) = one_company(7).await;
    let whole = ids(&client.get(CUSTOMERS).await.rows());
    simulator.provider().turn(|knobs| knobs.reads.max_page_size = 3);

    // The clamped size also determines the page numbers.
    let mut found = Vec::new();
    for page in 1..=3 {
        let rows = client.get(&format!("{CUSTOMERS}?pageNumber={page}&pageSize=1000")).await.rows();
        assert_eq!(rows.len(), [3, 3, 1][page - 1]);
        found.extend(ids(&rows));
    }
    assert_eq!(found, whole);

    simulator.provider().turn(|knobs| knobs.reads.over_max = OverMax::Refuse);
    by_api(&client.get(&format!("{CUSTOMERS}?pageSize=4")).await, 400);
    assert_eq!(client.get(&format!("{CUSTOMERS}?pageSize=3")).await.rows().len(), 3);
}

async fn payroll_needs_both_paging_parameters() {
    let (simulator, client) = one_company(7).await;
    let payroll = Client::payroll(&simulator);

    assert_eq!(client.get(CUSTOMERS).await.rows().len(), 7);
    for query in ["", "?pageNumber=1", "?pageSize=2"] {
        by_api(&payroll.get(&format!("{PAYROLL}{query}")).await, 400);
    }
    simulator.provider().turn(|knobs| knobs.reads.payroll_paging_required = false);
    assert_eq!(payroll.get(PAYROLL).await.rows().len(), 5);
}

async fn a_knob_adds_the_pagination_header() {
    let (simulator, client) = one_company(7).await;
    simulator.provider().turn(|knobs| knobs.reads.payroll_total = PayrollTotal::Right);
    let payroll = Client::payroll(&simulator);
    let pagination = async |client: &Client, path: &str| {
        let answer = client.get(path).await;
        answer.header("x-pagination").map(|text| serde_json::from_str::<Value>(text).unwrap())
    };
    let pages_of = |page: u64, pages: u64, count: u64| {
        Some(serde_json::json!({ "currentPage": page, "totalPages": pages, "totalCount": count }))
    };

    for (page, size, pages) in [(1, 2, 3), (3, 2, 3), (9, 2, 3), (1, 5, 1)] {
        let path = format!("{PAYROLL}?pageNumber={page}&pageSize={size}");
        assert_eq!(pagination(&payroll, &path).await, pages_of(page, pages, 5), "{path}");
    }
    let nothing = format!("{PAYROLL}?pageNumber=1&pageSize=5&filter=companyCode%20eq%200");
    assert_eq!(pagination(&payroll, &nothing).await, pages_of(1, 0, 0));

    let path = format!("{CUSTOMERS}?pageNumber=2&pageSize=3");
    assert_eq!(pagination(&client, &path).await, None);
    simulator.provider().turn(|knobs| knobs.reads.accounting_pagination = true);
    assert_eq!(pagination(&client, &path).await, pages_of(2, 3, 7));
}

async fn filtered(client: &Client, filter: &str, order: &str) -> super::Answer {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("pageNumber", "1"), ("pageSize", "100"), ("filter", filter), ("OrderBy", order)])
        .finish();
    client.get(&format!("{PAYROLL}?{query}")).await
}

async fn a_payroll_filter_passes_what_it_says_and_nothing_else() {
    let (_simulator, client) =
        started(Client::payroll, |settings| settings.world.payroll_companies = 40).await;
    let all = client.get(&format!("{PAYROLL}?pageNumber=1&pageSize=100")).await.rows();
    let (code, updated) = (all[7]["companyCode"].as_u64().unwrap(), all[7]["lastUpdate"].as_str().unwrap());
    let day = &updated[..10];
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();

    type Passes<'a> = Box<dyn Fn(&Value) -> bool + 'a>;
    let cases: Vec<(String, Passes<'_>)> = vec![
        (format!("lastUpdate gt {updated}"), Box::new(|row| *text(row, "lastUpdate") > *updated)),
        (format!("lastUpdate ge {updated}"), Box::new(|row| *text(row, "lastUpdate") >= *updated)),
        // A bare date is its midnight, so a whole day is greater.
        (
            format!("lastUpdate gt {day}"),
            Box::new(|row| text(row, "lastUpdate") > format!("{day}T00:00:00.000Z")),
        ),
        (format!("companyCode eq {code}"), Box::new(|row| row["companyCode"] == code)),
        (format!("companyCode ge {code}"), Box::new(|row| row["companyCode"].as_u64() >= Some(code))),
        (format!("companyCode gt {code}"), Box::new(|row| row["companyCode"].as_u64() > Some(code))),
        (
            format!("companyCode eq {code} or companyCode gt {code}"),
            Box::new(|row| row["companyCode"].as_u64() >= Some(code)),
        ),
        (
            format!("lastUpdate ge {}+00:00", updated.trim_end_matches('Z')),
            Box::new(|row| *text(row, "lastUpdate") >= *updated),
        ),
        (String::new(), Box::new(|_| true)),
    ];
    for (filter, passes) in cases {
        let expected: Vec<&Value> = all.iter().filter(|row| passes(row)).collect();
        let rows = filtered(&client, &filter, "").await.rows();

        assert_eq!(rows.iter().collect::<Vec<_>>(), expected, "{filter}");
    }
}

async fn a_payroll_filter_that_is_not_understood_is_refused() {
    let (simulator, client) = started(Client::payroll, |_| {}).await;

    for filter in [
        "companyCode",
        "companyCode eq",
        "companyCode like 7",
        "unknown eq 7",
        "companyCode eq 'seven'",
        "lastUpdate gt yesterday",
        "lastUpdate gt 2026-02-30",
        "companyCode eq 7 or",
        "companyCode eq 7 companyCode eq 8",
        "companyCode EQ 7",
        "companycode eq 7",
        "companyCode eq inf",
        "companyCode eq 1e3",
        "lastUpdate gt 2026-11-15T09:00:00",
        &format!("companyCode eq 7 {}", "or companyCode eq 7 ".repeat(1_000)),
    ] {
        by_api(&filtered(&client, filter, "").await, 400);
    }
    let full = "lastUpdate gt 2025-01-01T10:00:00.123Z";
    assert_eq!(filtered(&client, full, "").await.status, 200);
    simulator.provider().turn(|knobs| knobs.reads.filter_timestamps = false);
    by_api(&filtered(&client, full, "").await, 400);
    assert_eq!(filtered(&client, "lastUpdate gt 2025-01-01", "").await.status, 200);
}

async fn payroll_is_ordered_by_the_field_that_is_asked_for() {
    let (_simulator, client) =
        started(Client::payroll, |settings| settings.world.payroll_companies = 20).await;

    for field in ["companyCode", "companyName", "identifierNumber", "lastUpdate"] {
        let rows = filtered(&client, "", field).await.rows();

        let mut sorted = rows.clone();
        sorted.sort_by_key(|row| (row[field].as_u64(), row[field].as_str().map(str::to_owned)));
        assert_eq!(rows.len(), 20);
        assert_eq!(rows, sorted, "{field}");
    }
    for wrong in ["unknown", "companyCode sideways", "companyCode, companyName"] {
        by_api(&filtered(&client, "", wrong).await, 400);
    }
}

async fn an_empty_list_has_the_form_its_knob_says() {
    let (simulator, client) = one_company(0).await;
    let payroll = Client::payroll(&simulator);

    for (knob, body) in [(EmptyList::Array, "[]"), (EmptyList::Nothing, ""), (EmptyList::Null, "null")] {
        simulator.provider().turn(|knobs| knobs.reads.empty_list = knob);

        let past = format!("{PAYROLL}?pageNumber=2&pageSize=5");
        for answer in [client.get(CUSTOMERS).await, payroll.get(&past).await] {
            assert_eq!((answer.status, &*answer.body), (200, body), "{knob:?}");
        }
    }
}

async fn thin_rows_carry_less_than_the_record_and_agree_with_it() {
    let (simulator, client) = one_company(3).await;
    simulator.provider().turn(|knobs| knobs.reads.thin_rows = true);

    for list in [CUSTOMERS, ACCOUNTS] {
        for row in client.get(list).await.rows() {
            let path = format!("{list}/{}", segment(row["correlationId"].as_str().unwrap()));
            let record = client.get(&path).await.ok();

            let (row, record) = (row.as_object().unwrap(), record.as_object().unwrap());
            assert!(row.len() < record.len(), "{list}: {row:?}");
            assert!(row.iter().all(|(name, value)| record.get(name) == Some(value)), "{row:?} {record:?}");
            for needed in ["correlationId", "version", "sequenceVersion", "state"] {
                assert!(row.contains_key(needed), "{list}: {needed}");
            }
        }
    }
}

async fn extra_fields_and_template_accounts_appear_when_asked_for() {
    let (simulator, client) = one_company(3).await;
    let plain = client.get(ACCOUNTS).await.rows();
    simulator.provider().turn(|knobs| {
        knobs.reads.extra_fields = true;
        knobs.reads.template_accounts = 2;
    });

    let rows = client.get(ACCOUNTS).await.rows();

    assert_eq!(rows.len(), plain.len() + 2);
    for (row, plain) in rows.iter().zip(&plain) {
        assert!(row.as_object().unwrap().len() > plain.as_object().unwrap().len(), "{row}");
        assert!(plain.as_object().unwrap().iter().all(|(name, value)| row[name] == *value), "{row}");
    }
    for template in &rows[plain.len()..] {
        assert_eq!((&template["state"], template.get("correlationId")), (&"Template".into(), None));
    }
    let last = client.get(&format!("{ACCOUNTS}?pageNumber=2&pageSize=5")).await.rows();
    assert_eq!(last, rows[5..]);
}
