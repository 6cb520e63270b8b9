//! One grant as one connector uses it: its tokens for requests, and why it cannot be used.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use base::retry::ErrorChain;
use provider::auth::{self, Access, Error};

use super::{
    GrantContext,
    clients::{GrantClient, IssuerKey},
    store::wall_ms,
    view::{CheckedToken, GrantView, LocalGrant},
};

/// A token that expires within this time is not used: the request has to reach the provider.
const EXPIRY_MARGIN_MS: i64 = 500;
/// An unchanged view is checked this often while a request waits, because its token may have expired.
const VIEW_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Limit for reading the topic to its end when a task restarts after a login.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(10);

/// The tokens of one grant, for the requests of one connector. See [`auth::Tokens`].
#[derive(Debug)]
pub(super) struct ConnectorTokens {
    /// `None` without `grant.encryption.key`: then the view never changes.
    pub(super) shared: Option<Arc<GrantContext>>,
    pub(super) local: Arc<LocalGrant>,
    pub(super) client: GrantClient,
    /// The issuer whose clock counts.
    pub(super) key: IssuerKey,
}

/// Whether a request can use the current token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenState {
    /// It may be used.
    Usable,
    /// It was refused or is about to expire: wait for another one.
    Expiring,
    /// It has expired; report it to the owner of the grant.
    Expired,
}

impl ConnectorTokens {
    /// Waits for a usable token that is not `refused`.
    async fn other_than(&self, refused: Option<&Access>, end: Instant) -> Result<Access, Error> {
        let started = Instant::now();
        let mut views = self.local.view.subscribe();
        loop {
            let now_ms = self.now_ms();
            let settled = views.wait_for(|view| match view {
                GrantView::Ready(token) => {
                    !self.client.may_have(token)
                        || state_of(&token.access, refused, now_ms) == TokenState::Usable
                }
                GrantView::Unread | GrantView::Unchecked => false,
                _ => true,
            });
            let check = (Instant::now() + VIEW_CHECK_INTERVAL).min(end);
            let settled = timeout_at(check, settled).await.map(|view| view.map(|view| view.clone()));
            match settled {
                Ok(Ok(GrantView::Ready(token))) if self.client.may_have(&token) => {
                    return Ok(token.access.clone());
                }
                Ok(Ok(view)) => {
                    if let Some(error) = self.client.problem(&view) {
                        return Err(error);
                    }
                }
                // The sender lives as long as the grant held here.
                Ok(Err(_)) | Err(_) => {}
            }
            self.report_ended(refused);
            if Instant::now() >= end {
                return Err(Error::Pending { grant: self.local.name.clone(), waited: started.elapsed() });
            }
        }
    }

    /// Reports a token that has expired by this worker's clock: the owner's clock may be wrong, and without a token no API can
    /// refuse one.
    fn report_ended(&self, refused: Option<&Access>) {
        let now_ms = self.now_ms();
        self.refuse_if(|access| state_of(access, refused, now_ms) == TokenState::Expired);
    }

    /// Reports the shown token, if it is for this connector and `is_so`.
    fn refuse_if(&self, is_so: impl Fn(&Access) -> bool) {
        let Some(shared) = &self.shared else { return };
        let token = self.token_shown().filter(|token| is_so(&token.access));
        if let Some(token) = token {
            shared.refuse(&self.local, &token.login.id, token.access.serial);
        }
    }

    /// The shown token, if it is for this connector.
    fn token_shown(&self) -> Option<Arc<CheckedToken>> {
        match &*self.local.view.borrow() {
            GrantView::Ready(token) if self.client.may_have(token) => Some(Arc::clone(token)),
            _ => None,
        }
    }

    /// The provider's time, in milliseconds since 1970.
    fn now_ms(&self) -> i64 {
        self.shared.as_ref().map_or_else(wall_ms, |shared| shared.issuers.now_ms(&self.key))
    }
}

