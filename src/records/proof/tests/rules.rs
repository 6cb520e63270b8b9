//! Each rule of a reading, with small lists.

use std::sync::Arc;

use super::*;

fn row(id: u128) -> Row {
    Row { id, version: 1, changed_at: Some(1) }
}

/// The wanted page, with these rows.
fn wanted(reading: &Reading, rows: Vec<Row>) -> Seen {
    let ReadingStep::Page { number, size, sent_after, .. } = reading.want() else {
        panic!("nothing is wanted")
    };
    let sent = sent_after.max(1_000 * SECOND) + 1;
    let content = rows.iter().fold(u128::from(number), |hash, row| hash.wrapping_mul(31) ^ row.id);
    let empty = Seen::unreadable(number, size, "", sent);
    let answer = PageAnswer { sent, answered: sent + 10, ..PageAnswer::default() };
    Seen { rows: rows.into(), problem: None, content, answer, ..empty }
}

fn rows(from: u128, to: u128) -> Vec<Row> {
    (from..=to).map(row).collect()
}

fn number_and_size(reading: &Reading) -> (u32, u32) {
    let ReadingStep::Page { number, size, .. } = reading.want() else { return (0, 0) };
    (number, size)
}

/// Shows pages with these rows, each as the wanted page.
fn show(reading: &mut Reading, pages: &[Vec<Row>]) {
    for rows in pages {
        let seen = wanted(reading, rows.clone());
        reading.look(&seen).unwrap();
    }
}

fn reason(reading: &Reading) -> &str {
    let Some(ProofVerdict::Unproved(reason, _)) = &reading.verdict else { panic!("{:?}", reading.verdict) };
    reason
}

/// As an earlier version kept that a reading was over.
/// A page with another answer.
fn answered(page: &Seen, change: impl FnOnce(&mut PageAnswer)) -> Seen {
    let mut page = page.clone();
    change(&mut page.answer);
    page
}

fn ended(at: i64) -> Seen {
    Seen { ends: true, ..Seen::unreadable(0, 0, "the provider went back", at) }
}

#[test]
fn short_first_page_is_the_list_if_the_next_page_is_empty() {
    let mut reading = Reading::new(settings(10, 4));
    show(&mut reading, &[rows(1, 3)]);
    assert_eq!(number_and_size(&reading), (2, 3));
    let mut wide = reading.clone();
    let behind = Seen { widest: 4, ..wanted(&wide, vec![]) };
    wide.look(&behind).unwrap();
    show(&mut reading, &[vec![]]);
    assert_eq!(number_and_size(&reading), (1, 10), "the provider may limit pages to three rows");
    show(&mut reading, &[rows(1, 3)]);

    for (reading, pages, rows) in [(&reading, 3, 6), (&wide, 2, 3)] {
        let verdict = reading.verdict().unwrap();
        assert_eq!(
            (verdict.certified, verdict.method, verdict.counts.listed),
            (true, CertificateMethod::Single, Some(3))
        );
        assert_eq!((verdict.reading.passes, verdict.reading.pages, verdict.reading.rows), (1, pages, rows));
        assert_eq!(reading.want(), ReadingStep::Over);
    }
}

#[test]
fn short_page_that_changed_during_the_check_proves_nothing() {
    // The provider limits pages to two rows. The list has four, and loses the first two.
    let mut reading = Reading::new(settings(10, 1));
    show(&mut reading, &[rows(1, 2), vec![], rows(3, 4)]);

    assert!(!reading.verdict().unwrap().certified);
}

#[test]
fn changed_number_of_the_first_page_voids_the_pass() {
    let mut reading = Reading::new(settings(2, 1));
    let first = Seen { base: Some(0), ..wanted(&reading, rows(1, 2)) };
    reading.look(&first).unwrap();
    let second = Seen { base: Some(1), ..wanted(&reading, rows(3, 4)) };
    reading.look(&second).unwrap();

    let verdict = reading.verdict().unwrap();
    assert_eq!((verdict.certified, verdict.reading.page_base), (false, Some(0)));
    assert!(reason(&reading).contains("the first page has the number 1"), "{}", reason(&reading));
}

