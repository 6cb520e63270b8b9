//! Malformed lists: each run ends, and its certificate says why it proves nothing.

use model::{CertificateMethod, List, RunKind};
use serde_json::Value;
use simulator::{
    catalog::Resource,
    knobs::{Effect, FaultTarget, HttpStatus},
};

use super::super::checker::check;
use super::super::scene::{EnrichScene, Options, RECORDS};
use super::sum;
use crate::support::{Result, Shared};

crate::tests! {
    real a_malformed_list_ends_with_the_reason_and_blocks_no_other within 240;
}

/// Four passes of three pages and the page after them, one of each pass tried eight times; twice that where smaller pages locate the
/// bad row.
const MOST_PAGES: usize = 2 * 4 * (4 + 8);

async fn a_malformed_list_ends_with_the_reason_and_blocks_no_other(shared: &'static Shared) -> Result<()> {
    let html = Effect::Html { status: HttpStatus::OK };
    let broken = Effect::Status(HttpStatus::SERVER_ERROR);
    // The fault in the customers of each company, and the start of the reason in its certificate.
    let odd = [
        (Effect::Wrapped, None, "page 1: "),
        (Effect::WithoutIds, None, "page 1: row 1 of page 1 has no id"),
        (Effect::FirstPage, None, "page 2: it repeats the page before it"),
        (Effect::WrongTotal { surplus: 3 }, None, "page 3: the provider counts 15 rows, its pages have 12"),
        (Effect::InvalidJson, None, "page 1: "),
        (Effect::WrongTypes, None, "page 1: "),
        (broken, Some(2), "page 2: "),
        (html, Some(2), "page 2: "),
    ];
    let options = Options {
        resources: &[Resource::Customers],
        settings: &[("snapshot.lists", "companies,customers"), ("page.size", "5")],
        ..Options::default()
    };
    let healthy = odd.len() as u32;
    let scene = EnrichScene::start(shared.into(), "lists-odd", options, |settings| {
        (settings.world.companies, settings.world.customers, settings.world.accounts) = (healthy + 1, 12, 0);
        settings.knobs.reads.accounting_pagination = true;
    })
    .await?;

    let faults = (0..healthy).zip(&odd).map(|(company, (effect, page, _))| {
        (effect.clone(), FaultTarget { page: *page, ..scene.list_of(company, List::Customers) })
    });
    scene.spoil(faults);
    let since = scene.provider().gateway.request_count();
    let progress = scene.run("odd", RunKind::Snapshot, &[List::Customers]).await?;

    assert_eq!(
        (sum(&progress, "ended"), sum(&progress, "certified")),
        (healthy as u64 + 1, 1),
        "{progress:#?}"
    );
    for (company, (effect, _, begins)) in (0..healthy).zip(&odd) {
        let certificate = scene.certificate(company, List::Customers).await?;
        let (pages, why) =
            (scene.pages_of(company, List::Customers, since).len(), certificate.reason.unwrap_or_default());
        println!("lists, odd: {effect:?}: {pages} pages, {why}");
        assert!(!certificate.certified && why.starts_with(begins), "{effect:?}: {why}");
        assert!(pages <= MOST_PAGES, "{effect:?}: {pages} pages");
    }
    let (_, answer) =
        scene.stage.ask(0, "GET", &format!("/connectors/{RECORDS}/certificates?run=odd"), None).await?;
    let named = |one: &&Value| one["anomalies"].as_array().is_some_and(|all| !all.is_empty());
    let odd_ones = answer["certificates"].as_array().into_iter().flatten().filter(named);
    assert_eq!(odd_ones.count(), odd.len(), "each names its anomaly: {answer:#}");
    let certificate = scene.certificate(healthy, List::Customers).await?;
    assert_eq!((certificate.method, certificate.counts.listed), (CertificateMethod::Counting, Some(12)));

    // Pages are smaller than requested, without notice.
    scene.calm();
    scene.provider().turn(|knobs| knobs.reads.max_page_size = 3);
    let since = scene.provider().gateway.request_count();
    let clamped = scene.run("clamped", RunKind::Snapshot, &[List::Customers]).await?;
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    assert_eq!(sum(&clamped, "certified"), sum(&clamped, "lists"), "{clamped:#?}");
    for company in 0..=healthy {
        let certificate = scene.certificate(company, List::Customers).await?;
        assert_eq!(
            (certificate.reading.page_size, certificate.counts.listed),
            (3, Some(12)),
            "{certificate:?}"
        );
        let pages = scene.pages_of(company, List::Customers, since).len();
        assert!(pages <= 5 + 2 * 6, "{pages} pages");
    }
    let last = evidence.last();
    for place in scene.living() {
        assert!(last.contains_key(&scene.name(place)), "{place:?} is not there");
    }
    check(&evidence).assert_sound();
    Ok(())
}
