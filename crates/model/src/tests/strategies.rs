//! Strategies for what the provider might send, for property tests here and in other crates.
//!
//! [`any_value`] returns a value with the JSON it was parsed from. After any lossless round trip,
//! `canonical(&value.to_json())` must equal `canonical(&json)`.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::value::RawValue;

use super::*;

/// JSON without insignificant differences: white space, the order of differently named members, escaping of strings. Numbers
/// keep their text, repeated members all their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Canonical {
    /// A string.
    Text(String),
    /// A number, `true`, `false` or `null`.
    Literal(String),
    /// A list.
    Array(Vec<Canonical>),
    /// Members by name, each with all its values.
    Object(BTreeMap<String, Vec<Canonical>>),
}

/// Deeper than any level in our schemas (a change in a notification in an envelope); below it the text itself is compared.
const DEEPEST: usize = 8;

/// JSON text in its canonical form.
#[must_use]
pub(crate) fn canonical(json: &str) -> Canonical {
    canonical_to_depth(json, DEEPEST)
}

/// A value of any kind, beside the JSON it came from.
pub(crate) fn any_value() -> impl Strategy<Value = (String, Value)> {
    select(SchemaKind::ALL.to_vec()).prop_flat_map(value)
}

/// A value of one kind, beside the JSON it came from.
pub(crate) fn value(kind: SchemaKind) -> BoxedStrategy<(String, Value)> {
    match kind {
        SchemaKind::AccountingEvent => accounting_event(),
        SchemaKind::InvoicingEvent => prop_oneof![flat_invoicing_event(), wrapped_invoicing_event()].boxed(),
        SchemaKind::Company => of_resource(AccountingResource::Companies, COMPANY),
        SchemaKind::Customer => of_resource(AccountingResource::Customers, CUSTOMER),
        SchemaKind::Account => of_resource(AccountingResource::Accounts, ACCOUNT),
        SchemaKind::Record => of_resource(AccountingResource::InputInvoices, CUSTOMER),
        SchemaKind::PayrollCompany => object(PAYROLL, never_nested())
            .prop_map(|json| (json.clone(), PayrollCompany::from_json(json.as_bytes()).unwrap().into()))
            .boxed(),
        SchemaKind::Certificate => certificate(),
    }
}

/// Members of a company.
pub(crate) const COMPANY: &[&str] = &[
    "correlationId",
    "vatName",
    "vatNumber",
    "state",
    "chartOfAccountId",
    "accountLength",
    "version",
    "sequenceVersion",
];
/// Members of a customer.
pub(crate) const CUSTOMER: &[&str] = &[
    "correlationId",
    "tradeName",
    "state",
    "vatNumber",
    "vatName",
    "accountCode",
    "vatNumberCorrelationId",
    "accountCodeCorrelationId",
    "version",
    "sequenceVersion",
];
/// Members of an account.
pub(crate) const ACCOUNT: &[&str] =
    &["correlationId", "code", "description", "state", "version", "sequenceVersion"];
/// Members of a payroll company.
pub(crate) const PAYROLL: &[&str] = &["companyCode", "companyName", "identifierNumber", "lastUpdate"];

fn of_resource(
    resource: AccountingResource,
    known: &'static [&'static str],
) -> BoxedStrategy<(String, Value)> {
    let company = CompanyId::new("a:1:CM:b").unwrap();
    object(known, never_nested())
        .prop_map(move |json| {
            let value = Value::from_resource_json(json.as_bytes(), resource, &company).unwrap();
            (json, value)
        })
        .boxed()
}

fn accounting_event() -> BoxedStrategy<(String, Value)> {
    const KNOWN: &[&str] = &[
        "WebhookId",
        "OutgoingId",
        "ConversationId",
        "TenantId",
        "ExtraPartitionInformation",
        "EventType",
        "Timestamp",
        "JsonData",
        "UserIdentifier",
    ];
    const PARTITION: &[&str] = &["PartitionClientId", "UserName"];
    const EVENT_TYPE: &[&str] = &["AppName", "Domain", "Resource", "EventType", "SemanticName"];
    const DATA: &[&str] = &[
        "CorrelationId",
        "Version",
        "SequenceVersion",
        "SvcSourceInterface",
        "SvcProcessId",
        "SvcSourceAction",
        "Arguments",
    ];
    let nested = prop_oneof![
        object(PARTITION, never_nested()).prop_map(|json| member("ExtraPartitionInformation", json)),
        object(EVENT_TYPE, never_nested()).prop_map(|json| member("EventType", json)),
        object(DATA, never_nested()).prop_map(|json| member("JsonData", quoted(&json))),
        (100_000_000_000_000_000_i64..700_000_000_000_000_000)
            .prop_map(|n| member("Timestamp", n.to_string())),
    ];
    (object(KNOWN, nested.boxed()), select(AccountingResource::all().collect::<Vec<_>>()))
        .prop_map(|(json, resource)| {
            let reception = Reception { connector: "hooks", received_at: 1_714_979_289_123_456 };
            let event = AccountingEvent::from_json(json.as_bytes(), resource, reception).unwrap();
            (json, event.into())
        })
        .boxed()
}