#[test]
fn end_after_the_verdict_changes_nothing() {
    let mut reading = Reading::new(settings(10, 4));
    let first = wanted(&reading, rows(1, 3));
    reading.look(&first).unwrap();
    let second = Seen { widest: 4, ..wanted(&reading, vec![]) };
    reading.look(&second).unwrap();
    let end = ended(second.answer.answered);

    let restored = Reading::restore(settings(10, 4), [first, second, end]).unwrap();

    assert!(reading.verdict().unwrap().certified);
    assert_eq!(restored.verdict(), reading.verdict());
}

#[test]
fn reading_ended_from_outside_stays_ended_when_restored() {
    let mut reading = Reading::new(settings(2, 4));
    let first = wanted(&reading, rows(1, 2));
    reading.look(&first).unwrap();
    let end = ended(first.answer.answered);
    reading.look(&end).unwrap();

    for reading in [&reading, &Reading::restore(settings(2, 4), [first, end]).unwrap()] {
        assert_eq!((reading.want(), reason(reading)), (ReadingStep::Over, "the provider went back"));
        assert!(!reading.verdict().unwrap().certified);
    }
}

#[test]
fn empty_list_is_read_twice() {
    let mut reading = Reading::new(settings(10, 4));
    show(&mut reading, &[vec![]]);
    assert_eq!(number_and_size(&reading), (1, 10));

    let mut filled = reading.clone();
    show(&mut filled, &[rows(1, 2)]);
    assert_eq!(number_and_size(&filled), (2, 2));
    show(&mut filled, &[vec![], rows(1, 2)]);
    assert_eq!(filled.verdict().unwrap().counts.listed, Some(2));

    show(&mut reading, &[vec![]]);
    let verdict = reading.verdict().unwrap();
    assert_eq!(
        (verdict.certified, verdict.method, verdict.counts.listed),
        (true, CertificateMethod::Single, Some(0))
    );
}

#[test]
fn clamped_page_size_restarts_the_list_with_that_size() {
    let mut reading = Reading::new(settings(10, 2));
    show(&mut reading, &[rows(1, 4), rows(5, 6)]);
    assert_eq!(number_and_size(&reading), (1, 10), "seen once, not believed");
    show(&mut reading, &[rows(1, 4), rows(5, 6)]);
    assert_eq!(number_and_size(&reading), (1, 4));
    show(&mut reading, &[rows(1, 4), rows(5, 6), vec![]]);
    assert_eq!(number_and_size(&reading), (1, 10), "each pass requests full pages first");
    show(&mut reading, &[rows(1, 4)]);

    let verdict = reading.verdict().unwrap();
    assert_eq!((verdict.certified, verdict.counts.listed), (true, Some(6)));
    assert_eq!(verdict.reading.passes, 3, "the pass that detected the limit is extra");
}

#[test]
fn row_added_between_two_pages_sets_no_page_size() {
    let mut reading = Reading::new(settings(100, 4));
    show(&mut reading, &[rows(1, 1), rows(2, 2)]);
    assert_eq!(number_and_size(&reading), (1, 100));
    show(&mut reading, &[rows(1, 100), rows(101, 150), vec![], rows(1, 100)]);

    let verdict = reading.verdict().unwrap();
    assert_eq!((verdict.certified, verdict.counts.listed, verdict.reading.page_size), (true, Some(150), 100));
}

#[test]
fn provider_that_always_returns_fewer_rows_is_given_up() {
    let mut reading = Reading::new(settings(1_000, 2));
    let mut pages = 0;
    while let ReadingStep::Page { number, size, .. } = reading.want() {
        let given = u128::from(size / 2);
        show(&mut reading, &[rows(u128::from(number) * 1_000, u128::from(number) * 1_000 + given - 1)]);
        pages += 1;
    }
    assert!(pages <= 4 * (2 + MOST_RESTARTS), "{pages}");
    assert!(reason(&reading).contains("the provider returns"), "{}", reason(&reading));
}

