//! Everything about the provider that may be turned while it runs: what its document leaves open, and what goes wrong.
//!
//! The default is a provider that behaves, read strictly from its document. Where the document says "not shown", a knob
//! offers every way it may turn out. Knobs are plain data: JSON over `/_control/knobs`, or a closure in the same process.

mod delivery;
mod fault;
mod identity;
mod invoicing;
mod latency;
mod profile;
mod records;
mod status;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::{
    delivery::{Accepts, DeliveryKnobs, ReceiverUrls},
    fault::{Effect, Fault, Target},
    identity::{BadClient, Endpoint, IdentityFault, IdentityKnobs, Pkce, RefreshLife},
    invoicing::{EchoTime, InvoicingBody, InvoicingKnobs, ReceiverPaths},
    latency::Latency,
    records::{CompanyContext, LeftOut, MissingBody, RecordKnobs},
    status::Status,
};
use super::catalog::Resource;

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

/// The gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Answers of a KiB or more are compressed for clients that say they can read that.
    pub gzip: bool,
}

impl Default for GatewayKnobs {
    fn default() -> Self {
        Self {
            latency: Latency::None,
            rate: None,
            quota: None,
            expired_token: ExpiredToken::Unauthorized,
            unknown_paths: BTreeSet::new(),
            gzip: true,
        }
    }
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
    /// `X-Pagination` on accounting lists; `payrollTotal` says whether payroll has it.
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
    pub unknown_company: Status,
    /// Whether a full timestamp is understood in a payroll filter, or a date alone.
    pub filter_timestamps: bool,
    /// What becomes of a payroll filter.
    pub payroll_filter: Parameter,
    /// What becomes of `OrderBy`.
    pub payroll_order: Parameter,
    /// `totalCount` of the payroll list.
    pub payroll_total: PayrollTotal,
    /// The number of the first page, and what page 0 is otherwise.
    pub first_page: FirstPage,
    /// Records by id, and what records may leave out.
    pub records: RecordKnobs,
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
            companies_context: CompaniesContext::Absent,
            order: ListOrder::Created,
            churn: Churn::default(),
            disabled: DisabledShows::Everywhere,
            thin_rows: false,
            extra_fields: false,
            template_accounts: 0,
            replica_lag: 0,
            replica_share: 1.0,
            unknown_company: Status::FORBIDDEN,
            filter_timestamps: true,
            payroll_filter: Parameter::Heeded,
            payroll_order: Parameter::Heeded,
            payroll_total: PayrollTotal::Absent,
            first_page: FirstPage::One,
            records: RecordKnobs::default(),
        }
    }
}

/// A query parameter whose grammar the document does not give.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Parameter {
    /// It does what its words say.
    #[default]
    Heeded,
    /// The answer is the same without it.
    Ignored,
    /// The answer is an empty list.
    Empty,
    /// 400.
    Refused,
}

/// `totalCount` of the payroll list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PayrollTotal {
    /// The rows that the parameters let through.
    Right,
    /// There is no `X-Pagination`: the document shows none.
    #[default]
    Absent,
    /// One row more than there are.
    Wrong,
}

/// The number of the first page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FirstPage {
    /// 1; page 0 is refused.
    #[default]
    One,
    /// 1; page 0 is the same.
    OneOrZero,
    /// 1; page 0 is empty.
    OneZeroEmpty,
    /// 1; page 0 is answered 500.
    OneZeroFails,
    /// 0.
    Zero,
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
    Either,
    /// It must be absent, as the document shows it.
    #[default]
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
    /// When the Acknowledge is sent. Before the answer, while `delivery.hold` is on, the answer waits until that is off.
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
    pub failure_status: Status,
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
            failure_status: Status::UNPROCESSABLE,
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
    /// First, and the answer waits for its first attempt: for as long as `delivery.hold` lasts, too.
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
    /// Those with the same name, url, secret and event types: the active ones, or without `strictTransitions` all that
    /// have not ended.
    #[default]
    SameBody,
    /// Those with the same url, in the same states.
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
