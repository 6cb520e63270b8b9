use std::collections::HashSet;

use serde_json::json;

use super::*;
use crate::simulator::knobs::{Churn, CompaniesContext, EmptyList, ListOrder, OverMax};

const COMPANIES: &str = "/accounting/api/companies";
const CUSTOMERS: &str = "/accounting/api/customers";
const ACCOUNTS: &str = "/accounting/api/accounts";

fn invalid() -> Context {
    Context::Invalid("no JSON".to_owned())
}

#[tokio::test]
async fn each_list_has_all_records_of_its_company_as_they_are() {
    let rig = Rig::new();
    let cases = [
        (COMPANIES, Resource::Companies, None, Context::Absent, 10),
        (CUSTOMERS, Resource::Customers, Some(2), rig.context(2), 20),
        (ACCOUNTS, Resource::Accounts, Some(2), rig.context(2), 20),
    ];
    for (path, resource, company, context, count) in cases {
        let rows = rig.get(path, context).await.rows();

        let world = rig.provider.world();
        let all: Vec<Value> = world
            .records(resource)
            .filter(|(place, _)| place.company == company)
            .map(|(place, row)| serde_json::from_slice(&truth(&world.naming(), place, &row)).unwrap())
            .collect();
        assert_eq!(rows.len(), count, "{path}");
        assert_eq!(rows, all, "{path}");
    }
}

#[tokio::test]
async fn lists_of_a_company_need_its_context() {
    let rig = Rig::new();
    for path in [CUSTOMERS, ACCOUNTS] {
        for context in [Context::Absent, Context::None, invalid()] {
            assert!(rig.get(path, context).await.refusal(400).contains("expected a JSON object"), "{path}");
        }
        for unknown in ["", "nobody", &rig.id(Resource::Customers, Some(1), 0)] {
            rig.get(path, Context::Company(unknown.to_owned())).await.refusal(403);
        }
    }
}

#[tokio::test]
async fn the_company_list_takes_the_context_its_knob_says_and_never_a_company() {
    let rig = Rig::new();
    let cases = [
        (CompaniesContext::Either, true, true),
        (CompaniesContext::Absent, true, false),
        (CompaniesContext::None, false, true),
    ];
    for (knob, absent, none) in cases {
        rig.turn(|knobs| knobs.companies_context = knob);
        for (context, fits) in
            [(Context::Absent, absent), (Context::None, none), (rig.context(1), false), (invalid(), false)]
        {
            let answer = rig.get(COMPANIES, context.clone()).await;

            if fits {
                assert_eq!(answer.rows().len(), 10, "{knob:?} {context:?}");
            } else {
                assert!(answer.refusal(400).contains("expected"), "{knob:?} {context:?}");
            }
        }
    }
}

#[tokio::test]
async fn pages_from_one_on_cover_the_list_and_the_one_past_the_end_is_empty() {
    let rig = Rig::new();
    let whole = rig.get(CUSTOMERS, rig.context(1)).await.texts("correlationId");

    let mut paged = Vec::new();
    let mut lengths = Vec::new();
    for number in 1..=4 {
        let target = format!("{CUSTOMERS}?pageNumber={number}&pageSize=7");
        let page = rig.get(&target, rig.context(1)).await.texts("correlationId");
        lengths.push(page.len());
        paged.extend(page);
    }

    assert_eq!(lengths, [7, 7, 6, 0]);
    assert_eq!(paged, whole);
    let far = format!("{CUSTOMERS}?pageNumber=2147483647&pageSize=1000");
    assert!(rig.get(&far, rig.context(1)).await.rows().is_empty());
}

#[tokio::test]
async fn the_knobs_say_how_large_a_page_is() {
    let rig = Rig::new();
    rig.turn(|knobs| (knobs.default_page_size, knobs.max_page_size) = (3, 5));
    let count =
        async |query: &str| rig.get(&format!("{CUSTOMERS}{query}"), rig.context(1)).await.rows().len();

    assert_eq!(count("").await, 3);
    assert_eq!(count("?pageSize=4").await, 4);
    assert_eq!(count("?pageSize=6").await, 5);
    rig.turn(|knobs| knobs.over_max = OverMax::Refuse);
    assert_eq!(count("?pageSize=5").await, 5);
    let refused = rig.get(&format!("{CUSTOMERS}?pageSize=6"), rig.context(1)).await.refusal(400);
    assert_eq!(refused, "pageSize 6 is larger than 5");
    rig.turn(|knobs| (knobs.default_page_size, knobs.max_page_size) = (0, 0));
    assert_eq!(count("").await, 1);
}

#[tokio::test]
async fn parameter_names_count_without_case_the_first_counts_and_others_do_nothing() {
    let rig = Rig::new();
    for query in [
        "PAGENUMBER=2&pagesize=6",
        "page%4Eumber=2&pageSize=6",
        "pageNumber=2&pageSize=6&pageNumber=x&pageSize=0",
        "pageNumber=2&pageSize=6&filter=%ff&OrderBy=nothing&=&&%zz",
    ] {
        let rows = rig.get(&format!("{CUSTOMERS}?{query}"), rig.context(1)).await.texts("correlationId");

        assert_eq!(rows.first(), Some(&rig.id(Resource::Customers, Some(1), 6)), "{query}");
        assert_eq!(rows.len(), 6, "{query}");
    }
}

