//! How the help of every command ends: command lines to copy, and what they do.
//!
//! They stand side by side so that they tell one story: the same connectors, `webhooks` and `records`, in every one of them.

use std::fmt::Write as _;

use clap::Command;

/// A command line and what it does.
type Example = (&'static str, &'static str);

/// By the words of the command, without `tributary` itself.
const EXAMPLES: &[(&[&str], &[Example])] = &[
    (
        &[],
        &[
            #[cfg(feature = "simulator")]
            ("tributary demo", "everything in one process, with nothing installed"),
            ("tributary check --config config/worker.properties", "what a start would need"),
            ("tributary run --config config/worker.properties", "a worker"),
            ("tributary connectors status", "how its connectors are"),
        ],
    ),
    #[cfg(feature = "simulator")]
    (
        &["demo"],
        &[
            ("tributary demo", "half a minute: lists, deliveries, records, an outage, the count"),
            ("tributary demo --seconds 60 --rate 200", "longer, and more of it"),
            ("tributary demo --keep", "stays up afterwards, for a look at REST API, metrics and topics"),
        ],
    ),
    (
        &["run"],
        &[
            ("tributary run --config config/worker.properties", ""),
            ("tributary run --config w.properties --connector hooks.json", "with a connector from a file"),
            ("tributary run --config w.properties --adopt", "after group.id was changed"),
        ],
    ),
    (
        &["check"],
        &[
            ("tributary check --config config/worker.properties", ""),
            (
                "tributary check --config w.properties --connector hooks.json",
                "with a connector that is to come",
            ),
            ("tributary check --config w.properties --output json", "one object a line"),
        ],
    ),
    (
        &["connectors"],
        &[
            ("tributary connectors list", ""),
            ("tributary connectors apply config/connectors/webhooks.json", "creates or changes it"),
            ("tributary connectors restart webhooks --tasks --only-failed", "what has failed, again"),
        ],
    ),
    (
        &["connectors", "list"],
        &[
            ("tributary connectors list", ""),
            (
                "tributary connectors list --output json --url https://worker:8083 --ca ca.pem",
                "for programs, over TLS",
            ),
        ],
    ),
    (
        &["connectors", "status"],
        &[
            ("tributary connectors status", "all of them; exit code 1 if one has failed"),
            ("tributary connectors status webhooks", ""),
        ],
    ),
    (
        &["connectors", "apply"],
        &[("tributary connectors apply webhooks.json records.json", "none is sent unless all can be read")],
    ),
    (&["connectors", "pause"], &[("tributary connectors pause records", "")]),
    (&["connectors", "resume"], &[("tributary connectors resume records", "")]),
    (&["connectors", "stop"], &[("tributary connectors stop records", "")]),
    (
        &["connectors", "restart"],
        &[
            ("tributary connectors restart webhooks", "the connector alone"),
            (
                "tributary connectors restart webhooks --tasks --only-failed",
                "what has failed of it and its tasks",
            ),
        ],
    ),
    (&["connectors", "delete"], &[("tributary connectors delete records", "")]),
    (
        &["connectors", "offsets"],
        &[
            ("tributary connectors offsets webhooks", ""),
            ("tributary connectors offsets webhooks --output json", "as PATCH takes them"),
        ],
    ),
    (
        &["subscriptions"],
        &[
            ("tributary subscriptions list webhooks", "what there is of each target"),
            ("tributary subscriptions plan webhooks", "what would be changed"),
            ("tributary subscriptions apply webhooks", "changes it, and waits"),
        ],
    ),
    (
        &["subscriptions", "list"],
        &[
            ("tributary subscriptions list webhooks", ""),
            ("tributary subscriptions list webhooks --all --output json", "ended ones too, for programs"),
        ],
    ),
    (
        &["subscriptions", "plan"],
        &[
            ("tributary subscriptions plan webhooks", ""),
            (
                "tributary subscriptions plan webhooks.json --receive-only",
                "for a person who subscribes by other means",
            ),
        ],
    ),
    (
        &["subscriptions", "apply"],
        &[
            ("tributary subscriptions apply webhooks", ""),
            ("tributary subscriptions apply webhooks --timeout 0", "asks for it, and does not wait"),
        ],
    ),
    (&["subscriptions", "remove"], &[("tributary subscriptions remove webhooks", "")]),
    (
        &["gaps"],
        &[
            ("tributary gaps list webhooks", "what may be missing, and why"),
            ("tributary gaps accept webhooks webhooks/disabled/5", "nobody is reminded of it any more"),
        ],
    ),
    (
        &["gaps", "list"],
        &[
            ("tributary gaps list webhooks", ""),
            ("tributary gaps list webhooks --all --output json", "mended ones too, for programs"),
        ],
    ),
    (&["gaps", "accept"], &[("tributary gaps accept webhooks webhooks/disabled/5", "as `list` shows it")]),
    (
        &["snapshot", "start"],
        &[
            ("tributary snapshot start records", "everything as configured"),
            ("tributary snapshot start records --list customers --company 42 --wait", "one list, to its end"),
            ("tributary snapshot start records --list payroll --incremental", "what has changed since"),
        ],
    ),
    (
        &["snapshot", "status"],
        &[
            ("tributary snapshot status records", "all runs"),
            ("tributary snapshot status records nightly --watch", "bars until the run is over"),
        ],
    ),
    (&["snapshot", "pause"], &[("tributary snapshot pause records nightly", "")]),
    (&["snapshot", "resume"], &[("tributary snapshot resume records nightly", "")]),
    (&["snapshot", "stop"], &[("tributary snapshot stop records nightly", "")]),
    (
        &["snapshot", "certificates"],
        &[
            ("tributary snapshot certificates records --uncertified", "lists that are not proved complete"),
            (
                "tributary snapshot certificates records --run nightly --output json",
                "of one run, for programs",
            ),
        ],
    ),
    (
        &["auth"],
        &[
            ("tributary auth login accounting --connector webhooks", "with a browser"),
            ("tributary auth status", "who is logged in, and until when"),
        ],
    ),
    (
        &["auth", "login"],
        &[
            ("tributary auth login accounting --connector webhooks", "with the browser of this machine"),
            ("tributary auth login payroll --connector records.json --paste", "with a browser elsewhere"),
        ],
    ),
    (
        &["auth", "status"],
        &[
            (
                "tributary auth status --config config/worker.properties",
                "exit code 1 if a person has to do something",
            ),
            ("tributary auth status --output json", "one object a line"),
        ],
    ),
    (&["auth", "logout"], &[("tributary auth logout accounting", "as `auth status` names it")]),
    (
        &["webhooks"],
        &[
            (
                "tributary webhooks send --connector webhooks.json",
                "one delivery to where webhook.advertised.url leads, or to the listener",
            ),
            ("tributary webhooks sign body.json --connector webhooks.json", "the header for a body"),
        ],
    ),
    (
        &["webhooks", "sign"],
        &[
            ("tributary webhooks sign body.json --connector webhooks.json", ""),
            (
                "tributary webhooks sign --secret-env SECRET --invoicing Customer:Created",
                "a body from the standard input",
            ),
        ],
    ),
    (
        &["webhooks", "send"],
        &[
            (
                "tributary webhooks send --connector webhooks.json --count 100",
                "to where webhook.advertised.url leads, or to the listener",
            ),
            (
                "tributary webhooks send --connector webhooks --url https://hooks.example.com --event Deleted",
                "",
            ),
            (
                "tributary webhooks send --connector webhooks --invoicing Customer:Created --echo",
                "what the provider asks first",
            ),
        ],
    ),
    (
        &["dead-letters"],
        &[
            ("tributary dead-letters list --prefix acme --since 2h", "of the last two hours"),
            ("tributary dead-letters show 3@17 --prefix acme", "one of them"),
            ("tributary dead-letters replay 3@17 --prefix acme", "another try"),
        ],
    ),
    (
        &["dead-letters", "list"],
        &[
            ("tributary dead-letters list --connector webhooks", ""),
            ("tributary dead-letters list --prefix acme --reason Malformed --since 7d", "by reason and time"),
            ("tributary dead-letters list --topic acme.dead-letters --output json", "one object a line"),
        ],
    ),
    (
        &["dead-letters", "show"],
        &[
            ("tributary dead-letters show 3@17 --prefix acme", "as `list` shows its place"),
            ("tributary dead-letters show 3@17 --prefix acme --raw", "the body alone, to the byte"),
        ],
    ),
    (
        &["dead-letters", "replay"],
        &[
            ("tributary dead-letters replay --all --prefix acme --dry-run", "what would be published"),
            ("tributary dead-letters replay 3@17 3@18 --prefix acme", "these two"),
            ("tributary dead-letters replay --reason WrongSchema --prefix acme", "all of one kind"),
        ],
    ),
    (
        &["schemas"],
        &[
            ("tributary schemas list", "what is in this build"),
            (
                "tributary schemas check --config config/worker.properties",
                "whether the registry would take it",
            ),
        ],
    ),
    (
        &["schemas", "list"],
        &[
            ("tributary schemas list", ""),
            ("tributary schemas list --output json", "with the schemas themselves"),
        ],
    ),
    (&["schemas", "check"], &[("tributary schemas check --config config/worker.properties", "")]),
    (&["schemas", "register"], &[("tributary schemas register --config config/worker.properties", "")]),
    (
        &["config"],
        &[
            ("tributary config reference", "every key, as markdown"),
            ("tributary config metrics", "every metric, as markdown"),
        ],
    ),
    (&["config", "reference"], &[("tributary config reference", "")]),
    (&["config", "metrics"], &[("tributary config metrics", "")]),
    (
        &["completions"],
        &[
            ("tributary completions bash", "into /etc/bash_completion.d/tributary"),
            ("tributary completions zsh", "into a file _tributary of $fpath"),
            ("tributary completions fish", "into ~/.config/fish/completions/tributary.fish"),
        ],
    ),
    #[cfg(feature = "simulator")]
    (
        &["simulate"],
        &[
            ("tributary simulate", "100 companies on port 8090"),
            (
                "tributary simulate --tls --port 0 --changes-per-second 5",
                "HTTPS on a free port, and a lively world",
            ),
            (
                "tributary simulate --frozen-at 2026-11-15T09:00:00Z --changes-per-second 0",
                "the same bytes each time",
            ),
            (
                "tributary simulate --profile drawn --seed 7",
                "what the provider's document leaves open, drawn",
            ),
        ],
    ),
];

