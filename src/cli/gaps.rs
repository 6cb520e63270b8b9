//! `tributary gaps …`: what may be missing, over the REST API of any worker: deliveries of a `WebhookSource`, records of a
//! `RecordSource`.
//!
//! Tables for people, JSON with `--json`. Exit codes: 0 done; 1 the worker refused or is not there; 2 the command line
//! is wrong.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Failure,
    client::{Access, Method, Worker, path_of},
    table::{columns, each, note, text, text_or},
};

#[derive(Args)]
pub(super) struct Options {
    #[command(flatten)]
    access: Access,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Gaps that nothing has mended and nobody has accepted, oldest first
    List {
        /// Name of the connector
        connector: String,
        /// Those that are over too
        #[arg(long)]
        all: bool,
    },
    /// Takes note of gaps that have ended: nobody is reminded of them any more
    Accept {
        /// Name of the connector
        connector: String,
        /// Ids of gaps, as `list` shows them
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub(super) async fn run(options: &Options, out: &mut impl Write) -> Result<(), Failure> {
    let worker = Worker::new(&options.access)?;
    match &options.command {
        Command::List { connector, all } => {
            let path = path_of(connector, "gaps", &[]);
            let found = worker.get(&path, &[("all", all.to_string())]).await?;
            worker.show(&found, out, |found, out| table(found, out))
        }
        Command::Accept { connector, ids } => accept(&worker, connector, ids, out).await,
    }
}

async fn accept(
    worker: &Worker<'_>,
    connector: &str,
    ids: &[String],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (mut accepted, mut ended) = (Vec::new(), Ok(()));
    for id in ids {
        let body = json!({ "id": id });
        let path = path_of(connector, "gaps", &["accept"]);
        match worker.send(Method::POST, &path, &[], Some(&body)).await {
            Ok(_) => {
                accepted.push(id);
                ended = worker.say(&format!("{id}: accepted"), out);
            }
            Err(failure) => ended = Err(failure),
        }
        if ended.is_err() {
            break;
        }
    }
    // What came before a refusal is done all the same.
    if !accepted.is_empty() {
        let told = json!({ "connector": connector, "done": "accepted", "gaps": accepted });
        ended = ended.and(worker.show(&told, out, |_, _| Ok(())));
    }
    ended
}

/// One line a gap, then what has happened.
fn table(found: &Value, out: &mut impl Write) -> io::Result<()> {
    let gaps = each(found);
    if gaps.is_empty() {
        return writeln!(out, "none");
    }
    let rows = gaps.iter().map(|gap| {
        [
            text(&gap["id"]),
            text(&gap["cause"]),
            text_or(&gap["target"], "all"),
            text_or(&gap["company"], "all"),
            text(&gap["from"]),
            text_or(&gap["to"], "goes on"),
            text(&gap["state"]),
            text(&gap["repair"]["state"]),
        ]
    });
    let head = ["ID", "CAUSE", "TARGET", "COMPANY", "FROM", "TO", "STATE", "REPAIR"];
    columns(head, rows.collect(), out)?;
    gaps.iter().try_for_each(|gap| note(&text(&gap["id"]), &text(&gap["detail"]), out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_has_a_line_and_its_story_and_one_that_goes_on_says_so() {
        let gap = json!({ "id": "hooks/disabled/5", "cause": "disabled", "target": null, "company": null, "from": "T1",
            "to": null, "openedAt": "T2", "state": "open", "detail": "it was\u{7}", "repair": null });
        let mut out = Vec::new();

        table(&json!([gap]), &mut out).unwrap();

        let expected = "ID                CAUSE     TARGET  COMPANY  FROM  TO       STATE  REPAIR\n\
                        hooks/disabled/5  disabled  all     all      T1    goes on  open   -\n\
                        \n\
                        hooks/disabled/5\n  it was\\u{7}\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn where_there_is_no_gap_there_is_no_table() {
        let mut out = Vec::new();

        table(&json!([]), &mut out).unwrap();

        assert_eq!(out, b"none\n");
    }
}
