//! An event of a write, as a line of a table and as JSON.

use std::{
    io::{self, Write},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use kafka::ConsumerRecord;
use model::{AccountingEvent, EventKind};

use super::write_id::MatchedId;
use crate::{
    cli::table::{Column, moment, note, objects, text},
    webhooks::dead_letter,
};

/// Members of `JsonData` that the provider documents; an error is described by the others.
const DOCUMENTED: [&str; 6] =
    ["CorrelationId", "Version", "SequenceVersion", "SvcSourceInterface", "SvcProcessId", "SvcSourceAction"];
/// Most characters of one member of an error in the table.
const MAX_SHOWN: usize = 1_000;

/// Time of reception, topic, partition and offset, in this order.
pub(super) type EventPlace = (i64, Arc<str>, i32, i64);

/// An event that has the id of a write.
#[derive(Debug)]
pub(super) struct FoundEvent {
    event: AccountingEvent,
    matched: MatchedId,
    /// `tributary.id`: copies of an event have the same.
    delivery: Option<String>,
}

impl FoundEvent {
    pub(super) fn new(event: AccountingEvent, matched: MatchedId, record: &ConsumerRecord) -> Self {
        let delivery = dead_letter::text(&record.headers, dead_letter::RECORD).map(str::to_owned);
        Self { event, matched, delivery }
    }

    pub(super) fn place(&self, record: &ConsumerRecord) -> EventPlace {
        (self.event.received_at, Arc::clone(&record.topic), record.partition, record.offset)
    }

    pub(super) fn json(&self, (_, topic, partition, offset): &EventPlace) -> Value {
        let AccountingEvent { envelope, data, .. } = &self.event;
        let event_type = envelope.event_type.as_ref();
        let name = event_type.and_then(|named| named.event_type.as_ref().or(named.semantic_name.as_ref()));
        json!({
            "receivedAt": moment(self.event.received_at.div_euclid(1_000)),
            "resource": self.event.resource.name(),
            "company": self.event.company_id,
            "outcome": self.event.outcome(),
            "event": name,
            "record": data.correlation_id,
            "sequence": data.sequence_version,
            "process": data.svc_process_id,
            "conversation": envelope.conversation_id,
            "matched": self.matched.name(),
            "error": self.error(),
            "id": self.delivery,
            "topic": &**topic,
            "partition": partition,
            "offset": offset,
        })
    }

    /// What an ErrorOccurred carries beyond the documented members, which may be a code and a message; `None` for other events.
    fn error(&self) -> Option<Value> {
        if self.event.kind() != Some(EventKind::ErrorOccurred) {
            return None;
        }
        let data = self.event.envelope.json_data.as_deref().unwrap_or_default();
        let mut members = match serde_json::from_str(data) {
            Ok(Value::Object(members)) => members,
            _ if data.is_empty() => Map::new(),
            _ => Map::from_iter([("JsonData".to_owned(), data.into())]),
        };
        members.retain(|name, _| !DOCUMENTED.contains(&&**name));
        for (name, json) in &self.event.envelope.extra {
            let value = serde_json::from_str(json).unwrap_or_else(|_| Value::from(json.as_str()));
            members.entry(name.as_str()).or_insert(value);
        }
        Some(members.into())
    }
}

/// One line per event, then what the errors say.
pub(super) fn table(events: &[Value], out: &mut dyn Write) -> io::Result<()> {
    let table: [Column; 8] = [
        ("RECEIVED", |event| text(&event["receivedAt"])),
        ("RESOURCE", |event| text(&event["resource"])),
        ("COMPANY", |event| text(&event["company"])),
        ("OUTCOME", outcome),
        ("RECORD", |event| text(&event["record"])),
        ("SEQUENCE", |event| text(&event["sequence"])),
        ("MATCHED", |event| text(&event["matched"])),
        ("PLACE", place),
    ];
    objects(events, table, out)?;
    let is_error = |event: &&Value| event["error"].is_object();
    events.iter().filter(is_error).try_for_each(|event| note(&place(event), &said(&event["error"]), out))
}

/// The outcome, and the event's name if that does not say it.
fn outcome(event: &Value) -> String {
    match event["outcome"].as_str() {
        Some("other") => format!("other ({})", text(&event["event"])),
        _ => text(&event["outcome"]),
    }
}

fn place(event: &Value) -> String {
    format!("{} {}@{}", text(&event["topic"]), event["partition"], event["offset"])
}

/// The members of an error, one per line.
fn said(error: &Value) -> String {
    let line = |(name, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let cut = if value.chars().nth(MAX_SHOWN).is_some() { "… (--json shows all)" } else { "" };
        format!("{name}: {}{cut}", value.chars().take(MAX_SHOWN).collect::<String>())
    };
    let lines: Vec<String> = error.as_object().into_iter().flatten().map(line).collect();
    if lines.is_empty() { "the event does not say what failed".to_owned() } else { lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use model::{AccountingResource, Reception};

    use super::*;
    use crate::cli::tests::written;

    fn found(event_type: &str, data: &str, extra: &Value) -> Value {
        let mut body = json!({
            "ConversationId": "k-1", "ExtraPartitionInformation": { "PartitionClientId": "acme" },
            "EventType": { "EventType": event_type }, "JsonData": data,
        });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let reception = Reception { connector: "hooks", received_at: 1_790_000_000_000_000 };
        let event =
            AccountingEvent::from_json(body.to_string().as_bytes(), AccountingResource::Customers, reception);
        let found = FoundEvent { event: event.unwrap(), matched: MatchedId::Conversation, delivery: None };
        found.json(&(1_790_000_000_000_000, "p.accounting.customers.events".into(), 3, 17))
    }

    #[test]
    fn an_error_has_a_line_and_what_it_says() {
        let data = r#"{"CorrelationId":"c-1","ErrorCode":409,"ErrorMessage":"a\u0007b","SvcProcessId":"p"}"#;
        let error = found("ErrorOccurred", data, &json!({ "Severity": "high" }));
        let moved = found("CustomerMoved", r#"{"CorrelationId":"c-2","SequenceVersion":"5"}"#, &json!({}));

        assert_eq!(
            error["error"],
            json!({ "ErrorCode": 409, "ErrorMessage": "a\u{7}b", "Severity": "high" })
        );
        assert_eq!((&error["process"], &moved["error"]), (&json!("p"), &Value::Null));
        let expected = "\
RECEIVED                  RESOURCE   COMPANY  OUTCOME                RECORD  SEQUENCE  MATCHED       PLACE
2026-09-21T14:13:20.000Z  customers  acme     error                  c-1     -         conversation  p.accounting.customers.events 3@17
2026-09-21T14:13:20.000Z  customers  acme     other (CustomerMoved)  c-2     5         conversation  p.accounting.customers.events 3@17

p.accounting.customers.events 3@17
  ErrorCode: 409
  ErrorMessage: a\\u{7}b
  Severity: high
";
        assert_eq!(written(|out| table(&[error, moved], out)), expected);
    }

    #[test]
    fn an_error_of_any_form_is_shown() {
        let shown = |data: &str| said(&found("ErrorOccurred", data, &json!({}))["error"]);

        assert_eq!(shown("it failed"), "JsonData: it failed");
        assert_eq!(shown(r#"["a",1]"#), r#"JsonData: ["a",1]"#);
        assert_eq!(shown(r#"{"Error":{"Code":1}}"#), r#"Error: {"Code":1}"#);
        for silent in ["", "{}", r#"{"CorrelationId":"c"}"#] {
            assert_eq!(shown(silent), "the event does not say what failed", "{silent}");
        }
        let long = shown(&"x".repeat(1_001));
        assert_eq!(long, format!("JsonData: {}… (--json shows all)", "x".repeat(1_000)));
    }
}
