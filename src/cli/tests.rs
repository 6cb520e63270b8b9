//! Every command in a runbook parses; and a helper for tests of commands.

use std::io;

use clap::Parser as _;

use super::Arguments;

const RUNBOOKS: &str = include_str!("../../config/prometheus/alerts.yml");

/// Returns the text that `show` writes.
pub(super) fn written(show: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    show(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_command_of_a_runbook_parses() {
    let commands: Vec<&str> =
        RUNBOOKS.split('`').skip(1).step_by(2).filter(|text| text.starts_with("tributary ")).collect();

    for command in &commands {
        // Placeholders of the alert and of the reader.
        let filled = command.replace("{{ $labels.", "").replace(" }}", "").replace("PARTITION@OFFSET", "0@0");
        if let Err(error) = Arguments::try_parse_from(filled.split(' ')) {
            panic!("{command}: {error}");
        }
    }
    assert!(commands.len() > 50, "{}", commands.len());
}
