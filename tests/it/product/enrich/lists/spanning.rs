//! Lists that span companies are read once by each task, for all its shards: calmly, through crashes between the steps of a page, and
//! while the number of tasks changes.

use std::collections::BTreeMap;

use model::{Certificate, CertificateMethod, List, RunKind, Topic};
use simulator::{
    catalog::Kind,
    knobs::{Effect, FaultTarget, HttpStatus, Latency},
};
use tributary::avro::embedded::EmbeddedRegistry;

use super::super::evidence;
use super::super::input::limit;
use super::super::scene::{EnrichScene, Options, PARTITIONS, RECORDS};
use super::{payroll, sum};
use crate::support::stage::Backend;
use crate::support::{Error, Result, Shared, breakable};

crate::tests! {
    real lists_of_all_companies_are_read_once_by_a_task within 240;
    real crash_at_any_step_certifies_what_a_calm_run_certifies within 600;
    disturbing refused_rows_of_all_shards_are_counted_before_their_page_is_marked within 300;
    real lists_under_way_survive_another_number_of_tasks within 300;
}

const COMPANIES: u32 = 40;
const PAYROLL: u32 = 90;
const PAGE: &str = "5";
const LISTS: [List; 2] = [List::Companies, List::Payroll];

/// Where a worker dies: a page is on its way to the followers, they report it, it is marked; the first and the third shard have ended
/// the list.
const PLACES: [&str; 5] = [
    "lists.payroll.relayed:3",
    "lists.payroll.reported:9",
    "lists.payroll.marked:2",
    "lists.payroll.ended:1",
    "lists.companies.ended:3",
];

async fn scene(backend: impl Into<Backend>, name: &str, tasks: &str) -> Result<EnrichScene> {
    let settings: Vec<(&str, &str)> = settings(tasks).to_vec();
    let options = Options {
        properties: &[("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300")],
        settings: settings.leak(),
        ..Options::default()
    };
    let scene = EnrichScene::start(backend.into(), name, options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.others) = (COMPANIES, 1, 0);
        settings.world.payroll_companies = PAYROLL;
        // Lists are under way when something happens.
        settings.knobs.gateway.latency = Latency::Fixed { milliseconds: 10.0 };
    })
    .await?;
    scene.stage.login_for("payroll", RECORDS).await?;
    Ok(scene)
}

fn settings(tasks: &str) -> [(&str, &str); 3] {
    [("snapshot.lists", "companies,payroll"), ("page.size", PAGE), ("tasks.max", tasks)]
}

async fn lists_of_all_companies_are_read_once_by_a_task(shared: &'static Shared) -> Result<()> {
    for tasks in ["1", "2"] {
        let scene = scene(shared, &format!("lists-once-{tasks}"), tasks).await?;
        let since = scene.provider().gateway.request_count();

        let progress = scene.run("once", RunKind::Snapshot, &LISTS).await?;

        let pages = payroll_pages(&scene, since);
        // A worker first finds out how pages are numbered. That ends with requests for page 0.
        let read = pages.rsplit(|number| *number == 0).next().unwrap_or_default().len() as u64;
        let certificates = scene.certificates_of("once").await?;
        let tasks: u64 = tasks.parse().unwrap();
        let needed = certificates
            .values()
            .filter(|one| one.scope.list == "payroll")
            .map(|one| one.reading.pages)
            .max();
        println!("lists, spanning: {tasks} tasks, {read} pages of payroll, {needed:?} needed by a reading");
        assert_certified(&certificates);
        assert_eq!(read, tasks * needed.unwrap() as u64, "each task has read the list once");
        assert_eq!(sum(&progress, "published"), u64::from(COMPANIES + PAYROLL), "{progress:#?}");
        // In each task the first shard counts pages.
        let leaders = progress.iter().filter(|one| one["pages"].as_u64() > Some(0)).count();
        assert_eq!(leaders as u64, tasks, "{progress:#?}");
    }
    Ok(())
}

/// Each crash is in the middle of a run; nothing is published twice, and everything is certified.
async fn crash_at_any_step_certifies_what_a_calm_run_certifies(shared: &'static Shared) -> Result<()> {
    let mut scene = scene(shared, "lists-spanning-crash", "1").await?;
    let mut before = 0;
    for (number, place) in PLACES.into_iter().enumerate() {
        let run = format!("crash-{number}");
        scene.stage.workers[0].kill();
        // Every row of payroll has to be published again.
        change_payroll(&scene);
        scene.ask_for(&run, RunKind::Snapshot, &LISTS).await?;
        scene.stage.workers[0].start_again_to_die(place).await?;
        scene.stage.workers[0].dead().await?;
        scene.stage.workers[0].start_again().await?;
        scene.stage.reach(0)?;

        let progress = scene.until_over(&run).await?;

        let certificates = scene.certificates_of(&run).await?;
        let counted: i64 = certificates.values().map(|one| one.records.published).sum();
        let all = published(&scene).await?;
        println!("lists, spanning: died at {place}; {counted} published");
        assert_certified(&certificates);
        assert_eq!(all - before, PAYROLL as usize, "{place}: each record once: {progress:#?}");
        assert_eq!(sum(&progress, "published"), counted as u64, "{place}: {progress:#?}");
        before = all;
    }
    scene.until("nothing kept of lists", async || Ok(evidence::kept_of_lists(&scene).await?.is_empty())).await
}