#[test]
fn short_page_with_rows_behind_it_is_read_again() {
    let mut reading = Reading::new(settings(2, 4));
    show(&mut reading, &[rows(1, 2), rows(3, 3), rows(5, 5)]);
    assert_eq!(number_and_size(&reading), (2, 2));

    let mut full = reading.clone();
    show(&mut full, &[rows(3, 4)]);
    assert_eq!(number_and_size(&full), (4, 2));
    show(&mut full, &[vec![]]);
    let (pass, .., listed) = full.progress();
    assert_eq!((pass, listed), (2, Some(5)), "the last reading of the page counts");

    show(&mut reading, &[rows(3, 3)]);
    assert_eq!(reading.progress(), (2, 0, 0, None), "short again voids the pass");
}

#[test]
fn rows_shown_after_the_cut_do_not_count_as_read() {
    let mut reading = Reading::new(settings(2, 4));
    show(&mut reading, &[rows(1, 2), rows(3, 3), rows(5, 5), rows(3, 4), vec![]]);

    // Record 4 is old, and was shown after the cut, which is the cut of page 3.
    assert_eq!(reading.counts[0].numbers(), (4, 2, 1));
    assert_eq!(reading.counts[0].missing(), Some(2));
}

#[test]
fn each_cause_of_a_void_pass_is_reported() {
    let mut reading = Reading::new(settings(2, 1));
    let first = wanted(&reading, rows(1, 2));
    reading.look(&first).unwrap();
    let second = wanted(&reading, rows(3, 4));
    let voids: [(Seen, &str); 7] = [
        (
            answered(&second, |answer| answer.answered = answer.sent - 1),
            "page 2: our clock went backward while it was read",
        ),
        (Seen { problem: Some("row 2 has no id".into()), ..second.clone() }, "page 2: row 2 has no id"),
        (answered(&second, |answer| answer.cached = true), "page 2: a cache answered it"),
        (Seen { rows: rows(3, 5).into(), ..second.clone() }, "page 2: it has 3 rows, but 2 were requested"),
        (
            Seen { rows: vec![row(3), row(3)].into(), ..second.clone() },
            "page 2: row 2 has the id of an earlier one",
        ),
        (
            Seen { rows: Arc::clone(&first.rows), content: first.content, ..second.clone() },
            "page 2: it repeats the page before it",
        ),
        (Seen::unreadable(2, 2, "500 for an hour", second.answer.sent), "page 2: 500 for an hour"),
    ];
    for (seen, expected) in voids {
        let mut reading = reading.clone();
        reading.look(&seen).unwrap();

        assert_eq!(reason(&reading), expected);
        let verdict = reading.verdict().unwrap();
        assert_eq!(
            (verdict.certified, verdict.method, verdict.counts.failed_page),
            (false, CertificateMethod::None, Some(2))
        );
    }
}

#[test]
fn total_that_contradicts_the_pages_voids_the_pass() {
    for (total, last, good) in [
        (Some(3), rows(3, 3), true),
        (Some(4), rows(3, 3), false),
        (Some(2), rows(3, 3), false),
        (Some(2), vec![], true),
        (Some(1), vec![], true),
        (Some(3), vec![], false),
        (None, vec![], true),
    ] {
        let mut reading = Reading::new(settings(2, 1));
        // Totals of other pages are from other moments and do not matter.
        let first = Seen { total: Some(77), ..wanted(&reading, rows(1, 2)) };
        reading.look(&first).unwrap();
        let seen = Seen { total, ..wanted(&reading, last) };
        reading.look(&seen).unwrap();
        show(&mut reading, &[vec![]]);

        assert_eq!(reading.counts.len(), usize::from(good), "{total:?}");
        assert_eq!(reason(&reading).contains("counts"), !good, "{}", reason(&reading));
    }
}

#[test]
fn unwanted_or_early_page_changes_nothing() {
    let mut reading = Reading::new(settings(2, 4));
    let first = wanted(&reading, rows(1, 2));
    reading.look(&first).unwrap();
    let second = wanted(&reading, rows(3, 4));
    let before = reading.progress();

    let early = answered(&second, |answer| answer.sent = first.answer.answered - 1);
    assert!(reading.look(&early).unwrap_err().starts_with("page 2 was sent too early"));
    let other = Seen { number: 3, ..second.clone() };
    assert_eq!(reading.look(&other).unwrap_err(), "expected page 2 of size 2, got page 3 of size 2");
    assert_eq!(reading.progress(), before);
    assert!(!reading.has_shown(3));

    reading.look(&second).unwrap();
    reading.end("stopped");
    assert_eq!(reading.look(&second), Err("the list already has its verdict".to_owned()));
    assert_eq!(reason(&reading), "stopped");
    assert!(Reading::restore(settings(2, 4), [second]).unwrap_err().starts_with("mark 1"));
}

