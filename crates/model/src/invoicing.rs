//! A notification of the invoicing API: the record of `schemas/InvoicingEvent.avsc`.
//!
//! Two forms of body are known: *flat*, where the body is the notification, and *wrapped*, where an envelope
//! holds several. A body that names its `Entity` is flat; one without that holds a non-empty array of objects
//! `Notifications` is wrapped, and each of them becomes an event of its own that carries the envelope.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

use super::{
    CompanyId, Error, Extra, InvoicingAction, InvoicingEntity, InvoicingHook, SchemaKind, TenantId,
    event::Reception,
    members::{Members, Object, provider_object, without_mark},
};

/// Each event carries a copy of the envelope, so their number is bounded.
const MOST_NOTIFICATIONS: usize = 256;

/// What the receiver knows about a delivery besides its body.
#[derive(Debug, Clone, Copy)]
pub struct InvoicingContext<'a> {
    /// Where and when it came in.
    pub reception: Reception<'a>,
    /// The hook whose secret verified it; `None` where signatures are off.
    pub hook: Option<InvoicingHook>,
    /// Companies of the tenants we know (`invoicing.tenants`).
    pub tenants: &'a BTreeMap<TenantId, CompanyId>,
}

/// An entity changed, and how. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InvoicingEvent {
    /// Name of the connector that received the delivery.
    pub connector: String,
    /// Entity in the words of the topics, such as `sale-invoice`.
    pub resource: InvoicingEntity,
    /// When the delivery was received, microseconds since 1970.
    pub received_at: i64,
    /// Correlation id of the accounting company the tenant is mapped to (`invoicing.tenants`).
    pub company_id: Option<CompanyId>,
    /// What happened; `None`, written `unknown`, where neither the subscription's secret nor the body told
    /// it.
    #[serde(with = "action_or_unknown")]
    pub action: Option<InvoicingAction>,
    /// Provider's `Entity`, such as `SaleInvoice`.
    pub entity: Option<String>,
    /// Id of the entity that changed (`EntityId`).
    pub entity_id: Option<String>,
    /// Provider's `TenantId`.
    pub tenant_id: Option<String>,
    /// User who made the change (`User`).
    pub user: Option<String>,
    /// Provider's `Changes`, in its order.
    pub changes: Option<Vec<InvoicingChange>>,
    /// Provider's `Host`.
    pub host: Option<String>,
    /// Provider's `SourceApplication`.
    pub source_application: Option<String>,
    /// `Action` as a wrapped notification states it.
    pub provider_action: Option<String>,
    /// What stood around it; `None` for the flat form, in which the body is the notification.
    pub envelope: Option<InvoicingEnvelope>,
    /// What no other field holds.
    pub extra: Extra,
}

provider_object! {
    /// One changed property.
    pub struct InvoicingChange {
        /// Property that changed (`Name`).
        name: Option<String> = text "Name",
        /// Its new value (`Value`).
        value: Option<String> = text "Value",
    }
}

/// What stood around a notification in the wrapped form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoicingEnvelope {
    /// Id of the delivery (`Id`).
    pub id: Option<String>,
    /// Try of the delivery, from 1 (`Attempt`).
    pub attempt: Option<i64>,
    /// Provider's `Properties`, as JSON text.
    pub properties: Option<String>,
    /// Place of this notification in the delivery, from 0.
    pub position: i32,
    /// Notifications in the delivery.
    pub count: i32,
    /// What no other field holds.
    pub extra: Extra,
}

impl InvoicingEvent {
    /// Reads a delivery's body: one event, or one for each notification of the wrapped form, in their order.
    ///
    /// # Errors
    /// The body is not a JSON object, neither a notification nor the hook tells the entity, hence the topic,
    /// or there are too many notifications.
    pub fn from_json(json: &[u8], context: &InvoicingContext<'_>) -> Result<Vec<Self>, Error> {
        let mut body = Members::parse(SchemaKind::InvoicingEvent, json)?;
        // A flat body keeps even an array of that name, and an empty one stays where it is: no event would
        // carry it.
        let notifications = if body.has("Entity") { None } else { body.some_objects("Notifications") };
        let Some(notifications) = notifications else {
            return Ok(vec![Self::from_members(body, None, context)?]);
        };
        if notifications.len() > MOST_NOTIFICATIONS {
            return Err(Error::TooManyNotifications { given: notifications.len(), most: MOST_NOTIFICATIONS });
        }
        let mut envelope = InvoicingEnvelope {
            id: body.text("Id"),
            attempt: body.integer("Attempt"),
            properties: body.json("Properties"),
            position: 0,
            count: i32::try_from(notifications.len()).unwrap_or(i32::MAX),
            extra: body.rest(),
        };
        let mut events = Vec::with_capacity(notifications.len());
        for notification in notifications {
            events.push(Self::from_members(notification, Some(envelope.clone()), context)?);
            envelope.position = envelope.position.saturating_add(1);
        }
        Ok(events)
    }

