//! `tributary verify`: compares the source with the topics. Publishes nothing without `--repair`.

use std::io::Write;

use clap::Args;
use serde_json::json;

use super::{RunRequestArgs, show, start};
use crate::cli::{
    CommandError, Result,
    client::{ConnectionArgs, RestClient},
};

const EXAMPLES: &str = "Exit codes: 0 no differences; 1 differences, lists that could not be proved complete, or a refusal of the worker; \
2 the command line is wrong.

Examples:
  tributary verify records                                        all configured lists, row by row
  tributary verify records --list customers --company abc         one list of one company
  tributary verify records --sample 200                           at most 200 rows of each list
  tributary verify records --repair                               publish records that are missing, behind or different
  tributary verify records --no-wait                              start it and do not wait";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct VerifyOptions {
    #[command(flatten)]
    access: ConnectionArgs,
    /// Name of the connector
    connector: String,
    #[command(flatten)]
    asked: RunRequestArgs,
    /// Compare at most this many rows of each list, on pages spread over it. Other rows are not checked, and records that are in
    /// no list are not searched for
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: Option<u32>,
    /// Publish the source's version of records that are missing, behind or have another content. Other differences stay
    #[arg(long)]
    repair: bool,
    /// Start the run and do not wait for its end
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// The default
    #[arg(long, hide = true)]
    wait: bool,
}

pub(in crate::cli) async fn run(options: &VerifyOptions, out: &mut dyn Write) -> Result {
    let VerifyOptions { access, connector, asked, sample, repair, no_wait, wait } = options;
    let worker = RestClient::new(access)?;
    let mut body = json!(asked);
    body["kind"] = "verify".into();
    if let Some(sample) = sample {
        body["sample"] = (*sample).into();
    }
    if *repair {
        body["repair"] = true.into();
    }
    let waits = *wait || !*no_wait;
    let Some(ended) = start(&worker, connector, &body, waits, out).await? else { return Ok(()) };
    worker.output.show(&ended, out, show::differences)?;
    if show::is_same(&ended) { Ok(()) } else { Err(CommandError::Reported) }
}
