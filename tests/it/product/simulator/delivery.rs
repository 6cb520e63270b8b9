//! Deliveries: their order, and each fault of the knobs.

use std::{collections::BTreeMap, time::Duration};

use simulator::{
    deliveries::End,
    knobs::{DeliveryKnobs, Latency, ReceiverUrls},
};
use tokio::time::Instant;

use super::{
    receiver::{Received, Receiver, Reply, certified},
    webhooks::{CUSTOMERS, Stage},
};

crate::tests! {
    plain events_of_one_company_come_in_order;
    plain companies_do_not_wait_for_each_other;
    plain duplicated_events_come_twice_byte_for_byte;
    plain the_seed_decides_which_events_are_reordered;
    plain a_delay_applies_to_events_and_not_to_the_acknowledge;
    plain the_journal_has_the_events_that_were_lost;
    plain faults_spare_the_acknowledge;
    plain a_receiver_on_port_443_is_resolved_by_the_knob;
    plain a_receiver_whose_certificate_is_not_trusted_gets_nothing;
    plain a_name_that_moves_takes_its_deliveries_along;
}

async fn events_of_one_company_come_in_order() {
    let (stage, mut receiver, _) = Stage::subscribed().await;
    let companies = stage.companies();

    // Sent all at once, so that only their order keeps them apart.
    stage.turn(|knobs| knobs.delivery.hold = true);
    for _ in 0..10 {
        for company in &companies {
            stage.happen_in(Some(company), "customers", "updated");
        }
    }
    stage.turn(|knobs| knobs.delivery.hold = false);
    let received = receiver.several(10 * companies.len()).await;

    let mut by_company: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for one in &received {
        let company = one.json()["ExtraPartitionInformation"]["PartitionClientId"].to_string();
        by_company.entry(company).or_default().push(sequence(one));
    }
    assert_eq!(by_company.len(), companies.len());
    for (company, sequences) in by_company {
        assert_eq!(sequences.len(), 10, "{company}");
        assert!(sequences.is_sorted(), "{company}: {sequences:?}");
    }
}

async fn companies_do_not_wait_for_each_other() {
    let mut receiver = holding().await;
    let stage = Stage::start(|_| {}).await;
    stage.active(CUSTOMERS, &mut receiver).await;
    let companies = stage.companies();

    let first = stage.happen_in(Some(&companies[0]), "customers", "updated");
    let second = stage.happen_in(Some(&companies[0]), "customers", "updated");
    stage.happen_in(Some(&companies[1]), "customers", "updated");
    stage.happen_in(Some(&companies[2]), "customers", "updated");
    let side_by_side = receiver.several(3).await;
    let none_yet = receiver.taken().len();
    receiver.release(3);
    let last = receiver.next().await;

    let of_first: Vec<u64> = side_by_side
        .iter()
        .filter(|one| one.json()["ExtraPartitionInformation"]["PartitionClientId"] == companies[0])
        .map(sequence)
        .collect();
    assert_eq!(of_first, [first.sequence_version]);
    assert_eq!((none_yet, sequence(&last)), (0, second.sequence_version));
}

async fn duplicated_events_come_twice_byte_for_byte() {
    let (stage, mut receiver, _) = Stage::subscribed().await;
    stage.turn(|knobs| knobs.delivery.duplicate = 1.0);

    let first = stage.happen("customers", "updated");
    let second = stage.happen("customers", "updated");
    stage.idle().await;

    let received = receiver.taken();
    let sequences: Vec<u64> = received.iter().map(sequence).collect();
    let (first, second) = (first.sequence_version, second.sequence_version);
    assert_eq!(sequences, [first, first, second, second]);
    for pair in received.chunks(2) {
        assert_eq!(pair[0].body, pair[1].body);
        let signature = "svc-webhook-signature";
        assert_eq!(pair[0].header(signature), pair[1].header(signature));
    }
    assert_eq!(stage.entries().len(), 5, "the journal has each");
}

async fn the_seed_decides_which_events_are_reordered() {
    let mut orders = Vec::new();
    for seed in [7, 7, 8] {
        let mut receiver = Receiver::accepting().await;
        let stage = Stage::with(|settings| settings.world.seed = seed).await;
        stage.active(CUSTOMERS, &mut receiver).await;

        stage.turn(|knobs| knobs.delivery.reorder = 0.5);
        let mut first = None;
        for _ in 0..15 {
            let sequence = stage.happen("customers", "updated").sequence_version;
            first.get_or_insert(sequence);
        }
        // Deliveries held at the end go once later ones have been sent.
        stage.turn(|knobs| knobs.delivery.reorder = 0.0);
        for _ in 0..5 {
            stage.happen("customers", "updated");
        }
        stage.idle().await;

        let order: Vec<u64> = receiver.taken().iter().map(|one| sequence(one) - first.unwrap()).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<u64>>(), "each comes once");
        assert_ne!(order, sorted);
        orders.push(order);
    }
    assert_eq!(orders[0], orders[1]);
    assert_ne!(orders[0], orders[2]);
}

async fn a_delay_applies_to_events_and_not_to_the_acknowledge() {
    let (stage, mut receiver) =
        Stage::accepting(|knobs| knobs.delivery.delay = Latency::Fixed { milliseconds: 120_000.0 }).await;
    stage.active(CUSTOMERS, &mut receiver).await;
    stage.turn(|knobs| knobs.delivery.delay = Latency::Uniform { from: 60.0, to: 90.0 });

    let begun = Instant::now();
    stage.happen("customers", "updated");
    let received = receiver.next().await;

    assert!(received.at - begun >= Duration::from_millis(60), "{:?}", received.at - begun);
}