/// Kafka refuses every row, in the leader and in its followers, and the worker dies before one of them has written how many. Without the
/// count the list would look complete.
async fn refused_rows_of_all_shards_are_counted_before_their_page_is_marked() -> Result<()> {
    let broker = breakable::take().await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let backend = Backend { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    let mut scene = scene(backend, "lists-spanning-refused", "1").await?;
    let topic = scene.topic(Topic::PayrollCompanies);
    for (number, times) in ["", ":2", ":4"].into_iter().enumerate() {
        let run = format!("refused-{number}");
        change_payroll(&scene);
        // Nothing can be read of the list until the worker that will die is there.
        scene.spoil([(Effect::Html { status: HttpStatus::OK }, payroll_target())]);
        scene.ask_for(&run, RunKind::Snapshot, &[List::Payroll]).await?;
        scene.stage.workers[0].kill();
        let since = scene.provider().gateway.request_count();
        scene.stage.workers[0].start_again_to_die(&format!("lists.refused{times}")).await?;
        scene.stage.reach(0)?;
        // A task checks its topics when it starts, so the limit comes after that. Smaller than any record with its headers.
        scene.until("pages asked for", async || Ok(!payroll_pages(&scene, since).is_empty())).await?;
        limit(&scene, &topic, Some("150")).await?;
        scene.calm();
        scene.stage.workers[0].dead().await?;
        limit(&scene, &topic, None).await?;
        scene.stage.workers[0].start_again().await?;
        scene.stage.reach(0)?;

        let progress = scene.until_over(&run).await?;

        // Each change has another time.
        let is_whole = payroll::last(&payroll::published(&scene).await?) == payroll::truth(&scene);
        let certified = sum(&progress, "certified");
        println!("lists, spanning: rows refused{times}: {certified} certified, complete: {is_whole}");
        assert_eq!(sum(&progress, "ended"), PARTITIONS as u64, "{progress:#?}");
        assert!(certified == 0 || is_whole, "certified without its records: {progress:#?}");
    }
    Ok(())
}

async fn lists_under_way_survive_another_number_of_tasks(shared: &'static Shared) -> Result<()> {
    let scene = scene(shared, "lists-resized", "4").await?;
    let since = scene.provider().gateway.request_count();
    scene.ask_for("resized", RunKind::Snapshot, &LISTS).await?;
    let mut enough = 12;
    for tasks in ["2", "3"] {
        scene.until("payroll under way", async || Ok(payroll_pages(&scene, since).len() >= enough)).await?;
        scene.stage.configure(RECORDS, &scene.fetching(&settings(tasks))).await?;
        enough = payroll_pages(&scene, since).len() + 12;
    }
    let progress = scene.until_over("resized").await?;

    let certificates = scene.certificates_of("resized").await?;
    println!(
        "lists, spanning: {} pages of payroll with 4, 2 and 3 tasks",
        payroll_pages(&scene, since).len()
    );
    assert_certified(&certificates);
    assert_eq!(published(&scene).await?, PAYROLL as usize, "each record once");
    assert_eq!(sum(&progress, "published"), u64::from(COMPANIES + PAYROLL), "{progress:#?}");
    scene.until("nothing kept of lists", async || Ok(evidence::kept_of_lists(&scene).await?.is_empty())).await
}

/// Every shard has certified both lists.
fn assert_certified(certificates: &BTreeMap<String, Certificate>) {
    assert_eq!(certificates.len(), LISTS.len() * PARTITIONS as usize, "{certificates:#?}");
    let is_certified = |one: &Certificate| one.certified && one.method != CertificateMethod::None;
    assert!(certificates.values().all(is_certified), "{certificates:#?}");
}

/// Changes every record of payroll.
fn change_payroll(scene: &EnrichScene) {
    scene.provider().change(|world, clock| {
        for index in 0..PAYROLL {
            assert!(world.act_payroll(Some(index), Kind::Updated, clock).is_some());
        }
        ((), Vec::new())
    });
}

/// All requests for payroll.
fn payroll_target() -> FaultTarget {
    let path = Some("payroll/api/companies".to_owned());
    FaultTarget { method: Some("GET".to_owned()), path, ..FaultTarget::default() }
}

/// Number of published records of payroll.
async fn published(scene: &EnrichScene) -> Result<usize> {
    Ok(evidence::read(scene, &scene.topic(Topic::PayrollCompanies)).await?.len())
}

/// Numbers of the pages of payroll that were requested since a number in the provider's journal.
fn payroll_pages(scene: &EnrichScene, since: u64) -> Vec<u32> {
    let requests = scene.provider().gateway.requests(since, usize::MAX).into_iter();
    let payroll = requests.map(|(_, request)| request.target).filter(|target| target.starts_with("/payroll"));
    let number = |target: String| {
        let (_, rest) = target.split_once("pageNumber=")?;
        rest.split('&').next()?.parse().ok()
    };
    payroll.filter_map(number).collect()
}
