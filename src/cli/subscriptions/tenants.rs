//! `tributary subscriptions tenants`: the invoicing tenants that events show, and a company for each that has none.
//!
//! ```text
//! {prefix}.invoicing.*.events  ─▶ tenants: how many events, of which entities, until when ┐
//! {prefix}.accounting.*.events ─▶ companies of each tenant ───────────────────────────────┴▶ invoicing.tenants=…
//! ```
//!
//! The invoicing API says nothing about companies. An accounting event names its tenant and its company, so a tenant that accounting
//! events show with exactly one company is proposed for it. A person decides: the command changes nothing.
//!
//! - At most `--limit` records of each partition are read, the newest ones.
//! - Memory is bounded by [`MAX_TENANTS`] and [`MAX_COMPANIES`], not by the topics.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use base::retry::ErrorChain;
use kafka::{
    Admin, Assignment, Consumer, ConsumerEvent, ConsumerOptions, ConsumerRecord, StartOffset, TopicPartition,
    watermarks_of,
};
use model::{
    AccountingResource, CompanyId, InvoicingEntity, Moment, SchemaKind, TenantId, Topic, TopicPrefix, Value,
};

use crate::{
    avro::{Decoder, Registry},
    cli::{
        Environment, Result,
        client::ConnectionArgs,
        failure, load, outside, problem, resolve,
        scan::since,
        table::{Column, each, objects, text},
    },
    config::{Connector, Worker, connector::WebhookSource},
};

/// Tenants that are counted; events of others are only mentioned.
const MAX_TENANTS: usize = 10_000;
/// Companies of a tenant that are kept: two are enough to propose none, more help a person.
const MAX_COMPANIES: usize = 5;
/// Without a record or an end for this long, the read fails.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(in crate::cli) struct TenantsArgs {
    /// Name of the connector: its file (JSON), or its name in connectors.dir or on the workers
    connector: String,
    /// Only events received since a time such as 2026-11-15T09:00:00Z, or within a duration (90s, 15m, 2h, 7d)
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<i64>,
    /// Records of each partition that are read; the newest
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// The topic.prefix of the accounting events, if another connector receives them under another prefix
    #[arg(long, value_name = "PREFIX")]
    accounting_prefix: Option<TopicPrefix>,
}

pub(super) async fn run(
    options: &TenantsArgs,
    access: &ConnectionArgs,
    environment: &Environment,
    out: &mut dyn Write,
) -> Result {
    let named = options.connector.as_str();
    let receives_none =
        |rule: String| problem("connector", named, rule, "name a WebhookSource with invoicing.hooks");
    let source = match resolve::connector(named, access.config.as_deref(), environment).await? {
        Connector::WebhookSource(source) if source.invoicing.is_some() => source,
        other => {
            let rule = format!("is a {} that receives no invoicing deliveries", other.class().name());
            return Err(receives_none(rule).into());
        }
    };
    let worker = load::load(access.config.as_deref(), &[], environment)?.worker;
    let prefix = &source.common.topic_prefix;
    let accounting = options.accounting_prefix.as_ref().unwrap_or(prefix);
    let topics = InvoicingEntity::all().map(|entity| Topic::InvoicingEvents(entity).name(prefix));
    let resources = AccountingResource::all().map(|one| Topic::AccountingEvents(one).name(accounting));
    let reader = EventReader {
        decoder: Decoder::new(Registry::new(&worker.registry)?),
        worker,
        limit: i64::from(options.limit),
        since: options.since,
    };
    let mut seen = SeenTenants::of(&source);
    reader.read(SchemaKind::InvoicingEvent, topics.collect(), &mut seen).await?;
    reader.read(SchemaKind::AccountingEvent, resources.collect(), &mut seen).await?;
    access.format.output().show(&seen.report(options.limit), out, table)
}

/// Reads the newest events of topics.
struct EventReader {
    worker: Worker,
    decoder: Decoder,
    limit: i64,
    /// Milliseconds since 1970.
    since: Option<i64>,
}

