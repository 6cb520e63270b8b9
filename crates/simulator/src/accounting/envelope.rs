//! The notification envelope, written by hand into one buffer.

use std::io::Write as _;

use crate::{
    catalog::Kind,
    clock::{SECOND, Ticks},
    json,
    knobs::{AccountingKnobs, TimestampEpoch},
    random::Guid,
    world::RecordChange,
};

/// `JsonData` of an Acknowledge.
pub(super) const ACKNOWLEDGE_DATA: &str = r#"{"Arguments":"Acknowledge"}"#;

/// One POST body.
#[derive(Debug)]
pub(super) struct Envelope<'a> {
    pub(super) webhook: Guid,
    pub(super) outgoing: Guid,
    pub(super) conversation: Guid,
    pub(super) tenant: &'a str,
    /// None for an Acknowledge.
    pub(super) partition: Option<Partition<'a>>,
    /// `EventType`, as JSON.
    pub(super) event_type: &'a str,
    pub(super) timestamp: i64,
    pub(super) json_data: &'a str,
    pub(super) user: Guid,
}

/// `ExtraPartitionInformation` of a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Partition<'a> {
    /// `PartitionClientId`; none where the record belongs to no company.
    pub(super) company: Option<&'a str>,
    pub(super) user_name: &'a str,
}

impl Envelope<'_> {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1_024);
        for (before, guid) in [
            (r#"{"WebhookId":""#, self.webhook),
            (r#"","OutgoingId":""#, self.outgoing),
            (r#"","ConversationId":""#, self.conversation),
        ] {
            out.extend_from_slice(before.as_bytes());
            out.extend_from_slice(&guid.bytes());
        }
        out.extend_from_slice(br#"","TenantId":"#);
        json::text(&mut out, self.tenant);
        out.extend_from_slice(br#","ExtraPartitionInformation":{"#);
        if let Some(Partition { company, user_name }) = self.partition {
            if let Some(company) = company {
                out.extend_from_slice(br#""PartitionClientId":"#);
                json::text(&mut out, company);
                out.push(b',');
            }
            out.extend_from_slice(br#""UserName":"#);
            json::text(&mut out, user_name);
        }
        out.extend_from_slice(br#"},"EventType":"#);
        out.extend_from_slice(self.event_type.as_bytes());
        // Writing to memory does not fail.
        write!(out, r#","Timestamp":{},"JsonData":"#, self.timestamp).ok();
        json::text(&mut out, self.json_data);
        out.extend_from_slice(br#","UserIdentifier":""#);
        out.extend_from_slice(&self.user.bytes());
        out.extend_from_slice(br#""}"#);
        out
    }
}

/// `JsonData` of a change, or of a write that failed.
pub(super) fn change_data(change: &RecordChange, record: &str, process: Guid) -> String {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(br#"{"CorrelationId":"#);
    json::text(&mut out, record);
    if change.kind == Kind::ErrorOccurred {
        out.extend_from_slice(br#","Error":"the write was refused, the record is as it was"}"#);
    } else {
        let (version, sequence) = (change.row.changed.month_first(), change.row.sequence);
        write!(out, r#","Version":"{version}","SequenceVersion":"{sequence}","#).ok();
        // Both kinds of origin that the document names: the application, and the API.
        let interface = if process.0 & 1 == 0 { "Application" } else { "Api" };
        let action = match change.kind {
            Kind::Created => "Create",
            Kind::Deleted => "Delete",
            Kind::Disabled => "Disable",
            Kind::Updated | Kind::ErrorOccurred => "Update",
        };
        write!(out, r#""SvcSourceInterface":"{interface}","SvcProcessId":"{process}","#).ok();
        write!(out, r#""SvcSourceAction":"{action}"}}"#).ok();
    }
    // Built from text alone, so never lossy.
    String::from_utf8_lossy(&out).into_owned()
}

/// `Timestamp` of a moment, as the knobs have it.
pub(super) fn timestamp(at: Ticks, knobs: &AccountingKnobs) -> i64 {
    /// Some 190 years: more would leave the eighteen digits, and much more the integer.
    const FURTHEST: i64 = 100_000_000;
    let minutes = knobs.timestamp_offset.clamp(-FURTHEST, FURTHEST);
    let local = Ticks(at.0.saturating_add(minutes * 60 * SECOND).clamp(i64::MIN / 2, i64::MAX / 2));
    match knobs.timestamp {
        TimestampEpoch::DotNet => local.dotnet(),
        TimestampEpoch::FileTime => local.filetime(),
    }
}
