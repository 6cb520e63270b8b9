//! The id of a write, and which id of an event it is.

use std::collections::BTreeSet;

use regex::bytes::Regex;

use model::{AccountingEvent, EventKind};

/// Longest id; a GUID has 36 bytes.
const MAX_ID_BYTES: usize = 200;

/// The id of a write. The case of ASCII letters does not count, because GUIDs are written in either.
#[derive(Debug, Clone)]
pub(in crate::cli) struct WriteId {
    text: String,
    /// The id as given, in lower and in upper case. Three literals are searched for faster than an expression without case.
    forms: Regex,
}

/// Which id of an event equals the one of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatchedId {
    /// `SvcProcessId`.
    Process,
    /// `ConversationId`.
    Conversation,
    /// Any text in the `JsonData` of an ErrorOccurred: the provider does not document its members.
    Data,
}

impl MatchedId {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Conversation => "conversation",
            Self::Data => "data",
        }
    }
}

impl WriteId {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_ID_BYTES {
            return Err("must be a SvcProcessId or ConversationId, of 1 to 200 bytes");
        }
        let forms = BTreeSet::from([text.to_owned(), text.to_ascii_lowercase(), text.to_ascii_uppercase()]);
        let forms: Vec<String> = forms.iter().map(|form| regex::escape(form)).collect();
        let forms = Regex::new(&forms.join("|")).map_err(|_| "cannot be searched for")?;
        Ok(Self { text: text.to_owned(), forms })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether these bytes contain the id.
    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        self.forms.is_match(bytes)
    }

    /// The id of the event that this is, if any.
    pub(super) fn matched(&self, event: &AccountingEvent) -> Option<MatchedId> {
        let is_own =
            |id: &Option<String>| id.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(&self.text));
        if is_own(&event.data.svc_process_id) {
            return Some(MatchedId::Process);
        }
        if is_own(&event.envelope.conversation_id) {
            return Some(MatchedId::Conversation);
        }
        let is_error = event.kind() == Some(EventKind::ErrorOccurred);
        let is_in_data =
            || event.envelope.json_data.as_deref().is_some_and(|data| self.is_in(data.as_bytes()));
        // Otherwise the id of a record would find every failed write of it.
        let is_record = is_own(&event.data.correlation_id);
        (is_error && !is_record && is_in_data()).then_some(MatchedId::Data)
    }
}

#[cfg(test)]
mod tests {
    use model::{AccountingResource, Reception};
    use serde_json::json;

    use super::*;

    const PROCESS: &str = "5c1d9f80-0003-4abc-8000-000000000003";
    const CONVERSATION: &str = "5c1d9f80-0002-4abc-8000-000000000002";

    fn event(event_type: &str, data: &str) -> AccountingEvent {
        let body = json!({
            "OutgoingId": "o-1", "ConversationId": CONVERSATION, "TenantId": "7",
            "EventType": { "EventType": event_type }, "JsonData": data,
        });
        let reception = Reception { connector: "hooks", received_at: 1 };
        let body = body.to_string();
        AccountingEvent::from_json(body.as_bytes(), AccountingResource::Customers, reception).unwrap()
    }

    fn matched(id: &str, event: &AccountingEvent) -> Option<MatchedId> {
        WriteId::parse(id).unwrap().matched(event)
    }

    #[test]
    fn process_and_conversation_match_in_any_case() {
        let data = json!({ "CorrelationId": "c-1", "SvcProcessId": PROCESS }).to_string();
        let changed = event("CustomerUpdated", &data);

        for (id, expected) in [
            (PROCESS, Some(MatchedId::Process)),
            (PROCESS.to_uppercase().as_str(), Some(MatchedId::Process)),
            (format!(" {CONVERSATION} ").as_str(), Some(MatchedId::Conversation)),
            ("c-1", None),
            ("o-1", None),
            (&PROCESS[..35], None),
        ] {
            assert_eq!(matched(id, &changed), expected, "{id}");
        }
    }

    #[test]
    fn any_text_of_an_error_matches_but_its_record() {
        let of = |data: &str| event("ErrorOccurred", data);
        let nested = json!({ "CorrelationId": "c-1", "Error": { "Process": PROCESS } }).to_string();

        assert_eq!(matched(PROCESS, &of(&nested)), Some(MatchedId::Data));
        assert_eq!(matched(PROCESS, &of(&format!("process {PROCESS} failed"))), Some(MatchedId::Data));
        assert_eq!(matched("c-1", &of(&nested)), None);
        assert_eq!(
            matched(PROCESS, &event("CustomerUpdated", &nested)),
            None,
            "a change has documented members"
        );
    }

    #[test]
    fn id_is_found_among_other_bytes() {
        let upper = format!("\0\x48{}\x02", PROCESS.to_uppercase());

        assert!(WriteId::parse(PROCESS).unwrap().is_in(upper.as_bytes()));
        assert!(!WriteId::parse("5c1d9f80.0003").unwrap().is_in(upper.as_bytes()), "an expression");
        assert!(WriteId::parse("größe/1").unwrap().is_in("x größe/1".as_bytes()));
    }

    #[test]
    fn empty_and_long_ids_are_refused() {
        for wrong in ["", "  ", &"x".repeat(201)] {
            assert!(WriteId::parse(wrong).is_err(), "{wrong}");
        }
    }
}
