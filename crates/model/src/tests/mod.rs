//! Tests across the crate: nothing is lost, every value fits its schema and gets the right topic and key.

mod golden;
mod strategies;

use std::{collections::BTreeMap, fs, path::Path};

use apache_avro::{Schema, from_value, reader::datum::GenericDatumReader, writer::datum::GenericDatumWriter};
use proptest::prelude::*;

use self::strategies::*;
use super::*;

const DELIVERY: &str = r#"{
  "WebhookId": "6f0e1a34-0000-4000-8000-000000000001",
  "OutgoingId": "6f0e1a34-0000-4000-8000-000000000002",
  "ConversationId": "6f0e1a34-0000-4000-8000-000000000003",
  "TenantId": "tenant-7",
  "ExtraPartitionInformation": { "PartitionClientId": "a:1:CM:b", "UserName": "someone" },
  "EventType": { "AppName": "Svc", "Domain": "ACC", "Resource": "Customers", "EventType": "CustomerUpdated",
                 "SemanticName": "Svc.ACC.Customers.CustomerUpdated" },
  "Timestamp": 638505760891234567,
  "JsonData": "{\"CorrelationId\":\"cust-1\",\"Version\":\"06/05/2024 7:08:09\",\"SequenceVersion\":\"0042\",\"SvcProcessId\":\"p\"}",
  "UserIdentifier": "6f0e1a34-0000-4000-8000-000000000004"
}"#;

const ACKNOWLEDGE: &str = r#"{"WebhookId":"w","OutgoingId":"o","TenantId":"tenant-7","ExtraPartitionInformation":{},
  "EventType":{"EventType":"Acknowledge"},"JsonData":"{\"Arguments\":\"Acknowledge\"}"}"#;

fn company() -> CompanyId {
    CompanyId::new("a:1:CM:b").unwrap()
}

fn event(json: &str, resource: AccountingResource) -> AccountingEvent {
    let reception = Reception { connector: "hooks", received_at: 1_714_979_289_123_456 };
    AccountingEvent::from_json(json.as_bytes(), resource, reception).unwrap()
}

fn invoicing(json: &str, hook: Option<InvoicingHook>) -> Result<Vec<InvoicingEvent>, Error> {
    let tenants = BTreeMap::from([(TenantId::new("mapped").unwrap(), company())]);
    let reception = Reception { connector: "hooks", received_at: 5_999 };
    InvoicingEvent::from_json(json.as_bytes(), &InvoicingContext { reception, hook, tenants: &tenants })
}

fn place(value: impl Into<Value>) -> Result<(String, String), Error> {
    let outgoing = Outgoing::new(value.into(), RecordMeta::new("id", Origin::Webhook))?;
    Ok((outgoing.topic.suffix(), outgoing.key.to_string()))
}

fn schema_text(kind: SchemaKind) -> String {
    let file = format!("{}.avsc", kind.name());
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas").join(file)).unwrap()
}

/// Writes and reads a value as the Avro codec does.
fn through_avro(value: &Value, schema: &Schema) -> Value {
    let mut bytes = Vec::new();
    GenericDatumWriter::builder(schema).build().unwrap().write_ser(&mut bytes, value).unwrap();
    let read =
        GenericDatumReader::builder(schema).build().unwrap().read_value(&mut bytes.as_slice()).unwrap();
    match value.schema() {
        SchemaKind::AccountingEvent => from_value::<AccountingEvent>(&read).unwrap().into(),
        SchemaKind::InvoicingEvent => from_value::<InvoicingEvent>(&read).unwrap().into(),
        SchemaKind::Company => from_value::<Company>(&read).unwrap().into(),
        SchemaKind::Customer => from_value::<Customer>(&read).unwrap().into(),
        SchemaKind::Account => from_value::<Account>(&read).unwrap().into(),
        SchemaKind::Record => from_value::<Record>(&read).unwrap().into(),
        SchemaKind::PayrollCompany => from_value::<PayrollCompany>(&read).unwrap().into(),
        SchemaKind::Certificate => from_value::<Certificate>(&read).unwrap().into(),
    }
}

