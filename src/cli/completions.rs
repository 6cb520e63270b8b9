//! `tributary completions`: a script that a shell completes commands and options with, made from the command line itself.

use std::io::Write;

use clap::Args;
use clap_complete::{Shell, generate};

use super::{Result, command, outside};

#[derive(Args)]
pub(super) struct Options {
    /// For which shell
    shell: Shell,
}

pub(super) fn run(options: &Options, out: &mut dyn Write) -> Result {
    // Into memory first: a pipe that is closed early would end the process with a panic.
    let mut script = Vec::new();
    generate(options.shell, &mut command(), "tributary", &mut script);
    out.write_all(&script).map_err(outside)
}
