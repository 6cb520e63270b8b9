use std::collections::HashSet;

use serde_json::Value as Json;

use super::*;
use crate::world::PayrollRow;

const SEED: u64 = 11;

fn place(resource: Resource, index: u32) -> Place {
    Place { resource, company: (resource != Resource::Companies).then_some(3), index }
}

fn row(revision: u32) -> WorldRow {
    WorldRow {
        sequence: 9_007_199_254_740_993,
        changed: Ticks(17_000_000_001_234_567),
        revision,
        lineage: 0,
        state: RecordState::Enabled,
    }
}

fn written(place: Place, row: &WorldRow, shape: Shape) -> Json {
    let mut out = Vec::new();
    write_record(&mut out, &Naming::new(SEED), place, row, shape);
    serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
}

#[test]
fn members_have_no_name_twice() {
    for resource in Resource::ALL {
        let names: Vec<&str> = fields(resource).iter().map(|(name, _)| *name).collect();

        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{resource}");
    }
}

#[test]
fn some_rows_have_empty_texts_and_some_odd_names() {
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
fn states_differ_while_codes_and_tax_numbers_stay() {
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
fn a_revision_reached_again_after_a_restore_differs() {
    for resource in Resource::ALL {
        let of = place(resource, 1);

        let first = written(of, &row(1), Shape::default());
        let again = written(of, &WorldRow { lineage: 1, ..row(1) }, Shape::default());

        assert_eq!(first["correlationId"], again["correlationId"]);
        assert_ne!(first, again, "{resource}");
    }
}

#[test]
fn payroll_companies_have_unique_codes() {
    let row = |index, revision| PayrollRow { index, updated: Ticks(17_000_000_001_230_000), revision };
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
fn decimals_keep_their_zeros_and_their_sign() {
    for (value, expected) in [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (120_050, "1200.50"), (-100, "-1.00")]
    {
        let mut out = Vec::new();
        hundredths(&mut out, value);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
