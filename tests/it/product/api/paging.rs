//! Lists of the simulator, read to their ends.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use model::{CompanyId, Customer, PayrollCompany};
use provider::api::{Accounting, NextPage, Oddities, PageWalk, PayrollRequest, Total};
use simulator::{
    Simulator,
    knobs::{Churn, Effect, EmptyList, Fault, FaultTarget, HttpStatus, ListOrder, PayrollTotal},
};

use super::{Granted, client, page, patient};
use crate::product::simulator::{Client, start};

crate::tests! {
    plain a_list_is_read_to_its_end_with_any_form_of_empty_page;
    plain smaller_pages_than_requested_do_not_end_a_list;
    plain duplicate_rows_of_a_moving_list_are_kept_and_counted;
    plain a_failing_page_costs_no_row;
    plain payroll_is_read_with_totals_filter_and_order;
}

async fn scene(customers: u32) -> (Simulator, Accounting, CompanyId) {
    let simulator = start(|settings| settings.world.customers = customers).await;
    let company = Client::accounting(&simulator).companies().await.remove(0);
    let accounting = client(&simulator).accounting(Granted::accounting(&simulator));
    (simulator, accounting, CompanyId::new(company).unwrap())
}

/// Reads a company's customers to the end, with retries. Returns ids in order, anomalies, pages and failures.
async fn read(accounting: &Accounting, company: &CompanyId, size: u32) -> (Vec<String>, Oddities, u32, u32) {
    let (mut walk, mut seen) = (PageWalk::default(), HashSet::new());
    let (mut ids, mut pages, mut failures) = (Vec::new(), 0, 0);
    loop {
        match accounting.customers(company, page(walk.number, size), &patient()).await {
            Ok(page) => {
                pages += 1;
                ids.extend(page.rows.iter().filter_map(|row| row.correlation_id.clone()));
                let is_new = |row: &Customer| row.correlation_id.clone().is_none_or(|id| seen.insert(id));
                if walk.observe(&page, is_new).next == NextPage::End {
                    return (ids, walk.oddities, pages, failures);
                }
            }
            Err(error) if failures < 10 && error.retry().is_retriable() => failures += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn distinct(ids: &[String]) -> usize {
    ids.iter().collect::<BTreeSet<_>>().len()
}

async fn a_list_is_read_to_its_end_with_any_form_of_empty_page() {
    let (simulator, accounting, company) = scene(25).await;

    for (empty, size, pages) in [
        (EmptyList::Array, 10, 4),
        (EmptyList::Nothing, 10, 4),
        (EmptyList::Null, 5, 7),
        (EmptyList::Null, 100, 2),
    ] {
        simulator.provider().turn(|knobs| knobs.reads.empty_list = empty);
        let (ids, oddities, read_pages, _) = read(&accounting, &company, size).await;

        assert_eq!((ids.len(), distinct(&ids)), (25, 25), "{empty:?}");
        assert_eq!((oddities, read_pages), (Oddities::default(), pages), "{empty:?}");
    }
}

async fn smaller_pages_than_requested_do_not_end_a_list() {
    let (simulator, accounting, company) = scene(25).await;
    simulator.provider().turn(|knobs| knobs.reads.max_page_size = 10);

    let (ids, oddities, _, _) = read(&accounting, &company, 1_000).await;

    assert_eq!(distinct(&ids), 25);
    assert_eq!(oddities, Oddities { short: 2, ..Oddities::default() });
}

async fn duplicate_rows_of_a_moving_list_are_kept_and_counted() {
    let (simulator, accounting, company) = scene(30).await;
    simulator.provider().turn(|knobs| {
        knobs.reads.order = ListOrder::Newest;
        knobs.reads.churn = Churn { inserts: 2.0, ..Churn::default() };
        knobs.reads.accounting_pagination = true;
    });

    let (ids, oddities, _, _) = read(&accounting, &company, 10).await;

    assert!(distinct(&ids) >= 30, "{ids:?}");
    assert_eq!(oddities.duplicate as usize, ids.len() - distinct(&ids));
    assert!(oddities.duplicate > 0 && oddities.total > 0, "{oddities:?}");
}

async fn a_failing_page_costs_no_row() {
    let (simulator, accounting, company) = scene(25).await;
    let on = FaultTarget { page: Some(2), ..FaultTarget::default() };
    let fault = |effect| Fault { on: on.clone(), effect, share: 1.0, times: Some(1), skip: 0 };
    simulator.provider().set_faults(vec![
        fault(Effect::Status(HttpStatus::new(500).unwrap())),
        fault(Effect::Truncate),
        fault(Effect::InvalidJson),
        fault(Effect::Drop),
    ]);

    let (ids, oddities, _, failures) = read(&accounting, &company, 10).await;

    assert_eq!((distinct(&ids), ids.len(), failures), (25, 25, 4));
    assert_eq!(oddities, Oddities::default());
}

async fn payroll_is_read_with_totals_filter_and_order() {
    let simulator = start(|settings| settings.knobs.reads.payroll_total = PayrollTotal::Right).await;
    let payroll = client(&simulator).payroll(Granted::payroll(&simulator));
    let payroll = Arc::new(payroll);
    let read = async |filter: Option<&str>| {
        let (mut walk, mut seen) = (PageWalk::default(), HashSet::new());
        let (mut codes, mut totals) = (Vec::new(), BTreeSet::new());
        loop {
            let wanted = PayrollRequest { page: page(walk.number, 2), filter, order_by: Some("companyCode") };
            let page = payroll.companies(wanted, &patient()).await.unwrap();
            codes.extend(page.rows.iter().filter_map(|row| row.company_code));
            match page.total {
                Total::Reported(told) => totals.insert(told.total_count),
                other => panic!("{other:?}"),
            };
            let is_new = |row: &PayrollCompany| row.company_code.is_none_or(|code| seen.insert(code));
            if walk.observe(&page, is_new).next == NextPage::End {
                break;
            }
        }
        assert_eq!(walk.oddities, Oddities::default());
        (codes, totals)
    };

    let (codes, totals) = read(None).await;
    assert_eq!((codes.len(), totals), (5, [5].into()));
    assert!(codes.is_sorted(), "{codes:?}");

    let some = format!("companyCode eq {} or companyCode eq {}", codes[1], codes[3]);
    let (found, totals) = read(Some(&some)).await;
    assert_eq!((found, totals), (vec![codes[1], codes[3]], [2].into()));
    assert!(read(Some("lastUpdate gt 2999-01-01")).await.0.is_empty());
}