#[test]
fn next_pass_begins_after_the_last_page_of_the_previous_one() {
    let mut reading = Reading::new(settings(2, 4));
    show(&mut reading, &[rows(1, 2), rows(3, 3)]);
    let last = wanted(&reading, vec![]);
    reading.look(&last).unwrap();

    let ReadingStep::Page { number, sent_after, .. } = reading.want() else { panic!() };
    assert_eq!((number, sent_after), (1, last.answer.answered));
}

#[test]
fn reading_grows_only_during_its_first_pass() {
    let (mut long, mut short) = (Reading::new(settings(2, 4)), Reading::new(settings(10, 4)));
    assert!(long.grows() && short.grows());

    show(&mut short, &[rows(1, 3)]);
    assert!(!short.grows(), "the next page only checks whether rows follow");
    show(&mut long, &[rows(1, 2), rows(3, 3)]);
    assert!(long.grows());
    show(&mut long, &[vec![]]);
    assert!(!long.grows(), "the next pass reads known records");
}

#[test]
fn record_not_shown_since_the_cut_keeps_the_proof_open() {
    let mut reading = Reading::new(settings(2, 4));
    show(&mut reading, &[rows(1, 2), rows(3, 3), vec![], rows(2, 3)]);
    let cut = reading.counts[0].cut;
    assert_eq!(reading.verdict(), None);

    show(&mut reading, &[rows(1, 1)]);
    let verdict = reading.verdict().unwrap();
    assert_eq!((verdict.certified, verdict.counts.gone, verdict.counts.found), (true, Some(0), Some(0)));
    assert_eq!((verdict.counts.cut_after, verdict.counts.cut_before), (Some(cut.0), Some(cut.1)));
}

#[test]
fn found_needs_a_version_older_than_the_cut() {
    let hour = 3_600 * SECOND;
    // The provider's clock is an hour ahead: known with `Date`; without it, the skew must cover it.
    for (date, changed_at, found) in [
        (Some(hour), 1_000 * SECOND + hour - 10 * SECOND, 1),
        (Some(hour), 1_000 * SECOND + hour, 0),
        (None, 1_000 * SECOND - 306 * SECOND, 1),
        // Within the skew of 300 s and the margin of 5 s.
        (None, 1_000 * SECOND - 304 * SECOND, 0),
    ] {
        let mut reading = Reading::new(settings(2, 4));
        show(&mut reading, &[rows(1, 2)]);
        let cut = wanted(&reading, rows(3, 3));
        let date = date.map(|ahead| (cut.answer.sent + ahead) / SECOND * SECOND);
        reading.look(&answered(&cut, |answer| answer.date = date)).unwrap();
        show(&mut reading, &[vec![], vec![row(1), Row { changed_at: Some(changed_at), ..row(9) }]]);

        assert_eq!(reading.counts[0].numbers().2, found, "{date:?} {changed_at}");
    }
}

#[test]
fn more_records_than_places_prove_nothing() {
    let mut reading = Reading::new(settings(2, 2));
    show(&mut reading, &[rows(1, 2), rows(3, 4), rows(5, 5), vec![]]);
    let new = Row { changed_at: None, ..row(7) };
    // One hole is left, and two records fill it.
    show(&mut reading, &[vec![row(1), new], rows(2, 3)]);
    assert_eq!(reading.counts[0].missing(), Some(1));
    show(&mut reading, &[rows(8, 9)]);

    assert_eq!(reading.counts[0].missing(), None);
    assert_eq!(reading.verdict(), None);
    show(&mut reading, &[vec![], vec![]]);
    let verdict = reading.verdict().unwrap();
    assert!(!verdict.certified && verdict.counts.missing_at_most > Some(0), "{verdict:?}");
}

/// A reading of rows that changed after time 5, with two rows per page.
fn changed() -> Reading {
    Reading::new(Settings { filter: Some(Filter::Changed { after: 5, margin: 2 }), ..settings(2, 2) })
}

