//! What a probe found beside what is assumed, as a table and as JSON, and the settings that follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use serde_json::{Value, json};

use super::session::Observations;
use crate::cli::table::{columns, harmless};

/// What reading cannot show, and why.
const NOT_MEASURABLE: [(&str, &str); 6] = [
    (
        "other forms of context for customers, accounts, payroll and events",
        "only the list of companies and reads by id are tried with several",
    ),
    ("retries, order and repetition of deliveries", "they show only in deliveries that are received"),
    (
        "what a failed Acknowledge does, and how many webhooks there may be",
        "that takes subscriptions, which are writes",
    ),
    ("time zone of Timestamp, names of EventType.Resource", "they show only in deliveries"),
    ("whether a refresh token changes when it is used", "that takes a refresh, which only workers make"),
    ("the invoicing API", "its login is a POST to that API, and it documents no reads but the list of hooks"),
];

/// The answer to one question about one subject.
#[derive(Debug)]
pub(super) struct ProbeFinding {
    pub(super) question: &'static str,
    /// List, resource or API.
    pub(super) about: String,
    /// What was found, or why nothing was.
    pub(super) found: Result<ProbeAnswer, String>,
    /// The setting that applies, or what is built in.
    pub(super) assumed: String,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct ProbeAnswer {
    pub(super) found: String,
    /// Settings that fit it, where others are configured.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) notes: Vec<String>,
}

impl<T: Into<String>> From<T> for ProbeAnswer {
    fn from(found: T) -> Self {
        Self { found: found.into(), ..Self::default() }
    }
}

/// A finished run.
#[derive(Debug)]
pub(super) struct ProbeReport {
    pub(super) findings: Vec<ProbeFinding>,
    pub(super) seen: Observations,
}

impl ProbeReport {
    pub(super) fn unanswered(&self) -> usize {
        self.findings.iter().filter(|finding| finding.found.is_err()).count()
    }

    /// The settings that fit all findings.
    pub(super) fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut all: BTreeMap<&'static str, String> = BTreeMap::new();
        for (key, value) in
            self.findings.iter().flat_map(|one| one.found.iter()).flat_map(|one| &one.settings)
        {
            let merged = match all.get(key) {
                Some(other) => merged(other, value),
                None => value.clone(),
            };
            all.insert(key, merged);
        }
        all
    }

    pub(super) fn json(&self) -> Value {
        let one = |finding: &ProbeFinding| {
            let ProbeFinding { question, about, found, assumed } = finding;
            let mut line = json!({ "question": question, "about": about, "assumed": assumed });
            match found {
                Ok(ProbeAnswer { found, settings, notes }) => {
                    let settings: BTreeMap<_, _> = settings.iter().cloned().collect();
                    line["found"] = json!(found);
                    line["settings"] = json!(settings);
                    line["notes"] = json!(notes);
                }
                Err(reason) => line["unanswered"] = json!(reason),
            }
            line
        };
        let not_measurable = NOT_MEASURABLE.map(|(what, reason)| json!({ "about": what, "reason": reason }));
        json!({
            "findings": self.findings.iter().map(one).collect::<Vec<_>>(),
            "settings": self.settings(),
            "notMeasurable": not_measurable,
            "requests": self.seen.requests,
            "answers": self.seen.answers,
        })
    }

    pub(super) fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows: Vec<[String; 4]> = Vec::new();
        for finding in &self.findings {
            let found = finding.found.as_ref().map_or("not answered", |answer| answer.found.as_str());
            let row = [finding.question, &finding.about, found, &finding.assumed].map(harmless);
            match rows.last_mut().filter(|last| last[0] == row[0] && last[2..] == row[2..]) {
                Some(last) => last[1] = format!("{}, {}", last[1], row[1]),
                None => rows.push(row),
            }
        }
        columns(["QUESTION", "ABOUT", "FOUND", "ASSUMED"], rows, out)?;
        for ProbeFinding { question, about, found, .. } in &self.findings {
            for note in found.iter().flat_map(|answer| &answer.notes) {
                writeln!(out, "\nnote on {question} ({about}): {}", harmless(note))?;
            }
        }
        let settings = self.settings();
        writeln!(out, "\nProposed settings of the connector:")?;
        match (settings.is_empty(), self.unanswered()) {
            (false, _) => {}
            (true, 0) => writeln!(out, "none; the configured ones fit")?,
            (true, _) => writeln!(out, "none from what was answered")?,
        }
        for (key, value) in settings {
            writeln!(out, "{key}={value}")?;
        }
        writeln!(out, "\nNot answered:")?;
        if self.unanswered() == 0 {
            writeln!(out, "nothing")?;
        }
        for ProbeFinding { question, about, found, .. } in &self.findings {
            if let Err(reason) = found {
                writeln!(out, "{question} ({about}): {}", harmless(reason))?;
            }
        }
        writeln!(out, "\nNot measurable by reading:")?;
        for (what, reason) in NOT_MEASURABLE {
            writeln!(out, "{what}: {reason}")?;
        }
        writeln!(out, "\n{} requests, {} answers", self.seen.requests, self.seen.answers)
    }
}

/// The value that fits both findings: the smaller number, or what both lists have.
fn merged(one: &str, other: &str) -> String {
    match (one.parse::<u64>(), other.parse::<u64>()) {
        (Ok(one), Ok(other)) => one.min(other).to_string(),
        _ => {
            let kept: BTreeSet<&str> = other.split(',').collect();
            one.split(',').filter(|part| kept.contains(part)).collect::<Vec<_>>().join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::written;

    fn finding(about: &str, found: Result<ProbeAnswer, String>) -> ProbeFinding {
        ProbeFinding { question: "page-size", about: about.to_owned(), found, assumed: "100".to_owned() }
    }

    fn with(key: &'static str, value: &str) -> ProbeAnswer {
        ProbeAnswer { settings: vec![(key, value.to_owned())], ..ProbeAnswer::from("less") }
    }

    #[test]
    fn proposals_fit_every_finding() {
        let findings = vec![
            finding("a", Ok(with("page.size", "50"))),
            finding("b", Ok(with("page.size", "7"))),
            finding("c", Ok(with("snapshot.lists", "companies,customers,payroll"))),
            finding("d", Ok(with("snapshot.lists", "companies,accounts,customers"))),
        ];

        let settings = ProbeReport { findings, seen: Observations::default() }.settings();

        let expected = [("page.size", "7"), ("snapshot.lists", "companies,customers")];
        assert_eq!(settings, expected.map(|(key, value)| (key, value.to_owned())).into());
    }

    #[test]
    fn equal_findings_share_a_row_and_reasons_follow() {
        let findings = vec![
            finding("a", Ok("less".into())),
            finding("b", Ok(with("page.size", "7"))),
            finding("c", Err("no grant".to_owned())),
        ];

        let report = ProbeReport { findings, seen: Observations::default() };
        let text = written(|out| report.show(out));

        assert!(text.contains("page-size  a, b   less          100\n"), "{text}");
        assert!(text.contains("\npage.size=7\n") && text.contains("\npage-size (c): no grant\n"), "{text}");
        assert_eq!(report.unanswered(), 1);
    }

    #[test]
    fn settings_fit_only_if_every_question_was_answered() {
        for (found, words) in [
            (Ok("less".into()), "connector:\nnone; the configured ones fit\n"),
            (Err("no grant".to_owned()), "connector:\nnone from what was answered\n"),
        ] {
            let report = ProbeReport { findings: vec![finding("a", found)], seen: Observations::default() };
            let text = written(|out| report.show(out));

            assert!(text.contains(words), "{text}");
        }
    }
}
