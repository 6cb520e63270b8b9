//! Everything goes wrong at once, and in the end the topics are what the provider has.
//!
//! Webhooks come twice, in another order, late or never; reads are stale, throttled, cut off or fail; every few seconds a worker
//! is killed, or frozen until another has taken over and then revived, or the broker is. Meanwhile lists are read in full, and
//! the provider disables a subscription, which is enabled again and leaves a gap that is repaired by reading more. Then all is well
//! again, what was lost is told by a later change, and the checker judges. `TRIBUTARY_TEST_CYCLES_CHAOS` and `TRIBUTARY_TEST_SEED` say
//! how often, and what is drawn. Many of them are played in several acts, each with topics and a provider of its own and judged at its end:
//! what has to be read back would grow with all that was before.
//!
//! A cycle ends with a judgment of the certificates it brought, since a later run might repair what an earlier one missed. After the
//! verdict on events all lists are read once more in peace: the topics must then have every living record that a list shows,
//! including those that no event told of. Records of resources without a list are judged where an event told of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use model::{List, RunKind};
use simulator::{
    accounting::WebhookState,
    catalog::Resource,
    knobs::{Effect, Fault, Latency, Status, Target, Tells},
};
use tributary::avro::embedded::Server;

use super::checker::{Evidence, check, check_certificates};
use super::evidence;
use super::lists::{Listed, sum};
use super::load::Mix;
use super::scene::{HOOKS, Options, Scene};
use crate::support::dice::{Dice, seed};
use crate::support::harness::Test;
use crate::support::stage::Ground;
use crate::support::{Broker, Error, Result, breakable, cycles};

/// Disasters of the gate: one of each kind.
const CYCLES: u32 = 3;
/// The most of one act.
const ACT: u32 = 20;
/// Changes a second.
const RATE: f64 = if cfg!(debug_assertions) { 20.0 } else { 100.0 };
/// What snapshots read.
const LISTS: [List; 2] = [List::Customers, List::Accounts];
/// Changes that are told badly before something dies: what a second and a half brings.
const BADLY: u64 = (1.5 * RATE) as u64;

/// All tests of this module.
pub(crate) fn tests() -> Vec<Test> {
    let name = concat!(module_path!(), "::topics_match_the_provider_whatever_went_wrong");
    let run = topics_match_the_provider_whatever_went_wrong;
    // A cycle takes some ten seconds. The limits of its steps find what hangs.
    vec![Test::disturbing(name, run).within(300 + 60 * u64::from(cycles("CHAOS", CYCLES)))]
}

/// What happens to those who work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disaster {
    /// SIGKILL.
    Kill,
    /// SIGSTOP until another has taken over, then SIGCONT.
    Freeze,
    /// The broker ends or is killed, and comes back with its data.
    Broker,
}

