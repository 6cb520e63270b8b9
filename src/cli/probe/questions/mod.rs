//! The questions of a probe, in the order in which one needs the answer of another.
//!
//! ```text
//! company list ─▶ a company ─▶ its customers and accounts ─▶ records by id, unknown ids and paths
//! payroll list ─▶ filter, OrderBy, paging        event names, clock and limits: from all answers
//! ```
//!
//! A question without an answer is reported with the reason, and those that need its answer are not asked.

mod lists;

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use model::{AccountingResource, EventKind, List};
use provider::{api::RawAnswer, auth::Area};

use super::{
    judge::{self, AnswerShape},
    report::{ProbeAnswer, ProbeFinding, ProbeReport},
    session::{ContextForm, ProbeRequest, RecordedExchange, Session},
};
use crate::{
    config::{RecordSource, connector::Rows},
    records::task::shows_less,
};

/// An id that no record has. Transcripts keep it, so that a replayed probe sends the same.
pub(super) const UNKNOWN_ID: &str = "7b1f0c5e-3a52-4d0e-9c1b-6e5f4a3d2c1b";
/// The end of a path that no document names.
const UNKNOWN_PATH: &str = "api/tributaryProbe";
/// Rows of a small page.
const SMALL_PAGE: u32 = 10;
/// Rows of each list that are compared with their records.
const COMPARED_ROWS: usize = 3;

/// A run of all questions.
pub(super) struct Prober<'a> {
    session: Session,
    /// The settings to compare with.
    source: &'a RecordSource,
    /// `clock.skew.max.ms`.
    clock_skew_max: Duration,
    /// The answer to an unknown path of each API that was asked for one.
    unknown_paths: BTreeMap<String, Result<AnswerShape, String>>,
    findings: Vec<ProbeFinding>,
}

/// A list that can be read.
struct ReadableList {
    list: List,
    request: ProbeRequest,
    /// Number of its first page.
    base: u32,
    /// Largest page size that is not refused.
    size: u32,
    /// Rows of its first two pages.
    rows: Vec<Value>,
}

impl<'a> Prober<'a> {
    pub(super) fn new(session: Session, source: &'a RecordSource, clock_skew_max: Duration) -> Self {
        Self { session, source, clock_skew_max, unknown_paths: BTreeMap::new(), findings: Vec::new() }
    }

    /// Asks everything. `company`: the company to read; by default the first one. Returns the report and the exchanges.
    pub(super) async fn run(mut self, company: Option<&str>) -> (ProbeReport, Vec<RecordedExchange>) {
        let mut lists = Vec::new();
        let request = |context| paged(&place(List::Companies, context), 1, SMALL_PAGE, &[]);
        let forms = [ContextForm::Absent, ContextForm::None];
        if let Some(context) =
            self.contexts("company-list-context", "not sent, else none", &forms, request).await
        {
            lists.extend(self.list(List::Companies, context).await);
        }
        let first = || lists.iter().flat_map(|list| &list.rows).find_map(judge::id);
        let company = company.or_else(first).map(str::to_owned);
        for list in [List::Customers, List::Accounts] {
            match &company {
                Some(company) => lists.extend(self.list(list, ContextForm::Company(company.clone())).await),
                None => self.add("list", list, "read with the company's context", self.no_company()),
            }
        }
        if let Some(payroll) = self.list(List::Payroll, ContextForm::Absent).await {
            self.payroll_parameters(&payroll).await;
        }
        match &company {
            Some(company) => self.by_id(company, &lists).await,
            None => self.add("by-id-path", "all resources", "known", self.no_company()),
        }
        self.event_names().await;
        self.cite_all_answers();
        (
            ProbeReport { findings: self.findings, seen: self.session.seen },
            self.session.tape.unwrap_or_default(),
        )
    }

    /// Why no company is known.
    fn no_company(&self) -> Result<ProbeAnswer, String> {
        let is_cause = |one: &&ProbeFinding| {
            one.about == List::Companies.name()
                && ["company-list-context", "list", "first-page"].contains(&one.question)
        };
        let failed = self.findings.iter().filter(is_cause).find_map(|one| one.found.as_ref().err());
        let cause = failed.map_or("the list of companies shows none", String::as_str);
        Err(format!("no company is known: {cause}; name one with --company"))
    }

    fn add(
        &mut self,
        question: &'static str,
        about: impl ToString,
        assumed: impl Into<String>,
        found: Result<impl Into<ProbeAnswer>, String>,
    ) {
        let (about, assumed, found) = (about.to_string(), assumed.into(), found.map(Into::into));
        self.findings.push(ProbeFinding { question, about, found, assumed });
    }