fn at(id: u128, changed_at: i64) -> Row {
    Row { changed_at: Some(changed_at), ..row(id) }
}

fn is_filtered(reading: &Reading) -> bool {
    matches!(reading.want(), ReadingStep::Page { filtered: true, .. })
}

#[test]
fn filter_that_passes_the_check_is_used_but_not_certified() {
    let mut reading = changed();
    assert!(!is_filtered(&reading), "page 1 is read without the filter first");
    show(&mut reading, &[vec![at(1, 9), at(2, 1)]]);
    assert!(is_filtered(&reading));
    let filtered = vec![at(1, 9), at(3, 9)];
    for rows in [filtered.clone(), vec![], vec![], filtered.clone(), vec![], vec![]] {
        if reading.verdict().is_none() {
            show(&mut reading, &[rows]);
        }
    }

    let verdict = reading.verdict().unwrap();
    assert!(
        !verdict.certified && reading.is_filtered() && reading.is_of_changes(),
        "the filter may omit rows"
    );
    assert!(verdict.reason.as_ref().is_some_and(|why| why.contains("incremental")), "{verdict:?}");
    assert_eq!((verdict.reading.anomalies.len(), verdict.counts.missing_at_most), (0, None));
}

#[test]
fn filter_that_cannot_be_checked_is_not_used() {
    for plain in [vec![at(1, 4), at(2, 1)], vec![at(1, 9), Row { changed_at: None, ..row(2) }]] {
        let mut reading = changed();
        show(&mut reading, &[plain]);

        assert!(!is_filtered(&reading));
        assert_eq!(number_and_size(&reading), (2, 2));
    }
}

#[test]
fn filter_that_fails_the_check_leads_to_the_whole_list() {
    let plain = vec![at(1, 9), at(2, 1)];
    for (filtered, why) in [
        (vec![vec![], vec![]], "the filter returns no rows"),
        (vec![vec![at(1, 9)], vec![], vec![at(1, 9)]], "only rows of page 1"),
        (vec![vec![at(3, 2)], vec![], vec![at(3, 2)]], "changed earlier"),
        (vec![vec![at(3, 9)], vec![], vec![at(3, 9)]], "omits 1 rows"),
    ] {
        let mut reading = changed();
        show(&mut reading, std::slice::from_ref(&plain));
        show(&mut reading, &filtered);

        assert!(!is_filtered(&reading) && reading.verdict().is_none(), "{why}");
        assert_eq!(number_and_size(&reading), (1, 2));
        for rows in [plain.clone(), vec![at(3, 9)], vec![], plain.clone(), vec![at(3, 9)]] {
            if reading.verdict().is_none() {
                show(&mut reading, &[rows]);
            }
        }
        let verdict = reading.verdict().unwrap();
        assert_eq!((verdict.certified, verdict.counts.listed, reading.is_filtered()), (true, Some(3), false));
        assert!(!reading.is_of_changes(), "the whole list was read");
        assert!(verdict.reading.anomalies[0].contains(why), "{:?}", verdict.reading.anomalies);
    }
}

#[test]
fn rejected_filter_leads_to_the_whole_list() {
    let mut reading = changed();
    show(&mut reading, &[vec![at(1, 9), at(2, 1)]]);
    let refused = Seen::unreadable(1, 2, "answered 400", i64::MAX - 1_000_000);
    reading.look(&refused).unwrap();

    assert!(!is_filtered(&reading) && reading.verdict().is_none());
}

#[test]
fn list_of_one_page_is_read_without_a_filter() {
    let mut reading = changed();
    show(&mut reading, &[rows(1, 1), vec![], rows(1, 1)]);

    let verdict = reading.verdict().unwrap();
    assert_eq!((verdict.certified, reading.is_filtered(), verdict.counts.listed), (true, false, Some(1)));
}

#[test]
fn empty_answer_to_a_configured_filter_proves_nothing() {
    for (row, certified) in [(None, false), (Some(row(1)), true)] {
        let rows: Vec<Row> = row.into_iter().collect();
        let mut reading = Reading::new(Settings { filter: Some(Filter::Configured), ..settings(2, 1) });
        assert!(is_filtered(&reading));
        show(&mut reading, &[rows.clone(), vec![]]);
        if certified {
            show(&mut reading, &[rows]);
        }

        assert_eq!(reading.verdict().unwrap().certified, certified);
        assert!(reading.is_filtered());
    }
}

