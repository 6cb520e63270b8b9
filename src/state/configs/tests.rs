//! The state that records produce, starting with those of a real Kafka Connect.

use bytes::Bytes;

use serde_json::{Value, json};

use super::*;
use crate::state::samples;

const SAMPLE: &str = include_str!("../samples/configs.tsv");

fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What these writes add up to, at offsets from 0.
fn written(writes: impl IntoIterator<Item = Write>) -> Configs {
    let mut configs = Configs::default();
    apply(&mut configs, 0, writes);
    configs
}

fn apply(configs: &mut Configs, from: i64, writes: impl IntoIterator<Item = Write>) {
    for (offset, (key, value)) in (from..).zip(writes) {
        let value = value.map(|value| value.to_string());
        configs.apply(&samples::received(offset, &key, value.as_deref()));
    }
}

#[test]
fn topic_of_a_real_connect_is_parsed_as_connect_does() {
    let mut configs = Configs::default();

    samples::records(SAMPLE).iter().for_each(|record| configs.apply(record));

    let names: Vec<&String> = configs.connectors().keys().collect();
    assert_eq!(names, ["bad", "grüße-7", "still", "t1"], "`gone` was deleted");
    let t1 = &configs.connectors()["t1"];
    let config = [
        ("connector.class", "FileStreamSource"),
        ("file", "/tmp/lines.txt"),
        ("name", "t1"),
        ("tasks.max", "1"),
        ("topic", "lines"),
    ];
    assert_eq!(*t1.config, properties(&config));
    assert_eq!((t1.target, t1.revision, t1.task_revision), (TargetState::Running, 2, 12));
    let class = "org.apache.kafka.connect.file.FileStreamSourceTask";
    let mut task = properties(&config);
    task.insert("task.class".into(), class.into());
    assert_eq!(*t1.tasks, [Arc::new(task)]);
    assert_eq!(configs.connectors()["grüße-7"].target, TargetState::Paused, "written before the connector");
    let still = &configs.connectors()["still"];
    assert_eq!((still.target, still.tasks.len(), still.task_revision), (TargetState::Stopped, 0, 40));
    let restart = Restart { revision: 16, include_tasks: true, only_failed: false, task: None };
    assert_eq!(configs.restarts("t1").next_back(), Some(&restart));
    assert_eq!(*configs.loggers(), [("org.apache.kafka".to_owned(), ("WARN".to_owned(), 18))].into());
    assert!(!names.iter().any(|name| configs.is_half_written(name)));
}

#[test]
fn written_records_match_connect_byte_for_byte() {
    let records = samples::records(SAMPLE);
    let ours = [
        target_state("grüße-7", Some(TargetState::Paused)),
        target_state("gone", Some(TargetState::Stopped)),
        target_state("t1", Some(TargetState::Running)),
        restart("t1", true, false, None),
        logger("org.apache.kafka", "WARN"),
        connector("gone", None),
        target_state("gone", None),
    ];
    let ours = ours.into_iter().chain(tasks("still", &[]));

    for (key, value) in ours {
        let value = value.map(|value| value.to_string());
        let same = |record: &&ConsumerRecord| {
            record.key.as_deref() == Some(key.as_bytes())
                && record.value.as_deref() == value.as_deref().map(str::as_bytes)
        };
        assert!(records.iter().find(same).is_some(), "{key} {value:?} is in no record of Connect's");
    }
}

#[test]
fn written_configurations_have_the_shape_of_connect() {
    let t1 = records_of("connector-t1");
    let task = records_of("task-t1-0");

    let configs = written([(String::from("connector-t1"), Some(t1.clone()))]);
    let again = connector("t1", Some(&configs.connectors()["t1"].config));
    let tasks = tasks("t1", &[properties(&[("a", "b")]), Properties::new()]);

    assert_eq!(again, ("connector-t1".into(), Some(t1)));
    assert!(task["properties"].is_object());
    let expected = [
        ("task-t1-0", json!({ "properties": { "a": "b" } })),
        ("task-t1-1", json!({ "properties": {} })),
        ("commit-t1", json!({ "tasks": 2 })),
    ];
    assert_eq!(tasks, expected.map(|(key, value)| (key.to_owned(), Some(value))));
}

