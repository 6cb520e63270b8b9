//! Members that die, freeze or lose their network: others soon hold their partitions, and never at the same time.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::assigned::{
    AssignedTopic, Claims, PARTITIONS, SESSION, TAKEOVER, complete, owned, settled, until,
};
use super::member::{HoldingSpan, MemberProcess};
use crate::support::topics::LIMIT;
use crate::support::tries::Tries;
use crate::support::{Proxy, Result, Shared, breakable, cycles, lost};

crate::tests! {
    real partitions_of_a_killed_member_move_soon_after_its_session within 120;
    real a_frozen_member_holds_nothing_and_its_claims_are_lower within 120;
    real a_refused_member_says_since_when_and_why_until_admitted;
    disturbing a_cut_off_member_stops_before_others_begin_and_comes_back within 180;
    disturbing members_resume_by_themselves_after_a_broker_outage within 180;
    disturbing no_two_members_ever_hold_the_same_partition within 1200;
}

async fn partitions_of_a_killed_member_move_soon_after_its_session(shared: &'static Shared) -> Result<()> {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-killed").await;
    let survivor = topic.join(shared.bootstrap(), "survivor").await;

    let mut tries = Tries::of("partitions of a killed member are owned within the session");
    let mut fastest = Duration::MAX;
    for cycle in 0..cycles("TAKEOVERS", 2) {
        let victim = MemberProcess::start(shared.bootstrap(), &topic, &format!("victim-{cycle}")).await?;
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
    // A busy machine sometimes takes longer.
    assert!(fastest < TAKEOVER, "{fastest:?}");
    Ok(())
}

async fn a_frozen_member_holds_nothing_and_its_claims_are_lower(shared: &'static Shared) -> Result<()> {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-frozen").await;
    let successor = topic.join(shared.bootstrap(), "successor").await;
    let frozen = MemberProcess::start_eager(shared.bootstrap(), &topic, "frozen").await?;

    for cycle in 1..=cycles("FREEZES", 1) as usize {
        let share = until("both share", LIMIT, || shared_with(&frozen, &owned(&successor))).await;
        frozen.freeze()?;
        until("the successor owns everything", LIMIT, || complete(&[owned(&successor)]).then_some(())).await;
        let now = owned(&successor);
        frozen.thaw()?;

        let thawed =
            until("it polls again", LIMIT, || Some(frozen.thawed()).filter(|t| t.len() == cycle)).await;
        assert_eq!(thawed[cycle - 1], 0, "it still held partitions when it came back");
        assert!(share.iter().all(|(partition, claim)| now[partition] > *claim), "{share:?}, then {now:?}");
    }
    until("it comes back", LIMIT, || shared_with(&frozen, &owned(&successor))).await;
    Ok(())
}

async fn a_cut_off_member_stops_before_others_begin_and_comes_back() -> Result<()> {
    let broker = breakable::take().await?;
    let (through, past) = (broker.bootstrap(), broker.bootstrap_past_proxy());
    let topic = AssignedTopic::create(&past, "group-cut").await;
    let victim = topic.join(&through, "victim").await;
    let other = topic.join(&past, "other").await;
    let proxy = broker.proxy()?;

    // First connections are closed, then they stay open and nothing passes.
    for break_it in [Proxy::cut, Proxy::stall] {
        let share = settled(&[&victim, &other]).await.remove(0);
        let broken = Instant::now();
        break_it(proxy);
        let holds = || share.keys().any(|partition| victim.holds(*partition));
        let taken = || share.keys().any(|partition| other.holds(*partition));
        let over = || {
            // In this order: a partition that the victim holds now, it also held when the other was asked.
            let is_taken = taken();
            let is_held = holds();
            assert!(!(is_taken && is_held), "the other holds what the victim holds");
            (!is_held).then_some(())
        };
        until("the lease ends", LIMIT, over).await;
        let ended = lost::promised(broken);
        assert!(ended < SESSION, "the lease ended only after {ended:?}");
        until("the other owns everything", LIMIT, || complete(&[owned(&other)]).then_some(())).await;
        assert!(!holds());
        eprintln!("cut off: the lease ended after {ended:?}, all is owned after {:?}", broken.elapsed());

        proxy.heal();
        let healed = Instant::now();
        settled(&[&victim, &other]).await;
        eprintln!("the member is back after {:?}", healed.elapsed());
    }
    Ok(())
}

async fn members_resume_by_themselves_after_a_broker_outage() -> Result<()> {
    let mut broker = breakable::take().await?;
    let bootstrap = broker.bootstrap();
    let topic = AssignedTopic::create(&bootstrap, "group-restart").await;
    let (a, b) = (topic.join(&bootstrap, "a").await, topic.join(&bootstrap, "b").await);
    settled(&[&a, &b]).await;
    let holding = || (0..PARTITIONS).filter(|partition| a.holds(*partition) || b.holds(*partition)).count();

    broker.kill();
    let killed = Instant::now();
    until("the leases end", LIMIT, || (holding() == 0).then_some(())).await;
    let ended = lost::promised(killed);
    let names_cause = || a.outage().filter(|outage| outage.reason.is_some());
    until("it says why", LIMIT, names_cause).await;
    broker.restart().await?;
    let back = Instant::now();

    assert!(ended < SESSION, "the leases ended only after {ended:?}");
    until("all is held again", LIMIT, || (holding() == PARTITIONS as usize).then_some(())).await;
    eprintln!("all is held again {:?} after the broker is back", back.elapsed());
    settled(&[&a, &b]).await;
    Ok(())
}

async fn no_two_members_ever_hold_the_same_partition() -> Result<()> {
    let broker = breakable::take().await?;
    let (through, past) = (broker.bootstrap(), broker.bootstrap_past_proxy());
    let proxy = broker.proxy()?;
    let topic = AssignedTopic::create(&past, "group-churn").await;
    let mut spans: Vec<HoldingSpan> = Vec::new();
    let remote = MemberProcess::start(&through, &topic, "remote").await?;
    let mut near = MemberProcess::start(&past, &topic, "near-0").await?;
    let mut far = MemberProcess::start(&past, &topic, "far-0").await?;

    for cycle in 1..=cycles("CHURN", 1) {
        share(&[&remote, &near, &far]).await;
        far.freeze()?;
        share(&[&remote, &near]).await;
        // A second member is lost while the first is away.
        proxy.stall();
        share(&[&near]).await;
        far.thaw()?;
        share(&[&near, &far]).await;
        proxy.heal();
        share(&[&remote, &near, &far]).await;

        spans.extend(near.kill());
        near = MemberProcess::start(&past, &topic, &format!("near-{cycle}")).await?;
        share(&[&remote, &near, &far]).await;

        // On a slow link two members could both take themselves for the owner.
        proxy.slow(Duration::from_millis(60), 1 << 20);
        spans.extend(far.leave().await?);
        share(&[&remote, &near]).await;
        far = MemberProcess::start(&past, &topic, &format!("far-{cycle}")).await?;
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
    assert!(spans.len() > PARTITIONS as usize * 2, "too few partitions moved: {} spans", spans.len());
    let fallen: Vec<_> = spans.windows(2).filter(|pair| !rises(&pair[0], &pair[1])).collect();
    assert!(fallen.is_empty(), "{fallen:#?}");
    Ok(())
}

async fn a_refused_member_says_since_when_and_why_until_admitted(shared: &'static Shared) {
    let topic = AssignedTopic::create(shared.bootstrap(), "group-refused").await;
    let other = intruder(shared.bootstrap(), &topic.name);
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
    lost::timeout(LIMIT, holds).await.expect("the other member is assigned a partition").unwrap();

    let refused = topic.join(shared.bootstrap(), "refused").await;
    let names_cause = |outage: &kafka::MembershipOutage| {
        outage.reason.as_deref().is_some_and(|why| why.contains("rotocol"))
    };
    let outage = until("it says why", LIMIT, || refused.outage().filter(names_cause)).await;
    assert!(!outage.joined && outage.since <= std::time::SystemTime::now(), "{outage:?}");
    assert_eq!(refused.rebalances().completed, 0);
    drop(gone);
    tokio::task::spawn_blocking(move || polling.join().unwrap()).await.unwrap();

    settled(&[&refused]).await;
    until("the lapse ends", LIMIT, || refused.outage().is_none().then_some(())).await;
    assert!(refused.rebalances().completed >= 1 && refused.rebalances().last.is_some());
}

/// A consumer of the same group with an assignment strategy that workers do not support.
fn intruder(bootstrap: &str, topic: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", topic);
    let consumer: BaseConsumer = config.set("partition.assignment.strategy", "range").create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    consumer
}

/// Whether the later of two spans has the higher claim. A member whose lease is renewed in time keeps its claim.
fn rises(before: &HoldingSpan, after: &HoldingSpan) -> bool {
    let is_kept = before.member == after.member && before.claim == after.claim;
    before.partition != after.partition || is_kept || before.claim < after.claim
}

/// The partitions that the member holds, once it and the other share all of them.
fn shared_with(member: &MemberProcess, other: &Claims) -> Option<Claims> {
    let held = member.held();
    (!held.is_empty() && !other.is_empty() && complete(&[held.clone(), other.clone()])).then_some(held)
}

/// Waits until these members hold all partitions together, each at least one.
async fn share(members: &[&MemberProcess]) {
    let names: Vec<_> = members.iter().map(|member| member.name()).collect();
    let all = || {
        let shares: Vec<Claims> = members.iter().map(|member| member.held()).collect();
        (complete(&shares) && shares.iter().all(|share| !share.is_empty())).then_some(())
    };
    until(&format!("{names:?} hold everything"), LIMIT, all).await;
}

/// Pairs of spans of a partition that overlap; sorts the spans by partition and time.
fn overlaps(spans: &mut [HoldingSpan]) -> Vec<(HoldingSpan, HoldingSpan)> {
    spans.sort_by_key(|span| (span.partition, span.from));
    let mut overlaps = Vec::new();
    let mut last: Option<&HoldingSpan> = None;
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
