//! Grants for tests.

use std::time::Duration;

use super::{Grant, GrantLogin, IssuedTokens, RefreshCause, RefreshIntent, RefreshOrigin};
use crate::auth::Area;

/// Noon of the first day.
pub const AT_MS: i64 = 43_200_000;

/// A new login, serial 1.
pub fn ready(name: &str) -> Grant {
    Grant::log_in(None, name, Area::Accounting, login("first"), issued(1)).unwrap()
}

/// A login with this id.
pub fn login(id: &str) -> GrantLogin {
    GrantLogin {
        id: id.to_owned(),
        at_ms: AT_MS,
        subject: "0e5c9c3a".to_owned(),
        shown: Some("person@example.com".to_owned()),
        client_id: "client".to_owned(),
        auth_url: "https://login.example.com/".to_owned(),
        origins: vec!["https://api.example.com".to_owned()],
        tenant: None,
    }
}

/// Token set `number`: `access-1`, `refresh-1`.
pub fn issued(number: u32) -> IssuedTokens {
    IssuedTokens {
        access: format!("access-{number}").into(),
        expires_in: Some(Duration::from_secs(3_600)),
        refresh: Some(format!("refresh-{number}").into()),
        scopes: None,
        at_ms: AT_MS,
    }
}

/// An intent to refresh, with this id.
pub fn intent(id: &str) -> RefreshIntent {
    RefreshIntent {
        id: id.to_owned(),
        cause: RefreshCause::Due,
        origin: RefreshOrigin { worker: format!("worker of {id}"), begun_ms: AT_MS },
        window_ms: 5_000,
        withdrawn: false,
    }
}