impl EventReader {
    /// Reads topics of this kind that exist, up to their current ends.
    async fn read(&self, kind: SchemaKind, topics: Vec<String>, seen: &mut SeenTenants) -> Result {
        let kafka = &self.worker.kafka;
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let counts = Admin::Real(kafka.clone()).partition_counts(&names).await?;
        let places = counts.iter().flat_map(|(topic, count)| {
            let topic: Arc<str> = topic.as_str().into();
            (0..*count).map(move |partition| (Arc::clone(&topic), partition))
        });
        let places: Vec<TopicPartition> = places.collect();
        // The end of each partition that has records.
        let mut open: BTreeMap<TopicPartition, i64> = BTreeMap::new();
        let mut assignments = Vec::new();
        for ((topic, partition), (first, end)) in watermarks_of(kafka, &places, READ_TIMEOUT).await? {
            let start = first.max(end.saturating_sub(self.limit));
            seen.is_cut |= start > first;
            if start < end {
                open.insert((Arc::clone(&topic), partition), end);
                assignments.push(Assignment { topic, partition, start: StartOffset::Offset(start) });
            }
        }
        if assignments.is_empty() {
            return Ok(());
        }
        let mut consumer = Consumer::assign(kafka, assignments, &ConsumerOptions::default()).await?;
        while !open.is_empty() {
            let silent = |_| {
                let seconds = READ_TIMEOUT.as_secs();
                failure(format!("read the events of {}: no answer from Kafka for {seconds} s", kind.name()))
            };
            match timeout(READ_TIMEOUT, consumer.next()).await.map_err(silent)?? {
                ConsumerEvent::End { topic, partition } => drop(open.remove(&(topic, partition))),
                ConsumerEvent::Record(record) => {
                    let place = (Arc::clone(&record.topic), record.partition);
                    // Records that are written during the read are skipped, or a busy topic would have no end.
                    let Some(end) = open.get(&place) else { continue };
                    if record.offset + 1 >= *end {
                        open.remove(&place);
                    }
                    self.take(kind, &record, seen).await?;
                }
            }
        }
        consumer.stop().await;
        Ok(())
    }

    async fn take(&self, kind: SchemaKind, record: &ConsumerRecord, seen: &mut SeenTenants) -> Result {
        let is_old = |since: i64| record.timestamp_ms.is_some_and(|written| written < since);
        let Some(value) = record.value.as_deref().filter(|_| !self.since.is_some_and(is_old)) else {
            return Ok(());
        };
        match self.decoder.decode(kind, value).await {
            Ok((_, value)) => seen.take(&value),
            Err(error) if error.retry().is_retriable() => return Err(outside(error)),
            // Another program or a later version wrote it.
            Err(error) => {
                tracing::debug!(error = %ErrorChain(&error), "skipped an event that cannot be decoded");
                seen.unreadable += 1;
            }
        }
        Ok(())
    }
}

/// What events show about tenants.
struct SeenTenants {
    connector: String,
    prefix: String,
    /// `invoicing.tenants`.
    mapped: BTreeMap<TenantId, CompanyId>,
    /// By the invoicing events of the connector.
    tenants: BTreeMap<TenantId, SeenEvents>,
    /// By accounting events.
    companies: BTreeMap<TenantId, BTreeSet<CompanyId>>,
    /// Events that cannot be decoded.
    unreadable: u64,
    /// Events of tenants above the limit.
    uncounted: u64,
    /// A partition has older records, which were not read.
    is_cut: bool,
}

/// The invoicing events of a tenant.
#[derive(Default)]
struct SeenEvents {
    entities: BTreeSet<&'static str>,
    count: u64,
    /// Microseconds since 1970.
    last: i64,
}

impl SeenTenants {
    fn of(source: &WebhookSource) -> Self {
        Self {
            connector: source.common.name.clone(),
            prefix: source.common.topic_prefix.to_string(),
            mapped: source.invoicing.as_ref().map(|invoicing| invoicing.tenants.clone()).unwrap_or_default(),
            tenants: BTreeMap::new(),
            companies: BTreeMap::new(),
            unreadable: 0,
            uncounted: 0,
            is_cut: false,
        }
    }

    fn take(&mut self, event: &Value) {
        match event {
            // Others receive under the prefix too, each with its own mapping.
            Value::InvoicingEvent(event) if event.connector == self.connector => {
                let Some(tenant) = tenant(event.notification.tenant_id.as_ref()) else { return };
                let Some(seen) = kept(&mut self.tenants, tenant) else {
                    self.uncounted += 1;
                    return;
                };
                seen.entities.insert(event.resource.name());
                seen.count += 1;
                seen.last = seen.last.max(event.received_at);
            }
            Value::AccountingEvent(event) => {
                let company = event.company_id.clone();
                let Some((tenant, company)) = tenant(event.envelope.tenant_id.as_ref()).zip(company) else {
                    return;
                };
                let known = kept(&mut self.companies, tenant);
                if let Some(companies) = known.filter(|companies| companies.len() < MAX_COMPANIES) {
                    companies.insert(company);
                }
            }
            _ => {}
        }
    }

