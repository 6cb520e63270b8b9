//! Lists and records that change: order, replicas, restores, churn between pages.

use std::collections::BTreeSet;

use simulator::{
    Simulator,
    catalog::{Kind, Resource},
    clock::SECOND,
    knobs::{Churn, DisabledShows, ListOrder},
    world::WorldChange,
};

use super::{
    Client, ids,
    lists::{ACCOUNTS, CUSTOMERS, PAYROLL, one_company},
    pass,
    reads::by_api,
    segment, start, started,
};

crate::tests! {
    plain a_list_has_the_order_its_knob_says;
    plain a_lagging_replica_shows_an_earlier_state;
    plain a_company_its_replica_lacks_is_an_unknown_company;
    plain a_lagging_replica_has_payroll_as_it_was;
    plain a_replica_lags_by_its_knob_after_the_clock_was_set_back;
    plain a_share_of_reads_goes_to_the_replica;
    plain a_restored_company_is_what_it_was_versions_and_all;
    plain disabled_customers_leave_lists_that_hide_them;
    plain payroll_companies_come_and_go_between_pages;
}

/// Changes a customer.
fn act(simulator: &Simulator, id: &str, kind: Kind) {
    simulator.provider().change(|world, clock| {
        let (place, _) = world.find(Resource::Customers, id).unwrap();
        ((), vec![WorldChange::Record(world.act(place, kind, clock).unwrap())])
    });
}

/// Creates a customer of the first company.
fn create(simulator: &Simulator) -> String {
    simulator.provider().change(|world, clock| {
        let change = world.create(Resource::Customers, Some(0), clock).unwrap();
        (world.id(change.place), vec![WorldChange::Record(change)])
    })
}

async fn a_list_has_the_order_its_knob_says() {
    let (simulator, client) = one_company(12).await;
    let read = async |order: ListOrder| {
        simulator.provider().turn(|knobs| knobs.reads.order = order);
        ids(&client.get(CUSTOMERS).await.rows())
    };
    let created = read(ListOrder::Created).await;

    let new = create(&simulator);
    act(&simulator, &created[3], Kind::Updated);

    let expected = [created.clone(), vec![new.clone()]].concat();
    assert_eq!(read(ListOrder::Created).await, expected);
    assert_eq!(read(ListOrder::Newest).await, expected.iter().rev().cloned().collect::<Vec<_>>());
    let changed = read(ListOrder::Changed).await;
    assert_eq!(changed[11..], [new, created[3].clone()]);
    let scattered = read(ListOrder::Scattered).await;
    let same = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!((same(&scattered), same(&changed)), (same(&expected), same(&expected)));
    assert_ne!(scattered, expected);
    // A change does not move a row.
    act(&simulator, &created[0], Kind::Updated);
    assert_eq!(read(ListOrder::Scattered).await, scattered);
}

async fn a_lagging_replica_shows_an_earlier_state() {
    let (simulator, client) = one_company(3).await;
    simulator.provider().turn(|knobs| knobs.reads.replica_lag = 5_000);
    pass(&simulator, 60);
    let before = client.get(CUSTOMERS).await.rows();
    let changed = format!("{CUSTOMERS}/{}", segment(before[0]["correlationId"].as_str().unwrap()));

    act(&simulator, before[0]["correlationId"].as_str().unwrap(), Kind::Updated);
    let new = create(&simulator);
    let new = format!("{CUSTOMERS}/{}", segment(&new));

    // The two changes are one tick apart, so the later one needs one more.
    simulator.provider().clock.advance(5 * SECOND - 1);
    assert_eq!(client.get(CUSTOMERS).await.rows(), before);
    assert_eq!(client.get(&changed).await.ok(), before[0]);
    by_api(&client.get(&new).await, 404);
    simulator.provider().clock.advance(2);
    assert_eq!(client.get(CUSTOMERS).await.rows().len(), 4);
    assert_ne!(client.get(&changed).await.ok(), before[0]);
    assert_eq!(client.get(&new).await.status, 200);
}

async fn a_company_its_replica_lacks_is_an_unknown_company() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    pass(&simulator, 60);
    let (id, customer) = simulator.provider().change(|world, clock| {
        let company = world.create(Resource::Companies, None, clock).unwrap();
        let customer = world.create(Resource::Customers, Some(company.place.index), clock).unwrap();
        let ids = (world.id(company.place), world.id(customer.place));
        (ids, vec![WorldChange::Record(company), WorldChange::Record(customer)])
    });
    let client = client.company(&id);
    let paths = [CUSTOMERS.to_owned(), ACCOUNTS.to_owned(), format!("{CUSTOMERS}/{}", segment(&customer))];

    for path in &paths {
        simulator.provider().turn(|knobs| knobs.reads.replica_lag = 0);
        assert_eq!(client.get(path).await.status, 200, "{path}");
        simulator.provider().turn(|knobs| knobs.reads.replica_lag = 5_000);
        by_api(&client.get(path).await, 403);
    }
    pass(&simulator, 6);
    for path in &paths {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    // A deleted company is readable until the replica catches up.
    simulator.provider().change(|world, clock| {
        let (place, _) = world.find(Resource::Companies, &id).unwrap();
        ((), vec![WorldChange::Record(world.act(place, Kind::Deleted, clock).unwrap())])
    });
    assert_eq!(client.get(CUSTOMERS).await.rows().len(), 1);
    pass(&simulator, 6);
    by_api(&client.get(CUSTOMERS).await, 403);
}