/// Number of pages until the verdict.
fn length(mut reading: Reading, mut page: impl FnMut(u128, u32, u32) -> Vec<Row>) -> (u64, Reading) {
    let mut pages = 0;
    while let ReadingStep::Page { number, size, .. } = reading.want() {
        pages += 1;
        assert!(pages < 20_000, "it does not end");
        let rows = page(u128::from(pages), number, size);
        let mut seen = wanted(&reading, rows);
        // The content hash depends on the rows only, not on the page number.
        seen.content = seen.rows.iter().fold(7, |hash: u128, row| hash.wrapping_mul(31).wrapping_add(row.id));
        reading.look(&seen).unwrap();
    }
    (pages, reading)
}

#[test]
fn no_list_is_read_forever() {
    let bounded = |size: u32| {
        let mut reading = Reading::new(settings(size, 4));
        reading.paging.most_pages = 1_000;
        reading
    };

    let (pages, same) = length(bounded(2), |_, _, _| rows(1, 2));
    assert_eq!((pages, reason(&same)), (8, "page 2: it repeats the page before it"));

    // The provider ignores the size too.
    let (pages, _) = length(bounded(10), |_, _, _| rows(1, 5));
    assert!(pages <= 2 + 2 * (4 + u64::from(MOST_RESTARTS)), "{pages}");

    // The provider ignores page numbers, and the first page changes all the time.
    let (pages, ignored) = length(bounded(3), |turn, _, _| vec![row(turn % 2), row(2 + turn % 3), row(9)]);
    assert!(pages <= 4 * u64::from(MOST_FRUITLESS + 6), "{pages}");
    assert!(reason(&ignored).contains("no new record"), "{}", reason(&ignored));

    let (pages, growing) = length(bounded(3), |turn, _, _| rows(turn * 3, turn * 3 + 2));
    assert_eq!(pages, 1_001);
    assert_eq!(reason(&growing), "page 1001: it does not end within 1000 pages");

    // Every second page is short when it is first read.
    let (pages, _) = length(bounded(3), |turn, number, _| {
        rows(turn * 3, turn * 3 + if number % 2 == 0 && turn % 3 != 1 { 1 } else { 2 })
    });
    assert!(pages <= 4 * 2 * 1_000, "{pages}");

    let mut filtered = changed();
    filtered.paging.most_pages = 1_000;
    let (pages, _) = length(filtered, |turn, _, _| rows(turn * 2, turn * 2 + 1));
    assert!(pages <= 2_003, "{pages}");
}

#[test]
fn verdict_completes_a_certificate() {
    use model::{CertificateCounts, CertificateReading, CompanyId};

    let mut reading = Reading::new(settings(10, 4));
    let page = Seen { total: Some(3), base: Some(1), ..wanted(&reading, rows(1, 3)) };
    reading.look(&page).unwrap();
    let behind = Seen { widest: 4, ..wanted(&reading, vec![]) };
    reading.look(&behind).unwrap();
    let (run, company) = (RunId::new("run").unwrap(), CompanyId::new("c").unwrap());
    let open = Certificate::of_company("connector", run, "customers", company, 5);

    let certificate = reading.complete(open.clone()).unwrap();

    let expected = Certificate {
        certified: true,
        method: CertificateMethod::Single,
        reading: CertificateReading {
            passes: 1,
            page_size: 10,
            page_base: Some(1),
            pages: 2,
            rows: 3,
            ..open.reading
        },
        counts: CertificateCounts {
            listed: Some(3),
            distinct: Some(3),
            gone: Some(0),
            found: Some(0),
            missing_at_most: Some(0),
            reported_total: Some(3),
            failed_page: None,
            cut_after: certificate.counts.cut_after,
            cut_before: certificate.counts.cut_before,
        },
        ..open
    };
    assert_eq!(certificate, expected);
    assert!(certificate.counts.cut_after < certificate.counts.cut_before);
}
