//! Encoding speed of one customer record: our path, the converter's, and the library's own older one.
//!
//! `cargo bench --bench encode`. Rounds of the paths alternate, so that a busy moment of the machine hits all of them; the
//! best round is the figure to compare, the median says how noisy the machine was.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for people, with nothing to recover")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use apache_avro::types::{Record as AvroRecord, Value as AvroValue};
use model::{CompanyId, Customer, SchemaKind, Value};
use schema_registry_converter::{
    async_impl::{avro::AvroEncoder, schema_registry::SrSettings},
    schema_registry_common::{SchemaType, SubjectNameStrategy, SuppliedSchema},
};
use tributary::avro;

/// Rounds and records a round; `cargo test` only has to see that it runs.
const MEASURED: (usize, u32) = (15, 20_000);
const TRIED: (usize, u32) = (1, 10);
const ID: u32 = 7;
const CUSTOMER: &str = r#"{"correlationId":"0f8fad5b-d9cb-469f-a165-70867728950e","tradeName":"Æther & Søn BV",
    "state":"Enabled","vatNumber":"BE0123456789","vatName":"Æther","accountCode":"400000","version":
    "2026-11-15T03:04:05.1234567Z","sequenceVersion":"123456789","creditLimit":1500.50}"#;

/// Name, one encoding, and how long each round of it took.
type Path<'a> = (&'static str, &'a dyn Fn() -> usize, Vec<Duration>);

fn main() {
    // Cargo passes this to a benchmark it measures, not to one it tests.
    let (rounds, records) = if std::env::args().any(|given| given == "--bench") { MEASURED } else { TRIED };
    let company = CompanyId::new("7c9e6679-7425-40de-944b-e07fc1f90ae7").unwrap();
    let customer = Customer::from_json(CUSTOMER.as_bytes(), &company).unwrap();
    let value = Value::from(customer.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (converter, strategy) = runtime.block_on(converter());

    let ours = || avro::frame_value(ID, black_box(&value)).unwrap().len();
    let datum = || by_hand(black_box(&customer)).len();
    let converted = || {
        let encoded = converter.encode_struct(black_box(&customer), &strategy);
        // Its answer is cached, so the future is ready at once and this costs no trip to the runtime.
        futures::FutureExt::now_or_never(encoded).unwrap().unwrap().len()
    };
    let expected = ours();
    assert_eq!((datum(), converted()), (expected, expected), "all paths must write the same record");

    let mut paths: [Path<'_>; 3] = [
        ("ours: reused writer and buffer", &ours, Vec::new()),
        ("converter: AvroEncoder::encode_struct", &converted, Vec::new()),
        ("library: to_avro_datum, value by hand", &datum, Vec::new()),
    ];
    for _ in 0..rounds {
        for (_, encode, times) in &mut paths {
            let start = Instant::now();
            for _ in 0..records {
                black_box(encode());
            }
            times.push(start.elapsed());
        }
    }

    println!("one customer, {expected} bytes; {rounds} rounds of {records} records");
    println!("{:<40} {:>10} {:>10} {:>12} {:>6}", "path", "best ns", "median ns", "records/s", "ratio");
    let mut base = None;
    for (name, _, times) in &mut paths {
        times.sort();
        let nanoseconds = |time: Duration| time.as_nanos() as f64 / f64::from(records);
        let (best, median) = (nanoseconds(times[0]), nanoseconds(times[rounds / 2]));
        let ratio = best / *base.get_or_insert(best);
        println!("{name:<40} {best:>10.0} {median:>10.0} {:>12.0} {ratio:>6.2}", 1e9 / best);
    }
}

/// The converter's encoder, its schema registered with a registry that gives every schema the same id.
async fn converter() -> (AvroEncoder, SubjectNameStrategy) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!(r#"{{"id":{ID}}}"#);
    let router = axum::Router::new().fallback(|| async move { answer.clone() });
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let text = avro::schemas::embedded(SchemaKind::Customer).unwrap().text.to_owned();
    let schema = SuppliedSchema::new(None, SchemaType::Avro, text);
    let strategy = SubjectNameStrategy::TopicNameStrategyWithSchema("customers".into(), false, schema);
    let encoder = AvroEncoder::new(SrSettings::new(address));
    let company = CompanyId::new("c").unwrap();
    let warm_up = Customer::from_json(b"{}", &company).unwrap();
    encoder.encode_struct(&warm_up, &strategy).await.unwrap();
    server.abort();
    (encoder, strategy)
}

/// What a caller without serde would write.
#[allow(deprecated, reason = "the older path is what is compared with")]
fn by_hand(customer: &Customer) -> Vec<u8> {
    let schema = &avro::schemas::embedded(SchemaKind::Customer).unwrap().schema;
    let text = |value: &Option<String>| match value {
        Some(text) => AvroValue::Union(1, Box::new(AvroValue::String(text.clone()))),
        None => AvroValue::Union(0, Box::new(AvroValue::Null)),
    };
    let number = |value: Option<AvroValue>| match value {
        Some(number) => AvroValue::Union(1, Box::new(number)),
        None => AvroValue::Union(0, Box::new(AvroValue::Null)),
    };
    let extra = customer.extra.iter().map(|(name, json)| (name.clone(), AvroValue::String(json.clone())));
    let mut record = AvroRecord::new(schema).unwrap();
    record.put("companyId", customer.company_id.as_str());
    record.put("correlationId", text(&customer.correlation_id));
    record.put("tradeName", text(&customer.trade_name));
    record.put("state", text(&customer.state));
    record.put("vatNumber", text(&customer.vat_number));
    record.put("vatName", text(&customer.vat_name));
    record.put("accountCode", text(&customer.account_code));
    record.put("vatNumberCorrelationId", text(&customer.vat_number_correlation_id));
    record.put("accountCodeCorrelationId", text(&customer.account_code_correlation_id));
    record.put("version", text(&customer.version));
    record.put("versionAt", number(customer.version_at.map(AvroValue::TimestampMicros)));
    record.put("sequenceVersion", text(&customer.sequence_version));
    record.put("sequence", number(customer.sequence.map(AvroValue::Long)));
    record.put("extra", AvroValue::Map(extra.collect()));
    let mut framed = vec![0];
    framed.extend_from_slice(&ID.to_be_bytes());
    framed.extend(apache_avro::to_avro_datum(schema, record).unwrap());
    framed
}
