//! Notification envelopes.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use crate::{
    catalog::{Kind, Resource},
    clock::{SECOND, Ticks},
    knobs::{AccountingKnobs, TimestampEpoch},
    random::Guid,
    world::RecordChange,
};

/// `JsonData` of an Acknowledge.
pub(super) const ACKNOWLEDGE_DATA: &str = r#"{"Arguments":"Acknowledge"}"#;

/// The body of a notification, with the document's fields in its order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NotificationEnvelope<'a> {
    pub(super) webhook_id: Guid,
    pub(super) outgoing_id: Guid,
    pub(super) conversation_id: Guid,
    pub(super) tenant_id: &'a str,
    pub(super) extra_partition_information: PartitionInformation<'a>,
    pub(super) event_type: &'a EventDescriptor,
    pub(super) timestamp: i64,
    pub(super) json_data: &'a str,
    pub(super) user_identifier: Guid,
}

/// An event of a resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct EventDescriptor {
    pub(super) app_name: &'static str,
    pub(super) domain: &'static str,
    pub(super) resource: String,
    pub(super) event_type: String,
    pub(super) semantic_name: Arc<str>,
}

impl EventDescriptor {
    /// The event for a kind of change.
    pub(super) fn of(resource: Resource, kind: Kind) -> Self {
        Self::new(resource, resource.event_type(kind))
    }

    /// The event with this event type.
    pub(super) fn new(resource: Resource, event_type: String) -> Self {
        let (app_name, domain, plural) = (resource.app_name(), resource.domain(), resource.plural());
        let semantic_name = format!("{app_name}.{domain}.{plural}.{event_type}").into();
        Self { app_name, domain, resource: plural, event_type, semantic_name }
    }
}

/// `ExtraPartitionInformation`; empty for an Acknowledge.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PartitionInformation<'a> {
    /// `None` for records of no company.
    #[serde(rename = "PartitionClientId", skip_serializing_if = "Option::is_none")]
    pub(super) company: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user_name: Option<&'static str>,
}

/// `JsonData` of a change or a failed write.
pub(super) fn change_data(change: &RecordChange, record: &str, process: Guid) -> String {
    let action = match change.kind {
        Kind::Created => "Create",
        Kind::Deleted => "Delete",
        Kind::Disabled => "Disable",
        Kind::Updated => "Update",
        Kind::ErrorOccurred => {
            let error = "the write was refused, the record is as it was";
            return json!({ "CorrelationId": record, "Error": error }).to_string();
        }
    };
    json!({
        "CorrelationId": record,
        "Version": change.row.changed.month_first(),
        "SequenceVersion": change.row.sequence.to_string(),
        // Both origins that the document names: the application, and the API.
        "SvcSourceInterface": if process.0 & 1 == 0 { "Application" } else { "Api" },
        "SvcProcessId": process,
        "SvcSourceAction": action,
    })
    .to_string()
}

/// `Timestamp` of a moment by the knobs.
pub(super) fn timestamp(at: Ticks, knobs: &AccountingKnobs) -> i64 {
    /// Some 190 years; beyond, `Timestamp` would have more than 18 digits.
    const FURTHEST: i64 = 100_000_000;
    let minutes = knobs.timestamp_offset.clamp(-FURTHEST, FURTHEST);
    let local = Ticks(at.0.saturating_add(minutes * 60 * SECOND).clamp(i64::MIN / 2, i64::MAX / 2));
    match knobs.timestamp {
        TimestampEpoch::DotNet => local.dotnet(),
        TimestampEpoch::FileTime => local.filetime(),
    }
}
