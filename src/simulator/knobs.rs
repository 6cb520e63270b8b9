//! Everything about the provider that may be turned while it runs: what its document leaves open, and what goes wrong.
//!
//! The default is a provider that behaves, read strictly from its document. Where the document says "not shown", a knob
//! offers every way it may turn out. Knobs are plain data: JSON over `/_control/knobs`, or a closure in the same process.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use super::{catalog::Resource, random::Random};

/// All knobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Knobs {
    /// Changes the world makes by itself in a second.
    pub changes_per_second: f64,
    /// Identity provider.
    pub identity: IdentityKnobs,
    /// Gateway in front of every API.
    pub gateway: GatewayKnobs,
    /// Lists and records.
    pub reads: ReadKnobs,
    /// Webhooks of the accounting family.
    pub accounting: AccountingKnobs,
    /// Webhooks of the invoicing API.
    pub invoicing: InvoicingKnobs,
    /// How deliveries of both families travel.
    pub delivery: DeliveryKnobs,
    /// What goes wrong with API requests: the first rule that fits a request decides.
    pub faults: Vec<Fault>,
}

/// Tokens and the login.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct IdentityKnobs {
    /// Seconds a code may wait to be redeemed.
    pub code_seconds: u64,
    /// Seconds an access token lives.
    pub access_seconds: u64,
    /// How refresh tokens live.
    pub refresh: RefreshLife,
    /// Seconds from the first login after which a refresh token is refused, under [`RefreshLife::Absolute`].
    pub absolute_seconds: u64,
    /// Seconds a refresh token lives from its last use, under [`RefreshLife::Sliding`].
    pub sliding_seconds: u64,
    /// Whether a sliding grant ends with the absolute time all the same.
    pub sliding_capped: bool,
    /// Whether each refresh under [`RefreshLife::Absolute`] returns a new refresh token and ends the old one.
    pub rotate_absolute: bool,
    /// Whether an old refresh token used again ends the whole grant.
    pub reuse_ends_grant: bool,
    /// PKCE: refused, allowed or required.
    pub pkce: Pkce,
    /// Access token payloads begin with the member `$id` twice.
    pub duplicate_id_claim: bool,
    /// The callback carries an `id_token` beside code and state, as the document's table has it. The software behind the
    /// provider sends one only for a hybrid request, so the default leaves it out.
    pub callback_id_token: bool,
    /// Leaves `refresh_token` out of answers to a refresh that did not rotate it.
    pub omit_unrotated: bool,
    /// Status for a wrong client id or secret: 400 `invalid_client`, or 401 `unauthorized_client`.
    pub bad_client: BadClient,
    /// What every answer of the token endpoint waits, milliseconds.
    pub latency: Latency,
    /// The next answers of the token endpoint that are lost after the work was done: the client never sees them.
    pub lose_answers: u32,
    /// The next requests to the token endpoint answered 503 before any work.
    pub unavailable: u32,
    /// What the login page says instead of granting: the callback then carries `error` with this text.
    pub refuse_login: Option<String>,
}

/// How refresh tokens live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefreshLife {
    /// A fixed time from the first login.
    #[default]
    Absolute,
    /// A time from the last use; each use returns a new token.
    Sliding,
}

/// What the client may do with PKCE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Pkce {
    /// A `code_verifier` is refused with `invalid_grant`.
    #[default]
    Refused,
    /// Checked where used.
    Allowed,
    /// S256 is needed.
    Required,
}

/// How a wrong client is told so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BadClient {
    /// 400 `invalid_client`.
    #[default]
    InvalidClient,
    /// 401 `unauthorized_client`.
    UnauthorizedClient,
}

impl Default for IdentityKnobs {
    fn default() -> Self {
        Self {
            code_seconds: 300,
            access_seconds: 3_600,
            refresh: RefreshLife::Absolute,
            absolute_seconds: 30 * 86_400,
            sliding_seconds: 15 * 86_400,
            sliding_capped: false,
            rotate_absolute: true,
            reuse_ends_grant: true,
            pkce: Pkce::Refused,
            duplicate_id_claim: false,
            callback_id_token: false,
            omit_unrotated: false,
            bad_client: BadClient::InvalidClient,
            latency: Latency::None,
            lose_answers: 0,
            unavailable: 0,
            refuse_login: None,
        }
    }
}

