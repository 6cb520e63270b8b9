//! Examples at the end of every command's help, from `examples.txt`. All use the connectors `webhooks` and `records`.

use std::fmt::Write as _;

use clap::Command;

/// Blocks that start with the command in brackets, without `tributary`; each line is a command line and, after two blanks, a remark.
const EXAMPLES: &str = include_str!("examples.txt");

/// Adds examples to every help that does not have its own.
pub(super) fn added(command: Command) -> Command {
    below(command, &mut Vec::new())
}

fn below(command: Command, path: &mut Vec<String>) -> Command {
    let head = format!("[{}]", path.join(" "));
    let own = EXAMPLES.split("\n\n").find_map(|block| block.strip_prefix(&head));
    let command = match own {
        Some(examples) if command.get_after_help().is_none() => command.after_help(aligned(examples)),
        _ => command,
    };
    command.mut_subcommands(|one| {
        path.push(one.get_name().to_owned());
        let one = below(one, path);
        path.pop();
        one
    })
}

/// Examples with aligned remarks.
fn aligned(examples: &str) -> String {
    let is_there = |line: &&str| cfg!(feature = "simulator") || !line.starts_with("tributary demo");
    let lines = examples.lines().filter(|line| !line.is_empty()).filter(is_there);
    let pairs: Vec<(&str, &str)> = lines.map(|line| line.split_once("  ").unwrap_or((line, ""))).collect();
    let width = pairs.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    let mut text = "Examples:".to_owned();
    for (line, remark) in pairs {
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
    fn every_example_belongs_to_a_command() {
        let paths: Vec<_> = all(&Arguments::command(), &[]).into_iter().map(|(path, _)| path).collect();

        for head in EXAMPLES.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']')) {
            let is_there = paths.iter().any(|path| path.join(" ") == head);
            let needs_simulator = matches!(head, "demo" | "simulate") && !cfg!(feature = "simulator");
            assert!(is_there || needs_simulator, "there is no command {head:?}");
        }
    }

    #[test]
    fn remarks_are_aligned_without_trailing_blanks() {
        let text = aligned("\ntributary a  one\ntributary abc");

        assert_eq!(text, "Examples:\n  tributary a    one\n  tributary abc");
    }
}
