//! The task that keeps one grant alive, on the worker that owns its partition of the work topic.
//!
//! It runs on every worker, because the wait after an intent counts from when this worker first saw it. It acts only while this
//! worker holds the lease of the partition. [`plan`](super::plan) decides the next step, [`refresh`](super::refresh) executes it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use kafka::{Lease, murmur2};
use provider::auth::grant::{Grant, RefreshCause};

use super::{
    GrantContext,
    clients::IssuerKey,
    issuer::Issuer,
    plan::{NextStep, PlanInput, RefreshHistory, next_step},
    refresh::{AttemptEnd, RefreshAttempt},
    view::{GrantView, LocalGrant, command},
};

/// Waits between attempts that failed for a transient reason.
const ATTEMPT_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(500), longest: Duration::from_secs(60), total: None };
/// Wait before a client that the provider refused is tried again, unless a configuration changes. Shorter if the access token
/// expires sooner.
const CLIENT_RETRY_DELAY: Duration = Duration::from_secs(300);
/// The plan is computed at least this often, because the machine's clock may have been set.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Wait before a lapsed lease of an assigned partition is checked again.
const LEASE_RECHECK_DELAY: Duration = Duration::from_millis(500);
/// Remaining lifetime of a login from which the worker warns.
const EXPIRY_WARNING_TIME: Duration = Duration::from_secs(7 * 86_400);
/// Interval between two such warnings.
const EXPIRY_WARNING_INTERVAL: Duration = Duration::from_secs(86_400);
/// Limit of one attempt to reseal a grant.
const RESEAL_LIMIT: Duration = Duration::from_secs(30);

/// Refreshes one grant until canceled. A refresh in progress is finished first, because this process may hold the only answer.
pub(super) async fn run(shared: Arc<GrantContext>, local: Arc<LocalGrant>, cancel: CancellationToken) {
    let seed = u64::from(murmur2(local.name.as_bytes()));
    let mut refresher = Refresher {
        shared,
        local,
        memory: RefreshHistory::default(),
        backoff: Backoff::new(ATTEMPT_BACKOFF, seed),
        refused: BTreeSet::new(),
        reminded: None,
    };
    refresher.run(&cancel).await;
}

struct Refresher {
    shared: Arc<GrantContext>,
    local: Arc<LocalGrant>,
    memory: RefreshHistory,
    backoff: Backoff,
    /// OAuth clients that the provider refused, while others are left to try.
    refused: BTreeSet<IssuerKey>,
    /// Time of the last warning that the login ends.
    reminded: Option<Instant>,
}

