//! A login from the browser's callback to the grant: in the topic, or only in this process.

use std::time::Duration;

use tokio::time::timeout;

use base::retry::ErrorChain;
use provider::{
    Provider,
    auth::{
        Area,
        grant::Grant,
        http::ProviderClock,
        login::{self, CallbackCode, CallbackError, PendingLogin},
    },
};

use super::{
    callback::CallbackListener,
    grants_topic::{self, GrantsTopic},
    page::LoginPage,
};
use crate::logins::grant_name;

pub(in crate::cli) struct LoginFlow<'a> {
    pub(in crate::cli) area: Area,
    pub(in crate::cli) provider: &'a Provider,
    /// Name of the grant.
    pub(in crate::cli) grant: &'a str,
    pub(super) clock: ProviderClock,
    /// Whether the login may change the tenant of the grant.
    pub(super) replace: bool,
    /// Where the grant is stored; `None` keeps it in this process.
    grants: Option<&'a GrantsTopic>,
}

/// Why a login brought no grant.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    #[error(transparent)]
    Callback(CallbackError),
    #[error("log in")]
    Login(#[source] login::Error),
    #[error("store the grant")]
    Store(#[source] grants_topic::Error),
    #[error("no login within {} minutes; run the command again", limit.as_secs() / 60)]
    TimedOut { limit: Duration },
}

impl<'a> LoginFlow<'a> {
    /// `tolerance` is how much the provider's clock may differ.
    pub(in crate::cli) fn new(
        grants: Option<&'a GrantsTopic>,
        provider: &'a Provider,
        area: Area,
        tolerance: Duration,
    ) -> Self {
        let grant = grant_name(provider, area);
        Self { area, provider, grant, clock: ProviderClock::new(tolerance), replace: false, grants }
    }

    /// Starts a login with this redirect address.
    pub(in crate::cli) fn begin(&self, redirect: &str) -> Result<PendingLogin, login::Error> {
        PendingLogin::begin(self.provider, self.area, redirect, &self.clock)
    }

    /// Waits for the callback, finishes the login and shows the result in the browser.
    pub(in crate::cli) async fn receive(
        &self,
        login: PendingLogin,
        mut listener: CallbackListener,
        limit: Duration,
    ) -> Result<Grant, Error> {
        let callback = timeout(limit, listener.callback()).await.map_err(|_| Error::TimedOut { limit })?;
        let code = login.accept(&callback.query);
        let ended = self.finish(login, code).await;
        callback.show(self.page(&ended));
        listener.close().await;
        ended
    }

    /// Exchanges the code for tokens, and stores the grant if there is a topic.
    pub(in crate::cli) async fn finish(
        &self,
        login: PendingLogin,
        code: Result<CallbackCode, CallbackError>,
    ) -> Result<Grant, Error> {
        let entered = login.finish(code.map_err(Error::Callback)?).await.map_err(Error::Login)?;
        let Self { area, provider, grant, clock, replace, grants } = self;
        let kept = match grants {
            Some(grants) => grants.log_in(grant, *area, provider, clock, &entered, *replace).await,
            None => grants_topic::new_grant(grant, *area, provider, clock, &entered),
        };
        kept.map_err(Error::Store)
    }

    fn page(&self, ended: &Result<Grant, Error>) -> LoginPage {
        match ended {
            Ok(grant) => LoginPage::done(self.grants.map(|_| self.grant), grant.login.shown.as_deref()),
            Err(Error::Callback(CallbackError::NotTrusted)) => LoginPage::NOT_TRUSTED,
            Err(Error::Callback(error @ CallbackError::Refused { .. })) => {
                LoginPage::refused(&error.to_string())
            }
            Err(error) => LoginPage::failed(&ErrorChain(error).to_string()),
        }
    }
}
