//! One of everything we publish, made from bodies in the provider's shape, with what must come out at Kafka.
//!
//! The bodies hold what is easily lost: unknown and repeated members, nulls, times of seven fractional digits,
//! numbers no double can hold, text from several scripts, ids with a slash. What must come out is written by
//! hand, not computed by the product.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use model::{
    AccountingEvent, AccountingResource, Certificate, CertificateMethod, CompanyId, Epoch, InvoicingAction,
    InvoicingContext, InvoicingEntity, InvoicingEvent, InvoicingHook, Origin, Outgoing, PayrollCompany,
    Reception, RecordMeta, RunId, TenantId, Value,
};

/// The company most examples belong to, in the provider's form.
pub(crate) const COMPANY: &str = "acc:4711:CM:6f1c2b3a-9d4e-4f5a-8b6c-7d8e9fa0b1c2";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// When the deliveries came, in milliseconds. Now, since a broker refuses the far future and soon removes what is old.
static RECEIVED_MS: LazyLock<i64> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
});

/// A record to publish and what must be found.
pub(crate) struct Example {
    pub(crate) outgoing: Outgoing,
    /// Topic, without the prefix and its dot.
    pub(crate) topic: &'static str,
    pub(crate) key: &'static str,
    /// The text whose hash decides the partition, or the partition itself.
    pub(crate) placed: Placed,
    /// The `tributary.version` header.
    pub(crate) version: Option<&'static str>,
    /// Milliseconds, where the producer must not choose.
    pub(crate) timestamp_ms: Option<i64>,
}

/// What decides the partition.
#[derive(Clone, Copy)]
pub(crate) enum Placed {
    By(&'static str),
    Shard(i32),
}

impl Example {
    /// The headers that must be found, in order.
    pub(crate) fn headers(&self) -> Vec<(&'static str, String)> {
        let meta = &self.outgoing.meta;
        let mut headers = vec![
            ("tributary.id", format!("example/{}", self.topic)),
            ("tributary.origin", meta.origin.name().to_owned()),
        ];
        headers.extend(self.version.map(|version| ("tributary.version", version.to_owned())));
        headers.extend([("tributary.epoch", "2".to_owned()), ("traceparent", TRACE.to_owned())]);
        headers
    }
}

/// Text that no codec makes smaller: the producer compresses, and a broker weighs what arrives.
pub(crate) fn incompressible(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b'#' + ((state >> 33) % 57) as u8
    };
    std::iter::repeat_with(letter).take(bytes).collect()
}

/// Every kind of value, and every way a key is made.
pub(crate) fn one_of_everything() -> Vec<Example> {
    let mut examples = events();
    examples.extend(records());
    examples.extend(certificates());
    examples
}

fn events() -> Vec<Example> {
    use AccountingResource as R;
    let reception = Reception { connector: "hooks", received_at: *RECEIVED_MS * 1_000 + 456 };
    let accounting = |json: &str, resource| -> Value {
        AccountingEvent::from_json(json.as_bytes(), resource, reception).unwrap().into()
    };
    let tenants = BTreeMap::from([(TenantId::new("tenant-7").unwrap(), CompanyId::new(COMPANY).unwrap())]);
    let invoicing = |json: &str, entity, action| -> Value {
        let hook = Some(InvoicingHook { entity, action });
        let context = InvoicingContext { reception, hook, tenants: &tenants };
        InvoicingEvent::from_json(json.as_bytes(), &context).unwrap().pop().unwrap().into()
    };
    let updated = accounting(CUSTOMER_UPDATED, R::Customers);
    let company_updated = accounting(COMPANY_UPDATED, R::Companies);
    let acknowledge = accounting(ACKNOWLEDGE, R::Suppliers);
    let flat = invoicing(SALE_INVOICE, InvoicingEntity::SaleInvoice, InvoicingAction::Updated);
    let wrapped = invoicing(PRODUCTS, InvoicingEntity::Product, InvoicingAction::Created);
    let webhook = |value, topic, key, version| {
        let example = example(value, topic, key, Placed::By(key), version, Origin::Webhook);
        Example { timestamp_ms: Some(*RECEIVED_MS), ..example }
    };
    vec![
        webhook(updated, "accounting.customers.events", COMPANY, Some("90071992547409931")),
        webhook(company_updated, "accounting.companies.events", "größe%2F1", Some("8")),
        webhook(acknowledge, "accounting.suppliers.events", "tenant-9", None),
        webhook(flat, "invoicing.sale-invoice.events", COMPANY, None),
        webhook(wrapped, "invoicing.product.events", "テナント", None),
    ]
}