/// The gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct GatewayKnobs {
    /// What every answer waits.
    pub latency: Latency,
    /// Requests allowed in a time, over all areas.
    pub rate: Option<Rate>,
    /// Requests allowed in a longer time: then 403.
    pub quota: Option<Rate>,
    /// Status for an access token that has expired.
    pub expired_token: ExpiredToken,
    /// Resources whose by-id path the gateway does not know: 404 with its own body.
    pub unknown_paths: BTreeSet<Resource>,
    /// Refuses payroll with 403, as one integration saw.
    pub payroll_forbidden: bool,
}

/// So many requests in so many seconds, and what the refusal tells.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Rate {
    /// Requests.
    pub requests: u32,
    /// In this many seconds, counted from the first.
    pub seconds: f64,
    /// How the refusal tells when to come back.
    #[serde(default)]
    pub tells: Tells,
}

/// How a refusal tells when to come back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tells {
    /// `Retry-After`, and the seconds in `message`.
    #[default]
    Both,
    /// `Retry-After` alone.
    RetryAfter,
    /// The seconds in `message` alone.
    Message,
    /// Neither.
    Nothing,
}

/// How an expired access token is refused; the provider states both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExpiredToken {
    /// 401.
    #[default]
    Unauthorized,
    /// 500.
    ServerError,
}

/// How long something takes, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Latency {
    /// No longer than it must.
    #[default]
    None,
    /// Always this.
    Fixed(f64),
    /// Evenly between the two.
    Uniform(f64, f64),
    /// Log-normal by median and 99th percentile: mostly quick, sometimes very slow.
    LogNormal {
        /// Half of all take less.
        median: f64,
        /// One in a hundred takes more.
        p99: f64,
    },
}

impl Latency {
    /// How long this one takes: never negative, at most an hour, whatever the knob says.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    pub fn sample(&self, random: &mut Random) -> Duration {
        /// An hour in milliseconds.
        const LONGEST: f64 = 3_600_000.0;
        /// Where 99 % of a standard normal distribution lie below.
        const NORMAL_P99: f64 = 2.326_347_874_040_841;
        let milliseconds = match *self {
            Self::None => return Duration::ZERO,
            Self::Fixed(milliseconds) => milliseconds,
            Self::Uniform(from, to) => from + (to - from) * random.unit(),
            Self::LogNormal { median, p99 } => {
                let spread = (p99 / median).ln().max(0.0) / NORMAL_P99;
                // Box and Muller's transform; 1 - unit is never 0, so the logarithm is finite.
                let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
                median * (spread * normal).exp()
            }
        };
        // What is no number becomes 0 by the cast.
        Duration::from_micros((milliseconds.clamp(0.0, LONGEST) * 1_000.0) as u64)
    }
}

/// Lists and records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ReadKnobs {
    /// Rows of a page when none are asked for.
    pub default_page_size: u32,
    /// The largest page, and what happens above it.
    pub max_page_size: u32,
    /// Above the largest page.
    pub over_max: OverMax,
    /// Payroll refuses a request without both paging parameters.
    pub payroll_paging_required: bool,
    /// `X-Pagination` on accounting lists; payroll always has it.
    pub accounting_pagination: bool,
    /// What an empty list looks like.
    pub empty_list: EmptyList,
    /// `context` on the company list.
    pub companies_context: CompaniesContext,
    /// Order of lists where none is asked for.
    pub order: ListOrder,
    /// What happens to a list between two of its pages.
    pub churn: Churn,
    /// Where a disabled record still shows.
    pub disabled: DisabledShows,
    /// List rows carry less than the by-id record.
    pub thin_rows: bool,
    /// Records carry fields the document does not show.
    pub extra_fields: bool,
    /// Rows with the state `Template` and no correlation id at the end of each account list.
    pub template_accounts: u32,
    /// Reads show the world as it was so long ago, milliseconds.
    pub replica_lag: u64,
    /// The share of reads that go to the lagging replica.
    pub replica_share: f64,
    /// Status for a company that the caller does not know: 400, 403 or 404.
    pub unknown_company: u16,
    /// Whether a full timestamp is understood in a payroll filter, or a date alone.
    pub filter_timestamps: bool,
}

