use std::collections::BTreeSet;

use super::*;
use crate::simulator::{
    catalog::Kind,
    knobs::{CompanyContext, DisabledShows, LeftOut, MissingBody, Status},
    world::Change,
};

impl Rig {
    fn act(&self, resource: Resource, company: Option<CompanyNumber>, index: u32, kind: Kind) {
        self.provider.change(|world, clock| {
            let change = world.act(Place { resource, company, index }, kind, clock).unwrap();
            ((), vec![Change::Record(change)])
        });
    }
}

fn path(resource: Resource, id: &str) -> String {
    format!("{}/{}", resource.prefix(), id.replace(':', "%3A"))
}

#[tokio::test]
async fn every_resource_is_read_by_id_and_equals_the_truth() {
    let rig = Rig::new();
    for resource in Resource::ALL {
        let company = (resource != Resource::Companies).then_some(1);
        let id = rig.id(resource, company, 1);

        let answer = rig.get(&path(resource, &id), rig.context(1)).await;

        let (place, row) = rig.provider.world().find(resource, &id).unwrap();
        let truth = truth(&rig.provider.world().naming(), place, &row);
        assert_eq!(answer.status, 200, "{resource}: {}", String::from_utf8_lossy(&answer.body));
        assert_eq!(answer.body, truth, "{resource}");
        assert_eq!(answer.json()["correlationId"], id, "{resource}");
    }
}

#[tokio::test]
async fn another_companys_record_is_as_unknown_as_one_that_never_was() {
    let rig = Rig::new();
    for resource in Resource::ALL {
        let company = (resource != Resource::Companies).then_some(1);
        let id = rig.id(resource, company, 1);
        let never = "00000000-0000-0000-0000-000000000000";

        let foreign = rig.get(&path(resource, &id), rig.context(2)).await.refusal(404);
        let unknown = rig.get(&path(resource, never), rig.context(2)).await.refusal(404);

        assert_eq!(foreign.replace(&id, never), unknown, "{resource}");
    }
}

#[tokio::test]
async fn an_id_of_another_resource_is_unknown() {
    let rig = Rig::new();
    let customer = rig.id(Resource::Customers, Some(1), 0);

    rig.get(&path(Resource::Suppliers, &customer), rig.context(1)).await.refusal(404);
}

#[tokio::test]
async fn a_company_is_read_with_the_context_that_the_knob_says() {
    let rig = Rig::new();
    let target = path(Resource::Companies, &rig.company(1));

    for (wanted, statuses) in [
        (CompanyContext::Company, [200, 400, 400]),
        (CompanyContext::None, [400, 200, 400]),
        (CompanyContext::Absent, [400, 400, 200]),
        (CompanyContext::Any, [200, 200, 200]),
    ] {
        rig.turn(|knobs| knobs.records.company_context = wanted);
        for (context, status) in [rig.context(1), Context::None, Context::Absent].into_iter().zip(statuses) {
            assert_eq!(rig.get(&target, context).await.status, status, "{wanted:?}");
        }
        rig.get(&target, Context::Invalid("no JSON".to_owned())).await.refusal(400);
    }
    rig.turn(|knobs| knobs.records.company_context = CompanyContext::Company);
    rig.get(&target, rig.context(2)).await.refusal(404);
    rig.get(&target, Context::Company("nobody".to_owned())).await.refusal(403);
}

#[tokio::test]
async fn records_of_a_company_need_its_context() {
    let rig = Rig::new();
    let target = path(Resource::Journals, &rig.id(Resource::Journals, Some(1), 0));
    let cases = [
        (Context::Absent, "header context is missing"),
        (Context::None, "header context is none"),
        (Context::Invalid("two members".to_owned()), "header context is not valid, two members"),
    ];
    for (context, said) in cases {
        let message = rig.get(&target, context).await.refusal(400);

        assert!(message.starts_with(said), "{message}");
        assert!(
            message.ends_with("expected a JSON object with one member clientId, the company's correlationId")
        );
    }
}

#[tokio::test]
async fn tenant_wide_resources_need_none() {
    let tenant_resources = BTreeSet::from([Resource::Persons]);
    let rig = Rig::with(WorldSettings { tenant_resources, ..WorldSettings::default() });
    let id = rig.id(Resource::Persons, None, 1);
    let target = path(Resource::Persons, &id);

    assert_eq!(rig.get(&target, Context::None).await.json()["correlationId"], id);
    for context in [Context::Absent, rig.context(1), Context::Invalid("no JSON".to_owned())] {
        assert!(rig.get(&target, context).await.refusal(400).contains("expected none"));
    }
}