    /// The company to propose for a tenant: the only one, if a list of pairs can hold it.
    fn proposal(&self, tenant: &TenantId) -> Option<&CompanyId> {
        let mut companies = self.companies.get(tenant)?.iter();
        let (Some(company), None) = (companies.next(), companies.next()) else { return None };
        let is_plain = |text: &str, separators: &[char]| text.trim() == text && !text.contains(separators);
        (is_plain(tenant.as_str(), &[',', '=']) && is_plain(company.as_str(), &[','])).then_some(company)
    }

    fn report(&self, limit: u32) -> Json {
        let row = |(tenant, seen): (&TenantId, &SeenEvents)| {
            let company = self.mapped.get(tenant);
            let proposal = company.is_none().then(|| self.proposal(tenant)).flatten();
            let companies = self.companies.get(tenant);
            json!({
                "tenant": tenant,
                "entities": seen.entities,
                "events": seen.count,
                "lastSeen": Moment::from_micros(seen.last).to_string(),
                "company": company,
                "proposal": proposal,
                "companies": companies.cloned().unwrap_or_default(),
            })
        };
        let rows: Vec<Json> = self.tenants.iter().map(row).collect();
        let new = self.tenants.keys().filter(|tenant| !self.mapped.contains_key(tenant));
        let new: Vec<_> = new.filter_map(|tenant| Some((tenant, self.proposal(tenant)?))).collect();
        let setting = (!new.is_empty()).then(|| {
            let pairs = self.mapped.iter().chain(new).map(|(tenant, company)| format!("{tenant}={company}"));
            pairs.collect::<Vec<_>>().join(",")
        });
        json!({
            "connector": self.connector,
            "prefix": self.prefix,
            "tenants": rows,
            "setting": setting,
            "unreadable": self.unreadable,
            "uncounted": self.uncounted,
            "limit": self.is_cut.then_some(limit),
        })
    }
}

fn tenant(text: Option<&String>) -> Option<TenantId> {
    TenantId::new(text?.as_str()).ok()
}

/// The entry of a tenant, made unless there are too many.
fn kept<T: Default>(all: &mut BTreeMap<TenantId, T>, tenant: TenantId) -> Option<&mut T> {
    (all.len() < MAX_TENANTS || all.contains_key(&tenant)).then(|| all.entry(tenant).or_default())
}

const COLUMNS: [Column; 6] = [
    ("TENANT", |one| text(&one["tenant"])),
    ("EVENTS", |one| text(&one["events"])),
    ("LAST SEEN", |one| text(&one["lastSeen"])),
    ("ENTITIES", |one| joined(&one["entities"])),
    ("COMPANY", |one| text(&one["company"])),
    ("PROPOSAL", advice),
];

/// One line per tenant, then the setting.
fn table(found: &Json, out: &mut dyn Write) -> io::Result<()> {
    objects(each(&found["tenants"]), COLUMNS, out)?;
    match found["setting"].as_str() {
        Some(_) => writeln!(out, "\ninvoicing.tenants={}", text(&found["setting"]))?,
        None => writeln!(out, "\nno change of invoicing.tenants is proposed")?,
    }
    if !found["limit"].is_null() {
        let limit = text(&found["limit"]);
        writeln!(out, "\nonly the newest {limit} records of each partition were read; raise --limit")?;
    }
    for (member, what) in
        [("unreadable", "cannot be decoded"), ("uncounted", "are of more tenants than are counted")]
    {
        if found[member] != 0 {
            writeln!(out, "\n{} events {what}", text(&found[member]))?;
        }
    }
    Ok(())
}

/// What to do about a tenant, or why nothing is proposed.
fn advice(one: &Json) -> String {
    let (mapped, companies) = (&one["company"], each(&one["companies"]));
    match (mapped.as_str(), companies) {
        (Some(mapped), companies) if companies.is_empty() || companies.iter().any(|one| one == mapped) => {
            "mapped".to_owned()
        }
        (Some(_), _) => format!("mapped, but accounting events show {}", joined(&one["companies"])),
        (None, _) if one["proposal"].is_string() => text(&one["proposal"]),
        (None, []) => "none: no accounting event shows its company".to_owned(),
        (None, [_]) => "none: a list cannot hold these ids".to_owned(),
        (None, _) => format!("none: accounting events show several companies: {}", joined(&one["companies"])),
    }
}

