//! Lists with every anomaly, page by page.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use super::*;

const TIMES: ReadTimes =
    ReadTimes { sent: SystemTime::UNIX_EPOCH, answered: SystemTime::UNIX_EPOCH, date: None, age: None };

fn page(number: u32, rows: &str, total: Total) -> Page<char> {
    let rows: Vec<char> = rows.chars().collect();
    let raw = rows.iter().map(|row| Bytes::from(row.to_string())).collect();
    Page { number, asked: 2, rows, raw, total, times: TIMES, base: Some(1), widest: 0 }
}

/// Deduplicates letters, which model rows with ids; digits model rows without.
fn remembering() -> impl FnMut(&char) -> bool {
    let mut seen = HashSet::new();
    move |row| !row.is_alphabetic() || seen.insert(*row)
}

/// Reads pages of two rows to the end: rows, anomalies, and the pages read. Of several versions of a page each read gets the next
/// one, then always the last.
fn read(pages: &[(&[&str], Total)]) -> (String, Oddities, Vec<u32>) {
    let (mut walk, mut is_new) = (PageWalk::default(), remembering());
    let (mut rows, mut read, mut next) = (String::new(), Vec::new(), 1);
    loop {
        let times = read.iter().filter(|number| **number == next).count();
        read.push(next);
        let (versions, total) = pages.get(next as usize - 1).copied().unwrap_or((&[""], Total::Absent));
        let page = page(next, versions[times.min(versions.len() - 1)], total);
        rows.extend(&page.rows);
        // A stored walk continues.
        walk = serde_json::from_str(&serde_json::to_string(&walk).unwrap()).unwrap();
        match walk.observe(&page, &mut is_new).next {
            NextPage::Page(number) | NextPage::Again(number) => next = number,
            NextPage::End => return (rows, walk.oddities, read),
            NextPage::TooLong => panic!("it does not end"),
        }
    }
}

fn plain(pages: &[&str]) -> (String, Oddities, Vec<u32>) {
    let pages: Vec<_> = pages.iter().map(|rows| (std::slice::from_ref(rows), Total::Absent)).collect();
    read(&pages)
}

fn reported(current_page: u64, total_count: u64) -> Total {
    Total::Reported(Pagination { current_page, total_pages: 1, total_count })
}

#[test]
fn a_list_ends_with_an_empty_page_after_a_short_one() {
    let none = Oddities::default();

    assert_eq!(plain(&["ab", "c"]), ("abc".into(), none, vec![1, 2, 3]));
    assert_eq!(plain(&["ab", "cd"]), ("abcd".into(), none, vec![1, 2, 3, 4]));
    assert_eq!(plain(&[]), (String::new(), none, vec![1, 2]));
}

#[test]
fn a_short_page_before_further_rows_is_read_again() {
    let short = Oddities { short: 1, ..Oddities::default() };
    let clamped = Oddities { clamped: 1, ..short };

    let full_now: &[(&[&str], Total)] =
        &[(&["a", "ax"], Total::Absent), (&["bc"], Total::Absent), (&["d"], Total::Absent)];
    assert_eq!(read(full_now), ("abcaxd".into(), short, vec![1, 2, 1, 3, 4]));
    // Rows that only the second read has are remembered too.
    let moved: &[(&[&str], Total)] =
        &[(&["a", "ax"], Total::Absent), (&["bc"], Total::Absent), (&["x"], Total::Absent)];
    assert_eq!(read(moved).1, Oddities { duplicate: 1, ..short });
    assert_eq!(plain(&["a", "bc", "d"]), ("abcad".into(), clamped, vec![1, 2, 1, 3, 4]));
    assert_eq!(plain(&["ab", "", "cd"]), ("abcd".into(), clamped, vec![1, 2, 3, 2, 4, 5]));
    // Skipping the second read loses no row either.
    let (mut walk, mut is_new) = (PageWalk::default(), remembering());
    walk.observe(&page(1, "a", Total::Absent), &mut is_new);
    assert_eq!(walk.observe(&page(2, "bc", Total::Absent), &mut is_new).next, NextPage::Again(1));
    assert_eq!(walk.number, 3);
    assert_eq!(walk.observe(&page(3, "de", Total::Absent), &mut is_new).next, NextPage::Page(4));
}

