//! Every command that a runbook contains parses; and what tests of commands share.

use std::io;

use clap::Parser as _;

use super::Arguments;

/// Runbooks write commands in backticks.
const RUNBOOKS: &str = include_str!("../../config/prometheus/alerts.yml");

/// The text that `show` writes.
pub(super) fn written(show: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    show(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_command_of_a_runbook_is_understood() {
    let commands: Vec<&str> =
        RUNBOOKS.split('`').skip(1).step_by(2).filter(|text| text.starts_with("tributary ")).collect();

    for command in &commands {
        // What an alert fills in, and what a person does.
        let filled = command.replace("{{ $labels.", "").replace(" }}", "").replace("PARTITION@OFFSET", "0@0");
        if let Err(error) = Arguments::try_parse_from(filled.split(' ')) {
            panic!("{command}: {error}");
        }
    }
    assert!(commands.len() > 50, "{}", commands.len());
}
