//! The tenant of a grant: the set of resources that the person chose at the login, as the access token names it.
//!
//! The first token that names a tenant binds the grant to it; a grant of an earlier version is bound by the token it has. From then on
//! a token for another tenant is refused. A login whose token names none is refused too, because it could be for any; a refresh is of
//! the same login, so its token is kept. Only a login that asks for it changes the tenant; a logout keeps it.

use serde::{Deserialize, Serialize};

use super::Grant;
use crate::auth::token;

/// A new token is not for the tenant of its grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the new token {}, but the grant is bound to the tenant {bound}", named(found.as_deref()))]
pub struct TenantMismatch {
    /// Tenant of the grant.
    pub bound: String,
    /// Tenant of the token; `None` if it names none.
    pub found: Option<String>,
}

/// Why a grant is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// The provider rejects the refresh token with this error code.
    #[error("{0}")]
    Refused(String),
    /// A refresh returned a token that is not for the tenant of the grant.
    #[error(transparent)]
    Tenant(TenantMismatch),
}

impl Grant {
    /// The tenant that the grant is bound to.
    #[must_use]
    pub fn tenant(&self) -> Option<String> {
        let stored = || token::unverified_tenant(self.tokens()?.access.reveal());
        self.login.tenant.clone().or_else(stored)
    }

    /// Checks the tenant of a new login, if the grant is bound to one.
    ///
    /// # Errors
    /// The token names another tenant or none.
    pub fn check_tenant(&self, found: Option<&str>) -> Result<(), TenantMismatch> {
        match self.tenant() {
            Some(bound) if found != Some(&*bound) => {
                Err(TenantMismatch { bound, found: found.map(str::to_owned) })
            }
            _ => Ok(()),
        }
    }
}

fn named(tenant: Option<&str>) -> String {
    tenant.map_or_else(|| "names no tenant".to_owned(), |tenant| format!("is for the tenant {tenant}"))
}
