//! The state that records produce, starting with those of a real Kafka Connect.

use bytes::Bytes;

use kafka::partition_of;

use super::*;
use crate::state::samples;

const SAMPLE: &str = include_str!("../samples/statuses.tsv");

fn status(state: RunState, generation: i64) -> Status {
    Status { state, trace: None, worker_id: "127.0.0.1:28083".into(), generation, handled_restart: None }
}

fn put(statuses: &mut Statuses, key: &str, status: &Status) {
    let value = String::from_utf8(encode(status)).unwrap();
    statuses.apply(&samples::received(0, key, Some(&value)));
}

fn remove(statuses: &mut Statuses, key: &str, generation: Option<i64>) {
    let mut record = samples::received(0, key, None);
    record.headers =
        generation.iter().map(|it| (GENERATION_HEADER.to_owned(), Bytes::from(it.to_string()))).collect();
    statuses.apply(&record);
}

#[test]
fn topic_of_a_real_connect_is_parsed_as_connect_does() {
    let mut statuses = Statuses::default();

    samples::records(SAMPLE).iter().for_each(|record| statuses.apply(record));

    assert!(statuses.names().eq(["bad", "grüße-7", "still", "t1"]), "`gone` was deleted");
    assert_eq!(statuses.connector("t1"), Some(&status(RunState::Running, 5)));
    assert_eq!(statuses.connector("grüße-7").unwrap().state, RunState::Paused);
    assert_eq!(statuses.connector("still").unwrap().state, RunState::Stopped);
    assert_eq!(statuses.tasks("t1"), [(0, &status(RunState::Running, 5))].into());
    assert!(statuses.tasks("still").is_empty());
    let failed = statuses.tasks("bad")[&0];
    assert_eq!(failed.state, RunState::Failed);
    assert!(failed.trace.as_ref().unwrap().starts_with("org.apache.kafka.connect.errors.ConnectException: "));
    assert_eq!(statuses.topics("t1"), ["lines"]);
    assert!(statuses.topics("bad").is_empty());
    assert_eq!(statuses.shadowed().count(), 0);
}

#[test]
fn written_statuses_match_connect_byte_for_byte() {
    let records = samples::records(SAMPLE);
    let written = [
        (StatusKey::instance("t1", None), encode(&status(RunState::Unassigned, 5))),
        (StatusKey::instance("t1", None), encode(&status(RunState::Restarting, 5))),
        (StatusKey::instance("t1", Some(0)), encode(&status(RunState::Unassigned, 5))),
        (StatusKey::topic("t1", "lines"), encode_topic("t1", 0, "lines", 1_794_729_429_511)),
    ];

    for (key, value) in written {
        let same = |record: &&ConsumerRecord| {
            record.key.as_deref() == Some(key.as_bytes()) && record.value.as_deref() == Some(&value)
        };
        let found = records.iter().find(same);
        let found =
            found.unwrap_or_else(|| panic!("{key} {} is none of Connect's", String::from_utf8_lossy(&value)));
        assert_eq!(partition_of(key.as_bytes(), 5), found.partition, "{key}");
    }
}