#[tokio::test]
async fn a_deleted_company_is_unknown_and_so_is_its_data() {
    let rig = Rig::new();
    let customer = path(Resource::Customers, &rig.id(Resource::Customers, Some(1), 0));
    let company = path(Resource::Companies, &rig.company(1));
    rig.act(Resource::Companies, None, 1, Kind::Deleted);
    for status in [400, 403, 404] {
        rig.turn(|knobs| knobs.unknown_company = Status::new(status).unwrap());

        let message = rig.get(&customer, rig.context(1)).await.refusal(status);
        // Whether it is there is what this read asks.
        rig.get(&company, rig.context(1)).await.refusal(404);
        rig.get("/accounting/api/customers", rig.context(1)).await.refusal(status);

        assert!(message.contains("is not known"), "{message}");
    }
}

#[tokio::test]
async fn a_missing_record_is_answered_as_the_knobs_say() {
    let rig = Rig::new();
    let journal = path(Resource::Journals, "00000000-0000-0000-0000-000000000000");
    for status in [Status::NOT_FOUND, Status::GONE] {
        for (body, content_type, begins) in [
            (MissingBody::Api, "application/json; charset=utf-8", "{\"ok\":false,\"httpCode\":4"),
            (MissingBody::Json, "application/json; charset=utf-8", "{\"error\":{"),
            (MissingBody::Gateway, "application/json; charset=utf-8", "{\"statusCode\":4"),
            (MissingBody::Empty, "", ""),
            (MissingBody::Text, "text/plain; charset=utf-8", "Not here"),
            (MissingBody::Html, "text/html; charset=utf-8", "<!DOCTYPE html>"),
        ] {
            rig.turn(|knobs| {
                (knobs.records.missing_status, knobs.records.missing_body) = (status, body);
            });

            let answer = rig.get(&journal, rig.context(1)).await;

            assert_eq!((answer.status, &*answer.content_type), (status.get(), content_type), "{body:?}");
            assert!(String::from_utf8_lossy(&answer.body).starts_with(begins), "{body:?}");
            assert_eq!(body == MissingBody::Empty, answer.body.is_empty());
        }
    }
}

#[tokio::test]
async fn records_leave_out_what_the_knobs_say() {
    let rig = Rig::new();
    let resource = Resource::Journals;
    let target = path(resource, &rig.id(resource, Some(1), 0));
    let account = path(Resource::Accounts, &rig.id(Resource::Accounts, Some(1), 0));
    rig.turn(|knobs| {
        knobs.records.without_id = BTreeSet::from([resource]);
        knobs.records.without_sequence = BTreeSet::from([resource]);
        (knobs.records.without_last_update, knobs.template_accounts) = (true, 1);
    });
    for (left_out, id, version) in [
        (LeftOut::Absent, None, None),
        (LeftOut::Null, Some(Value::Null), Some(Value::Null)),
        (LeftOut::Empty, Some("".into()), Some("".into())),
        (LeftOut::Unreadable, Some("".into()), Some("unknown".into())),
    ] {
        rig.turn(|knobs| knobs.records.left_out = left_out);

        let record = rig.get(&target, rig.context(1)).await.json();
        let whole = rig.get(&account, rig.context(1)).await.json();
        let payroll = rig.get("/payroll/api/companies?pageNumber=1&pageSize=1", Context::Absent).await.rows();
        let rows = rig.get("/accounting/api/accounts?pageSize=1000", rig.context(1)).await.rows();
        let template = rows.last().unwrap();

        assert_eq!(record.get("correlationId"), id.as_ref(), "{left_out:?}");
        assert_eq!(record.get("sequenceVersion"), version.as_ref(), "{left_out:?}");
        assert!(whole["correlationId"].is_string() && whole["sequenceVersion"].is_string());
        assert_eq!(payroll[0].get("lastUpdate"), version.as_ref(), "{left_out:?}");
        assert_eq!((template.get("correlationId"), &template["state"]), (id.as_ref(), &"Template".into()));
    }
}

#[tokio::test]
async fn paths_below_a_resource_are_no_ids() {
    let rig = Rig::new();
    let paths = [
        "/accounting/api/customers/webhooks",
        "/accounting-core/api/activities/webhooks",
        "/accounting-core/api/activities/estimations",
        "/accounting-core/api/activities/prorates",
        "/accounting-core/api/activities/estimations/webhooks",
        "/accounting-import/api/integrationFiles/webhooks",
    ];
    for path in paths {
        let answer = rig.get(path, rig.context(1)).await;

        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["message"], "Resource not found", "{path}");
    }
}

#[tokio::test]
async fn an_id_that_is_no_text_or_very_odd_is_answered_clearly() {
    let rig = Rig::new();

    assert!(rig.get("/accounting/api/customers/%ff%fe", rig.context(1)).await.refusal(400).contains("UTF-8"));
    for id in ["%00", "%22%5C%0A", "%F0%9F%9A%80", "a%2Fb", "%2E%2E", &"9".repeat(5_000)] {
        rig.get(&format!("/accounting/api/customers/{id}"), rig.context(1)).await.refusal(404);
    }
}