impl Default for ReadKnobs {
    fn default() -> Self {
        Self {
            default_page_size: 100,
            max_page_size: 1_000,
            over_max: OverMax::Clamp,
            payroll_paging_required: true,
            accounting_pagination: false,
            empty_list: EmptyList::Array,
            companies_context: CompaniesContext::Either,
            order: ListOrder::Created,
            churn: Churn::default(),
            disabled: DisabledShows::Everywhere,
            thin_rows: false,
            extra_fields: false,
            template_accounts: 0,
            replica_lag: 0,
            replica_share: 1.0,
            unknown_company: 403,
            filter_timestamps: true,
        }
    }
}

/// A page size above the largest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverMax {
    /// The largest is used, silently.
    #[default]
    Clamp,
    /// 400.
    Refuse,
}

/// An empty list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EmptyList {
    /// `[]`.
    #[default]
    Array,
    /// No body.
    Nothing,
    /// `null`.
    Null,
}

/// `context` on the company list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompaniesContext {
    /// Absent or `none`.
    #[default]
    Either,
    /// It must be absent.
    Absent,
    /// It must be `none`.
    None,
}

/// Order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ListOrder {
    /// Oldest first: what is new comes last.
    #[default]
    Created,
    /// Newest first: what is new moves everything.
    Newest,
    /// By something unrelated to time: what is new comes anywhere.
    Scattered,
    /// Last changed last: what changes moves to the end.
    Changed,
}

/// Between two pages of one list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Churn {
    /// Records added, on average.
    pub inserts: f64,
    /// Records that leave the list, on average. Customers and accounts are never deleted, only disabled: they leave it
    /// while [`ReadKnobs::disabled`] hides disabled records from lists, and only change their state otherwise.
    pub deletes: f64,
    /// Records in use that are changed, on average; under [`ListOrder::Changed`] they move.
    pub updates: f64,
}

/// Where a disabled record still shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DisabledShows {
    /// In lists and by id, with its state.
    #[default]
    Everywhere,
    /// By id only.
    ById,
    /// Nowhere: 404.
    Nowhere,
}

/// Webhooks of the accounting family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AccountingKnobs {
    /// Waits before each further attempt of a delivery, milliseconds; after the last the webhook is disabled.
    pub retries: Vec<u64>,
    /// When the Acknowledge is sent.
    pub acknowledge: AcknowledgeTime,
    /// What happens when an Acknowledge, of a subscribe or of a change, fails for good.
    pub failed_acknowledge: FailedAcknowledge,
    /// Only the transitions of the document's table; otherwise also those a generous provider might allow.
    pub strict_transitions: bool,
    /// Which webhooks an unsubscribe ends.
    pub unsubscribe: Unsubscribe,
    /// What a change of url answers.
    pub change_answer: ChangeAnswer,
    /// HTTP status of an operation that failed.
    pub failure_status: u16,
    /// `responseState` of an operation that failed.
    pub failure_state: i64,
    /// Elements of `errors` are objects with `code` and `message`, or bare text.
    pub error_objects: bool,
    /// The most webhooks of one resource.
    pub max_webhooks: Option<u32>,
    /// What `Timestamp` counts from.
    pub timestamp: TimestampEpoch,
    /// Minutes `Timestamp` is ahead of UTC.
    pub timestamp_offset: i64,
}

impl Default for AccountingKnobs {
    fn default() -> Self {
        Self {
            retries: vec![1_000, 5_000, 30_000, 120_000, 600_000],
            acknowledge: AcknowledgeTime::AfterAnswer,
            failed_acknowledge: FailedAcknowledge::StaysAwaiting,
            strict_transitions: true,
            unsubscribe: Unsubscribe::SameBody,
            change_answer: ChangeAnswer::Result,
            failure_status: 422,
            failure_state: 0,
            error_objects: true,
            max_webhooks: None,
            timestamp: TimestampEpoch::DotNet,
            timestamp_offset: 0,
        }
    }
}

/// When the Acknowledge is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AcknowledgeTime {
    /// Once the operation has been answered.
    #[default]
    AfterAnswer,
    /// First, and the answer waits for its first attempt.
    BeforeAnswer,
    /// Never, so the webhook awaits its contract for ever.
    Never,
}

