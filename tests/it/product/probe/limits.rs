//! Providers that refuse large pages, hide paths, order by change, limit the rate, and have another clock.

use serde_json::json;
use simulator::catalog::{Kind, Resource};
use simulator::knobs::{
    Effect, EmptyList, Fault, FaultTarget, FirstPage, HttpStatus, ListOrder, OverMax, Rate, RetryHint,
};
use simulator::world::{Place, WorldChange};

use super::{MORE, ProbeScene};
use crate::product::simulator::noon;

crate::tests! {
    plain a_refused_page_size_is_found_exactly;
    plain pages_that_are_too_large_do_not_end_a_list;
    plain a_page_that_repeats_shows_no_limit;
    plain a_list_without_rows_is_reported_in_full;
    plain hidden_paths_are_found_and_left_out_of_the_settings;
    plain lists_that_are_not_read_lead_to_no_proposal;
    plain a_schedule_that_loses_its_list_is_noted;
    plain an_api_without_an_unknown_path_is_reported;
    plain an_unknown_company_leads_to_no_proposal;
    plain the_order_of_changes_differs_from_that_of_creation;
    plain a_rate_limit_is_waited_for_and_shown;
    plain a_foreign_clock_is_measured;
    plain tenant_wide_records_are_found_with_none;
}