fn records() -> Vec<Example> {
    use AccountingResource as R;
    let company = CompanyId::new(COMPANY).unwrap();
    let resource =
        |json: &str, resource| Value::from_resource_json(json.as_bytes(), resource, &company).unwrap();
    let payroll: Value = PayrollCompany::from_json(PAYROLL.as_bytes()).unwrap().into();
    let by_company = Placed::By(COMPANY);
    vec![
        example(
            resource(COMPANY_RECORD, R::Companies),
            "accounting.companies",
            "größe%2F1/größe%2F1",
            Placed::By("größe%2F1"),
            Some("12"),
            Origin::Snapshot,
        ),
        example(
            resource(CUSTOMER, R::Customers),
            "accounting.customers",
            "acc:4711:CM:6f1c2b3a-9d4e-4f5a-8b6c-7d8e9fa0b1c2/cus:1%2F2",
            by_company,
            Some("18446744073709551617"),
            Origin::Enrichment,
        ),
        example(
            resource(ACCOUNT, R::Accounts),
            "accounting.accounts",
            "acc:4711:CM:6f1c2b3a-9d4e-4f5a-8b6c-7d8e9fa0b1c2/account-1",
            by_company,
            Some("3"),
            Origin::Repair,
        ),
        example(
            resource(INPUT_INVOICE, R::InputInvoices),
            "accounting.input-invoices",
            "acc:4711:CM:6f1c2b3a-9d4e-4f5a-8b6c-7d8e9fa0b1c2/inv-77",
            by_company,
            Some("42"),
            Origin::Enrichment,
        ),
        example(
            payroll,
            "payroll.companies",
            "9001/9001",
            Placed::By("9001"),
            Some("2026-11-15T03:04:05.123Z#55b285edaba2b210c2796388e8384644"),
            Origin::Snapshot,
        ),
    ]
}

fn certificates() -> Vec<Example> {
    let company = CompanyId::new(COMPANY).unwrap();
    let run = || RunId::new("records/2026-11-15T03:00:00Z").unwrap();
    let mut proved = Certificate::of_company("records", run(), "customers", company, 1_795_312_800_000_001);
    proved.certified = true;
    proved.method = CertificateMethod::Counting;
    let reading = &mut proved.reading;
    (reading.passes, reading.page_size, reading.pages, reading.rows) = (2, 100, 84, 8_317);
    reading.ended_at = 253_402_300_799_999_999;
    let counts = &mut proved.counts;
    (counts.listed, counts.distinct, counts.gone) = (Some(8_317), Some(8_320), Some(3));
    counts.cut_after = Some(-1);
    proved.records.vanished = vec!["cus:1/2".into(), String::new(), "größe".into()];
    proved.records.vanished_count = 3;
    let mut open = Certificate::of_shard("records", run(), "payroll", 2, 1_795_312_800_000_002);
    open.reason = Some("page 7 moved while it was read — “again”".into());
    open.counts.failed_page = Some(7);
    open.reading.anomalies = vec!["pass 1, page 7: it repeats the page before it".into()];
    let mut list = vec![example(
        proved.into(),
        "certificates",
        "acc:4711:CM:6f1c2b3a-9d4e-4f5a-8b6c-7d8e9fa0b1c2/customers",
        Placed::By(COMPANY),
        None,
        Origin::Snapshot,
    )];
    list.push(example(open.into(), "certificates", "~2/payroll", Placed::Shard(2), None, Origin::Snapshot));
    list
}

fn example(
    value: Value,
    topic: &'static str,
    key: &'static str,
    placed: Placed,
    version: Option<&'static str>,
    origin: Origin,
) -> Example {
    let mut meta = RecordMeta::new(format!("example/{topic}"), origin);
    meta.epoch = Some(Epoch(2));
    meta.traceparent = Some(TRACE.parse().unwrap());
    Example { outgoing: Outgoing::new(value, meta).unwrap(), topic, key, placed, version, timestamp_ms: None }
}

