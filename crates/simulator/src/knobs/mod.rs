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

knobs! {
    /// The gateway.
    pub struct GatewayKnobs {
        /// What every answer waits.
        pub latency: Latency = Latency::None,
        /// Requests allowed in a time, over all areas.
        pub rate: Option<Rate> = None,
        /// Requests allowed in a longer time: then 403.
        pub quota: Option<Rate> = None,
        /// Status for an access token that has expired.
        pub expired_token: ExpiredToken = ExpiredToken::Unauthorized,
        /// Resources whose by-id path the gateway does not know: 404 with its own body.
        pub unknown_paths: BTreeSet<Resource> = BTreeSet::new(),
        /// Answers of a KiB or more are compressed for clients that say they can read that.
        pub gzip: bool = true,
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
    pub tells: RetryHint,
}

knobs! {
    /// Lists and records.
    pub struct ReadKnobs {
        /// The largest page, and what happens above it.
        pub max_page_size: u32 = 1_000,
        /// Above the largest page.
        pub over_max: OverMax = OverMax::Clamp,
        /// Payroll refuses a request without both paging parameters.
        pub payroll_paging_required: bool = true,
        /// `X-Pagination` on accounting lists; `payrollTotal` says whether payroll has it.
        pub accounting_pagination: bool = false,
        /// What an empty list looks like.
        pub empty_list: EmptyList = EmptyList::Array,
        /// `context` on the company list.
        pub companies_context: CompaniesContext = CompaniesContext::Absent,
        /// Order of lists where none is asked for.
        pub order: ListOrder = ListOrder::Created,
        /// What happens to a list between two of its pages.
        pub churn: Churn = Churn::default(),
        /// Where a disabled record still shows.
        pub disabled: DisabledShows = DisabledShows::Everywhere,
        /// List rows carry less than the by-id record.
        pub thin_rows: bool = false,
        /// Records carry fields the document does not show.
        pub extra_fields: bool = false,
        /// Rows with the state `Template` and no correlation id at the end of each account list.
        pub template_accounts: u32 = 0,
        /// Reads show the world as it was so long ago, milliseconds.
        pub replica_lag: u64 = 0,
        /// The share of reads that go to the lagging replica.
        pub replica_share: f64 = 1.0,
        /// Status for a company that the caller does not know: 400, 403 or 404.
        pub unknown_company: Status = Status::FORBIDDEN,
        /// Whether a full timestamp is understood in a payroll filter, or a date alone.
        pub filter_timestamps: bool = true,
        /// What becomes of a payroll filter.
        pub payroll_filter: Parameter = Parameter::Heeded,
        /// What becomes of `OrderBy`.
        pub payroll_order: Parameter = Parameter::Heeded,
        /// `totalCount` of the payroll list.
        pub payroll_total: PayrollTotal = PayrollTotal::Absent,
        /// The number of the first page, and what page 0 is otherwise.
        pub first_page: FirstPage = FirstPage::One,
        /// Records by id, and what records may leave out.
        pub records: RecordKnobs = RecordKnobs::default(),
    }
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

knobs! {
    /// Webhooks of the accounting family.
    pub struct AccountingKnobs {
        /// Waits before each further attempt of a delivery, milliseconds; after the last the webhook is disabled.
        pub retries: Vec<u64> = vec![1_000, 5_000, 30_000, 120_000, 600_000],
        /// When the Acknowledge is sent. Before the answer, while `delivery.hold` is on, the answer waits until that is off.
        pub acknowledge: AcknowledgeTime = AcknowledgeTime::AfterAnswer,
        /// What happens when an Acknowledge, of a subscribe or of a change, fails for good.
        pub failed_acknowledge: FailedAcknowledge = FailedAcknowledge::StaysAwaiting,
        /// Only the transitions of the document's table; otherwise also those a generous provider might allow.
        pub strict_transitions: bool = true,
        /// What a change of url answers.
        pub change_answer: ChangeAnswer = ChangeAnswer::Result,
        /// HTTP status of an operation that failed.
        pub failure_status: Status = Status::UNPROCESSABLE,
        /// `responseState` of an operation that failed.
        pub failure_state: i64 = 0,
        /// Elements of `errors` are objects with `code` and `message`, or bare text.
        pub error_objects: bool = true,
        /// The most webhooks of one resource.
        pub max_webhooks: Option<u32> = None,
        /// What `Timestamp` counts from.
        pub timestamp: TimestampEpoch = TimestampEpoch::DotNet,
        /// Minutes `Timestamp` is ahead of UTC.
        pub timestamp_offset: i64 = 0,
    }
}

choices! { "camelCase";
    /// How a refusal tells when to come back.
    #[derive(Default)]
    pub enum RetryHint {
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
    pub enum ExpiredToken {
        /// 401.
        Unauthorized,
        /// 500.
        ServerError,
    }

    /// A query parameter whose grammar the document does not give.
    pub enum Parameter {
        /// It does what its words say.
        Heeded,
        /// The answer is the same without it.
        Ignored,
        /// The answer is an empty list.
        Empty,
        /// 400.
        Refused,
    }

    /// `totalCount` of the payroll list.
    pub enum PayrollTotal {
        /// The rows that the parameters let through.
        Right,
        /// There is no `X-Pagination`: the document shows none.
        Absent,
        /// One row more than there are.
        Wrong,
    }

    /// The number of the first page.
    pub enum FirstPage {
        /// 1; page 0 is refused.
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
    pub enum OverMax {
        /// The largest is used, silently.
        Clamp,
        /// 400.
        Refuse,
    }

    /// An empty list.
    pub enum EmptyList {
        /// `[]`.
        Array,
        /// No body.
        Nothing,
        /// `null`.
        Null,
    }

    /// `context` on the company list.
    pub enum CompaniesContext {
        /// Absent or `none`.
        Either,
        /// It must be absent, as the document shows it.
        Absent,
        /// It must be `none`.
        None,
    }

    /// Order of a list.
    pub enum ListOrder {
        /// Oldest first: what is new comes last.
        Created,
        /// Newest first: what is new moves everything.
        Newest,
        /// By something unrelated to time: what is new comes anywhere.
        Scattered,
        /// Last changed last: what changes moves to the end.
        Changed,
    }

    /// Where a disabled record still shows.
    pub enum DisabledShows {
        /// In lists and by id, with its state.
        Everywhere,
        /// By id only.
        ById,
        /// Nowhere: 404.
        Nowhere,
    }

    /// When the Acknowledge is sent.
    pub enum AcknowledgeTime {
        /// Once the operation has been answered.
        AfterAnswer,
        /// First, and the answer waits for its first attempt: for as long as `delivery.hold` lasts, too.
        BeforeAnswer,
        /// Never, so the webhook awaits its contract for ever.
        Never,
    }

    /// What becomes of a webhook whose Acknowledge failed for good.
    pub enum FailedAcknowledge {
        /// It waits for ever.
        StaysAwaiting,
        /// It is deleted.
        Deleted,
    }

    /// The answer to a change of url, whose shape is not shown.
    pub enum ChangeAnswer {
        /// An operation result.
        Result,
        /// The configuration record.
        Record,
        /// No body.
        Nothing,
    }

    /// What `Timestamp` counts from.
    pub enum TimestampEpoch {
        /// The year 1.
        DotNet,
        /// 1601.
        FileTime,
    }
}