    /// Tries contexts for a read about companies. Returns the first that is accepted.
    async fn contexts(
        &mut self,
        question: &'static str,
        assumed: &str,
        forms: &[ContextForm],
        request: impl Fn(ContextForm) -> ProbeRequest,
    ) -> Option<ContextForm> {
        let mut accepted = Vec::new();
        let mut refused = Err(String::new());
        for form in forms {
            let request = request(form.clone());
            match self.session.get(&request).await {
                Ok(answer) if answer.status == 200 => accepted.push(form.clone()),
                Ok(answer) => refused = Err(self.session.refusal(&request, &answer)),
                Err(reason) => refused = Err(reason),
            }
        }
        let words: Vec<_> = accepted.iter().map(ContextForm::words).collect();
        let found = if accepted.is_empty() { refused } else { Ok(words.join(" or ")) };
        self.add(question, List::Companies, assumed, found);
        accepted.into_iter().next()
    }

    /// The answer to an unknown path of the same API. Asked once.
    async fn unknown_path(&mut self, request: &ProbeRequest) -> Result<AnswerShape, String> {
        let api = request.api();
        if let Some(known) = self.unknown_paths.get(api) {
            return known.clone();
        }
        let path = format!("{api}/{UNKNOWN_PATH}");
        let unknown = ProbeRequest { path, id: String::new(), query: Vec::new(), ..request.clone() };
        let found = self.shape(&unknown).await;
        self.add("unknown-path", api, "any answer", found.clone().map(|shape| shape.to_string()));
        self.unknown_paths.insert(api.to_owned(), found.clone());
        found
    }