async fn the_journal_has_the_events_that_were_lost() {
    let (stage, mut receiver, id) = Stage::subscribed().await;
    stage.turn(|knobs| knobs.delivery.lose = 0.5);

    for _ in 0..30 {
        stage.happen("customers", "updated");
    }
    stage.idle().await;

    let came: Vec<u64> = receiver.taken().iter().map(sequence).collect();
    let entries: Vec<_> = stage.entries().into_iter().skip(1).collect();
    let with = |end: End| -> Vec<u64> {
        entries
            .iter()
            .filter(|entry| entry.end == Some(end))
            .filter_map(|entry| entry.about.sequence)
            .collect()
    };
    assert_eq!(came, with(End::Accepted));
    assert_eq!(came.len() + with(End::Lost).len(), 30);
    assert!((5..=25).contains(&came.len()), "about half: {}", came.len());
    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false), "a loss is no failure");
}

async fn faults_spare_the_acknowledge() {
    let mut receiver = Receiver::accepting().await;
    for fault in [
        DeliveryKnobs { lose: 1.0, ..DeliveryKnobs::default() },
        DeliveryKnobs { duplicate: 1.0, ..DeliveryKnobs::default() },
        DeliveryKnobs { reorder: 1.0, ..DeliveryKnobs::default() },
        DeliveryKnobs { delay: Latency::Fixed { milliseconds: 3_600_000.0 }, ..DeliveryKnobs::default() },
    ] {
        let knobs = DeliveryKnobs { receivers: ReceiverUrls::Any, ..fault };
        let stage = Stage::start(|all| all.delivery = knobs.clone()).await;

        stage.active(CUSTOMERS, &mut receiver).await;

        assert!(receiver.taken().is_empty(), "once: {knobs:?}");
    }
}

async fn a_receiver_on_port_443_is_resolved_by_the_knob() {
    let (tls, root) = certified("hooks.example");
    let mut receiver = Receiver::secure(tls, |_| Reply::Status(200)).await;
    let stage = secure_stage(&receiver, vec![root]).await;

    let id = stage.subscribe(CUSTOMERS, "https://hooks.example/in?tenant=1").await;
    let acknowledge = receiver.next().await;
    stage.idle().await;
    stage.happen("customers", "updated");
    let change = receiver.next().await;

    assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false));
    for received in [&acknowledge, &change] {
        assert_eq!(received.header("host"), Some("hooks.example"));
        assert_eq!((received.path.as_str(), received.query.as_str()), ("/in", "tenant=1"));
    }
    assert_eq!(change.event(), "CustomerUpdated");
}

async fn a_receiver_whose_certificate_is_not_trusted_gets_nothing() {
    let (tls, root) = certified("hooks.example");
    let (_, another) = certified("hooks.example");
    let mut receiver = Receiver::secure(tls, |_| Reply::Status(200)).await;

    for (roots, host) in
        [(vec![], "hooks.example"), (vec![another], "hooks.example"), (vec![root], "other.example")]
    {
        let stage = secure_stage(&receiver, roots).await;
        let id = stage.subscribe(CUSTOMERS, &format!("https://{host}/in")).await;
        stage.idle().await;

        assert_eq!(stage.flags(CUSTOMERS, &id).await, (false, false), "{host}");
        assert!(receiver.taken().is_empty(), "{host}");
        let entry = &stage.entries()[0];
        assert_eq!((entry.end, entry.attempts.len()), (Some(End::GivenUp), 3), "{host}");
        let error = entry.attempts[0].error.as_deref().unwrap();
        assert!(error.contains("certificate"), "{host}: {error}");

        stage.turn(|knobs| knobs.delivery.trust_any = true);
        let id = stage.subscribe(CUSTOMERS, &format!("https://{host}/in")).await;
        stage.idle().await;
        assert_eq!(stage.flags(CUSTOMERS, &id).await, (true, false), "{host}: any certificate");
        assert_eq!(receiver.taken().len(), 1, "{host}");
    }
}

async fn a_name_that_moves_takes_its_deliveries_along() {
    let mut old = Receiver::accepting().await;
    let mut new = Receiver::accepting().await;
    let stage = Stage::start(|knobs| {
        knobs.delivery.resolve.insert("hooks.example".to_owned(), old.address);
    })
    .await;
    stage.subscribe(CUSTOMERS, "http://hooks.example/in").await;
    old.next().await;
    stage.idle().await;

    stage.turn(|knobs| {
        knobs.delivery.resolve.insert("hooks.example".to_owned(), new.address);
    });
    stage.happen("customers", "updated");
    let received = new.next().await;

    assert_eq!(received.event(), "CustomerUpdated");
    assert!(old.taken().is_empty());
}

/// Accepts an Acknowledge at once and holds the answers to events.
async fn holding() -> Receiver {
    Receiver::scripted(|received| match received.event().as_str() {
        "Acknowledge" => Reply::Status(200),
        _ => Reply::Held(200),
    })
    .await
}

/// HTTPS on port 443 only, as documented; both names resolve to the receiver.
async fn secure_stage(receiver: &Receiver, roots: Vec<String>) -> Stage {
    Stage::with(|settings| {
        settings.knobs.delivery.receivers = ReceiverUrls::Https443;
        for host in ["hooks.example", "other.example"] {
            settings.knobs.delivery.resolve.insert(host.to_owned(), receiver.address);
        }
        settings.receiver_roots = roots;
    })
    .await
}

fn sequence(received: &Received) -> u64 {
    received.data()["SequenceVersion"].as_str().unwrap().parse().unwrap()
}
