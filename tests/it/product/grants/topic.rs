//! The states of a grant in its topic, with a provider in memory that rotates tokens and ends a grant whose token comes twice.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kafka::{Producer, ProducerOptions};
use model::EncodedRecord;
use provider::{
    auth::Error,
    auth::grant::{Grant, GrantState},
};
use tokio::time::Instant;
use tributary::logins::table::TopicOwners;

use super::cluster::{GrantCluster, KEY, LIMIT, OTHER_KEY};
use super::issuer::RefreshEffect;
use super::schedules::{files, open_intent, pending, refreshing};
use crate::support::Shared;
use crate::support::lost::timeout;
use crate::support::topics::content_of;

crate::tests! {
    real a_token_refused_to_fifty_requests_is_refreshed_once within 120;
    real a_grant_is_refreshed_early_and_no_token_is_presented_twice within 180;
    real an_unheard_answer_is_retried_once_then_the_grant_is_lost within 180;
    real a_watch_after_a_login_reports_no_earlier_problem within 120;
    real a_successor_ends_the_refresh_its_predecessor_left_open within 180;
    real an_unsent_refresh_is_repeated_and_a_refused_client_reported within 120;
    real an_answer_on_the_disk_of_a_dead_process_is_salvaged within 120;
    real a_new_key_opens_what_the_old_one_sealed_and_reseals_it within 180;
    real workers_of_another_group_refresh_nothing within 120;
    real logins_at_the_same_moment_get_a_serial_each within 120;
    real an_old_record_written_again_brings_no_login_back within 120;
}

const HOUR: Duration = Duration::from_secs(3_600);

async fn a_token_refused_to_fifty_requests_is_refreshed_once(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-one", HOUR).await;
    let (one, other) = (cluster.worker("one:1").await, cluster.worker("other:1").await);
    cluster.log_in(&cluster.ledger(KEY).await, 1).await;
    let (first, second) = (one.serial(1).await, other.serial(1).await);
    assert_eq!(first.header.reveal(), "Bearer access-1");

    let begun = Instant::now();
    let asked = (0..50).map(|number| {
        let (worker, refused) = if number % 2 == 0 { (&one, &first) } else { (&other, &second) };
        worker.tokens.instead_of(refused, Instant::now() + LIMIT)
    });
    let given = join_all(asked).await;

    println!("grants: 50 requests have another token after {:?}", begun.elapsed());
    for access in given {
        let access = access.unwrap();
        assert_eq!((access.serial, access.header.reveal()), (2, "Bearer access-2"));
    }
    assert_eq!(cluster.issuer.presented(), ["refresh-1"]);
    one.stop().await;
    other.stop().await;
}

async fn a_grant_is_refreshed_early_and_no_token_is_presented_twice(shared: &'static Shared) {
    let life = Duration::from_secs(160);
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-due", life).await;
    let (one, other) = (cluster.worker("one:1").await, cluster.worker("other:1").await);
    // Due at a quarter of its lifetime before its end, give or take a fifth of that: in 2 to 18 seconds, and at least 32 before its end.
    cluster.issuer.age(Duration::from_secs(110));
    cluster.log_in(&cluster.ledger(KEY).await, 1).await;

    let (first, second) = tokio::join!(one.serial(2), other.serial(2));

    assert_eq!((first.header.reveal(), second.header.reveal()), ("Bearer access-2", "Bearer access-2"));
    let ages = cluster.issuer.ages();
    assert!(ages.iter().all(|age| *age > life * 7 / 10 && *age < life), "{ages:?}");
    assert_eq!(cluster.issuer.presented(), ["refresh-1"]);
    one.stop().await;
    other.stop().await;
}

async fn an_unheard_answer_is_retried_once_then_the_grant_is_lost(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-lost", HOUR).await;
    let (worker, ledger, first) = cluster.logged_in().await;
    cluster.issuer.next(RefreshEffect::LoseAnswer);

    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    let lost = worker.refusal().await;

    let message = lost.to_string();
    assert!(matches!(lost, Error::Lost { .. }), "{message}");
    assert!(message.contains("by one:1 never ended") && message.contains("invalid_grant"), "{message}");
    assert!(message.ends_with("run `tributary auth login accounting --connector books`"), "{message}");
    assert_eq!(cluster.issuer.presented(), ["refresh-1", "refresh-1"]);
    cluster.log_in(&ledger, 20).await;
    assert_eq!(worker.serial(2).await.header.reveal(), "Bearer access-20");
    worker.stop().await;
}