/// The value of the first record with this key.
fn records_of(key: &str) -> Value {
    let records = samples::records(SAMPLE);
    let record = records.iter().find(|record| record.key.as_deref() == Some(key.as_bytes())).unwrap();
    serde_json::from_slice(record.value.as_ref().unwrap()).unwrap()
}

#[test]
fn task_records_count_from_their_commit() {
    let (one, two) = (properties(&[("n", "1")]), properties(&[("n", "2")]));
    let mut writes = vec![connector("c-1", Some(&Properties::new()))];
    writes.extend(tasks("c-1", &[one.clone(), one.clone()]));
    let mut configs = written(writes);
    let one = Arc::new(one);
    assert_eq!(*configs.connectors()["c-1"].tasks, [Arc::clone(&one), one]);

    let mut next = tasks("c-1", std::slice::from_ref(&two));
    let commit = next.pop().unwrap();
    apply(&mut configs, 10, next);

    assert_eq!(configs.connectors()["c-1"].tasks.len(), 2, "not yet committed");
    assert!(configs.is_half_written("c-1"));
    apply(&mut configs, 11, [commit]);
    assert_eq!(*configs.connectors()["c-1"].tasks, [Arc::new(two)]);
    assert_eq!(configs.connectors()["c-1"].task_revision, 11);
    assert!(!configs.is_half_written("c-1"));
}

#[test]
fn commit_without_all_tasks_is_half_written_until_rewritten() {
    let task = properties(&[("n", "1")]);
    let mut configs = written([connector("c", Some(&Properties::new()))]);
    let mut writes = tasks("c", &[task.clone(), task.clone()]);
    writes.remove(0);

    apply(&mut configs, 1, writes);

    assert!(configs.is_half_written("c"));
    assert_eq!((configs.connectors()["c"].tasks.len(), configs.connectors()["c"].task_revision), (0, -1));
    apply(&mut configs, 5, tasks("c", &[task]));
    assert!(!configs.is_half_written("c"));
    assert_eq!(configs.connectors()["c"].tasks.len(), 1);
}

#[test]
fn compacted_connector_is_read_completely() {
    let task = properties(&[("n", "1")]);
    // A larger set before, of which the last task's record stays; tasks before a later edit of the configuration.
    let mut writes = vec![("task-c-2".to_owned(), Some(json!({ "properties": { "n": "old" } })))];
    writes.extend(tasks("c", &[task.clone(), task.clone()]));
    writes.push(connector("c", Some(&properties(&[("edit", "2")]))));

    let configs = written(writes);

    let c = &configs.connectors()["c"];
    assert_eq!(*c.tasks, [Arc::new(task.clone()), Arc::new(task)]);
    assert_eq!((c.task_revision, c.revision), (3, 4));
    assert!(!configs.is_half_written("c"));
}

#[test]
fn deletion_leaves_nothing_for_a_later_connector() {
    let mut writes =
        vec![target_state("c", Some(TargetState::Paused)), connector("c", Some(&Properties::new()))];
    writes.extend(tasks("c", &[Properties::new(), Properties::new()]));
    writes.push(restart("c", true, true, Some(1)));
    writes.push(("task-c-5".to_owned(), Some(json!({ "properties": {} }))));
    let mut configs = written(writes.clone());
    let deletion = configs.deletion("c");

    apply(&mut configs, 10, [connector("c", None)]);
    assert!(configs.connectors().is_empty() && configs.restarts("c").next_back().is_none());
    apply(&mut configs, 11, [connector("c", Some(&Properties::new()))]);
    let c = &configs.connectors()["c"];
    assert_eq!((c.target, c.tasks.len(), c.task_revision), (TargetState::Running, 0, -1));

    let gone: Vec<&str> = deletion.iter().map(|(key, _)| key.as_str()).collect();
    for (key, _) in writes {
        assert!(gone.contains(&key.as_str()), "{key} stays in the topic");
    }
    assert!(deletion.iter().all(|(_, value)| value.is_none()));
    assert_eq!(gone[0], "connector-c", "first, so that readers see no half of it");
}

