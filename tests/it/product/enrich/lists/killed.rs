//! A worker that is killed repeatedly while lists are read: the certificates are those of a calm run, and few pages are read twice.
//!
//! Requests for the lists of each company are counted for each list. Every shard reads all pages of payroll, and the provider cannot
//! distinguish shards, so those are counted together. Requests for the list of companies are not counted, since every task also reads
//! it outside of runs.
//!
//! `TRIBUTARY_TEST_CYCLES_LISTS` is the number of kills; each kill adds companies to read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{Certificate, CertificateMethod, List, RunKind, Topic};
use simulator::{gateway::Request, knobs::Latency};
use tributary::avro::embedded::EmbeddedRegistry;

use super::super::checker::check;
use super::super::evidence;
use super::super::scene::{EnrichScene, Options, PARTITIONS, RECORDS};
use super::{LISTED, sum};
use crate::support::stage::{Backend, LIMIT};
use crate::support::{Error, Result, breakable, cycles, lost};

/// Kills of the gate.
const KILLS: u32 = 1;
/// Companies for each kill, so that lists are being read at every kill; and the most of a run.
const COMPANIES: u32 = 60;
const MOST_COMPANIES: u32 = 1_000;
/// Approximate number of pages of a company's two lists.
const PAGES: u64 = 14;
/// All lists, in small pages.
const SETTINGS: [(&str, &str); 2] =
    [("snapshot.lists", "companies,customers,accounts,payroll"), ("page.size", "5")];

crate::tests! {
    disturbing killed_lists_end_with_the_certificates_of_a_calm_run limit (180 + 30 * u64::from(cycles("LISTS", KILLS)));
}