async fn a_watch_after_a_login_reports_no_earlier_problem(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-watch", HOUR).await;
    let (worker, ledger) = (cluster.worker("one:1").await, cluster.ledger(KEY).await);
    let absent = worker.refusal().await;
    assert!(matches!(absent, Error::Absent { .. }), "{absent}");
    let mut watch = worker.watch();
    assert!(matches!(watch.problem(), Some(Error::Absent { .. })));

    // The new token is still being checked when the watch catches up.
    cluster.issuer.hold_checks(true);
    cluster.log_in(&ledger, 1).await;
    watch.catch_up().await;

    assert!(watch.problem().is_none(), "{:?}", watch.problem());
    cluster.issuer.hold_checks(false);
    assert_eq!(worker.serial(1).await.header.reveal(), "Bearer access-1");
    assert!(watch.problem().is_none(), "{:?}", watch.problem());
    worker.stop().await;
}

async fn a_successor_ends_the_refresh_its_predecessor_left_open(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-successor", HOUR).await;
    let (worker, _ledger) = refreshing(&cluster, RefreshEffect::Hang).await;

    worker.kill().await;
    let begun = Instant::now();
    let successor = cluster.worker("two:1").await;
    let given = successor.serial(2).await;

    println!("grants: a successor has ended an open refresh after {:?}", begun.elapsed());
    assert!(
        begun.elapsed() > Duration::from_secs(10),
        "the token was presented while it might have been on its way"
    );
    assert_eq!(given.header.reveal(), "Bearer access-2");
    assert_eq!(cluster.issuer.presented(), ["refresh-1", "refresh-1"]);
    successor.stop().await;
}

async fn an_unsent_refresh_is_repeated_and_a_refused_client_reported(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-unsent", HOUR).await;
    let (worker, _, first) = cluster.logged_in().await;
    cluster.issuer.next(RefreshEffect::NotSent);
    cluster.issuer.next(RefreshEffect::Refuse("invalid_client"));

    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(2 * LIMIT, cluster.issuer.has_seen(1)).await.unwrap();
    let refusal = worker.refusal().await;

    assert!(matches!(&refusal, Error::Client { code, .. } if code == "invalid_client"), "{refusal}");
    assert_eq!(cluster.issuer.presented(), ["refresh-1"]);
    worker.stop().await;
}

async fn an_answer_on_the_disk_of_a_dead_process_is_salvaged(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-salvage", HOUR).await;
    let ledger = cluster.ledger(KEY).await;
    cluster.log_in(&ledger, 1).await;
    let open = open_intent(&ledger, "accounting").await;
    let files = files(&cluster, "one");
    files.pend(&pending(&cluster, &open, 2)).await.unwrap();

    let worker = cluster.worker("one").await;
    let given = worker.serial(2).await;

    assert_eq!(given.header.reveal(), "Bearer access-2");
    assert!(cluster.issuer.presented().is_empty(), "the token was presented before the answer was salvaged");
    worker.stop().await;
    let left: Vec<_> = std::fs::read_dir(cluster.state_dir("one").join("grants")).unwrap().collect();
    assert_eq!(left.len(), 1, "only the copy of the grant is left: {left:?}");
    assert_eq!(files.copy("accounting").unwrap().serial, 2);
}

async fn a_new_key_opens_what_the_old_one_sealed_and_reseals_it(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-rekey", HOUR).await;
    let old = cluster.ledger(KEY).await;
    cluster.log_in(&old, 1).await;
    let unknown = cluster.worker_with(&cluster.config(OTHER_KEY, None, "unknown"), "unknown").await;
    let refusal = unknown.refusal().await;
    assert!(matches!(&refusal, Error::Unreadable { key, .. } if key == old.keys().kid()), "{refusal}");

    let both = cluster.worker_with(&cluster.config(OTHER_KEY, Some(KEY), "both"), "both").await;
    // A reader with only the new key can open the record once it is resealed.
    unknown.stop().await;
    let new = cluster.ledger(OTHER_KEY).await;
    let mut changes = new.table().changes();
    let resealed = async {
        while new.grant("accounting").is_err() {
            changes.changed().await.unwrap();
        }
    };
    timeout(2 * LIMIT, resealed).await.unwrap();

    let grant = new.grant("accounting").unwrap().unwrap();
    assert!(grant.serial == 1 && matches!(grant.state, GrantState::Ready { .. }), "only the key has changed");
    assert!(old.table().read_to_end(LIMIT).await.is_ok() && old.grant("accounting").is_err());
    assert_eq!(both.token().await.unwrap().header.reveal(), "Bearer access-1");
    assert!(cluster.issuer.presented().is_empty());
    both.stop().await;
}

