//! The login page of the simulated provider, without a person: its button is pressed by a request, and the browser's way back is
//! followed. A page of any other provider is an error.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use url::Url;

use provider::{
    Provider,
    auth::{grant::Grant, http, login::Login},
};

use super::{callback::Listener, flow::LoginFlow};
use crate::cli::{Result, failure, outside};

/// What the simulated provider takes for a press of its button.
const BUTTON_PARAMETER: (&str, &str) = ("auto", "1");

/// Logs in at `listener`, to which `redirect` leads.
pub(in crate::cli) async fn log_in(
    flow: &LoginFlow<'_>,
    login: Login,
    listener: Listener,
    redirect: &str,
    limit: Duration,
) -> Result<Grant> {
    let address = login.address().clone();
    let receiving = async { flow.receive(login, listener, limit).await.map_err(outside) };
    let pressing = press(flow.provider, &address, redirect, limit);
    let (grant, ()) = Box::pin(async { tokio::try_join!(receiving, pressing) }).await?;
    Ok(grant)
}

/// Presses the button of a login at `address` that comes back to `redirect`.
async fn press(provider: &Provider, address: &Url, redirect: &str, limit: Duration) -> Result {
    let mut address = address.clone();
    address.query_pairs_mut().append_pair(BUTTON_PARAMETER.0, BUTTON_PARAMETER.1);
    // As a browser, and unlike all else, it goes where it is sent.
    let follow = reqwest::redirect::Policy::default();
    // The way back to this machine is the browser's own, whatever hosts the worker allows to connectors.
    let here: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
    let browser = http::builder(&provider.transport)?.redirect(follow).no_proxy();
    let browser = browser.resolve_to_addrs("localhost", &here);
    let browser = http::build(browser.timeout(limit).pool_max_idle_per_host(0))?;
    let answer = browser.get(address).send().await.map_err(|error| outside(error.without_url()))?;
    let (status, end) = (answer.status().as_u16(), answer.url());
    match status {
        200 if end.as_str().starts_with(redirect) => Ok(()),
        // Without its query, which may hold a code.
        200 => {
            let host = end.host_str().unwrap_or_default();
            Err(failure(format!(
                "{host} shows a page and waits for a person: it is not the simulated provider"
            )))
        }
        _ => Err(failure(format!("the login page answers {status}"))),
    }
}