fn joined(list: &Json) -> String {
    each(list).iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use model::{AccountingEvent, InvoicingContext, InvoicingEvent, Reception};

    use super::*;
    use crate::cli::tests::written;

    fn seen(mapped: &[(&str, &str)]) -> SeenTenants {
        let id = |(tenant, company): &(&str, &str)| {
            (TenantId::new(*tenant).unwrap(), CompanyId::new(*company).unwrap())
        };
        SeenTenants {
            connector: "hooks".to_owned(),
            prefix: "acme".to_owned(),
            mapped: mapped.iter().map(id).collect(),
            tenants: BTreeMap::new(),
            companies: BTreeMap::new(),
            unreadable: 0,
            uncounted: 0,
            is_cut: false,
        }
    }

    fn invoicing(connector: &str, tenant: &str, received_at: i64) -> Value {
        let body = json!({ "Entity": "Customer", "TenantId": tenant }).to_string();
        let reception = Reception { connector, received_at };
        let context = InvoicingContext { reception, hook: None, tenants: &BTreeMap::new() };
        let mut events = InvoicingEvent::from_json(body.as_bytes(), &context).unwrap();
        Value::InvoicingEvent(Box::new(events.remove(0)))
    }

    fn accounting(tenant: &str, company: Option<&str>) -> Value {
        let body = json!({
            "TenantId": tenant,
            "ExtraPartitionInformation": { "PartitionClientId": company },
            "EventType": { "EventType": "CustomerUpdated" },
            "JsonData": "{\"CorrelationId\":\"1\"}",
        });
        let reception = Reception { connector: "books", received_at: 1 };
        let resource = Some(AccountingResource::Customers);
        let event = AccountingEvent::from_delivery(body.to_string().as_bytes(), resource, reception);
        Value::AccountingEvent(Box::new(event.unwrap()))
    }

    #[test]
    fn only_a_tenant_with_exactly_one_company_is_proposed() {
        let mut seen = seen(&[("t-4", "acc:4"), ("t-5", "acc:5")]);
        for (at, tenant) in ["t-1", "t-2", "t-3", "t-4", "t-5", "t-1"].into_iter().enumerate() {
            seen.take(&invoicing("hooks", tenant, at as i64 * 1_000_000));
        }
        seen.take(&invoicing("others", "t-9", 1));
        let shown =
            [("t-1", "acc:1"), ("t-1", "acc:1"), ("t-2", "acc:1"), ("t-2", "acc:2"), ("t-5", "acc:6")];
        for (tenant, company) in shown {
            seen.take(&accounting(tenant, Some(company)));
        }
        seen.take(&accounting("t-3", None));

        let report = seen.report(10);

        assert_eq!(report["setting"], "t-4=acc:4,t-5=acc:5,t-1=acc:1");
        assert_eq!(report["tenants"][0]["events"], 2);
        let expected = "TENANT  EVENTS  LAST SEEN                 ENTITIES  COMPANY  PROPOSAL\n\
                        t-1     2       1970-01-01T00:00:05.000Z  customer  -        acc:1\n\
                        t-2     1       1970-01-01T00:00:01.000Z  customer  -        none: accounting events show several companies: acc:1,acc:2\n\
                        t-3     1       1970-01-01T00:00:02.000Z  customer  -        none: no accounting event shows its company\n\
                        t-4     1       1970-01-01T00:00:03.000Z  customer  acc:4    mapped\n\
                        t-5     1       1970-01-01T00:00:04.000Z  customer  acc:5    mapped, but accounting events show acc:6\n\
                        \n\
                        invoicing.tenants=t-4=acc:4,t-5=acc:5,t-1=acc:1\n";
        assert_eq!(written(|out| table(&report, out)), expected);
    }

    #[test]
    fn proposal_that_a_list_cannot_hold_is_left_out() {
        let mut seen = seen(&[]);
        seen.take(&invoicing("hooks", "a,b", 1));
        seen.take(&accounting("a,b", Some("acc:1")));

        let report = seen.report(10);

        assert_eq!(report["setting"], Json::Null);
        let text = written(|out| table(&report, out));
        assert!(text.contains("a list cannot hold these ids") && text.contains("no change"), "{text}");
    }

    #[test]
    fn tenants_and_companies_are_bounded() {
        let mut seen = seen(&[]);
        for number in 0..=MAX_TENANTS {
            seen.take(&invoicing("hooks", &number.to_string(), 1));
        }
        for number in 0..2 * MAX_COMPANIES {
            seen.take(&accounting("1", Some(&number.to_string())));
        }

        assert_eq!((seen.tenants.len(), seen.uncounted), (MAX_TENANTS, 1));
        assert_eq!(seen.companies.values().map(BTreeSet::len).collect::<Vec<_>>(), [MAX_COMPANIES]);
        let text = written(|out| table(&json!({ "uncounted": 1, "unreadable": 0, "limit": 7 }), out));
        assert!(text.contains("1 events are of more tenants") && text.contains("newest 7"), "{text}");
    }
}
