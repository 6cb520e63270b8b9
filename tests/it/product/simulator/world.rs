//! The world: the seed determines it, versions only rise, and reads agree with the truth.

use std::collections::BTreeMap;

use axum::body::Bytes;
use reqwest::Method;
use serde_json::json;
use simulator::{
    Simulator,
    catalog::{Kind, Resource},
    control,
    knobs::{ListOrder, ReceiverUrls},
    reads::payroll_code,
    settings::Settings,
    world::WorldChange,
};

use super::{
    Client, RESOURCES, invoicing, pass, reads::resource, receiver::Receiver, segment, start, started,
};

crate::tests! {
    plain the_same_seed_gives_the_same_records_and_deliveries;
    plain a_rate_of_changes_makes_changes_by_itself;
    plain versions_and_sequences_only_rise_while_nothing_is_restored;
    plain what_is_true_is_what_reads_return;
    plain every_change_is_announced_with_the_sequence_it_has;
    plain a_world_is_as_large_as_its_settings;
}

/// Leads `hooks.example` to a receiver.
fn lead(receiver: &Receiver, settings: &mut Settings) {
    settings.knobs.delivery.receivers = ReceiverUrls::Any;
    settings.knobs.delivery.resolve = [("hooks.example".to_owned(), receiver.address)].into();
    settings.knobs.invoicing.check_origin = false;
}

/// Subscribes to every event of every resource and waits until all subscriptions are active.
async fn subscribe_to_all(simulator: &Simulator) {
    let client = Client::accounting(simulator).context("none");
    for (_, prefix) in RESOURCES {
        let events = client.get(&format!("{prefix}/webhooks/events")).await.ok();
        let body = json!({
            "thirdPartyApplicationName": "tests",
            "url": "http://hooks.example/hook",
            "secret": "a secret",
            "eventTypes": events,
        });
        assert_eq!(
            client.post(&format!("{prefix}/webhooks/subscribe"), &body).await.ok()["responseState"],
            3
        );
    }
    simulator.provider().deliveries.idle().await;
}

