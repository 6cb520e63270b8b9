use serde_json::json;
use url::form_urlencoded;

use super::*;
use crate::simulator::{
    catalog::Kind,
    clock::SECOND,
    knobs::{Churn, EmptyList, ListOrder, PayrollTotal},
    reads::{Shape, payroll_code, write_payroll},
};

const PAGE: [(&str, &str); 2] = [("pageNumber", "1"), ("pageSize", "100")];

impl Rig {
    async fn payroll(&self, query: &[(&str, &str)]) -> Answer {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        self.get(&format!("/payroll/api/companies?{query}"), Context::Absent).await
    }

    /// One page with everything, by a filter and an order.
    async fn payroll_by(&self, filter: &str, order: &str) -> Answer {
        self.payroll(&[PAGE[0], PAGE[1], ("filter", filter), ("OrderBy", order)]).await
    }

    fn act_payroll(&self, index: Option<u32>, kind: Kind) {
        self.provider.change(|world, clock| (world.act_payroll(index, kind, clock).unwrap(), Vec::new()));
    }
}

fn codes(answer: &Answer) -> Vec<u64> {
    answer.rows().iter().map(|row| row["companyCode"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn the_list_is_the_truth_and_tells_its_pages() {
    let rig = Rig::new();
    rig.turn(|knobs| knobs.payroll_total = PayrollTotal::Right);

    let answer = rig.payroll(&[("pageNumber", "2"), ("pageSize", "4")]).await;

    let world = rig.provider.world();
    let truth: Vec<Value> = world.payroll(ListOrder::Created)[4..8]
        .iter()
        .map(|row| {
            let mut out = Vec::new();
            write_payroll(&mut out, world.seed(), row, Shape::default());
            serde_json::from_slice(&out).unwrap()
        })
        .collect();
    assert_eq!(answer.rows(), truth);
    assert_eq!(answer.pagination, Some(json!({ "currentPage": 2, "totalPages": 3, "totalCount": 10 })));
}

#[tokio::test]
async fn both_paging_parameters_are_required_unless_the_knob_says_otherwise() {
    let rig = Rig::new();

    assert_eq!(rig.payroll(&[("pageSize", "4")]).await.refusal(400), "pageNumber is missing");
    assert_eq!(rig.payroll(&[("pageNumber", "1")]).await.refusal(400), "pageSize is missing");
    rig.turn(|knobs| knobs.payroll_paging_required = false);
    assert_eq!(rig.payroll(&[]).await.rows().len(), 10);
}

#[tokio::test]
async fn no_context_matters_to_payroll() {
    let rig = Rig::new();
    let contexts = [
        Context::Absent,
        Context::None,
        Context::Company("nobody".to_owned()),
        Context::Invalid("no JSON".to_owned()),
    ];
    for context in contexts {
        let target = "/payroll/api/companies?pageNumber=1&pageSize=25";

        assert_eq!(rig.get(target, context).await.rows().len(), 10);
    }
}

#[tokio::test]
async fn the_filter_comes_before_pages_and_totals() {
    let rig = Rig::new();
    rig.turn(|knobs| knobs.payroll_total = PayrollTotal::Right);
    let now = rig.provider.clock.now();
    rig.provider.clock.advance(3 * 86_400 * SECOND);
    for index in [1, 4, 7] {
        rig.act_payroll(Some(index), Kind::Updated);
    }
    let filter = format!("lastUpdate gt {}", &now.iso()[..10]);

    let changed = rig.payroll_by(&filter, "").await;
    let page = rig.payroll(&[("pageNumber", "2"), ("pageSize", "2"), ("filter", &filter)]).await;
    let none = rig.payroll_by("companyCode eq null", "").await;

    let expected = [1, 4, 7].map(|index| u64::from(payroll_code(rig.provider.world().seed(), index)));
    assert_eq!(codes(&changed), expected);
    assert_eq!(codes(&page), expected[2..]);
    assert_eq!(page.pagination, Some(json!({ "currentPage": 2, "totalPages": 2, "totalCount": 3 })));
    assert!(none.rows().is_empty());
    assert_eq!(none.pagination, Some(json!({ "currentPage": 1, "totalPages": 0, "totalCount": 0 })));
}

#[tokio::test]
async fn rows_come_in_the_order_asked_for() {
    let rig = Rig::new();
    let plain = codes(&rig.payroll_by("", "").await);
    for field in ["companyName", "identifierNumber", "lastUpdate"] {
        let ascending = rig.payroll_by("", field).await.texts(field);
        let descending = rig.payroll_by("", &format!("{field} DESC")).await.texts(field);

        assert!(ascending.is_sorted(), "{field}");
        assert!(ascending.iter().eq(descending.iter().rev()), "{field}");
    }

    let ascending = codes(&rig.payroll_by("", "companyCode asc").await);

    assert!(ascending.is_sorted());
    assert_ne!(ascending, plain);
    assert_eq!(ascending, codes(&rig.payroll_by("", " companyCode ").await));
    assert!(codes(&rig.payroll_by("", "companyCode Desc").await).iter().rev().eq(&ascending));
}

#[tokio::test]
async fn equal_rows_keep_their_order_in_both_directions() {
    let rig = Rig::new();
    for index in 0..10 {
        rig.act_payroll(Some(index), Kind::Updated);
    }
    let plain = codes(&rig.payroll_by("", "").await);

    let updates = rig.payroll_by("", "").await.texts("lastUpdate");

    assert!(updates.iter().all(|update| *update == updates[0]), "changes of one millisecond");
    assert_eq!(codes(&rig.payroll_by("", "lastUpdate asc").await), plain);
    assert_eq!(codes(&rig.payroll_by("", "lastUpdate desc").await), plain);
}

#[tokio::test]
async fn a_filter_or_order_that_is_not_understood_is_refused() {
    let rig = Rig::new();
    let cases = [
        ("companyCode lt 5", "", "filter: operator \"lt\" is not understood: expected eq, ge or gt"),
        ("(", "", "filter: the filter ends early"),
        ("", "vatNumber", "OrderBy: field \"vatNumber\" is not known"),
        ("", "companycode", "OrderBy: field \"companycode\" is not known"),
        ("", "companyCode up", "OrderBy: \"up\" is not understood: expected asc or desc"),
        ("", "companyCode,companyName", "OrderBy: field"),
        ("", "companyCode asc x", "OrderBy: \"x\" is not understood"),
    ];
    for (filter, order, said) in cases {
        let message = rig.payroll_by(filter, order).await.refusal(400);

        assert!(message.starts_with(said), "{message}");
    }
}

#[tokio::test]
async fn timestamps_are_understood_only_by_knob() {
    let rig = Rig::new();
    let filter = "lastUpdate gt 2020-01-01T00:00:00.000Z";

    assert_eq!(rig.payroll_by(filter, "").await.rows().len(), 10);
    rig.turn(|knobs| knobs.filter_timestamps = false);
    assert!(rig.payroll_by(filter, "").await.refusal(400).contains("YYYY-MM-DD"));
}

#[tokio::test]
async fn payroll_too_lags_churns_has_extra_fields_and_empty_lists() {
    let rig = Rig::new();
    let page = async || rig.payroll(&PAGE).await;
    let before = page().await.body;
    rig.provider.clock.advance(60 * SECOND);
    rig.act_payroll(Some(0), Kind::Updated);
    rig.act_payroll(None, Kind::Created);
    rig.turn(|knobs| knobs.replica_lag = 5_000);

    let stale = page().await.body;
    rig.turn(|knobs| (knobs.replica_lag, knobs.extra_fields) = (0, true));
    let fresh = page().await.rows();
    rig.turn(|knobs| knobs.churn = Churn { inserts: 20.0, ..Churn::default() });
    let untouched = page().await.rows().len();
    let churned = page().await.rows().len();
    rig.turn(|knobs| knobs.empty_list = EmptyList::Null);
    let empty = rig.payroll_by("companyCode eq 0", "").await.body;

    assert_eq!(stale, before);
    assert!(fresh.len() == 11 && fresh[0]["tags"].is_array());
    assert!(untouched == 11 && churned > 11);
    assert_eq!(empty, b"null");
}
