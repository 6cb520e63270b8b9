//! Everything fails at once, and in the end the topics match the provider.
//!
//! Webhooks come twice, in another order, late or never; reads are stale, throttled, cut off or fail; every few seconds a worker
//! is killed, or frozen until another has taken over and then resumed, or the broker is restarted. Meanwhile lists are read in full,
//! and the provider disables a subscription, which is enabled again and leaves a gap that is repaired by more reads. Then all faults
//! end, a later change of each record replaces the lost events, and the checker judges. `TRIBUTARY_TEST_CYCLES_CHAOS` and
//! `TRIBUTARY_TEST_SEED` set the number of cycles and what is drawn. Many cycles run in several acts, each with new topics and a new
//! provider and judged at its end: otherwise the evidence would grow with every cycle.
//!
//! Each cycle judges the certificates since the last one, since a later run might repair what an earlier one missed. After the
//! verdict on events all lists are read once more without faults: the topics must then have every living record that a list shows,
//! with or without an event. Records of resources without a list are judged only if they have an event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use model::{List, RunKind};
use simulator::{
    accounting::WebhookState,
    catalog::Resource,
    knobs::{Effect, Fault, FaultTarget, HttpStatus, Latency, RetryHint},
};
use tributary::avro::embedded::EmbeddedRegistry;

use super::checker::{Evidence, check, check_certificates};
use super::evidence;
use super::lists::{ListedRecords, sum};
use super::load::Mix;
use super::scene::{EnrichScene, HOOKS, Options};
use crate::support::dice::{Dice, seed};
use crate::support::stage::Backend;
use crate::support::{Broker, Error, Result, breakable, cycles};

/// Cycles of the gate: one disaster of each kind.
const CYCLES: u32 = 3;
/// The most cycles of one act.
const MOST_CYCLES_OF_ACT: u32 = 20;
/// Changes a second.
const RATE: f64 = if cfg!(debug_assertions) { 20.0 } else { 100.0 };
/// The lists that snapshots read.
const LISTS: [List; 2] = [List::Customers, List::Accounts];
/// Changes with bad deliveries before each disaster: one and a half seconds of them.
const CHANGES_BEFORE_DISASTER: u64 = (1.5 * RATE) as u64;

crate::tests! {
    // A cycle takes about ten seconds. The limits of its steps find what hangs.
    disturbing topics_match_the_provider_whatever_went_wrong limit (300 + 60 * u64::from(cycles("CHAOS", CYCLES)));
}

/// What happens to a worker or the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disaster {
    /// SIGKILL.
    Kill,
    /// SIGSTOP until another has taken over, then SIGCONT.
    Freeze,
    /// The broker is stopped or killed, and restarted with its data.
    Broker,
}

/// One of each, in drawn order.
fn disasters(dice: &mut Dice) -> Vec<Disaster> {
    let mut left = vec![Disaster::Kill, Disaster::Freeze, Disaster::Broker];
    let mut drawn = Vec::new();
    while !left.is_empty() {
        drawn.push(left.swap_remove(dice.below(left.len() as u64) as usize));
    }
    drawn
}

