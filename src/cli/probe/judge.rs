//! What answers mean. No I/O: each function gets answers and returns what they show, or why they show nothing.

use std::fmt;

use serde_json::Value;

use model::Moment;
use provider::api::{AnsweredBy, Pagination, RawAnswer};

/// Fewer rows are in some order by chance.
const MIN_ORDERED_ROWS: usize = 6;
/// Members by which a list may be ordered.
const ORDERED_BY: [&str; 7] =
    ["version", "sequenceVersion", "lastUpdate", "companyCode", "code", "accountCode", "correlationId"];

const GATEWAY_FORM: &str = "the gateway's JSON";

/// Status and form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerShape {
    status: u16,
    form: &'static str,
}

impl AnswerShape {
    pub(super) fn of(answer: &RawAnswer) -> Self {
        let is_html = answer.header("content-type").is_some_and(|kind| kind.contains("html"));
        let form = match answer.answered_by() {
            _ if answer.is_empty() => "no body",
            AnsweredBy::Gateway => GATEWAY_FORM,
            AnsweredBy::Api => "the API's JSON",
            AnsweredBy::Unknown if answer.json().is_some() => "other JSON",
            AnsweredBy::Unknown if is_html => "an HTML page",
            AnsweredBy::Unknown => "text",
        };
        Self { status: answer.status, form }
    }

    /// Whether the gateway answered, before it called an API.
    pub(super) fn is_of_gateway(self) -> bool {
        self.form == GATEWAY_FORM
    }

    /// Whether it says that there is nothing at this address.
    pub(super) const fn is_missing(self) -> bool {
        matches!(self.status, 404 | 410)
    }
}

impl fmt::Display for AnswerShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}", self.status, self.form)
    }
}

/// The rows of a list; `None` if the answer is none.
pub(super) fn rows(answer: &RawAnswer) -> Option<Vec<Value>> {
    answer.rows().ok()
}

/// Non-empty id of a row.
pub(super) fn id(row: &Value) -> Option<&str> {
    row["correlationId"].as_str().filter(|id| !id.is_empty())
}

/// The form of an empty list.
pub(super) fn empty_form(answer: &RawAnswer) -> Result<&'static str, String> {
    match rows(answer) {
        Some(_) if answer.is_empty() => Ok("no body"),
        Some(_) if answer.json() == Some(Value::Null) => Ok("null"),
        Some(rows) if rows.is_empty() => Ok("[]"),
        Some(_) => Err("the page after the end has rows".to_owned()),
        None => Err(format!("the page after the end was answered {}", AnswerShape::of(answer))),
    }
}

/// The provider's number of the first page, and how that shows, by its pages 0 and 1.
pub(super) fn first_page(zero: &RawAnswer, one: &RawAnswer) -> Result<(u32, String), String> {
    let Some(one) = rows(one) else { return Err("page 1 is no JSON array".to_owned()) };
    let first = |how: &str| Ok((1, format!("1; page 0 {how}")));
    match (zero.status, rows(zero)) {
        (200, Some(zero)) if zero.is_empty() && one.is_empty() => Err("the list is empty".to_owned()),
        (200, Some(zero)) if zero.is_empty() => first("is empty"),
        (200, Some(zero)) if is_same(&zero, &one) => first("is the same"),
        (200, Some(_)) => Ok((0, "0".to_owned())),
        (200, None) => Err("page 0 is no JSON array".to_owned()),
        (status, _) => first(&format!("is answered {status}")),
    }
}

/// Whether two pages share at least half of their rows: some may change meanwhile.
pub(super) fn is_same(one: &[Value], other: &[Value]) -> bool {
    let shared = other.iter().filter(|row| one.contains(row)).count();
    shared > 0 && 2 * shared >= one.len().max(other.len())
}

/// The largest page, by a large page and the one after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageLimit {
    /// More rows were requested and follow.
    CutTo(usize),
    /// Nothing larger was requested, or the list has no more rows.
    AtLeast(usize),
    /// More rows came than were requested.
    Ignored(usize),
    /// The next page is the first one again.
    Repeated(usize),
}

