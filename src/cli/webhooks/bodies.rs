//! Bodies of test deliveries in the provider's format, each with new ids.

use clap::Args;
use serde_json::json;

use base::random::{NoRandomness, guid};
use model::{AccountingResource, InvoicingHook, Moment, ResourceArea};

/// Ticks of 100 nanoseconds from year 1, the provider's epoch, to 1970.
const TICKS_BEFORE_1970: i64 = 621_355_968_000_000_000;

#[derive(Args)]
pub(super) struct AccountingDelivery {
    /// Resource of an accounting delivery
    #[arg(long, default_value = "customers", conflicts_with = "invoicing")]
    pub(super) resource: AccountingResource,
    /// End of the event's name: Created, Updated, Deleted, Disabled, ErrorOccurred, Acknowledge, or another word
    #[arg(long, default_value = "Updated", value_parser = event, conflicts_with = "invoicing")]
    event: String,
    /// Correlation id of the company of an accounting delivery
    #[arg(long, default_value = "test-company", conflicts_with = "invoicing")]
    company: String,
    /// Tenant id
    #[arg(long, default_value = "1")]
    pub(super) tenant: String,
}

fn event(text: &str) -> Result<String, &'static str> {
    let sound = !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if sound { Ok(text.to_owned()) } else { Err("must be a word such as Updated") }
}

/// The body of an accounting delivery. `number` is its position among those of one call.
pub(super) fn accounting(about: &AccountingDelivery, number: u32) -> Result<Vec<u8>, NoRandomness> {
    let resource = provider_name(about.resource);
    let event_type = match &*about.event {
        whole @ ("Acknowledge" | "ErrorOccurred") => whole.to_owned(),
        ending => format!("{}{ending}", singular(&resource)),
    };
    let domain = match about.resource.area() {
        ResourceArea::Accounting => "ACC",
        ResourceArea::Core => "CORE",
        ResourceArea::Import => "IMPORT",
    };
    let now = Moment::now().micros();
    let (partition, data) = if about.event == "Acknowledge" {
        (json!({}), json!({ "Arguments": "Acknowledge" }))
    } else {
        let record = match about.resource {
            // Here the record is the company itself.
            AccountingResource::Companies => about.company.clone(),
            _ => guid()?,
        };
        let change = json!({
            "CorrelationId": record,
            "Version": month_first(now),
            "SequenceVersion": (now + i64::from(number)).to_string(),
            "SvcSourceInterface": "Application",
            "SvcProcessId": guid()?,
            "SvcSourceAction": "Update",
        });
        (json!({ "PartitionClientId": about.company, "UserName": "tributary webhooks send" }), change)
    };
    let envelope = json!({
        "WebhookId": guid()?,
        "OutgoingId": guid()?,
        "ConversationId": guid()?,
        "TenantId": about.tenant,
        "ExtraPartitionInformation": partition,
        "EventType": {
            "AppName": "Svc",
            "Domain": domain,
            "Resource": resource,
            "EventType": event_type,
            "SemanticName": format!("Svc.{domain}.{resource}.{event_type}"),
        },
        "Timestamp": TICKS_BEFORE_1970 + now * 10,
        "JsonData": data.to_string(),
        "UserIdentifier": guid()?,
    });
    Ok(envelope.to_string().into_bytes())
}

/// The body of an invoicing delivery, in the flat format that the provider documents.
pub(super) fn invoicing(hook: InvoicingHook, tenant: &str, number: u32) -> Result<Vec<u8>, NoRandomness> {
    let notification = json!({
        "Entity": hook.entity.provider_name(),
        "EntityId": guid()?,
        "TenantId": tenant,
        "User": "tributary@example.com",
        "Changes": [{ "Name": "Name", "Value": format!("Test delivery {number}") }],
    });
    Ok(notification.to_string().into_bytes())
}

/// `InputInvoices` for `input-invoices`, as documented for `Accounts` and `Customers`.
fn provider_name(resource: AccountingResource) -> String {
    let word = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    resource.name().split('-').filter(|part| !part.is_empty()).map(word).collect()
}

fn singular(plural: &str) -> String {
    match plural.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => plural.strip_suffix('s').unwrap_or(plural).to_owned(),
    }
}

/// A time in the format of the provider's events, which is not ISO 8601: `05/06/2024 07:08:09`.
fn month_first(micros: i64) -> String {
    let text = Moment::from_micros(micros).to_string();
    format!("{}/{}/{} {}", &text[5..7], &text[8..10], &text[..4], &text[11..19])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{
        AccountingEvent, EventKind, InvoicingAction, InvoicingContext, InvoicingEntity, InvoicingEvent,
        Reception,
    };

    use super::*;

    const RECEPTION: Reception<'_> = Reception { connector: "hooks", received_at: 1 };

    fn made(resource: AccountingResource, event: &str) -> AccountingEvent {
        let about = AccountingDelivery {
            resource,
            event: event.to_owned(),
            company: "company-1".to_owned(),
            tenant: "7".to_owned(),
        };
        AccountingEvent::from_delivery(&accounting(&about, 0).unwrap(), None, RECEPTION).unwrap()
    }

    #[test]
    fn every_resource_is_recognized_in_its_delivery() {
        for resource in AccountingResource::all() {
            let event = made(resource, "Updated");

            assert_eq!(event.resource, resource);
            assert_eq!(event.company_id.as_ref().map(ToString::to_string).as_deref(), Some("company-1"));
            assert!(event.data.correlation_id.is_some() && event.data.sequence.is_some(), "{event:?}");
            assert!(event.envelope.extra.is_empty() && event.timestamp_at.is_some(), "{event:?}");
        }
    }

    #[test]
    fn event_names_match_the_documented_ones() {
        for (resource, documented) in [
            (
                AccountingResource::Accounts,
                [
                    "Svc.ACC.Accounts.AccountCreated",
                    "Svc.ACC.Accounts.AccountUpdated",
                    "Svc.ACC.Accounts.AccountDisabled",
                    "Svc.ACC.Accounts.ErrorOccurred",
                ],
            ),
            (
                AccountingResource::Customers,
                [
                    "Svc.ACC.Customers.CustomerCreated",
                    "Svc.ACC.Customers.CustomerUpdated",
                    "Svc.ACC.Customers.CustomerDisabled",
                    "Svc.ACC.Customers.ErrorOccurred",
                ],
            ),
        ] {
            let sent = ["Created", "Updated", "Disabled", "ErrorOccurred"]
                .map(|event| made(resource, event).envelope.event_type.unwrap().semantic_name.unwrap());

            assert_eq!(sent, documented);
        }
    }

    #[test]
    fn an_acknowledge_has_no_company() {
        let event = made(AccountingResource::Customers, "Acknowledge");

        assert_eq!(event.kind(), Some(EventKind::Acknowledge));
        assert_eq!(event.company_id, None);
    }

    #[test]
    fn an_invoicing_delivery_names_entity_and_tenant() {
        let hook = InvoicingHook { entity: InvoicingEntity::SaleInvoice, action: InvoicingAction::Updated };
        let tenants = BTreeMap::new();
        let context = InvoicingContext { reception: RECEPTION, hook: Some(hook), tenants: &tenants };

        let events = InvoicingEvent::from_json(&invoicing(hook, "7", 1).unwrap(), &context).unwrap();

        let [event] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((event.resource, event.action), (hook.entity, Some(hook.action)));
        assert_eq!(event.notification.tenant_id.as_deref(), Some("7"));
        assert!(event.notification.extra.is_empty(), "{event:?}");
    }
}
