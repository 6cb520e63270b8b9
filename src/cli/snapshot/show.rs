//! Tables of runs and certificates.

use std::{
    io::{self, Write},
    slice,
};

use serde_json::Value;

use super::watch::progress;
use crate::cli::table::{Column, columns, each, harmless, note, objects, text};

/// One line per run, then why some wait or have stopped.
pub(super) fn runs(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let all = each(&found["snapshots"]);
    table(all, out)?;
    all.iter().try_for_each(|run| reason(run, out))?;
    waiting(found, out)
}

/// Configured lists that wait, and why.
fn waiting(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    each(&found["waiting"]).iter().try_for_each(|one| {
        note(&format!("{} (waiting)", text(&one["list"])), one["reason"].as_str().unwrap_or_default(), out)
    })
}

/// One run with the lists being read.
pub(super) fn run(run: &Value, out: &mut dyn Write) -> io::Result<()> {
    table(slice::from_ref(run), out)?;
    reason(run, out)?;
    waiting(run, out)?;
    for line in progress(run).into_iter().skip(1) {
        writeln!(out, "{line}")?;
    }
    for (head, member) in [("DIFFERENCE", "differences"), ("REPAIRED", "repaired")] {
        let found = counted(run, member);
        if !found.is_empty() {
            writeln!(out)?;
            counts(head, &found, out)?;
        }
    }
    Ok(())
}

/// A started run, and how to watch it.
pub(super) fn started(connector: &str, run: &Value, out: &mut dyn Write) -> io::Result<()> {
    let id = text(&run["id"]);
    writeln!(
        out,
        "{id}: {}; watch it with `tributary snapshot status {connector} {id} --watch`",
        text(&run["state"])
    )?;
    waiting(run, out)
}

/// An accepted order.
pub(super) fn ordered(run: &Value, out: &mut dyn Write) -> io::Result<()> {
    let (id, state) = (text(&run["id"]), text(&run["state"]));
    match run["reason"].as_str() {
        Some(reason) => writeln!(out, "{id}: {state} ({})", harmless(reason)),
        None => writeln!(out, "{id}: {state}"),
    }
}

/// Differences that a verification found and, with `--repair`, repaired.
pub(super) fn differences(run: &Value, out: &mut dyn Write) -> io::Result<()> {
    let (id, rows, contents) = (text(&run["id"]), text(&run["rows"]), text(&run["contents"]));
    let (left, repaired) = (counted(run, "differences"), counted(run, "repaired"));
    if !repaired.is_empty() {
        counts("REPAIRED", &repaired, out)?;
        writeln!(out)?;
    }
    if left.is_empty() {
        let now = if repaired.is_empty() { "" } else { " any more" };
        writeln!(out, "{id}: nothing differs{now}: {rows} rows compared, {contents} of them in full")?;
    } else {
        counts("DIFFERENCE", &left, out)?;
        writeln!(out, "\n{id}: {rows} rows compared, {contents} of them in full")?;
    }
    if let Some(disabled) = run["disabled"].as_u64().filter(|disabled| *disabled > 0) {
        writeln!(out, "{id}: {disabled} disabled records are in no list, which is no difference")?;
    }
    let state = text(&run["state"]);
    if let Some(sample) = run["sample"].as_u64() {
        writeln!(
            out,
            "{id}: {state}; a sample of at most {sample} rows of each list; other rows, and records that are in no list, were \
             not checked"
        )?;
        if let Some(unread) = run["unread"].as_u64().filter(|unread| *unread > 0) {
            writeln!(out, "{id}: {unread} pages of the sample could not be read")?;
        }
    } else if run["certified"] != true {
        let collections = &run["collections"];
        let (proved, all) = (text(&collections["certified"]), text(&collections["total"]));
        writeln!(
            out,
            "\n{id}: {state}, {proved} of {all} lists proved complete; the others may have unseen differences (the \
             worker's log and the certificates of a snapshot say why)"
        )?;
    }
    reason(run, out)?;
    waiting(run, out)
}

/// Whether a verification has finished, compared everything and found no difference.
pub(super) fn is_same(run: &Value) -> bool {
    let is_whole = if run["sample"].is_null() {
        run["certified"] == true
    } else {
        run["state"] == "ended" && run["unread"].as_u64().unwrap_or_default() == 0
    };
    is_whole && counted(run, "differences").is_empty()
}

