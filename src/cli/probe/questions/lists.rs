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
/// How far behind its first page a list has certainly ended.
const FAR: u32 = 100_000;

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

        let zero = self.page(&request, 0, SMALL_PAGE).await;
        let first = zero.and_then(|zero| Ok((judge::first_page(&zero, &one)?, zero)));
        let found = first.as_ref().map(|((_, words), _)| words.clone()).map_err(Clone::clone);
        self.add("first-page", list, "learned for each list", found);
        let ((base, _), zero) = first.ok()?;
        let small = judge::rows(if base == 0 { &zero } else { &one }).unwrap_or_default();

        let (size, pages) = self.largest_page(list, &request, base).await?;
        let [first, next] = [0, 1].map(|place: usize| judge::rows(&pages[place]).unwrap_or_default());
        let whole = next.is_empty().then_some(first.len());
        let found = judge::pagination(pages[0].header("x-pagination"), base, whole);
        self.add("pagination-header", list, "compared where it is sent, never needed", Ok(found));
        if list.spans_companies() {
            let far = self.page(&request, base + FAR, SMALL_PAGE).await;
            let found = far.and_then(|far| judge::empty_form(&far));
            self.add("empty-list", list, "[], null and no body are the same", found);
        }
        let is_stable = first.iter().zip(&small).all(|(one, other)| one == other);
        let rows = [first, next].concat();
        let order = judge::order(&rows).map(|order| {
            format!("{order}{}", if is_stable { "" } else { "; two reads began with different rows" })
        });
        self.add("order", list, "any; no proof depends on it", order);
        Some(ReadableList { list, request, base, size, rows })
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

    /// The largest size that is not refused, with the first two pages of it; `None` if there are none.
    async fn largest_page(
        &mut self,
        list: List,
        request: &ProbeRequest,
        base: u32,
    ) -> Option<(u32, [RawAnswer; 2])> {
        let configured = self.source.snapshot.page_size;
        let (found, pages) = match self.find_largest_page(request, base).await {
            Ok(LargestPage { words, limit, size, pages }) => {
                let is_read = self.source.snapshot.lists.contains(&list);
                let is_less = limit.filter(|limit| is_read && *limit < configured);
                let settings = is_less.map(|limit| ("page.size", limit.to_string())).into_iter().collect();
                (Ok(ProbeAnswer { settings, ..ProbeAnswer::from(words) }), Some((size, pages)))
            }
            Err(reason) => (Err(reason), None),
        };
        self.add("page-size", list, format!("page.size={configured}"), found);
        pages
    }

    async fn find_largest_page(&mut self, request: &ProbeRequest, base: u32) -> Result<LargestPage, String> {
        let (mut size, mut refused) = (LARGE_PAGE, None);
        let mut first = self.page(request, base, size).await?;
        if first.status != 200 {
            refused = Some(AnswerShape::of(&first));
            // A small page was accepted. Halves the rest until the limit is exact.
            let (mut accepted, mut too_large) = (SMALL_PAGE, LARGE_PAGE);
            while too_large - accepted > 1 {
                let middle = u32::midpoint(accepted, too_large);
                match self.page(request, base, middle).await?.status {
                    200 => accepted = middle,
                    _ => too_large = middle,
                }
            }
            size = accepted;
            first = self.page(request, base, size).await?;
        }
        let next = self.page(request, base + 1, size).await?;
        let [Some(shown), Some(following)] =
            [&first, &next].map(|page| judge::rows(page).map(|rows| rows.len()))
        else {
            return Err("a page is no JSON array".to_owned());
        };
        let limit = judge::page_limit(size as usize, shown, following);
        let (words, limit) = match (refused, limit) {
            (Some(refused), _) => (format!("{size}; a larger pageSize is refused: {refused}"), Some(size)),
            (None, PageLimit::CutTo(rows)) => {
                (format!("{rows}; a larger pageSize is cut"), u32::try_from(rows).ok())
            }
            (None, PageLimit::AtLeast(rows)) => (format!("at least {rows}"), None),
            (None, PageLimit::Ignored(rows)) => (format!("pageSize is ignored: {rows} rows came"), None),
        };
        Ok(LargestPage { words, limit, size, pages: [first, next] })
    }
}
