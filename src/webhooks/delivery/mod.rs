//! A verified delivery: its bytes, and all it takes to make records of them, now or after a crash.
//!
//! Verified bytes ─▶ [`Delivery`] ─▶ [`Delivery::read`] ─▶ [`DeliveryPart`]s, one for each lane ─▶ the intake. The spool holds
//! the delivery itself, not its records: records are made when they are published, by the schemas and the parser of that time.
//!
//! - All records with the same record key are in the same lane; order is kept within a lane, and nowhere else.
//! - The records of a delivery depend on the delivery alone: reading it again makes the same records with the same ids.
//! - A body that cannot be read is a part too: its bytes go to the dead letters.

use std::{borrow::Cow, collections::BTreeMap, fmt, ops::Not, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use model::{
    AccountingEvent, AccountingResource, CompanyId, Error as ModelError, EventKind, InvoicingAction,
    InvoicingContext, InvoicingEntity, InvoicingEvent, InvoicingHook, Origin, Outgoing, Partitioning,
    Reception, RecordMeta, TenantId, TopicPrefix, Traceparent, Value,
};

pub(super) use self::memory::{DeliveryMemory, HeldMemory};
use crate::spool::Lane;

mod memory;

/// Lanes of one topic: enough that a slow key delays few others, few enough to scan all of them.
pub const LANES_PER_TOPIC: u8 = 32;
/// Up to this many tenants are stored with each delivery without checking which of them it names.
const MAX_TENANTS_KEPT_WHOLE: usize = 8;
/// Between topic and connector in the name of a lane; no topic name contains it.
const SEPARATOR: char = '/';
/// Format of a spool entry: its first byte.
const ENTRY_FORMAT: u8 = 1;

/// A verified delivery. The body is the provider's, byte for byte.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// All but the body.
    pub context: Arc<DeliveryContext>,
    /// As it was signed.
    pub body: Bytes,
}

/// All of a delivery but its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryContext {
    /// Name of the connector that received it.
    pub connector: Arc<str>,
    /// `topic.prefix` of that connector at that time.
    pub prefix: Arc<str>,
    /// The connector's dead-letter topic.
    #[serde(rename = "deadLetters")]
    pub dead_letter_topic: Arc<str>,
    /// Microseconds since 1970.
    pub received_at: i64,
    /// `traceparent` of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Whether the id of an invoicing delivery follows from its content. Spool entries and dead letters of earlier versions do not have
    /// this field: their ids contain the time and stay as they were.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub content_ids: bool,
    /// The API, and what was known beside the body.
    pub family: ApiFamily,
}

/// The API of a delivery, and what was known beside the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ApiFamily {
    /// Accounting.
    Accounting {
        /// The resource the address was registered for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resource: Option<AccountingResource>,
    },
    /// Invoicing.
    Invoicing {
        /// The hook, if its secret or its own address identified it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hook: Option<SpooledHook>,
        /// Companies of the tenants, as they were mapped at that time.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        tenants: Arc<BTreeMap<TenantId, CompanyId>>,
    },
}

/// An [`InvoicingHook`] as the spool stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpooledHook {
    entity: InvoicingEntity,
    action: InvoicingAction,
}

impl From<InvoicingHook> for SpooledHook {
    fn from(hook: InvoicingHook) -> Self {
        Self { entity: hook.entity, action: hook.action }
    }
}

impl From<SpooledHook> for InvoicingHook {
    fn from(hook: SpooledHook) -> Self {
        Self { entity: hook.entity, action: hook.action }
    }
}

/// The content of a delivery.
#[derive(Debug, Default)]
pub struct DeliveryContent {
    /// Id of an accounting delivery, if it is usable; a repetition has the same.
    pub outgoing_id: Option<String>,
    /// The accounting subscription that sent it.
    pub webhook_id: Option<String>,
    /// The resource of an accounting delivery.
    pub resource: Option<AccountingResource>,
    /// It is an Acknowledge: the provider asks whether the address takes deliveries. There is nothing to publish.
    pub acknowledges: bool,
    /// What to publish, by lane, in the order of the body.
    pub parts: Vec<DeliveryPart>,
}

/// The records of a delivery for one lane, nearly always all of them.
#[derive(Debug)]
pub struct DeliveryPart {
    /// The lane.
    pub lane: Lane,
    /// Positions of these records in the delivery; empty: all of them.
    pub positions: Vec<u16>,
    /// The records, or why the body cannot be read: then it is a dead letter.
    pub content: Result<Vec<Outgoing>, ModelError>,
}