/// What becomes of a webhook whose Acknowledge failed for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailedAcknowledge {
    /// It waits for ever.
    #[default]
    StaysAwaiting,
    /// It is deleted.
    Deleted,
}

/// Which webhooks an unsubscribe ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unsubscribe {
    /// All active ones with the same name, url, secret and event types.
    #[default]
    SameBody,
    /// All active ones with the same url.
    SameUrl,
}

/// The answer to a change of url, whose shape is not shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeAnswer {
    /// An operation result.
    #[default]
    Result,
    /// The configuration record.
    Record,
    /// No body.
    Nothing,
}

/// What `Timestamp` counts from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TimestampEpoch {
    /// The year 1.
    #[default]
    DotNet,
    /// 1601.
    FileTime,
}

/// Webhooks of the invoicing API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct InvoicingKnobs {
    /// The last segment of a receiver's address.
    pub segment: String,
    /// The receiver's host must be the address the request comes from.
    pub check_origin: bool,
    /// When the echo is asked for.
    pub echo: EchoTime,
    /// The echoed GUID is written with dashes.
    pub echo_dashes: bool,
    /// Fewest characters of a secret.
    pub secret_min: usize,
    /// Most characters of a secret.
    pub secret_max: usize,
    /// Status of a create that worked.
    pub created_status: u16,
    /// Create and delete answer with no body.
    pub silent: bool,
    /// Header of the signature; empty sends none.
    pub signature_header: String,
    /// Body of a notification.
    pub body: InvoicingBody,
    /// `Host` and `SourceApplication` in flat bodies.
    pub extra_members: bool,
    /// Waits before each further attempt, milliseconds; after the last the message is given up, the hook stays.
    pub retries: Vec<u64>,
    /// Seconds a token lives.
    pub token_seconds: u64,
    /// Seconds a refresh token lives.
    pub refresh_seconds: u64,
    /// A refresh token chooses one company and is refused after that.
    pub refresh_once: bool,
}

impl Default for InvoicingKnobs {
    fn default() -> Self {
        Self {
            segment: "Invoicing".to_owned(),
            check_origin: true,
            echo: EchoTime::AfterAnswer,
            echo_dashes: true,
            secret_min: 32,
            secret_max: 64,
            created_status: 200,
            silent: false,
            signature_header: "ms-signature".to_owned(),
            body: InvoicingBody::Flat,
            extra_members: false,
            retries: vec![60_000, 240_000],
            token_seconds: 3_600,
            refresh_seconds: 30 * 86_400,
            refresh_once: false,
        }
    }
}

/// When the echo is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EchoTime {
    /// Once the POST has been answered.
    #[default]
    AfterAnswer,
    /// During the POST: without the echo it is refused with 400.
    DuringPost,
}

/// The body of a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InvoicingBody {
    /// One notification, its fields at the top.
    #[default]
    Flat,
    /// `Id`, `Attempt`, `Properties`, `Notifications[]`, indented.
    Wrapped,
}

/// How deliveries travel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DeliveryKnobs {
    /// The longest a receiver may take, milliseconds.
    pub time_limit: u64,
    /// Which answers count as accepted; an Acknowledge always needs 200.
    pub accepts: Accepts,
    /// Which receiver addresses may be subscribed.
    pub receivers: ReceiverUrls,
    /// Hosts and where they really are, `host` → `address:port`, instead of asking DNS.
    pub resolve: std::collections::BTreeMap<String, std::net::SocketAddr>,
    /// Does not check receivers' certificates.
    pub trust_any: bool,
    /// Deliveries on their way at once.
    pub concurrency: usize,
    /// Deliveries waiting or on their way at most; more are lost, and the journal says so.
    pub pending_limit: usize,
    /// Share sent twice.
    pub duplicate: f64,
    /// Share held back until some later ones of the same webhook and company have gone, or for two seconds.
    pub reorder: f64,
    /// Share never sent.
    pub lose: f64,
    /// What each waits before its first attempt.
    pub delay: Latency,
    /// Sends nothing until off again; what is due waits.
    pub hold: bool,
}

impl Default for DeliveryKnobs {
    fn default() -> Self {
        Self {
            time_limit: 5_000,
            accepts: Accepts::Only200,
            receivers: ReceiverUrls::Https443,
            resolve: std::collections::BTreeMap::new(),
            trust_any: false,
            concurrency: 64,
            pending_limit: 1_000_000,
            duplicate: 0.0,
            reorder: 0.0,
            lose: 0.0,
            delay: Latency::None,
            hold: false,
        }
    }
}