#[test]
fn task_record_with_a_huge_number_costs_one_tombstone() {
    let mut configs = written([
        connector("c", Some(&Properties::new())),
        ("task-c-4294967294".to_owned(), Some(json!({ "properties": {} }))),
        ("task-c-3".to_owned(), Some(json!({ "properties": {} }))),
    ]);

    let tasks = |configs: &Configs| {
        let keys = configs.deletion("c").into_iter().map(|(key, _)| key);
        keys.filter(|key| key.starts_with("task-")).collect::<Vec<_>>()
    };
    assert_eq!(tasks(&configs), ["task-c-3", "task-c-4294967294"]);
    assert_eq!(configs.tasks_ever("c"), u32::MAX);

    apply(&mut configs, 10, [("task-c-4294967294".to_owned(), None)]);
    assert_eq!((tasks(&configs), configs.tasks_ever("c")), (vec!["task-c-3".to_owned()], 4));
}

#[test]
fn restarts_are_remembered_up_to_a_limit() {
    let mut configs = written([connector("c", Some(&Properties::new()))]);

    apply(&mut configs, 1, [restart("c", false, false, Some(3)), restart("c", true, true, None)]);

    let asked: Vec<_> = configs.restarts("c").map(|it| (it.revision, it.task, it.only_failed)).collect();
    assert_eq!(asked, [(1, Some(3), false), (2, None, true)]);
    assert_eq!(configs.restarts("c").next_back().map(|it| it.revision), Some(2));
    apply(&mut configs, 3, (0..100).map(|_| restart("c", true, false, None)));
    assert_eq!(configs.restarts("c").count(), REMEMBERED_RESTARTS);
    assert_eq!(configs.restarts("c").next_back().map(|it| it.revision), Some(102));
}

#[test]
fn stopped_connector_has_no_tasks_despite_a_commit() {
    let mut writes = vec![connector("c", Some(&Properties::new()))];
    writes.extend(tasks("c", &[Properties::new()]));
    writes.push(target_state("c", Some(TargetState::Stopped)));

    assert_eq!(written(writes).connectors()["c"].tasks.len(), 0);
}

#[test]
fn connector_without_target_state_runs() {
    let configs = written([
        connector("c", Some(&Properties::new())),
        target_state("c", Some(TargetState::Paused)),
        target_state("c", None),
    ]);

    assert_eq!(configs.connectors()["c"].target, TargetState::Running);
}

#[test]
fn invalid_records_change_nothing() {
    let good =
        [connector("c", Some(&properties(&[("k", "v")]))), target_state("c", Some(TargetState::Paused))];
    let mut configs = written(good);
    let bad = [
        ("connector-c", Some("{")),
        ("connector-c", Some("[]")),
        ("connector-c", Some("{\"properties\":{\"k\":1}}")),
        ("connector-c", Some("{\"props\":{}}")),
        ("target-state-c", Some("{\"state.v2\":\"DANCING\"}")),
        ("target-state-c", Some("{}")),
        ("task-c", Some("{\"properties\":{}}")),
        ("task-c-x", Some("{\"properties\":{}}")),
        ("commit-c", Some("{\"tasks\":-1}")),
        ("commit-c", Some("{\"tasks\":\"1\"}")),
        ("logger-cluster-x", Some("{\"level\":1}")),
        ("tasks-fencing-c", Some("{\"task-count\":3}")),
        ("session-key", Some("{\"key\":\"x\"}")),
        ("nonsense", Some("{}")),
        ("", None),
        ("commit-unknown", None),
        ("target-state-unknown", None),
    ];

    for (offset, (key, value)) in (10..).zip(bad) {
        configs.apply(&samples::received(offset, key, value));
    }
    let mut keyless = samples::received(50, "", Some("{}"));
    keyless.key = None;
    configs.apply(&keyless);
    keyless.key = Some(Bytes::from_static(b"connector-\xff"));
    configs.apply(&keyless);

    assert_eq!(configs.connectors().len(), 1);
    let c = &configs.connectors()["c"];
    assert_eq!((c.config["k"].as_str(), c.target, c.revision), ("v", TargetState::Paused, 0));
    assert!(configs.loggers().is_empty() && !configs.is_half_written("c"));
    assert_eq!(configs.known.len(), 1, "unknown names are not kept");
}