#[test]
fn status_has_a_version_in_the_same_states_as_connect() {
    let records = samples::records(SAMPLE);
    let version =
        |value: &[u8]| serde_json::from_slice::<serde_json::Value>(value).unwrap()["version"].clone();
    let connects = |state: RunState| {
        let values = records.iter().filter_map(|record| record.value.as_deref());
        let mut of = values.filter(|value| {
            let value: serde_json::Value = serde_json::from_slice(value).unwrap();
            value["state"] == state.word()
        });
        version(of.next().unwrap())
    };

    for state in RunState::VARIANTS.iter().copied() {
        let ours = version(&encode(&status(state, 1)));
        assert_eq!(ours.is_null(), connects(state).is_null(), "{state:?}");
        assert!(ours.is_null() || ours == env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn every_state_is_read_back_as_written() {
    for state in RunState::VARIANTS.iter().copied() {
        let trace = Some("Kind: sentence \"quoted\"\nCaused by: Other: \u{1f}é".to_owned());
        let written = Status { trace, ..status(state, i64::MAX) };
        let mut statuses = Statuses::default();

        put(&mut statuses, &StatusKey::instance("a-1-2", Some(7)), &written);

        assert_eq!(statuses.tasks("a-1-2"), [(7, &written)].into());
    }
}

#[test]
fn lower_generation_is_ignored_and_shadows_its_key() {
    let mut statuses = Statuses::default();
    put(&mut statuses, "status-task-c-0", &status(RunState::Running, 7));

    put(&mut statuses, "status-task-c-0", &status(RunState::Failed, 6));

    assert_eq!(statuses.tasks("c")[&0], &status(RunState::Running, 7));
    assert!(statuses.shadowed().eq([("c", Some(0))]));
    put(&mut statuses, "status-task-c-0", &status(RunState::Paused, 7));
    assert_eq!(statuses.tasks("c")[&0].state, RunState::Paused, "the same generation counts");
    assert_eq!(statuses.shadowed().count(), 0);
    assert_eq!(statuses.generation("c", Some(0)), Some(7));
}

#[test]
fn removed_status_stays_removed_after_a_late_record() {
    let mut statuses = Statuses::default();
    put(&mut statuses, "status-connector-c", &status(RunState::Running, 7));
    remove(&mut statuses, "status-connector-c", Some(6));
    assert!(statuses.connector("c").is_some(), "removed by an owner that has been replaced");
    assert!(statuses.shadowed().eq([("c", None)]));

    remove(&mut statuses, "status-connector-c", Some(7));
    put(&mut statuses, "status-connector-c", &status(RunState::Unassigned, 6));

    assert_eq!((statuses.connector("c"), statuses.names().count()), (None, 0));
    put(&mut statuses, "status-connector-c", &status(RunState::Running, 8));
    assert!(statuses.connector("c").is_some());
}

#[test]
fn connect_tombstone_forgets_the_generation() {
    let mut statuses = Statuses::default();
    put(&mut statuses, "status-connector-c", &status(RunState::Running, 700));

    remove(&mut statuses, "status-connector-c", None);
    assert!(statuses.connectors.is_empty());

    put(&mut statuses, "status-connector-c", &status(RunState::Running, 1));
    assert_eq!(statuses.connector("c").unwrap().generation, 1);
}

#[test]
fn memory_of_removed_connectors_is_bounded() {
    let mut statuses = Statuses::default();
    for number in 0..2 * MAX_REMEMBERED {
        let key = format!("status-connector-{number}");
        put(&mut statuses, &key, &status(RunState::Running, 1));
        remove(&mut statuses, &key, Some(1));
    }

    assert_eq!((statuses.connectors.len(), statuses.removed.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
}

#[test]
fn topics_are_known_by_connector_of_any_name() {
    let mut statuses = Statuses::default();
    let name = "odd:connector-1 - é";
    for topic in ["b", "a.x-y"] {
        let value = String::from_utf8(encode_topic(name, 3, topic, 1)).unwrap();
        statuses.apply(&samples::received(0, &StatusKey::topic(name, topic), Some(&value)));
    }
    assert_eq!(statuses.topics(name), ["a.x-y", "b"]);

    statuses.apply(&samples::received(0, &StatusKey::topic(name, "b"), None));

    assert_eq!(statuses.topics(name), ["a.x-y"]);
}

#[test]
fn invalid_records_change_nothing() {
    let mut statuses: Statuses = samples::state(&[
        ("status-connector-c", Some("{")),
        ("status-connector-c", Some("{\"state\":\"RUNNING\"}")),
        ("status-connector-c", Some("{\"state\":\"DESTROYED\",\"worker_id\":\"w\",\"generation\":1}")),
        ("status-connector-c", Some("[]")),
        ("status-task-c", Some("{\"state\":\"RUNNING\",\"worker_id\":\"w\",\"generation\":1}")),
        ("status-topic-t", Some("{\"topic\":{}}")),
        ("status-topic-t:connector-c", Some("{}")),
        ("status-topic-t:connector-c", Some("{")),
        ("nonsense", Some("{}")),
    ]);
    statuses.apply(&ConsumerRecord { key: None, ..samples::received(0, "", None) });

    assert!(statuses.connectors.is_empty());
}
