//! Plain data without I/O: the provider's events and records, and the records we write.
//!
//! Received bytes are parsed into an event or a record ([`AccountingEvent`], [`Customer`] …). Each is a [`Value`], which gets its
//! topic, key and headers as [`Outgoing`] and leaves the crate as [`EncodedRecord`].
//!
//! Invariants, each checked by a test:
//!
//! - nothing the provider sent is lost: JSON → struct → JSON keeps every member, also repeated and unknown ones;
//! - the company part of a record's key is the key of its events ([`Key`]);
//! - versions compare as numbers, never as text or by our clock ([`Stamp`]);
//! - names, paths, topics and schemas come from one table each ([`AccountingResource`], [`InvoicingEntity`]).
//!
//! On failure: an [`Error`] that names the input and the rule; a retry never helps. Nothing here panics, logs or waits. This
//! crate imports none of our other crates, so that all of them may use it.

mod certificate;
mod encoded;
mod entity;
mod error;
mod event;
mod ids;
mod invoicing;
mod key;
mod ledger;
mod list;
mod members;
mod names;
mod outgoing;
mod quote;
mod record;
mod resource;
mod schema;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod topic;
mod trace;
mod value;
mod version;

pub use certificate::{
    Certificate, CertificateCounts, CertificateMethod, CertificateReading, CertificateRecords,
    CertificateScope,
};
pub use encoded::EncodedRecord;
pub use entity::{InvoicingAction, InvoicingEntity, InvoicingHook};
pub use error::Error;
pub use event::{
    AccountingData, AccountingEnvelope, AccountingEvent, AccountingEventType, EventKind,
    ExtraPartitionInformation, Reception,
};
pub use ids::{CompanyId, PayrollCompanyCode, RecordId, RunId, TenantId, WebhookId};
pub use invoicing::{
    InvoicingChange, InvoicingContext, InvoicingEnvelope, InvoicingEvent, InvoicingNotification,
};
pub use key::{Key, Partitioning};
pub use ledger::{
    Acknowledge, DeliveryInterval, DeliveryIntervals, DesiredRunState, Difference, Echo, Fingerprint, Gap,
    GapAccepted, GapCause, GapState, HistoryEntry, ListComparison, ListCounts, ListProgress, Nonce,
    ReceiverReport, Repair, RepairState, Run, RunCommand, RunKind, RunProgress, RunWork, ShardRun,
    ShardState, ShardTimes, StreamStart, Subscription, SubscriptionCommand, SubscriptionCommandDone,
    SubscriptionPhase, SubscriptionRegistration, SubscriptionTimes, Target, TargetStart, Traffic,
    Verification,
};
pub use list::List;
pub use members::Extra;
pub use outgoing::{Origin, Outgoing, RecordMeta};
pub use quote::{QUOTE_LIMIT, Quote, is_printable, without_quotes};
pub use record::{Account, Company, Customer, PayrollCompany, Record};
pub use resource::{AccountingResource, RemovalKind, ResourceArea};
pub use schema::SchemaKind;
pub use time::Moment;
pub use topic::{Cleanup, Topic, TopicPrefix};
pub use trace::Traceparent;
pub use value::Value;
pub use version::{Comparison, Epoch, Rank, SequenceVersion, Stamp, Version};