const CUSTOMER_UPDATED: &str = r#"{
    "WebhookId": "0b7e3c7a-1f2d-4a5b-9c8d-1234567890ab", "OutgoingId": "5c1d9f80-0001-4000-8000-000000000001",
    "ConversationId": "5c1d9f80-0002-4000-8000-000000000002", "TenantId": "tenant-7",
    "ExtraPartitionInformation": {"PartitionClientId": "acc:4711:CM:6f1c2b3a-9d4e-4f5a-8b6c-7d8e9fa0b1c2",
        "UserName": "Łucja 😀", "Region": {"code": "ES", "since": null}},
    "EventType": {"AppName": "Svc", "Domain": "ACC", "Resource": "Customers", "EventType": "CustomerUpdated",
        "SemanticName": "Svc.ACC.Customers.CustomerUpdated", "Generation": 2},
    "Timestamp": 638987654321234567,
    "JsonData": "{\"CorrelationId\":\"cus:1/2\",\"Version\":\"15/11/2026 3:04:05,1234567\",\"SequenceVersion\":\"90071992547409931\",\"SvcSourceInterface\":\"UI\",\"SvcProcessId\":\"5c1d9f80-0003-4000-8000-000000000003\",\"SvcSourceAction\":\"Save\",\"More\":[1.50]}",
    "UserIdentifier": "5c1d9f80-0004-4000-8000-000000000004",
    "Priority": 1.10, "Nothing": null, "WebhookId": "a repeated member wins"}"#;

const COMPANY_UPDATED: &str = r#"{
    "WebhookId": "w-2", "OutgoingId": "o-2", "TenantId": "tenant-7", "ExtraPartitionInformation": {},
    "EventType": {"EventType": "CompanyUpdated"}, "Timestamp": "not a number",
    "JsonData": "{\"CorrelationId\":\"größe/1\",\"SequenceVersion\":\"8\"}"}"#;

const ACKNOWLEDGE: &str = r#"{
    "WebhookId": "w-3", "OutgoingId": "o-3", "TenantId": "tenant-9", "ExtraPartitionInformation": {},
    "EventType": {"EventType": "Acknowledge"}, "JsonData": "{\"Arguments\":\"Acknowledge\"}"}"#;

const SALE_INVOICE: &str = r#"{
    "Entity": "SaleInvoice", "EntityId": "e-1", "TenantId": "tenant-7", "User": "ann@example.com",
    "Changes": [{"Name": "Total", "Value": "1.234,50 €"}, {"Name": "Notes", "Value": null, "Old": "x"}],
    "Host": "h-1", "Unknown": {"deep": [true, 123456789012345678901234567890.10]}}"#;

const PRODUCTS: &str = r#"{"Id": "n-1", "Attempt": 2, "Properties": {"x": "ÿ"}, "Trailer": false, "Notifications": [
    {"Entity": "Product", "EntityId": "p-1", "TenantId": "tenant-7"},
    {"Entity": "Product", "EntityId": "p-2", "TenantId": "テナント", "Changes": [], "SourceApplication": "api"}]}"#;

const COMPANY_RECORD: &str = r#"{"vatName": "Größe & Söhne", "vatNumber": "B12345678", "state": "Enabled",
    "chartOfAccountId": 1, "accountLength": 8, "correlationId": "größe/1",
    "version": "2026-11-15T03:04:05.1234567Z", "sequenceVersion": "12", "fiscalYear": {"from": "2026-01-01"}}"#;

const CUSTOMER: &str = r#"{"tradeName": "株式会社 Æther", "state": "Enabled", "vatNumber": "", "vatName": "",
    "accountCode": "43000001", "correlationId": "cus:1/2", "vatNumberCorrelationId": "",
    "accountCodeCorrelationId": "account-1", "version": "2026-11-15T03:04:05.9999999Z",
    "sequenceVersion": "18446744073709551617", "balance": 123456789012345678901234567890.10,
    "extra": {"extra": "😀"}, "email": null}"#;

const ACCOUNT: &str = r#"{"correlationId": "account-1", "code": "43000001", "description": "Clientes “varios”",
    "state": "Template", "version": "yesterday", "sequenceVersion": "3", "code#": 7}"#;

const INPUT_INVOICE: &str = r#"{"correlationId": "inv-77", "state": "Posted", "lines": [{"amount": 10.10}, null],
    "version": "2026-11-15T03:04:05.1234567Z", "sequenceVersion": "42", "name": "a\u0000b\u00e9"}"#;

const PAYROLL: &str = r#"{"companyCode": 9001, "companyName": "Nóminas, S.L.", "identifierNumber": "B00000000",
    "lastUpdate": "2026-11-15T03:04:05.123Z", "agreement": "Convenio nº 3"}"#;
