//! Tokens of one grant, for the requests of one connector.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use provider::auth::{self, Access, Error};

use super::{
    Shared,
    clients::{IssuerKey, login_command},
    view::{Asker, CheckedToken, LocalGrant, View, wait_for},
};

/// A token is not given out when it ends within this long: it has to reach the provider.
const MOMENT_MS: i64 = 500;
/// How often a view that does not change is looked at again while somebody waits: the token in it may have ended.
const LOOK: Duration = Duration::from_secs(1);

/// The tokens of one grant. See [`auth::Tokens`].
pub(super) struct Tokens {
    pub(super) shared: Arc<Shared>,
    pub(super) entry: Arc<LocalGrant>,
    pub(super) asker: Asker,
    /// Whose clock counts.
    pub(super) key: IssuerKey,
}

/// How a token that is shown stands with whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenState {
    /// It may be used.
    Good,
    /// It has been refused, or ends within a moment: another is waited for.
    Waits,
    /// It has ended, and whoever refreshes it may not know.
    Ended,
}

impl Tokens {
    /// Waits for a token; another than `refused`.
    async fn other_than(&self, refused: Option<&Access>, end: Instant) -> Result<Access, Error> {
        let begun = Instant::now();
        let mut view = self.entry.view.subscribe();
        loop {
            let now_ms = self.shared.now_ms(&self.key);
            let look = (Instant::now() + LOOK).min(end);
            let settled = wait_for(&mut view, look, |view| match view {
                View::Good(given) => {
                    !self.asker.may_have(given)
                        || state_of(&given.access, refused, now_ms) == TokenState::Good
                }
                View::Unread | View::Unchecked => false,
                _ => true,
            });
            match settled.await {
                Some(View::Good(given)) if self.asker.may_have(&given) => return Ok(given.access.clone()),
                Some(view) => {
                    if let Some(error) = self.asker.problem(&view) {
                        return Err(error);
                    }
                }
                None => {}
            }
            self.tell_ended(refused);
            if Instant::now() >= end {
                return Err(Error::Pending { grant: self.entry.name.clone(), waited: begun.elapsed() });
            }
        }
    }

    /// Tells its owner of a token that has ended by the clock of here: the owner's may be wrong, and without a token no request
    /// goes out that an API could refuse.
    fn tell_ended(&self, refused: Option<&Access>) {
        let now_ms = self.shared.now_ms(&self.key);
        let given = self.given();
        if let Some(given) = given.filter(|one| state_of(&one.access, refused, now_ms) == TokenState::Ended) {
            self.shared.refuse(&self.entry.name, &given.login.id, given.access.serial);
        }
    }

    /// The token that is shown, if it is for whoever asks.
    fn given(&self) -> Option<Arc<CheckedToken>> {
        match &*self.entry.view.borrow() {
            View::Good(given) if self.asker.may_have(given) => Some(Arc::clone(given)),
            _ => None,
        }
    }
}

fn state_of(access: &Access, refused: Option<&Access>, now_ms: i64) -> TokenState {
    let left = access.expires_ms.map_or(i64::MAX, |end| end.saturating_sub(now_ms));
    let is_refused = refused
        .is_some_and(|one| access.serial <= one.serial && access.header.reveal() == one.header.reveal());
    match left {
        ..=0 => TokenState::Ended,
        left if left <= MOMENT_MS || is_refused => TokenState::Waits,
        _ => TokenState::Good,
    }
}

#[async_trait]
impl auth::Tokens for Tokens {
    async fn token(&self, end: Instant) -> Result<Access, Error> {
        self.other_than(None, end).await
    }

    async fn instead_of(&self, refused: &Access, end: Instant) -> Result<Access, Error> {
        let shown = self.given().filter(|given| given.access.header.reveal() == refused.header.reveal());
        if let Some(given) = shown {
            self.shared.refuse(&self.entry.name, &given.login.id, given.access.serial);
        }
        self.other_than(Some(refused), end).await
    }

    fn remedy(&self) -> Option<String> {
        let (grant, command) = (&self.entry.name, login_command(self.asker.area, &self.asker.connector));
        Some(format!("the grant {grant}: log in as a user who may do this, with `{command}`"))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("grant", &self.entry.name).finish_non_exhaustive()
    }
}

/// What every request is told where no grant can be read.
#[derive(Debug)]
pub(super) struct Without {
    pub(super) grant: String,
    /// Why, where there is a key.
    pub(super) fault: Option<Arc<str>>,
}

impl Without {
    pub(super) fn error(&self) -> Error {
        match &self.fault {
            None => Error::NoKey,
            Some(what) => Error::Setup { grant: self.grant.clone(), what: what.to_string() },
        }
    }
}

#[async_trait]
impl auth::Tokens for Without {
    async fn token(&self, _: Instant) -> Result<Access, Error> {
        Err(self.error())
    }

    async fn instead_of(&self, _: &Access, _: Instant) -> Result<Access, Error> {
        Err(self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(header: &str, serial: u64) -> Access {
        Access { header: header.into(), serial, expires_ms: Some(10_000) }
    }

    #[test]
    fn a_token_that_has_ended_is_told_and_one_that_is_about_to_is_waited_for() {
        let shown = access("Bearer a", 1);
        let at = |now_ms| state_of(&shown, None, now_ms);

        assert_eq!(
            [at(9_000), at(9_600), at(10_000)],
            [TokenState::Good, TokenState::Waits, TokenState::Ended]
        );
        let refused = state_of(&shown, Some(&shown), 9_000);
        assert_eq!(refused, TokenState::Waits);
        assert_eq!(state_of(&shown, Some(&shown), 10_000), TokenState::Ended);
    }

    #[test]
    fn what_is_given_instead_of_a_refused_token_is_another_whatever_its_serial() {
        let refused = access("Bearer a", 57);
        let is_good = |one: &Access| state_of(one, Some(&refused), 0) == TokenState::Good;

        assert!(!is_good(&access("Bearer a", 57)));
        assert!(is_good(&access("Bearer b", 58)));
        assert!(is_good(&access("Bearer b", 1)), "the first of another login");
        assert!(is_good(&access("Bearer a", 58)), "the provider gave it once more");
    }
}
