//! Sends the requests of a probe within its limits, and keeps what all answers show.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use base::retry::{ErrorChain, Retry};
use model::Moment;
use provider::{
    api::{
        CallOptions, Cause, ContextHeader, Error, Inspection, Inspector, Limit, Priority, RawAnswer, Reach,
    },
    auth::Area,
};

use super::judge::AnswerShape;
use crate::cli::table::harmless;

/// No request follows so many answers. A provider without surprises needs about 100; each list that refuses large pages takes 10 more.
pub(super) const MAX_ANSWERS: usize = 250;
/// Time for all requests, beyond the time that the rate takes for [`MAX_ANSWERS`].
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// Time for one request, with the waits that the provider names.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bodies that are kept for a transcript, but for the last answer. Later exchanges are not kept.
pub(super) const MAX_TAPE_BYTES: usize = 64 << 20;
/// Calls in a row without a connection after which the provider is down.
const MAX_BROKEN_CALLS: u32 = 3;
/// Longer values of rate limit headers are not shown.
const MAX_LIMIT_CHARS: usize = 64;

/// The context that a request has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ContextForm {
    Absent,
    None,
    /// The company of this correlation id.
    Company(String),
}

impl ContextForm {
    /// As reports name it.
    pub(super) const fn words(&self) -> &'static str {
        match self {
            Self::Absent => "not sent",
            Self::None => "none",
            Self::Company(_) => "the company",
        }
    }

    fn header(&self) -> ContextHeader<'_> {
        match self {
            Self::Absent => ContextHeader::Absent,
            Self::None => ContextHeader::None,
            Self::Company(id) => ContextHeader::Company(id),
        }
    }
}

/// A GET.
#[derive(Debug, Clone)]
pub(super) struct ProbeRequest {
    pub(super) area: Area,
    /// Below the base URL, with `{id}` for the id.
    pub(super) path: String,
    pub(super) id: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) context: ContextForm,
}

/// A request and its answers, for the transcript.
#[derive(Debug)]
pub(super) struct RecordedExchange {
    pub(super) request: ProbeRequest,
    /// The last one ended the call; those before named a wait.
    pub(super) answers: Vec<RawAnswer>,
}

/// What all answers show.
#[derive(Debug, Default)]
pub(super) struct Observations {
    /// Requests.
    pub(super) requests: usize,
    /// Answers.
    pub(super) answers: usize,
    /// Answers with status 429.
    pub(super) throttled: usize,
    /// How far the provider's clock is ahead of this one, in milliseconds, by each answer with a date.
    pub(super) ahead_ms: Vec<i64>,
    /// Headers about limits, with the last value of each.
    pub(super) limits: BTreeMap<String, String>,
    bytes: usize,
}

/// Access to one area.
#[derive(Debug)]
pub(super) struct AreaAccess {
    pub(super) inspector: Inspector,
    /// Documented scopes that its grant lacks.
    pub(super) missing_scopes: Vec<&'static str>,
    /// When its token expires, in milliseconds since 1970.
    pub(super) expires_ms: i64,
}

/// A run.
#[derive(Debug)]
pub(super) struct Session {
    /// Access by area, or why there is none.
    areas: BTreeMap<Area, Result<AreaAccess, String>>,
    deadline: Instant,
    pub(super) seen: Observations,
    /// Every exchange with an answer, if a transcript is saved.
    pub(super) tape: Option<Vec<RecordedExchange>>,
    /// Areas of which an answer was a success.
    accepted: BTreeSet<Area>,
    /// Why no further request is sent to an API, by the beginning of its path: a key may be good for some APIs only.
    closed: BTreeMap<String, String>,
    /// Calls in a row that ended without a connection.
    broken: u32,
    /// Whether the last answer took too long or was too large.
    pub(super) was_endless: bool,
    /// Why no further request is sent.
    stopped: Option<String>,
}

impl Session {
    pub(super) fn new(
        areas: BTreeMap<Area, Result<AreaAccess, String>>,
        rate: f64,
        is_recorded: bool,
    ) -> Self {
        Self {
            areas,
            deadline: Instant::now() + RUN_TIMEOUT + Duration::from_secs_f64(MAX_ANSWERS as f64 / rate),
            seen: Observations::default(),
            tape: is_recorded.then(Vec::new),
            accepted: BTreeSet::new(),
            closed: BTreeMap::new(),
            broken: 0,
            was_endless: false,
            stopped: None,
        }
    }

