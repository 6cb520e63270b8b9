//! One login after its address is shown to a person: from what the browser brings back to the grant in the topic.

use std::time::Duration;

use tokio::time::timeout;

use base::retry::ErrorChain;
use provider::{
    Provider,
    auth::{
        Area,
        grant::Grant,
        http::ProviderClock,
        login::{self, CallbackError, Code, Login},
    },
};

use super::{
    callback::Listener,
    keep::{self, Keep},
    page::Page,
};
use crate::worker::grants::grant_name;

/// What a login takes.
pub(in crate::cli) struct Desk<'a> {
    pub(in crate::cli) area: Area,
    pub(in crate::cli) provider: &'a Provider,
    /// Name of the grant.
    pub(in crate::cli) grant: &'a str,
    /// The provider's clock, as far as it is known.
    pub(super) clock: ProviderClock,
    keep: &'a Keep,
}

/// Why there is no grant.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    #[error(transparent)]
    Callback(CallbackError),
    #[error("log in")]
    Login(#[source] login::Error),
    #[error("keep the grant")]
    Keep(#[source] keep::Error),
    #[error("nobody has logged in within {} minutes", limit.as_secs() / 60)]
    Nobody { limit: Duration },
}

impl<'a> Desk<'a> {
    /// For an area of a provider, whose clock may differ by `tolerance`.
    pub(in crate::cli) fn new(
        keep: &'a Keep,
        provider: &'a Provider,
        area: Area,
        tolerance: Duration,
    ) -> Self {
        let grant = grant_name(provider, area);
        Self { area, provider, grant, clock: ProviderClock::new(tolerance), keep }
    }

    /// A login that comes back to this address.
    pub(in crate::cli) fn begin(&self, redirect: &str) -> Result<Login, login::Error> {
        Login::begin(self.provider, self.area, redirect, &self.clock)
    }

    /// Waits for the browser, and shows it how the login went.
    pub(in crate::cli) async fn receive(
        &self,
        login: Login,
        mut listener: Listener,
        limit: Duration,
    ) -> Result<Grant, Error> {
        let arrival = timeout(limit, listener.arrival()).await.map_err(|_| Error::Nobody { limit })?;
        let code = login.accept(&arrival.query);
        let ended = self.finish(login, code).await;
        arrival.show(self.page(&ended));
        listener.close().await;
        ended
    }

    /// Redeems the code and keeps what comes for it.
    pub(in crate::cli) async fn finish(
        &self,
        login: Login,
        code: Result<Code, CallbackError>,
    ) -> Result<Grant, Error> {
        let entered = login.finish(code.map_err(Error::Callback)?).await.map_err(Error::Login)?;
        let kept = self.keep.log_in(self.grant, self.area, self.provider, &self.clock, &entered).await;
        kept.map_err(Error::Keep)
    }

    fn page(&self, ended: &Result<Grant, Error>) -> Page {
        match ended {
            Ok(grant) => Page::done(self.grant, grant.login.shown.as_deref()),
            Err(Error::Callback(CallbackError::NotTrusted)) => Page::not_trusted(),
            Err(Error::Callback(error @ CallbackError::Refused { .. })) => Page::refused(&error.to_string()),
            Err(error) => Page::failed(&ErrorChain(error).to_string()),
        }
    }
}