/// Why a spool entry cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnreadableEntry {
    /// It is shorter than its head says.
    #[error("the entry is cut short")]
    Short,
    /// A later version wrote it.
    #[error("the entry has format {0}, which this version does not know")]
    Format(u8),
    /// Its head is not JSON of ours.
    #[error("the head of the entry is not readable")]
    Head(#[source] serde_json::Error),
}

/// The head of a spool entry; the body follows.
#[derive(Serialize, Deserialize)]
struct EntryHead<C> {
    #[serde(flatten)]
    context: C,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    positions: Vec<u16>,
}

impl Delivery {
    /// Parses the body.
    #[must_use]
    pub fn read(&self) -> DeliveryContent {
        let (mut content, records) = self.records();
        let parts = records.and_then(|records| self.by_lane(records));
        content.parts = parts.unwrap_or_else(|error| vec![self.dead(error)]);
        content
    }

    /// The records of a spool entry, with the id of the delivery. If this version reads fewer records from the body than the one that
    /// stored it, all of them: a record too many is a duplicate, a record too few is lost.
    pub fn read_again(&self, positions: &[u16]) -> (Option<String>, Result<Vec<Outgoing>, ModelError>) {
        let (content, records) = self.records();
        let chosen = records.map(|records| {
            let whole = positions.is_empty() || positions.iter().any(|at| usize::from(*at) >= records.len());
            let chosen = |(at, record): (usize, Outgoing)| {
                (whole || positions.iter().any(|position| usize::from(*position) == at)).then_some(record)
            };
            records.into_iter().enumerate().filter_map(chosen).collect()
        });
        (content.outgoing_id, chosen)
    }

    /// What the body says, and its records.
    fn records(&self) -> (DeliveryContent, Result<Vec<Outgoing>, ModelError>) {
        let reception =
            Reception { connector: &self.context.connector, received_at: self.context.received_at };
        let mut content = DeliveryContent::default();
        let records = match &self.context.family {
            ApiFamily::Accounting { resource } => {
                let event = AccountingEvent::from_delivery(&self.body, *resource, reception);
                let acknowledged =
                    event.as_ref().err().and_then(|_| AccountingEvent::acknowledged(&self.body));
                if let Some(webhook_id) = acknowledged {
                    let acknowledges =
                        DeliveryContent { webhook_id, acknowledges: true, ..DeliveryContent::default() };
                    return (acknowledges, Ok(Vec::new()));
                }
                event.and_then(|event| {
                    content.outgoing_id = event.envelope.outgoing_id.clone().filter(|id| is_usable_id(id));
                    content.webhook_id.clone_from(&event.envelope.webhook_id);
                    content.resource = Some(event.resource);
                    if event.kind() == Some(EventKind::Acknowledge) {
                        content.acknowledges = true;
                        return Ok(Vec::new());
                    }
                    let id = content.outgoing_id.clone().unwrap_or_else(|| self.own_id());
                    Ok(vec![Outgoing::new(Value::AccountingEvent(Box::new(event)), self.meta(id))?])
                })
            }
            ApiFamily::Invoicing { hook, tenants } => {
                let hook = hook.map(InvoicingHook::from);
                let context = InvoicingContext { reception, hook, tenants };
                InvoicingEvent::from_json(&self.body, &context).and_then(|events| {
                    let id = self.own_id();
                    let outgoing = |(position, event): (usize, InvoicingEvent)| {
                        let id = if position == 0 { id.clone() } else { format!("{id}-{position}") };
                        Outgoing::new(Value::InvoicingEvent(Box::new(event)), self.meta(id))
                    };
                    events.into_iter().enumerate().map(outgoing).collect()
                })
            }
        };
        (content, records)
    }

    /// The spool entry of a part.
    #[must_use]
    pub fn to_entry(&self, positions: &[u16]) -> Bytes {
        let head = EntryHead { context: &*self.to_keep(), positions: positions.to_vec() };
        // Maps with text keys always serialize.
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let mut entry = BytesMut::with_capacity(5 + head.len() + self.body.len());
        entry.put_u8(ENTRY_FORMAT);
        entry.put_u32(head.len() as u32);
        entry.put_slice(&head);
        entry.put_slice(&self.body);
        entry.freeze()
    }

