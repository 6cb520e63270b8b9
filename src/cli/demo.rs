//! `tributary demo`: the publish path in one process, over real sockets, with nothing installed.
//!
//! An embedded Kafka and an embedded registry stand in for the real ones. One value of every schema is published through
//! the path the product uses, read back from the topics, decoded and compared.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Failure, outside, scratch::ScratchDirectory};
use crate::{
    avro::{self, Decoder, Ids, Registry},
    config,
    kafka::{self, Admin, Producer, ProducerOptions},
    model::{
        Account, AccountingEvent, AccountingResource, Certificate, Company, CompanyId, Customer,
        InvoicingAction, InvoicingContext, InvoicingEntity, InvoicingEvent, InvoicingHook, Meta, Method,
        Origin, Outgoing, PayrollCompany, Reception, Record, RunId, TenantId, TopicPrefix, Value,
    },
    pipeline::{Layout, Opened, Publisher, open},
    telemetry::Metrics,
};

/// The most that reading a topic back may take.
const READ_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn run(metrics: &Metrics, out: &mut impl Write) -> Result<(), Failure> {
    let state = ScratchDirectory::create("demo").map_err(outside)?;
    let cluster = Arc::new(kafka::embedded::Cluster::start(1).map_err(outside)?);
    let server = avro::embedded::Server::start().await.map_err(outside)?;
    let registry = Registry::new(&config::Registry::open(server.url().clone())).map_err(outside)?;
    let ids = Ids::open(registry.clone(), &state.0).await;
    let values = one_of_everything().map_err(outside)?;
    let prefix = TopicPrefix::new("demo").map_err(outside)?;
    let layout = Layout::new(prefix, values.iter().map(|(value, _)| value.topic()));

    let opened = open(&layout, &Admin::Embedded(Arc::clone(&cluster)), &ids).await.map_err(outside)?;
    let (kafka_address, registry_address) = (cluster.bootstrap_servers(), server.url());
    writeln!(out, "embedded Kafka at {kafka_address}, schema registry at {registry_address}\n")
        .map_err(outside)?;
    let published = publish(values, &cluster.settings(), &opened, out).await?;
    let equal = read_back(&published, &cluster.settings(), &opened, &Decoder::new(registry)).await?;
    writeln!(out, "\nread back and decoded: {equal} of {} are what was published", published.len())
        .map_err(outside)?;
    let rendered = metrics.render();
    let counted: Vec<&str> = rendered.lines().filter(|line| line.starts_with(PUBLISHED)).collect();
    writeln!(out, "\nfrom its metrics:\n{}\n{NOT_YET}", counted.join("\n")).map_err(outside)?;
    if equal == published.len() { Ok(()) } else { Err(Failure::Reported) }
}

const PUBLISHED: &str = "tributary_records_published_total";
const NOT_YET: &str = "\nNot there yet: receiving webhooks, fetching records, snapshots. The worker is: see `tributary run --help`.";

async fn publish(
    values: Vec<(Value, Origin)>,
    kafka: &config::Kafka,
    opened: &Opened,
    out: &mut impl Write,
) -> Result<Vec<Outgoing>, Failure> {
    let producer = Producer::new(kafka, &ProducerOptions::default()).map_err(outside)?;
    let publisher = Publisher::new(opened.preparer.clone(), producer);
    writeln!(out, "{:<36} {:>9}  {:<28} schema", "topic", "partition", "key").map_err(outside)?;
    let mut published = Vec::new();
    for (number, (value, origin)) in values.into_iter().enumerate() {
        let schema = value.schema().name();
        let record = Outgoing::new(value, Meta::new(format!("demo-{number}"), origin)).map_err(outside)?;
        let ack = publisher.publish(&record).await.map_err(outside)?;
        let topic = opened.preparer.topic_name(record.topic);
        writeln!(out, "{topic:<36} {:>9}  {:<28} {schema}", ack.partition, record.key).map_err(outside)?;
        published.push(record);
    }
    publisher.into_sink().close(READ_LIMIT).await.map_err(outside)?;
    Ok(published)
}

/// How many of the records are in their topics, decoded to the same value under the same key.
async fn read_back(
    published: &[Outgoing],
    kafka: &config::Kafka,
    opened: &Opened,
    decoder: &Decoder,
) -> Result<usize, Failure> {
    let partitions: Vec<i32> = (0..opened.preparer.partitions()).collect();
    let mut equal = 0;
    for record in published {
        let topic = opened.preparer.topic_name(record.topic);
        let mut received = Vec::new();
        kafka::read_to_end(kafka, &topic, &partitions, READ_LIMIT, |one| received.push(one))
            .await
            .map_err(outside)?;
        for one in received {
            let (Some(key), Some(framed), Some(expected)) = (one.key, one.value, &record.value) else {
                continue;
            };
            let (_, value) = decoder.decode(expected.schema(), &framed).await.map_err(outside)?;
            equal += usize::from(key == record.key.as_str() && value == *expected);
        }
    }
    Ok(equal)
}

