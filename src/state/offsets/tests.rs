//! The state that records produce, starting with those of a real Kafka Connect.

use serde_json::json;

use kafka::partition_of;

use super::*;
use crate::state::samples;

const SAMPLE: &str = include_str!("../samples/offsets.tsv");

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn apply(offsets: &mut SourceOffsets, key: &str, value: Option<&str>) {
    offsets.apply(&samples::received(0, key, value));
}

#[test]
fn topic_of_a_real_connect_is_parsed_as_connect_does() {
    let mut offsets = SourceOffsets::default();

    samples::records(SAMPLE).iter().for_each(|record| offsets.apply(record));

    let of =
        |connector| offsets.of(connector).map(|(one, two)| (one.clone(), two.clone())).collect::<Vec<_>>();
    let lines = (map(json!({ "filename": "/tmp/lines.txt" })), map(json!({ "position": 14 })));
    assert_eq!(of("t1"), [lines]);
    assert_eq!(of("gone"), [], "its offsets were reset");
    assert_eq!(of("still").len(), 3);
    let x = offsets.get("still", &map(json!({ "filename": "/x", "a": 2 })));
    assert_eq!(x, Some(&map(json!({ "position": 6 }))));
}

#[test]
fn offset_records_match_connect_in_bytes_and_partition() {
    for record in samples::records(SAMPLE) {
        let key = record.key.as_deref().unwrap();
        let (connector, partition): (String, Map<String, Value>) = serde_json::from_slice(key).unwrap();
        let offset = record.value.as_deref().map(|value| serde_json::from_slice(value).unwrap());

        let (written, value) = super::record(&connector, &partition, offset.as_ref());

        assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(key));
        assert_eq!(value.as_deref(), record.value.as_deref());
        assert_eq!(partition_of(&written, 25), record.partition);
    }
}

#[test]
fn partition_with_another_member_order_is_the_same_partition() {
    let mut offsets = SourceOffsets::default();
    let partition = map(json!({ "topic": "t", "partition": 3 }));
    let (ours, _) = record("c", &partition, None);
    let ours = String::from_utf8(ours).unwrap();
    let theirs = r#"["c", {"topic":"t", "partition":3}]"#;
    assert_ne!(ours, theirs);

    apply(&mut offsets, theirs, Some(r#"{"offset":1}"#));
    assert_eq!(offsets.get("c", &partition), Some(&map(json!({ "offset": 1 }))));
    apply(&mut offsets, &ours, Some(r#"{"offset":2}"#));
    apply(&mut offsets, theirs, Some(r#"{"offset":3}"#));

    assert_eq!(offsets.get("c", &partition), Some(&map(json!({ "offset": 2 }))));
    assert_eq!(offsets.of("c").count(), 1);
    assert_eq!(offsets.keys("c", &partition).len(), 2);
    apply(&mut offsets, &ours, None);
    assert_eq!(
        offsets.get("c", &partition),
        Some(&map(json!({ "offset": 3 }))),
        "the other key is still there"
    );
    apply(&mut offsets, theirs, None);
    assert_eq!(offsets.of("c").count(), 0);
    assert!(offsets.connectors.is_empty());
}

#[test]
fn invalid_records_change_nothing() {
    let mut offsets = SourceOffsets::default();
    apply(&mut offsets, r#"["c",{"p":1}]"#, Some(r#"{"o":1}"#));

    for (key, value) in [
        ("c", Some("{}")),
        (r#"["c"]"#, Some("{}")),
        (r#"["c",{"p":1},3]"#, None),
        (r#"[1,{"p":1}]"#, None),
        (r#"["c",[]]"#, None),
        (r#"["c",{"p":1}]"#, Some("1")),
        (r#"["c",{"p":1}]"#, Some("{")),
        ("", None),
    ] {
        apply(&mut offsets, key, value);
    }
    offsets.apply(&ConsumerRecord { key: None, ..samples::received(0, "", None) });

    assert_eq!(
        offsets.of("c").map(|(_, offset)| offset.clone()).collect::<Vec<_>>(),
        [map(json!({ "o": 1 }))]
    );
    apply(&mut offsets, r#"["c",{"p":1}]"#, Some("null"));
    assert_eq!(offsets.of("c").count(), 0, "JSON's null resets too");
}