/// Every field of a schema, nested ones included, as (path, field).
fn fields(schema: &serde_json::Value, path: &str, found: &mut Vec<(String, serde_json::Value)>) {
    match schema {
        serde_json::Value::Array(branches) => branches.iter().for_each(|branch| fields(branch, path, found)),
        serde_json::Value::Object(object) => {
            for field in object.get("fields").and_then(|fields| fields.as_array()).into_iter().flatten() {
                let path = format!("{path}.{}", field["name"].as_str().unwrap());
                found.push((path.clone(), field.clone()));
                fields(&field["type"], &path, found);
            }
            object.get("items").into_iter().for_each(|items| fields(items, path, found));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn json_to_record_to_json_loses_nothing((json, value) in any_value()) {
        prop_assert_eq!(canonical(&value.to_json()), canonical(&json));
    }

    #[test]
    fn reading_the_written_json_again_gives_the_same_record(
        (json, value) in strategies::value(SchemaKind::Customer)
    ) {
        let again = Value::from_resource_json(
            value.to_json().as_bytes(), AccountingResource::Customers, &company(),
        ).unwrap();

        prop_assert_eq!(again, value, "{}", json);
    }

    #[test]
    fn every_value_fits_its_schema_and_comes_back_equal((_, value) in any_value()) {
        let schema = Schema::parse_str(&schema_text(value.schema())).unwrap();

        prop_assert_eq!(through_avro(&value, &schema), value);
    }

    #[test]
    fn several_notifications_become_events_that_hold_them_all(count in 1_usize..5) {
        let notification = |n| format!(r#"{{"Entity":"Due","EntityId":"{n}","Action":"Created","new":{n}}}"#);
        let notifications: Vec<_> = (0..count).map(notification).collect();
        let json = format!(r#"{{"Id":"x","Attempt":1,"Notifications":[{}]}}"#, notifications.join(","));

        let events = invoicing(&json, None).unwrap();

        prop_assert_eq!(events.len(), count);
        for (place, (event, notification)) in events.iter().zip(&notifications).enumerate() {
            let expected = format!(r#"{{"Id":"x","Attempt":1,"Notifications":[{notification}]}}"#);
            prop_assert_eq!(canonical(&event.to_json()), canonical(&expected));
            let envelope = event.envelope.as_ref().unwrap();
            prop_assert_eq!((envelope.position as usize, envelope.count as usize), (place, count));
        }
    }
}

#[test]
fn delivery_is_parsed_with_its_typed_fields() {
    let event = event(DELIVERY, AccountingResource::Customers);

    assert_eq!(event.company_id, Some(company()));
    assert_eq!(event.data.correlation_id.as_deref(), Some("cust-1"));
    assert_eq!((event.data.sequence_version.as_deref(), event.data.sequence), (Some("0042"), Some(42)));
    assert_eq!(event.data.version.as_deref(), Some("06/05/2024 7:08:09"));
    assert_eq!(event.timestamp_at, Some(1_714_979_289_123_456));
    assert_eq!(event.kind(), Some(EventKind::Updated));
    assert_eq!(event.envelope.event_type.as_ref().unwrap().app_name.as_deref(), Some("Svc"));
    assert!(event.envelope.extra.is_empty(), "{:?}", event.envelope.extra);
    assert_eq!(canonical(&event.to_json()), canonical(DELIVERY));
}

#[test]
fn json_data_that_is_not_an_object_is_kept() {
    for data in ["", "not json", "[1]", "\"text\""] {
        let json = format!("{{\"JsonData\":{}}}", serde_json::to_string(data).unwrap());

        let event = event(&json, AccountingResource::Customers);

        assert_eq!(event.envelope.json_data.as_deref(), Some(data));
        assert_eq!((event.data.correlation_id, event.data.sequence), (None, None));
    }
}

#[test]
fn accounting_events_are_keyed_by_company_or_else_tenant() {
    use AccountingResource::{Companies, Customers, InputInvoices};
    for (json, resource, topic, key) in [
        (DELIVERY, Customers, "accounting.customers.events", "a:1:CM:b"),
        (DELIVERY, InputInvoices, "accounting.input-invoices.events", "a:1:CM:b"),
        (DELIVERY, Companies, "accounting.companies.events", "cust-1"),
        (ACKNOWLEDGE, Customers, "accounting.customers.events", "tenant-7"),
        (ACKNOWLEDGE, Companies, "accounting.companies.events", "tenant-7"),
    ] {
        let placed = place(event(json, resource)).unwrap();

        assert_eq!(placed, (topic.to_owned(), key.to_owned()));
    }
    let error = place(event(r#"{"TenantId":""}"#, Customers)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "place AccountingEvent under its key: PartitionClientId or TenantId is missing or not usable"
    );
}

#[test]
fn invoicing_events_are_keyed_by_mapped_company_or_else_tenant() {
    let mapped = invoicing(r#"{"Entity":"SaleInvoice","TenantId":"mapped"}"#, None).unwrap().remove(0);
    let other = invoicing(r#"{"Entity":"SaleInvoice","TenantId":"t/1"}"#, None).unwrap().remove(0);
    let nobody = invoicing(r#"{"Entity":"SaleInvoice"}"#, None).unwrap().remove(0);

    assert_eq!(place(mapped).unwrap(), ("invoicing.sale-invoice.events".to_owned(), "a:1:CM:b".to_owned()));
    assert_eq!(place(other).unwrap().1, "t%2F1");
    assert!(place(nobody).is_err());
}

#[test]
fn action_comes_from_the_hook_then_the_body() {
    let hook = InvoicingHook { entity: InvoicingEntity::Due, action: InvoicingAction::Created };
    for (json, hook, resource, action) in [
        (r#"{"Entity":"Bank"}"#, Some(hook), "bank", "created"),
        (r#"{"Entity":"New"}"#, Some(hook), "due", "created"),
        (r#"{"Entity":"Bank","Action":"Bank.Deleted"}"#, None, "bank", "deleted"),
        (r#"{"Entity":"Bank","Action":"Moved"}"#, None, "bank", "unknown"),
        (r#"{"Entity":"Bank"}"#, None, "bank", "unknown"),
    ] {
        let event = invoicing(json, hook).unwrap().remove(0);

        let written = serde_json::to_value(&event).unwrap();

        assert_eq!(
            (written["resource"].as_str(), written["action"].as_str()),
            (Some(resource), Some(action)),
            "{json}"
        );
    }
    assert!(invoicing(r#"{"Entity":"New"}"#, None).is_err());
}

#[test]
fn body_with_an_entity_is_flat() {
    let flat = invoicing(r#"{"Entity":"Bank","Notifications":[{"Entity":"Due"}]}"#, None).unwrap();
    let hook = InvoicingHook { entity: InvoicingEntity::Due, action: InvoicingAction::Created };
    let empty = invoicing(r#"{"Notifications":[]}"#, Some(hook)).unwrap();

    assert_eq!(flat[0].notification.extra["Notifications"], r#"[{"Entity":"Due"}]"#);
    assert_eq!(empty[0].notification.extra["Notifications"], "[]");
    assert!(flat[0].envelope.is_none() && empty[0].envelope.is_none());
}

#[test]
fn entity_of_an_unverified_body_is_found_if_known() {
    for (json, named) in [
        (r#"{"Entity":"Bank","Notifications":[{"Entity":"Due"}]}"#, Some(InvoicingEntity::Bank)),
        ("\u{feff}{\"a\":[[{}]],\"Entity\":\"\\u0042ank\"}", Some(InvoicingEntity::Bank)),
        (r#"{"Id":"x","Notifications":[{"Entity":"Due"},7,{"Entity":"Bank"}]}"#, Some(InvoicingEntity::Due)),
        (r#"{"Entity":"New"}"#, None),
        (r#"{"Entity":null}"#, None),
        (r#"{"Entity":7}"#, None),
        (r#"{"Entity":"Bank","Entity":"Due"}"#, None),
        (r#"{"Notifications":[]}"#, None),
        (r#"{"Notifications":["Bank"]}"#, None),
        (r#"{"Notifications":{"Entity":"Bank"}}"#, None),
        (r#"{"Entity":"Bank""#, None),
        ("", None),
    ] {
        assert_eq!(InvoicingEvent::entity_named(json.as_bytes()), named, "{json}");
    }
    let deep = format!("{{\"a\":{}{},\"Entity\":\"Bank\"}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(InvoicingEvent::entity_named(deep.as_bytes()), Some(InvoicingEntity::Bank));
}

#[test]
fn number_of_notifications_is_bounded() {
    let many = vec![r#"{"Entity":"Due"}"#; 257].join(",");

    let error = invoicing(&format!("{{\"Notifications\":[{many}]}}"), None).unwrap_err();

    assert_eq!(error, Error::TooManyNotifications { given: 257, most: 256 });
}

#[test]
fn records_get_their_topic_and_are_keyed_by_company_and_id() {
    let json = br#"{"correlationId":"r/1","sequenceVersion":"7"}"#;
    for resource in AccountingResource::all() {
        let value = Value::from_resource_json(json, resource, &company()).unwrap();
        let part = if resource == AccountingResource::Companies { "r%2F1" } else { "a:1:CM:b" };

        assert_eq!(value.schema(), resource.schema());
        assert_eq!(place(value).unwrap(), (format!("accounting.{resource}"), format!("{part}/r%2F1")));
    }
}

#[test]
fn company_record_and_company_event_share_a_partition() {
    let record = Value::from(Company::from_json(br#"{"correlationId":"cust-1"}"#).unwrap()).key().unwrap();
    let event = Value::from(event(DELIVERY, AccountingResource::Companies)).key().unwrap();

    assert_eq!(record.partitioning(), event.partitioning());
}

#[test]
fn payroll_companies_are_keyed_by_code() {
    let company =
        PayrollCompany::from_json(br#"{"companyCode":42,"lastUpdate":"2024-05-06T07:08:09.123Z"}"#).unwrap();

    assert_eq!(company.last_update_at, Some(1_714_979_289_123_000));
    assert_eq!(place(company).unwrap(), ("payroll.companies".to_owned(), "42/42".to_owned()));
    let text_code = PayrollCompany::from_json(br#"{"companyCode":"42"}"#).unwrap();
    assert_eq!(text_code.extra["companyCode"], "\"42\"");
    assert!(place(text_code).is_err());
}

#[test]
fn certificates_are_keyed_by_company_or_shard_and_list() {
    let run = RunId::new("r").unwrap();
    let of_company = Certificate::of_company("records", run.clone(), "customers", company(), 0);
    let of_shard = Certificate::of_shard("records", run, "payroll", 3, 0);
    let mut of_neither = of_shard.clone();
    of_neither.scope.shard = None;

    assert_eq!(place(of_company).unwrap(), ("certificates".to_owned(), "a:1:CM:b/customers".to_owned()));
    assert_eq!(place(of_shard).unwrap().1, "~3/payroll");
    assert!(place(of_neither).is_err());
}

#[test]
fn record_without_key_or_version_is_refused_by_name() {
    let customer = |json: &str| Customer::from_json(json.as_bytes(), &company()).unwrap();
    let stray =
        Record::from_json(br#"{"correlationId":"1"}"#, AccountingResource::Customers, &company()).unwrap();

    assert!(place(customer(r#"{"correlationId":""}"#)).unwrap_err().to_string().contains("correlationId"));
    assert_eq!(
        place(customer(r#"{"correlationId":"1","sequenceVersion":"x"}"#)).unwrap_err().to_string(),
        "sequence version `x` is not a number; it must be digits only"
    );
    assert!(place(stray).is_err(), "the topic of customers holds another schema");
}

#[test]
fn event_is_published_though_its_version_is_not_a_number() {
    let json = r#"{"TenantId":"t","JsonData":"{\"SequenceVersion\":\"x\"}"}"#;

    let outgoing = Outgoing::new(
        event(json, AccountingResource::Charges).into(),
        RecordMeta::new("id", Origin::Webhook),
    )
    .unwrap();

    assert_eq!(outgoing.meta.version, None);
    assert_eq!(outgoing.timestamp_ms, Some(1_714_979_289_123));
}

#[test]
fn payroll_version_ignores_the_order_of_members() {
    let version = |json: &str| Value::from(PayrollCompany::from_json(json.as_bytes()).unwrap()).version();
    let first = version(r#"{"companyCode":1,"lastUpdate":"2024-05-06T07:08:09Z","new":1}"#).unwrap().unwrap();

    assert_eq!(
        version(r#"{"new":1,"lastUpdate":"2024-05-06T07:08:09Z","companyCode":1}"#),
        Ok(Some(first.clone()))
    );
    assert_ne!(version(r#"{"companyCode":1,"lastUpdate":"2024-05-06T07:08:09Z","new":2}"#), Ok(Some(first)));
}

#[test]
fn headers_have_id_origin_version_and_trace() {
    let customer =
        Customer::from_json(br#"{"correlationId":"1","sequenceVersion":"0042"}"#, &company()).unwrap();
    let meta = RecordMeta {
        epoch: Some(Epoch(3)),
        traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok(),
        ..RecordMeta::new("delivery-1", Origin::Enrichment)
    };

    let headers = Outgoing::new(customer.into(), meta).unwrap().headers();

    let shown: Vec<_> =
        headers.iter().map(|(name, value)| (*name, std::str::from_utf8(value).unwrap())).collect();
    assert_eq!(
        shown,
        [
            ("tributary.id", "delivery-1"),
            ("tributary.origin", "enrichment"),
            ("tributary.version", "0042"),
            ("tributary.epoch", "3"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ]
    );
}

#[test]
fn disabled_only_resources_get_no_tombstone() {
    let id = RecordId::new("1").unwrap();
    for resource in AccountingResource::all() {
        let tombstone =
            Outgoing::tombstone(resource, &company(), &id, RecordMeta::new("id", Origin::Enrichment));

        match resource.ending() {
            RemovalKind::Disabled => {
                assert_eq!(tombstone, Err(Error::NeverDeleted { resource: resource.name() }))
            }
            RemovalKind::Deleted => assert_eq!(tombstone.unwrap().value, None),
        }
    }
}

#[test]
fn documented_shapes_leave_no_extra_members() {
    let company_json =
        br#"{"vatName":"n","vatNumber":"v","state":"Enabled","chartOfAccountId":1,"accountLength":8,
        "correlationId":"a:1:CM:b","version":"2024-05-06T07:08:09.1234567Z","sequenceVersion":"42"}"#;
    let customer_json =
        br#"{"tradeName":"t","state":"Enabled","vatNumber":"","vatName":"","accountCode":"430",
        "correlationId":"c","vatNumberCorrelationId":"","accountCodeCorrelationId":"d",
        "version":"2024-05-06T07:08:09Z","sequenceVersion":"42"}"#;
    let account_json = br#"{"correlationId":"c","code":"430","description":"d","state":"Enabled",
        "version":"2024-05-06T07:08:09Z","sequenceVersion":"42"}"#;
    let payroll_json = br#"{"companyCode":1,"companyName":"n","identifierNumber":"i","lastUpdate":"2024-05-06T07:08:09.123Z"}"#;

    let read = Company::from_json(company_json).unwrap();
    let extras = [
        read.extra,
        Customer::from_json(customer_json, &company()).unwrap().extra,
        Account::from_json(account_json, &company()).unwrap().extra,
        PayrollCompany::from_json(payroll_json).unwrap().extra,
    ];

    assert!(extras.iter().all(Extra::is_empty), "{extras:?}");
    assert_eq!((read.version_at, read.sequence), (Some(1_714_979_289_123_456), Some(42)));
}

#[test]
fn every_schema_field_is_known_and_documented() {
    let mut files: Vec<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".avsc"))
        .collect();
    files.sort();
    let mut known = SchemaKind::ALL.map(|kind| format!("{}.avsc", kind.name()));
    known.sort_unstable();
    assert_eq!(files, known);

    for kind in SchemaKind::ALL {
        let schema: serde_json::Value = serde_json::from_str(&schema_text(kind)).unwrap();
        let mut found = Vec::new();
        fields(&schema, kind.name(), &mut found);

        assert_eq!(
            (schema["name"].as_str(), schema["namespace"].as_str()),
            (Some(kind.name()), Some("io.tributary"))
        );
        assert!(schema["doc"].as_str().is_some_and(|doc| !doc.is_empty()), "{kind}");
        assert!(found.len() > 5, "{kind}");
        for (path, field) in found {
            assert!(field["doc"].as_str().is_some_and(|doc| !doc.is_empty()), "{path} has no doc");
            let nullable = field["type"].get(0).is_some_and(|first| first == "null");
            assert_eq!(nullable, field.get("default").is_some_and(serde_json::Value::is_null), "{path}");
        }
    }
}

#[test]
fn unusable_version_is_an_error() {
    let versions = |json: &str| {
        let event = format!(r#"{{"JsonData":{}}}"#, serde_json::json!(json.replace("sequence", "Sequence")));
        let reception = Reception { connector: "c", received_at: 0 };
        let event =
            AccountingEvent::from_json(event.as_bytes(), AccountingResource::Customers, reception).unwrap();
        let of = |resource| Value::from_resource_json(json.as_bytes(), resource, &company()).unwrap();
        [
            of(AccountingResource::Companies).version(),
            of(AccountingResource::Customers).version(),
            of(AccountingResource::Accounts).version(),
            of(AccountingResource::InputInvoices).version(),
            Value::from(event).version(),
        ]
    };
    let number = Some(Version::Sequence(SequenceVersion::parse("42").unwrap()));

    assert!(versions(r#"{"sequenceVersion":42}"#).iter().all(|version| *version == Ok(number.clone())));
    for absent in [r#"{}"#, r#"{"sequenceVersion":null}"#] {
        assert!(versions(absent).iter().all(|version| *version == Ok(None)), "{absent}");
    }
    for unusable in ["-1", "4.2", "1e3", "true", "[42]", r#"{"a":1}"#] {
        let json = format!(r#"{{"sequenceVersion":{unusable}}}"#);
        for version in versions(&json) {
            assert!(matches!(version, Err(Error::Unversioned { .. })), "{json}: {version:?}");
        }
    }
}

#[test]
fn payroll_without_a_valid_time_is_versioned_by_content() {
    let version = |json: &str| {
        Value::from(PayrollCompany::from_json(json.as_bytes()).unwrap()).version().unwrap().unwrap()
    };
    for time in
        ["", r#","lastUpdate":null"#, r#","lastUpdate":"""#, r#","lastUpdate":"soon""#, r#","lastUpdate":17"#]
    {
        let one = version(&format!(r#"{{"companyCode":1{time}}}"#));
        let other = version(&format!(r#"{{"companyName":"n","companyCode":1{time}}}"#));

        assert!(matches!(one, Version::Content { event_number: None, .. }), "{time}: {one:?}");
        assert_ne!(one, other, "{time}");
    }
}

#[test]
fn record_without_version_gets_that_of_event_and_content() {
    let event_number = SequenceVersion::parse("7").ok();
    let of = |json: &str, resource| Value::from_resource_json(json.as_bytes(), resource, &company()).unwrap();
    for resource in AccountingResource::all() {
        for version in
            ["", r#","sequenceVersion":null"#, r#","sequenceVersion":"""#, r#","sequenceVersion":"v7""#]
        {
            let one = of(&format!(r#"{{"a":1,"b":2{version}}}"#), resource).version_or(event_number.as_ref());
            let same =
                of(&format!(r#"{{"b":2,"a":1{version}}}"#), resource).version_or(event_number.as_ref());
            let other = of(&format!(r#"{{"a":1,"b":3{version}}}"#), resource).version_or(None);

            assert_eq!((one.number(), &one), (event_number.as_ref(), &same), "{resource} {version}");
            assert!(other.number().is_none() && !other.has_content_of(&one), "{resource} {version}");
        }
        let tells = of(r#"{"sequenceVersion":"9"}"#, resource).version_or(event_number.as_ref());
        assert_eq!(tells, Version::Sequence(SequenceVersion::parse("9").unwrap()), "{resource}");
    }
}

#[test]
fn record_without_id_gets_the_one_it_is_read_by() {
    let id = RecordId::new("r").unwrap();
    for resource in AccountingResource::all() {
        for (json, expected) in [
            ("{}", "r"),
            (r#"{"correlationId":null}"#, "r"),
            (r#"{"correlationId":""}"#, "r"),
            (r#"{"correlationId":"x"}"#, "x"),
        ] {
            let value = Value::from_resource_json(json.as_bytes(), resource, &company()).unwrap();

            assert_eq!(value.with_id(&id).record_id().as_deref(), Some(expected), "{resource} {json}");
        }
    }
}