async fn a_refused_page_size_is_found_exactly() {
    let scene = ProbeScene::new("probe-refused-size", &[("page.size", "50")], |settings| {
        let reads = &mut settings.knobs.reads;
        (reads.max_page_size, reads.over_max, reads.first_page) = (37, OverMax::Refuse, FirstPage::Zero);
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    for list in ["companies", "customers", "accounts", "payroll"] {
        let found = report.found("page-size", list);
        assert_eq!(found, "37; a larger pageSize is refused: 400 with the API's JSON", "{list}");
    }
    // Parameters of the payroll list are tried with a size that is accepted.
    assert_eq!(report.found("payroll-order", "payroll"), "applied, ascending");
    assert_eq!(*report.settings(), json!({ "page.size": "37" }));
    assert_eq!((code, report.unanswered()), (Some(0), Vec::new()));
}

async fn pages_that_are_too_large_do_not_end_a_list() {
    // About 150 rows fit.
    let limit = [("provider.response.limit.bytes", "65536")];
    let scene = ProbeScene::new("probe-too-large", &limit, |settings| settings.world.customers = 600).await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    let found = report.found("page-size", "customers");
    assert!(found.starts_with("at least ") && found.contains("provider.response.limit.bytes"), "{found}");
    assert_eq!(report.found("row-members", "customers"), "the whole record");
    assert_eq!((code, report.settings(), report.unanswered()), (Some(0), &json!({}), Vec::new()));
}

async fn a_page_that_repeats_shows_no_limit() {
    let settings = [("snapshot.lists", "customers")];
    let scene = ProbeScene::new("probe-repeated", &settings, |settings| {
        settings.knobs.reads.max_page_size = 37;
        let on = FaultTarget { path: Some("/accounting/api/customers".to_owned()), ..FaultTarget::default() };
        let same = Fault { on, effect: Effect::FirstPage, share: 1.0, times: None, skip: 0 };
        settings.knobs.faults = vec![same];
    })
    .await;

    let (_, report) = scene.report("accounting,payroll", &[]).await;

    assert_eq!(report.found("page-size", "customers"), "at least 37; the next page repeats the first");
    assert_eq!(*report.settings(), json!({}));
}

async fn a_list_without_rows_is_reported_in_full() {
    let scene = ProbeScene::new("probe-empty", &[], |settings| {
        settings.world.payroll_companies = 0;
        settings.knobs.reads.empty_list = EmptyList::Null;
        settings.knobs.reads.first_page = FirstPage::OneZeroEmpty;
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    assert_eq!((code, report.found("empty-list", "payroll")), (Some(1), "null".to_owned()));
    for question in ["page-size", "order", "payroll-order", "payroll-filter", "payroll-paging"] {
        assert_eq!(report.found(question, "payroll"), "not answered: the list is empty");
    }
}

async fn hidden_paths_are_found_and_left_out_of_the_settings() {
    let settings = [("enrich.resources", "customers,journals,persons"), ("snapshot.rows", "full")];
    let scene = ProbeScene::new("probe-hidden", &settings, |settings| {
        settings.knobs.gateway.unknown_paths = [Resource::Journals, Resource::Charges].into();
        settings.knobs.reads.thin_rows = true;
        let on = FaultTarget { ending: Some("/accounts".to_owned()), ..FaultTarget::default() };
        let hidden = Fault { on, effect: Effect::UnknownPath, share: 1.0, times: None, skip: 0 };
        settings.knobs.faults = vec![hidden];
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    let by_id = |resource| report.found("by-id-path", resource);
    assert_eq!([by_id("journals"), by_id("charges")], ["unknown to the gateway"; 2]);
    assert_eq!(by_id("persons"), "known; context: the company");
    assert_eq!(report.found("list", "accounts"), "not offered: 404 with the gateway's JSON");
    let expected = json!({
        "enrich.resources": "customers,persons",
        "snapshot.lists": "companies,customers,payroll",
        "snapshot.rows": "thin",
    });
    assert_eq!(*report.settings(), expected);
    assert_eq!((code, report.unanswered()), (Some(0), Vec::new()));
}

async fn lists_that_are_not_read_lead_to_no_proposal() {
    let settings = [("snapshot.lists", "companies"), ("snapshot.rows", "full"), ("page.size", "50")];
    let scene = ProbeScene::new("probe-not-read", &settings, |settings| {
        let reads = &mut settings.knobs.reads;
        (reads.max_page_size, reads.over_max, reads.thin_rows) = (37, OverMax::Clamp, true);
    })
    .await;

    let (_, report) = scene.report("accounting,payroll", &[]).await;

    // The companies are fewer than 37, but their rows are thin.
    assert_eq!(report.found("page-size", "customers"), "37; a larger pageSize is cut");
    assert_eq!(*report.settings(), json!({ "snapshot.rows": "thin" }));
}

async fn a_schedule_that_loses_its_list_is_noted() {
    let settings = [("payroll.incremental.schedule", "0 3 * * *")];
    let scene = ProbeScene::new("probe-schedule", &settings, |settings| {
        let on = FaultTarget { path: Some("/payroll/api/companies".to_owned()), ..FaultTarget::default() };
        let hidden = Fault { on, effect: Effect::UnknownPath, share: 1.0, times: None, skip: 0 };
        settings.knobs.faults = vec![hidden];
    })
    .await;

    let (_, report) = scene.report("accounting,payroll", &[]).await;

    assert_eq!(*report.settings(), json!({ "snapshot.lists": "companies,customers,accounts" }));
    assert!(report.0.to_string().contains("remove payroll.incremental.schedule"), "{:#}", report.0);
}

async fn an_api_without_an_unknown_path_is_reported() {
    let scene = ProbeScene::new("probe-no-unknown-path", &[], |settings| {
        let on = FaultTarget {
            path: Some("/accounting-core/api/tributaryProbe".to_owned()),
            ..FaultTarget::default()
        };
        let effect = Effect::Status(HttpStatus::new(502).unwrap());
        settings.knobs.faults = vec![Fault { on, effect, share: 1.0, times: None, skip: 0 }];
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    let open = report.unanswered();
    assert!(code == Some(1) && open.contains(&("by-id-path".to_owned(), "persons".to_owned())), "{open:?}");
    assert!(open.iter().all(|(question, _)| question != "event-names"), "{open:?}");
    assert_eq!(report.found("by-id-path", "journals"), "known; context: the company");
}

async fn an_unknown_company_leads_to_no_proposal() {
    let lists = [("snapshot.lists", "companies,customers,accounts")];
    let scene = ProbeScene::new("probe-unknown-company", &lists, |settings| {
        settings.knobs.reads.unknown_company = HttpStatus::NOT_FOUND;
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &["--company", "no-such-company"]).await;

    for list in ["customers", "accounts"] {
        let found = report.found("list", list);
        assert!(found.contains("404 with the API's JSON") && found.contains("--company"), "{found}");
    }
    assert_eq!((code, report.settings()), (Some(1), &json!({})));
}

async fn the_order_of_changes_differs_from_that_of_creation() {
    for (order, expected) in
        [(ListOrder::Changed, "ascending by version"), (ListOrder::Created, "by none of version, ")]
    {
        let scene = ProbeScene::new("probe-order", &[], |settings| settings.knobs.reads.order = order).await;
        let place = Place { resource: Resource::Customers, company: Some(0), index: MORE / 2 };
        scene.simulator.provider().change(|world, clock| {
            let change = world.act(place, Kind::Updated, clock).unwrap();
            ((), vec![WorldChange::Record(change)])
        });

        let company = scene.simulator.provider().world().company_id(0);
        let (_, report) = scene.report("accounting,payroll", &["--company", &company]).await;

        let found = report.found("order", "customers");
        assert!(found.starts_with(expected), "{order:?}: {found}");
    }
}

async fn a_rate_limit_is_waited_for_and_shown() {
    let scene = ProbeScene::new("probe-rate", &[], |settings| {
        let rate = Rate { requests: 20, seconds: 2.0, tells: RetryHint::RetryAfter };
        settings.knobs.gateway.rate = Some(rate);
    })
    .await;

    let (code, report) = scene.report("accounting,payroll", &[]).await;

    let found = report.found("rate-limit-headers", "all answers");
    assert!(found.contains(" × 429; retry-after: "), "{found}");
    assert_eq!((code, report.unanswered()), (Some(0), Vec::new()));
}

async fn a_foreign_clock_is_measured() {
    let scene = ProbeScene::new("probe-clock", &[], |settings| settings.frozen_at = Some(noon())).await;

    let (_, report) = scene.report("accounting,payroll", &[]).await;

    let found = report.found("clock", "all answers");
    let seconds = found.split_whitespace().find_map(|word| word.parse::<i64>().ok()).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let behind = now.cast_signed() - noon().0 / simulator::clock::SECOND;
    assert!((seconds - behind.abs()).abs() < 60, "{found}, not {behind} s");
    assert!(report.0.to_string().contains("clock.skew.max.ms of the worker"), "{:#}", report.0);
}

async fn tenant_wide_records_are_found_with_none() {
    let scene = ProbeScene::new("probe-tenant", &[], |settings| {
        settings.world.tenant_resources = [Resource::Persons].into();
    })
    .await;

    let (_, report) = scene.report("accounting,payroll", &[]).await;

    assert_eq!(report.found("by-id-path", "persons"), "known; context: none");
    assert_eq!(report.found("by-id-path", "activities"), "known; context: the company");
}
