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
    client::{Method, RestClient},
    failure,
};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn until_done(
    worker: &RestClient,
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
        match wish_state(&found["wish"], number, removed) {
            WishState::Done => return worker.output.show(&found, out, show::list),
            WishState::Replaced => {
                let words = "somebody has asked for the opposite since; nothing more is waited for";
                return Err(failure(format!("{connector}: {words}")));
            }
            WishState::Lost => number = wish(worker, connector, removed).await?,
            WishState::Awaited => {}
        }
        let progress = show::progress(&found, removed);
        if Instant::now() + POLL_INTERVAL > until {
            let command =
                format!("`tributary subscriptions list {connector}` shows why, and it is still being done");
            return Err(failure(format!("{connector}: not done within {limit:?} ({progress}); {command}")));
        }
        if progress != told {
            writeln!(io::stderr(), "{connector}: {progress}")?;
            told = progress;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Asks for it; the number it goes by.
async fn wish(worker: &RestClient, connector: &str, removed: bool) -> Result<u64> {
    let command = if removed { "remove" } else { "apply" };
    let path = ["connectors", connector, "subscriptions", command];
    let told = worker.send(Method::POST, &path, &[], None).await?.json()?;
    told["number"].as_u64().ok_or_else(|| failure("the worker did not say which number the wish has"))
}

#[derive(Debug, PartialEq, Eq)]
enum WishState {
    Done,
    Awaited,
    Replaced,
    Lost,
}

fn wish_state(wish: &Value, number: u64, removed: bool) -> WishState {
    let (known, done) = (wish["number"].as_u64().unwrap_or(0), wish["done"].as_u64().unwrap_or(0));
    if known < number {
        return WishState::Lost;
    }
    // A later one that wants the same is as good.
    match (wish["removed"].as_bool().unwrap_or(false) == removed, done >= number) {
        (false, _) => WishState::Replaced,
        (true, true) => WishState::Done,
        (true, false) => WishState::Awaited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_done_awaited_replaced_or_lost() {
        let table = [
            (json!({ "number": 3, "removed": false, "done": 3 }), WishState::Done),
            (json!({ "number": 4, "removed": false, "done": 4 }), WishState::Done),
            (json!({ "number": 3, "removed": false, "done": 2 }), WishState::Awaited),
            (json!({ "number": 3, "removed": false, "done": null }), WishState::Awaited),
            (json!({ "number": 4, "removed": true, "done": 3 }), WishState::Replaced),
            (json!({ "number": 2, "removed": false, "done": 2 }), WishState::Lost),
            (Value::Null, WishState::Lost),
        ];
        for (wish, expected) in table {
            assert_eq!(wish_state(&wish, 3, false), expected, "{wish}");
        }
    }
}