async fn subscribe_to_invoicing(simulator: &Simulator) {
    let client = invoicing::chosen(simulator, 0).await;
    let body = json!({
        "uri": "http://hooks.example/api/webhooks/incoming/Invoicing",
        "entity": "Customer",
        "action": "Updated",
        "secret": "a secret of at least thirty-two characters",
        "isPaused": false,
        "applicationName": "tests",
        "description": "tests",
    });
    let answer = client.post("/invoicing/api/webhooks", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    simulator.provider().invoicing.idle().await;
}

async fn step(simulator: &Simulator, changes: u32) {
    Client::bare(simulator).post("/_control/step", &json!({ "changes": changes })).await.ok();
}

/// Every list and every record, as bytes.
async fn all_reads(simulator: &Simulator) -> Vec<String> {
    let client = Client::accounting(simulator);
    let mut reads = vec![client.get("/accounting/api/companies").await.body];
    for company in client.companies().await {
        for list in ["customers", "accounts"] {
            reads.push(client.company(&company).get(&format!("/accounting/api/{list}")).await.body);
        }
    }
    for (name, prefix) in RESOURCES {
        for record in control::records(simulator.provider(), resource(name)) {
            let client = client.company(record.company.as_deref().unwrap());
            reads.push(client.get(&format!("{prefix}/{}", segment(&record.id))).await.body);
        }
    }
    let payroll = Client::payroll(simulator);
    reads.push(payroll.get("/payroll/api/companies?pageNumber=1&pageSize=100").await.body);
    reads
}

/// Runs a world with a seed: all reads at its end, and the deliveries of each company in order.
async fn live(seed: u64) -> (Vec<String>, BTreeMap<(String, String), Vec<(String, Bytes)>>) {
    let mut receiver = invoicing::receiver().await;
    let simulator = start(|settings| {
        settings.world.seed = seed;
        lead(&receiver, settings);
    })
    .await;
    subscribe_to_all(&simulator).await;
    subscribe_to_invoicing(&simulator).await;
    step(&simulator, 120).await;
    pass(&simulator, 61);
    step(&simulator, 60).await;
    simulator.provider().deliveries.idle().await;

    let mut deliveries = BTreeMap::<_, Vec<_>>::new();
    // A GET asks for an echo.
    for received in receiver.taken().into_iter().filter(|received| received.method == Method::POST) {
        let envelope = received.json();
        let company = &envelope["ExtraPartitionInformation"]["PartitionClientId"];
        let lane = (envelope["WebhookId"].to_string(), company.to_string());
        let signature = received.header("svc-webhook-signature").or(received.header("ms-signature"));
        let signature = signature.unwrap_or_default().to_owned();
        deliveries.entry(lane).or_default().push((signature, received.body));
    }
    (all_reads(&simulator).await, deliveries)
}

async fn the_same_seed_gives_the_same_records_and_deliveries() {
    let (first, again, other) = tokio::join!(live(7), live(7), live(8));

    assert!(first.1.values().map(Vec::len).sum::<usize>() > 120, "too few deliveries to mean anything");
    assert!(first.1.keys().any(|(webhook, _)| webhook == "null"), "nothing of invoicing was delivered");
    assert_eq!(first.0, again.0);
    assert_eq!(first.1, again.1);
    let all = |reads: &[String]| reads.iter().cloned().collect::<std::collections::BTreeSet<_>>();
    let shared =
        all(&first.0).intersection(&all(&other.0)).filter(|body| body.contains("correlationId")).count();
    assert_eq!(shared, 0, "two seeds share records");
    assert_ne!(first.1, other.1);
}

async fn a_rate_of_changes_makes_changes_by_itself() {
    let mut receiver = Receiver::accepting().await;
    let simulator = start(|settings| {
        settings.frozen_at = None;
        lead(&receiver, settings);
    })
    .await;
    subscribe_to_all(&simulator).await;
    assert_eq!(simulator.provider().world().changes(), 0, "a world without a rate stands still");
    receiver.taken();

    simulator.provider().turn(|knobs| knobs.changes_per_second = 500.0);

    receiver.several(20).await;
    assert!(simulator.provider().world().changes() >= 20);
}

/// Version and sequence of every record, by resource, company and id.
fn everything(simulator: &Simulator) -> BTreeMap<(String, Option<String>, String), (String, u64)> {
    let mut all = BTreeMap::new();
    for (name, _) in RESOURCES {
        for record in control::records(simulator.provider(), resource(name)) {
            all.insert(
                (name.to_owned(), record.company, record.id),
                (record.version, record.sequence_version),
            );
        }
    }
    all
}

async fn versions_and_sequences_only_rise_while_nothing_is_restored() {
    let simulator = start(|_| {}).await;
    let mut before = everything(&simulator);
    let mut changed = 0;

    for _ in 0..20 {
        step(&simulator, 25).await;
        pass(&simulator, 1);
        let now = everything(&simulator);
        for (record, (version, sequence)) in &before {
            let (later_version, later_sequence) = &now[record];
            // Timestamps of one format compare like strings.
            assert!(later_version >= version && later_sequence >= sequence, "{record:?}");
            assert_eq!(later_version == version, later_sequence == sequence, "{record:?}: one rose alone");
            changed += usize::from(later_version != version);
        }
        before = now;
    }
    assert!(changed > 100, "{changed}");
}

async fn what_is_true_is_what_reads_return() {
    let (simulator, client) = started(Client::accounting, |_| {}).await;
    step(&simulator, 300).await;

    let mut gone = 0;
    for (name, prefix) in RESOURCES {
        for truth in control::records(simulator.provider(), resource(name)) {
            let client = client.company(truth.company.as_deref().unwrap());
            let read = client.get(&format!("{prefix}/{}", segment(&truth.id))).await;
            if truth.readable {
                let read = read.ok();
                assert_eq!(read["version"], truth.version, "{name}");
                assert_eq!(read["sequenceVersion"], truth.sequence_version.to_string(), "{name}");
                assert_eq!(read["state"], json!(truth.state), "{name}");
            } else {
                assert!(matches!(read.status, 403 | 404), "{name}: {read:?}");
                gone += 1;
            }
        }
    }
    assert!(gone > 0, "nothing was deleted");

    let companies = client.companies().await;
    for (name, list) in [("customers", "/accounting/api/customers"), ("accounts", "/accounting/api/accounts")]
    {
        for company in &companies {
            let mut listed = super::ids(&client.company(company).get(list).await.rows());
            let truth = control::records(simulator.provider(), resource(name));
            let mut true_ones: Vec<String> = truth
                .into_iter()
                .filter(|record| record.readable && record.company.as_ref() == Some(company))
                .map(|record| record.id)
                .collect();
            listed.sort_unstable();
            true_ones.sort_unstable();
            assert_eq!(listed, true_ones, "{name} of {company}");
        }
    }
    let payroll =
        Client::payroll(&simulator).get("/payroll/api/companies?pageNumber=1&pageSize=1000").await.rows();
    let read: Vec<_> =
        payroll.iter().map(|row| (row["companyCode"].as_u64(), row["lastUpdate"].as_str())).collect();
    let world = simulator.provider().world();
    let rows = world.payroll(ListOrder::Created);
    let truth: Vec<_> = rows
        .iter()
        .map(|row| (payroll_code(world.seed(), row.index), row.updated.iso_milliseconds()))
        .collect();
    let truth: Vec<_> =
        truth.iter().map(|(code, updated)| (Some(u64::from(*code)), Some(&**updated))).collect();
    assert_eq!(read, truth);
}

async fn every_change_is_announced_with_the_sequence_it_has() {
    let mut receiver = Receiver::accepting().await;
    let simulator = start(|settings| lead(&receiver, settings)).await;
    subscribe_to_all(&simulator).await;
    let before = everything(&simulator);
    receiver.taken();

    step(&simulator, 150).await;
    simulator.provider().deliveries.idle().await;

    let mut announced = BTreeMap::new();
    for received in receiver.taken() {
        let (envelope, data) = (received.json(), received.data());
        let name = envelope["EventType"]["Resource"].as_str().unwrap().to_lowercase();
        let company = envelope["ExtraPartitionInformation"]["PartitionClientId"].as_str().unwrap().to_owned();
        let id = data["CorrelationId"].as_str().unwrap().to_owned();
        let sequence: u64 = data["SequenceVersion"].as_str().unwrap().parse().unwrap();
        let latest = announced.entry((name, Some(company), id)).or_insert(sequence);
        *latest = sequence.max(*latest);
    }
    let changed: BTreeMap<_, _> = everything(&simulator)
        .into_iter()
        .filter(|(record, now)| before.get(record) != Some(now))
        .map(|((name, company, id), (_, sequence))| ((name.to_lowercase(), company, id), sequence))
        .collect();
    assert!(changed.len() > 50);
    assert_eq!(announced, changed);
}

async fn a_world_is_as_large_as_its_settings() {
    let simulator = start(|settings| {
        let world = &mut settings.world;
        (world.companies, world.customers, world.accounts, world.others) = (4, 3, 2, 1);
        world.payroll_companies = 6;
        world.tenant_resources = [Resource::Persons].into();
    })
    .await;

    for (name, _) in RESOURCES {
        let expected = match name {
            "companies" => 4,
            "customers" => 12,
            "accounts" => 8,
            "persons" => 1,
            _ => 4,
        };
        assert_eq!(control::records(simulator.provider(), resource(name)).len(), expected, "{name}");
    }
    assert_eq!(simulator.provider().world().payroll(ListOrder::Created).len(), 6);
    // Deleting a company deletes its records.
    simulator.provider().change(|world, clock| {
        let (place, _) = world.records(Resource::Companies).next().unwrap();
        ((), vec![WorldChange::Record(world.act(place, Kind::Deleted, clock).unwrap())])
    });
    let readable = control::records(simulator.provider(), Resource::Customers);
    assert_eq!(readable.iter().filter(|record| record.readable).count(), 9);
    assert_eq!(Client::accounting(&simulator).companies().await.len(), 3);
}