    /// The answer to a request, of any status that is about the request itself. Otherwise the reason why there is none.
    pub(super) async fn get(&mut self, request: &ProbeRequest) -> Result<RawAnswer, String> {
        self.was_endless = false;
        if self.seen.answers >= MAX_ANSWERS {
            return Err(format!("the limit of {MAX_ANSWERS} answers was reached"));
        }
        if Instant::now() >= self.deadline {
            return Err("the time limit of the run was reached".to_owned());
        }
        if let Some(reason) = self.stopped.as_ref().or_else(|| self.closed.get(request.api())) {
            return Err(reason.clone());
        }
        let inspector = match self.areas.get(&request.area) {
            Some(Ok(access)) => access.inspector.clone(),
            Some(Err(reason)) => return Err(reason.clone()),
            None => return Err(format!("the {} API is not probed", request.area)),
        };
        let ProbeRequest { path, id, query, context, .. } = request;
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, &**value)).collect();
        let wanted = Inspection { path, id, query: &query, context: context.header() };
        let options = CallOptions::within(Priority::Snapshot, CALL_TIMEOUT);
        let options = CallOptions { deadline: options.deadline.min(self.deadline), ..options };
        let is_kept = !self.seen.exceeds_tape();
        let send = || Box::pin(inspector.get(&wanted, &options));
        let (mut answers, mut ended) = send().await;
        self.seen.observe(&answers);
        // One broken connection says little.
        if ended.as_ref().is_err_and(is_broken) {
            let (more, end) = send().await;
            self.seen.observe(&more);
            answers.extend(more);
            ended = end;
        }
        let last = answers.last().cloned();
        if let Some(tape) = self.tape.as_mut().filter(|_| is_kept && last.is_some()) {
            tape.push(RecordedExchange { request: request.clone(), answers });
        }
        if !ended.as_ref().is_err_and(is_broken) {
            self.broken = 0;
        }
        match (ended, last) {
            (Err(error), Some(answer)) if self.is_about_request(request.area, &error) => Ok(answer),
            (Err(error), _) => Err(self.failed(request, error)),
            (Ok(()), Some(answer)) => {
                self.accepted.insert(request.area);
                Ok(answer)
            }
            (Ok(()), None) => Err("there was no answer".to_owned()),
        }
    }

    /// Why an answer with an unexpected status answers nothing. A 403 names the documented scopes that the grant lacks.
    pub(super) fn refusal(&self, request: &ProbeRequest, answer: &RawAnswer) -> String {
        let ProbeRequest { area, path, .. } = request;
        let answered = format!("GET {path} was answered {}", AnswerShape::of(answer));
        let missing = match self.areas.get(area) {
            Some(Ok(access)) => access.missing_scopes.join(", "),
            _ => String::new(),
        };
        match answer.status {
            403 if missing.is_empty() => {
                format!(
                    "{answered}, although the {area} grant has every documented scope: the user may lack a right"
                )
            }
            403 => format!(
                "{answered}: the {area} grant lacks the scope {missing}; add it to {} and log in again",
                area.scopes_key()
            ),
            _ => answered,
        }
    }

    /// Whether a failure is the provider's answer to this request, and not about access, limits, the host or the connection.
    fn is_about_request(&self, area: Area, error: &Error) -> bool {
        let is_accepted = self.accepted.contains(&area);
        match (&error.cause, error.status) {
            (Cause::Refused | Cause::NotFound { .. } | Cause::Gone { .. } | Cause::Forbidden { .. }, _) => {
                true
            }
            (Cause::Server { .. }, _) => error.reach() == Reach::Record,
            (Cause::Redirect, _) => is_accepted,
            (Cause::Key, _) => false,
            // The token is good for other requests.
            (_, Some(401)) => is_accepted && !self.is_expired(area),
            _ => false,
        }
    }

    fn is_expired(&self, area: Area) -> bool {
        let now_ms = Moment::now().micros() / 1_000;
        matches!(self.areas.get(&area), Some(Ok(access)) if access.expires_ms <= now_ms)
    }

    /// Why a call failed. If that reaches further than the request, nothing is sent there any more.
    fn failed(&mut self, request: &ProbeRequest, error: Error) -> String {
        let is_over = error.reach() == Reach::Everything && error.retry() == Retry::Never;
        let (is_key, is_broken) = (matches!(error.cause, Cause::Key), is_broken(&error));
        let is_grant = error.reach() == Reach::Grant;
        self.was_endless = match error.cause {
            Cause::Timeout { limit } => limit != Limit::Connect,
            Cause::TooLarge { .. } => true,
            _ => false,
        };
        // Words of the answer may hold data.
        let reason = harmless(&ErrorChain(&Error { excerpt: None, ..error }).to_string());
        self.broken += u32::from(is_broken);
        if is_key {
            self.closed.insert(request.api().to_owned(), reason.clone());
        } else if self.broken >= MAX_BROKEN_CALLS || (self.accepted.is_empty() && (is_broken || is_over)) {
            self.stopped = Some(reason.clone());
        } else if is_grant {
            self.areas.insert(request.area, Err(reason.clone()));
        }
        reason
    }
}

