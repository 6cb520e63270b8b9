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
use tributary::pipeline::{self, Layout};

use crate::support::broker::tool;
use crate::support::place::{PARTITIONS, Place, chain};
use crate::support::{Error, Result, Shared, cycles};

crate::tests! {
    real every_missing_topic_is_created_as_the_design_has_it;
    real a_topic_with_another_partition_count_is_refused_until_its_remedy_is_run;
    real topics_with_another_cleanup_policy_are_refused_until_their_remedies_are_run;
    real a_new_topic_gets_the_partition_count_its_prefix_has;
    real a_partition_count_that_the_prefix_does_not_have_is_refused_and_nothing_created;
    real workers_that_start_together_create_the_same_topics;
}

/// For what a broker tells a moment late.
const LIMIT: Duration = Duration::from_secs(30);
const CUSTOMERS: Topic = Topic::AccountingRecords(AccountingResource::Customers);
const ACCOUNTS: Topic = Topic::AccountingRecords(AccountingResource::Accounts);
const EVENTS: Topic = Topic::AccountingEvents(AccountingResource::Customers);

async fn every_missing_topic_is_created_as_the_design_has_it(shared: &'static Shared) -> Result<()> {
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

async fn a_topic_with_another_partition_count_is_refused_until_its_remedy_is_run(
    shared: &'static Shared,
) -> Result<()> {
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

async fn topics_with_another_cleanup_policy_are_refused_until_their_remedies_are_run(
    shared: &'static Shared,
) -> Result<()> {
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

    let told: BTreeSet<_> =
        refused.iter().map(|it| (it.topic.clone(), it.found.clone(), it.wanted.clone())).collect();
    let policy = |policy: &str| format!("cleanup.policy={policy}");
    let expected = wrong.map(|(topic, found, wanted)| (place.name(topic), policy(found), policy(wanted)));
    assert_eq!(told, BTreeSet::from(expected));
    Ok(())
}

async fn a_new_topic_gets_the_partition_count_its_prefix_has(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "alike")?;
    create(&place, &place.name(EVENTS), 5, "delete").await;
    let layout = Layout { partitions: None, ..place.layout([CUSTOMERS, Topic::Fences]) };

    let publisher = place.open(&layout).await.unwrap();

    assert_eq!(publisher.preparer().partitions(), 5);
    let names = [CUSTOMERS, Topic::Fences].map(|topic| place.name(topic));
    assert_eq!(counts(&place, &names).await, names.map(|name| (name, 5)).into());
    Ok(())
}

async fn a_partition_count_that_the_prefix_does_not_have_is_refused_and_nothing_created(
    shared: &'static Shared,
) -> Result<()> {
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
            pipeline::open(&layout, &place.admin, &one),
            pipeline::open(&layout, &place.admin, &other),
            pipeline::open(&layout, &place.admin, &third),
        );

        let partitions = [opened.0, opened.1, opened.2].map(|opened| opened.unwrap().preparer.partitions());
        assert_eq!(partitions, [PARTITIONS; 3]);
        let names = names(&place, &layout);
        assert_eq!(counts(&place, &names).await, names.into_iter().map(|name| (name, PARTITIONS)).collect());
    }
    Ok(())
}

/// Runs the command of a remedy, as it stands in the message, with Kafka's tools.
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

/// Opens again while topics do not fit: what a command changed, a broker may tell a moment later.
async fn open_soon(place: &Place, layout: &Layout) {
    let end = Instant::now() + LIMIT;
    while let Err(error) = place.open(layout).await {
        let waiting = matches!(error, pipeline::Error::Topics { .. }) && Instant::now() < end;
        assert!(waiting, "{}", chain(&error));
    }
}

fn mismatches<T>(opened: std::result::Result<T, pipeline::Error>) -> Vec<TopicMismatch> {
    match opened.map(drop) {
        Err(pipeline::Error::Topics { source, .. }) => {
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
    // Created is not yet known: a broker lists a topic a moment later.
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
