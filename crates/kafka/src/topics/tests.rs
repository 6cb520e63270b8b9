use crate::MIN_MAX_MESSAGE_BYTES;

use super::*;

fn spec(name: &str, partitions: i32, cleanup: Cleanup) -> TopicSpec {
    TopicSpec {
        name: name.into(),
        partitions,
        may_grow: false,
        replication_factor: -1,
        cleanup,
        min_message_bytes: MIN_MAX_MESSAGE_BYTES,
        configs: BTreeMap::new(),
    }
}

fn counts(pairs: &[(&str, i32)]) -> BTreeMap<String, i32> {
    pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[tokio::test]
async fn missing_topics_are_created_and_others_kept() {
    let cluster = Arc::new(EmbeddedCluster::start(1).unwrap());
    cluster.create_topic("old", 3).unwrap();
    let admin = Admin::Embedded(Arc::clone(&cluster));

    admin.ensure(&[spec("old", 3, Cleanup::Delete), spec("new", 5, Cleanup::Compact)]).await.unwrap();

    let found = admin.partition_counts(&["old", "new", "absent"]).await.unwrap();
    assert_eq!(found, counts(&[("new", 5), ("old", 3)]));
}

#[tokio::test]
async fn all_wrong_partition_counts_are_reported_together() {
    let cluster = Arc::new(EmbeddedCluster::start(1).unwrap());
    cluster.create_topic("one", 3).unwrap();
    cluster.create_topic("two", 4).unwrap();
    let admin = Admin::Embedded(cluster);

    let error = admin.ensure(&[spec("one", 12, Cleanup::Delete), spec("two", 12, Cleanup::Delete)]).await;

    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("2 topics have wrong settings: topic one has 3 partitions"), "{text}");
    assert!(
        text.contains("topic two has 4 partitions and must have 12: set the partition count to 4"),
        "{text}"
    );
}

#[test]
fn compact_and_delete_is_refused_with_the_fixing_command() {
    let mismatch = cleanup_mismatch("broker:9092", &spec("p.fences", 12, Cleanup::Compact), "compact,delete");

    assert_eq!(
        mismatch.unwrap().to_string(),
        "topic p.fences has cleanup.policy=compact,delete and must have cleanup.policy=compact: \
         kafka-configs.sh --bootstrap-server broker:9092 --alter --entity-type topics --entity-name p.fences \
         --add-config cleanup.policy=compact"
    );
}

#[test]
fn small_max_message_bytes_is_refused_with_the_fixing_command() {
    let spec = spec("t", 1, Cleanup::Delete);

    let mismatch = size_mismatch("broker:9092", &spec, Some(1_048_575)).unwrap().to_string();

    assert!(
        mismatch.starts_with("topic t has max.message.bytes=1048575 and must have at least"),
        "{mismatch}"
    );
    assert!(mismatch.ends_with("--entity-name t --add-config max.message.bytes=1048576"), "{mismatch}");
    assert_eq!(size_mismatch("b", &spec, Some(1_048_588)), None, "Kafka's own default");
    assert_eq!(size_mismatch("b", &spec, None), None);
}

#[test]
fn new_topics_get_the_partition_count_of_existing_ones() {
    assert_eq!(agreed_partitions("b", &counts(&[("a", 6), ("b", 6)]), None).unwrap(), Some(6));
    assert_eq!(agreed_partitions("b", &counts(&[("a", 6)]), Some(6)).unwrap(), Some(6));
    assert_eq!(agreed_partitions("b", &counts(&[]), None).unwrap(), None);
    assert_eq!(agreed_partitions("b", &counts(&[]), Some(6)).unwrap(), None);
}

#[test]
fn topics_with_different_counts_are_named() {
    let error =
        agreed_partitions("b", &counts(&[("a", 6), ("b", 6), ("c", 4)]), None).unwrap_err().to_string();

    assert!(error.starts_with("1 topic has wrong settings"), "{error}");
    assert!(error.contains("topic c has 4 partitions and must have 6"), "{error}");
}

#[test]
fn configured_count_decides_which_topic_is_wrong() {
    let error =
        agreed_partitions("b", &counts(&[("a", 6), ("b", 6), ("c", 4)]), Some(4)).unwrap_err().to_string();

    assert!(error.contains("topic a has 6 partitions and must have 4"), "{error}");
    assert!(error.contains("topic b has 6") && !error.contains("topic c"), "{error}");
}
