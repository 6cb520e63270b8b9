//! Asks for something and waits until it is done.
//!
//! A worker writes a wish to the ledger; the worker that runs the connector's task fulfills it and writes its number there.
//! A wish that is not there any more was written over by an older state of the record, and is asked for again; one that
//! somebody has replaced by the opposite is not.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::show;
use crate::cli::{
    Result,
    client::{Method, Worker},
    failure,
};

const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn until_done(
    worker: &Worker,
    connector: &str,
    removed: bool,
    seconds: u64,
    out: &mut dyn Write,
) -> Result {
    let limit = Duration::from_secs(seconds);
    let until = Instant::now() + limit;
    let mut number = wish(worker, connector, removed).await?;
    if limit.is_zero() {
        let wish = json!({ "number": number, "removed": removed });
        let told = json!({ "connector": connector, "done": "asked for", "wish": wish });
        return worker
            .output
            .show(&told, out, |_, out| writeln!(out, "{connector}: asked for, as wish {number}"));
    }
    let mut told = String::new();
    loop {
        let found = worker.get(&["connectors", connector, "subscriptions"], &[]).await?;
        match standing(&found["wish"], number, removed) {
            Standing::Done => return worker.output.show(&found, out, show::list),
            Standing::Replaced => {
                let words = "somebody has asked for the opposite since; nothing more is waited for";
                return Err(failure(format!("{connector}: {words}")));
            }
            Standing::Lost => number = wish(worker, connector, removed).await?,
            Standing::Awaited => {}
        }
        let progress = show::progress(&found, removed);
        if Instant::now() + LOOK > until {
            let command =
                format!("`tributary subscriptions list {connector}` shows why, and it is still being done");
            return Err(failure(format!("{connector}: not done within {limit:?} ({progress}); {command}")));
        }
        if progress != told {
            writeln!(io::stderr(), "{connector}: {progress}")?;
            told = progress;
        }
        sleep(LOOK).await;
    }
}

/// Asks for it; the number it goes by.
async fn wish(worker: &Worker, connector: &str, removed: bool) -> Result<u64> {
    let command = if removed { "remove" } else { "apply" };
    let path = ["connectors", connector, "subscriptions", command];
    let told = worker.send(Method::POST, &path, &[], None).await?.json()?;
    told["number"].as_u64().ok_or_else(|| failure("the worker did not say which number the wish has"))
}

#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Done,
    Awaited,
    Replaced,
    Lost,
}

fn standing(wish: &Value, number: u64, removed: bool) -> Standing {
    let (known, done) = (wish["number"].as_u64().unwrap_or(0), wish["done"].as_u64().unwrap_or(0));
    if known < number {
        return Standing::Lost;
    }
    // A later one that wants the same is as good.
    match (wish["removed"].as_bool().unwrap_or(false) == removed, done >= number) {
        (false, _) => Standing::Replaced,
        (true, true) => Standing::Done,
        (true, false) => Standing::Awaited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_done_awaited_replaced_or_lost() {
        let table = [
            (json!({ "number": 3, "removed": false, "done": 3 }), Standing::Done),
            (json!({ "number": 4, "removed": false, "done": 4 }), Standing::Done),
            (json!({ "number": 3, "removed": false, "done": 2 }), Standing::Awaited),
            (json!({ "number": 3, "removed": false, "done": null }), Standing::Awaited),
            (json!({ "number": 4, "removed": true, "done": 3 }), Standing::Replaced),
            (json!({ "number": 2, "removed": false, "done": 2 }), Standing::Lost),
            (Value::Null, Standing::Lost),
        ];
        for (wish, expected) in table {
            assert_eq!(standing(&wish, 3, false), expected, "{wish}");
        }
    }
}
