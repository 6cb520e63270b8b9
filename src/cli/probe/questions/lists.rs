//! The questions about one list: whether it is offered, its pages and their limit, its order.

use model::List;
use provider::api::RawAnswer;

use super::{Prober, ReadableList, SMALL_PAGE, paged, place, without};
use crate::cli::probe::{
    judge::{self, AnswerShape, PageLimit},
    report::ProbeAnswer,
    session::{ContextForm, ProbeRequest},
};

/// The largest `page.size`.
const LARGE_PAGE: u32 = 1_000;
/// Pages that take too long or are too large after which no larger one is tried.
const MAX_ENDLESS: u32 = 3;
/// How far behind its first page a list has certainly ended.
const FAR: u32 = 100_000;

const EMPTY_ASSUMED: &str = "[], null and no body are the same";

/// The largest page of a list.
struct LargestPage {
    words: String,
    /// Its rows, if larger pages are cut or refused.
    limit: Option<u32>,
    /// The requested size.
    size: u32,
    /// The first two pages of that size.
    pages: [RawAnswer; 2],
}

/// Why a page did not come, perhaps for its size.
struct RefusedSize {
    /// `None` if the answer took too long or was too large.
    shape: Option<AnswerShape>,
    words: String,
}

impl Prober<'_> {
    /// The same request with a page.
    async fn page(&mut self, request: &ProbeRequest, number: u32, size: u32) -> Result<RawAnswer, String> {
        self.session.get(&paged(request, number, size, &[])).await
    }

    /// All questions about one list; `None` if it cannot be read.
    pub(super) async fn list(&mut self, list: List, context: ContextForm) -> Option<ReadableList> {
        let request = place(list, context);
        let one = self.page(&request, 1, SMALL_PAGE).await;
        let offered = match &one {
            Err(reason) => Err(reason.clone()),
            Ok(answer) if answer.status == 200 => Ok("offered".into()),
            Ok(answer) if AnswerShape::of(answer).is_missing() => {
                self.missing_list(list, &request, answer).await
            }
            Ok(answer) => Err(self.session.refusal(&request, answer)),
        };
        self.add("list", list, "offered", offered);
        let one = one.ok().filter(|answer| answer.status == 200)?;

        let mut zero = self.page(&request, 0, SMALL_PAGE).await;
        if zero.as_ref().is_ok_and(|zero| zero.status != 200) {
            // One failure may be chance.
            zero = self.page(&request, 0, SMALL_PAGE).await;
        }
        let first = zero.and_then(|zero| Ok((judge::first_page(&zero, &one)?, zero)));
        let found = first.as_ref().map(|((_, words), _)| words.clone()).map_err(Clone::clone);
        self.add("first-page", list, "learned for each list", found);
        let (base, small) = match first {
            Ok(((0, _), zero)) => (0, zero),
            Ok(((base, _), _)) => (base, one),
            Err(reason) if judge::rows(&one).is_none_or(|rows| rows.is_empty()) => {
                self.skip(list, &one, &reason);
                return None;
            }
            // Page 1 has rows, which is enough for the other questions.
            Err(_) => (1, one),
        };
        let small_rows = judge::rows(&small).unwrap_or_default();

        let sized = self.largest_page(list, &request, base, &small).await;
        let (size, pages) = sized.unwrap_or_else(|| (SMALL_PAGE, vec![small]));
        let mut read = pages.iter().map(|page| judge::rows(page).unwrap_or_default());
        let (first, next) = (read.next().unwrap_or_default(), read.next());
        let whole = next.as_ref().is_some_and(Vec::is_empty).then_some(first.len());
        let next = next.filter(|next| !judge::is_same(&first, next)).unwrap_or_default();
        let sent = pages.first().and_then(|page| page.header("x-pagination"));
        let found = judge::pagination(sent, base, whole);
        self.add("pagination-header", list, "compared where it is sent, never needed", Ok(found));
        if list.spans_companies() {
            let far = self.page(&request, base + FAR, SMALL_PAGE).await;
            let found = far.and_then(|far| judge::empty_form(&far));
            self.add("empty-list", list, EMPTY_ASSUMED, found);
        }
        let is_stable = first.iter().zip(&small_rows).all(|(one, other)| one == other);
        let rows = [first, next].concat();
        let order = judge::order(&rows).map(|order| {
            format!("{order}{}", if is_stable { "" } else { "; two reads began with different rows" })
        });
        self.add("order", list, "any; no proof depends on it", order);
        Some(ReadableList { list, request, base, size, rows })
    }

    /// Reports the questions that need rows as not answered.
    fn skip(&mut self, list: List, one: &RawAnswer, reason: &str) {
        if list.spans_companies() {
            self.add("empty-list", list, EMPTY_ASSUMED, judge::empty_form(one));
        }
        let of_list: &[&'static str] = match list {
            List::Payroll => &["payroll-order", "payroll-filter", "payroll-paging"],
            _ => &["row-members"],
        };
        let of_rows = ["page-size", "pagination-header", "order"];
        for question in of_rows.into_iter().chain(of_list.iter().copied()) {
            self.add(question, list, "not compared", Err::<ProbeAnswer, _>(reason.to_owned()));
        }
    }

    /// Whether a 404 for a list is about its path. Otherwise it may be about the company.
    async fn missing_list(
        &mut self,
        list: List,
        request: &ProbeRequest,
        answer: &RawAnswer,
    ) -> Result<ProbeAnswer, String> {
        let shape = AnswerShape::of(answer);
        let unknown = self.unknown_path(request).await?;
        if shape != unknown || !shape.is_of_gateway() {
            let refusal = self.session.refusal(request, answer);
            return Err(format!(
                "{refusal}, and an unknown path {unknown}: the company may be unknown; check --company"
            ));
        }
        let lists = self.source.snapshot.lists.iter();
        let settings = without("snapshot.lists", lists.copied().map(List::name), list.name());
        let is_scheduled = list == List::Payroll && self.source.snapshot.payroll_schedule.is_some();
        let note = "remove payroll.incremental.schedule, too: it needs payroll in snapshot.lists";
        let notes = is_scheduled.then(|| note.to_owned()).into_iter().collect();
        Ok(ProbeAnswer { found: format!("not offered: {shape}"), settings, notes })
    }

    /// The largest size that is not refused, with the first two pages of it; `None` if there are none. `small` is a small first page.
    async fn largest_page(
        &mut self,
        list: List,
        request: &ProbeRequest,
        base: u32,
        small: &RawAnswer,
    ) -> Option<(u32, Vec<RawAnswer>)> {
        let configured = self.source.snapshot.page_size;
        let (found, pages) = match self.find_largest_page(request, base, small).await {
            Ok(LargestPage { words, limit, size, pages }) => {
                let is_read = self.source.snapshot.lists.contains(&list);
                let is_less = limit.filter(|limit| is_read && *limit < configured);
                let settings = is_less.map(|limit| ("page.size", limit.to_string())).into_iter().collect();
                (Ok(ProbeAnswer { settings, ..ProbeAnswer::from(words) }), Some((size, pages.into())))
            }
            Err(reason) => (Err(reason), None),
        };
        self.add("page-size", list, format!("page.size={configured}"), found);
        pages
    }

    async fn find_largest_page(
        &mut self,
        request: &ProbeRequest,
        base: u32,
        small: &RawAnswer,
    ) -> Result<LargestPage, String> {
        let refused = match self.sized_page(request, base, LARGE_PAGE).await? {
            Ok(first) => {
                let next = self.page(request, base + 1, LARGE_PAGE).await?;
                return Self::unrefused(first, next);
            }
            Err(refused) => refused,
        };
        // A small page was accepted. Halves the rest until the limit is exact.
        let (mut size, mut too_large, mut first) = (SMALL_PAGE, LARGE_PAGE, small.clone());
        let mut endless = u32::from(refused.shape.is_none());
        while too_large - size > 1 && endless < MAX_ENDLESS {
            let middle = u32::midpoint(size, too_large);
            match self.sized_page(request, base, middle).await? {
                Ok(page) => (size, first) = (middle, page),
                Err(other) if other.shape == refused.shape => {
                    too_large = middle;
                    endless += u32::from(other.shape.is_none());
                }
                Err(other) => {
                    return Err(format!("pageSize {middle} {}, {LARGE_PAGE} {}", other.words, refused.words));
                }
            }
        }
        let next = self.page(request, base + 1, size).await?;
        let (words, pages) = (&refused.words, [first, next]);
        if too_large - size > 1 {
            let words = format!("at least {size}; pageSize {too_large} {words}");
            return Ok(LargestPage { words, limit: None, size, pages });
        }
        // Each size was tried once, so one answer by chance would lead to a wrong limit.
        if self.sized_page(request, base, too_large).await?.is_ok() {
            return Err(format!("pageSize {too_large} was refused once and accepted once"));
        }
        Ok(LargestPage {
            words: format!("{size}; a larger pageSize {words}"),
            limit: Some(size),
            size,
            pages,
        })
    }

    /// The limit by two pages of the largest size, which is not refused.
    fn unrefused(first: RawAnswer, next: RawAnswer) -> Result<LargestPage, String> {
        let (Some(shown), Some(following)) = (judge::rows(&first), judge::rows(&next)) else {
            return Err("a page is no JSON array".to_owned());
        };
        let (words, limit) = match judge::page_limit(LARGE_PAGE as usize, &shown, &following) {
            PageLimit::CutTo(rows) => (format!("{rows}; a larger pageSize is cut"), u32::try_from(rows).ok()),
            PageLimit::AtLeast(rows) => (format!("at least {rows}"), None),
            PageLimit::Ignored(rows) => (format!("pageSize is ignored: {rows} rows came"), None),
            PageLimit::Repeated(rows) => (format!("at least {rows}; the next page repeats the first"), None),
        };
        Ok(LargestPage { words, limit, size: LARGE_PAGE, pages: [first, next] })
    }

    /// A page, or why its size may be too large.
    async fn sized_page(
        &mut self,
        request: &ProbeRequest,
        base: u32,
        size: u32,
    ) -> Result<Result<RawAnswer, RefusedSize>, String> {
        match self.page(request, base, size).await {
            Ok(answer) if answer.status == 200 => Ok(Ok(answer)),
            Ok(answer) => {
                let shape = AnswerShape::of(&answer);
                if (400..500).contains(&answer.status) {
                    return Ok(Err(RefusedSize {
                        shape: Some(shape),
                        words: format!("is refused: {shape}"),
                    }));
                }
                Err(format!("pageSize {size} is answered {shape}"))
            }
            Err(reason) if self.session.was_endless => {
                Ok(Err(RefusedSize { shape: None, words: format!("does not arrive: {reason}") }))
            }
            Err(reason) => Err(reason),
        }
    }
}