async fn killed_lists_end_with_the_certificates_of_a_calm_run() -> Result<()> {
    let (kills, began) = (cycles("LISTS", KILLS), Instant::now());
    let companies = COMPANIES.saturating_mul(kills).min(MOST_COMPANIES);
    let broker = breakable::take().await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let backend = Backend { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    let options = Options {
        resources: &LISTED,
        // Short, so that the restarted worker soon has its tasks; long enough that no session ends without a kill.
        properties: &[("session.timeout.ms", "3000"), ("heartbeat.interval.ms", "500")],
        settings: &SETTINGS,
        ..Options::default()
    };
    let mut scene = EnrichScene::start(backend, "lists-killed", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.accounts) = (companies, 12, 7);
        // Enough that payroll is being read at every kill.
        settings.world.payroll_companies = companies * 5 / 2;
        settings.world.others = 0;
        settings.journal_limit = 10_000_000;
        // Some requests are always in flight.
        settings.knobs.gateway.latency = Latency::Fixed { milliseconds: 10.0 };
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;

    let since = scene.provider().gateway.request_count();
    scene.ask_for("killed", RunKind::Snapshot, &List::ALL).await?;
    let mut killed_at = Vec::new();
    for kill in 1..=kills {
        // With one kill, after a third of the pages: payroll and the list of companies are being read then.
        let enough = u64::from(companies) * PAGES * u64::from(kill) / u64::from(kills + 2);
        until_read(&scene, since, enough).await?;
        scene.stage.workers[0].kill();
        killed_at.push(scene.provider().gateway.request_count());
        scene.stage.workers[0].start_again().await?;
    }
    let progress = scene.until_over("killed").await?;
    let between = scene.provider().gateway.request_count();
    let (disturbed, took) = (scene.certificates_of("killed").await?, began.elapsed());

    let calm = scene.run("calm", RunKind::Snapshot, &List::ALL).await?;
    let undisturbed = scene.certificates_of("calm").await?;
    scene
        .until("nothing kept of lists", async || Ok(evidence::kept_of_lists(&scene).await?.is_empty()))
        .await?;
    let read = lists(&scene, since, between);
    let needed = lists(&scene, between, u64::MAX);
    let mut most = 0;
    let (mut again, mut in_flight) = (0, 0);
    for (list, needed) in &needed {
        let read = &read[list];
        // It was being read at a kill if pages of it were requested before and after.
        let open = killed_at.iter().filter(|at| is_open(read, **at)).count();
        let more = read.len().saturating_sub(needed.len());
        (again, in_flight) = (again + more, in_flight + open);
        most = most.max(more.saturating_sub(open));
    }
    let (payroll, payroll_needed) = (payroll(&scene, since, between), payroll(&scene, between, u64::MAX));
    let payroll_open = killed_at.iter().filter(|at| is_open(&payroll, **at)).count();
    let payroll_again = payroll.len().saturating_sub(payroll_needed.len());
    scene.quiesce().await?;
    let seen = scene.evidence().await?;
    let verdict = check(&seen);
    let published =
        seen.published() + evidence::read(&scene, &scene.topic(Topic::PayrollCompanies)).await?.len();

    println!(
        "lists, killed: {companies} companies, {kills} kills, {} lists ended in {took:.0?}; {} pages, {in_flight} lists were being \
         read at a kill and {again} pages were read again; payroll at {payroll_open} kills, {payroll_again} pages; {verdict}",
        disturbed.len(),
        read.values().map(Vec::len).sum::<usize>(),
    );
    verdict.assert_sound();
    let last = seen.last();
    for place in scene.living() {
        assert!(last.contains_key(&scene.name(place)), "{place:?} is not there");
    }
    assert_eq!(disturbed.len(), 2 * companies as usize + 2 * PARTITIONS as usize);
    assert_eq!(verdicts(&disturbed), verdicts(&undisturbed));
    assert!(disturbed.values().all(|one| one.certified && one.method != CertificateMethod::None));
    assert_eq!(sum(&progress, "lists"), disturbed.len() as u64, "{progress:#?}");
    assert_eq!(
        (sum(&progress, "ended"), sum(&progress, "certified")),
        (sum(&progress, "lists"), sum(&progress, "lists"))
    );
    // Every published record is counted once.
    let counted: i64 = disturbed.values().map(|one| one.records.published).sum();
    assert_eq!((sum(&progress, "published"), counted), (published as u64, published as i64));
    assert_eq!(sum(&calm, "published"), 0);
    assert!(in_flight > 0, "no list was being read at a kill");
    assert_eq!(most, 0, "more than one page was read again");
    assert!(payroll_open > 0, "payroll was not being read at a kill");
    let shards = PARTITIONS as usize;
    assert!(payroll_again <= shards * payroll_open, "{payroll_again} pages of payroll were read again");
    Ok(())
}

/// Whether pages of a list were requested before and after this number in the journal.
fn is_open(pages: &[u64], at: u64) -> bool {
    pages.iter().any(|page| *page < at) && pages.iter().any(|page| *page > at)
}

/// Numbers of the requests for pages of payroll, between two numbers in the journal.
fn payroll(scene: &EnrichScene, from: u64, to: u64) -> Vec<u64> {
    let all = scene.provider().gateway.requests(from, usize::MAX).into_iter();
    let is_page = |(number, request): &(u64, Request)| *number < to && request.target.starts_with("/payroll");
    let mut read = Vec::new();
    all.filter(is_page).for_each(|(number, request)| note(&mut read, number, &request));
    read
}

/// Notes a request for a page. A worker that has just started probes the number of the first page: it requests page 1, then page 0.
fn note(read: &mut Vec<u64>, number: u64, request: &Request) {
    if request.target.contains("pageNumber=0&") {
        read.pop();
    } else {
        read.push(number);
    }
}

/// Waits until `pages` pages were requested.
async fn until_read(scene: &EnrichScene, since: u64, pages: u64) -> Result<()> {
    let began = Instant::now();
    while scene.provider().gateway.request_count() < since + pages {
        if lost::fair(began) > LIMIT {
            return Err(scene.stage.error("pages are not read any more"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Numbers of the requests for pages of each company's lists, between two numbers in the journal.
fn lists(scene: &EnrichScene, from: u64, to: u64) -> BTreeMap<(List, String), Vec<u64>> {
    let mut found: BTreeMap<(List, String), Vec<u64>> = BTreeMap::new();
    for list in [List::Customers, List::Accounts] {
        for (number, request) in scene.pages(list, from).into_iter().filter(|(number, _)| *number < to) {
            let company = request.company.clone().unwrap_or_default();
            note(found.entry((list, company)).or_default(), number, &request);
        }
    }
    found
}

type Proved = (CertificateMethod, bool, [Option<i64>; 3], i32, [i64; 2]);

/// The verdict and the counts of each certificate.
fn verdicts(certificates: &BTreeMap<String, Certificate>) -> BTreeMap<&String, Proved> {
    let proved = |one: &Certificate| {
        let counted = [one.counts.listed, one.counts.distinct, one.counts.missing_at_most];
        (one.method, one.certified, counted, one.reading.passes, [one.reading.pages, one.reading.rows])
    };
    certificates.iter().map(|(key, one)| (key, proved(one))).collect()
}