/// The command with examples at the end of every help that has none of its own.
pub(super) fn added(command: Command) -> Command {
    below(command, &mut Vec::new())
}

fn below(command: Command, path: &mut Vec<String>) -> Command {
    let own = EXAMPLES.iter().find(|(words, _)| words == path);
    let command = match own {
        Some((_, examples)) if command.get_after_help().is_none() => command.after_help(told(examples)),
        _ => command,
    };
    command.mut_subcommands(|one| {
        path.push(one.get_name().to_owned());
        let one = below(one, path);
        path.pop();
        one
    })
}

/// One line each, remarks under each other.
fn told(examples: &[Example]) -> String {
    let width = examples.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    let mut text = "Examples:".to_owned();
    for (line, remark) in examples {
        write!(text, "\n  {line:<width$}  {remark}").ok();
        text.truncate(text.trim_end().len());
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Arguments;

    /// Each command with the words that lead to it.
    fn all(command: &Command, path: &[String]) -> Vec<(Vec<String>, Command)> {
        let mut found = vec![(path.to_vec(), command.clone())];
        for one in command.get_subcommands() {
            found.extend(all(one, &[path, &[one.get_name().to_owned()]].concat()));
        }
        found
    }

    /// The command lines of a help: what comes before two blanks.
    fn lines(command: &Command) -> Vec<Vec<String>> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = help.lines().filter_map(|line| line.strip_prefix("  "));
        let before = |line: &str| line.split("  ").next().unwrap_or_default().to_owned();
        examples.map(|line| before(line).split(' ').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn every_command_has_an_example_of_itself_that_parses() {
        let commands = all(&added(Arguments::command()), &[]);
        assert!(commands.len() > 40, "only {} commands", commands.len());

        for (path, command) in commands {
            let lines = lines(&command);
            assert!(!lines.is_empty(), "{path:?} has no example");
            for line in lines {
                let begins = [&["tributary".to_owned()], &path[..]].concat();
                assert!(line.starts_with(&begins), "{path:?} has an example of another: {line:?}");
                let parsed = Arguments::try_parse_from(&line);
                assert!(parsed.is_ok(), "{line:?}: {}", parsed.err().unwrap());
            }
        }
    }

    #[test]
    fn every_example_is_of_a_command_that_there_is() {
        let paths: Vec<_> = all(&Arguments::command(), &[]).into_iter().map(|(path, _)| path).collect();

        for (words, _) in EXAMPLES {
            assert!(paths.iter().any(|path| path == words), "there is no command {words:?}");
        }
    }

    #[test]
    fn remarks_stand_under_each_other_and_lines_end_without_blanks() {
        let text = told(&[("tributary a", "one"), ("tributary abc", "")]);

        assert_eq!(text, "Examples:\n  tributary a    one\n  tributary abc");
    }
}
