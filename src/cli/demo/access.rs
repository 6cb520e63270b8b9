//! The login of the demo: what `tributary auth login` does, with a client that presses the provider's button in place of a person.

use std::time::Duration;

use tokio::time::timeout;

use kafka::Admin;
use provider::{Provider, auth::Area};

use crate::{
    cli::{
        Result,
        auth::{
            button,
            callback::{Listener, PATH, Place},
            desk::Desk,
            keep::Keep,
        },
        table::{harmless, moment},
    },
    config::Worker,
};

/// Logs in at a provider, over sockets, and keeps the grant where the worker finds it. What came of it, in a line.
pub(super) async fn log_in(
    worker: &Worker,
    admin: &Admin,
    provider: &Provider,
    area: Area,
    limit: Duration,
) -> Result<String> {
    let keep = Keep::create(worker, admin).await?;
    let desk = Desk::new(&keep, provider, area, worker.clock_skew_max);
    let listener = Listener::bind(&Place { port: 0, path: PATH.to_owned() }).await?;
    let login = desk.begin(listener.redirect())?;
    let redirect = listener.redirect().to_owned();
    let logging_in = button::log_in(&desk, login, listener, &redirect, limit);
    let grant = Box::pin(timeout(limit, logging_in)).await??;

    let scopes = grant.tokens.as_ref().map(|tokens| tokens.scopes.join(" ")).unwrap_or_default();
    let until = match grant.ends_ms(provider.oauth.login_lifetime, provider.oauth.idle_lifetime) {
        (Some(end), _) => format!("until {}", moment(end)),
        (None, _) => "without an end".to_owned(),
    };
    let who = harmless(grant.login.who());
    Ok(format!("{who} is logged in for {area} ({}), {until}", harmless(&scopes)))
}
