//! Orders of events in which an answer could get lost, a token could be given to the wrong one, or nobody be told.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::FutureExt as _;
use kafka::{ShardProducers, TransactionOptions};
use provider::{
    auth::grant::{Cause, Grant, Intent, Issued, Origin, State},
    auth::seal::Keyring,
    auth::{Access, Area, Error, Tokens},
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tributary::worker::grants::store::GrantStore;
use tributary::worker::grants::{Files, Pending};

use super::bank::Effect;
use super::ground::{Ground, KEY, LIMIT, OTHER_KEY, provider, provider_with};
use crate::support::gate::gate;
use crate::support::lost::timeout;
use crate::support::topics::record;
use crate::support::{self, Shared, breakable};

crate::tests! {
    real a_stop_during_a_refresh_waits_for_the_answer within 120;
    real a_fault_with_one_grant_does_not_cut_off_the_answer_to_another within 120;
    real two_grants_of_one_client_share_what_asks_for_them within 120;
    real a_connector_of_another_client_gets_no_token_of_this_one within 120;
    real an_answer_that_cannot_be_written_here_keeps_no_other_waiting within 180;
    real a_token_stays_in_use_while_its_settings_change_and_the_keys_are_away within 120;
    real a_login_over_a_record_that_nobody_can_read_is_used_at_once within 120;
    real a_disk_that_does_not_answer_holds_up_no_token within 120;
    real a_rival_for_the_grant_between_answer_and_commit_costs_nothing within 120;
    real what_is_committed_is_told_also_where_a_neighbour_hides_it within 120;
    disturbing an_answer_is_written_once_kafka_is_back within 180;
}

const HOUR: Duration = Duration::from_secs(3_600);
/// Long enough for a commit, and for seeing that it is not read; shorter than a transaction may stay open.
const HIDDEN: Duration = Duration::from_secs(8);

async fn a_stop_during_a_refresh_waits_for_the_answer(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-stop", HOUR).await;
    let (worker, ledger) = (ground.worker("one:1").await, ground.ledger(KEY).await);
    ground.log_in(&ledger, 1).await;
    let first = worker.serial(1).await;
    ground.bank.next(Effect::Wait);
    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(LIMIT, ground.bank.has_seen(1)).await.unwrap();

    worker.cancel.cancel();
    let at_rest = worker.grants.clone();
    assert!(at_rest.at_rest().now_or_never().is_none(), "an answer is on its way");
    ground.bank.answer();
    timeout(LIMIT, at_rest.at_rest()).await.unwrap();
    worker.stop().await;

    stands(&ledger, "accounting", 2).await;
    assert_eq!(ground.bank.presented(), ["refresh-1"]);
}

async fn a_fault_with_one_grant_does_not_cut_off_the_answer_to_another(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-fault", HOUR).await;
    let (worker, ledger) = (ground.worker("one:1").await, ground.ledger(KEY).await);
    ground.log_in(&ledger, 1).await;
    ground.log_in_for(&ledger, 1_000, Area::Payroll).await;
    let first = worker.serial(1).await;
    let payroll = worker.grants.tokens(&provider(), Area::Payroll, "books");
    let paid = first_token(&*payroll).await;
    ground.bank.next(Effect::Wait);
    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(LIMIT, ground.bank.has_seen(1)).await.unwrap();

    ground.bank.next(Effect::Panic);
    payroll.instead_of(&paid, Instant::now()).await.unwrap_err();
    timeout(LIMIT, ground.bank.has_seen(2)).await.unwrap();
    ground.bank.answer();

    timeout(LIMIT, worker.running).await.unwrap().unwrap();
    stands(&ledger, "accounting", 2).await;
    worker.membership.leave().await;
}

async fn two_grants_of_one_client_share_what_asks_for_them(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-two", Duration::from_secs(4)).await;
    let (worker, ledger) = (ground.worker("one:1").await, ground.ledger(KEY).await);
    ground.log_in(&ledger, 1).await;
    ground.log_in_for(&ledger, 1_000, Area::Payroll).await;

    timeout(2 * LIMIT, ground.bank.has_seen(6)).await.unwrap();

    assert_eq!(ground.bank.made(), 1, "each keeps the provider's keys");
    let mut presented = ground.bank.presented();
    let count = presented.len();
    presented.sort_unstable();
    presented.dedup();
    assert_eq!(presented.len(), count, "none is presented twice: {presented:?}");
    worker.stop().await;
}

async fn a_connector_of_another_client_gets_no_token_of_this_one(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-other", HOUR).await;
    let worker = ground.worker("one:1").await;
    ground.log_in(&ground.ledger(KEY).await, 1).await;
    let first = worker.serial(1).await;

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
    assert!(ground.bank.presented().is_empty(), "what another is refused with is not refreshed");
    worker.stop().await;
}

async fn an_answer_that_cannot_be_written_here_keeps_no_other_waiting(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-starved", HOUR).await;
    let (ours, unknown) = (ground.ledger(KEY).await, ground.ledger(OTHER_KEY).await);
    // By name the first that is found; its record is under a key that the worker does not have.
    ground.log_in(&unknown, 1).await;
    ground.log_in_for(&ours, 1_000, Area::Payroll).await;
    let (stuck, good) = (open_intent(&unknown, "accounting").await, open_intent(&ours, "payroll").await);
    let files = files(&ground, "one");
    for (grant, number) in [(&stuck, 2), (&good, 1_001)] {
        files.pend(&pending(&ground, grant, number)).await.unwrap();
    }

    let worker = ground.worker("one").await;
    stands(&ours, "payroll", 2).await;
    let stopping = Instant::now();
    worker.stop().await;

    // A stop gives what is under way 20 seconds.
    assert!(stopping.elapsed() < Duration::from_secs(18), "one that cannot be written holds up the end");
    let left = std::fs::read_dir(ground.state_dir("one").join("grants")).unwrap();
    let left: Vec<_> = left.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    let is_kept = |name: &&String| name.starts_with("accounting.") && name.ends_with(".pending");
    assert_eq!(left.iter().filter(is_kept).count(), 1, "whoever has the key may need it: {left:?}");
    assert!(!left.iter().any(|name| name.starts_with("payroll.") && name.ends_with(".pending")), "{left:?}");
    assert!(ground.bank.presented().is_empty());
}

async fn a_token_stays_in_use_while_its_settings_change_and_the_keys_are_away(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-edit", HOUR).await;
    let worker = ground.worker("one:1").await;
    ground.log_in(&ground.ledger(KEY).await, 1).await;
    worker.serial(1).await;

    ground.bank.take_keys_away();
    ground.edit("provider.connect.timeout.ms", "4000").await;
    // Only those settings have changed when it asks for the second time.
    timeout(LIMIT, ground.bank.has_refused_keys()).await.unwrap();

    assert_eq!(worker.tokens.token(Instant::now()).await.unwrap().header.reveal(), "Bearer access-1");
    worker.stop().await;
}

async fn a_login_over_a_record_that_nobody_can_read_is_used_at_once(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-anew", HOUR).await;
    let (worker, ledger) = (ground.worker("one:1").await, ground.ledger(KEY).await);
    ground.log_in(&ledger, 1).await;
    let first = worker.serial(1).await;
    // The login over this one cannot know that it had a serial.
    ground.log_in(&ground.ledger(OTHER_KEY).await, 10).await;
    assert!(matches!(worker.refusal().await, Error::Unreadable { .. }));
    ground.log_in(&ledger, 20).await;
    worker.serial(1).await;

    let second = worker.tokens.instead_of(&first, Instant::now() + LIMIT).await.unwrap();
    assert_eq!((second.serial, second.header.reveal()), (1, "Bearer access-20"));
    let third = worker.tokens.instead_of(&second, Instant::now() + LIMIT).await.unwrap();

    assert_eq!((third.serial, third.header.reveal()), (2, "Bearer access-21"));
    assert_eq!(ground.bank.presented(), ["refresh-20"]);
    worker.stop().await;
}

async fn a_disk_that_does_not_answer_holds_up_no_token(shared: &'static Shared) {
    let test = move || {
        // All that waits for the disk does so on the one thread that this runtime has for it.
        let one = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(1).enable_all().build();
        one.unwrap().block_on(async move {
            let ground = Ground::create(shared.bootstrap(), "grants-disk", HOUR).await;
            let worker = ground.worker("one:1").await;
            ground.log_in(&ground.ledger(KEY).await, 1).await;
            let first = worker.serial(1).await;
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

async fn a_rival_for_the_grant_between_answer_and_commit_costs_nothing(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-rival", HOUR).await;
    let (worker, ledger) = (ground.worker("one:1").await, ground.ledger(KEY).await);
    ground.log_in(&ledger, 1).await;
    let first = worker.serial(1).await;
    ground.bank.next(Effect::Wait);
    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(LIMIT, ground.bank.has_seen(1)).await.unwrap();

    // Takes the id, so that the next write of the worker is refused by the broker.
    let mut rival = ledger.writer("accounting", Arc::new(|| true));
    let found = rival.take(Instant::now() + LIMIT).await.unwrap().unwrap();
    assert!(matches!(found.state, State::Refreshing { .. }));
    ground.bank.answer();

    assert_eq!(worker.serial(2).await.header.reveal(), "Bearer access-2");
    assert_eq!(ground.bank.presented(), ["refresh-1"]);
    worker.stop().await;
}

async fn what_is_committed_is_told_also_where_a_neighbour_hides_it(shared: &'static Shared) {
    let ground = Ground::create(shared.bootstrap(), "grants-hidden", HOUR).await;
    let ledger = ground.ledger(KEY).await;
    ground.log_in(&ledger, 1).await;
    let mut held = ledger.writer("accounting", Arc::new(|| true));
    held.take(Instant::now() + LIMIT).await.unwrap();
    // Another writer of the partition stands inside its transaction, so that nothing behind it can be read.
    let (hook, gate) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let neighbour = ShardProducers::new(ground.config(KEY, None, "neighbour").kafka.clone(), options);
    let mut neighbour = neighbour.take("neighbour", Arc::new(|| true)).await.unwrap();
    let hiding = record(ledger.table().topic(), 0, "refused/other", "{}");
    let open = tokio::spawn(async move { neighbour.commit(vec![hiding]).await });
    timeout(LIMIT, gate.reached()).await.unwrap();

    let log_out = |grant: Option<&Grant>| grant.map(|grant| grant.log_out(7));
    let written = held.write(Instant::now() + HIDDEN, log_out).await.unwrap().unwrap();

    assert!(matches!(written.state, State::Out { at_ms: 7 }), "{:?}", written.state);
    assert!(ledger.grant("accounting").unwrap().unwrap().tokens.is_some(), "it could be read after all");
    gate.open();
    open.await.unwrap().unwrap();
}

async fn an_answer_is_written_once_kafka_is_back() -> support::Result<()> {
    let broker = breakable::take().await?;
    let ground = Ground::create(&broker.bootstrap(), "grants-away", HOUR).await;
    let worker = ground.worker("one:1").await;
    ground.log_in(&ground.ledger(KEY).await, 1).await;
    let first = worker.serial(1).await;
    ground.bank.next(Effect::Wait);
    worker.tokens.instead_of(&first, Instant::now()).await.unwrap_err();
    timeout(LIMIT, ground.bank.has_seen(1)).await.unwrap();

    broker.proxy()?.cut();
    ground.bank.answer();
    // On the disk, while Kafka does not take it.
    let files = ground.state_dir("one:1").join("grants");
    let is_pending = || {
        let entries = std::fs::read_dir(&files).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).any(|name| name.ends_with(".pending"))
    };
    let end = Instant::now() + LIMIT;
    while !is_pending() {
        assert!(Instant::now() < end, "the answer is nowhere but in memory");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    broker.proxy()?.heal();

    assert_eq!(worker.serial(2).await.header.reveal(), "Bearer access-2");
    assert_eq!(ground.bank.presented(), ["refresh-1"]);
    worker.stop().await;
    assert!(!is_pending(), "what is in the topic is not kept");
    Ok(())
}

/// Waits until there is one, whatever is said before.
async fn first_token(tokens: &dyn Tokens) -> Access {
    let end = Instant::now() + LIMIT;
    loop {
        match tokens.token(end).await {
            Ok(access) => return access,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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

/// Leaves a refresh open, as a worker that dies does.
async fn open_intent(ledger: &GrantStore, name: &str) -> Grant {
    let intent = Intent {
        id: format!("open-{name}"),
        cause: Cause::Due,
        origin: Origin { worker: "one".into(), begun_ms: 0 },
        window_ms: 5_000,
        withdrawn: false,
    };
    let begin = |grant: Option<&Grant>| grant?.begin(1, intent.clone()).ok();
    let mut held = ledger.writer(name, Arc::new(|| true));
    held.write(Instant::now() + LIMIT, begin).await.unwrap().unwrap()
}

fn files(ground: &Ground, worker: &str) -> Files {
    Files::new(&ground.state_dir(worker), Arc::new(Keyring::new(&KEY.into(), None, &ground.prefix).unwrap()))
}

fn pending(ground: &Ground, grant: &Grant, number: u32) -> Pending {
    let issued = Issued { refresh: Some(format!("refresh-{number}").into()), ..ground.bank.log_in(number) };
    Pending { name: grant.name.clone(), base: grant.base(grant.intent().unwrap()), issued }
}
