//! How the grants of this worker stand, for metrics, health and people.

use serde_json::{Value, json};

use base::metrics::live::{self, Page};
use model::Moment;
use provider::auth::{Area, grant::Grant};

use super::{Grants, view::View};

/// How one grant stands on this worker.
#[derive(Debug, Clone)]
pub struct GrantStatus {
    /// Its name.
    pub name: String,
    /// One word.
    pub state: &'static str,
    /// What it is for, where somebody has logged in.
    pub area: Option<Area>,
    /// The set of tokens.
    pub serial: Option<u64>,
    /// When the access token ends, in milliseconds since 1970 by the provider's clock.
    pub access_ends_ms: Option<i64>,
    /// When the refresh token ends.
    pub refresh_ends_ms: Option<i64>,
    /// When the login ends for good.
    pub login_ends_ms: Option<i64>,
    /// Since when a refresh is under way, in milliseconds since 1970 by the clock of whoever began it.
    pub intent_since_ms: Option<i64>,
    /// What keeps it from being used, for people.
    pub problem: Option<String>,
}

impl Grants {
    /// How each stands, by name.
    pub fn statuses(&self) -> Vec<GrantStatus> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let entries: Vec<_> = shared.entries().values().cloned().collect();
        let clients = shared.clients.borrow().clone();
        let named = |name: &str| clients.naming(name).first().map(|client| client.area);
        let statuses = entries.into_iter().filter_map(|entry| {
            // One that nobody names any more.
            let fallback = named(&entry.name)?;
            let view = entry.view.borrow().clone();
            let grant = shared.store.grant(&entry.name).ok().flatten();
            let area = grant.as_ref().map(|grant| grant.area);
            let tokens = grant.as_ref().and_then(|grant| grant.tokens.as_ref());
            let ends = grant.as_ref().filter(|grant| grant.tokens.is_some()).and_then(|grant| {
                let client = clients.of_login(&grant.name, grant.area, &grant.login)?;
                let oauth = &client.provider.oauth;
                Some(grant.ends_ms(oauth.login_lifetime, oauth.idle_lifetime))
            });
            let (login_ends_ms, refresh_ends_ms) = ends.unwrap_or_default();
            let intent = grant.as_ref().and_then(Grant::intent);
            let command = super::view::command(shared, &entry.name, area.unwrap_or(fallback));
            Some(GrantStatus {
                state: view.word(),
                area,
                serial: grant.as_ref().map(|grant| grant.serial),
                access_ends_ms: tokens.map(|tokens| tokens.access_expires_ms),
                refresh_ends_ms,
                login_ends_ms,
                intent_since_ms: intent.map(|intent| intent.origin.begun_ms),
                problem: problem(&view, &entry.name, &command),
                name: entry.name.clone(),
            })
        });
        statuses.collect()
    }

    /// The part of `/health` that is about grants; `None` where no connector names one.
    pub fn report(&self) -> Option<Value> {
        let statuses = self.statuses();
        if statuses.is_empty() {
            return None;
        }
        let moment =
            |at_ms: Option<i64>| at_ms.map(|at| Moment::from_micros(at.saturating_mul(1_000)).to_string());
        let one = |one: &GrantStatus| {
            json!({
                "name": one.name,
                "state": one.state,
                "area": one.area.map(Area::name),
                "serial": one.serial,
                "accessTokenEnds": moment(one.access_ends_ms),
                "refreshTokenEnds": moment(one.refresh_ends_ms),
                "loginEnds": moment(one.login_ends_ms),
                "refreshingSince": moment(one.intent_since_ms),
                "problem": one.problem,
            })
        };
        Some(statuses.iter().map(one).collect())
    }

    /// Puts them on a page of metrics.
    pub fn measure(&self, page: &mut Page, now_ms: i64) {
        for one in self.statuses() {
            page.put(&live::GRANT_STATE, &[&one.name, one.state], 1.0);
            let ends = [
                ("access", one.access_ends_ms),
                ("refresh", one.refresh_ends_ms),
                ("login", one.login_ends_ms),
            ];
            for (token, end) in ends {
                if let Some(end) = end {
                    page.put(&live::TOKEN_EXPIRY, &[&one.name, token], end as f64 / 1_000.0);
                }
            }
            let open = one.intent_since_ms.map_or(0, |since| now_ms.saturating_sub(since).max(0));
            page.put(&live::GRANT_INTENT, &[&one.name], open as f64 / 1_000.0);
        }
    }
}

/// A name that is only a setting's default, and that nobody has logged in for, is no problem before a task needs it.
fn problem(view: &View, grant: &str, command: &str) -> Option<String> {
    if matches!(view, View::Absent) {
        return None;
    }
    view.problem(grant, command).map(|error| error.to_string())
}