#[tokio::test]
async fn what_is_no_page_is_refused() {
    let rig = Rig::new();
    for value in
        ["0", "-1", "", "one", "1.0", "%2B1", "+1", "1e3", "2147483648", "99999999999999999999", "%ff", "٣"]
    {
        for name in ["pageNumber", "pageSize"] {
            let target = format!("{CUSTOMERS}?{name}={}", value.replace('٣', "%D9%A3"));
            let message = rig.get(&target, rig.context(1)).await.refusal(400);

            assert!(message.starts_with(name), "{target}: {message}");
            assert!(message.ends_with("is no whole number from 1 to 2147483647"), "{target}: {message}");
        }
    }
}

#[tokio::test]
async fn an_empty_list_is_written_as_the_knob_says() {
    let rig = Rig::new();
    let target = format!("{COMPANIES}?pageNumber=9");
    for (knob, body) in [(EmptyList::Array, "[]"), (EmptyList::Nothing, ""), (EmptyList::Null, "null")] {
        rig.turn(|knobs| knobs.empty_list = knob);

        let empty = rig.get(&target, Context::Absent).await;
        let full = rig.get(COMPANIES, Context::Absent).await;

        assert_eq!((empty.status, String::from_utf8(empty.body).unwrap().as_str()), (200, body));
        assert_eq!(full.rows().len(), 10);
    }
}

#[tokio::test]
async fn accounting_lists_tell_their_pages_only_by_knob() {
    let rig = Rig::new();
    let target = format!("{CUSTOMERS}?pageNumber=2&pageSize=7");

    let silent = rig.get(&target, rig.context(1)).await.pagination;
    rig.turn(|knobs| knobs.accounting_pagination = true);
    let told = rig.get(&target, rig.context(1)).await.pagination;

    assert_eq!(silent, None);
    assert_eq!(told, Some(json!({ "currentPage": 2, "totalPages": 3, "totalCount": 20 })));
}

#[tokio::test]
async fn template_accounts_end_the_account_list_and_count_as_rows() {
    let rig = Rig::new();
    rig.turn(|knobs| (knobs.template_accounts, knobs.accounting_pagination) = (3, true));

    let mut states = Vec::new();
    for number in 1..=4 {
        let target = format!("{ACCOUNTS}?pageNumber={number}&pageSize=9");
        let page = rig.get(&target, rig.context(1)).await;
        assert_eq!(page.pagination.as_ref().unwrap()["totalCount"], 23);
        states.push(page.texts("state").iter().filter(|state| *state == "Template").count());
        assert!(
            page.rows().iter().all(|row| row.get("correlationId").is_none() == (row["state"] == "Template"))
        );
    }
    let customers = rig.get(CUSTOMERS, rig.context(1)).await.texts("state");

    assert_eq!(states, [0, 0, 3, 0]);
    assert!(!customers.contains(&"Template".to_owned()));
    let across = rig.get(&format!("{ACCOUNTS}?pageNumber=2&pageSize=11"), rig.context(1)).await;
    assert_eq!(across.texts("state")[9..], ["Template", "Template"]);
}

#[tokio::test]
async fn the_order_of_lists_follows_the_knob() {
    let rig = Rig::new();
    let ids = async || rig.get(CUSTOMERS, rig.context(1)).await.texts("correlationId");
    let created = ids().await;

    rig.turn(|knobs| knobs.order = ListOrder::Newest);
    let newest = ids().await;
    rig.turn(|knobs| knobs.order = ListOrder::Scattered);
    let scattered = ids().await;

    assert!(created.iter().eq(newest.iter().rev()));
    assert_ne!(scattered, created);
    assert_eq!(scattered.iter().collect::<HashSet<_>>(), created.iter().collect());
}

#[tokio::test]
async fn a_list_churns_after_each_page_that_has_rows_and_at_no_other_time() {
    let rig = Rig::new();
    rig.turn(|knobs| {
        knobs.order = ListOrder::Newest;
        knobs.churn = Churn { inserts: 5.0, deletes: 0.0, updates: 2.0 };
    });
    let page = async |number: u32| {
        let target = format!("{CUSTOMERS}?pageNumber={number}&pageSize=10");
        rig.get(&target, rig.context(1)).await.texts("correlationId")
    };
    let changes = || rig.provider.world().changes();

    page(1_000).await;
    let untouched = changes();
    let first = page(1).await;
    let between = changes();
    let second = page(2).await;
    rig.get(&format!("{CUSTOMERS}?pageNumber=0"), rig.context(1)).await.refusal(400);
    let after = changes();
    rig.get(&format!("{CUSTOMERS}?pageNumber=0"), rig.context(1)).await.refusal(400);

    assert_eq!(untouched, 0);
    assert!(between > 0 && after > between);
    assert_eq!(changes(), after);
    assert!(second.iter().any(|id| first.contains(id)), "new records push known ones to the next page");
}
