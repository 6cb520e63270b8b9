use std::collections::{BTreeMap, HashSet};

use serde_json::Value as Json;

use super::*;
use crate::simulator::world::PayrollRow;

const SEED: u64 = 11;

fn place(resource: Resource, index: u32) -> Place {
    Place { resource, company: (resource != Resource::Companies).then_some(3), index }
}

fn row(revision: u32) -> Row {
    Row {
        sequence: 9_007_199_254_740_993,
        changed: Ticks(17_000_000_001_234_567),
        revision,
        lineage: 0,
        state: RecordState::Enabled,
    }
}

fn written(place: Place, row: &Row, shape: Shape) -> Json {
    let mut out = Vec::new();
    write_record(&mut out, &Naming::new(SEED), place, row, shape);
    serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
}

/// Names of members as they stand in the text, which a parsed tree would sort.
fn order(json: &[u8], names: &[&str]) -> Vec<usize> {
    let text = std::str::from_utf8(json).unwrap();
    names.iter().map(|name| text.find(&format!("\"{name}\":")).unwrap_or(usize::MAX)).collect()
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::String(_) => "string",
        Json::Number(number) if number.is_i64() || number.is_u64() => "integer",
        other => panic!("{other} is of no documented kind"),
    }
}

const DOCUMENTED: [(Resource, &[(&str, &str)]); 3] = [
    (
        Resource::Companies,
        &[
            ("vatName", "string"),
            ("vatNumber", "string"),
            ("state", "string"),
            ("chartOfAccountId", "integer"),
            ("accountLength", "integer"),
            ("correlationId", "string"),
            ("version", "string"),
            ("sequenceVersion", "string"),
        ],
    ),
    (
        Resource::Customers,
        &[
            ("tradeName", "string"),
            ("state", "string"),
            ("vatNumber", "string"),
            ("vatName", "string"),
            ("accountCode", "string"),
            ("correlationId", "string"),
            ("vatNumberCorrelationId", "string"),
            ("accountCodeCorrelationId", "string"),
            ("version", "string"),
            ("sequenceVersion", "string"),
        ],
    ),
    (
        Resource::Accounts,
        &[
            ("correlationId", "string"),
            ("code", "string"),
            ("description", "string"),
            ("state", "string"),
            ("version", "string"),
            ("sequenceVersion", "string"),
        ],
    ),
];

#[test]
fn documented_records_have_exactly_the_documented_fields_types_and_order() {
    for (resource, fields) in DOCUMENTED {
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        for index in 0..200 {
            let json = record_json(&Naming::new(SEED), place(resource, index), &row(index), Shape::default());
            let parsed: Json = serde_json::from_slice(&json).unwrap();

            let found: BTreeMap<&str, &str> = parsed
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| (name.as_str(), kind(value)))
                .collect();

            assert_eq!(found, fields.iter().copied().collect(), "{resource}");
            assert!(order(&json, &names).is_sorted(), "{resource}: {}", String::from_utf8_lossy(&json));
        }
    }
}

#[test]
fn every_resource_has_its_id_state_and_versions_and_fields_of_its_own() {
    let mut layouts = HashSet::new();
    for resource in Resource::ALL {
        let of = place(resource, 4);

        let record = written(of, &row(2), Shape::default());

        assert_eq!(record["correlationId"], Naming::new(SEED).id(of), "{resource}");
        assert_eq!(record["state"], "Enabled", "{resource}");
        assert_eq!(record["version"], "2023-11-14T22:13:20.1234567Z", "{resource}");
        assert_eq!(record["sequenceVersion"], "9007199254740993", "{resource}");
        let names: Vec<String> = record.as_object().unwrap().keys().cloned().collect();
        assert!(names.len() > 5, "{resource}");
        assert!(layouts.insert(names), "{resource} looks like another resource");
    }
}

#[test]
fn members_have_no_name_twice() {
    for resource in Resource::ALL {
        let names: Vec<&str> = fields(resource).iter().map(|(name, _)| *name).collect();

        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{resource}");
    }
}

#[test]
fn some_rows_have_empty_text_where_it_may_be_and_some_have_odd_names() {
    let customers: Vec<Json> = (0..2_000)
        .map(|index| written(place(Resource::Customers, index), &row(0), Shape::default()))
        .collect();
    let texts = |name: &'static str| {
        customers.iter().map(move |customer| customer[name].as_str().unwrap().to_owned())
    };

    for name in ["vatNumber", "vatName", "vatNumberCorrelationId"] {
        let empty = texts(name).filter(String::is_empty).count();
        assert!((100..500).contains(&empty), "{name}: {empty}");
    }
    for name in ["tradeName", "accountCode", "correlationId", "accountCodeCorrelationId"] {
        assert!(texts(name).all(|text| !text.is_empty()), "{name}");
    }
    for odd in ['"', '\\', '\n', '🚀', '東', '\u{2028}'] {
        assert!(texts("tradeName").any(|name| name.contains(odd)), "{odd:?}");
    }
}