    /// The entity that a body names, or the first notification of its wrapped form; `None` where it names none that is known, or
    /// cannot be read. For callers that look before the body is verified: whatever it holds, nothing of it is kept.
    #[must_use]
    pub fn entity_named(json: &[u8]) -> Option<InvoicingEntity> {
        let body: Named<'_> = serde_json::from_slice(without_mark(json)).ok()?;
        let raw = match (body.entity, body.notifications) {
            (Some(raw), _) => raw,
            (None, notifications) => {
                serde_json::from_str::<First<'_>>(notifications?.get()).ok()?.0?.entity?
            }
        };
        serde_json::from_str::<String>(raw.get()).ok()?.parse().ok()
    }

    /// The body again, without what we added; of the wrapped form, with this notification alone.
    #[must_use]
    pub fn to_json(&self) -> String {
        let changes = self.changes.as_ref().map(|changes| {
            let changes: Vec<_> = changes.iter().map(InvoicingChange::to_json).collect();
            format!("[{}]", changes.join(","))
        });
        let notification = Object::with(&self.extra)
            .text("Entity", &self.entity)
            .text("EntityId", &self.entity_id)
            .text("TenantId", &self.tenant_id)
            .text("User", &self.user)
            .json("Changes", changes)
            .text("Host", &self.host)
            .text("SourceApplication", &self.source_application)
            .text("Action", &self.provider_action)
            .finish();
        let Some(envelope) = &self.envelope else { return notification };
        Object::with(&envelope.extra)
            .text("Id", &envelope.id)
            .integer("Attempt", &envelope.attempt)
            .json("Properties", envelope.properties.clone())
            .json("Notifications", Some(format!("[{notification}]")))
            .finish()
    }

    fn from_members(
        mut members: Members<'_>,
        envelope: Option<InvoicingEnvelope>,
        context: &InvoicingContext<'_>,
    ) -> Result<Self, Error> {
        let entity = members.text("Entity");
        let tenant_id = members.text("TenantId");
        let provider_action = members.text("Action");
        let tenant = tenant_id.as_deref().and_then(|id| TenantId::new(id).ok());
        let changes = members.objects("Changes");
        Ok(Self {
            connector: context.reception.connector.to_owned(),
            resource: resource(entity.as_deref(), context.hook)?,
            received_at: context.reception.received_at,
            company_id: tenant.and_then(|tenant| context.tenants.get(&tenant).cloned()),
            action: context.hook.map(|hook| hook.action).or_else(|| action(provider_action.as_deref()?)),
            entity,
            entity_id: members.text("EntityId"),
            tenant_id,
            user: members.text("User"),
            changes: changes.map(|changes| changes.into_iter().map(InvoicingChange::from_members).collect()),
            host: members.text("Host"),
            source_application: members.text("SourceApplication"),
            provider_action,
            envelope,
            extra: members.rest(),
        })
    }
}

/// What tells the entity of a body before it is verified.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(rename = "Entity", borrow, default)]
    entity: Option<&'a RawValue>,
    #[serde(rename = "Notifications", borrow, default)]
    notifications: Option<&'a RawValue>,
}

/// The first element of an array; the others are passed over.
struct First<'a>(Option<Named<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for First<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = First<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
                let first = elements.next_element()?;
                while elements.next_element::<de::IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }

        deserializer.deserialize_seq(Visitor)
    }
}

/// The body is what was signed, so it is believed first; the hook helps where it is silent or says something
/// new.
fn resource(entity: Option<&str>, hook: Option<InvoicingHook>) -> Result<InvoicingEntity, Error> {
    entity
        .and_then(|name| name.parse().ok())
        .or(hook.map(|hook| hook.entity))
        .ok_or(Error::Unplaceable { schema: SchemaKind::InvoicingEvent, member: "Entity" })
}

/// `Created`, or anything that ends so: whether the entity stands before it is not documented.
fn action(text: &str) -> Option<InvoicingAction> {
    let text = text.to_ascii_lowercase();
    InvoicingAction::ALL.into_iter().find(|action| text.ends_with(action.name()))
}

/// Written as a word, since a reader should not have to tell "null" from "not told".
mod action_or_unknown {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::InvoicingAction;

    const UNKNOWN: &str = "unknown";

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        clippy::ref_option,
        reason = "serde asks for this signature"
    )]
    pub(super) fn serialize<S: Serializer>(
        action: &Option<InvoicingAction>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(action.map_or(UNKNOWN, InvoicingAction::name))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<InvoicingAction>, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name == UNKNOWN { Ok(None) } else { name.parse().map(Some).map_err(de::Error::custom) }
    }
}
