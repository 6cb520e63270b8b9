//! The echo: before a hook is effective, its receiver must answer a GET with the GUID in it.
//!
//! The answer must be 2xx with exactly that text, without cookies, within the time limit. By the document the receiver is
//! asked after the POST has been answered, that is, once the answer's body has been handed to the connection.

use std::time::Duration;

use axum::http::header;
use tokio::time::timeout;
use url::Url;

use super::InvoicingService;
use crate::deliveries;

/// Requests the echo of a receiver, once it has its turn.
pub(super) async fn ask(invoicing: &InvoicingService, receiver: &Url, echo: &str) -> Result<(), String> {
    // The semaphore is never closed; if it were, the echo would still be requested.
    let _turn = invoicing.echoes.acquire().await.ok();
    let limit = Duration::from_millis(invoicing.core.knobs().delivery.time_limit);
    let mut url = receiver.clone();
    url.set_query(Some(&format!("echo={echo}")));
    let answered = timeout(limit, exchange(&invoicing.deliveries.client(), url, echo)).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

async fn exchange(client: &reqwest::Client, url: Url, echo: &str) -> Result<(), String> {
    let broken = |error: reqwest::Error| format!("no answer: {}", deliveries::cause(&error));
    let mut answer = client.get(url).send().await.map_err(broken)?;
    if !answer.status().is_success() {
        return Err(format!("the answer has status {}", answer.status().as_u16()));
    }
    if answer.headers().contains_key(header::SET_COOKIE) {
        return Err("the answer has cookies".to_owned());
    }
    let wrong = || "the answer's body is not the GUID".to_owned();
    let mut rest = echo.as_bytes();
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        rest = rest.strip_prefix(&*chunk).ok_or_else(wrong)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(wrong()) }
}
