//! Knobs: everything about the provider that can be changed while it runs.
//!
//! The default is a strict reading of the document without faults. Where the document says "not shown", a knob has a value
//! for each way the provider may behave. Knobs are plain data: JSON at `/_control/knobs`, or a closure in the same process.

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
    fault::{Effect, Fault, FaultTarget},
    identity::{BadClient, IdentityEndpoint, IdentityFault, IdentityKnobs, Pkce, RefreshLife},
    invoicing::{EchoTime, InvoicingBody, InvoicingKnobs, ReceiverPaths},
    latency::Latency,
    records::{CompanyContext, LeftOut, MissingBody, RecordKnobs},
    status::HttpStatus,
};
use super::catalog::Resource;

/// All knobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Knobs {
    /// Changes that the world makes by itself, per second.
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
    /// Deliveries of both families.
    pub delivery: DeliveryKnobs,
    /// Faults of API requests: the first rule that applies decides.
    pub faults: Vec<Fault>,
}

knobs! {
    /// The gateway.
    pub struct GatewayKnobs {
        /// Latency of every answer.
        pub latency: Latency = Latency::None,
        /// Requests per window, over all areas; more get 429.
        pub rate: Option<Rate> = None,
        /// Requests per longer window; more get 403.
        pub quota: Option<Rate> = None,
        /// Status for an access token that has expired.
        pub expired_token: ExpiredToken = ExpiredToken::Unauthorized,
        /// Resources whose by-id path is unknown to the gateway: 404 with its own body.
        pub unknown_paths: BTreeSet<Resource> = BTreeSet::new(),
        /// Compresses answers of 1 KiB or more for clients that accept gzip.
        pub gzip: bool = true,
    }
}

/// A limit of requests per window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Rate {
    /// Requests.
    pub requests: u32,
    /// Length of the window, which starts with the first request.
    pub seconds: f64,
    /// What the refusal says about the next request.
    #[serde(default)]
    pub tells: RetryHint,
}

knobs! {
    /// Lists and records.
    pub struct ReadKnobs {
        /// The largest page.
        pub max_page_size: u32 = 1_000,
        /// What happens to a larger page size.
        pub over_max: OverMax = OverMax::Clamp,
        /// Requires both paging parameters on the payroll list.
        pub payroll_paging_required: bool = true,
        /// Sends `X-Pagination` on accounting lists; for payroll see `payrollTotal`.
        pub accounting_pagination: bool = false,
        /// Form of an empty list.
        pub empty_list: EmptyList = EmptyList::Array,
        /// `context` on the company list.
        pub companies_context: CompaniesContext = CompaniesContext::Absent,
        /// Order of lists without `OrderBy`.
        pub order: ListOrder = ListOrder::Created,
        /// Changes to a list between two of its pages.
        pub churn: Churn = Churn::default(),
        /// Where disabled records appear.
        pub disabled: DisabledShows = DisabledShows::Everywhere,
        /// List rows have fewer fields than the by-id record.
        pub thin_rows: bool = false,
        /// Records have fields that the document does not show.
        pub extra_fields: bool = false,
        /// Rows with the state `Template` and no `correlationId` at the end of each account list.
        pub template_accounts: u32 = 0,
        /// Reads show the world as of this many milliseconds ago.
        pub replica_lag: u64 = 0,
        /// The share of reads that go to the lagging replica.
        pub replica_share: f64 = 1.0,
        /// Status for a company unknown to the caller: 400, 403 or 404.
        pub unknown_company: HttpStatus = HttpStatus::FORBIDDEN,
        /// Whether a payroll filter may have a timestamp instead of a date.
        pub filter_timestamps: bool = true,
        /// What happens to a payroll filter.
        pub payroll_filter: Parameter = Parameter::Heeded,
        /// What happens to `OrderBy`.
        pub payroll_order: Parameter = Parameter::Heeded,
        /// `totalCount` of the payroll list.
        pub payroll_total: PayrollTotal = PayrollTotal::Absent,
        /// The number of the first page, and what page 0 does otherwise.
        pub first_page: FirstPage = FirstPage::One,
        /// Records read by id, and members that records may omit.
        pub records: RecordKnobs = RecordKnobs::default(),
    }
}