/// The limit that two consecutive pages of `asked` rows show.
pub(super) fn page_limit(asked: usize, first: &[Value], next: &[Value]) -> PageLimit {
    let is_repeated = is_same(first, next);
    let (first, next) = (first.len(), next.len());
    match first {
        first if first > asked => PageLimit::Ignored(first),
        first if is_repeated => PageLimit::Repeated(first),
        first if next > first => PageLimit::AtLeast(next),
        first if first < asked && next > 0 => PageLimit::CutTo(first),
        first => PageLimit::AtLeast(first),
    }
}

/// What `X-Pagination` says of a page with this number. `rows` is their count if the page shows the whole list.
pub(super) fn pagination(header: Option<&str>, number: u32, rows: Option<usize>) -> String {
    let Some(header) = header else { return "not sent".to_owned() };
    let Ok(sent) = serde_json::from_str::<Pagination>(header) else {
        return "sent, but not as currentPage, totalPages, totalCount".to_owned();
    };
    let total = match rows {
        None => "totalCount not checked, because the list has more pages",
        Some(rows) if sent.total_count == rows as u64 => "totalCount is right",
        Some(_) => "totalCount is wrong",
    };
    let page = if sent.current_page == u64::from(number) { "" } else { "; currentPage is another number" };
    format!("sent; {total}{page}")
}

/// A value that rows can be ordered by.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Number(i128),
    Time(Moment),
    Text(String),
}

impl SortKey {
    fn of(member: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => number.as_i64().map(|number| Self::Number(number.into())),
            Value::String(text) if member == "sequenceVersion" => text.parse().ok().map(Self::Number),
            Value::String(text) => {
                Some(Moment::parse(text).map_or_else(|| Self::Text(text.clone()), Self::Time))
            }
            _ => None,
        }
    }
}

/// `ascending` or `descending`, if the rows are ordered by a member.
fn direction(rows: &[Value], member: &str) -> Option<&'static str> {
    let keys: Option<Vec<SortKey>> = rows.iter().map(|row| SortKey::of(member, &row[member])).collect();
    let keys = keys.filter(|keys| keys.len() >= MIN_ORDERED_ROWS && keys.first() != keys.last())?;
    if keys.is_sorted() { Some("ascending") } else { keys.iter().rev().is_sorted().then_some("descending") }
}

/// The order of a list. Rows without an id are none of its records if others have one.
pub(super) fn order(rows: &[Value]) -> Result<String, String> {
    let with_id: Vec<Value> = rows.iter().filter(|row| id(row).is_some()).cloned().collect();
    let rows = if with_id.is_empty() { rows } else { &with_id };
    if rows.len() < MIN_ORDERED_ROWS {
        return Err(format!("{} rows are too few: name a larger company with --company", rows.len()));
    }
    let by = |way| {
        let members = ORDERED_BY.into_iter().filter(|member| direction(rows, member) == Some(way));
        let members: Vec<&str> = members.collect();
        (!members.is_empty()).then(|| format!("{way} by {}", members.join(", ")))
    };
    let found: Vec<String> = ["ascending", "descending"].into_iter().filter_map(by).collect();
    Ok(if found.is_empty() { format!("by none of {}", ORDERED_BY.join(", ")) } else { found.join("; ") })
}

/// What `OrderBy` does, by the list without it and the answer with it.
pub(super) fn order_by(member: &str, plain: &[Value], ordered: &RawAnswer) -> Result<String, String> {
    let Some(rows) = rows(ordered) else {
        return Ok(format!("refused: {}", AnswerShape::of(ordered)));
    };
    if plain.len() < MIN_ORDERED_ROWS {
        return Err(format!("{} rows are too few", plain.len()));
    }
    Ok(match (direction(&rows, member), direction(plain, member)) {
        _ if rows.is_empty() => "empties the list".to_owned(),
        (Some(way), Some(same)) if way == same => {
            return Err("cannot tell: the list is in that order without it".to_owned());
        }
        (Some(way), _) => format!("applied, {way}"),
        (None, _) if plain.starts_with(&rows) || rows.starts_with(plain) => "ignored".to_owned(),
        (None, _) => "applied, but not in the order of the values".to_owned(),
    })
}

