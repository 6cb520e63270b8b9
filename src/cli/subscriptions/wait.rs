//! Requests `apply` or `remove` and waits for the result.
//!
//! A worker writes the request as a numbered wish to the ledger; the worker that runs the connector's task carries it out and writes
//! the number to `done`. If an older state of the record has overwritten the wish, it is requested again; if a later opposite request
//! has replaced it, the wait ends.

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
        let answer = json!({ "connector": connector, "done": "asked for", "wish": wish });
        return worker
            .output
            .show(&answer, out, |_, out| writeln!(out, "{connector}: requested, as number {number}"));
    }
    let mut printed = String::new();
    loop {
        let found = worker.get(&["connectors", connector, "subscriptions"], &[]).await?;
        match wish_state(&found["wish"], number, removed) {
            WishState::Done => return worker.output.show(&found, out, show::list),
            WishState::Replaced => {
                let reason = "a later request asked for the opposite; stopped waiting";
                return Err(failure(format!("{connector}: {reason}")));
            }
            WishState::Lost => number = wish(worker, connector, removed).await?,
            WishState::Awaited => {}
        }
        let progress = show::progress(&found, removed);
        if Instant::now() + POLL_INTERVAL > until {
            let command =
                format!("`tributary subscriptions list {connector}` shows why; the worker keeps trying");
            return Err(failure(format!(
                "{connector}: not finished within {limit:?} ({progress}); {command}"
            )));
        }
        if progress != printed {
            writeln!(io::stderr(), "{connector}: {progress}")?;
            printed = progress;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Sends the request and returns its number.
async fn wish(worker: &RestClient, connector: &str, removed: bool) -> Result<u64> {
    let command = if removed { "remove" } else { "apply" };
    let path = ["connectors", connector, "subscriptions", command];
    let wish = worker.send(Method::POST, &path, &[], None).await?.json()?;
    wish["number"].as_u64().ok_or_else(|| failure("the worker's answer has no number of the request"))
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
    // A later wish for the same is equivalent.
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
