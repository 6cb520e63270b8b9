//! The state of each grant on this worker, for metrics, health and people.

use serde::{Serialize, Serializer};
use serde_json::Value;

use base::metrics::live::{self, ScrapePage};
use model::Moment;
use provider::auth::{Area, grant::Grant};

use super::{
    GrantContext, Grants,
    view::{GrantView, LocalGrant, command},
};

/// One grant in the answer of `/health`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GrantStatus {
    name: String,
    state: &'static str,
    /// The area of the login, if there is one.
    area: Option<&'static str>,
    /// The tenant that it is bound to, if known.
    tenant: Option<String>,
    serial: Option<u64>,
    access_token_ends: Option<Millis>,
    refresh_token_ends: Option<Millis>,
    login_ends: Option<Millis>,
    /// When the refresh in progress started, by the clock of its worker.
    refreshing_since: Option<Millis>,
    /// Why it cannot be used, for people.
    problem: Option<String>,
}

/// Milliseconds since 1970, by the provider's clock unless noted. Serialized as ISO 8601.
#[derive(Debug, Clone, Copy)]
struct Millis(i64);

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Moment::from_micros(self.0.saturating_mul(1_000)))
    }
}

impl Grants {
    /// The grants in `/health`; `None` if no connector names one.
    pub fn report(&self) -> Option<Value> {
        let statuses = self.statuses();
        if statuses.is_empty() { None } else { serde_json::to_value(statuses).ok() }
    }

    /// Adds the grants to a page of metrics.
    pub fn measure(&self, page: &mut ScrapePage, now_ms: i64) {
        for one in self.statuses() {
            page.put(&live::GRANT_STATE, &[&one.name, one.state], 1.0);
            let ends = [
                ("access", one.access_token_ends),
                ("refresh", one.refresh_token_ends),
                ("login", one.login_ends),
            ];
            for (token, end) in ends {
                if let Some(Millis(end)) = end {
                    page.put(&live::TOKEN_EXPIRY, &[&one.name, token], end as f64 / 1_000.0);
                }
            }
            let open = one.refreshing_since.map_or(0, |since| now_ms.saturating_sub(since.0).max(0));
            page.put(&live::GRANT_INTENT, &[&one.name], open as f64 / 1_000.0);
        }
    }

    /// The status of every grant that a connector names, by name.
    fn statuses(&self) -> Vec<GrantStatus> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let grants: Vec<_> = shared.grants.lock().values().cloned().collect();
        grants.iter().filter_map(|local| shared.status(local)).collect()
    }
}

impl GrantContext {
    fn status(&self, local: &LocalGrant) -> Option<GrantStatus> {
        let name = &local.name;
        let clients = self.clients.borrow().clone();
        // Leave out a grant that no connector names any more.
        let first = clients.naming(name).first()?.area;
        let view = local.view.borrow().clone();
        let grant = self.store.grant(name).ok().flatten();
        let area = grant.as_ref().map(|grant| grant.area);
        let tokens = grant.as_ref().and_then(Grant::tokens);
        let ends = grant.as_ref().map(|grant| clients.ends_ms(grant));
        let (login_ends, refresh_token_ends) = ends.unwrap_or_default();
        let intent = grant.as_ref().and_then(Grant::intent);
        // A missing grant is no problem before a task needs it: its name may be a setting's default.
        let problem = match view {
            GrantView::Absent => None,
            _ => view.problem(name, &command(self, name, area.unwrap_or(first))),
        };
        Some(GrantStatus {
            name: name.clone(),
            state: view.word(),
            area: area.map(Area::name),
            tenant: grant.as_ref().and_then(|grant| grant.login.tenant.clone()),
            serial: grant.as_ref().map(|grant| grant.serial),
            access_token_ends: tokens.map(|tokens| Millis(tokens.access_expires_ms)),
            refresh_token_ends: refresh_token_ends.map(Millis),
            login_ends: login_ends.map(Millis),
            refreshing_since: intent.map(|intent| Millis(intent.origin.begun_ms)),
            problem: problem.map(|error| error.to_string()),
        })
    }
}
