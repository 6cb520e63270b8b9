//! `tributary verify`: compares the source with the topics, now. Publishes nothing without `--repair`.

use std::io::Write;

use clap::Args;

use super::{RunRequest, show, start};
use crate::cli::{
    Failure, Result,
    client::{ConnectionArgs, RestClient},
};

/// How the help ends.
const EXAMPLES: &str = "Exit codes: 0 nothing differs; 1 something does, lists could not be proved complete, or the worker refused; \
2 the command line is wrong.

Examples:
  tributary verify records                                        every list as configured, row by row
  tributary verify records --list customers --company abc         one list of one company
  tributary verify records --sample 200                           at most 200 rows of each list
  tributary verify records --repair                               publish what is missing, behind or other than at the source
  tributary verify records --no-wait                              only ask for it";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Options {
    #[command(flatten)]
    access: ConnectionArgs,
    /// Name of the connector
    connector: String,
    #[command(flatten)]
    asked: RunRequest,
    /// Compare at most so many rows of each list, on pages spread over it. It proves nothing of other rows, and records that
    /// are in no list are not looked for
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,
    /// Publish what the source shows of records that are missing, behind or have another content. What differs otherwise is
    /// left as it is
    #[arg(long)]
    repair: bool,
    /// Only ask for it, and do not wait until it is over
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Waiting is what it does anyway
    #[arg(long, hide = true)]
    wait: bool,
}

pub(in crate::cli) async fn run(options: &Options, out: &mut dyn Write) -> Result {
    let Options { access, connector, asked, sample, repair, no_wait, wait } = options;
    let worker = RestClient::new(access)?;
    let mut body = asked.body(Some("verify"), false);
    if let Some(sample) = sample {
        body["sample"] = (*sample).into();
    }
    if *repair {
        body["repair"] = true.into();
    }
    let waits = *wait || !*no_wait;
    let Some(ended) = start(&worker, connector, &body, waits, out).await? else { return Ok(()) };
    worker.output.show(&ended, out, show::differences)?;
    if show::is_same(&ended) { Ok(()) } else { Err(Failure::Reported) }
}
