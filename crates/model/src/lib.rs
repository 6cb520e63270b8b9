//! Plain data: what the provider says, and what becomes of it, without any I/O.
//!
//! The path of data: bytes that arrived become an event or a record ([`AccountingEvent`], [`Customer`] …),
//! any of them is a [`Value`], a value gets its topic, key and headers as [`Outgoing`], and leaves the crate
//! as [`EncodedRecord`].
//!
//! Invariants, each held by a test:
//!
//! - nothing the provider sent is lost: JSON → struct → JSON gives every member back, repeated and unknown
//!   ones included;
//! - the company part of a record's key is the key of its events ([`Key`]);
//! - versions compare as numbers, never as text or by our clock ([`Stamp`]);
//! - names, paths, topics and schemas come from one table each ([`AccountingResource`], [`InvoicingEntity`]).
//!
//! On failure: an [`Error`] that names the thing and the rule. Trying again never helps. Nothing here panics,
//! logs or waits, and nothing of ours is imported, so that every other crate may use this one.

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

pub use certificate::{Certificate, CertificateMethod};
pub use encoded::EncodedRecord;
pub use entity::{InvoicingAction, InvoicingEntity, InvoicingHook};
pub use error::Error;
pub use event::{AccountingEvent, AccountingEventType, EventKind, ExtraPartitionInformation, Reception};
pub use ids::{CompanyId, PayrollCompanyCode, RecordId, RunId, TenantId, WebhookId};
pub use invoicing::{InvoicingChange, InvoicingContext, InvoicingEnvelope, InvoicingEvent};
pub use key::{Key, Partitioning};
pub use ledger::{
    Acknowledge, DeliveryInterval, DeliveryIntervals, DesiredRunState, Difference, Echo, Fingerprint, Gap,
    GapAccepted, GapCause, GapState, HistoryEntry, ListProgress, Nonce, ReceiverReport, Repair, RepairState,
    Run, RunCommand, RunKind, RunProgress, ShardState, StreamStart, Subscription, SubscriptionCommand,
    SubscriptionCommandDone, SubscriptionPhase, Target, TargetStart, Traffic,
};
pub use list::List;
pub use members::Extra;
pub use outgoing::{Origin, Outgoing, RecordMeta};
pub use quote::{QUOTE_LIMIT, Quote, is_printable, without_quotes};
pub use record::{Account, Company, Customer, PayrollCompany, Record};
pub use resource::{AccountingResource, Area, RemovalKind};
pub use schema::SchemaKind;
pub use time::Moment;
pub use topic::{Cleanup, Topic, TopicPrefix};
pub use trace::Traceparent;
pub use value::Value;
pub use version::{Comparison, Epoch, Rank, SequenceVersion, Stamp, Version};