async fn a_lagging_replica_has_payroll_as_it_was() {
    let simulator = start(|_| {}).await;
    simulator.provider().turn(|knobs| knobs.reads.replica_lag = 5_000);
    pass(&simulator, 60);
    let client = Client::payroll(&simulator);
    let read = async || client.get(&format!("{PAYROLL}?pageNumber=1&pageSize=100")).await.rows();
    let before = read().await;

    simulator.provider().change(|world, clock| {
        world.act_payroll(Some(0), Kind::Updated, clock).unwrap();
        world.act_payroll(Some(1), Kind::Deleted, clock).unwrap();
        world.act_payroll(None, Kind::Created, clock).unwrap();
        ((), Vec::new())
    });

    assert_eq!(read().await, before);
    pass(&simulator, 4);
    assert_eq!(read().await, before);
    pass(&simulator, 1);
    let after = read().await;
    assert_eq!(after.len(), 5);
    assert_ne!((&after[0], &after[1]), (&before[0], &before[1]));
    assert_eq!(after[1], before[2]);
}

async fn a_replica_lags_by_its_knob_after_the_clock_was_set_back() {
    let (simulator, client) = one_company(3).await;
    pass(&simulator, 60);
    let known = ids(&client.get(CUSTOMERS).await.rows());
    act(&simulator, &known[0], Kind::Updated);
    pass(&simulator, 60);
    let before = client.get(CUSTOMERS).await.rows();
    simulator.provider().turn(|knobs| knobs.reads.replica_lag = 5_000);
    assert_eq!(client.get(CUSTOMERS).await.rows(), before);

    pass(&simulator, -7_200);
    let new = create(&simulator);
    pass(&simulator, 4);
    assert!(!ids(&client.get(CUSTOMERS).await.rows()).contains(&new));
    pass(&simulator, 2);

    assert!(ids(&client.get(CUSTOMERS).await.rows()).contains(&new), "hidden for longer than the lag");
}

async fn a_share_of_reads_goes_to_the_replica() {
    let (simulator, client) = one_company(3).await;
    pass(&simulator, 60);
    let new = format!("{CUSTOMERS}/{}", segment(&create(&simulator)));

    for (share, found) in [(0.0, 40..=40), (0.5, 8..=32), (1.0, 0..=0)] {
        simulator
            .provider()
            .turn(|knobs| (knobs.reads.replica_lag, knobs.reads.replica_share) = (5_000, share));
        let mut count = 0;
        for _ in 0..40 {
            count += usize::from(client.get(&new).await.status == 200);
        }

        assert!(found.contains(&count), "a share of {share} leaves {count} of 40 reads that find it");
    }
}

async fn a_restored_company_is_what_it_was_versions_and_all() {
    let (simulator, client) = one_company(4).await;
    pass(&simulator, 10);
    let before = client.get(CUSTOMERS).await.rows();
    pass(&simulator, 10);
    act(&simulator, before[0]["correlationId"].as_str().unwrap(), Kind::Updated);
    act(&simulator, before[1]["correlationId"].as_str().unwrap(), Kind::Disabled);
    create(&simulator);
    let changed = client.get(CUSTOMERS).await.rows();

    let to = simulator.provider().clock.now().minus(std::time::Duration::from_secs(5));
    simulator.provider().change(|world, _| (world.restore(0, to), Vec::new()));

    assert_ne!(changed, before);
    assert_eq!(client.get(CUSTOMERS).await.rows(), before);
    // The next change may repeat a version, with other content.
    act(&simulator, before[0]["correlationId"].as_str().unwrap(), Kind::Updated);
    let again = client.get(CUSTOMERS).await.rows();
    assert_eq!(again[0]["sequenceVersion"], changed[0]["sequenceVersion"]);
    assert_ne!(again[0]["tradeName"], changed[0]["tradeName"]);
}

async fn disabled_customers_leave_lists_that_hide_them() {
    let (simulator, client) = one_company(20).await;
    simulator.provider().turn(|knobs| {
        knobs.reads.disabled = DisabledShows::ById;
        knobs.reads.churn = Churn { deletes: 1.0, ..Churn::default() };
    });

    let mut lengths = Vec::new();
    for _ in 0..4 {
        lengths.push(client.get(CUSTOMERS).await.rows().len());
    }

    assert_eq!(lengths, [20, 19, 18, 17]);
}

async fn payroll_companies_come_and_go_between_pages() {
    let (simulator, client) =
        started(Client::payroll, |settings| settings.world.payroll_companies = 20).await;
    let path = format!("{PAYROLL}?pageNumber=1&pageSize=100");

    for (churn, step) in [
        (Churn { deletes: 2.0, ..Churn::default() }, -2),
        (Churn { inserts: 3.0, ..Churn::default() }, 3),
        (Churn { updates: 2.0, ..Churn::default() }, 0),
    ] {
        simulator.provider().turn(|knobs| knobs.reads.churn = churn);
        let [first, second] = [client.get(&path).await.rows(), client.get(&path).await.rows()];

        assert_eq!(second.len().cast_signed() - first.len().cast_signed(), step, "{churn:?}");
        assert_ne!(first, second, "{churn:?}");
    }
}
