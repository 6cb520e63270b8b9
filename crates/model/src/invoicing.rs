//! A notification of the invoicing API: the record of `schemas/InvoicingEvent.avsc`.
//!
//! Bodies have two forms: *flat*, where the body is the notification, and *wrapped*, where an envelope holds several. A body with
//! an `Entity` is flat; one without, but with a non-empty array of objects `Notifications`, is wrapped, and each of them becomes
//! a separate event with a copy of the envelope.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

use super::{
    CompanyId, Error, Extra, InvoicingAction, InvoicingEntity, InvoicingHook, SchemaKind, TenantId,
    event::Reception,
    members::{Members, Object, nested_objects, provider_object, without_bom},
};

/// Most notifications per delivery, since each event carries a copy of the envelope.
const MAX_NOTIFICATIONS: usize = 256;

/// What the receiver knows about a delivery besides its body.
#[derive(Debug, Clone, Copy)]
pub struct InvoicingContext<'a> {
    /// Where and when it was received.
    pub reception: Reception<'a>,
    /// The hook whose secret verified it; `None` if signatures are off.
    pub hook: Option<InvoicingHook>,
    /// Companies of the configured tenants (`invoicing.tenants`).
    pub tenants: &'a BTreeMap<TenantId, CompanyId>,
}

/// A change of an entity. See the schema for each field.
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
    /// What happened; `None`, written `unknown`, if neither the subscription's secret nor the body says it.
    #[serde(with = "action_or_unknown")]
    pub action: Option<InvoicingAction>,
    /// The notification: the body, or one of the envelope's.
    #[serde(flatten)]
    pub notification: InvoicingNotification,
    /// The envelope; `None` for the flat form, in which the body is the notification.
    pub envelope: Option<InvoicingEnvelope>,
}

provider_object! {
    /// A notification, as sent.
    pub struct InvoicingNotification {
        /// Provider's `Entity`, such as `SaleInvoice`.
        entity: Option<String> = text "Entity",
        /// Id of the entity that changed (`EntityId`).
        entity_id: Option<String> = text "EntityId",
        /// Provider's `TenantId`.
        tenant_id: Option<String> = text "TenantId",
        /// User who made the change (`User`).
        user: Option<String> = text "User",
        /// Provider's `Changes`, in its order.
        changes: Option<Vec<InvoicingChange>> = each "Changes",
        /// Provider's `Host`.
        host: Option<String> = text "Host",
        /// Provider's `SourceApplication`.
        source_application: Option<String> = text "SourceApplication",
        /// `Action` as a wrapped notification states it.
        provider_action: Option<String> = text "Action",
    }
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

nested_objects!(InvoicingChange);

/// The envelope of a notification in the wrapped form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoicingEnvelope {
    /// Id of the delivery (`Id`).
    pub id: Option<String>,
    /// Try of the delivery, from 1 (`Attempt`).
    pub attempt: Option<i64>,
    /// Provider's `Properties`, as JSON text.
    pub properties: Option<String>,
    /// Index of this notification in the delivery.
    pub position: i32,
    /// Notifications in the delivery.
    pub count: i32,
    /// What no other field holds.
    pub extra: Extra,
}

impl InvoicingEvent {
    /// Parses a delivery's body: one event, or one per notification of the wrapped form, in order.
    ///
    /// # Errors
    /// The body is not a JSON object, neither a notification nor the hook names the entity, and so the topic, or there are too
    /// many notifications.
    pub fn from_json(json: &[u8], context: &InvoicingContext<'_>) -> Result<Vec<Self>, Error> {
        let mut body = Members::parse(SchemaKind::InvoicingEvent, json)?;
        // A flat body keeps an array of that name, and a wrapped body an empty one: no event would carry it.
        let notifications = if body.has("Entity") { None } else { body.some_objects("Notifications") };
        let Some(notifications) = notifications else {
            return Ok(vec![Self::from_members(body, None, context)?]);
        };
        if notifications.len() > MAX_NOTIFICATIONS {
            return Err(Error::TooManyNotifications { given: notifications.len(), most: MAX_NOTIFICATIONS });
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

    /// The entity named by a body, or by the first notification of its wrapped form; `None` if it is unknown or the body cannot be
    /// parsed. For use before the body is verified: nothing of the body is kept.
    #[must_use]
    pub fn entity_named(json: &[u8]) -> Option<InvoicingEntity> {
        let body: EntityMembers<'_> = serde_json::from_slice(without_bom(json)).ok()?;
        let raw = match (body.entity, body.notifications) {
            (Some(raw), _) => raw,
            (None, notifications) => {
                serde_json::from_str::<FirstElement<'_>>(notifications?.get()).ok()?.0?.entity?
            }
        };
        serde_json::from_str::<String>(raw.get()).ok()?.parse().ok()
    }

    /// The original body without our fields; for the wrapped form, with this notification only.
    #[must_use]
    pub fn to_json(&self) -> String {
        let notification = self.notification.to_json();
        let Some(envelope) = &self.envelope else { return notification };
        Object::with(&envelope.extra)
            .text("Id", &envelope.id)
            .integer("Attempt", &envelope.attempt)
            .json("Properties", envelope.properties.clone())
            .json("Notifications", Some(format!("[{notification}]")))
            .finish()
    }

    fn from_members(
        members: Members<'_>,
        envelope: Option<InvoicingEnvelope>,
        context: &InvoicingContext<'_>,
    ) -> Result<Self, Error> {
        let notification = InvoicingNotification::from_members(members);
        let InvoicingNotification { entity, tenant_id, provider_action, .. } = &notification;
        let tenant = tenant_id.as_deref().and_then(|id| TenantId::new(id).ok());
        Ok(Self {
            connector: context.reception.connector.to_owned(),
            resource: resource(entity.as_deref(), context.hook)?,
            received_at: context.reception.received_at,
            company_id: tenant.and_then(|tenant| context.tenants.get(&tenant).cloned()),
            action: context.hook.map(|hook| hook.action).or_else(|| action(provider_action.as_deref()?)),
            notification,
            envelope,
        })
    }
}

/// The members that name the entity of an unverified body.
#[derive(Deserialize)]
struct EntityMembers<'a> {
    #[serde(rename = "Entity", borrow, default)]
    entity: Option<&'a RawValue>,
    #[serde(rename = "Notifications", borrow, default)]
    notifications: Option<&'a RawValue>,
}

/// The first element of an array; the others are skipped.
struct FirstElement<'a>(Option<EntityMembers<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for FirstElement<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FirstElementVisitor;

        impl<'de> de::Visitor<'de> for FirstElementVisitor {
            type Value = FirstElement<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
                let first = elements.next_element()?;
                while elements.next_element::<de::IgnoredAny>()?.is_some() {}
                Ok(FirstElement(first))
            }
        }

        deserializer.deserialize_seq(FirstElementVisitor)
    }
}

/// The signed body counts first; the hook counts if the body has no known entity.
fn resource(entity: Option<&str>, hook: Option<InvoicingHook>) -> Result<InvoicingEntity, Error> {
    entity
        .and_then(|name| name.parse().ok())
        .or(hook.map(|hook| hook.entity))
        .ok_or(Error::Unplaceable { schema: SchemaKind::InvoicingEvent, member: "Entity" })
}

/// `Created`, or anything that ends with it: whether the entity precedes it is not documented.
fn action(text: &str) -> Option<InvoicingAction> {
    let text = text.to_ascii_lowercase();
    InvoicingAction::ALL.into_iter().find(|action| text.ends_with(action.name()))
}

/// Written as a word, so that consumers need not interpret null.
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
