//! A worker that is killed again and again while lists are read: they end as if nothing had happened, and little is read twice.
//!
//! `TRIBUTARY_TEST_CYCLES` says how often it is killed; where somebody asks for more than usual, there is much more to read, too.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tributary::avro::embedded::Server;
use tributary::model::{Certificate, List, Method, RunKind};
use tributary::simulator::gateway::Request;
use tributary::simulator::knobs::Latency;

use super::super::checker::check;
use super::super::scene::{Options, PARTITIONS, Scene};
use super::{LISTED, LISTS, sum};
use crate::support::harness::Test;
use crate::support::stage::Ground;
use crate::support::{Error, Result, breakable, cycles};

/// Kills of a run that nobody asked more of.
const KILLS: u32 = 2;
/// Pages that a company's two lists take, about.
const PAGES: u64 = 14;

/// All tests of this module.
pub(crate) fn tests() -> Vec<Test> {
    let name =
        concat!(module_path!(), "::killed_again_and_again_lists_end_with_the_certificates_of_a_calm_run");
    let run = killed_again_and_again_lists_end_with_the_certificates_of_a_calm_run;
    vec![Test::disturbing(name, run).within(180 + 30 * u64::from(cycles(KILLS)))]
}

async fn killed_again_and_again_lists_end_with_the_certificates_of_a_calm_run() -> Result<()> {
    let (kills, began) = (cycles(KILLS), Instant::now());
    let companies = if kills > KILLS { 1_000 } else { 60 };
    let broker = breakable::take().await?;
    let registry = Server::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let ground = Ground { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    let options = Options {
        resources: &LISTED,
        // Short, so that the next life soon has its tasks; and no machine stalls for so long that one ends without a kill.
        properties: &[("session.timeout.ms", "5000"), ("heartbeat.interval.ms", "500")],
        settings: &[("snapshot.lists", "companies,customers,accounts"), ("page.size", "5")],
        ..Options::default()
    };
    let mut scene = Scene::start(ground, "lists-killed", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.accounts) = (companies, 12, 7);
        settings.world.others = 0;
        settings.journal_limit = 10_000_000;
        // Some pages are always on their way.
        settings.knobs.gateway.latency = Latency::Fixed(10.0);
    })
    .await?;

    let since = scene.provider().gateway.request_count();
    scene.ask_for("killed", RunKind::Snapshot, &LISTS).await?;
    let mut killed_at = Vec::new();
    for kill in 1..=kills {
        let enough = u64::from(companies) * PAGES * u64::from(kill) / u64::from(kills + 1);
        until_read(&scene, since, enough).await?;
        scene.stage.workers[0].kill();
        killed_at.push(scene.provider().gateway.request_count());
        scene.stage.workers[0].start_again().await?;
    }
    let progress = scene.until_over("killed").await?;
    let between = scene.provider().gateway.request_count();
    let (disturbed, took) = (scene.certificates_of("killed").await?, began.elapsed());

    let calm = scene.run("calm", RunKind::Snapshot, &LISTS).await?;
    let undisturbed = scene.certificates_of("calm").await?;
    let read = lists(&scene, since, between);
    let needed = lists(&scene, between, u64::MAX);
    let mut most = 0;
    let (mut again, mut in_flight) = (0, 0);
    for (list, needed) in &needed {
        let read = &read[list];
        // It was under way at a kill if pages of it were asked for before and after.
        let open =
            killed_at.iter().filter(|at| read.iter().any(|one| one < at) && read.iter().any(|one| one > at));
        let (open, more) = (open.count(), read.len().saturating_sub(needed.len()));
        (again, in_flight) = (again + more, in_flight + open);
        most = most.max(more.saturating_sub(open));
    }
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;
    let verdict = check(&evidence);

    println!(
        "lists, killed: {companies} companies, {kills} kills, {} lists ended in {took:.0?}; {} pages, {in_flight} lists were under \
         way at a kill and {again} pages were read again; {verdict}",
        disturbed.len(),
        read.values().map(Vec::len).sum::<usize>(),
    );
    verdict.assert_sound();
    let last = evidence.last();
    for place in scene.living() {
        assert!(last.contains_key(&scene.name(place)), "{place:?} is not there");
    }
    assert_eq!(disturbed.len(), 2 * companies as usize + PARTITIONS as usize);
    assert_eq!(verdicts(&disturbed), verdicts(&undisturbed));
    assert!(disturbed.values().all(|one| one.certified && one.method != Method::None));
    assert_eq!(sum(&progress, "lists"), disturbed.len() as u64, "{progress:#?}");
    assert_eq!(
        (sum(&progress, "ended"), sum(&progress, "certified")),
        (sum(&progress, "lists"), sum(&progress, "lists"))
    );
    assert_eq!(sum(&calm, "published"), 0);
    assert!(in_flight > 0, "nothing was under way at a kill");
    assert_eq!(most, 0, "more than one page was read again");
    Ok(())
}

/// Waits until so many pages were asked for.
async fn until_read(scene: &Scene, since: u64, pages: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(90);
    while scene.provider().gateway.request_count() < since + pages {
        if Instant::now() > end {
            return Err(scene.stage.error("pages are not read any more"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Numbers of the requests for pages of each company's lists, between two numbers in the journal.
fn lists(scene: &Scene, from: u64, to: u64) -> BTreeMap<(List, String), Vec<u64>> {
    let mut found: BTreeMap<(List, String), Vec<u64>> = BTreeMap::new();
    for list in [List::Customers, List::Accounts] {
        for (number, Request { company, .. }) in scene.pages(list, from) {
            if number < to {
                found.entry((list, company.unwrap_or_default())).or_default().push(number);
            }
        }
    }
    found
}

type Proved = (Method, bool, Option<i64>, Option<i64>, Option<i64>);

/// What is proved of each list.
fn verdicts(certificates: &BTreeMap<String, Certificate>) -> BTreeMap<&String, Proved> {
    let proved =
        |one: &Certificate| (one.method, one.certified, one.listed, one.distinct, one.missing_at_most);
    certificates.iter().map(|(key, one)| (key, proved(one))).collect()
}
