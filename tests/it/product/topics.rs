//! Topics before the first record: created as the design has them, refused where they exist otherwise.
//!
//! A refusal names topic, found, wanted and a command. The very command of the message is run here with
//! Kafka's own tools, and the next start must pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use base::retry::Retry;
use kafka::TopicMismatch;
use model::{AccountingResource, Topic};
use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use tributary::publish::{self, Layout};

use crate::support::{
    Error, Result, Shared,
    broker::tool,
    cycles,
    place::{PARTITIONS, Place, chain},
};

crate::tests! {
    real missing_topics_are_created_with_the_designed_settings;
    real wrong_partition_count_is_refused_until_remedied;
    real wrong_cleanup_policies_are_refused_until_remedied;
    real new_topic_gets_the_partition_count_of_its_prefix;
    real partition_count_unlike_the_prefixs_creates_nothing;
    real workers_that_start_together_create_the_same_topics;
}

/// Time limit for changes that a broker shows with a delay.
const LIMIT: Duration = Duration::from_secs(30);
const CUSTOMERS: Topic = Topic::AccountingRecords(AccountingResource::Customers);
const ACCOUNTS: Topic = Topic::AccountingRecords(AccountingResource::Accounts);
const EVENTS: Topic = Topic::AccountingEvents(AccountingResource::Customers);

async fn missing_topics_are_created_with_the_designed_settings(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "created")?;
    let mut layout = place.layout(Topic::all());
    layout.settings.insert("min.compaction.lag.ms".into(), "1000".into());

    place.open(&layout).await.unwrap();

    let names = names(&place, &layout);
    assert_eq!(counts(&place, &names).await, names.iter().map(|name| (name.clone(), PARTITIONS)).collect());
    for (name, config) in names.iter().zip(describe(&place, &names).await) {
        let compacted = !name.ends_with(".events") && !name.ends_with(".dead-letters");
        let (policy, retention) = if compacted { ("compact", "604800000") } else { ("delete", "86400000") };
        let largest = if name.ends_with(".dead-letters") { "34603008" } else { "1048588" };
        let setting = |key: &str| config.get(key).and_then(|entry| entry.value.as_deref());
        assert_eq!(setting("cleanup.policy"), Some(policy), "{name}");
        assert_eq!(setting("delete.retention.ms"), Some(retention), "{name}");
        assert_eq!(setting("max.message.bytes"), Some(largest), "{name}");
        assert_eq!(setting("min.compaction.lag.ms"), Some("1000"), "{name}");
    }
    Ok(())
}

async fn wrong_partition_count_is_refused_until_remedied(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "count")?;
    create(&place, &place.name(CUSTOMERS), 5, "compact").await;
    let layout = place.layout([CUSTOMERS, EVENTS]);

    let refused = mismatches(place.open(&layout).await);
    let [mismatch] = &refused[..] else { panic!("{refused:?}") };
    run_remedy(mismatch).await?;
    open_soon(&place, &layout).await;

    assert_eq!(mismatch.topic, place.name(CUSTOMERS));
    assert_eq!(mismatch.found, "5 partitions");
    assert!(mismatch.wanted.starts_with("3"), "{mismatch}");
    let names = [place.name(CUSTOMERS)];
    assert_eq!(counts(&place, &names).await, [(names[0].clone(), PARTITIONS)].into());
    Ok(())
}

async fn wrong_cleanup_policies_are_refused_until_remedied(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "policy")?;
    let wrong = [
        (CUSTOMERS, "delete", "compact"),
        (ACCOUNTS, "compact,delete", "compact"),
        (EVENTS, "compact", "delete"),
    ];
    for (topic, found, _) in wrong {
        create(&place, &place.name(topic), PARTITIONS, found).await;
    }
    let layout = place.layout(wrong.map(|(topic, ..)| topic));

    let refused = mismatches(place.open(&layout).await);
    for mismatch in &refused {
        run_remedy(mismatch).await?;
    }
    open_soon(&place, &layout).await;

    let reported: BTreeSet<_> =
        refused.iter().map(|it| (it.topic.clone(), it.found.clone(), it.wanted.clone())).collect();
    let policy = |policy: &str| format!("cleanup.policy={policy}");
    let expected = wrong.map(|(topic, found, wanted)| (place.name(topic), policy(found), policy(wanted)));
    assert_eq!(reported, BTreeSet::from(expected));
    Ok(())
}