/// Which answers of a receiver count as accepted; the document says both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Accepts {
    /// 200 alone.
    #[default]
    Only200,
    /// Any 2xx.
    Any2xx,
}

/// Which receiver addresses may be subscribed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReceiverUrls {
    /// HTTPS on port 443, as documented.
    #[default]
    Https443,
    /// HTTPS on any port.
    Https,
    /// HTTP too.
    Any,
}

/// One thing that goes wrong with API requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// Which requests.
    #[serde(default)]
    pub on: Target,
    /// What happens to them.
    pub effect: Effect,
    /// The share of them.
    #[serde(default = "always")]
    pub share: f64,
    /// How often at most; 0 switches the rule off.
    #[serde(default)]
    pub times: Option<u32>,
    /// Requests that fit and are left alone first.
    #[serde(default)]
    pub skip: u32,
}

const fn always() -> f64 {
    1.0
}

/// Which requests a fault hits: all of what is set must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Target {
    /// `GET`, `POST`, …
    pub method: Option<String>,
    /// What the path begins with: `/accounting/api/customers`.
    pub path: Option<String>,
    /// What the path ends with: a record's id, for one record that always fails.
    pub ending: Option<String>,
    /// Company in `context`.
    pub company: Option<String>,
    /// `pageNumber`, for one page that always fails.
    pub page: Option<u64>,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// 429; it tells the seconds in one of three ways, or not at all.
    Throttle {
        /// Seconds told.
        seconds: u32,
        /// Where they are told.
        tells: Tells,
    },
    /// 403 of the gateway: the quota is used up, with `Retry-After`.
    Quota {
        /// Seconds told.
        seconds: u32,
    },
    /// This status, with an API error body (or the gateway's, from 502).
    Status(u16),
    /// The gateway's 404.
    UnknownPath,
    /// The connection ends without an answer.
    Drop,
    /// The right answer, cut off in the middle.
    Truncate,
    /// 200 with half the JSON and a length that fits.
    InvalidJson,
    /// The right body under `text/html`.
    WrongContentType,
    /// The right answer, late.
    Delay(Latency),
    /// The right work, but the answer is lost: the connection ends after it.
    LoseAnswer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_normal_latency_has_its_median_and_its_99th_percentile() {
        let latency = Latency::LogNormal { median: 20.0, p99: 400.0 };
        let mut random = Random::new(7, 1);

        let mut samples: Vec<Duration> = (0..20_000).map(|_| latency.sample(&mut random)).collect();
        samples.sort_unstable();

        let (median, p99) = (samples[10_000].as_secs_f64() * 1e3, samples[19_800].as_secs_f64() * 1e3);
        assert!((18.0..22.0).contains(&median), "{median}");
        assert!((330.0..480.0).contains(&p99), "{p99}");
    }

    #[test]
    fn a_uniform_latency_stays_between_its_ends_whichever_comes_first() {
        let mut random = Random::new(7, 2);

        for latency in [Latency::Uniform(5.0, 9.0), Latency::Uniform(9.0, 5.0)] {
            for _ in 0..1_000 {
                let sample = latency.sample(&mut random);
                assert!(
                    (Duration::from_millis(5)..=Duration::from_millis(9)).contains(&sample),
                    "{sample:?}"
                );
            }
        }
    }

    #[test]
    fn a_latency_that_makes_no_sense_is_none_or_an_hour() {
        let mut random = Random::new(7, 3);

        for (latency, expected) in [
            (Latency::None, 0),
            (Latency::Fixed(1.5), 1_500),
            (Latency::Fixed(-3.0), 0),
            (Latency::Fixed(f64::NAN), 0),
            (Latency::Fixed(f64::INFINITY), 3_600_000_000),
            (Latency::LogNormal { median: 0.0, p99: 0.0 }, 0),
            (Latency::LogNormal { median: -1.0, p99: 5.0 }, 0),
            (Latency::LogNormal { median: 3.0, p99: 1.0 }, 3_000),
        ] {
            assert_eq!(latency.sample(&mut random), Duration::from_micros(expected), "{latency:?}");
        }
    }
}