async fn topics_match_the_provider_whatever_went_wrong() -> Result<()> {
    let mut broker = breakable::take().await?;
    let mut left = cycles("CHAOS", CYCLES);
    for seed in seed().. {
        let played = left.min(MOST_CYCLES_OF_ACT);
        Box::pin(act(&mut broker, seed, played)).await?;
        left -= played;
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// Runs `cycles` disasters and judges the result.
async fn act(broker: &mut Broker, seed: u64, cycles: u32) -> Result<()> {
    let began = Instant::now();
    let mut dice = Dice(seed);
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let backend = Backend { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    let options = Options {
        workers: 2,
        resources: &[Resource::Customers, Resource::Accounts, Resource::Journals, Resource::Persons],
        // Short, so that others soon take over, and not so short that a busy machine ends them.
        properties: &[("session.timeout.ms", "3000"), ("heartbeat.interval.ms", "500")],
        // Far longer than a replica lags here, and short enough for a suspected restore to be refuted within the test.
        settings: &[
            ("snapshot.lists", "customers,accounts"),
            ("page.size", "20"),
            ("epoch.confirm.ms", "20000"),
        ],
    };
    let mut scene = EnrichScene::start(backend, "enrich-chaos", options, |settings| {
        settings.world.companies = 8;
        settings.world.seed = seed;
    })
    .await?;
    let mut judge = CertificateJudge::default();
    judge.look(&scene);
    scene.warm().await?;

    let (mut changes, mut snapshots, mut planned) = (0, 0, Vec::new());
    for cycle in 0..cycles {
        if planned.is_empty() {
            planned = disasters(&mut dice);
        }
        let disaster = planned.pop().unwrap_or(Disaster::Kill);
        let victim = dice.below(2) as usize;
        let failed =
            |error: Error| Error(format!("seed {seed}, cycle {cycle}, {disaster:?} of {victim}: {error}"));
        spoil(&scene);
        judge.look(&scene);
        // One run after the other, as the REST API enforces it.
        if snapshots == 0 || scene.is_over(&run(snapshots - 1)).await.unwrap_or(false) {
            scene.ask_for(&run(snapshots), RunKind::Snapshot, &LISTS).await.map_err(failed)?;
            snapshots += 1;
        }
        let mut load = scene.load(RATE, Mix::All, seed);
        load.reaches(CHANGES_BEFORE_DISASTER).await.map_err(failed)?;
        match disaster {
            Disaster::Broker => {
                // A clean stop half of the time: its partitions lose their leader while it still coordinates transactions.
                if dice.below(2) == 0 {
                    broker.stop().await.map_err(failed)?;
                }
                broker.restart().await.map_err(failed)?;
            }
            Disaster::Kill | Disaster::Freeze => {
                strike(&mut scene, disaster, victim).await.map_err(failed)?
            }
        }
        changes += load.stop();
        // Deliver first what the subscriptions owe: no later change would replace a lost delete.
        scene.until_delivered().await.map_err(failed)?;
        // Only updates are lost, which a later one replaces; the loss of a delete could not be noticed.
        scene.provider().turn(|knobs| knobs.delivery.lose = 0.2);
        let mut load = scene.load(RATE, Mix::Updates, seed);
        disable_one(&scene, &mut dice);
        load.reaches(CHANGES_BEFORE_DISASTER / 2).await.map_err(failed)?;
        until_all_active(&scene).await.map_err(failed)?;
        changes += load.stop();
        scene.provider().turn(|knobs| knobs.delivery.lose = 0.0);
        judge.judge(&scene).await.map_err(failed)?;
    }
    scene.calm();
    scene.until_over(&run(snapshots - 1)).await?;
    let gaps = until_gaps_end(&scene).await?;
    judge.judge(&scene).await?;
    let lost = scene.make_up_for_lost();
    scene.quiesce().await?;
    // Before the last run, which would repair records that events failed to update.
    let verdict = scene.verdict().await?;
    judge.look(&scene);
    let progress = scene.run("chaos-last", RunKind::Repair, &LISTS).await?;
    scene.quiesce().await?;
    let certificates = scene.certificates_of("chaos-last").await?;
    let mut complete = scene.evidence().await?;
    complete.certified = scene.owed(&certificates, &judge.listed);
    let repaired = check(&complete);

    println!(
        "enrich, chaos: seed {seed}, {cycles} disasters in {:.0?}, {snapshots} snapshots, {changes} changes, {lost} records with \
         a repeated event, gaps {gaps:?}; {} certificates of {} records judged; {verdict}; after the last run: {repaired}",
        began.elapsed(),
        judge.judged.len(),
        judge.records,
    );
    verdict.assert_sound();
    repaired.assert_sound();
    assert_eq!((verdict.letters, repaired.letters), (0, 0), "there are dead letters");
    assert_eq!(sum(&progress, "certified"), sum(&progress, "lists"), "{progress:#?}");
    assert!(judge.records > 0, "no list was certified during the disasters");
    let listed = scene.listed().places.len();
    assert_eq!(complete.certified.len(), listed, "of living records in certified lists: {certificates:#?}");
    assert!(gaps.values().sum::<usize>() > 0, "no gap was opened");
    assert!(lost > 0 && changes > RATE as u64, "{lost} lost of {changes}");
    Ok(())
}

/// Judges certificates, each once, during the disasters.
#[derive(Default)]
struct CertificateJudge {
    /// The records that lists showed, in chronological order.
    listed: Vec<ListedRecords>,
    /// Certificates that are judged: list, and end of its reading.
    judged: BTreeSet<(String, i64)>,
    /// Records that they required, in sum.
    records: usize,
}

impl CertificateJudge {
    /// Notes the records that lists show now.
    fn look(&mut self, scene: &EnrichScene) {
        self.listed.push(scene.listed());
    }

    /// Checks the certificates since the last call against the record topics.
    async fn judge(&mut self, scene: &EnrichScene) -> Result<()> {
        let mut evidence = Evidence::default();
        let mut fresh = BTreeSet::new();
        let read = scene.until("certificates and records read", async || {
            let mut certificates = scene.certificates().await?;
            certificates.retain(|list, one| !self.judged.contains(&(list.clone(), one.reading.ended_at)));
            fresh = certificates.iter().map(|(list, one)| (list.clone(), one.reading.ended_at)).collect();
            evidence.certified = scene.owed(&certificates, &self.listed);
            if !evidence.certified.is_empty() {
                // In this order: a record that is no longer parked is published by then.
                let parked = evidence::parked(scene).await?;
                evidence.parked = parked.into_keys().map(|name| (name, None)).collect();
                evidence.lines = evidence::lines(scene).await?;
            }
            Ok(true)
        });
        read.await?;
        self.records += evidence.certified.len();
        self.judged.append(&mut fresh);
        let verdict = check_certificates(&evidence);
        if verdict.kinds().is_empty() { Ok(()) } else { Err(Error(format!("certificates: {verdict}"))) }
    }
}

/// The id of a snapshot.
fn run(number: u32) -> String {
    format!("chaos-{number}")
}

/// Has the provider disable one of the subscriptions.
fn disable_one(scene: &EnrichScene, dice: &mut Dice) {
    let provider = scene.provider();
    let mut active = provider.accounting.webhooks();
    active.retain(|one| one.state == WebhookState::Active);
    if !active.is_empty() {
        let drawn = active.swap_remove(dice.below(active.len() as u64) as usize);
        provider.accounting.disable(drawn.id);
    }
}

/// Waits until every subscription is active: a lost delete event could not be noticed.
async fn until_all_active(scene: &EnrichScene) -> Result<()> {
    let all = async || {
        let webhooks = scene.provider().accounting.webhooks();
        let active = webhooks.iter().filter(|one| one.state == WebhookState::Active);
        Ok(active.count() == scene.resources.len())
    };
    scene.until("every subscription active again", all).await
}

/// Waits until no gap is open; the number of gaps in each state.
async fn until_gaps_end(scene: &EnrichScene) -> Result<BTreeMap<String, usize>> {
    let mut ends = BTreeMap::new();
    scene
        .until("every gap ended", async || {
            let path = format!("/connectors/{HOOKS}/gaps?all=true");
            let (status, answer) = scene.stage.ask(0, "GET", &path, None).await?;
            let states = answer.as_array().into_iter().flatten();
            let states = states.map(|gap| gap["state"].as_str().unwrap_or_default().to_owned());
            ends = states.fold(BTreeMap::new(), |mut ends, state| {
                *ends.entry(state).or_default() += 1;
                ends
            });
            Ok(status == 200 && !ends.contains_key("open"))
        })
        .await
        .map_err(|error| Error(format!("{error}: {ends:?}")))?;
    Ok(ends)
}

/// Kills or freezes a worker until the other has all its tasks, and brings it back.
async fn strike(scene: &mut EnrichScene, disaster: Disaster, victim: usize) -> Result<()> {
    let other = 1 - victim;
    scene.stage.reach(other)?;
    if disaster == Disaster::Kill {
        scene.stage.workers[victim].kill();
        scene.until_taken_over(&[other]).await?;
        return scene.stage.workers[victim].start_again().await;
    }
    scene.stage.workers[victim].pause()?;
    let taken = scene.until_taken_over(&[other]).await;
    scene.stage.workers[victim].resume()?;
    taken
}

/// Sets faults: bad deliveries, and reads that fail in every transient way.
fn spoil(scene: &EnrichScene) {
    let fault = |effect, share| {
        let on = FaultTarget {
            method: Some("GET".to_owned()),
            path: Some("/accounting".to_owned()),
            ..FaultTarget::default()
        };
        Fault { on, effect, share, times: None, skip: 0 }
    };
    scene.provider().turn(|knobs| {
        let delivery = &mut knobs.delivery;
        (delivery.duplicate, delivery.reorder) = (0.1, 0.2);
        delivery.delay = Latency::Uniform { from: 0.0, to: 300.0 };
        (knobs.reads.replica_lag, knobs.reads.replica_share) = (700, 0.3);
        knobs.faults = vec![
            fault(Effect::Throttle { seconds: 1, tells: RetryHint::Both }, 0.02),
            fault(Effect::Status(HttpStatus::SERVER_ERROR), 0.03),
            fault(Effect::Drop, 0.02),
            fault(Effect::Truncate, 0.02),
        ];
    });
}