const NOTIFICATION: &[&str] =
    &["Entity", "EntityId", "TenantId", "User", "Changes", "Host", "SourceApplication", "Action"];

fn notification() -> BoxedStrategy<String> {
    let changes = vec(object(&["Name", "Value"], never_nested()), 0..4)
        .prop_map(|changes| member("Changes", format!("[{}]", changes.join(" , "))));
    object(NOTIFICATION, changes.boxed())
}

fn flat_invoicing_event() -> BoxedStrategy<(String, Value)> {
    notification().prop_map(|json| invoicing_event(&json)).boxed()
}

fn wrapped_invoicing_event() -> BoxedStrategy<(String, Value)> {
    let envelope = vec(any_member(&["Id", "Attempt", "Properties", "Notifications"], never_nested()), 0..8);
    (envelope, notification())
        .prop_map(|(mut members, notification)| {
            members.push(member("Notifications", format!("[{notification}]")));
            invoicing_event(&in_braces(&members))
        })
        .boxed()
}

fn invoicing_event(json: &str) -> (String, Value) {
    let context = InvoicingContext {
        reception: Reception { connector: "hooks", received_at: 1 },
        hook: Some(InvoicingHook { entity: InvoicingEntity::Due, action: InvoicingAction::Deleted }),
        tenants: &BTreeMap::new(),
    };
    let mut events = InvoicingEvent::from_json(json.as_bytes(), &context).unwrap();
    assert_eq!(events.len(), 1, "one notification makes one event");
    (json.to_owned(), events.remove(0).into())
}

fn certificate() -> BoxedStrategy<(String, Value)> {
    let numbers = vec(any::<i64>(), 8);
    let maybe = vec(any::<Option<i64>>(), 9);
    let texts = (any::<Option<String>>(), any::<Option<String>>(), vec(any::<String>(), 0..4));
    (
        any::<Option<i32>>(),
        any::<bool>(),
        select(CertificateMethod::ALL.to_vec()),
        any::<[i32; 2]>(),
        numbers,
        maybe,
        texts,
    )
        .prop_map(
            |(shard, certified, method, [passes, page_size], n, o, (reason, requested_by, vanished))| {
                let run = RunId::new("records-1").unwrap();
                let company = CompanyId::new("a:1:CM:b").unwrap();
                let mut certificate = match shard {
                    Some(shard) => Certificate::of_shard("records", run, "payroll", shard, n[0]),
                    None => Certificate::of_company("records", run, "customers", company, n[0]),
                };
                (certificate.certified, certificate.method) = (certified, method);
                (certificate.reason, certificate.requested_by) = (reason, requested_by);
                certificate.reading = CertificateReading {
                    passes,
                    page_size,
                    page_base: shard,
                    pages: n[1],
                    rows: n[2],
                    started_at: n[0],
                    ended_at: n[4],
                    anomalies: vanished.iter().map(|one| format!("odd: {one}")).collect(),
                };
                certificate.counts = CertificateCounts {
                    listed: o[0],
                    distinct: o[1],
                    gone: o[2],
                    found: o[3],
                    missing_at_most: o[4],
                    reported_total: o[5],
                    failed_page: o[6],
                    cut_after: o[7],
                    cut_before: o[8],
                };
                certificate.records = CertificateRecords {
                    published: n[3],
                    vanished_count: n[5],
                    vanished,
                    unlisted: n[6],
                    unreadable: n[7],
                };
                let value = Value::from(certificate);
                (value.to_json(), value)
            },
        )
        .boxed()
}

/// An object with known, unknown and repeated members, and the given `nested` ones.
fn object(known: &'static [&'static str], nested: BoxedStrategy<String>) -> BoxedStrategy<String> {
    vec(any_member(known, nested), 0..16).prop_map(|members| in_braces(&members)).boxed()
}

