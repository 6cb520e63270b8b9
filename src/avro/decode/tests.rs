use proptest::prelude::*;

use base::retry::Retry;

use super::*;
use crate::avro::{
    Ids, ValueSubject,
    encode::frame_value,
    tests::{
        examples::example,
        strategies::{any_value, canonical},
        stub::{StubFault, StubRegistry},
    },
};

fn decoder(stub: &StubRegistry) -> Decoder {
    Decoder::new(Registry::new(&stub.config()).unwrap())
}

fn ours(kind: SchemaKind) -> &'static str {
    schemas::embedded(kind).unwrap().text
}

#[tokio::test]
async fn encoded_record_decodes_to_the_same_value() {
    let (stub, directory) = (StubRegistry::start().await, tempfile::tempdir().unwrap());
    let ids = Ids::open(Registry::new(&stub.config()).unwrap(), directory.path()).await;
    let decoder = decoder(&stub);
    for kind in SchemaKind::ALL {
        let value = example(kind);
        let subject = ValueSubject::values_of(kind.name(), kind);
        ids.prepare(std::slice::from_ref(&subject)).await.unwrap();
        let id = ids.slot(&subject).id().unwrap();
        let framed = frame_value(id, &value).unwrap();

        let decoded = decoder.decode(kind, &framed).await.unwrap();

        assert_eq!(decoded, (id, value));
    }
}

#[tokio::test]
async fn older_record_gets_defaults_of_the_current_schema() {
    let stub = StubRegistry::start().await;
    let older = r#"{"type":"record","name":"Customer","namespace":"io.tributary","fields":[
        {"name":"retired","type":"int"},{"name":"companyId","type":"string"},
        {"name":"tradeName","type":["null","string"],"default":null}]}"#;
    let id = stub.add("customers-value", older);
    // retired = 5, companyId = "a", tradeName = branch 1, "b"
    let framed = [&[MAGIC], &id.to_be_bytes()[..], &[10, 2, b'a', 2, 2, b'b']].concat();

    let (_, value) = decoder(&stub).decode(SchemaKind::Customer, &framed).await.unwrap();

    let Value::Customer(customer) = value else { panic!("{value:?}") };
    assert_eq!((customer.company_id.as_str(), customer.trade_name.as_deref()), ("a", Some("b")));
    assert_eq!((customer.version, customer.extra.len()), (None, 0));
}

#[tokio::test]
async fn a_writers_schema_is_fetched_once() {
    let stub = StubRegistry::start().await;
    let id = stub.add("customers-value", ours(SchemaKind::Customer));
    let framed = frame_value(id, &example(SchemaKind::Customer)).unwrap();
    let decoder = decoder(&stub);

    for _ in 0..3 {
        decoder.decode(SchemaKind::Customer, &framed).await.unwrap();
    }

    assert_eq!(stub.seen().len(), 1);
}

#[tokio::test]
async fn invalid_bytes_are_refused_with_the_reason() {
    let stub = StubRegistry::start().await;
    let id = stub.add("customers-value", ours(SchemaKind::Customer));
    let other = stub.add("accounts-value", r#"{"type":"record","name":"Other","fields":[]}"#);
    let good = frame_value(id, &example(SchemaKind::Customer)).unwrap();
    let with_first = |byte: u8| [&[byte], &good[1..]].concat();
    let with_id = |id: u32| [&[MAGIC], &id.to_be_bytes()[..], &good[FRAME_BYTES..]].concat();
    let decoder = decoder(&stub);
    for (framed, reason) in [
        (with_first(1), "the first byte must be 0, not 1"),
        (Vec::new(), "0 bytes are fewer"),
        (good[..4].to_vec(), "4 bytes are fewer"),
        (with_id(99), "does not know this schema id"),
        (with_id(other), "does not fit"),
        (good[..good.len() - 1].to_vec(), "ends early"),
        (good[..FRAME_BYTES].to_vec(), "ends early"),
        ([&good[..], &[0]].concat(), "continues after"),
        // A length of 2^40 that the bytes do not have: refused before anything is set aside for it.
        ([&good[..FRAME_BYTES], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x40]].concat(), "does not fit"),
    ] {
        let error = decoder.decode(SchemaKind::Customer, &framed).await.unwrap_err();

        assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.retry(), Retry::Never);
    }
}

