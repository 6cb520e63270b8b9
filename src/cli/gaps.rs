//! `tributary gaps …`: deliveries of a `WebhookSource` and records of a `RecordSource` that may be missing, over the REST API of any
//! worker.
//!
//! Exit codes: 0 done; 1 the worker refused or does not answer; 2 the command line is wrong.

use std::io::{self, Write};

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Result,
    client::{ConnectionArgs, Method, RestClient},
    table::{Column, each, note, objects, text, text_or},
};

#[derive(Subcommand)]
pub(super) enum GapsCommand {
    /// Lists gaps that are neither repaired nor accepted, oldest first
    List {
        /// Name of the connector
        connector: String,
        /// Also gaps that are closed or accepted
        #[arg(long)]
        all: bool,
    },
    /// Accepts gaps that have ended, so that they are no longer reported
    Accept {
        /// Name of the connector
        connector: String,
        /// Ids of gaps, as `list` shows them
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub(super) async fn run(command: GapsCommand, access: &ConnectionArgs, out: &mut dyn Write) -> Result {
    let worker = RestClient::new(access)?;
    match command {
        GapsCommand::List { connector, all } => {
            let path = ["connectors", &connector, "gaps"];
            worker.list(&path, &[("all", all.to_string())], out, table).await
        }
        GapsCommand::Accept { connector, ids } => {
            let path = ["connectors", &connector, "gaps", "accept"];
            let accept = async |id: String| {
                worker.send(Method::POST, &path, &[], Some(&json!({ "id": id }))).await?;
                Ok((id, "accepted"))
            };
            let all = |accepted: &[(String, &str)]| {
                let ids: Vec<_> = accepted.iter().map(|(id, _)| id).collect();
                json!({ "connector": connector, "done": "accepted", "gaps": ids })
            };
            worker.each_in_turn(ids, accept, all, out).await
        }
    }
}

/// One line per gap, then the details.
fn table(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    let gaps = each(found);
    let table: [Column; 8] = [
        ("ID", |gap| text(&gap["id"])),
        ("CAUSE", |gap| text(&gap["cause"])),
        ("TARGET", |gap| text_or(&gap["target"], "all")),
        ("COMPANY", |gap| text_or(&gap["company"], "all")),
        ("FROM", |gap| text(&gap["from"])),
        ("TO", |gap| text_or(&gap["to"], "ongoing")),
        ("STATE", |gap| text(&gap["state"])),
        ("REPAIR", |gap| text(&gap["repair"]["state"])),
    ];
    objects(gaps, table, out)?;
    gaps.iter().try_for_each(|gap| note(&text(&gap["id"]), &text(&gap["detail"]), out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::written;

    #[test]
    fn a_gap_has_a_line_and_its_details() {
        let gap = json!({ "id": "hooks/disabled/5", "cause": "disabled", "target": null, "company": null, "from": "T1",
            "to": null, "openedAt": "T2", "state": "open", "detail": "it was\u{7}", "repair": null });

        let expected = "ID                CAUSE     TARGET  COMPANY  FROM  TO       STATE  REPAIR\n\
                        hooks/disabled/5  disabled  all     all      T1    ongoing  open   -\n\
                        \n\
                        hooks/disabled/5\n  it was\\u{7}\n";
        assert_eq!(written(|out| table(&json!([gap]), out)), expected);
    }
}