/// Kinds of differences with their counts, without zeros.
fn counted(run: &Value, member: &str) -> Vec<(String, u64)> {
    let all = run[member].as_object().into_iter().flatten();
    let each =
        all.filter_map(|(kind, count)| Some((harmless(kind), count.as_u64().filter(|count| *count > 0)?)));
    each.collect()
}

/// One line per certificate, then why some prove nothing.
pub(super) fn certificates(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let all = each(&found["certificates"]);
    let table: [Column; 16] = [
        ("LIST", |one| text(&one["list"])),
        ("COMPANY", owner),
        ("CERTIFIED", |one| text(&one["certified"])),
        ("METHOD", |one| text(&one["method"])),
        ("PASSES", |one| text(&one["passes"])),
        ("PAGES", |one| text(&one["pages"])),
        ("ROWS", |one| text(&one["rows"])),
        ("LISTED", |one| text(&one["listed"])),
        ("READ", |one| text(&one["distinct"])),
        ("GONE", |one| text(&one["gone"])),
        ("FOUND", |one| text(&one["found"])),
        ("MISSING", |one| text(&one["missingAtMost"])),
        ("PUBLISHED", |one| text(&one["published"])),
        ("VANISHED", |one| text(&one["vanishedCount"])),
        ("RUN", |one| text(&one["run"])),
        ("ENDED", |one| text(&one["endedAt"])),
    ];
    objects(all, table, out)?;
    for one in all {
        if let Some(reason) = one["reason"].as_str() {
            note(&format!("{} of {}", text(&one["list"]), owner(one)), reason, out)?;
        }
        for odd in each(&one["anomalies"]) {
            note(&format!("{} of {}, odd", text(&one["list"]), owner(one)), &text(odd), out)?;
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

fn table(runs: &[Value], out: &mut dyn Write) -> io::Result<()> {
    let table: [Column; 10] = [
        ("ID", |run| text(&run["id"])),
        ("KIND", |run| text(&run["kind"])),
        ("STATE", |run| text(&run["state"])),
        ("LISTS", |run| each(&run["lists"]).iter().map(text).collect::<Vec<_>>().join(",")),
        ("DONE", done),
        ("CERTIFIED", |run| text(&run["certified"])),
        ("ROWS", |run| text(&run["rows"])),
        ("PUBLISHED", |run| text(&run["published"])),
        ("REQUESTED", |run| text(&run["requestedAt"])),
        ("ENDED", |run| text(&run["endedAt"])),
    ];
    objects(runs, table, out)
}

/// Finished lists of all.
fn done(run: &Value) -> String {
    let lists = &run["collections"];
    format!("{}/{}", text(&lists["ended"]), text(&lists["total"]))
}

fn counts(head: &str, counts: &[(String, u64)], out: &mut dyn Write) -> io::Result<()> {
    let rows = counts.iter().map(|(kind, count)| [kind.clone(), count.to_string()]);
    columns([head, "RECORDS"], rows.collect(), out)
}

fn reason(run: &Value, out: &mut dyn Write) -> io::Result<()> {
    match run["reason"].as_str() {
        Some(reason) => note(&format!("{} ({})", text(&run["id"]), text(&run["state"])), reason, out),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::tests::written;

    fn one() -> Value {
        json!({ "id": "r", "kind": "verify", "state": "paused", "lists": ["customers", "accounts"], "rows": 7,
            "published": 0, "requestedAt": "T1", "certified": null, "reason": "the brake\u{7}",
            "collections": { "total": 4, "ended": 1, "certified": 1 }, "differences": { "missing": 2, "stale": 0 } })
    }

    #[test]
    fn a_run_has_a_line_and_its_reason() {
        let said = written(|out| runs(&json!({ "snapshots": [one()] }), out));

        let expected = "ID  KIND    STATE   LISTS               DONE  CERTIFIED  ROWS  PUBLISHED  REQUESTED  ENDED\n\
                        r   verify  paused  customers,accounts  1/4   -          7     0          T1         -\n\
                        \n\
                        r (paused)\n  the brake\\u{7}\n";
        assert_eq!(said, expected);
        assert_eq!(written(|out| runs(&json!({ "snapshots": [] }), out)), "none\n");
    }

    #[test]
    fn a_waiting_list_has_its_reason() {
        let waiting = json!([{ "list": "payroll", "reason": "log in\u{7}" }]);
        let mut one = one();
        (one["waiting"], one["reason"]) = (waiting.clone(), Value::Null);
        let note = "\npayroll (waiting)\n  log in\\u{7}\n";

        assert_eq!(
            written(|out| runs(&json!({ "snapshots": [], "waiting": waiting }), out)),
            format!("none\n{note}")
        );
        for said in [
            written(|out| run(&one, out)),
            written(|out| started("records", &one, out)),
            written(|out| differences(&one, out)),
        ] {
            assert!(said.contains(note), "{said}");
        }
    }

    #[test]
    fn differences_are_counted_by_kind() {
        let mut ended = one();
        ended["state"] = "ended".into();
        ended["certified"] = false.into();
        ended["contents"] = 5.into();
        ended["reason"] = Value::Null;
        let mut same = ended.clone();
        same["certified"] = true.into();
        same["differences"] = json!({});
        same["disabled"] = 3.into();
        let mut repaired = same.clone();
        repaired["disabled"] = 0.into();
        repaired["repaired"] = json!({ "behind": 4 });

        let said = written(|out| differences(&ended, out));

        let expected = "DIFFERENCE  RECORDS\nmissing     2\n\nr: 7 rows compared, 5 of them in full\n";
        assert!(said.starts_with(expected), "{said}");
        assert!(said.contains("r: ended, 1 of 4 lists proved complete"), "{said}");
        let expected = "r: nothing differs: 7 rows compared, 5 of them in full\n\
                        r: 3 disabled records are in no list, which is no difference\n";
        assert_eq!(written(|out| differences(&same, out)), expected);
        let expected = "REPAIRED  RECORDS\nbehind    4\n\n\
                        r: nothing differs any more: 7 rows compared, 5 of them in full\n";
        assert_eq!(written(|out| differences(&repaired, out)), expected);
        assert_eq!([is_same(&ended), is_same(&same), is_same(&repaired)], [false, true, true]);
    }

    #[test]
    fn a_sample_claims_nothing_about_other_rows() {
        let mut sampled = one();
        sampled["state"] = "ended".into();
        sampled["certified"] = false.into();
        sampled["sample"] = 50.into();
        sampled["differences"] = json!({});
        let mut unread = sampled.clone();
        unread["unread"] = 1.into();
        let mut stopped = sampled.clone();
        stopped["state"] = "stopped".into();

        let said = written(|out| differences(&sampled, out));

        assert!(said.contains("a sample of at most 50 rows of each list; other rows"), "{said}");
        assert!(!said.contains("proved"), "{said}");
        assert!(written(|out| differences(&unread, out)).contains("1 pages of the sample could not be read"));
        assert_eq!([is_same(&sampled), is_same(&unread), is_same(&stopped)], [true, false, false]);
    }

    #[test]
    fn a_certificate_has_a_line_and_its_reason() {
        let found = json!({ "truncated": true, "certificates": [
            { "list": "customers", "companyId": "a", "shard": null, "certified": true, "method": "counting", "rows": 3,
              "passes": 2, "pages": 4, "listed": 3, "distinct": 3, "gone": 0, "found": 0, "missingAtMost": 0,
              "published": 2, "vanishedCount": 0, "run": "r", "endedAt": "T1", "reason": null },
            { "list": "payroll", "companyId": null, "shard": 3, "certified": false, "method": "none", "rows": 1,
              "passes": 1, "pages": 1, "anomalies": ["pass 1, page 1: it is odd"],
              "published": 0, "vanishedCount": 0, "run": "r", "endedAt": "T2", "reason": "it drifts" },
        ] });

        let said = written(|out| certificates(&found, out));

        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "LIST       COMPANY        CERTIFIED  METHOD    PASSES  PAGES  ROWS  LISTED  READ  GONE  FOUND  MISSING  PUBLISHED  VANISHED  RUN  ENDED",
                "customers  a              yes        counting  2       4      3     3       3     0     0      0        2          0         r    T1",
                "payroll    all (shard 3)  no         none      1       1      1     -       -     -     -      -        0          0         r    T2",
            ]
        );
        assert!(said.contains("payroll of all (shard 3)\n  it drifts\n"), "{said}");
        assert!(said.contains("payroll of all (shard 3), odd\n  pass 1, page 1: it is odd\n"), "{said}");
        assert!(lines[lines.len() - 1].starts_with("there are, or may be, more"), "{said}");
    }
}
