//! Requests `apply` or `remove` and waits for the result.
//!
//! A worker writes the request as a numbered wish to the ledger; the worker that runs the connector's task carries it out and writes
//! the number to `done`. If an older state of the record has overwritten the wish, it is requested again; if a later opposite request
//! has replaced it, the wait ends. A worker that does not answer, or cannot answer now, does not end it.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use base::retry::ErrorChain;

use super::show;
use crate::cli::{
    CommandError, Result,
    client::{Method, RestClient, may_succeed_later},
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
        let polled = timeout_at(until, poll(worker, connector, removed, &mut number)).await;
        let progress = match polled {
            Ok(Ok((WishState::Done, found))) => return worker.output.show(&found, out, show::list),
            Ok(Ok((WishState::Replaced, _))) => {
                let reason = "a later request asked for the opposite; stopped waiting";
                return Err(failure(format!("{connector}: {reason}")));
            }
            Ok(Ok((WishState::Awaited | WishState::Lost, found))) => show::progress(&found, removed),
            Ok(Err(CommandError::Outside(error))) if may_succeed_later(&*error) => {
                ErrorChain(&*error).to_string()
            }
            Ok(Err(error)) => return Err(error),
            Err(_) if printed.is_empty() => "the worker did not answer".to_owned(),
            Err(_) => printed.clone(),
        };
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

/// Looks once, and repeats a lost request.
async fn poll(
    worker: &RestClient,
    connector: &str,
    removed: bool,
    number: &mut u64,
) -> Result<(WishState, Value)> {
    let found = worker.get(&["connectors", connector, "subscriptions"], &[]).await?;
    let state = wish_state(&found["wish"], *number, removed);
    if state == WishState::Lost {
        *number = wish(worker, connector, removed).await?;
    }
    Ok((state, found))
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
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::{
        Json, Router,
        http::StatusCode,
        routing::{MethodRouter, get, post},
    };

    use super::*;
    use crate::cli::client::ConnectionArgs;

    /// Waits for a worker whose first `failures` answers to a poll have this status. Returns the result and the number of polls.
    async fn waited(failures: usize, status: StatusCode, seconds: u64) -> (Result<(), String>, usize) {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let poll = async move || {
            if counted.fetch_add(1, Ordering::SeqCst) < failures {
                return (status, Json(json!({ "error_code": status.as_u16(), "message": "no broker" })));
            }
            let wish = json!({ "number": 1, "removed": false, "done": 1 });
            (StatusCode::OK, Json(json!({ "wish": wish, "subscriptions": [], "missing": [] })))
        };
        let ended = waited_on(get(poll), seconds).await;
        (ended, polls.load(Ordering::SeqCst))
    }

    /// Waits for a worker that answers polls like this.
    async fn waited_on(poll: MethodRouter, seconds: u64) -> Result<(), String> {
        let router = Router::new()
            .route("/connectors/hooks/subscriptions", poll)
            .route("/connectors/hooks/subscriptions/apply", post(async || Json(json!({ "number": 1 }))));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let worker = RestClient::new(&ConnectionArgs::to(&url)).ok().unwrap();

        let ended = until_done(&worker, "hooks", false, seconds, &mut Vec::new()).await;

        ended.map_err(|error| match error {
            CommandError::Outside(error) => error.to_string(),
            _ => "another failure".to_owned(),
        })
    }

    #[tokio::test]
    async fn poll_that_hangs_ends_at_the_limit() {
        let hanging = get(std::future::pending::<StatusCode>);
        let begun = Instant::now();

        let late = waited_on(hanging, 1).await.unwrap_err();

        assert!(late.contains("not finished within 1s (the worker did not answer)"), "{late}");
        // The client itself gives up only after 15 s.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn failed_poll_is_repeated_until_the_limit() {
        let recovered = waited(1, StatusCode::INTERNAL_SERVER_ERROR, 60).await;
        let (late, _) = waited(usize::MAX, StatusCode::SERVICE_UNAVAILABLE, 1).await;
        let refused = waited(usize::MAX, StatusCode::NOT_FOUND, 60).await;

        assert_eq!(recovered, (Ok(()), 2));
        let late = late.unwrap_err();
        assert!(late.contains("not finished within 1s (no broker)"), "{late}");
        assert_eq!(refused, (Err("no broker".to_owned()), 1));
    }

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
