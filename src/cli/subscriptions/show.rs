//! Tables of subscriptions and plans.

use std::io::{self, Write};

use serde_json::Value;

use crate::cli::table::{columns, each, note, text};

/// One line per subscription, then one for each target without any, then the problems.
pub(super) fn list(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let all = each(&found["subscriptions"]);
    let there = all.iter().map(|one| {
        ["target", "phase", "since", "fits", "lastDelivery", "id"].map(|member| text(&one[member]))
    });
    let missing = each(&found["missing"])
        .iter()
        .map(|target| [&text(target), "missing", "-", "-", "-", "-"].map(str::to_owned));
    let head = ["TARGET", "PHASE", "SINCE", "FITS", "LAST DELIVERY", "ID"];
    columns(head, there.chain(missing).collect(), out)?;
    for one in all {
        if let Some(problem) = one["problem"].as_str() {
            note(&format!("{} ({})", text(&one["target"]), text(&one["phase"])), problem, out)?;
        }
    }
    if found["wish"]["removed"] == true {
        writeln!(out, "\nremoval requested: `tributary subscriptions apply` creates them again")?;
    }
    if found["manage"] == false {
        writeln!(out, "\nsubscriptions.manage is false: the worker does not manage subscriptions")?;
    }
    Ok(())
}

/// One line for each change.
pub(super) fn plan(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let (steps, problems) = (each(&found["steps"]), each(&found["problems"]));
    for problem in problems {
        writeln!(out, "{}", text(problem))?;
    }
    if !problems.is_empty() && !steps.is_empty() {
        writeln!(out)?;
    }
    if !steps.is_empty() {
        let rows = steps.iter().map(|step| ["call", "target", "id", "why"].map(|member| text(&step[member])));
        return columns(["CALL", "TARGET", "ID", "WHY"], rows.collect(), out);
    }
    if found["converged"] == true {
        writeln!(out, "nothing to do: all subscriptions are as declared")
    } else if problems.is_empty() {
        writeln!(
            out,
            "nothing to do now: waiting for the provider; `tributary subscriptions list` shows for which subscription"
        )
    } else {
        Ok(())
    }
}

/// A progress line: counts of subscriptions as declared and missing, or left to remove.
pub(super) fn progress(found: &Value, removed: bool) -> String {
    let all = each(&found["subscriptions"]);
    let living = all.iter().filter(|one| one["phase"] != "ended");
    if removed {
        return format!("{} left", living.count());
    }
    let active = living.filter(|one| one["phase"] == "active" && one["fits"] == true).count();
    let problems = all.iter().filter(|one| one["problem"].is_string()).count();
    let missing = each(&found["missing"]).len();
    match problems {
        0 => format!("{active} as declared, {missing} missing"),
        _ => format!("{active} as declared, {missing} missing, {problems} with a problem"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::tests::written;

    fn found() -> Value {
        json!({
            "connector": "hooks",
            "manage": true,
            "wish": { "number": 1, "removed": false },
            "subscriptions": [
                { "target": "accounting/accounts", "phase": "active", "since": "T1", "fits": true,
                  "lastDelivery": "T2", "id": "7", "problem": null },
                { "target": "accounting/customers", "phase": "ended", "since": "T1", "fits": false,
                  "lastDelivery": null, "id": null, "problem": "the provider says: no\u{1b}[2J\nat all" },
            ],
            "missing": ["accounting/customers"],
        })
    }

    #[test]
    fn a_list_has_subscriptions_missing_targets_and_problems() {
        let expected = "TARGET                PHASE    SINCE  FITS  LAST DELIVERY  ID\n\
                        accounting/accounts   active   T1     yes   T2             7\n\
                        accounting/customers  ended    T1     no    -              -\n\
                        accounting/customers  missing  -      -     -              -\n\
                        \n\
                        accounting/customers (ended)\n  the provider says: no\\u{1b}[2J\n  at all\n";
        assert_eq!(written(|out| list(&found(), out)), expected);
    }

    #[test]
    fn a_list_shows_a_removal_and_manage_false() {
        let decided =
            json!({ "manage": false, "wish": { "removed": true }, "subscriptions": [], "missing": [] });

        let text = written(|out| list(&decided, out));

        assert!(
            text.contains("removal requested") && text.contains("subscriptions.manage is false"),
            "{text}"
        );
    }

    #[test]
    fn a_plan_has_one_line_per_change_or_says_none() {
        let steps = json!({ "converged": false, "steps": [
            { "call": "subscribe", "target": "accounting/customers", "why": "there is none" },
            { "call": "delete", "target": "accounting/accounts", "id": "7", "why": "it is not wanted any more" },
        ]});

        let expected = "CALL       TARGET                ID  WHY\n\
                        subscribe  accounting/customers  -   there is none\n\
                        delete     accounting/accounts   7   it is not wanted any more\n";
        assert_eq!(written(|out| plan(&steps, out)), expected);
        let none = |converged| written(|out| plan(&json!({ "converged": converged, "steps": [] }), out));
        assert!(none(true).contains("as declared") && none(false).contains("waiting for the provider"));
        let stuck = json!({ "converged": false, "steps": [], "problems": ["accounting/x: no such events"] });
        assert_eq!(written(|out| plan(&stuck, out)), "accounting/x: no such events\n");
    }

    #[test]
    fn progress_counts_declared_or_remaining_subscriptions() {
        assert_eq!(progress(&found(), false), "1 as declared, 1 missing, 1 with a problem");
        assert_eq!(progress(&found(), true), "1 left");
    }
}