#[test]
fn json_null_is_a_tombstone_and_older_states_are_read() {
    let configs: Configs = samples::state(&[
        ("connector-a", Some("{\"properties\":{}}")),
        ("connector-b", Some("{\"properties\":{}}")),
        ("connector-a", Some("null")),
        ("target-state-b", Some("{\"state\":\"PAUSED\"}")),
        ("logger-cluster-x", Some("{\"level\":\"DEBUG\"}")),
        ("logger-cluster-x", None),
    ]);

    assert!(configs.connectors().keys().eq(["b"]));
    assert_eq!(configs.connectors()["b"].target, TargetState::Paused);
    assert!(configs.loggers().is_empty());
}

#[test]
fn connectors_of_unknown_classes_are_listed() {
    let configs = written([
        connector("ours", Some(&properties(&[("connector.class", "WebhookSource")]))),
        connector("theirs", Some(&properties(&[("connector.class", "io.debezium.PostgresConnector")]))),
        connector("odd", Some(&Properties::new())),
    ]);

    let foreign = configs.foreign_classes(|class| class == "WebhookSource");

    let expected = [("odd", ""), ("theirs", "io.debezium.PostgresConnector")];
    assert_eq!(foreign, expected.map(|(name, class)| (name.to_owned(), class.to_owned())));
}

#[test]
fn declaration_outlives_its_connector() {
    let stored = Declared { hash: "ab".to_owned(), file: "a.json".to_owned() };
    let mut configs = written([
        connector("a", Some(&properties(&[("k", "v")]))),
        declared("a", Some(&stored)),
        declared("b-0", Some(&stored)),
    ]);

    let deletion = configs.deletion("a");
    apply(&mut configs, 3, deletion);
    let kept = configs.declared().clone();
    apply(&mut configs, 10, [declared("a", None)]);

    assert!(configs.connectors().is_empty(), "a declaration is not a connector");
    assert_eq!(kept, [("a".to_owned(), stored.clone()), ("b-0".to_owned(), stored.clone())].into());
    assert_eq!(*configs.declared(), [("b-0".to_owned(), stored)].into());
}

#[test]
fn declaration_without_hash_or_file_is_skipped() {
    let bad = [json!({"hash": "ab"}), json!({"file": "a.json"}), json!({"hash": 1, "file": "a.json"})];

    let configs = written(bad.map(|value| ("declared-a".to_owned(), Some(value))));

    assert!(configs.declared().is_empty());
}

#[test]
fn last_cluster_record_counts_and_connect_keys_are_noticed() {
    let cluster = Cluster { group: "g".to_owned(), work_topic: "w".to_owned(), work_partitions: 8 };
    let (key, value) = cluster_record(&cluster);
    let none: Configs = samples::state(&[]);
    let ours: Configs = samples::state(&[
        (&key, Some(r#"{"group.id":"x","work.topic":"w","work.partitions":4}"#)),
        (&key, Some(&value)),
        (&key, Some(r#"{"group.id":"x","work.topic":"w","work.partitions":0}"#)),
    ]);
    let removed: Configs = samples::state(&[(&key, Some(&value)), (&key, None)]);
    let connect: Configs = samples::state(&[
        ("tasks-fencing-a", Some("{}")),
        ("session-key", Some("{}")),
        ("tasks-fencing-a", None),
    ]);

    assert_eq!(value, r#"{"group.id":"g","work.partitions":8,"work.topic":"w"}"#);
    assert_eq!((none.cluster(), none.connect_key()), (None, None));
    assert_eq!(
        (ours.cluster(), ours.connect_key()),
        (Some(&cluster), None),
        "an incomplete record is skipped"
    );
    assert_eq!(removed.cluster(), None);
    assert_eq!(connect.connect_key(), Some("session-key"));
    assert!(ours.connectors().is_empty());
}

fn cluster_record(cluster: &Cluster) -> (String, String) {
    let (key, value) = super::cluster(cluster);
    (key, value.unwrap().to_string())
}