    /// The context with what it takes to read this body again: of all mapped tenants, those that it names.
    #[must_use]
    pub fn to_keep(&self) -> Cow<'_, DeliveryContext> {
        let ApiFamily::Invoicing { hook, tenants } = &self.context.family else {
            return Cow::Borrowed(&self.context);
        };
        if tenants.len() <= MAX_TENANTS_KEPT_WHOLE {
            return Cow::Borrowed(&self.context);
        }
        let reception =
            Reception { connector: &self.context.connector, received_at: self.context.received_at };
        let context = InvoicingContext { reception, hook: None, tenants };
        let events = InvoicingEvent::from_json(&self.body, &context).unwrap_or_default();
        let named =
            events.iter().filter_map(|event| TenantId::new(event.notification.tenant_id.as_deref()?).ok());
        let kept = named.filter_map(|tenant| Some((tenant.clone(), tenants.get(&tenant)?.clone()))).collect();
        let family = ApiFamily::Invoicing { hook: *hook, tenants: Arc::new(kept) };
        Cow::Owned(DeliveryContext { family, ..(*self.context).clone() })
    }

    /// The delivery of a spool entry, and the positions of its records.
    ///
    /// # Errors
    /// The entry is damaged, or of a later version.
    pub fn from_entry(mut entry: Bytes) -> Result<(Self, Vec<u16>), UnreadableEntry> {
        let (format, length) = match entry.first_chunk::<5>() {
            Some([format, length @ ..]) => (*format, u32::from_be_bytes(*length) as usize),
            None => return Err(UnreadableEntry::Short),
        };
        if format != ENTRY_FORMAT {
            return Err(UnreadableEntry::Format(format));
        }
        if entry.len() - 5 < length {
            return Err(UnreadableEntry::Short);
        }
        let head: EntryHead<DeliveryContext> =
            serde_json::from_slice(&entry[5..5 + length]).map_err(UnreadableEntry::Head)?;
        let body = entry.split_off(5 + length);
        Ok((Self { context: Arc::new(head.context), body }, head.positions))
    }

    /// Records by lane, in order of first appearance.
    fn by_lane(&self, records: Vec<Outgoing>) -> Result<Vec<DeliveryPart>, ModelError> {
        let prefix = &self.context.prefix;
        TopicPrefix::check(prefix)?;
        let lane_of = |record: &Outgoing| {
            let key = match record.key.partitioning() {
                Partitioning::By(bytes) => bytes,
                Partitioning::Shard(_) => record.key.as_str().as_bytes(),
            };
            lane(format_args!("{prefix}.{}", record.topic), &self.context.connector, key)
        };
        let mut parts: Vec<DeliveryPart> = Vec::with_capacity(1);
        for (position, record) in records.into_iter().enumerate() {
            let lane = lane_of(&record);
            let position = position as u16;
            match parts.iter_mut().find(|part| part.lane == lane) {
                Some(DeliveryPart { positions, content: Ok(records), .. }) => {
                    positions.push(position);
                    records.push(record);
                }
                _ => parts.push(DeliveryPart { lane, positions: vec![position], content: Ok(vec![record]) }),
            }
        }
        if let [whole] = parts.as_mut_slice() {
            whole.positions = Vec::new();
        }
        Ok(parts)
    }

    fn dead(&self, error: ModelError) -> DeliveryPart {
        let connector = &self.context.connector;
        let lane = lane(format_args!("{}", self.context.dead_letter_topic), connector, connector.as_bytes());
        DeliveryPart { lane, positions: Vec::new(), content: Err(error) }
    }

    fn meta(&self, id: String) -> RecordMeta {
        let traceparent =
            self.context.traceparent.as_deref().and_then(|text| text.parse::<Traceparent>().ok());
        RecordMeta { traceparent, ..RecordMeta::new(id, Origin::Webhook) }
    }

    /// The id of a delivery that has none. That of an invoicing delivery follows from connector, hook and body, so a replayed
    /// one gets the same id. It is not used to remove duplicates: the provider may send the same body for two events, and both are
    /// published. An accounting delivery without an id gets one with its time.
    fn own_id(&self) -> String {
        let hook = match &self.context.family {
            ApiFamily::Invoicing { hook, .. } if self.context.content_ids => *hook,
            ApiFamily::Invoicing { .. } | ApiFamily::Accounting { .. } => {
                let digest = HEXLOWER.encode(&Sha256::digest(&self.body)[..16]);
                return format!("{digest}-{}", self.context.received_at);
            }
        };
        let hook = hook.map(|hook| InvoicingHook::from(hook).slug()).unwrap_or_default();
        content_id(&[self.context.connector.as_bytes(), hook.as_bytes()], &self.body)
    }
}

