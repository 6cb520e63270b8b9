//! Members die, freeze and lose their network: their partitions are held elsewhere soon, and never at the same time.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::member::{Member, Span};
use super::work::{Claims, PARTITIONS, SESSION, TAKEOVER, Work, complete, owned, settled, until};
use crate::support::topics::LIMIT;
use crate::support::tries::Tries;
use crate::support::{Proxy, Result, Shared, breakable, cycles, lost};

crate::tests! {
    real the_partitions_of_a_killed_member_are_owned_elsewhere_within_the_session_and_five_seconds within 120;
    real a_frozen_member_finds_that_it_holds_nothing_and_its_claims_are_lower_than_its_successors within 120;
    real a_member_that_the_group_refuses_says_since_when_and_why_until_it_is_let_in;
    disturbing a_member_cut_off_stops_holding_before_others_begin_and_comes_back within 180;
    disturbing members_go_on_by_themselves_when_the_broker_has_been_away within 180;
    disturbing at_no_moment_do_two_members_hold_the_same_partition within 1200;
}

async fn the_partitions_of_a_killed_member_are_owned_elsewhere_within_the_session_and_five_seconds(
    shared: &'static Shared,
) -> Result<()> {
    let work = Work::create(shared.bootstrap(), "group-killed").await;
    let survivor = work.join(shared.bootstrap(), "survivor").await;

    let mut tries = Tries::of("partitions of a killed member are owned within the session");
    let mut fastest = Duration::MAX;
    for cycle in 0..cycles("TAKEOVERS", 2) {
        let victim = Member::start(shared.bootstrap(), &work, &format!("victim-{cycle}")).await?;
        let share = until("both share", LIMIT, || shared_with(&victim, &owned(&survivor))).await;
        let killed = Instant::now();
        victim.kill();
        until("the survivor owns everything", LIMIT, || complete(&[owned(&survivor)]).then_some(())).await;

        let took = killed.elapsed();
        eprintln!("partitions of a killed member are owned elsewhere after {took:?}");
        tries.held(took < TAKEOVER);
        fastest = fastest.min(took);
        let now = owned(&survivor);
        assert!(share.iter().all(|(partition, claim)| now[partition] > *claim), "{share:?}, then {now:?}");
    }
    // A machine that stalls takes longer now and then.
    assert!(fastest < TAKEOVER, "{fastest:?}");
    Ok(())
}

async fn a_frozen_member_finds_that_it_holds_nothing_and_its_claims_are_lower_than_its_successors(
    shared: &'static Shared,
) -> Result<()> {
    let work = Work::create(shared.bootstrap(), "group-frozen").await;
    let successor = work.join(shared.bootstrap(), "successor").await;
    let frozen = Member::start_eager(shared.bootstrap(), &work, "frozen").await?;

    for cycle in 1..=cycles("FREEZES", 1) as usize {
        let share = until("both share", LIMIT, || shared_with(&frozen, &owned(&successor))).await;
        frozen.freeze()?;
        until("the successor owns everything", LIMIT, || complete(&[owned(&successor)]).then_some(())).await;
        let now = owned(&successor);
        frozen.thaw()?;

        let thawed =
            until("it looks again", LIMIT, || Some(frozen.thawed()).filter(|t| t.len() == cycle)).await;
        assert_eq!(thawed[cycle - 1], 0, "it still held partitions when it came back");
        assert!(share.iter().all(|(partition, claim)| now[partition] > *claim), "{share:?}, then {now:?}");
    }
    until("it comes back", LIMIT, || shared_with(&frozen, &owned(&successor))).await;
    Ok(())
}

