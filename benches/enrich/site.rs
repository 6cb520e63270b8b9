//! A topic prefix and a worker group on the shared Kafka and registry.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka::Admin;
use model::{AccountingResource, Topic, TopicPrefix};
use simulator::Simulator;
use tokio::time::{Instant, sleep};
use tributary::{
    config::{self, Connector, Providers},
    publish::Layout,
};

use crate::{
    feed::Feed,
    support::{
        Error, Result, Shared, allowed_hosts,
        place::{Place, chain},
        prefix, run_directory,
    },
};

/// Name of the connector.
pub(crate) const RECORDS: &str = "records";
/// Resource of the events and records.
pub(crate) const RESOURCE: AccountingResource = AccountingResource::Customers;
/// Limit for creating all topics.
const LIMIT: Duration = Duration::from_secs(180);
const STEP: Duration = Duration::from_secs(1);
/// A budget that no benchmark reaches.
const UNLIMITED: &str = "1000000";

/// Where workers run.
pub(crate) struct Site {
    pub(crate) name: String,
    /// The worker group, and the prefix of its topics' names.
    pub(crate) group: String,
    pub(crate) bootstrap: String,
    pub(crate) registry: String,
    pub(crate) kafka: kafka::Kafka,
    /// Partitions of every topic, hence shards.
    pub(crate) partitions: i32,
    /// The connector's config.
    pub(crate) config: BTreeMap<String, String>,
    prefix: TopicPrefix,
}

impl Site {
    /// Creates all topics of the connector, so that no worker spends time on it, and the feed that writes events to them.
    pub(crate) async fn open(
        shared: &Shared,
        name: &str,
        partitions: u32,
        in_flight: u32,
        settings: &[(&str, &str)],
        simulator: &Simulator,
    ) -> Result<(Self, Feed)> {
        let group = prefix(name);
        let prefix = TopicPrefix::new(format!("{group}-t")).unwrap();
        let config = fetching(&prefix, partitions, in_flight, settings, simulator);
        let parsed = Connector::parse(RECORDS, &config, &Providers::new([]).with_hosts(allowed_hosts()));
        let (connector, _) =
            parsed.map_err(|problems| Error(format!("configure {RECORDS}: {problems:?}")))?;
        let kafka = kafka::Kafka::plaintext(shared.bootstrap());
        let place = Place {
            prefix: prefix.clone(),
            kafka: kafka.clone(),
            admin: Admin::Real(kafka.clone()),
            registry: config::RegistrySettings::open(shared.registry().parse().unwrap()),
            state_dir: run_directory::create(name)?,
        };
        let (layout, end) = (Layout::of(&connector), Instant::now() + LIMIT);
        let publisher = loop {
            match place.open(&layout).await {
                Ok(publisher) => break publisher,
                // A broker may need longer for thousands of partitions than one request may take.
                Err(error) if error.retry().is_retriable() && Instant::now() < end => sleep(STEP).await,
                Err(error) => return Err(Error(format!("open {prefix}: {}", chain(&error)))),
            }
        };
        let site = Self {
            name: name.to_owned(),
            group,
            bootstrap: shared.bootstrap().to_owned(),
            registry: shared.registry().to_owned(),
            kafka,
            partitions: publisher.preparer().partitions(),
            config,
            prefix,
        };
        let preparer = publisher.preparer().clone();
        Ok((site, Feed::new(simulator.provider(), preparer, place.producer())))
    }

    /// Name of the record topic.
    pub(crate) fn records(&self) -> String {
        Topic::AccountingRecords(RESOURCE).name(&self.prefix)
    }
}

/// The config of a connector with one task and no effective budget.
fn fetching(
    prefix: &TopicPrefix,
    partitions: u32,
    in_flight: u32,
    settings: &[(&str, &str)],
    simulator: &Simulator,
) -> BTreeMap<String, String> {
    let (address, partitions) = (simulator.base_url().to_string(), partitions.to_string());
    let in_flight = in_flight.to_string();
    let plain = [
        ("connector.class", "RecordSource"),
        ("tasks.max", "1"),
        ("topic.prefix", prefix.as_str()),
        ("topic.creation.default.partitions", &*partitions),
        ("topic.creation.default.replication.factor", "1"),
        ("errors.deadletterqueue.topic.replication.factor", "1"),
        ("provider.base.url", &*address),
        ("provider.auth.url", &*address),
        ("provider.subscription.key", &*simulator.provider().settings.subscription_keys[0]),
        ("oauth.client.id", &*simulator.provider().settings.client.id),
        ("oauth.client.secret", &*simulator.provider().settings.client.secret),
        ("enrich.resources", RESOURCE.name()),
        ("snapshot.lists", RESOURCE.name()),
        ("snapshot.mode", "no_data"),
        // There is no receiver to wait for.
        ("stream.start.timeout.ms", "0"),
        ("page.size", "1000"),
        ("budget.requests.per.second", UNLIMITED),
        ("budget.company.requests.per.second", UNLIMITED),
        ("budget.requests.in.flight", &*in_flight),
    ];
    let all = plain.iter().chain(settings);
    all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