#[tokio::test]
async fn deleted_records_are_gone_and_disabled_ones_show_as_the_knob_says() {
    let rig = Rig::new();
    let journal = path(Resource::Journals, &rig.id(Resource::Journals, Some(1), 0));
    let customer = path(Resource::Customers, &rig.id(Resource::Customers, Some(1), 0));
    rig.act(Resource::Journals, Some(1), 0, Kind::Deleted);
    rig.act(Resource::Customers, Some(1), 0, Kind::Disabled);

    rig.get(&journal, rig.context(1)).await.refusal(404);
    for (shows, by_id, listed) in [
        (DisabledShows::Everywhere, true, 20),
        (DisabledShows::ById, true, 19),
        (DisabledShows::Nowhere, false, 19),
    ] {
        rig.turn(|knobs| knobs.disabled = shows);
        let record = rig.get(&customer, rig.context(1)).await;
        let list = rig.get("/accounting/api/customers", rig.context(1)).await;

        assert_eq!(record.status, if by_id { 200 } else { 404 }, "{shows:?}");
        assert!(!by_id || record.json()["state"] == "Disabled");
        assert_eq!(list.rows().len(), listed, "{shows:?}");
    }
}

#[tokio::test]
async fn a_lagging_replica_shows_the_state_before_and_lacks_what_is_new() {
    let rig = Rig::new();
    rig.turn(|knobs| knobs.replica_lag = 5_000);
    let target = path(Resource::Customers, &rig.id(Resource::Customers, Some(1), 0));
    let before = rig.get(&target, rig.context(1)).await.body;
    // Beyond the first moment of the world, which the replica has.
    rig.provider.clock.advance(60 * crate::simulator::clock::SECOND);
    rig.act(Resource::Customers, Some(1), 0, Kind::Updated);
    let created = rig.provider.change(|world, clock| {
        let change = world.create(Resource::Customers, Some(1), clock).unwrap();
        (world.id(change.place), vec![Change::Record(change)])
    });
    let new = path(Resource::Customers, &created);

    let stale = rig.get(&target, rig.context(1)).await.body;
    rig.get(&new, rig.context(1)).await.refusal(404);
    let stale_list = rig.get("/accounting/api/customers", rig.context(1)).await.texts("correlationId");
    rig.provider.clock.advance(6 * crate::simulator::clock::SECOND);
    let fresh = rig.get(&target, rig.context(1)).await.body;
    let fresh_list = rig.get("/accounting/api/customers", rig.context(1)).await.texts("correlationId");

    assert_eq!(stale, before);
    assert_ne!(fresh, before);
    assert!(!stale_list.contains(&created) && fresh_list.contains(&created));
    assert_eq!(rig.get(&new, rig.context(1)).await.status, 200);
}

#[tokio::test]
async fn the_share_of_stale_reads_is_drawn_by_the_seed() {
    let seen = async || {
        let rig = Rig::new();
        let id = rig.id(Resource::Customers, Some(1), 0);
        let target = path(Resource::Customers, &id);
        rig.provider.clock.advance(60 * crate::simulator::clock::SECOND);
        rig.act(Resource::Customers, Some(1), 0, Kind::Updated);
        rig.turn(|knobs| (knobs.replica_lag, knobs.replica_share) = (5_000, 0.3));
        let mut bodies = Vec::new();
        for _ in 0..200 {
            bodies.push(rig.get(&target, rig.context(1)).await.body);
        }
        let fresh = rig.provider.world().find(Resource::Customers, &id).unwrap().1.changed.iso();
        bodies.iter().map(|body| !String::from_utf8_lossy(body).contains(&fresh)).collect::<Vec<bool>>()
    };

    let (first, second) = (seen().await, seen().await);

    let stale = first.iter().filter(|&&stale| stale).count();
    assert!((30..90).contains(&stale), "{stale}");
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_record_by_id_has_all_fields_when_rows_are_thin_and_more_on_request() {
    let rig = Rig::new();
    let target = path(Resource::Customers, &rig.id(Resource::Customers, Some(1), 0));
    rig.turn(|knobs| (knobs.thin_rows, knobs.extra_fields) = (true, false));

    let full = rig.get(&target, rig.context(1)).await.json();
    let thin = rig.get("/accounting/api/customers", rig.context(1)).await.rows();
    rig.turn(|knobs| knobs.extra_fields = true);
    let extra = rig.get(&target, rig.context(1)).await.json();

    assert_eq!(full.as_object().unwrap().len(), 10);
    assert_eq!(thin[0].as_object().unwrap().len(), 5);
    assert_eq!((&thin[0]["tradeName"], &thin[0]["version"]), (&full["tradeName"], &full["version"]));
    assert!(extra["geo"].is_object());
}