async fn a_member_cut_off_stops_holding_before_others_begin_and_comes_back() -> Result<()> {
    let broker = breakable::take().await?;
    let (through, past) = (broker.bootstrap(), broker.bootstrap_past_proxy());
    let work = Work::create(&past, "group-cut").await;
    let victim = work.join(&through, "victim").await;
    let other = work.join(&past, "other").await;
    let proxy = broker.proxy()?;

    // Connections are closed; then they stay open and nothing passes.
    for break_it in [Proxy::cut, Proxy::stall] {
        let share = settled(&[&victim, &other]).await.remove(0);
        let broken = Instant::now();
        break_it(proxy);
        let holds = || share.keys().any(|partition| victim.holds(*partition));
        let taken = || share.keys().any(|partition| other.holds(*partition));
        let over = || {
            // In this order: what is held now was held before.
            let is_taken = taken();
            let is_held = holds();
            assert!(!(is_taken && is_held), "the other holds what the victim holds");
            (!is_held).then_some(())
        };
        until("the lease ends", LIMIT, over).await;
        let ended = lost::promised(broken);
        assert!(ended < SESSION, "the lease has ended only after {ended:?}");
        until("the other owns everything", LIMIT, || complete(&[owned(&other)]).then_some(())).await;
        assert!(!holds());
        eprintln!("cut off: the lease has ended after {ended:?}, all is owned after {:?}", broken.elapsed());

        proxy.heal();
        let healed = Instant::now();
        settled(&[&victim, &other]).await;
        eprintln!("the member is back after {:?}", healed.elapsed());
    }
    Ok(())
}

async fn members_go_on_by_themselves_when_the_broker_has_been_away() -> Result<()> {
    let mut broker = breakable::take().await?;
    let bootstrap = broker.bootstrap();
    let work = Work::create(&bootstrap, "group-restart").await;
    let (a, b) = (work.join(&bootstrap, "a").await, work.join(&bootstrap, "b").await);
    settled(&[&a, &b]).await;
    let holding = || (0..PARTITIONS).filter(|partition| a.holds(*partition) || b.holds(*partition)).count();

    broker.kill();
    let killed = Instant::now();
    until("the leases end", LIMIT, || (holding() == 0).then_some(())).await;
    let ended = lost::promised(killed);
    broker.restart().await?;
    let back = Instant::now();

    assert!(ended < SESSION, "the leases have ended only after {ended:?}");
    until("all is held again", LIMIT, || (holding() == PARTITIONS as usize).then_some(())).await;
    eprintln!("all is held again {:?} after the broker is back", back.elapsed());
    settled(&[&a, &b]).await;
    Ok(())
}

async fn at_no_moment_do_two_members_hold_the_same_partition() -> Result<()> {
    let broker = breakable::take().await?;
    let (through, past) = (broker.bootstrap(), broker.bootstrap_past_proxy());
    let proxy = broker.proxy()?;
    let work = Work::create(&past, "group-churn").await;
    let mut spans: Vec<Span> = Vec::new();
    let remote = Member::start(&through, &work, "remote").await?;
    let mut near = Member::start(&past, &work, "near-0").await?;
    let mut far = Member::start(&past, &work, "far-0").await?;

    for cycle in 1..=cycles("CHURN", 1) {
        share(&[&remote, &near, &far]).await;
        far.freeze()?;
        share(&[&remote, &near]).await;
        // A second loss while the first is away.
        proxy.stall();
        share(&[&near]).await;
        far.thaw()?;
        share(&[&near, &far]).await;
        proxy.heal();
        share(&[&remote, &near, &far]).await;

        spans.extend(near.kill());
        near = Member::start(&past, &work, &format!("near-{cycle}")).await?;
        share(&[&remote, &near, &far]).await;

        // Slow links are where believing oneself the owner overlaps.
        proxy.slow(Duration::from_millis(60), 1 << 20);
        spans.extend(far.leave().await?);
        share(&[&remote, &near]).await;
        far = Member::start(&past, &work, &format!("far-{cycle}")).await?;
        share(&[&remote, &near, &far]).await;
        proxy.cut();
        share(&[&near, &far]).await;
        proxy.heal();
    }
    share(&[&remote, &near, &far]).await;
    for member in [&remote, &near, &far] {
        spans.extend(member.leave().await?);
    }

    let overlaps = overlaps(&mut spans);
    eprintln!("{} spans of {PARTITIONS} partitions, {} overlaps", spans.len(), overlaps.len());
    assert!(overlaps.is_empty(), "{overlaps:#?}");
    assert!(spans.len() > PARTITIONS as usize * 2, "hardly anything has moved: {} spans", spans.len());
    let fallen: Vec<_> = spans.windows(2).filter(|pair| !rises(&pair[0], &pair[1])).collect();
    assert!(fallen.is_empty(), "{fallen:#?}");
    Ok(())
}