/// What a filter does, by answers to filters that fit every row and no row: by a date, and by a timestamp.
pub(super) fn filter(all: &RawAnswer, none: &RawAnswer, stamps: [&RawAnswer; 2]) -> String {
    let judged = || match stamps.map(rows) {
        [Some(_), Some(none)] if !none.is_empty() => "a timestamp is ignored".to_owned(),
        [Some(all), Some(_)] if all.is_empty() => "a timestamp empties the list".to_owned(),
        [Some(_), Some(_)] => "timestamps are accepted".to_owned(),
        [None, _] => format!("a timestamp is refused: {}", AnswerShape::of(stamps[0])),
        [_, None] => format!("a timestamp is refused: {}", AnswerShape::of(stamps[1])),
    };
    match (rows(all), rows(none)) {
        (None, _) => format!("refused: {}", AnswerShape::of(all)),
        (Some(all), Some(none)) if all.is_empty() && none.is_empty() => "empties the list".to_owned(),
        (Some(_), Some(none)) if none.is_empty() => format!("applied; {}", judged()),
        (Some(_), Some(_)) => "ignored".to_owned(),
        (Some(_), None) => format!("applied to some values only: {}", AnswerShape::of(none)),
    }
}

/// The contexts that the by-id path of a resource takes; `None` if the path is unknown. `answers`: to the same id in each context.
/// `missing`: the answer of a known path for an unknown id; `unknown`: that for an unknown path of the same API.
pub(super) fn by_id_path(
    answers: &[(&'static str, RawAnswer)],
    missing: Option<AnswerShape>,
    unknown: AnswerShape,
) -> Result<Option<Vec<&'static str>>, String> {
    let shapes: Vec<_> =
        answers.iter().map(|(context, answer)| (*context, AnswerShape::of(answer))).collect();
    if shapes.iter().all(|(_, shape)| *shape == unknown) {
        return match missing {
            Some(missing) if missing != unknown => Ok(None),
            _ => Err(format!("an unknown path and a missing record are both answered {unknown}")),
        };
    }
    let with = |is_answered: &dyn Fn(AnswerShape) -> bool| -> Vec<&'static str> {
        shapes.iter().filter(|(_, shape)| is_answered(*shape)).map(|(context, _)| *context).collect()
    };
    let absent = missing.filter(|missing| missing.is_missing());
    let mut contexts = with(&|shape: AnswerShape| shape.status == 200 || Some(shape) == absent);
    if contexts.is_empty() {
        // Another API may answer otherwise for a missing record.
        contexts = with(&|shape: AnswerShape| shape.is_missing() && (shape != unknown || absent.is_none()));
    }
    match missing.filter(|missing| contexts.is_empty() && shapes.iter().any(|(_, shape)| shape == missing)) {
        Some(missing) => Err(format!("cannot tell: an unknown id is answered {missing} elsewhere, too")),
        None => Ok(Some(contexts)),
    }
}