async fn workers_of_another_group_refresh_nothing(shared: &'static Shared) {
    let due = Duration::ZERO;
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-foreign", due).await;
    let own = GrantCluster::create(shared.bootstrap(), "grants-own", due).await;
    let ledger = cluster.ledger(KEY).await;
    let theirs = TopicOwners { group: "theirs".into(), work_topic: "their-work".into() };
    assert_eq!(ledger.claim(&theirs, false, LIMIT).await.unwrap(), theirs);
    let (worker, at_home) = (cluster.worker("one:1").await, own.worker("one:1").await);
    cluster.log_in(&ledger, 1).await;
    own.log_in(&own.ledger(KEY).await, 1).await;

    let refusal = worker.refusal().await;
    timeout(2 * LIMIT, own.issuer.has_seen(2)).await.unwrap();

    assert!(matches!(&refusal, Error::Foreign { group } if group == "theirs"), "{refusal}");
    assert!(
        cluster.issuer.presented().is_empty(),
        "a worker of the other group has refreshed twice meanwhile"
    );
    let ours = cluster.owners();
    assert_eq!(ledger.claim(&ours, false, LIMIT).await.unwrap(), theirs);
    assert_eq!(ledger.claim(&ours, true, LIMIT).await.unwrap(), ours);
    // Now the topic belongs to this worker, which notices it by itself.
    timeout(2 * LIMIT, cluster.issuer.has_seen(1)).await.unwrap();
    assert_eq!(ledger.claim(&theirs, true, LIMIT).await.unwrap(), theirs);
    let refusal = worker.refusal().await;
    assert!(matches!(&refusal, Error::Foreign { .. }), "{refusal}");
    worker.stop().await;
    at_home.stop().await;
}

async fn logins_at_the_same_moment_get_a_serial_each(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-logins", HOUR).await;
    let ledgers = join_all((0..3).map(|_| cluster.ledger(KEY))).await;

    let logins = ledgers.iter().enumerate().map(async |(writer, ledger)| {
        let mut serials = Vec::new();
        for number in 0..3 {
            serials.push(cluster.log_in(ledger, 10 * u32::try_from(writer).unwrap() + number).await.serial);
        }
        serials
    });
    let mut serials: Vec<u64> = join_all(logins).await.concat();

    serials.sort_unstable();
    ledgers[0].table().read_to_end(LIMIT).await.unwrap();
    assert_eq!(ledgers[0].grant("accounting").unwrap().unwrap().serial, 9);
    assert_eq!(serials, (1..=9).collect::<Vec<u64>>());
}

async fn an_old_record_written_again_brings_no_login_back(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-replay", HOUR).await;
    let (worker, ledger, _) = cluster.logged_in().await;
    let (kafka, topic) =
        (cluster.config(KEY, None, "replay").kafka.clone(), ledger.table().topic().to_string());
    let old = content_of(&kafka, &topic, 1)
        .await
        .into_iter()
        .rfind(|record| record.key.as_deref() == Some(b"grant/accounting"))
        .unwrap();
    let mut held = ledger.writer("accounting", Arc::new(|| true));
    let log_out = |grant: Option<&Grant>| grant.map(|grant| grant.log_out(1));
    held.write(Instant::now() + LIMIT, log_out).await.unwrap();
    let refusal = worker.refusal().await;
    assert!(matches!(refusal, Error::LoggedOut { .. }), "{refusal}");

    let again = EncodedRecord {
        topic: topic.as_str().into(),
        partition: 0,
        key: old.key.unwrap(),
        value: old.value,
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
    producer.send(again).unwrap().await.unwrap();

    worker.watch().catch_up().await;
    ledger.table().read_to_end(LIMIT).await.unwrap();
    assert!(matches!(ledger.grant("accounting").unwrap().unwrap().state, GrantState::LoggedOut { .. }));
    let refusal = worker.refusal().await;
    assert!(matches!(refusal, Error::LoggedOut { .. }), "{refusal}");
    // One that starts now reads the same log.
    let later = cluster.ledger(KEY).await;
    assert!(matches!(later.grant("accounting").unwrap().unwrap().state, GrantState::LoggedOut { .. }));
    // A login is newer than all of that.
    assert_eq!(cluster.log_in(&later, 20).await.serial, 2);
    assert_eq!(worker.serial(2).await.header.reveal(), "Bearer access-20");
    worker.stop().await;
}
