//! The table of promises: what was counted for each, and whether it holds.

use serde_json::json;

use super::{
    deliveries::{DeliveryCheck, DeliveryFigures},
    invoicing::NotificationCheck,
    lists::ListRun,
    payroll::PayrollCheck,
    records::{DeadLetterCounts, RecordCheck},
};
use crate::cli::{Result, table::columns, terminal::Colors};

/// All counts of a demo.
pub(super) struct DemoResult {
    pub(super) figures: DeliveryFigures,
    /// Largest number of deliveries in the spool.
    pub(super) most_spooled: u64,
    pub(super) delivery_check: DeliveryCheck,
    pub(super) notified: NotificationCheck,
    pub(super) payroll: PayrollCheck,
    pub(super) letters: DeadLetterCounts,
    pub(super) enriched: RecordCheck,
    pub(super) lists: ListRuns,
    pub(super) login: LoginCheck,
    pub(super) recovery: RecoveryCheck,
}

/// The runs of a demo.
pub(super) struct ListRuns {
    /// Published every list.
    pub(super) listed: ListRun,
    /// Compared every list with the topics.
    pub(super) compared: ListRun,
}

/// Whether logins were refreshed.
pub(super) struct LoginCheck {
    pub(super) refreshes: u64,
    /// Whether all tasks run.
    pub(super) is_running: bool,
    /// State of the receiving task.
    pub(super) state: String,
}

/// What the worker repaired at the provider; `None` for what it did not repair in time.
pub(super) struct RecoveryCheck {
    /// Seconds until a subscription that was disabled was enabled again.
    pub(super) enabled_after: Option<f64>,
    /// State of its gap.
    pub(super) gap: Option<String>,
    /// Seconds until an invoicing hook deleted at the provider was registered again.
    pub(super) registered_after: Option<f64>,
}

