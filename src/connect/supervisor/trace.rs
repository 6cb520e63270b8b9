//! Failures as the status topic shows them.
//!
//! Line one is `Kind: sentence`, then a `Caused by: Kind: sentence` line for each cause, then the remedy and what happens next.
//! Tools parse such texts: Redpanda Console drops lines that end in a closing bracket or in `exception`, prefers one with
//! `Caused by`, and shows the text after its first colon. So a line has one sentence and never such an end.

use std::{any::Any, error::Error, io};

use crate::plugin::Failure;

/// Limit on the causes shown.
const MAX_CAUSES: usize = 10;
/// Limit on the bytes of a line: every reader of the topic gets the status.
const MAX_LINE_BYTES: usize = 1000;

/// The trace of a failure, with what happens next.
pub(super) fn of(failure: &Failure, next: &str) -> String {
    let mut lines = vec![format!("{}: {}", failure.kind, sentence(&failure.message))];
    let mut cause = failure.source.as_deref().map(|source| source as &(dyn Error + 'static));
    while let Some(error) = cause.filter(|_| lines.len() <= MAX_CAUSES) {
        lines.push(format!("Caused by: {}: {}", kind(error), sentence(&error.to_string())));
        cause = error.source();
    }
    lines.extend(failure.remedy.as_deref().map(|remedy| format!("Remedy: {}", sentence(remedy))));
    lines.push(format!("Next: {}", sentence(next)));
    lines.join("\n")
}

/// The failure for a panic. Shows its text only if that is a literal of the program: a text formatted at run time may contain
/// a secret, so it is only in the worker's log.
pub(super) fn panicked(payload: &(dyn Any + Send)) -> Failure {
    let message = match payload.downcast_ref::<&'static str>() {
        Some(literal) => format!("the program has a bug: {literal}"),
        None => "the program has a bug; the panic message is in this worker's log".to_owned(),
    };
    let remedy = "report the bug with the worker's log";
    Failure::permanent("Panicked", message, remedy)
}

/// One line, bounded, with an end that no tool drops.
fn sentence(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > MAX_LINE_BYTES {
        let end = (0..=MAX_LINE_BYTES).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    if line.ends_with(')') || line.to_ascii_lowercase().ends_with("exception") {
        line.push('.');
    }
    line
}

fn kind(error: &(dyn Error + 'static)) -> &'static str {
    if error.is::<kafka::Error>() || error.is::<kafka::CommitError>() || error.is::<kafka::KafkaCause>() {
        "KafkaError"
    } else if error.is::<io::Error>() {
        "IoError"
    } else {
        "Error"
    }
}

#[cfg(test)]
mod tests {
    use base::retry::Retry;
    use provider::auth;

    use super::*;
    use crate::plugin::no_access;

    #[test]
    fn trace_has_kind_cause_remedy_and_next_on_separate_lines() {
        let failure = Failure::kafka("write a batch of numbers", kafka::samples::unauthorised());

        let trace = of(&failure, "nothing until it is restarted");

        let lines: Vec<&str> = trace.lines().collect();
        assert_eq!(lines[0], "KafkaError: write a batch of numbers");
        assert!(lines[1].starts_with("Caused by: KafkaError: publish to t partition 0"), "{trace}");
        assert!(lines[2].starts_with("Caused by: KafkaError: "), "{trace}");
        assert!(lines[3].starts_with("Remedy: correct"), "{trace}");
        assert_eq!(lines[4], "Next: nothing until it is restarted");
        assert!(!lines.iter().any(|line| line.ends_with(')')), "{trace}");
    }

    #[test]
    fn trace_mentions_restarting_once() {
        let absent =
            auth::Error::Absent { grant: "accounting".into(), command: "tributary auth login".into() };
        let panic = std::panic::catch_unwind(|| panic!("on request")).unwrap_err();
        for (failure, next) in [
            (
                Failure::kafka("write", kafka::samples::unauthorised()),
                "it stays failed until it is restarted",
            ),
            (no_access(&absent), "it restarts after the login"),
            (no_access(&auth::Error::NoKey), "it restarts when its worker is started"),
            (panicked(&*panic), "it stays failed until it is restarted"),
        ] {
            let trace = of(&failure, failure.next());

            let speaks = |line: &&str| line.contains("start");
            assert_eq!(trace.lines().filter(speaks).count(), 1, "{trace}");
            assert!(trace.contains(&format!("Next: {next}")), "{trace}");
        }
    }

    #[test]
    fn trace_names_the_open_transaction_and_how_to_abort_it() {
        let open = kafka::OpenTransaction {
            topic: "offsets".into(),
            partition: 2,
            offset: 6,
            open_for: Some(std::time::Duration::from_secs(83)),
        };
        let waited = std::time::Duration::from_secs(27);
        let error = kafka::Error::Undecided { open: vec![open], waited };
        let failure = Failure::kafka("read the task's offset", error);

        let trace = of(&failure, "it is tried again");

        assert_eq!(failure.retry, Retry::Later);
        assert!(trace.contains("offsets partition 2 from offset 6 (for 83 s)"), "{trace}");
        assert!(trace.contains("kafka-transactions.sh find-hanging"), "{trace}");
        assert!(trace.contains("abort --topic offsets --partition 2 --start-offset 6\n"), "{trace}");
    }

    #[test]
    fn trace_lines_are_bounded_and_never_end_as_tools_drop_them() {
        let failure = Failure {
            kind: "Odd",
            message: "one\ntwo (three)".into(),
            remedy: Some("x".repeat(5000)),
            retry: Retry::Never,
            source: Some("a java.lang.Exception".into()),
        };

        let trace = of(&failure, "");

        assert!(
            trace.starts_with("Odd: one two (three).\nCaused by: Error: a java.lang.Exception.\n"),
            "{trace}"
        );
        assert!(trace.len() < 1200, "{}", trace.len());
    }

    #[test]
    fn trace_shows_only_literal_panic_messages() {
        let literal = std::panic::catch_unwind(|| panic!("on request")).unwrap_err();
        let secret = "hunter2";
        let made = std::panic::catch_unwind(|| panic!("found {secret}")).unwrap_err();

        assert!(panicked(&*literal).message.contains("on request"));
        assert!(!panicked(&*made).message.contains("hunter2"));
    }
}
