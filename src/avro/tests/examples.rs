//! One fixed value of each kind, in the shapes the provider documents, for tests of bytes.

use std::collections::BTreeMap;

use model::{
    Account, AccountingEvent, AccountingResource, Certificate, CertificateMethod, Company, CompanyId,
    Customer, InvoicingAction, InvoicingContext, InvoicingEntity, InvoicingEvent, InvoicingHook,
    PayrollCompany, Reception, Record, RunId, SchemaKind, TenantId, Value,
};

const RECEPTION: Reception<'static> = Reception { connector: "hooks", received_at: 1_780_000_000_123_456 };

/// The value of this kind.
pub(crate) fn example(kind: SchemaKind) -> Value {
    from_json(kind, text(kind).as_bytes()).unwrap()
}

/// A value of this kind from a provider's object; a certificate is ours and takes the text as its reason.
pub(crate) fn from_json(kind: SchemaKind, json: &[u8]) -> Result<Value, model::Error> {
    let company = CompanyId::new("acme-111").unwrap();
    Ok(match kind {
        SchemaKind::AccountingEvent => {
            AccountingEvent::from_json(json, AccountingResource::Customers, RECEPTION)?.into()
        }
        SchemaKind::InvoicingEvent => {
            let tenants = BTreeMap::from([(TenantId::new("tenant-7").unwrap(), company)]);
            let hook = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Updated };
            let context = InvoicingContext { reception: RECEPTION, hook: Some(hook), tenants: &tenants };
            InvoicingEvent::from_json(json, &context)?.remove(0).into()
        }
        SchemaKind::Company => Company::from_json(json)?.into(),
        SchemaKind::Customer => Customer::from_json(json, &company)?.into(),
        SchemaKind::Account => Account::from_json(json, &company)?.into(),
        SchemaKind::Record => Record::from_json(json, AccountingResource::Suppliers, &company)?.into(),
        SchemaKind::PayrollCompany => PayrollCompany::from_json(json)?.into(),
        SchemaKind::Certificate => {
            let run = RunId::new("records/2026-11-15").unwrap();
            let mut certificate = Certificate::of_company("records", run, "customers", company, -1);
            certificate.reason = Some(String::from_utf8_lossy(json).into_owned());
            certificate.method = CertificateMethod::Counting;
            certificate.reading.passes = 2;
            certificate.counts.listed = Some(i64::MAX);
            certificate.records.vanished = vec!["c-1".into(), String::new()];
            certificate.into()
        }
    })
}

fn text(kind: SchemaKind) -> &'static str {
    match kind {
        SchemaKind::AccountingEvent => {
            r#"{"WebhookId":"w-1","OutgoingId":"o-1","ConversationId":"c-1","TenantId":"t-1",
            "ExtraPartitionInformation":{"PartitionClientId":"acme-111","UserName":"Ann","More":1},
            "EventType":{"AppName":"app","Domain":"Accounting","Resource":"Customer","EventType":"CustomerUpdated",
            "SemanticName":"Customer.Updated"},"Timestamp":638987654321234567,"New":{"a":[1.50,null]},
            "JsonData":"{\"CorrelationId\":\"c-9\",\"Version\":\"2026-11-15T03:04:05.1234567Z\",\"SequenceVersion\":\"42\"}"}"#
        }
        SchemaKind::InvoicingEvent => {
            r#"{"Id":"n-1","Attempt":1,"Properties":{"x":"y"},"Notifications":[{"Entity":"Customer","EntityId":"e-1",
            "TenantId":"tenant-7","User":"u-1","Changes":[{"Name":"City","Value":"Łódź"},{"Name":"Zip","Value":null}],
            "Host":"h","SourceApplication":"s"}]}"#
        }
        SchemaKind::PayrollCompany => {
            r#"{"companyCode":12345,"companyName":"Æther & Søn","identifierNumber":"NL1",
            "lastUpdate":"2026-11-15T03:04:05.1234567Z","unknown":"kept"}"#
        }
        SchemaKind::Certificate => "pages moved",
        SchemaKind::Company | SchemaKind::Customer | SchemaKind::Account | SchemaKind::Record => {
            r#"{"correlationId":"c-9","tradeName":"Æther & Søn","name":null,"state":"Enabled","code":"400000",
            "vatNumber":"BE0123","version":"2026-11-15T03:04:05.1234567Z","sequenceVersion":"42",
            "balance":123456789012345678901234567890.10,"extra":{"extra":"😀"}}"#
        }
    }
}