fn any_member(known: &'static [&'static str], nested: BoxedStrategy<String>) -> BoxedStrategy<String> {
    prop_oneof![
        5 => (select(known), fitting_json()).prop_map(|(name, json)| member(name, json)),
        3 => nested,
        2 => (select(known), any_json()).prop_map(|(name, json)| member(name, json)),
        1 => (select(known), any_json()).prop_map(|(name, json)| member(&format!("{name}#1"), json)),
        2 => (odd_name(), any_json()).prop_map(|(name, json)| format!("{name} :\n{json}")),
    ]
    .boxed()
}

fn never_nested() -> BoxedStrategy<String> {
    any_json().prop_map(|json| member("$id", json)).boxed()
}

/// JSON of the types that fields have.
fn fitting_json() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>().prop_map(|text| quoted(&text)),
        "\"[0-9]{1,30}\"",
        "\"20[0-9]{2}-0[1-9]-1[0-9]T1[0-9]:[0-5][0-9]:[0-5][0-9]\\.[0-9]{7}Z\"",
        any::<i64>().prop_map(|number| number.to_string()),
        Just("\"\"".to_owned()),
    ]
}

/// Any JSON, with edge cases: null, huge numbers, lone surrogates, white space, repeated members, great depth.
fn any_json() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        select(vec![
            "null",
            "true",
            "false",
            "-0",
            "0",
            "1e400",
            "-1.50E+3",
            "9223372036854775808",
            "{}",
            "[ ]"
        ])
        .prop_map(str::to_owned),
        "-?[1-9][0-9]{0,40}(\\.[0-9]{1,20})?",
        select(vec![r#""\ud800""#, r#""\uDC00x""#, r#""\u0041\/\n""#, r#""𝄞\ud834\udd1e""#])
            .prop_map(str::to_owned),
        any::<String>().prop_map(|text| quoted(&text)),
        (1_usize..200).prop_map(|depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth))),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            vec((odd_name(), inner), 0..4).prop_map(|members| {
                let members: Vec<_> =
                    members.into_iter().map(|(name, json)| format!("{name}: {json}")).collect();
                format!("{{ {} }}", members.join(" ,"))
            }),
        ]
    })
    .boxed()
}

const ODD_NAMES: &[&str] = &[
    "\"\"",
    "\"#\"",
    "\"##\"",
    "\"#1\"",
    "\"a\"",
    "\"\\u0061\"",
    "\"a#1\"",
    "\"a##1\"",
    "\"a#\"",
    "\"#\\\"\"",
    "\"$id\"",
    "\"extra\"",
    "\"companyId\"",
    "\"\\ud800\"",
    "\"\\ud800#1\"",
];

/// Names, as JSON, that are easily confused.
fn odd_name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(ODD_NAMES).prop_map(str::to_owned),
        // `Entity` would make a wrapped body flat.
        1 => "[^E]{0,8}".prop_map(|name| quoted(&name)),
    ]
}

fn member(name: &str, json: String) -> String {
    format!("{}:{json}", quoted(name))
}

fn in_braces(members: &[String]) -> String {
    format!(" {{ {} }}\n", members.join(","))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn canonical_to_depth(json: &str, depth: usize) -> Canonical {
    let json = json.trim();
    // A name or text that is not Unicode cannot be decoded: use its raw text.
    let decoded = |json: &str| serde_json::from_str::<String>(json);
    match json.as_bytes().first() {
        Some(b'"') => decoded(json).map_or_else(|_| Canonical::Literal(json.to_owned()), Canonical::Text),
        Some(b'[') if depth > 0 => {
            let elements: Vec<&RawValue> = serde_json::from_str(json).unwrap();
            Canonical::Array(
                elements.iter().map(|element| canonical_to_depth(element.get(), depth - 1)).collect(),
            )
        }
        Some(b'{') if depth > 0 => {
            let Pairs(pairs) = serde_json::from_str(json).unwrap();
            let mut members: BTreeMap<String, Vec<Canonical>> = BTreeMap::new();
            for (name, value) in pairs {
                let name = decoded(name.get()).unwrap_or_else(|_| format!("raw {}", name.get()));
                members.entry(name).or_default().push(canonical_to_depth(value.get(), depth - 1));
            }
            Canonical::Object(members)
        }
        _ => Canonical::Literal(json.to_owned()),
    }
}

/// Parsed independently of the code under test.
struct Pairs(Vec<(Box<RawValue>, Box<RawValue>)>);

impl<'de> serde::Deserialize<'de> for Pairs {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Pairs;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                std::iter::from_fn(|| map.next_entry().transpose()).collect::<Result<_, _>>().map(Pairs)
            }
        }

        deserializer.deserialize_map(Visitor)
    }
}