impl ProbeRequest {
    /// The API, by the beginning of the path.
    pub(super) fn api(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }
}

/// Whether there was no connection, or it broke.
fn is_broken(error: &Error) -> bool {
    matches!(error.cause, Cause::Unreachable(_) | Cause::Truncated(_))
}

impl Observations {
    /// Whether a transcript lacks the exchanges that follow.
    pub(super) const fn exceeds_tape(&self) -> bool {
        self.bytes > MAX_TAPE_BYTES
    }

    fn observe(&mut self, answers: &[RawAnswer]) {
        self.requests += 1;
        for answer in answers {
            self.answers += 1;
            self.bytes += answer.body.len();
            self.throttled += usize::from(answer.status == 429);
            self.ahead_ms.extend(ahead_ms(answer));
            self.limits.extend(limit_headers(answer));
        }
    }
}

/// How far the provider's clock is ahead by the date of an answer, which is rounded down to seconds.
pub(super) fn ahead_ms(answer: &RawAnswer) -> Option<i64> {
    let ms = |time: SystemTime| -> Option<i64> {
        i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
    };
    let times = answer.times;
    let middle = i64::midpoint(ms(times.sent)?, ms(times.answered)?);
    // A cached answer has the date of its creation.
    let age = times.age.map_or(0, |age| i64::try_from(age.as_millis()).unwrap_or_default());
    Some(ms(times.date?)? + age + 500 - middle)
}

/// Headers about limits. Only values are shown that are a date, or consist of numbers and the words of such headers.
pub(super) fn limit_headers(answer: &RawAnswer) -> BTreeMap<String, String> {
    let names: BTreeSet<&str> = answer.headers.keys().map(http::HeaderName::as_str).collect();
    let is_limit = |name: &&str| {
        ["retry-after", "ratelimit", "rate-limit", "quota"].iter().any(|part| name.contains(part))
    };
    let is_plain = |text: &&str| text.len() <= MAX_LIMIT_CHARS && (is_date(text) || is_limit_value(text));
    let value = |name: &str| answer.header(name).filter(is_plain).unwrap_or("(not shown)").to_owned();
    names.into_iter().filter(is_limit).map(|name| (name.to_owned(), value(name))).collect()
}

/// Whether a value consists of numbers and words such as in `limit=100, remaining=7` and `100;w=60`.
fn is_limit_value(text: &str) -> bool {
    text.split([' ', ',', ';', '=']).all(|word| {
        ["limit", "remaining", "reset", "q", "r", "t", "w"].contains(&word)
            || word.chars().all(|one| one.is_ascii_digit() || one == '.')
    })
}

/// Whether a value is an HTTP date: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn is_date(text: &str) -> bool {
    let days = ["Mon, ", "Tue, ", "Wed, ", "Thu, ", "Fri, ", "Sat, ", "Sun, "];
    days.iter().any(|day| text.starts_with(day)) && Moment::parse_http(text).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use provider::api::ReadTimes;

    use super::*;

    #[test]
    fn limit_headers_show_numbers_words_and_dates_only() {
        let now = SystemTime::now();
        let times = ReadTimes { sent: now, answered: now, date: None, age: None };
        for (value, is_shown) in [
            ("17", true),
            ("limit=100, remaining=7, reset=1.5", true),
            ("100;w=60", true),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Ana, 06 Nov 1994 08:49:37 GMT", false),
            ("100 for Ana", false),
        ] {
            let name = http::HeaderName::from_static("x-ratelimit-policy");
            let headers = http::HeaderMap::from_iter([(name, http::HeaderValue::from_static(value))]);
            let answer = RawAnswer { status: 200, headers, body: String::new().into(), times };

            let shown = limit_headers(&answer);

            let expected = if is_shown { value } else { "(not shown)" };
            assert_eq!(shown["x-ratelimit-policy"], expected);
        }
    }
}
