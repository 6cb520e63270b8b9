//! Runs and certificates as people read them.

use std::io::{self, Write};

use serde_json::Value;

use super::watch::progress;
use crate::cli::table::{columns, harmless};

/// One line a run, then why some wait or have stopped.
pub(super) fn runs(found: &Value, out: &mut impl Write) -> io::Result<()> {
    let all = found["snapshots"].as_array().map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        return writeln!(out, "none");
    }
    table(all.iter(), out)?;
    all.iter().try_for_each(|run| reason(run, out))
}

/// One run, with the lists that are being read.
pub(super) fn run(run: &Value, out: &mut impl Write) -> io::Result<()> {
    table([run].into_iter(), out)?;
    reason(run, out)?;
    for line in progress(run).into_iter().skip(1) {
        writeln!(out, "{line}")?;
    }
    let differences = counted(run);
    if !differences.is_empty() {
        writeln!(out)?;
        counts(&differences, out)?;
    }
    Ok(())
}

/// That a run was asked for, and how to follow it.
pub(super) fn started(connector: &str, run: &Value, out: &mut impl Write) -> io::Result<()> {
    let id = text(&run["id"]);
    writeln!(
        out,
        "{id}: {}; `tributary snapshot status {connector} {id} --watch` follows it",
        text(&run["state"])
    )
}

/// That an order was taken.
pub(super) fn ordered(run: &Value, out: &mut impl Write) -> io::Result<()> {
    let (id, state) = (text(&run["id"]), text(&run["state"]));
    match run["reason"].as_str() {
        Some(reason) => writeln!(out, "{id}: {state} ({})", harmless(reason)),
        None => writeln!(out, "{id}: {state}"),
    }
}

/// What a verification found.
pub(super) fn differences(run: &Value, out: &mut impl Write) -> io::Result<()> {
    let (id, rows) = (text(&run["id"]), number(&run["rows"]));
    let differences = counted(run);
    if differences.is_empty() {
        writeln!(out, "{id}: no differences in {rows} rows")?;
    } else {
        counts(&differences, out)?;
    }
    if run["certified"] != true {
        let collections = &run["collections"];
        let (proved, all) = (number(&collections["certified"]), number(&collections["total"]));
        let state = text(&run["state"]);
        writeln!(
            out,
            "\n{id}: {state}, {proved} of {all} lists proved complete; what is not proved may differ unseen \
             (`tributary snapshot certificates` shows why)"
        )?;
        reason(run, out)?;
    }
    Ok(())
}

/// Kinds of differences that there are, with their numbers.
pub(super) fn counted(run: &Value) -> Vec<(String, u64)> {
    let all = run["differences"].as_object().into_iter().flatten();
    let each =
        all.filter_map(|(kind, count)| Some((harmless(kind), count.as_u64().filter(|count| *count > 0)?)));
    each.collect()
}

/// One line a certificate, then why some prove nothing.
pub(super) fn certificates(found: &Value, out: &mut impl Write) -> io::Result<()> {
    let all = found["certificates"].as_array().map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        writeln!(out, "none")?;
    } else {
        let rows = all.iter().map(|one| {
            [
                text(&one["list"]),
                owner(one),
                if one["certified"] == true { "yes" } else { "no" }.to_owned(),
                text(&one["method"]),
                number(&one["rows"]),
                number(&one["published"]),
                number(&one["vanishedCount"]),
                text(&one["run"]),
                text(&one["endedAt"]),
            ]
        });
        let head =
            ["LIST", "COMPANY", "CERTIFIED", "METHOD", "ROWS", "PUBLISHED", "VANISHED", "RUN", "ENDED"];
        columns(head.map(str::to_owned), rows.collect(), out)?;
    }
    for one in all {
        if let Some(reason) = one["reason"].as_str() {
            writeln!(out, "\n{} of {}\n  {}", text(&one["list"]), owner(one), harmless(reason))?;
        }
    }
    if found["truncated"] == true {
        writeln!(
            out,
            "\nthere are, or may be, more; name a --run, --list or --company, or a higher --limit"
        )?;
    }
    Ok(())
}