#[test]
fn each_state_has_other_content_while_codes_and_tax_numbers_stay() {
    let of = place(Resource::Customers, 9);
    let states: Vec<Json> = (0..500).map(|revision| written(of, &row(revision), Shape::default())).collect();
    let different =
        |name: &str| states.iter().map(|state| state[name].to_string()).collect::<HashSet<_>>().len();

    assert_eq!(different("tradeName"), 500);
    for name in ["correlationId", "vatNumber", "accountCode", "accountCodeCorrelationId"] {
        assert_eq!(different(name), 1, "{name}");
    }
}

#[test]
fn a_revision_reached_again_after_going_back_has_other_content() {
    for resource in Resource::ALL {
        let of = place(resource, 1);

        let first = written(of, &row(1), Shape::default());
        let again = written(of, &Row { lineage: 1, ..row(1) }, Shape::default());

        assert_eq!(first["correlationId"], again["correlationId"]);
        assert_ne!(first, again, "{resource}");
    }
}

#[test]
fn a_thin_row_is_part_of_the_full_record() {
    let thin_shape = Shape { thin: true, ..Shape::default() };
    for resource in Resource::ALL {
        let full = written(place(resource, 6), &row(3), Shape::default());

        let thin = written(place(resource, 6), &row(3), thin_shape);

        let thin = thin.as_object().unwrap();
        assert_eq!(thin.len(), 5, "{resource}: {thin:?}");
        assert!(thin.iter().all(|(name, value)| &full[name] == value), "{resource}: {thin:?}");
        for name in ["correlationId", "state", "version", "sequenceVersion"] {
            assert!(thin.contains_key(name), "{resource}: {name}");
        }
    }
}

#[test]
fn extra_fields_come_on_top_and_are_of_every_kind() {
    let full = written(place(Resource::Accounts, 6), &row(3), Shape::default());

    let extra = written(place(Resource::Accounts, 6), &row(3), Shape { extra: true, ..Shape::default() });

    assert!(full.as_object().unwrap().iter().all(|(name, value)| &extra[name] == value));
    assert!(extra["riskScore"].is_number() && extra["counter"].is_u64() && extra["blocked"].is_boolean());
    assert!(extra["externalReference"].is_null() && extra["tags"].is_array());
    assert!(extra["geo"]["point"]["lat"].is_number());
    assert!(extra["ключ"].as_str().unwrap().starts_with("значение"));
}

#[test]
fn states_are_written_as_the_provider_names_them() {
    let names = [
        (RecordState::Enabled, "Enabled"),
        (RecordState::Disabled, "Disabled"),
        (RecordState::Deleted, "Deleted"),
    ];
    for (state, name) in names {
        let record = written(place(Resource::Accounts, 0), &Row { state, ..row(0) }, Shape::default());

        assert_eq!(record["state"], name);
    }
}

#[test]
fn a_template_account_has_no_id_and_differs_from_the_next() {
    let template = |number| {
        let mut out = Vec::new();
        write_template_account(&mut out, &Naming::new(SEED), 3, number, Shape::default());
        serde_json::from_slice::<Json>(&out).unwrap()
    };

    let (first, second) = (template(0), template(1));

    let names: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(names, ["code", "description", "sequenceVersion", "state", "version"]);
    assert_eq!(
        (&first["state"], &first["version"]),
        (&"Template".into(), &"2020-01-01T00:00:00.0000000Z".into())
    );
    assert_ne!(first["code"], second["code"]);
    assert_eq!(first, template(0));
}

#[test]
fn a_payroll_company_has_the_documented_fields_and_a_code_of_its_own() {
    let row =
        |index, revision| PayrollRow { index, updated: Ticks(17_000_000_001_230_000), revision, gone: false };
    let json = |index, revision| -> Json {
        serde_json::from_slice(&payroll_json(SEED, &row(index, revision), Shape::default())).unwrap()
    };

    let (first, later) = (json(5, 0), json(5, 1));

    let names: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(names, ["companyCode", "companyName", "identifierNumber", "lastUpdate"]);
    assert_eq!(first["companyCode"], payroll_code(SEED, 5));
    assert_eq!(first["lastUpdate"], "2023-11-14T22:13:20.123Z");
    assert_ne!(first["companyName"], later["companyName"]);
    assert_eq!(first["companyCode"], later["companyCode"]);
    assert_eq!(first["identifierNumber"], later["identifierNumber"]);
    let codes: Vec<u32> = (0..100_000).map(|index| payroll_code(SEED, index)).collect();
    assert_eq!(codes.iter().collect::<HashSet<_>>().len(), codes.len());
    assert!(!codes.is_sorted() && codes.iter().all(|code| (1..=1 << 30).contains(code)));
}

#[test]
fn the_same_row_gives_the_same_bytes_and_another_seed_gives_others() {
    for resource in Resource::ALL {
        let of = place(resource, 2);

        let first = record_json(&Naming::new(SEED), of, &row(1), Shape::default());

        assert_eq!(first, record_json(&Naming::new(SEED), of, &row(1), Shape::default()));
        assert_ne!(first, record_json(&Naming::new(SEED + 1), of, &row(1), Shape::default()), "{resource}");
    }
}
