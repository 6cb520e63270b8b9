//! A notification of the accounting family: the record of `schemas/AccountingEvent.avsc`.

use serde::{Deserialize, Serialize};

use super::{
    AccountingResource, CompanyId, Error, EventKind, Extra, Moment, SchemaKind, SequenceVersion,
    members::{Members, Object},
};

/// Where and when a delivery came in.
#[derive(Debug, Clone, Copy)]
pub struct Reception<'a> {
    /// Name of the connector that received it.
    pub connector: &'a str,
    /// Microseconds since 1970.
    pub received_at: i64,
}

/// Something changed, and which record. See the schema for each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct AccountingEvent {
    pub connector: String,
    pub resource: AccountingResource,
    pub received_at: i64,
    pub company_id: Option<CompanyId>,
    pub webhook_id: Option<String>,
    pub outgoing_id: Option<String>,
    pub conversation_id: Option<String>,
    pub tenant_id: Option<String>,
    pub extra_partition_information: Option<ExtraPartitionInformation>,
    pub event_type: Option<AccountingEventType>,
    pub timestamp: Option<i64>,
    pub timestamp_at: Option<i64>,
    pub json_data: Option<String>,
    pub correlation_id: Option<String>,
    pub version: Option<String>,
    pub sequence_version: Option<String>,
    pub sequence: Option<i64>,
    pub svc_source_interface: Option<String>,
    pub svc_process_id: Option<String>,
    pub svc_source_action: Option<String>,
    pub user_identifier: Option<String>,
    pub extra: Extra,
}

/// Whose data changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct ExtraPartitionInformation {
    pub partition_client_id: Option<String>,
    pub user_name: Option<String>,
    pub extra: Extra,
}

/// What happened, in the provider's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is documented in the schema, which users see")]
pub struct AccountingEventType {
    pub app_name: Option<String>,
    pub domain: Option<String>,
    pub resource: Option<String>,
    pub event_type: Option<String>,
    pub semantic_name: Option<String>,
    pub extra: Extra,
}

impl AccountingEvent {
    /// Reads a delivery's body. `resource` is the one the webhook was subscribed for: the provider documents its own
    /// names for two resources only.
    ///
    /// A `JsonData` that is no JSON object is no error: it is kept, and the fields read from it are null.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub fn from_json(
        json: &[u8],
        resource: AccountingResource,
        reception: Reception<'_>,
    ) -> Result<Self, Error> {
        let mut envelope = Members::parse(SchemaKind::AccountingEvent, json)?;
        let partition =
            envelope.take_object("ExtraPartitionInformation").map(ExtraPartitionInformation::from_members);
        let json_data = envelope.take_text("JsonData");
        let change = Change::read(json_data.as_deref());
        let timestamp = envelope.take_integer("Timestamp");
        Ok(Self {
            connector: reception.connector.to_owned(),
            resource,
            received_at: reception.received_at,
            company_id: company(resource, partition.as_ref(), change.correlation_id.as_deref()),
            webhook_id: envelope.take_text("WebhookId"),
            outgoing_id: envelope.take_text("OutgoingId"),
            conversation_id: envelope.take_text("ConversationId"),
            tenant_id: envelope.take_text("TenantId"),
            extra_partition_information: partition,
            event_type: envelope.take_object("EventType").map(AccountingEventType::from_members),
            timestamp,
            timestamp_at: timestamp.and_then(Moment::from_ticks).map(Moment::micros),
            json_data,
            correlation_id: change.correlation_id,
            version: change.version,
            sequence: sequence(change.sequence_version.as_deref()),
            sequence_version: change.sequence_version,
            svc_source_interface: change.source_interface,
            svc_process_id: change.process_id,
            svc_source_action: change.source_action,
            user_identifier: envelope.take_text("UserIdentifier"),
            extra: envelope.rest(),
        })
    }

    /// The body again, without what we added.
    #[must_use]
    pub fn to_json(&self) -> String {
        let partition = self.extra_partition_information.as_ref().map(ExtraPartitionInformation::to_json);
        Object::with(&self.extra)
            .text("WebhookId", self.webhook_id.as_deref())
            .text("OutgoingId", self.outgoing_id.as_deref())
            .text("ConversationId", self.conversation_id.as_deref())
            .text("TenantId", self.tenant_id.as_deref())
            .json("ExtraPartitionInformation", partition)
            .json("EventType", self.event_type.as_ref().map(AccountingEventType::to_json))
            .integer("Timestamp", self.timestamp)
            .text("JsonData", self.json_data.as_deref())
            .text("UserIdentifier", self.user_identifier.as_deref())
            .finish()
    }

    /// What happened; `None` where the provider does not say.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        let event_type = self.event_type.as_ref()?;
        let name = event_type.event_type.as_deref().filter(|name| !name.is_empty());
        name.or(event_type.semantic_name.as_deref()).map(EventKind::parse)
    }
}

impl ExtraPartitionInformation {
    fn from_members(mut members: Members<'_>) -> Self {
        Self {
            partition_client_id: members.take_text("PartitionClientId"),
            user_name: members.take_text("UserName"),
            extra: members.rest(),
        }
    }

    fn to_json(&self) -> String {
        Object::with(&self.extra)
            .text("PartitionClientId", self.partition_client_id.as_deref())
            .text("UserName", self.user_name.as_deref())
            .finish()
    }
}

impl AccountingEventType {
    fn from_members(mut members: Members<'_>) -> Self {
        Self {
            app_name: members.take_text("AppName"),
            domain: members.take_text("Domain"),
            resource: members.take_text("Resource"),
            event_type: members.take_text("EventType"),
            semantic_name: members.take_text("SemanticName"),
            extra: members.rest(),
        }
    }

    fn to_json(&self) -> String {
        Object::with(&self.extra)
            .text("AppName", self.app_name.as_deref())
            .text("Domain", self.domain.as_deref())
            .text("Resource", self.resource.as_deref())
            .text("EventType", self.event_type.as_deref())
            .text("SemanticName", self.semantic_name.as_deref())
            .finish()
    }
}

/// What `JsonData` says. The text itself is kept, so nothing that is not read here is lost.
#[derive(Default)]
struct Change {
    correlation_id: Option<String>,
    version: Option<String>,
    sequence_version: Option<String>,
    source_interface: Option<String>,
    process_id: Option<String>,
    source_action: Option<String>,
}

impl Change {
    fn read(json_data: Option<&str>) -> Self {
        let parsed = json_data.map(|json| Members::parse(SchemaKind::AccountingEvent, json.as_bytes()));
        let Some(Ok(mut data)) = parsed else { return Self::default() };
        Self {
            correlation_id: data.take_text("CorrelationId"),
            version: data.take_text("Version"),
            sequence_version: data.take_text("SequenceVersion"),
            source_interface: data.take_text("SvcSourceInterface"),
            process_id: data.take_text("SvcProcessId"),
            source_action: data.take_text("SvcSourceAction"),
        }
    }
}

/// The company an event is about. A company's own events name it as the record that changed.
fn company(
    resource: AccountingResource,
    partition: Option<&ExtraPartitionInformation>,
    correlation_id: Option<&str>,
) -> Option<CompanyId> {
    let own = correlation_id.filter(|_| resource == AccountingResource::Companies);
    let named = partition.and_then(|partition| partition.partition_client_id.as_deref());
    [own, named].into_iter().flatten().find_map(|id| CompanyId::new(id).ok())
}

/// The typed twin of a sequence version.
pub(super) fn sequence(text: Option<&str>) -> Option<i64> {
    SequenceVersion::parse(text?).ok()?.as_i64()
}