fn table<'a>(runs: impl Iterator<Item = &'a Value>, out: &mut impl Write) -> io::Result<()> {
    let rows = runs.map(|run| {
        let lists: Vec<String> = run["lists"].as_array().into_iter().flatten().map(text).collect();
        let collections = &run["collections"];
        let certified = match run["certified"].as_bool() {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        [
            text(&run["id"]),
            text(&run["kind"]),
            text(&run["state"]),
            lists.join(","),
            format!("{}/{}", number(&collections["ended"]), number(&collections["total"])),
            certified.to_owned(),
            number(&run["rows"]),
            number(&run["published"]),
            text(&run["requestedAt"]),
            text(&run["endedAt"]),
        ]
    });
    let head =
        ["ID", "KIND", "STATE", "LISTS", "DONE", "CERTIFIED", "ROWS", "PUBLISHED", "REQUESTED", "ENDED"];
    columns(head.map(str::to_owned), rows.collect(), out)
}

fn counts(differences: &[(String, u64)], out: &mut impl Write) -> io::Result<()> {
    let rows = differences.iter().map(|(kind, count)| [kind.clone(), count.to_string()]);
    columns(["DIFFERENCE", "RECORDS"].map(str::to_owned), rows.collect(), out)
}

fn reason(run: &Value, out: &mut impl Write) -> io::Result<()> {
    match run["reason"].as_str() {
        Some(reason) => {
            writeln!(out, "\n{} ({})\n  {}", text(&run["id"]), text(&run["state"]), harmless(reason))
        }
        None => Ok(()),
    }
}

/// The company of a certificate, or the shard of a list that spans companies.
fn owner(certificate: &Value) -> String {
    match (certificate["companyId"].as_str(), certificate["shard"].as_i64()) {
        (Some(company), _) => harmless(company),
        (None, Some(shard)) => format!("all (shard {shard})"),
        (None, None) => "-".to_owned(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), harmless)
}

fn number(value: &Value) -> String {
    value.as_i64().map_or_else(|| "-".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(show: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        show(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn one() -> Value {
        json!({ "id": "r", "kind": "verify", "state": "paused", "lists": ["customers", "accounts"], "rows": 7,
            "published": 0, "requestedAt": "T1", "certified": null, "reason": "the brake\u{7}",
            "collections": { "total": 4, "ended": 1, "certified": 1 }, "differences": { "missing": 2, "stale": 0 } })
    }

    #[test]
    fn a_run_has_a_line_and_the_reason_why_it_waits() {
        let said = written(|out| runs(&json!({ "snapshots": [one()] }), out));

        let expected = "ID  KIND    STATE   LISTS               DONE  CERTIFIED  ROWS  PUBLISHED  REQUESTED  ENDED\n\
                        r   verify  paused  customers,accounts  1/4   -          7     0          T1         -\n\
                        \n\
                        r (paused)\n  the brake\\u{7}\n";
        assert_eq!(said, expected);
        assert_eq!(written(|out| runs(&json!({ "snapshots": [] }), out)), "none\n");
    }

    #[test]
    fn differences_are_told_by_kind_and_what_is_not_proved_is_not_called_equal() {
        let mut ended = one();
        ended["state"] = "ended".into();
        ended["certified"] = false.into();
        let mut same = ended.clone();
        same["certified"] = true.into();
        same["differences"] = json!({});

        let said = written(|out| differences(&ended, out));

        assert!(said.starts_with("DIFFERENCE  RECORDS\nmissing     2\n\n"), "{said}");
        assert!(said.contains("r: ended, 1 of 4 lists proved complete"), "{said}");
        assert_eq!(counted(&ended), [("missing".to_owned(), 2)]);
        assert_eq!(written(|out| differences(&same, out)), "r: no differences in 7 rows\n");
    }

    #[test]
    fn a_certificate_has_a_line_and_the_reason_why_it_proves_nothing() {
        let found = json!({ "truncated": true, "certificates": [
            { "list": "customers", "companyId": "a", "shard": null, "certified": true, "method": "counting", "rows": 3,
              "published": 2, "vanishedCount": 0, "run": "r", "endedAt": "T1", "reason": null },
            { "list": "payroll", "companyId": null, "shard": 3, "certified": false, "method": "none", "rows": 1,
              "published": 0, "vanishedCount": 0, "run": "r", "endedAt": "T2", "reason": "it drifts" },
        ] });

        let said = written(|out| certificates(&found, out));

        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "LIST       COMPANY        CERTIFIED  METHOD    ROWS  PUBLISHED  VANISHED  RUN  ENDED",
                "customers  a              yes        counting  3     2          0         r    T1",
                "payroll    all (shard 3)  no         none      1     0          0         r    T2",
            ]
        );
        assert!(said.contains("payroll of all (shard 3)\n  it drifts\n"), "{said}");
        assert!(lines[lines.len() - 1].starts_with("there are, or may be, more"), "{said}");
    }
}