fn state_of(access: &Access, refused: Option<&Access>, now_ms: i64) -> TokenState {
    let left = access.expires_ms.map_or(i64::MAX, |end| end.saturating_sub(now_ms));
    let is_refused = refused
        .is_some_and(|one| access.serial <= one.serial && access.header.reveal() == one.header.reveal());
    match left {
        ..=0 => TokenState::Expired,
        left if left <= EXPIRY_MARGIN_MS || is_refused => TokenState::Expiring,
        _ => TokenState::Usable,
    }
}

#[async_trait]
impl auth::Tokens for ConnectorTokens {
    async fn token(&self, end: Instant) -> Result<Access, Error> {
        self.other_than(None, end).await
    }

    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, Error> {
        self.refuse_if(|access| access.header.reveal() == refused.header.reveal());
        self.other_than(Some(refused), end).await
    }

    fn remedy(&self) -> Option<String> {
        let (grant, command) = (&self.local.name, self.client.login_command());
        Some(format!("the grant {grant}: log in as a user who may do this, with `{command}`"))
    }
}

/// Whether a connector can use a grant, and a signal for changes.
#[derive(Debug)]
pub struct GrantWatch {
    tokens: ConnectorTokens,
    view: watch::Receiver<GrantView>,
}

impl GrantWatch {
    pub(super) fn new(tokens: ConnectorTokens) -> Self {
        let view = tokens.local.view.subscribe();
        Self { tokens, view }
    }

    /// Why the grant cannot be used now, if so.
    pub fn problem(&mut self) -> Option<auth::Error> {
        let view = self.view.borrow_and_update().clone();
        // The topic may be ahead of the view: a login that is already in the topic solves the problem.
        let shared = self.tokens.shared.as_ref();
        let grant = shared.and_then(|shared| shared.store.grant(&self.tokens.local.name).ok().flatten());
        match grant {
            Some(grant) if view.is_resolved_by(&grant) => None,
            _ => self.tokens.client.problem(&view),
        }
    }

    /// Reads the topic to its current end, for a limited time. A task that restarts after a login learns of it from another topic,
    /// and must not see the grant as it was before.
    pub async fn catch_up(&self) {
        let Some(shared) = &self.tokens.shared else { return };
        if let Err(error) = shared.store.table().read_to_end(CATCH_UP_LIMIT).await {
            let grant = &self.tokens.local.name;
            tracing::warn!(grant, error = %ErrorChain(&error), "could not read the grants topic to its end; the grant may be stale");
        }
    }

    /// Whether the grant has been read.
    pub fn is_known(&self) -> bool {
        !matches!(&*self.view.borrow(), GrantView::Unread)
    }

    /// Waits for a change.
    pub async fn changed(&mut self) {
        // The sender lives as long as the grant held here.
        self.view.changed().await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(header: &str, serial: u64) -> Access {
        Access { header: header.into(), serial, expires_ms: Some(10_000) }
    }

    #[test]
    fn expired_token_is_reported_and_an_expiring_one_waits() {
        let shown = access("Bearer a", 1);
        let at = |now_ms| state_of(&shown, None, now_ms);

        assert_eq!(
            [at(9_000), at(9_600), at(10_000)],
            [TokenState::Usable, TokenState::Expiring, TokenState::Expired]
        );
        let refused = state_of(&shown, Some(&shown), 9_000);
        assert_eq!(refused, TokenState::Expiring);
        assert_eq!(state_of(&shown, Some(&shown), 10_000), TokenState::Expired);
    }

    #[test]
    fn replacement_of_a_refused_token_is_another_token() {
        let refused = access("Bearer a", 57);
        let is_good = |one: &Access| state_of(one, Some(&refused), 0) == TokenState::Usable;

        assert!(!is_good(&access("Bearer a", 57)));
        assert!(is_good(&access("Bearer b", 58)));
        assert!(is_good(&access("Bearer b", 1)), "the first token of another login");
        assert!(is_good(&access("Bearer a", 58)), "the provider gave the same token again");
    }
}