impl Refresher {
    async fn run(&mut self, cancel: &CancellationToken) {
        let table = self.shared.store.table().clone();
        let (mut changes, mut clients) = (table.changes(), self.shared.clients.subscribe());
        let mut owned = self.shared.ownership.membership.owned();
        if cancel.run_until_cancelled(table.caught_up()).await.is_none() {
            return;
        }
        loop {
            changes.borrow_and_update();
            clients.borrow_and_update();
            owned.borrow_and_update();
            let next_check = Instant::now() + CHECK_INTERVAL;
            let at = match self.next() {
                NextStep::Idle => next_check,
                NextStep::WaitUntil(at) => at.min(next_check),
                // Start no refresh after cancellation: it would have to be finished.
                _ if cancel.is_cancelled() => return,
                next => {
                    self.act(next).await;
                    continue;
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = changes.changed() => {}
                _ = clients.changed() => {
                    self.memory.not_before = None;
                    self.refused.clear();
                }
                _ = owned.changed() => {}
                () = sleep_until(at) => {}
            }
        }
    }

    /// The next step, if the grant is this worker's to refresh.
    fn next(&mut self) -> NextStep {
        let now = Instant::now();
        let grant = self.grant();
        self.memory.observe(grant.as_ref(), now);
        let Some(grant) = grant else { return NextStep::Idle };
        if !self.shared.is_ours() {
            return NextStep::Idle;
        }
        match self.shared.ownership.lease(&self.local.name) {
            None => return NextStep::Idle,
            // The lease comes back without a notification.
            Some(lease) if !lease() => return NextStep::WaitUntil(now + LEASE_RECHECK_DELAY),
            Some(_) => {}
        }
        let Some((_, issuer)) = self.issuer(&grant) else { return NextStep::Idle };
        self.remind(&grant, issuer.now_ms(), now);
        let known = PlanInput {
            is_sealed_before: self.shared.store.is_sealed_before(&self.local.name),
            refused: self.refused_serial(&grant),
            memory: &self.memory,
            now,
            provider_ms: issuer.now_ms(),
            chance: chance(&grant),
        };
        next_step(&grant, &known)
    }

    /// The grant in the topic, if it can be opened.
    fn grant(&self) -> Option<Grant> {
        self.shared.store.grant(&self.local.name).ok().flatten()
    }

    async fn act(&mut self, next: NextStep) {
        let Some(lease) = self.shared.ownership.lease(&self.local.name) else { return };
        if next == NextStep::Reseal {
            return self.reseal(lease).await;
        }
        let Some(grant) = self.grant() else { return };
        let Some((key, issuer)) = self.issuer(&grant) else { return };
        let was_refused = matches!(next, NextStep::Refresh { cause: RefreshCause::Refused, .. });
        let under_way = self.shared.under_way.token();
        let name = &self.local.name;
        let attempt = RefreshAttempt { shared: &self.shared, name, issuer: &*issuer, lease };
        let ended = attempt.run(next).await;
        drop(under_way);
        // An attempt that presented nothing does not count against an API that refuses too often.
        if was_refused && !matches!(ended, AttemptEnd::Retry(_)) {
            self.memory.refused(Instant::now());
        }
        match ended {
            AttemptEnd::Settled => {
                self.backoff.reset();
                self.memory.not_before = None;
                self.memory.outcome_known();
                self.refused.clear();
                self.pace(&grant);
            }
            AttemptEnd::OutcomeUnknown { intent, started } => self.memory.outcome_unknown(intent, started),
            AttemptEnd::Retry(retry) => self.pause(retry),
            AttemptEnd::ClientRefused(code) => {
                self.memory.outcome_known();
                self.refuse_client(&grant, key, code, issuer.now_ms());
            }
        }
    }

    /// Encrypts the grant with the current key.
    async fn reseal(&mut self, lease: Lease) {
        let name = &self.local.name;
        let mut writer = self.shared.store.writer(name, lease);
        match writer.write(Instant::now() + RESEAL_LIMIT, |grant| grant.cloned()).await {
            Ok(_) => tracing::info!(grant = name, "resealed the grant with the new key"),
            Err(error) => {
                tracing::warn!(grant = name, error = %ErrorChain(&error), "could not reseal the grant with the new key yet; retrying");
                self.pause(Retry::Later);
            }
        }
    }

    /// Records the lifetime of new tokens.
    fn pace(&mut self, before: &Grant) {
        let Some(grant) = self.grant() else { return };
        let is_next = grant.login.id == before.login.id && grant.serial > before.serial;
        let Some(tokens) = grant.tokens().filter(|_| is_next) else { return };
        let life = tokens.access_expires_ms.saturating_sub(tokens.access_since_ms);
        self.memory.refreshed(Instant::now(), Duration::from_millis(u64::try_from(life).unwrap_or_default()));
    }

    /// The provider refused a connector's client. Another connector may have a valid secret; the refusal is shown only when all
    /// were refused and the access token has expired or was refused, because it may be resolved before.
    fn refuse_client(&mut self, grant: &Grant, key: IssuerKey, code: String, provider_ms: i64) {
        self.refused.insert(key);
        let now = Instant::now();
        if self.shared.clients.borrow().of_login_except(grant, &self.refused).is_some() {
            self.memory.not_before = None;
            return;
        }
        self.refused.clear();
        let left = grant.tokens().map_or(0, |tokens| tokens.access_expires_ms.saturating_sub(provider_ms));
        let is_refused = self.refused_serial(grant) == Some(grant.serial);
        let (wait, is_shown) = after_refusal(left, is_refused);
        self.memory.not_before = Some(now + wait);
        if is_shown {
            let (login, serial) = (grant.login.id.clone(), grant.serial);
            self.local.view.send_replace(GrantView::ClientRefused { code, login, serial });
        }
    }

    /// The serial of this login whose token was refused last.
    fn refused_serial(&self, grant: &Grant) -> Option<u64> {
        self.shared.store.table().read(|table| {
            let refused = table.refused(&self.local.name)?;
            (refused.login == grant.login.id).then_some(refused.serial)
        })
    }

    fn pause(&mut self, retry: Retry) {
        let retry = if retry == Retry::Never { Retry::Later } else { retry };
        self.memory.not_before = self.backoff.next_wait(retry).map(|wait| Instant::now() + wait);
    }

    /// The identity service of a connector whose client is the login's and was not refused, and its key.
    fn issuer(&self, grant: &Grant) -> Option<(IssuerKey, Arc<dyn Issuer>)> {
        let clients = self.shared.clients.borrow().clone();
        let (key, client) = clients.of_login_except(grant, &self.refused)?;
        // The view reports the error.
        let issuer = self.shared.issuers.issuer(client, &self.shared.clients).ok()?;
        Some((key, issuer))
    }

    /// Warns once a day that a login ends soon.
    fn remind(&mut self, grant: &Grant, provider_ms: i64, now: Instant) {
        let clients = self.shared.clients.borrow().clone();
        let (login, refresh) = clients.ends_ms(grant);
        let Some(end) = login.or(refresh) else { return };
        let left = end.saturating_sub(provider_ms);
        let is_reminded = self.reminded.is_some_and(|last| now < last + EXPIRY_WARNING_INTERVAL);
        if is_reminded || u128::try_from(left).is_ok_and(|left| left > EXPIRY_WARNING_TIME.as_millis()) {
            return;
        }
        self.reminded = Some(now);
        let (days, hours) = (left / 86_400_000, left / 3_600_000 % 24);
        let run = command(&self.shared, &grant.name, grant.area);
        tracing::warn!(
            grant = grant.name,
            days,
            hours,
            run,
            "the login ends soon, and only a person can renew it"
        );
    }
}

/// Wait before a refused client is tried again, and whether the refusal is shown: only if the access token has expired or an API
/// refused it.
fn after_refusal(left_ms: i64, is_refused: bool) -> (Duration, bool) {
    match u64::try_from(left_ms).map(Duration::from_millis) {
        Ok(left) if !is_refused && !left.is_zero() => {
            (left.max(LEASE_RECHECK_DELAY).min(CLIENT_RETRY_DELAY), false)
        }
        _ => (CLIENT_RETRY_DELAY, true),
    }
}

/// Jitter from 0 to 1, constant for one set of tokens.
fn chance(grant: &Grant) -> f64 {
    let drawn = murmur2(format!("{}/{}/{}", grant.name, grant.login.id, grant.serial).as_bytes());
    f64::from(drawn) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_client_is_shown_when_the_access_token_expires() {
        assert_eq!(after_refusal(360_000, false), (CLIENT_RETRY_DELAY, false));
        assert_eq!(
            after_refusal(60_000, false),
            (Duration::from_secs(60), false),
            "and tried when that ends"
        );
        assert_eq!(after_refusal(1, false), (LEASE_RECHECK_DELAY, false));
        assert_eq!(after_refusal(0, false), (CLIENT_RETRY_DELAY, true));
        assert_eq!(after_refusal(-1, false), (CLIENT_RETRY_DELAY, true));
        assert_eq!(after_refusal(3_000_000, true), (CLIENT_RETRY_DELAY, true));
    }
}
