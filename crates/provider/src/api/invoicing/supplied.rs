//! A token of the invoicing API that a setting supplies.
//!
//! Nothing here can renew it, so the first refusal is final: later calls fail without a request. A new token comes with a new
//! [`SuppliedToken`].

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::time::Instant;

use base::secret::Secret;

use super::with_scheme;
use crate::auth::{self, Access, Tokens};

/// The setting.
const SETTING: &str = "invoicing.login.token";

/// `invoicing.login.token`.
#[derive(Debug)]
pub struct SuppliedToken {
    header: Secret,
    is_refused: AtomicBool,
}

impl SuppliedToken {
    /// The token may begin with `Bearer`, as the provider writes it, or not.
    pub fn new(token: Secret) -> Self {
        Self { header: with_scheme(token), is_refused: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Tokens for SuppliedToken {
    async fn token(&self, _: Instant) -> Result<Access, auth::Error> {
        if self.is_refused.load(Ordering::Relaxed) {
            return Err(auth::Error::Supplied { setting: SETTING });
        }
        Ok(Access { header: self.header.clone(), serial: 1, expires_ms: None })
    }

    async fn instead_of(&self, _: &Access, _: Instant) -> Result<Access, auth::Error> {
        self.is_refused.store(true, Ordering::Relaxed);
        Err(auth::Error::Supplied { setting: SETTING })
    }
}

#[cfg(test)]
mod tests {
    use base::retry::Retry;

    use super::*;

    #[tokio::test]
    async fn a_refused_token_is_not_sent_again() {
        let (supplied, end) = (SuppliedToken::new(Secret::new("hunter2")), Instant::now());
        let access = supplied.token(end).await.unwrap();
        assert_eq!(access.header.reveal(), "Bearer hunter2");

        let refused = supplied.instead_of(&access, end).await.unwrap_err();
        let later = supplied.token(end).await.unwrap_err();

        for error in [refused, later] {
            let reported = error.to_string();
            assert!(reported.contains(SETTING) && !reported.contains("hunter2"), "{reported}");
            assert_eq!(error.retry(), Retry::Never);
        }
    }
}