async fn a_member_that_the_group_refuses_says_since_when_and_why_until_it_is_let_in(shared: &'static Shared) {
    let work = Work::create(shared.bootstrap(), "group-refused").await;
    let other = intruder(shared.bootstrap(), &work.topic);
    let (gone, still_there) = std::sync::mpsc::channel::<()>();
    let (ready, holds) = tokio::sync::oneshot::channel();
    let polling = std::thread::spawn(move || {
        let mut ready = Some(ready);
        while still_there.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            drop(other.poll(Duration::from_millis(20)));
            if other.assignment().is_ok_and(|assignment| assignment.count() > 0) {
                ready.take().map(|ready| ready.send(()).ok());
            }
        }
    });
    lost::timeout(LIMIT, holds).await.expect("the other member is given something").unwrap();

    let refused = work.join(shared.bootstrap(), "refused").await;
    let told = |outage: &kafka::MembershipOutage| {
        outage.reason.as_deref().is_some_and(|why| why.contains("rotocol"))
    };
    let outage = until("it says why", LIMIT, || refused.outage().filter(told)).await;
    assert!(!outage.joined && outage.since <= std::time::SystemTime::now(), "{outage:?}");
    assert_eq!(refused.rebalances().completed, 0);
    drop(gone);
    tokio::task::spawn_blocking(move || polling.join().unwrap()).await.unwrap();

    settled(&[&refused]).await;
    until("all is well", LIMIT, || refused.outage().is_none().then_some(())).await;
    assert!(refused.rebalances().completed >= 1 && refused.rebalances().last.is_some());
}

/// A consumer of the same group that shares work in a way no worker does.
fn intruder(bootstrap: &str, topic: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", topic);
    let consumer: BaseConsumer = config.set("partition.assignment.strategy", "range").create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    consumer
}

/// Whether the later of two spans has the higher claim. A member whose lease ran again goes on with the one it had.
fn rises(before: &Span, after: &Span) -> bool {
    let goes_on = before.member == after.member && before.claim == after.claim;
    before.partition != after.partition || goes_on || before.claim < after.claim
}

/// What the member holds, once it and the other share everything.
fn shared_with(member: &Member, other: &Claims) -> Option<Claims> {
    let held = member.held();
    (!held.is_empty() && !other.is_empty() && complete(&[held.clone(), other.clone()])).then_some(held)
}

/// Waits until these members hold everything between them, each a part.
async fn share(members: &[&Member]) {
    let names: Vec<_> = members.iter().map(|member| member.name()).collect();
    let all = || {
        let shares: Vec<Claims> = members.iter().map(|member| member.held()).collect();
        (complete(&shares) && shares.iter().all(|share| !share.is_empty())).then_some(())
    };
    until(&format!("{names:?} hold everything"), LIMIT, all).await;
}

/// Neighbours in time that held a partition at the same moment; sorts by partition and time.
fn overlaps(spans: &mut [Span]) -> Vec<(Span, Span)> {
    spans.sort_by_key(|span| (span.partition, span.from));
    let mut overlaps = Vec::new();
    let mut last: Option<&Span> = None;
    for span in &*spans {
        match last {
            Some(before) if before.partition == span.partition && before.to > span.from => {
                overlaps.push((before.clone(), span.clone()));
                // The longer one may overlap the next as well.
                last = Some(if before.to > span.to { before } else { span });
            }
            _ => last = Some(span),
        }
    }
    overlaps
}