/// An id that follows from a body and the parts.
pub(super) fn content_id(parts: &[&[u8]], body: &[u8]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        // The length goes first, so that no two lists of parts have the same bytes.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(body);
    HEXLOWER.encode(&digest.finalize()[..16])
}

/// Whether an id can identify a delivery: neither blank nor the nil GUID.
fn is_usable_id(id: &str) -> bool {
    let is_nil = || {
        id.bytes().filter(|byte| *byte == b'0').count() == 32
            && !id.contains(|c: char| c.is_alphanumeric() && c != '0')
    };
    !id.trim().is_empty() && !is_nil()
}

/// The lane of a key. Each connector has its own, so that one that is paused delays no other.
fn lane(topic: fmt::Arguments<'_>, connector: &str, key: &[u8]) -> Lane {
    let number = kafka::murmur2(key) % u32::from(LANES_PER_TOPIC);
    // The hash keeps the name short.
    let topic = format!("{topic}{SEPARATOR}{:08x}", kafka::murmur2(connector.as_bytes()));
    Lane { topic: topic.into(), number: number as u8 }
}

/// Full name of the topic of a lane.
#[must_use]
pub fn topic_of(lane: &Lane) -> &str {
    lane.topic.split(SEPARATOR).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"Entity":"Customer","TenantId":"7","EntityId":"1"}"#;

    /// An invoicing delivery with the ids that its content gives it.
    fn delivery(connector: &str, hook: Option<&str>, body: &'static [u8], received_at: i64) -> Delivery {
        let hook = hook.map(|hook| InvoicingHook::from_slug(hook).unwrap().into());
        let context = DeliveryContext {
            connector: connector.into(),
            prefix: "acme".into(),
            dead_letter_topic: "acme.dead-letters".into(),
            received_at,
            traceparent: None,
            content_ids: true,
            family: ApiFamily::Invoicing { hook, tenants: Arc::default() },
        };
        Delivery { context: Arc::new(context), body: Bytes::from_static(body) }
    }

    fn ids(delivery: &Delivery) -> Vec<String> {
        let (_, records) = delivery.read_again(&[]);
        records.unwrap().into_iter().map(|record| record.meta.id).collect()
    }

    #[test]
    fn a_replayed_invoicing_delivery_has_the_same_id() {
        let first = delivery("hooks", Some("customer-created"), BODY, 1);
        let replayed = delivery("hooks", Some("customer-created"), BODY, 2);
        let (spooled, _) = Delivery::from_entry(replayed.to_entry(&[])).unwrap();

        let [id] = &ids(&first)[..] else { panic!("one record") };
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_eq!((ids(&replayed), ids(&spooled)), (ids(&first), ids(&first)));
        assert_eq!(first.read().outgoing_id, None, "both are published");
        for other in [
            delivery("others", Some("customer-created"), BODY, 1),
            delivery("hooks", Some("customer-updated"), BODY, 1),
            delivery("hooks", None, BODY, 1),
            delivery("hooks", Some("customer-created"), br#"{"Entity":"Customer","TenantId":"8"}"#, 1),
        ] {
            assert_ne!(ids(&other), ids(&first), "{:?}", other.context);
        }
    }

    #[test]
    fn each_record_of_a_delivery_has_a_different_id() {
        let body =
            br#"{"Notifications":[{"Entity":"Bank","TenantId":"7"},{"Entity":"Bank","TenantId":"7"}]}"#;

        let ids = ids(&delivery("hooks", None, body, 1));

        assert_eq!(ids.len(), 2);
        assert_eq!(ids[1], format!("{}-1", ids[0]));
    }

    #[test]
    fn entry_of_an_earlier_version_keeps_its_id() {
        let mut stored = serde_json::to_value(&*delivery("hooks", None, BODY, 1_700).context).unwrap();
        stored.as_object_mut().unwrap().remove("contentIds");
        assert_eq!(stored["deadLetters"], "acme.dead-letters", "stored under this name");
        let context: DeliveryContext = serde_json::from_value(stored).unwrap();
        let delivery = Delivery { context: Arc::new(context), body: Bytes::from_static(BODY) };

        let digest: String = Sha256::digest(BODY).iter().take(16).map(|byte| format!("{byte:02x}")).collect();

        assert_eq!(ids(&delivery), [format!("{digest}-1700")]);
    }
}
