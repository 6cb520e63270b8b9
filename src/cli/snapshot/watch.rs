//! Shows the progress of a run until its end: bars redrawn in place on a terminal, else a line for each change.
//!
//! The watch continues if the worker does not answer for a moment, since the run does not depend on that worker.

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use serde_json::Value;
use tokio::time::sleep;

use model::Moment;

use super::is_over;
use crate::cli::{
    Result,
    client::{Method, OutputFormat, RestClient},
    table::{each, harmless, text},
    terminal::LiveLines,
};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Consecutive failed requests that are tolerated.
const MAX_FAILED_POLLS: u32 = 30;
/// Characters of a bar.
const BAR_WIDTH: usize = 24;
/// Lists shown with a bar.
const MAX_BARS: usize = 10;

/// Waits for the end of a run and returns its last state.
pub(super) async fn until_over(
    worker: &RestClient,
    connector: &str,
    id: &str,
    out: &mut dyn Write,
) -> Result<Value> {
    let path = ["connectors", connector, "snapshots", id];
    let is_terminal = io::stdout().is_terminal();
    let (mut missing, mut block, mut printed) = (0, LiveLines::default(), String::new());
    loop {
        let answer = worker.request(Method::GET, &path, &[], None).await;
        let is_missing = answer.as_ref().map_or(true, |answer| answer.status.is_server_error());
        if is_missing && missing < MAX_FAILED_POLLS {
            missing += 1;
            sleep(POLL_INTERVAL).await;
            continue;
        }
        let run = answer?.accepted()?.json()?;
        missing = 0;
        let lines = progress(&run);
        match worker.output {
            OutputFormat::Json => {}
            OutputFormat::Table if is_terminal => block.redraw(&lines, out)?,
            OutputFormat::Table => {
                let line = lines.first().cloned().unwrap_or_default();
                if line != printed {
                    writeln!(out, "{line}")?;
                    printed = line;
                }
            }
        }
        out.flush()?;
        if is_over(&run) {
            return Ok(run);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// A line for the run, then one for each list being read.
pub(in crate::cli) fn progress(run: &Value) -> Vec<String> {
    let collections = &run["collections"];
    let (ended, all) = (count(&collections["ended"]), count(&collections["total"]));
    let state = text(&run["state"]);
    let mut parts = vec![
        format!("{}: {state}", text(&run["id"])),
        bar(part_done(run)),
        format!("{ended} of {all} lists, {} certified", count(&collections["certified"])),
        format!("{} rows", count(&run["rows"])),
    ];
    if let Some(elapsed) = elapsed(run).filter(|_| state == "running") {
        parts.push(format!("{:.0} rows/s", count(&run["rows"]) as f64 / elapsed));
        if let Some(budget) = run["budget"].as_f64() {
            let share = count(&run["requests"]) as f64 / elapsed / budget;
            parts.push(format!("{:.0}% of the budget", share * 100.0));
        }
        if let Some(done) = part_done(run).filter(|done| *done > 0.0) {
            parts.push(format!("about {} left", duration(elapsed * (1.0 - done) / done)));
        }
    }
    let mut lines = vec![parts.join("  ")];
    let current = each(&run["current"]);
    for list in current.iter().take(MAX_BARS) {
        let rows = count(&list["rows"]);
        let (part, rows) = match list["of"].as_u64() {
            Some(of) => (fraction(rows, of), format!("{rows} of {of} rows")),
            None => (None, format!("{rows} rows")),
        };
        let owner = list["company"].as_str().map(|company| format!(" {}", harmless(company)));
        let name = format!("{}{}", text(&list["list"]), owner.unwrap_or_default());
        lines.push(format!("  {name:<32}  {}  {rows}, pass {}", bar(part), count(&list["pass"])));
    }
    if current.len() > MAX_BARS {
        lines.push(format!("  and {} more", current.len() - MAX_BARS));
    }
    lines
}

/// Seconds of a run by the workers' clocks; `None` for less than one.
fn elapsed(run: &Value) -> Option<f64> {
    let at = |name: &str| Some(Moment::parse(run[name].as_str()?)?.micros());
    let elapsed = at("updatedAt")?.checked_sub(at("startedAt")?)? as f64 / 1e6;
    (elapsed >= 1.0).then_some(elapsed)
}

/// Share of all lists that is done, counting lists in progress by their rows.
fn part_done(run: &Value) -> Option<f64> {
    let all = count(&run["collections"]["total"]);
    if all == 0 {
        return is_over(run).then_some(1.0);
    }
    let current = each(&run["current"]).iter();
    let in_progress: f64 =
        current.filter_map(|list| fraction(count(&list["rows"]), list["of"].as_u64()?)).sum();
    Some(((count(&run["collections"]["ended"]) as f64 + in_progress) / all as f64).min(1.0))
}

fn fraction(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| (part as f64 / of as f64).min(1.0))
}

fn bar(part: Option<f64>) -> String {
    let Some(part) = part else { return format!("[{}]    ?", "-".repeat(BAR_WIDTH)) };
    let full = ((part * BAR_WIDTH as f64) as usize).min(BAR_WIDTH);
    format!("[{}{}] {:>3.0}%", "#".repeat(full), "-".repeat(BAR_WIDTH - full), (part * 100.0).floor())
}

fn duration(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Value {
        json!({ "id": "r", "state": "running", "rows": 1200, "requests": 600, "budget": 10.0, "startedAt": "2026-11-16T00:00:00.000Z",
            "updatedAt": "2026-11-16T00:02:00.000Z", "collections": { "total": 4, "ended": 1, "certified": 1 },
            "current": [
                { "company": "a\u{7}", "list": "customers", "pass": 1, "pages": 5, "rows": 500, "of": 1000 },
                { "list": "payroll", "pass": 2, "pages": 1, "rows": 7 },
            ] })
    }

    #[test]
    fn progress_has_a_bar_for_the_run_and_each_list() {
        let expected = [
            "r: running  [#########---------------]  37%  1 of 4 lists, 1 certified  1200 rows  10 rows/s  50% of the budget  about 3 min left",
            "  customers a\\u{7}                  [############------------]  50%  500 of 1000 rows, pass 1",
            "  payroll                           [------------------------]    ?  7 rows, pass 2",
        ];

        assert_eq!(progress(&run()), expected);
    }

    #[test]
    fn a_finished_run_has_no_rate() {
        let waiting = json!({ "id": "r", "state": "waiting", "rows": 0,
            "collections": { "total": 0, "ended": 0, "certified": 0 } });
        let mut ended = run();
        ended["state"] = "ended".into();
        ended["collections"] = json!({ "total": 4, "ended": 4, "certified": 3 });
        ended["current"] = json!([]);

        assert_eq!(
            progress(&waiting),
            ["r: waiting  [------------------------]    ?  0 of 0 lists, 0 certified  0 rows"]
        );
        assert_eq!(
            progress(&ended),
            ["r: ended  [########################] 100%  4 of 4 lists, 3 certified  1200 rows"]
        );
    }

    #[test]
    fn a_duration_has_one_unit() {
        assert_eq!([30.4, 200.0, 9000.0].map(duration), ["30 s", "3 min", "2.5 h"]);
    }
}
