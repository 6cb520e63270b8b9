//! `tributary verify`: the source against the topics, now. A run that compares and publishes nothing.

use std::io::Write;

use clap::Args;

use super::{Asked, id_of, show, start, watch};
use crate::cli::{
    Failure,
    client::{Access, Worker},
};

/// How the help ends.
const EXAMPLES: &str = "Examples:
  tributary verify records --wait                      every list as configured; exit code 1 if anything differs
  tributary verify records --list customers --company abc --wait";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Options {
    #[command(flatten)]
    access: Access,
    /// Name of the connector
    connector: String,
    #[command(flatten)]
    asked: Asked,
    /// Wait until it is over and show what differs; exit code 1 if anything does, or if lists could not be proved complete
    #[arg(long)]
    wait: bool,
}

pub(in crate::cli) async fn run(options: &Options, out: &mut impl Write) -> Result<(), Failure> {
    let Options { access, connector, asked, wait } = options;
    let worker = Worker::new(access)?;
    let told = start(&worker, connector, &asked.body(Some("verify"), false)).await?;
    if !wait {
        return worker.show(&told, out, |told, out| show::started(connector, told, out));
    }
    let ended = watch(access, &worker, connector, id_of(&told)?, out).await?;
    worker.show(&ended, out, |ended, out| show::differences(ended, out))?;
    let is_same = show::counted(&ended).is_empty() && ended["certified"] == true;
    if is_same { Ok(()) } else { Err(Failure::Reported) }
}