/// A promise, whether it holds, and its counts.
type PromiseRow = (&'static str, bool, String);

impl DemoResult {
    fn rows(&self) -> Vec<PromiseRow> {
        let Self { figures, most_spooled, delivery_check, notified, payroll, letters, enriched, .. } = self;
        let Self { lists: ListRuns { listed, compared }, recovery, .. } = self;
        let of_deleted = |count| if_any(count, "of deleted companies");
        let in_time = |after: Option<f64>| {
            after.map_or("not in time".to_owned(), |after| format!("after {after:.1} s"))
        };
        let mut rows = Vec::new();
        let mut row = |promise, holds, counted: String| rows.push((promise, holds, counted));

        let DeliveryFigures { accepted, failed, slowest, spooled, .. } = figures;
        let counted = format!("{accepted} answered 200, {failed} otherwise, slowest {slowest} ms");
        row("every delivery is answered 200 in under 5 s", figures.all_in_time(), counted);
        let DeliveryCheck { accepted, missing, out_of_order, repeated, .. } = delivery_check;
        let found = accepted.saturating_sub(*missing);
        let counted = format!("{accepted} acknowledged, {found} in topics, {missing} lost, {repeated} twice");
        row("nothing acknowledged is lost", delivery_check.is_complete(), counted);
        row("order per company", *out_of_order == 0, format!("{out_of_order} out of order"));
        let counted = format!("{} dead letters{}", letters.given_up, of_deleted(letters.of_deleted));
        row("no dead letters", letters.given_up == 0, counted);
        let counted = format!("{most_spooled} in the spool at most, {spooled} left");
        row("without Kafka deliveries wait on disk", *most_spooled > 0 && *spooled == 0, counted);
        let RecordCheck { records, events, behind, unreadable, back, .. } = enriched;
        let unreadable = of_deleted(*unreadable);
        let counted =
            format!("{records} records behind {events} events, {behind} missing or outdated{unreadable}");
        row("a record behind every event", enriched.is_current(), counted);
        row("versions never go back", *back == 0, format!("{back} went back"));
        let [certified, all, rows_read, pages] =
            ["/collections/certified", "/collections/total", "/rows", "/pages"].map(|one| listed.number(one));
        let counted = format!("{certified} of {all} lists, {rows_read} rows on {pages} pages");
        row("every list ends certified", listed.is_certified(), counted);
        let LoginCheck { refreshes, is_running, state } = &self.login;
        row("a login is refreshed automatically", *is_running, format!("task {state}, {refreshes} renewals"));
        let after = recovery.enabled_after;
        row("a disabled subscription is enabled again", after.is_some(), in_time(after));
        let gap = recovery.gap.clone().unwrap_or_else(|| "still open".to_owned());
        row("its gap is repaired", recovery.gap.is_some(), gap);
        let NotificationCheck { accepted, missing, repeated, invented, .. } = notified;
        let found = accepted.saturating_sub(*missing);
        let counted = format!(
            "{accepted} acknowledged, {found} in topics, {missing} lost, {repeated} twice, {invented} not sent"
        );
        row("every invoicing notification is published as sent", notified.is_exact(), counted);
        let after = recovery.registered_after;
        row("a deleted invoicing hook is registered again", after.is_some(), in_time(after));
        let PayrollCheck { is_certified, companies, different, left } = payroll;
        let certified = if *is_certified { "certified" } else { "not certified" };
        let left = if_any(*left, "no longer listed");
        let counted = format!("{companies} companies, {different} missing or different, {certified}{left}");
        row("payroll topic = payroll source", payroll.is_same(), counted);
        let differences = compared.differences();
        let differ = differences.map_or("none differs".to_owned(), |all| json!(all).to_string());
        let counted = format!("{} rows compared, {differ}", compared.number("/rows"));
        row("topics = source", compared.is_certified() && differences.is_none(), counted);
        rows
    }

    /// Number of promises that do not hold.
    pub(super) fn broken_promises(&self) -> usize {
        self.rows().iter().filter(|(_, holds, _)| !holds).count()
    }

    /// The table and the overall result.
    pub(super) fn table(&self, colors: Colors) -> Result<String> {
        let holds = |holds| if holds { colors.good("yes") } else { colors.bad("NO") };
        let rows = self.rows().into_iter();
        let rows: Vec<_> =
            rows.map(|(promise, is_held, counted)| [promise.to_owned(), counted, holds(is_held)]).collect();
        let all = rows.len();
        let mut table = Vec::new();
        columns(["PROMISED", "COUNTED", "HOLDS"], rows, &mut table)?;
        let table = String::from_utf8_lossy(&table).into_owned();
        let end = match self.broken_promises() {
            0 => colors.good(&format!(
                "verified: the topics hold what the source holds, and all {all} promises hold"
            )),
            broken => colors.bad(&format!("NOT verified: {broken} of {all} promises do not hold")),
        };
        Ok(format!("{table}\n{end}"))
    }
}

/// A further count, unless it is 0.
fn if_any(count: usize, of_what: &str) -> String {
    if count == 0 { String::new() } else { format!(", {count} {of_what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted() -> DemoResult {
        DemoResult {
            figures: DeliveryFigures { accepted: 9, slowest: 40, published: 8, ..DeliveryFigures::default() },
            delivery_check: DeliveryCheck { accepted: 8, ..DeliveryCheck::default() },
            notified: NotificationCheck { accepted: 6, ..NotificationCheck::default() },
            payroll: PayrollCheck { is_certified: true, companies: 10, ..PayrollCheck::default() },
            letters: DeadLetterCounts::default(),
            most_spooled: 3,
            enriched: RecordCheck { records: 5, events: 8, ..RecordCheck::default() },
            lists: ListRuns {
                listed: ListRun(json!({ "certified": true, "rows": 40 })),
                compared: ListRun(json!({ "certified": true, "rows": 41, "differences": {} })),
            },
            login: LoginCheck { refreshes: 1, is_running: true, state: "RUNNING".to_owned() },
            recovery: RecoveryCheck {
                enabled_after: Some(0.4),
                gap: Some("closed".to_owned()),
                registered_after: Some(0.6),
            },
        }
    }

    #[test]
    fn every_promise_has_a_line_and_there_is_a_result() {
        let table = counted().table(Colors { is_on: false }).ok().unwrap();

        let line = table.lines().find(|line| line.starts_with("nothing acknowledged is lost  ")).unwrap();
        assert!(
            line.contains("  8 acknowledged, 8 in topics, 0 lost, 0 twice  ") && line.ends_with("  yes"),
            "{table}"
        );
        assert!(
            table.ends_with("verified: the topics hold what the source holds, and all 15 promises hold"),
            "{table}"
        );
    }

    #[test]
    fn records_of_deleted_companies_break_no_promise() {
        let mut counted = counted();
        (counted.letters.of_deleted, counted.enriched.unreadable) = (2, 1);

        let table = counted.table(Colors { is_on: false }).ok().unwrap();

        assert_eq!(counted.broken_promises(), 0, "{table}");
        for words in
            ["0 dead letters, 2 of deleted companies", "0 missing or outdated, 1 of deleted companies"]
        {
            assert!(table.contains(words), "{table}");
        }
    }

    #[test]
    fn each_count_can_break_its_promise() {
        type BreakPromise = fn(&mut DemoResult);
        let broken: [(&str, BreakPromise); 21] = [
            ("an answer too late", |counted| counted.figures.slowest = 5_000),
            ("an answer other than 200", |counted| counted.figures.failed = 1),
            ("one lost", |counted| counted.delivery_check.missing = 1),
            ("nothing sent", |counted| counted.delivery_check.accepted = 0),
            ("out of order", |counted| counted.delivery_check.out_of_order = 1),
            ("a dead letter", |counted| counted.letters.given_up = 1),
            ("no spool", |counted| counted.most_spooled = 0),
            ("a record behind", |counted| counted.enriched.behind = 1),
            ("a version back", |counted| counted.enriched.back = 1),
            ("not certified", |counted| counted.lists.listed.0["certified"] = false.into()),
            ("a task that does not run", |counted| counted.login.is_running = false),
            ("not enabled", |counted| counted.recovery.enabled_after = None),
            ("open gap", |counted| counted.recovery.gap = None),
            ("a notification lost", |counted| counted.notified.missing = 1),
            ("an event that was not sent", |counted| counted.notified.invented = 1),
            ("no notification sent", |counted| counted.notified.accepted = 0),
            ("no hook", |counted| counted.recovery.registered_after = None),
            ("a payroll company differs", |counted| counted.payroll.different = 1),
            ("payroll not certified", |counted| counted.payroll.is_certified = false),
            ("no payroll company", |counted| counted.payroll.companies = 0),
            ("a row differs", |counted| counted.lists.compared.0["differences"]["stale"] = 1.into()),
        ];
        assert_eq!(counted().broken_promises(), 0);

        for (what, break_promise) in broken {
            let mut counted = counted();
            break_promise(&mut counted);
            assert_eq!(counted.broken_promises(), 1, "{what}");
            let table = counted.table(Colors { is_on: false }).ok().unwrap();
            assert!(table.contains("  NO\n") && table.contains("NOT verified: 1 of 15"), "{what}: {table}");
        }
    }
}