async fn new_topic_gets_the_partition_count_of_its_prefix(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "alike")?;
    create(&place, &place.name(EVENTS), 5, "delete").await;
    let layout = Layout { partitions: None, ..place.layout([CUSTOMERS, Topic::Fences]) };

    let publisher = place.open(&layout).await.unwrap();

    assert_eq!(publisher.preparer().partitions(), 5);
    let names = [CUSTOMERS, Topic::Fences].map(|topic| place.name(topic));
    assert_eq!(counts(&place, &names).await, names.map(|name| (name, 5)).into());
    Ok(())
}

async fn partition_count_unlike_the_prefixs_creates_nothing(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "unlike")?;
    create(&place, &place.name(EVENTS), 5, "delete").await;

    let refused = mismatches(place.open(&place.layout([CUSTOMERS])).await);

    assert_eq!(refused.len(), 1);
    assert_eq!((&*refused[0].topic, &*refused[0].found), (&*place.name(EVENTS), "5 partitions"));
    assert!(refused[0].remedy.contains("set the partition count to 5"), "{}", refused[0]);
    assert_eq!(counts(&place, &[place.name(CUSTOMERS)]).await, BTreeMap::new(), "a topic was created");
    Ok(())
}

async fn workers_that_start_together_create_the_same_topics(shared: &'static Shared) -> Result<()> {
    for _ in 0..cycles("TOPICS", 2) {
        let place = Place::on(shared, "together")?;
        let layout = place.layout([CUSTOMERS, ACCOUNTS, EVENTS, Topic::State, Topic::DeadLetters]);
        let (one, other, third) = (place.ids().await, place.ids().await, place.ids().await);

        let opened = tokio::join!(
            publish::open(&layout, &place.admin, &one),
            publish::open(&layout, &place.admin, &other),
            publish::open(&layout, &place.admin, &third),
        );

        let partitions = [opened.0, opened.1, opened.2].map(|opened| opened.unwrap().preparer.partitions());
        assert_eq!(partitions, [PARTITIONS; 3]);
        let names = names(&place, &layout);
        assert_eq!(counts(&place, &names).await, names.into_iter().map(|name| (name, PARTITIONS)).collect());
    }
    Ok(())
}

/// Runs the command in a remedy with Kafka's tools.
async fn run_remedy(mismatch: &TopicMismatch) -> Result<()> {
    let tools = [
        ("kafka-configs.sh ", "kafka.admin.ConfigCommand"),
        ("kafka-topics.sh ", "org.apache.kafka.tools.TopicCommand"),
    ];
    for (script, class) in tools {
        if let Some((_, arguments)) = mismatch.remedy.split_once(script) {
            return tool(class, &arguments.split(' ').collect::<Vec<_>>()).await.map(drop);
        }
    }
    Err(Error(format!("run the remedy of {mismatch}: it has no command")))
}

/// Every topic of the layout, the dead letters last.
fn names(place: &Place, layout: &Layout) -> Vec<String> {
    layout.topics.iter().map(|topic| place.name(*topic)).chain([layout.dead_letters.clone()]).collect()
}

/// Retries while topics are refused: a broker may show the change of a command with a delay.
async fn open_soon(place: &Place, layout: &Layout) {
    let end = Instant::now() + LIMIT;
    while let Err(error) = place.open(layout).await {
        let waiting = matches!(error, publish::Error::Topics { .. }) && Instant::now() < end;
        assert!(waiting, "{}", chain(&error));
    }
}

fn mismatches<T>(opened: std::result::Result<T, publish::Error>) -> Vec<TopicMismatch> {
    match opened.map(drop) {
        Err(publish::Error::Topics { source, .. }) => {
            assert_eq!(source.retry(), Retry::Never);
            match *source {
                kafka::Error::Topics(mismatches) => mismatches,
                other => panic!("refused for another reason: {other}"),
            }
        }
        other => panic!("not refused for its topics: {other:?}"),
    }
}

async fn counts(place: &Place, names: &[String]) -> BTreeMap<String, i32> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    place.admin.partition_counts(&names).await.unwrap()
}

fn admin(place: &Place) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", &place.kafka.bootstrap_servers).create().unwrap()
}

async fn create(place: &Place, name: &str, partitions: i32, policy: &str) {
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1)).set("cleanup.policy", policy);

    let created = admin(place).create_topics([&topic], &AdminOptions::new()).await.unwrap();

    assert_eq!(created, [Ok(name.to_owned())]);
    // A broker lists a new topic with a delay.
    let end = Instant::now() + LIMIT;
    while counts(place, &[name.to_owned()]).await.is_empty() {
        assert!(Instant::now() < end, "{name} is not listed");
    }
}

async fn describe(place: &Place, names: &[String]) -> Vec<ConfigResource> {
    let resources: Vec<_> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    let described = admin(place).describe_configs(&resources, &AdminOptions::new()).await.unwrap();
    described.into_iter().map(|resource| resource.unwrap()).collect()
}
