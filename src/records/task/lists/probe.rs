//! Finds out whether the rows of a list are whole records, by comparing some with their reads by id.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use model::{CompanyId, List};
use provider::api::{Accounting, CallOptions, Priority};

use super::pages::Fresh;
use crate::records::schedule::Subject;

/// Rows to compare.
const COMPARED: usize = 3;
/// Time limit of a read.
const LIMIT: Duration = Duration::from_secs(30);

/// Whether rows of the list show less than their records; `None` if no row could be compared.
pub(super) async fn is_thin(
    accounting: &Accounting,
    list: List,
    company: Option<&CompanyId>,
    rows: &[Fresh],
) -> Option<bool> {
    let resource = list.resource()?;
    let mut found = None;
    for row in rows.iter().take(COMPARED) {
        let Some(Subject { id, .. }) = &row.subject else { continue };
        let ask = CallOptions::within(Priority::Snapshot, LIMIT);
        let Ok(record) = accounting.record(resource, company, id, &ask).await else { continue };
        match shows_less(&row.raw, &record.json) {
            Some(true) => return Some(true),
            Some(false) => found = Some(false),
            None => {}
        }
    }
    found
}

/// Whether a row shows less than its record; `None` if their versions differ or one is not an object.
pub(crate) fn shows_less(row: &[u8], record: &[u8]) -> Option<bool> {
    let object = |json: &[u8]| serde_json::from_slice::<Map<String, Json>>(json).ok();
    let (row, record) = (object(row)?, object(record)?);
    if row.get("sequenceVersion") != record.get("sequenceVersion") {
        return None;
    }
    Some(record.iter().any(|(name, value)| row.get(name) != Some(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_less_where_the_record_has_something_it_has_not() {
        for (row, record, less) in [
            (r#"{"sequenceVersion":"1","a":1}"#, r#"{"a":1,"sequenceVersion":"1"}"#, Some(false)),
            (r#"{"sequenceVersion":"1","a":1,"more":2}"#, r#"{"sequenceVersion":"1","a":1}"#, Some(false)),
            (r#"{"sequenceVersion":"1"}"#, r#"{"sequenceVersion":"1","a":1}"#, Some(true)),
            (r#"{"sequenceVersion":"1","a":null}"#, r#"{"sequenceVersion":"1","a":1}"#, Some(true)),
            (r#"{"sequenceVersion":"2"}"#, r#"{"sequenceVersion":"1","a":1}"#, None),
            ("[]", r#"{"sequenceVersion":"1"}"#, None),
        ] {
            assert_eq!(shows_less(row.as_bytes(), record.as_bytes()), less, "{row} {record}");
        }
    }
}