#[tokio::test]
async fn datum_of_an_unbounded_schema_is_refused_unread() {
    let stub = StubRegistry::start().await;
    let customer = |junk: &str| {
        format!(
            r#"{{"type":"record","name":"Customer","namespace":"io.tributary","fields":[
            {{"name":"companyId","type":"string"}},{{"name":"junk","type":{junk}}}]}}"#
        )
    };
    let recursive = customer(r#"{"type":"record","name":"R","fields":[{"name":"r","type":"R"}]}"#);
    let weightless = customer(r#"{"type":"array","items":{"type":"array","items":"null"}}"#);
    let decoder = decoder(&stub);
    for (schema, reason) in [(recursive, "must not refer to itself"), (weightless, "take no bytes")] {
        let id = stub.add("customers-value", &schema);
        let framed = [&[MAGIC], &id.to_be_bytes()[..], &[2, b'a'], &[0xfe; 14], &[0; 5]].concat();

        for _ in 0..2 {
            let error = decoder.decode(SchemaKind::Customer, &framed).await.unwrap_err();

            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.retry(), Retry::Never);
        }
    }
    assert_eq!(stub.seen().len(), 2, "a refusal is remembered");
}

#[test]
fn given_schema_decodes_like_one_of_a_registry() {
    let kind = SchemaKind::Customer;
    let value = example(kind);
    let framed = frame_value(7, &value).unwrap();
    let weightless = r#"{"type":"array","items":"null"}"#;

    assert_eq!(decode_with(kind, ours(kind), &framed).unwrap(), (7, value));
    for (schema, framed, reason) in [
        ("{", &framed[..], "cannot be parsed"),
        (weightless, &framed[..], "take no bytes"),
        (ours(SchemaKind::Account), &framed[..], "does not fit"),
        (ours(kind), &framed[..4], "4 bytes are fewer"),
        (ours(kind), &framed[..framed.len() - 1], "ends early"),
    ] {
        let error = decode_with(kind, schema, framed).unwrap_err();

        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.retry(), Retry::Never);
    }
}

#[tokio::test]
async fn unavailable_registry_is_retriable_and_not_cached() {
    let stub = StubRegistry::start().await;
    let id = stub.add("customers-value", ours(SchemaKind::Customer));
    let framed = frame_value(id, &example(SchemaKind::Customer)).unwrap();
    let decoder = decoder(&stub);
    stub.fault(None, "", StubFault::status(503, ""));

    let error = decoder.decode(SchemaKind::Customer, &framed).await.unwrap_err();
    stub.heal();
    let after = decoder.decode(SchemaKind::Customer, &framed).await;

    assert_eq!(error.retry(), Retry::Later);
    assert!(after.is_ok(), "{after:?}");
}

#[test]
fn full_writer_cache_evicts_the_oldest() {
    let mut cache = WriterCache::default();
    let verdict: WriterVerdict = Err("a rule".into());
    let key = |id| (id, SchemaKind::Customer);

    for id in 0..=MAX_SCHEMAS as u32 {
        cache.put(key(id), verdict.clone());
        cache.put(key(id), verdict.clone());
    }

    assert_eq!((cache.writers.len(), cache.order.len()), (MAX_SCHEMAS, MAX_SCHEMAS));
    assert!(!cache.writers.contains_key(&key(0)) && cache.writers.contains_key(&key(1)));
}

proptest! {
    #[test]
    fn wire_format_round_trip_loses_nothing((json, value) in any_value()) {
        let kind = value.schema();
        let schema = &schemas::embedded(kind).unwrap().schema;
        let same = WriterSchema::judge(kind, schema.clone()).unwrap().unwrap();
        prop_assert!(same.is_ours);
        let resolved = WriterSchema { schema: schema.clone(), is_ours: false };

        let framed = frame_value(7, &value).unwrap();

        for writer in [&same, &resolved] {
            let (id, datum) = unframe(kind, &framed).unwrap();
            let back = of_kind(kind, id, read(kind, id, writer, datum).unwrap()).unwrap();
            prop_assert_eq!(id, 7);
            prop_assert_eq!(&back, &value);
            prop_assert_eq!(canonical(&back.to_json()), canonical(&json));
        }
    }
}
