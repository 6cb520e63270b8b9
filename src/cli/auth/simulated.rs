//! Login at the simulated provider without a person: a request presses the button of its page, and the client follows the redirects.
//! A page of any other provider is an error.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use url::Url;

use provider::{
    Provider,
    auth::{grant::Grant, http, login::PendingLogin},
};

use super::{callback::CallbackListener, flow::LoginFlow};
use crate::cli::{Result, failure, outside};

/// Query parameter that presses the simulated provider's button.
const BUTTON_PARAMETER: (&str, &str) = ("auto", "1");

/// Logs in; `redirect` is the address of `listener`.
pub(in crate::cli) async fn log_in(
    flow: &LoginFlow<'_>,
    login: PendingLogin,
    listener: CallbackListener,
    redirect: &str,
    limit: Duration,
) -> Result<Grant> {
    let address = login.address().clone();
    let receiving = async { flow.receive(login, listener, limit).await.map_err(outside) };
    let pressing = press(flow.provider, &address, redirect, limit);
    let (grant, ()) = Box::pin(async { tokio::try_join!(receiving, pressing) }).await?;
    Ok(grant)
}

/// Presses the button at `address` and follows the redirects to `redirect`.
async fn press(provider: &Provider, address: &Url, redirect: &str, limit: Duration) -> Result {
    let mut address = address.clone();
    address.query_pairs_mut().append_pair(BUTTON_PARAMETER.0, BUTTON_PARAMETER.1);
    // Follows redirects like a browser, unlike all other clients here.
    let follow = reqwest::redirect::Policy::default();
    // The browser may always reach this machine, whatever hosts the worker allows to connectors.
    let here: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
    let browser = http::builder(&provider.transport)?.redirect(follow).no_proxy();
    let browser = browser.resolve_to_addrs("localhost", &here);
    let browser = http::build(browser.timeout(limit).pool_max_idle_per_host(0))?;
    let answer = browser.get(address).send().await.map_err(|error| outside(error.without_url()))?;
    let (status, end) = (answer.status().as_u16(), answer.url());
    match status {
        200 if end.as_str().starts_with(redirect) => Ok(()),
        // Without the query, which may contain a code.
        200 => {
            let host = end.host_str().unwrap_or_default();
            Err(failure(format!(
                "{host} shows a page that waits for a person, so it is not the simulated provider"
            )))
        }
        _ => Err(failure(format!("the login page answers {status}"))),
    }
}