/// Each comes once before any comes again, in an order that is drawn.
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
        let played = left.min(ACT);
        Box::pin(act(&mut broker, seed, played)).await?;
        left -= played;
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// So many disasters, and what is there afterwards.
async fn act(broker: &mut Broker, seed: u64, cycles: u32) -> Result<()> {
    let began = Instant::now();
    let mut dice = Dice(seed);
    let registry = Server::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let ground = Ground { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    let options = Options {
        workers: 2,
        resources: &[Resource::Customers, Resource::Accounts, Resource::Journals, Resource::Persons],
        // Short, so that others soon take over, and not so short that a busy machine ends them.
        properties: &[("session.timeout.ms", "3000"), ("heartbeat.interval.ms", "500")],
        // Far longer than a replica lags here, and short enough for what is suspected to be found innocent.
        settings: &[
            ("snapshot.lists", "customers,accounts"),
            ("page.size", "20"),
            ("epoch.confirm.ms", "20000"),
        ],
    };
    let mut scene = Scene::start(ground, "enrich-chaos", options, |settings| {
        settings.world.companies = 8;
        settings.world.seed = seed;
    })
    .await?;
    let mut judge = Judge::default();
    judge.look(&scene);
    scene.warm().await?;

    let (mut changes, mut snapshots, mut planned) = (0, 0, Vec::new());
    for cycle in 0..cycles {
        if planned.is_empty() {
            planned = disasters(&mut dice);
        }
        let disaster = planned.pop().unwrap_or(Disaster::Kill);
        let victim = dice.below(2) as usize;
        let told =
            |error: Error| Error(format!("seed {seed}, cycle {cycle}, {disaster:?} of {victim}: {error}"));
        spoil(&scene);
        judge.look(&scene);
        // One after the other, as a worker that is asked by REST would have it.
        if snapshots == 0 || scene.is_over(&run(snapshots - 1)).await.unwrap_or(false) {
            scene.ask_for(&run(snapshots), RunKind::Snapshot, &LISTS).await.map_err(told)?;
            snapshots += 1;
        }
        let mut load = scene.load(RATE, Mix::All, seed);
        load.reaches(BADLY).await.map_err(told)?;
        match disaster {
            Disaster::Broker => {
                // In order every other time: while it stops, its partitions have no leader and it still decides.
                if dice.below(2) == 0 {
                    broker.stop().await.map_err(told)?;
                }
                broker.restart().await.map_err(told)?;
            }
            Disaster::Kill | Disaster::Freeze => strike(&mut scene, disaster, victim).await.map_err(told)?,
        }
        changes += load.stop();
        // A delete that is still under way would be lost with its subscription, and nobody would ever hear of it.
        scene.until_delivered().await.map_err(told)?;
        // Only changes that a later one makes up for are lost: of a delete nobody would ever hear again.
        scene.provider().turn(|knobs| knobs.delivery.lose = 0.2);
        let mut load = scene.load(RATE, Mix::Updates, seed);
        disable_one(&scene, &mut dice);
        load.reaches(BADLY / 2).await.map_err(told)?;
        until_all_tell(&scene).await.map_err(told)?;
        changes += load.stop();
        scene.provider().turn(|knobs| knobs.delivery.lose = 0.0);
        judge.judge(&scene).await.map_err(told)?;
    }
    scene.calm();
    scene.until_over(&run(snapshots - 1)).await?;
    let gaps = until_looked_after(&scene).await?;
    judge.judge(&scene).await?;
    let lost = scene.make_up_for_lost();
    scene.quiesce().await?;
    // Before the last run, which would repair what events had failed to bring.
    let verdict = scene.verdict().await?;
    judge.look(&scene);
    let progress = scene.run("chaos-last", RunKind::Repair, &LISTS).await?;
    scene.quiesce().await?;
    let certificates = scene.certificates_of("chaos-last").await?;
    let mut complete = scene.evidence().await?;
    complete.certified = scene.owed(&certificates, &judge.listed);
    let repaired = check(&complete);

    println!(
        "enrich, chaos: seed {seed}, {cycles} disasters in {:.0?}, {snapshots} snapshots, {changes} changes, {lost} records told of \
         again, gaps {gaps:?}; {} certificates of {} records judged; {verdict}; after the last run: {repaired}",
        began.elapsed(),
        judge.judged.len(),
        judge.records,
    );
    verdict.assert_sound();
    repaired.assert_sound();
    assert_eq!((verdict.letters, repaired.letters), (0, 0), "there are dead letters");
    assert_eq!(sum(&progress, "certified"), sum(&progress, "lists"), "{progress:#?}");
    assert!(judge.records > 0, "no list was certified while things went wrong");
    let listed = scene.listed().places.len();
    assert_eq!(complete.certified.len(), listed, "of living records in certified lists: {certificates:#?}");
    assert!(gaps.values().sum::<usize>() > 0, "no gap was opened");
    assert!(lost > 0 && changes > RATE as u64, "{lost} lost of {changes}");
    Ok(())
}

/// Judges certificates, each once, while the disasters go on.
#[derive(Default)]
struct Judge {
    /// What lists showed, in the order of time.
    listed: Vec<Listed>,
    /// Certificates that are judged: list and end of its reading.
    judged: BTreeSet<(String, i64)>,
    /// Records that they had to have, in sum.
    records: usize,
}

impl Judge {
    /// Notes what lists show.
    fn look(&mut self, scene: &Scene) {
        self.listed.push(scene.listed());
    }

    /// Holds the certificates since the last time against the record topics.
    async fn judge(&mut self, scene: &Scene) -> Result<()> {
        let mut evidence = Evidence::default();
        let mut fresh = BTreeSet::new();
        let read = scene.until("certificates and records read", async || {
            let mut certificates = scene.certificates().await?;
            certificates.retain(|list, one| !self.judged.contains(&(list.clone(), one.ended_at)));
            fresh = certificates.iter().map(|(list, one)| (list.clone(), one.ended_at)).collect();
            evidence.certified = scene.owed(&certificates, &self.listed);
            if !evidence.certified.is_empty() {
                // In this order: a record that is no longer parked then is published.
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

/// A snapshot.
fn run(number: u32) -> String {
    format!("chaos-{number}")
}

/// The provider disables one of the subscriptions.
fn disable_one(scene: &Scene, dice: &mut Dice) {
    let provider = scene.provider();
    let mut active = provider.accounting.webhooks();
    active.retain(|one| one.state == WebhookState::Active);
    if !active.is_empty() {
        let drawn = active.swap_remove(dice.below(active.len() as u64) as usize);
        provider.accounting.disable(drawn.id);
    }
}

/// Waits until every subscription is active: of a delete that nobody is told of, nobody hears later.
async fn until_all_tell(scene: &Scene) -> Result<()> {
    let all = async || {
        let webhooks = scene.provider().accounting.webhooks();
        let active = webhooks.iter().filter(|one| one.state == WebhookState::Active);
        Ok(active.count() == scene.resources.len())
    };
    scene.until("every subscription active again", all).await
}

/// Waits until no gap is open; how many came to which end.
async fn until_looked_after(scene: &Scene) -> Result<BTreeMap<String, usize>> {
    let mut ends = BTreeMap::new();
    scene
        .until("every gap looked after", async || {
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

/// A worker dies or stands still until the other has all its tasks, and comes back.
async fn strike(scene: &mut Scene, disaster: Disaster, victim: usize) -> Result<()> {
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

/// Nothing is told as it should be, and reads fail in every way that passes.
fn spoil(scene: &Scene) {
    let fault = |effect, share| {
        let on = Target {
            method: Some("GET".to_owned()),
            path: Some("/accounting".to_owned()),
            ..Target::default()
        };
        Fault { on, effect, share, times: None, skip: 0 }
    };
    scene.provider().turn(|knobs| {
        let delivery = &mut knobs.delivery;
        (delivery.duplicate, delivery.reorder) = (0.1, 0.2);
        delivery.delay = Latency::Uniform { from: 0.0, to: 300.0 };
        (knobs.reads.replica_lag, knobs.reads.replica_share) = (700, 0.3);
        knobs.faults = vec![
            fault(Effect::Throttle { seconds: 1, tells: Tells::Both }, 0.02),
            fault(Effect::Status(Status::SERVER_ERROR), 0.03),
            fault(Effect::Drop, 0.02),
            fault(Effect::Truncate, 0.02),
        ];
    });
}