#[test]
fn duplicate_rows_are_counted_and_kept() {
    let duplicate = Oddities { duplicate: 1, ..Oddities::default() };
    let repeated = Oddities { duplicate: 2, repeated: 1, ..Oddities::default() };

    assert_eq!(plain(&["ab", "bc"]), ("abbc".into(), duplicate, vec![1, 2, 3, 4]));
    assert_eq!(plain(&["ab", "ab", "c"]), ("ababc".into(), repeated, vec![1, 2, 3, 4]));
    // Rows without an id are no duplicates, but equal pages are still noticed.
    assert_eq!(plain(&["11", "12"]).1, Oddities::default());
    assert_eq!(plain(&["11", "11"]).1, Oddities { repeated: 1, ..Oddities::default() });
}

#[test]
fn a_wrong_total_is_counted_and_ends_nothing() {
    let pages: &[(&[&str], Total)] =
        &[(&["ab"], reported(1, 2)), (&["cd"], reported(2, 5)), (&["e"], reported(2, 5))];
    let (rows, oddities, asked) = read(pages);
    assert_eq!((rows.as_str(), oddities.total, asked.len()), ("abcde", 2, 4));

    let (rows, oddities, _) = read(&[(&["ab"], reported(1, 3)), (&["c"], reported(2, 3))]);
    assert_eq!((rows.as_str(), oddities), ("abc", Oddities::default()));

    let (rows, oddities, _) = read(&[(&["ab"], Total::Unreadable), (&["c"], Total::Unreadable)]);
    assert_eq!((rows.as_str(), oddities.header), ("abc", 2));
}

#[test]
fn a_cached_response_is_counted() {
    let mut cached = page(1, "ab", Total::Absent);
    cached.times.age = Some(Duration::from_secs(7));

    let judged = PageWalk::default().observe(&cached, remembering());

    assert_eq!(judged.oddities, Oddities { cached: 1, ..Oddities::default() });
    assert_eq!(judged.next, NextPage::Page(2));
}

#[test]
fn an_endless_list_is_stopped() {
    let (mut walk, mut is_new) = (PageWalk::default(), remembering());

    let before = walk.observe(&page(MAX_PAGES - 1, "ab", Total::Absent), &mut is_new).next;
    let last = walk.observe(&page(MAX_PAGES, "cd", Total::Absent), &mut is_new).next;

    assert_eq!((before, last), (NextPage::Page(MAX_PAGES), NextPage::TooLong));
}

#[test]
fn a_row_hash_never_changes() {
    assert_eq!(row_hash("abc"), 0xba78_16bf_8f01_cfea_4141_40de_5dae_2223);
    assert_ne!(row_hash("abc"), row_hash("abd"));
}

#[test]
fn x_pagination_is_read_or_unreadable() {
    let of = |value: &str| {
        total(
            &[(reqwest::header::HeaderName::from_static(PAGINATION_HEADER), value.parse().unwrap())]
                .into_iter()
                .collect(),
        )
    };

    let reported = Pagination { current_page: 2, total_pages: 3, total_count: 5 };
    assert_eq!(
        of(r#"{"currentPage":2,"totalPages":3,"totalCount":5,"more":null}"#),
        Total::Reported(reported)
    );
    for text in [
        "",
        "5",
        "{}",
        r#"{"currentPage":"2","totalPages":3,"totalCount":5}"#,
        "[1,2]",
        "{\"currentPage\":-1}",
    ] {
        assert_eq!(of(text), Total::Unreadable, "{text}");
    }
    assert_eq!(total(&HeaderMap::new()), Total::Absent);
}