    async fn payroll_parameters(&mut self, payroll: &ReadableList) {
        let ReadableList { request, base, size, rows, .. } = payroll;
        let with = |more: &[(&'static str, &str)]| paged(request, *base, *size, more);

        let member = self.source.snapshot.payroll_order_by.clone();
        let ordered = self.session.get(&with(&[("OrderBy", &member)])).await;
        let found = ordered.and_then(|ordered| judge::order_by(&member, rows, &ordered));
        self.add("payroll-order", payroll.list, format!("payroll.order.by={member}"), found);

        let mut answers = Vec::new();
        for date in ["1970-01-01", "2999-12-31", "1970-01-01T00:00:00Z", "2999-12-31T00:00:00Z"] {
            let filter = format!("lastUpdate gt {date}");
            answers.push(self.session.get(&with(&[("filter", &filter)])).await);
        }
        let answers: Result<Vec<RawAnswer>, String> = answers.into_iter().collect();
        let found =
            answers.map(|answers| judge::filter(&answers[0], &answers[1], [&answers[2], &answers[3]]));
        self.add("payroll-filter", payroll.list, "proved in each run, else the whole list is read", found);

        let found = self.session.get(request).await.map(|answer| match answer.status {
            200 => "optional".to_owned(),
            _ => format!("required: {}", AnswerShape::of(&answer)),
        });
        self.add("payroll-paging", payroll.list, "always sent", found);
    }

    async fn by_id(&mut self, company: &str, lists: &[ReadableList]) {
        let in_company = ContextForm::Company(company.to_owned());
        let foreign = place(List::Customers, ContextForm::Company(UNKNOWN_ID.to_owned()));
        let foreign = self.shape(&paged(&foreign, 1, SMALL_PAGE, &[])).await;
        self.add("unknown-company", List::Customers, "any answer", foreign.map(|shape| shape.to_string()));

        let forms = [in_company.clone(), ContextForm::None, ContextForm::Absent];
        let request = |context| get(&by_id_path(AccountingResource::Companies), company, context);
        let assumed = "the company, else none, else not sent";
        let own = self.contexts("company-by-id-context", assumed, &forms, request).await;
        let own = own.unwrap_or(ContextForm::Absent);
        let mut shapes: Vec<AnswerShape> = Vec::new();
        // Companies last: the context of an unknown company is that company, so its answer may be about the context.
        for list in [List::Customers, List::Accounts, List::Companies] {
            let Some(resource) = list.resource() else { continue };
            let context = |id: &str| match (&own, list) {
                (ContextForm::Company(_), List::Companies) => ContextForm::Company(id.to_owned()),
                (own, List::Companies) => own.clone(),
                _ => in_company.clone(),
            };
            let path = by_id_path(resource);
            let shape = self.shape(&get(&path, UNKNOWN_ID, context(UNKNOWN_ID))).await;
            shapes.extend(shape.as_ref().ok());
            let assumed = "404 or 410 with any body, once the path has answered";
            self.add("missing-record", resource, assumed, shape.map(|shape| shape.to_string()));
            if let Some(rows) = lists.iter().find(|one| one.list == list) {
                self.row_members(resource, rows, context).await;
            }
        }
        let missing = shapes.iter().find(|shape| shape.is_missing()).or(shapes.first()).copied();
        for resource in AccountingResource::all().filter(|one| *one != AccountingResource::Companies) {
            let list = lists.iter().find(|one| one.list.resource() == Some(resource));
            let id = list.and_then(|list| list.rows.iter().find_map(judge::id)).unwrap_or(UNKNOWN_ID);
            self.path_of(resource, id, &in_company, missing).await;
        }
    }

    async fn shape(&mut self, request: &ProbeRequest) -> Result<AnswerShape, String> {
        self.session.get(request).await.map(|answer| AnswerShape::of(&answer))
    }

    /// Whether rows of a list show whole records.
    async fn row_members(
        &mut self,
        resource: AccountingResource,
        list: &ReadableList,
        context: impl Fn(&str) -> ContextForm,
    ) {
        let path = by_id_path(resource);
        let mut found = Err("no row could be compared with its record".to_owned());
        for (row, id) in list.rows.iter().filter_map(|row| Some((row, judge::id(row)?))).take(COMPARED_ROWS) {
            let request = get(&path, id, context(id));
            match self.session.get(&request).await {
                Ok(answer) if answer.status == 200 => {
                    match shows_less(row.to_string().as_bytes(), &answer.body) {
                        Some(true) => {
                            found = Ok(true);
                            break;
                        }
                        Some(false) => found = Ok(false),
                        None => {}
                    }
                }
                Ok(answer) => found = found.map_err(|_| self.session.refusal(&request, &answer)),
                Err(reason) => found = found.map_err(|_| reason),
            }
        }
        let (rows, name) = (self.source.snapshot.rows, rows_name(self.source.snapshot.rows));
        let is_read = self.source.snapshot.lists.contains(&list.list);
        let found = found.map(|is_thin| {
            let settings = if is_thin && rows == Rows::Full && is_read {
                vec![("snapshot.rows", rows_name(Rows::Thin).to_owned())]
            } else {
                Vec::new()
            };
            let found = if is_thin { "less than the record" } else { "the whole record" };
            ProbeAnswer { settings, ..ProbeAnswer::from(found) }
        });
        self.add("row-members", resource, format!("snapshot.rows={name}"), found);
    }

    async fn path_of(
        &mut self,
        resource: AccountingResource,
        id: &str,
        in_company: &ContextForm,
        missing: Option<AnswerShape>,
    ) {
        let path = by_id_path(resource);
        let unknown = self.unknown_path(&get(&path, "", in_company.clone())).await;
        let mut answers = Vec::new();
        let mut failed = None;
        for context in [in_company.clone(), ContextForm::None] {
            match self.session.get(&get(&path, id, context.clone())).await {
                Ok(answer) => answers.push((context.words(), answer)),
                Err(reason) => failed = Some(reason),
            }
        }
        if let Some((_, answer)) =
            answers.first().filter(|_| answers.iter().all(|(_, one)| matches!(one.status, 401 | 403)))
        {
            failed = Some(self.session.refusal(&get(&path, id, ContextForm::None), answer));
        }
        let unknown = failed.map_or(unknown, Err);
        let contexts = unknown.and_then(|unknown| judge::by_id_path(&answers, missing, unknown));
        let found = contexts.map(|contexts| match contexts.as_deref() {
            None => {
                let resources = self.source.enrich_resources.iter().copied();
                let names = resources.map(AccountingResource::name);
                let settings = without("enrich.resources", names, resource.name());
                ProbeAnswer { settings, ..ProbeAnswer::from("unknown to the gateway") }
            }
            Some([]) => "known, but no context is accepted".into(),
            Some(contexts) => format!("known; context: {}", contexts.join(" or ")).into(),
        });
        self.add(
            "by-id-path",
            resource,
            "known; context: the company, none where events name no company",
            found,
        );
    }

    async fn event_names(&mut self) {
        for resource in AccountingResource::all() {
            let path = format!("{}/webhooks/events", resource.path());
            let request = get(&path, "", ContextForm::None);
            let found = match self.session.get(&request).await {
                Ok(answer) if answer.status == 200 => event_names(&answer),
                Ok(answer) => Err(self.session.refusal(&request, &answer)),
                Err(reason) => Err(reason),
            };
            self.add("event-names", resource, "taken from here; the ending names the kind", found);
        }
    }

    /// Clock and limits.
    fn cite_all_answers(&mut self) {
        let most = self.clock_skew_max;
        let found = judge::clock(&self.session.seen.ahead_ms).map(|ahead_ms| {
            let seconds = ahead_ms.unsigned_abs().saturating_add(500) / 1_000;
            let found = match (seconds, ahead_ms > 0) {
                (0 | 1, _) => "the same, to a second".to_owned(),
                (_, true) => format!("the provider's is {seconds} s ahead"),
                (_, false) => format!("the provider's is {seconds} s behind"),
            };
            let is_far = Duration::from_millis(ahead_ms.unsigned_abs()) > most;
            let note = "correct the clock of this machine, or raise clock.skew.max.ms of the worker";
            ProbeAnswer {
                notes: is_far.then(|| note.to_owned()).into_iter().collect(),
                ..ProbeAnswer::from(found)
            }
        });
        self.add("clock", "all answers", format!("clock.skew.max.ms={}", most.as_millis()), found);

        let seen = &self.session.seen;
        let sent: Vec<String> = seen.limits.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let found = match (seen.answers, seen.throttled, sent.is_empty()) {
            (0, ..) => Err("there was no answer".to_owned()),
            (_, 0, true) => Ok("none".to_owned()),
            (_, throttled, true) => Ok(format!("{throttled} × 429, without a header")),
            (_, throttled, false) => Ok(format!("{throttled} × 429; {}", sent.join(", "))),
        };
        let assumed = format!("budget.requests.per.second={}, lowered by 429", self.source.budget_per_second);
        self.add("rate-limit-headers", "all answers", assumed, found);
    }
}

fn get(path: &str, id: &str, context: ContextForm) -> ProbeRequest {
    let (path, id) = (path.to_owned(), id.to_owned());
    ProbeRequest { area: Area::Accounting, path, id, query: Vec::new(), context }
}

fn place(list: List, context: ContextForm) -> ProbeRequest {
    match list.resource() {
        Some(resource) => get(&resource.path(), "", context),
        None => ProbeRequest { area: Area::Payroll, ..get("payroll/api/companies", "", context) },
    }
}

fn paged(request: &ProbeRequest, number: u32, size: u32, more: &[(&'static str, &str)]) -> ProbeRequest {
    let mut query = vec![("pageNumber", number.to_string()), ("pageSize", size.to_string())];
    query.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    ProbeRequest { query, ..request.clone() }
}

fn by_id_path(resource: AccountingResource) -> String {
    format!("{}/{{id}}", resource.path())
}

const fn rows_name(rows: Rows) -> &'static str {
    match rows {
        Rows::Probe => "probe",
        Rows::Full => "full",
        Rows::Thin => "thin",
    }
}

/// The setting without one of its names; nothing if it does not have the name.
fn without<'n>(
    key: &'static str,
    names: impl Iterator<Item = &'n str>,
    unwanted: &str,
) -> Vec<(&'static str, String)> {
    let names: Vec<&str> = names.collect();
    let kept: Vec<&str> = names.iter().copied().filter(|name| *name != unwanted).collect();
    if kept.len() < names.len() { vec![(key, kept.join(","))] } else { Vec::new() }
}

/// The semantic names of an answer. A text that is no such name is not shown.
fn event_names(answer: &RawAnswer) -> Result<ProbeAnswer, String> {
    let Some(names) = judge::rows(answer) else { return Err("the answer is no JSON array".to_owned()) };
    let names: Vec<&str> = names.iter().map(|name| name.as_str().unwrap_or_default()).collect();
    let shown = names.iter().map(|name| if is_semantic_name(name) { name } else { "(another text)" });
    let found = shown.collect::<Vec<_>>().join(", ");
    let is_odd =
        |name: &&str| is_semantic_name(name) && matches!(EventKind::parse(name), EventKind::Unknown(_));
    let note = |name: &str| format!("{name} ends with no known kind; its events lead to a read");
    let notes = names.iter().copied().filter(is_odd).map(note).collect();
    Ok(ProbeAnswer { notes, ..ProbeAnswer::from(found) })
}

/// Whether a text is the name of an event: words joined by dots.
pub(super) fn is_semantic_name(text: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
    text.len() <= 200 && text.split('.').count() > 2 && text.split('.').all(is_word)
}