/// Changes to a list between two of its pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Churn {
    /// Records added, on average.
    pub inserts: f64,
    /// Records that leave the list, on average. Customers and accounts are only disabled: they leave it while
    /// [`ReadKnobs::disabled`] hides disabled records from lists.
    pub deletes: f64,
    /// Enabled records that are changed, on average; they move under [`ListOrder::Changed`].
    pub updates: f64,
}

knobs! {
    /// Webhooks of the accounting family.
    pub struct AccountingKnobs {
        /// Delays before each retry, milliseconds. After the last the webhook is disabled.
        pub retries: Vec<u64> = vec![1_000, 5_000, 30_000, 120_000, 600_000],
        /// When the Acknowledge is sent.
        pub acknowledge: AcknowledgeTime = AcknowledgeTime::AfterAnswer,
        /// What happens to a webhook whose Acknowledge failed after all retries.
        pub failed_acknowledge: FailedAcknowledge = FailedAcknowledge::StaysAwaiting,
        /// Allows only the transitions of the document's table; otherwise also those a generous provider might allow.
        pub strict_transitions: bool = true,
        /// Answer to a change of url.
        pub change_answer: ChangeAnswer = ChangeAnswer::Result,
        /// HTTP status of a failed operation.
        pub failure_status: HttpStatus = HttpStatus::UNPROCESSABLE,
        /// `responseState` of a failed operation.
        pub failure_state: i64 = 0,
        /// Elements of `errors` are objects with `code` and `message`; otherwise strings.
        pub error_objects: bool = true,
        /// Webhooks per resource at most.
        pub max_webhooks: Option<u32> = None,
        /// Epoch of `Timestamp`.
        pub timestamp: TimestampEpoch = TimestampEpoch::DotNet,
        /// Minutes that `Timestamp` is ahead of UTC.
        pub timestamp_offset: i64 = 0,
    }
}

choices! { "camelCase";
    /// Where a refusal says when to retry.
    #[derive(Default)]
    pub enum RetryHint {
        /// `Retry-After` and `message`.
        #[default]
        Both,
        /// `Retry-After` alone.
        RetryAfter,
        /// `message` alone.
        Message,
        /// Neither.
        Nothing,
    }

    /// Status for an expired access token; the provider states both.
    pub enum ExpiredToken {
        /// 401.
        Unauthorized,
        /// 500.
        ServerError,
    }

    /// A query parameter whose grammar the document does not show.
    pub enum Parameter {
        /// It is applied.
        Heeded,
        /// It is ignored.
        Ignored,
        /// It empties the list.
        Empty,
        /// 400.
        Refused,
    }

    /// `totalCount` of the payroll list.
    pub enum PayrollTotal {
        /// The number of rows that match.
        Right,
        /// No `X-Pagination`: the document shows none.
        Absent,
        /// One more than there are.
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

    /// A page size above the maximum.
    pub enum OverMax {
        /// The maximum is used.
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
        /// Oldest first: new rows come last.
        Created,
        /// Newest first: new rows shift all others.
        Newest,
        /// Unrelated to time: new rows come anywhere.
        Scattered,
        /// Last changed last: changed rows move to the end.
        Changed,
    }

    /// Where disabled records appear.
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
        /// After the operation has been answered.
        AfterAnswer,
        /// Before the answer, which waits for the first attempt, also while `delivery.hold` is on.
        BeforeAnswer,
        /// Never: the webhook stays awaiting its contract.
        Never,
    }

    /// What happens to a webhook whose Acknowledge failed after all retries.
    pub enum FailedAcknowledge {
        /// It stays awaiting its contract.
        StaysAwaiting,
        /// It is deleted.
        Deleted,
    }

    /// The answer to a change of url, which the document does not show.
    pub enum ChangeAnswer {
        /// An operation result.
        Result,
        /// The configuration record.
        Record,
        /// No body.
        Nothing,
    }

    /// The epoch of `Timestamp`.
    pub enum TimestampEpoch {
        /// The year 1.
        DotNet,
        /// 1601.
        FileTime,
    }
}
