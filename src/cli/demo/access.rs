//! The login of the demo: what `tributary auth login` does, with a client that presses the provider's button in place of a person.

use std::{fmt, time::Duration};

use tokio::time::timeout;

use kafka::Admin;
use model::Moment;
use provider::{
    Provider,
    auth::{Area, grant::Grant},
};

use crate::{
    cli::{
        Failure,
        auth::{
            button,
            callback::{Listener, PATH, Place},
            desk::Desk,
            keep::Keep,
        },
        outside,
        table::harmless,
    },
    config::Worker,
};

/// A login that stands in the grants topic.
pub(super) struct Access {
    grant: Grant,
    /// When it ends for good, in milliseconds since 1970.
    ends_ms: Option<i64>,
}

impl Access {
    /// Logs in at a provider, over sockets, and keeps the grant where the worker finds it.
    pub(super) async fn log_in(
        worker: &Worker,
        admin: &Admin,
        provider: &Provider,
        area: Area,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let keep = Keep::create(worker, admin).await?;
        let desk = Desk::new(&keep, provider, area, worker.clock_skew_max);
        let place = Place { port: 0, path: PATH.to_owned() };
        let listener = Listener::bind(&place).await.map_err(outside)?;
        let login = desk.begin(listener.redirect()).map_err(outside)?;
        let (address, redirect) = (login.address().clone(), listener.redirect().to_owned());
        let receiving = async { desk.receive(login, listener, limit).await.map_err(outside) };
        let pressing = button::press(provider, &address, &redirect, limit);
        let (grant, ()) = Box::pin(timeout(limit, async { tokio::try_join!(receiving, pressing) }))
            .await
            .map_err(outside)??;
        let (ends_ms, _) = grant.ends_ms(provider.oauth.login_lifetime, provider.oauth.idle_lifetime);
        Ok(Self { grant, ends_ms })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes = self.grant.tokens.as_ref().map(|tokens| tokens.scopes.join(" ")).unwrap_or_default();
        let who = harmless(self.grant.login.who());
        write!(f, "{who} is logged in for {} ({})", self.grant.area, harmless(&scopes))?;
        match self.ends_ms {
            Some(end) => write!(f, ", until {}", Moment::from_micros(end.saturating_mul(1_000))),
            None => write!(f, ", without an end"),
        }
    }
}
