//! Schedules in which an answer could be lost, a token given to another client, or a failure left unreported.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::FutureExt as _;
use kafka::{ShardProducers, TransactionOptions};
use provider::{
    auth::grant::{Grant, GrantState, IssuedTokens, RefreshCause, RefreshIntent, RefreshOrigin},
    auth::seal::Keyring,
    auth::{Area, Error},
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tributary::logins::{GrantFiles, PendingAnswer, store::GrantStore};

use super::cluster::{GrantCluster, GrantWorker, KEY, LIMIT, OTHER_KEY, provider, provider_with, serial_of};
use super::issuer::RefreshEffect;
use crate::support::gate::gate;
use crate::support::lost::timeout;
use crate::support::topics::record;
use crate::support::{self, Shared, breakable};

crate::tests! {
    real a_stop_during_a_refresh_waits_for_the_answer within 120;
    real a_fault_of_one_grant_does_not_lose_the_answer_for_another within 120;
    real two_grants_of_one_client_share_one_identity_client within 120;
    real a_connector_of_another_client_gets_no_token_of_this_one within 120;
    real an_answer_that_cannot_be_written_here_keeps_no_other_waiting within 180;
    real a_token_stays_in_use_while_settings_change_without_keys within 120;
    real a_login_over_an_unreadable_record_is_used_at_once within 120;
    real a_disk_that_does_not_answer_holds_up_no_token within 120;
    real a_rival_between_answer_and_commit_costs_nothing within 120;
    real a_commit_is_reported_while_an_open_transaction_hides_it within 120;
    disturbing an_answer_is_written_once_kafka_is_back within 180;
}

const HOUR: Duration = Duration::from_secs(3_600);
/// Long enough for a commit, and for seeing that it is not read; shorter than a transaction may stay open.
const HIDDEN: Duration = Duration::from_secs(8);

async fn a_stop_during_a_refresh_waits_for_the_answer(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-stop", HOUR).await;
    let (worker, ledger) = refreshing(&cluster, RefreshEffect::Wait).await;

    worker.cancel.cancel();
    let at_rest = worker.grants.clone();
    assert!(at_rest.at_rest().now_or_never().is_none(), "an answer is on its way");
    cluster.issuer.answer();
    timeout(LIMIT, at_rest.at_rest()).await.unwrap();
    worker.stop().await;

    stands(&ledger, "accounting", 2).await;
    assert_eq!(cluster.issuer.presented(), ["refresh-1"]);
}

async fn a_fault_of_one_grant_does_not_lose_the_answer_for_another(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-fault", HOUR).await;
    let (worker, ledger, first) = cluster.logged_in().await;
    cluster.log_in_for(&ledger, 1_000, Area::Payroll).await;
    let payroll = worker.grants.tokens(&provider(), Area::Payroll, "books");
    let paid = serial_of(&*payroll, 1).await;
    cluster.issuer.next(RefreshEffect::Wait);
    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(LIMIT, cluster.issuer.has_seen(1)).await.unwrap();

    cluster.issuer.next(RefreshEffect::Panic);
    payroll.instead_of(&paid, Instant::now()).await.unwrap_err();
    timeout(LIMIT, cluster.issuer.has_seen(2)).await.unwrap();
    cluster.issuer.answer();

    timeout(LIMIT, worker.running).await.unwrap().unwrap();
    stands(&ledger, "accounting", 2).await;
    worker.membership.leave().await;
}

async fn two_grants_of_one_client_share_one_identity_client(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-two", Duration::from_secs(4)).await;
    let (worker, ledger) = (cluster.worker("one:1").await, cluster.ledger(KEY).await);
    cluster.log_in(&ledger, 1).await;
    cluster.log_in_for(&ledger, 1_000, Area::Payroll).await;

    timeout(2 * LIMIT, cluster.issuer.has_seen(6)).await.unwrap();

    assert_eq!(cluster.issuer.made(), 1, "each keeps the provider's keys");
    let mut presented = cluster.issuer.presented();
    let count = presented.len();
    presented.sort_unstable();
    presented.dedup();
    assert_eq!(presented.len(), count, "none is presented twice: {presented:?}");
    worker.stop().await;
}

async fn a_connector_of_another_client_gets_no_token_of_this_one(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-other", HOUR).await;
    let (worker, _, first) = cluster.logged_in().await;

    let staging = provider_with(&[("oauth.client.id", "staging")]);
    let tokens = worker.grants.tokens(&staging, Area::Accounting, "staging");
    let refusals = [
        tokens.token(Instant::now() + LIMIT).await.unwrap_err(),
        tokens.instead_of(&first, Instant::now() + LIMIT).await.unwrap_err(),
        worker.grants.watch(&staging, Area::Accounting, "staging").problem().unwrap(),
    ];

    for refusal in refusals {
        assert!(matches!(refusal, Error::Distrusted { .. }), "{refusal}");
    }
    assert!(worker.watch().problem().is_none());
    assert!(cluster.issuer.presented().is_empty(), "what another is refused with is not refreshed");
    worker.stop().await;
}

async fn an_answer_that_cannot_be_written_here_keeps_no_other_waiting(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-starved", HOUR).await;
    let (ours, unknown) = (cluster.ledger(KEY).await, cluster.ledger(OTHER_KEY).await);
    // The first by name; its record is sealed with a key that the worker does not have.
    cluster.log_in(&unknown, 1).await;
    cluster.log_in_for(&ours, 1_000, Area::Payroll).await;
    let (stuck, good) = (open_intent(&unknown, "accounting").await, open_intent(&ours, "payroll").await);
    let files = files(&cluster, "one");
    for (grant, number) in [(&stuck, 2), (&good, 1_001)] {
        files.pend(&pending(&cluster, grant, number)).await.unwrap();
    }

    let worker = cluster.worker("one").await;
    stands(&ours, "payroll", 2).await;
    let stopping = Instant::now();
    worker.stop().await;

    // A stop waits 20 seconds for writes in flight.
    assert!(stopping.elapsed() < Duration::from_secs(18), "an unwritable answer delays the stop");
    let left = std::fs::read_dir(cluster.state_dir("one").join("grants")).unwrap();
    let left: Vec<_> = left.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    let is_kept = |name: &&String| name.starts_with("accounting.") && name.ends_with(".pending");
    assert_eq!(left.iter().filter(is_kept).count(), 1, "a worker with the key may need it: {left:?}");
    assert!(!left.iter().any(|name| name.starts_with("payroll.") && name.ends_with(".pending")), "{left:?}");
    assert!(cluster.issuer.presented().is_empty());
}

async fn a_token_stays_in_use_while_settings_change_without_keys(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-edit", HOUR).await;
    let (worker, ..) = cluster.logged_in().await;

    cluster.issuer.take_keys_away();
    cluster.edit("provider.connect.timeout.ms", "4000").await;
    // Its second check comes after only those settings have changed.
    timeout(LIMIT, cluster.issuer.has_refused_keys()).await.unwrap();

    assert_eq!(worker.tokens.token(Instant::now()).await.unwrap().header.reveal(), "Bearer access-1");
    worker.stop().await;
}

async fn a_login_over_an_unreadable_record_is_used_at_once(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-overwrite", HOUR).await;
    let (worker, ledger, first) = cluster.logged_in().await;
    // The login over this record cannot read its serial.
    cluster.log_in(&cluster.ledger(OTHER_KEY).await, 10).await;
    assert!(matches!(worker.refusal().await, Error::Unreadable { .. }));
    cluster.log_in(&ledger, 20).await;
    worker.serial(1).await;

    let second = worker.tokens.instead_of(&first, Instant::now() + LIMIT).await.unwrap();
    assert_eq!((second.serial, second.header.reveal()), (1, "Bearer access-20"));
    let third = worker.tokens.instead_of(&second, Instant::now() + LIMIT).await.unwrap();

    assert_eq!((third.serial, third.header.reveal()), (2, "Bearer access-21"));
    assert_eq!(cluster.issuer.presented(), ["refresh-20"]);
    worker.stop().await;
}

async fn a_disk_that_does_not_answer_holds_up_no_token(shared: &'static Shared) {
    let test = move || {
        // ReportedGrants that waits for the disk does so on the one thread that this runtime has for it.
        let one = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(1).enable_all().build();
        one.unwrap().block_on(async move {
            let cluster = GrantCluster::create(shared.bootstrap(), "grants-disk", HOUR).await;
            let (worker, _, first) = cluster.logged_in().await;
            let ((hang, hung), (release, held)) = (oneshot::channel(), mpsc::channel::<()>());
            let disk = spawn_blocking(move || {
                hang.send(()).unwrap();
                // Ends with the test, however that ends.
                held.recv().ok();
            });
            timeout(LIMIT, hung).await.unwrap().unwrap();

            let second = worker.tokens.instead_of(&first, Instant::now() + LIMIT).await.unwrap();

            assert_eq!(second.header.reveal(), "Bearer access-2");
            drop(release);
            disk.await.unwrap();
            worker.stop().await;
        });
    };
    spawn_blocking(test).await.unwrap();
}

async fn a_rival_between_answer_and_commit_costs_nothing(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-rival", HOUR).await;
    let (worker, ledger) = refreshing(&cluster, RefreshEffect::Wait).await;

    // Takes the transactional id, so that the broker refuses the worker's next write.
    let mut rival = ledger.writer("accounting", Arc::new(|| true));
    let found = rival.take(Instant::now() + LIMIT).await.unwrap().unwrap();
    assert!(matches!(found.state, GrantState::Refreshing { .. }));
    cluster.issuer.answer();

    assert_eq!(worker.serial(2).await.header.reveal(), "Bearer access-2");
    assert_eq!(cluster.issuer.presented(), ["refresh-1"]);
    worker.stop().await;
}

async fn a_commit_is_reported_while_an_open_transaction_hides_it(shared: &'static Shared) {
    let cluster = GrantCluster::create(shared.bootstrap(), "grants-hidden", HOUR).await;
    let ledger = cluster.ledger(KEY).await;
    cluster.log_in(&ledger, 1).await;
    let mut held = ledger.writer("accounting", Arc::new(|| true));
    held.take(Instant::now() + LIMIT).await.unwrap();
    // Another writer of the partition holds a transaction open, so that nothing after it can be read.
    let (hook, gate) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let other = ShardProducers::new(cluster.config(KEY, None, "other").kafka.clone(), options);
    let mut other = other.take("other", Arc::new(|| true)).await.unwrap();
    let hiding = record(ledger.table().topic(), 0, "refused/other", "{}");
    let open = tokio::spawn(async move { other.commit(vec![hiding]).await });
    timeout(LIMIT, gate.reached()).await.unwrap();

    let log_out = |grant: Option<&Grant>| grant.map(|grant| grant.log_out(7));
    let written = held.write(Instant::now() + HIDDEN, log_out).await.unwrap().unwrap();

    assert!(matches!(written.state, GrantState::LoggedOut { at_ms: 7 }), "{:?}", written.state);
    assert!(
        ledger.grant("accounting").unwrap().unwrap().tokens().is_some(),
        "the open transaction did not hide it"
    );
    gate.open();
    open.await.unwrap().unwrap();
}

async fn an_answer_is_written_once_kafka_is_back() -> support::Result<()> {
    let broker = breakable::take().await?;
    let cluster = GrantCluster::create(&broker.bootstrap(), "grants-away", HOUR).await;
    let (worker, _ledger) = refreshing(&cluster, RefreshEffect::Wait).await;

    broker.proxy()?.cut();
    cluster.issuer.answer();
    // The answer is on the disk while Kafka is away.
    let files = cluster.state_dir("one:1").join("grants");
    let is_pending = || {
        let entries = std::fs::read_dir(&files).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).any(|name| name.ends_with(".pending"))
    };
    let end = Instant::now() + LIMIT;
    while !is_pending() {
        assert!(Instant::now() < end, "the answer is only in memory");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    broker.proxy()?.heal();

    assert_eq!(worker.serial(2).await.header.reveal(), "Bearer access-2");
    assert_eq!(cluster.issuer.presented(), ["refresh-1"]);
    worker.stop().await;
    assert!(!is_pending(), "an answer in the topic was left on the disk");
    Ok(())
}

/// Logs in and starts a refresh with this effect; the worker, and what writes to the topic.
pub(super) async fn refreshing(cluster: &GrantCluster, effect: RefreshEffect) -> (GrantWorker, GrantStore) {
    let (worker, ledger, first) = cluster.logged_in().await;
    cluster.issuer.next(effect);
    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(LIMIT, cluster.issuer.has_seen(1)).await.unwrap();
    (worker, ledger)
}

/// Waits until a grant has this serial in the topic.
async fn stands(ledger: &GrantStore, name: &str, serial: u64) {
    let mut changes = ledger.table().changes();
    let has_it = async {
        while ledger.grant(name).unwrap().is_none_or(|grant| grant.serial < serial) {
            changes.changed().await.unwrap();
        }
    };
    timeout(LIMIT, has_it).await.unwrap();
}

/// Leaves a refresh open, as a crashed worker does.
pub(super) async fn open_intent(ledger: &GrantStore, name: &str) -> Grant {
    let intent = RefreshIntent {
        id: format!("open-{name}"),
        cause: RefreshCause::Due,
        origin: RefreshOrigin { worker: "one".into(), begun_ms: 0 },
        window_ms: 5_000,
        withdrawn: false,
    };
    let begin = |grant: Option<&Grant>| grant?.begin(1, intent.clone()).ok();
    let mut held = ledger.writer(name, Arc::new(|| true));
    held.write(Instant::now() + LIMIT, begin).await.unwrap().unwrap()
}

pub(super) fn files(cluster: &GrantCluster, worker: &str) -> GrantFiles {
    GrantFiles::new(
        &cluster.state_dir(worker),
        Arc::new(Keyring::new(&KEY.into(), None, &cluster.prefix).unwrap()),
    )
}

pub(super) fn pending(cluster: &GrantCluster, grant: &Grant, number: u32) -> PendingAnswer {
    let issued =
        IssuedTokens { refresh: Some(format!("refresh-{number}").into()), ..cluster.issuer.log_in(number) };
    PendingAnswer { name: grant.name.clone(), base: grant.base(grant.intent().unwrap()), issued }
}
