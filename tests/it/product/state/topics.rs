//! The worker's topics: created, verified, refused.

use std::time::Instant;

use kafka::{Admin, Error, Kafka, TopicSpec};
use model::Cleanup;
use tributary::state::topics::{Partitions, ensure, inspect};

use super::cluster::{LIMIT, names};
use crate::support::{Result, Shared, broker::tool, prefix};

crate::tests! {
    real missing_topics_are_created_compacted_and_found_fit_again;
    real unfit_topics_are_refused_together_and_none_is_created;
}

async fn missing_topics_are_created_compacted_and_found_fit_again(shared: &'static Shared) {
    let topics = names(&prefix("state-created"));
    let admin = Admin::Real(Kafka::plaintext(shared.bootstrap()));

    assert_eq!(inspect(&admin, &topics).await.unwrap().len(), 5);
    let created = ensure(&admin, &topics).await.unwrap();
    let again = ensure(&admin, &topics).await.unwrap();

    assert_eq!(created, Partitions { config: 1, offset: 25, status: 5, work: 8, grant: 3 });
    assert_eq!(again, created);
    // They are compacted: a spec with another cleanup policy is refused.
    let mut other = TopicSpec::from(&topics.status);
    other.cleanup = Cleanup::Delete;
    let Error::Topics(found) = admin.inspect(&[other]).await.unwrap_err() else { panic!() };
    assert_eq!(found[0].found, "cleanup.policy=compact");
}

async fn unfit_topics_are_refused_together_and_none_is_created(shared: &'static Shared) -> Result<()> {
    let topics = names(&prefix("state-refused"));
    let admin = Admin::Real(Kafka::plaintext(shared.bootstrap()));
    let create = |name: &str, partitions: i32, policy: &str| {
        let (partitions, policy) = (partitions.to_string(), format!("cleanup.policy={policy}"));
        let name = name.to_owned();
        async move {
            let arguments = ["--bootstrap-server", shared.bootstrap(), "--create", "--topic", &name];
            let arguments = [&arguments[..], &["--partitions", &partitions, "--config", &policy]].concat();
            tool("org.apache.kafka.tools.TopicCommand", &arguments).await
        }
    };
    create(&topics.config.name, 3, "compact").await?;
    create(&topics.offset.name, 4, "compact,delete").await?;
    create(&topics.status.name, 2, "compact").await?;

    let error = ensure(&admin, &topics).await.unwrap_err();

    let Error::Topics(refused) = &error else { panic!("{error}") };
    let found: Vec<_> = refused.iter().map(|it| (&*it.topic, &*it.found, &*it.wanted)).collect();
    let expected = [
        (&*topics.config.name, "3 partitions", "1 partition"),
        (&*topics.offset.name, "cleanup.policy=compact,delete", "cleanup.policy=compact"),
    ];
    assert_eq!(found, expected, "the status topic may have any number of partitions");
    let missing = [&topics.work, &topics.grant].map(|topic| topic.name.as_str());
    assert!(admin.partition_counts(&missing).await.unwrap().is_empty(), "a topic was created");
    // The remedies are commands that make the topics fit.
    for mismatch in refused {
        let (script, class) = match mismatch.topic == topics.config.name {
            true => ("kafka-topics.sh ", "org.apache.kafka.tools.TopicCommand"),
            false => ("kafka-configs.sh ", "kafka.admin.ConfigCommand"),
        };
        let (_, arguments) = mismatch.remedy.split_once(script).unwrap();
        tool(class, &arguments.split(' ').collect::<Vec<_>>()).await?;
    }
    let end = Instant::now() + LIMIT;
    let fixed = loop {
        match ensure(&admin, &topics).await {
            Ok(partitions) => break partitions,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    assert_eq!(fixed, Partitions { config: 1, offset: 4, status: 2, work: 8, grant: 3 });
    Ok(())
}