/// How far the provider's clock is ahead, by all answers: the median, which has an error of up to a second.
pub(super) fn clock(ahead_ms: &[i64]) -> Result<i64, String> {
    let mut all = ahead_ms.to_vec();
    all.sort_unstable();
    all.get(all.len() / 2).copied().ok_or_else(|| "no answer had a Date".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use provider::api::ReadTimes;

    use super::*;

    fn answer(status: u16, body: &str) -> RawAnswer {
        let now = SystemTime::now();
        let times = ReadTimes { sent: now, answered: now, date: None, age: None };
        let headers = http::HeaderMap::from_iter([(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static(if body.starts_with('<') {
                "text/html"
            } else {
                "application/json"
            }),
        )]);
        RawAnswer { status, headers, body: body.to_owned().into(), times }
    }

    fn list(versions: &[u32]) -> RawAnswer {
        let rows: Vec<Value> = versions
            .iter()
            .map(|one| json!({ "correlationId": format!("id-{one}"), "sequenceVersion": one.to_string() }))
            .collect();
        answer(200, &Value::from(rows).to_string())
    }

    #[test]
    fn pages_0_and_1_show_the_first_number() {
        for (zero, one, expected) in [
            (answer(400, "{}"), list(&[1, 2]), Ok((1, "1; page 0 is answered 400"))),
            (answer(500, ""), list(&[1]), Ok((1, "1; page 0 is answered 500"))),
            (answer(200, "null"), list(&[1]), Ok((1, "1; page 0 is empty"))),
            (list(&[1, 2, 3]), list(&[1, 2, 4]), Ok((1, "1; page 0 is the same"))),
            (list(&[1, 2]), list(&[3]), Ok((0, "0"))),
            (list(&[1]), answer(200, "[]"), Ok((0, "0"))),
            (answer(200, ""), answer(200, "[]"), Err("the list is empty")),
            (list(&[1]), answer(200, "{}"), Err("page 1 is no JSON array")),
        ] {
            let expected = expected.map(|(base, words)| (base, words.to_owned())).map_err(str::to_owned);
            assert_eq!(first_page(&zero, &one), expected);
        }
    }

    #[test]
    fn two_pages_show_the_limit_of_the_page_size() {
        for (asked, first, next, limit) in [
            (1_000, 50, 50, PageLimit::CutTo(50)),
            (1_000, 50, 3, PageLimit::CutTo(50)),
            (1_000, 50, 0, PageLimit::AtLeast(50)),
            (1_000, 1_000, 7, PageLimit::AtLeast(1_000)),
            // The first page leaves out rows.
            (1_000, 50, 60, PageLimit::AtLeast(60)),
            (10, 50, 0, PageLimit::Ignored(50)),
        ] {
            let rows =
                |from: usize, count: usize| -> Vec<Value> { (from..from + count).map(Value::from).collect() };
            let found = page_limit(asked, &rows(0, first), &rows(first, next));
            assert_eq!(found, limit, "{asked} {first} {next}");
        }
        let rows: Vec<Value> = (0..50_u32).map(Value::from).collect();
        assert_eq!(page_limit(1_000, &rows, &rows), PageLimit::Repeated(50));
    }

    #[test]
    fn x_pagination_is_compared_with_the_rows() {
        let header = r#"{"currentPage":1,"totalPages":1,"totalCount":7}"#;
        for (header, number, rows, words) in [
            (None, 1, Some(7), "not sent"),
            (Some("{}"), 1, Some(7), "sent, but not as currentPage, totalPages, totalCount"),
            (Some(header), 1, Some(7), "sent; totalCount is right"),
            (Some(header), 1, Some(6), "sent; totalCount is wrong"),
            (
                Some(header),
                0,
                None,
                "sent; totalCount not checked, because the list has more pages; currentPage is another number",
            ),
        ] {
            assert_eq!(pagination(header, number, rows), words);
        }
    }

    #[test]
    fn an_order_needs_enough_rows_and_numbers_compare_as_numbers() {
        let order_of = |versions: &[u32]| order(&rows(&list(versions)).unwrap());

        assert_eq!(order_of(&[8, 9, 10, 11, 12, 13]).unwrap(), "ascending by sequenceVersion");
        assert_eq!(order_of(&[13, 12, 11, 10, 9, 8]).unwrap(), "descending by sequenceVersion");
        assert_eq!(order_of(&[8, 7, 10, 3, 12, 1]).unwrap(), format!("by none of {}", ORDERED_BY.join(", ")));
        assert!(order_of(&[1, 2, 3]).is_err());
    }

    #[test]
    fn parameters_are_judged_by_what_they_change() {
        let plain = rows(&list(&[5, 3, 9, 1, 7, 2])).unwrap();
        let by = |ordered: &RawAnswer| order_by("sequenceVersion", &plain, ordered).unwrap();
        assert_eq!(by(&list(&[1, 2, 3, 5, 7, 9])), "applied, ascending");
        let sorted = rows(&list(&[1, 2, 3, 5, 7, 9])).unwrap();
        assert!(order_by("sequenceVersion", &sorted, &list(&[1, 2, 3, 5, 7, 9])).is_err());
        assert_eq!(by(&list(&[5, 3, 9, 1, 7, 2])), "ignored");
        assert_eq!(by(&answer(200, "[]")), "empties the list");
        assert_eq!(by(&answer(400, "")), "refused: 400 with no body");

        let (all, none, refused) = (list(&[1]), answer(200, "[]"), answer(400, r#"{"ok":false}"#));
        assert_eq!(filter(&all, &none, [&all, &none]), "applied; timestamps are accepted");
        assert_eq!(filter(&all, &none, [&all, &all]), "applied; a timestamp is ignored");
        assert_eq!(filter(&all, &none, [&none, &none]), "applied; a timestamp empties the list");
        let no_stamps = "applied; a timestamp is refused: 400 with the API's JSON";
        assert_eq!(filter(&all, &none, [&refused, &refused]), no_stamps);
        assert_eq!(filter(&all, &all, [&all, &all]), "ignored");
        assert_eq!(filter(&none, &none, [&none, &none]), "empties the list");
        assert_eq!(filter(&refused, &refused, [&refused, &refused]), "refused: 400 with the API's JSON");
    }

    #[test]
    fn a_path_is_unknown_only_if_missing_records_look_different() {
        let gateway = answer(404, r#"{"statusCode":404,"message":"x"}"#);
        let api = answer(404, r#"{"ok":false,"httpCode":404}"#);
        let context = answer(400, r#"{"ok":false,"httpCode":400}"#);
        let (unknown, missing) = (AnswerShape::of(&gateway), AnswerShape::of(&api));
        let judge = |company: &RawAnswer, none: &RawAnswer, missing| {
            by_id_path(&[("the company", company.clone()), ("none", none.clone())], Some(missing), unknown)
        };

        assert_eq!(judge(&gateway, &gateway, missing), Ok(None));
        assert_eq!(judge(&api, &context, missing), Ok(Some(vec!["the company"])));
        assert_eq!(judge(&context, &api, missing), Ok(Some(vec!["none"])));
        assert_eq!(judge(&gateway, &context, unknown), Ok(Some(vec!["the company"])));
        assert!(judge(&gateway, &gateway, unknown).is_err());
        // The form of the id may be refused.
        assert!(judge(&context, &context, AnswerShape::of(&context)).is_err());
        assert_eq!(judge(&context, &context, missing), Ok(Some(Vec::new())));
        assert_eq!(judge(&answer(404, ""), &context, missing), Ok(Some(vec!["the company"])));
    }

    #[test]
    fn rows_are_read_as_the_client_reads_them() {
        let page = |body: &str, kind: &'static str| {
            let mut page = answer(200, body);
            page.headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
            rows(&page).map(|rows| rows.len())
        };

        assert_eq!(page("\u{feff}[1, 2]", "application/json"), Some(2));
        assert_eq!(page("\u{feff}", "application/json"), Some(0));
        assert_eq!(page("[1, 2]", "text/html"), None);
        let shape = AnswerShape::of(&answer(404, "\u{feff}{\"statusCode\":404}"));
        assert_eq!(shape.to_string(), "404 with the gateway's JSON");
    }

    #[test]
    fn each_form_of_an_error_has_a_name() {
        for (body, words) in [
            ("<html>", "404 with an HTML page"),
            ("Not here.", "404 with text"),
            (" ", "404 with no body"),
            (r#"{"error":{}}"#, "404 with other JSON"),
        ] {
            assert_eq!(AnswerShape::of(&answer(404, body)).to_string(), words);
        }
    }
}