/// One value of every schema, as the provider would send it.
fn one_of_everything() -> Result<Vec<(Value, Origin)>, crate::model::Error> {
    let company = CompanyId::new("acme:17:CM:4f2d")?;
    let received_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    let reception =
        Reception { connector: "demo", received_at: i64::try_from(received_at).unwrap_or_default() };
    let tenants = BTreeMap::from([(TenantId::new("tenant-7")?, company.clone())]);
    let hook = InvoicingHook { entity: InvoicingEntity::SaleInvoice, action: InvoicingAction::Created };
    let invoicing = InvoicingContext { reception, hook: Some(hook), tenants: &tenants };

    let mut values: Vec<(Value, Origin)> = vec![(
        AccountingEvent::from_json(EVENT, AccountingResource::Customers, reception)?.into(),
        Origin::Webhook,
    )];
    for event in InvoicingEvent::from_json(INVOICING, &invoicing)? {
        values.push((event.into(), Origin::Webhook));
    }
    values.extend([
        (Company::from_json(COMPANY)?.into(), Origin::Snapshot),
        (Customer::from_json(CUSTOMER, &company)?.into(), Origin::Enrichment),
        (Account::from_json(ACCOUNT, &company)?.into(), Origin::Snapshot),
        (Record::from_json(JOURNAL, AccountingResource::Journals, &company)?.into(), Origin::Enrichment),
        (PayrollCompany::from_json(PAYROLL)?.into(), Origin::Snapshot),
    ]);
    let run = RunId::new("demo/1")?;
    let mut certificate = Certificate::of_company("demo", run, "customers", company, reception.received_at);
    certificate.certified = true;
    certificate.method = Method::Single;
    values.push((certificate.into(), Origin::Snapshot));
    Ok(values)
}

const EVENT: &[u8] = br#"{"WebhookId":"8b5c9f0e-0d0b-4a53-9f0b-2f5d5a3c1a11","OutgoingId":"0d9f9c1e-6f0e-4f8e-8f5e-1c2b3a4d5e6f",
"ConversationId":"a1b2c3d4-0000-4000-8000-000000000001","TenantId":"tenant-7",
"ExtraPartitionInformation":{"PartitionClientId":"acme:17:CM:4f2d","UserName":"Ana"},
"EventType":{"AppName":"Svc","Domain":"ACC","Resource":"Customers","EventType":"CustomerUpdated",
"SemanticName":"Svc.ACC.Customers.CustomerUpdated"},"Timestamp":638985024000000000,
"JsonData":"{\"CorrelationId\":\"customer-1\",\"Version\":\"15/11/2026 9:00:00\",\"SequenceVersion\":\"1042\"}",
"UserIdentifier":"5d6e7f80-0000-4000-8000-000000000002"}"#;
const INVOICING: &[u8] =
    br#"{"Entity":"SaleInvoice","EntityId":"inv-9","TenantId":"tenant-7","User":"ana@example.com",
"Changes":[{"Name":"Total","Value":"120.50"}]}"#;
const COMPANY: &[u8] = br#"{"vatName":"Acme","vatNumber":"B00000000","state":"Enabled","chartOfAccountId":1,
"accountLength":8,"correlationId":"acme:17:CM:4f2d","version":"2026-11-15T09:00:00.1234567Z","sequenceVersion":"77"}"#;
const CUSTOMER: &[u8] =
    br#"{"tradeName":"Caf\u00e9 Sol","state":"Enabled","vatNumber":"","vatName":"","accountCode":"43000001",
"correlationId":"customer-1","vatNumberCorrelationId":"","accountCodeCorrelationId":"account-1",
"version":"2026-11-15T09:00:00.7654321Z","sequenceVersion":"1042","loyalty":{"tier":"gold"}}"#;
const ACCOUNT: &[u8] =
    br#"{"correlationId":"account-1","code":"43000001","description":"Customers","state":"Enabled",
"version":"2026-11-15T08:59:59Z","sequenceVersion":"9"}"#;
const JOURNAL: &[u8] = br#"{"correlationId":"journal-1","version":"2026-11-15T08:00:00Z","sequenceVersion":"3","lines":[1,2,3]}"#;
const PAYROLL: &[u8] = br#"{"companyCode":17,"companyName":"Acme","identifierNumber":"B00000000","lastUpdate":"2026-11-15T07:30:00.000Z"}"#;
