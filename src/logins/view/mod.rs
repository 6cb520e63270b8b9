//! The state of one grant on this worker: decrypted, checked, and whether it can be used.
//!
//! ```text
//! table ─▶ opened ─▶ its access token checked, once per serial ─▶ GrantView ─▶ requests of the login's connectors
//!                       │ has ended, or its key is not known
//!                       └─▶ refused: its owner refreshes
//! ```
//!
//! - A token is used only after it is in the topic and this worker has checked it. Only connectors with the client and the identity
//!   service that it was given to may use it, for an origin that its login covers.
//! - If the next token cannot be checked, because the provider's keys are unavailable or the settings to reach it have changed, the
//!   previous one of the same login stays in use until it expires.
//! - A token set is identified by login and serial: serials restart at 1 with a login over an unreadable record.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use base::{
    retry::{Backoff, BackoffPolicy, ErrorChain, Retry},
    secret::Secret,
};
use model::Moment;
use provider::{
    Provider,
    auth::{
        Access, Area, Error,
        grant::{Grant, GrantLogin, GrantState, LossReason, RefreshOrigin},
        seal,
    },
};

use super::{
    GrantContext, RefusalReport,
    clients::{GrantClient, is_login_of, login_command},
    issuer::TokenFault,
};

/// Backoff between attempts to fetch the provider's keys.
const KEYS_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(500), longest: Duration::from_secs(30), total: None };
/// After this many consecutive stale tokens the grant is shown as unusable.
const STALE_LIMIT: u32 = 3;
/// An unchanged grant is checked again this often, because references of a connector may resolve to other values.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What this worker knows of a grant.
#[derive(Debug, Clone)]
pub(super) enum GrantView {
    /// The topic has not been read yet.
    Unread,
    /// `grant.encryption.key` is not set.
    NoKey,
    /// There is no login.
    Absent,
    /// The grant was logged out.
    LoggedOut,
    /// The provider refuses its refresh token, or refreshed it for another tenant.
    Lost { reason: String },
    /// It is encrypted with a key that this worker does not have.
    Unreadable { kid: String },
    /// The topic belongs to another group.
    Foreign { group: String },
    /// The provider's token fails the check, or no connector has the login's client.
    Distrusted { rule: String, login: String },
    /// The OAuth client was refused when this worker refreshed, and the access token is no longer usable.
    ClientRefused { code: String, login: String, serial: u64 },
    /// The identity service cannot be reached with the current settings.
    Unusable { what: String },
    /// Its token is not checked yet.
    Unchecked,
    /// It may be used until the token expires.
    Ready(Arc<CheckedToken>),
}

/// A token that may be given out, and to which connectors.
#[derive(Debug)]
pub(super) struct CheckedToken {
    pub(super) access: Access,
    pub(super) area: Area,
    pub(super) login: GrantLogin,
}

impl GrantClient {
    /// Why it cannot use the grant, if that lasts for more than moments.
    pub(super) fn problem(&self, view: &GrantView) -> Option<Error> {
        let grant = self.grant().to_owned();
        match view {
            GrantView::Ready(token) if !self.is_of(token) => {
                Some(Error::Distrusted { grant, rule: not_theirs(self.area) })
            }
            GrantView::Ready(token) if !self.may_have(token) => {
                Some(Error::Elsewhere { grant, command: self.login_command() })
            }
            view => view.problem(&grant, &self.login_command()),
        }
    }

    /// Whether it may present a token: one that its identity service gave to its client, for this area, and whose login covers the
    /// origin of its `provider.base.url`.
    pub(super) fn may_have(&self, token: &CheckedToken) -> bool {
        let Provider { base_url, transport, .. } = &*self.provider;
        self.is_of(token) && token.login.may_go_to(base_url, &transport.hosts)
    }

    /// Whether its identity service gave the token to its client, for this area.
    fn is_of(&self, token: &CheckedToken) -> bool {
        self.area == token.area && is_login_of(&self.provider, &token.login)
    }
}

impl GrantView {
    /// Why the grant cannot be used, if that lasts for more than moments.
    pub(super) fn problem(&self, grant: &str, command: &str) -> Option<Error> {
        let (grant, command) = (grant.to_owned(), command.to_owned());
        Some(match self {
            Self::Unread | Self::Unchecked | Self::Ready(_) => return None,
            Self::NoKey => Error::NoKey,
            Self::Absent => Error::Absent { grant, command },
            Self::LoggedOut => Error::LoggedOut { grant, command },
            Self::Lost { reason } => Error::Lost { grant, reason: reason.clone(), command },
            Self::Unreadable { kid } => Error::Unreadable { grant, key: kid.clone() },
            Self::Foreign { group } => Error::Foreign { group: group.clone() },
            Self::Distrusted { rule, .. } => Error::Distrusted { grant, rule: rule.clone() },
            Self::Unusable { what } => Error::Setup { grant, what: what.clone() },
            Self::ClientRefused { code, .. } => Error::Client { grant, code: code.clone() },
        })
    }

    /// Whether a new login or token set has resolved this problem.
    pub(super) fn is_resolved_by(&self, grant: &Grant) -> bool {
        match self {
            Self::Absent | Self::LoggedOut | Self::Lost { .. } => {
                matches!(grant.state, GrantState::Ready { .. } | GrantState::Refreshing { .. })
            }
            Self::ClientRefused { login, serial, .. } => grant.login.id != *login || grant.serial > *serial,
            Self::Distrusted { login, .. } => grant.login.id != *login,
            _ => false,
        }
    }

    /// One word for metrics and people.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::NoKey => "no_key",
            Self::Absent => "absent",
            Self::LoggedOut => "logged_out",
            Self::Lost { .. } => "lost",
            Self::Unreadable { .. } => "unreadable",
            Self::Foreign { .. } => "foreign",
            Self::Distrusted { .. } => "distrusted",
            Self::ClientRefused { .. } => "client_refused",
            Self::Unusable { .. } => "unusable",
            Self::Unchecked => "unchecked",
            Self::Ready(_) => "ready",
        }
    }
}

/// One grant on this worker.
#[derive(Debug)]
pub(super) struct LocalGrant {
    pub(super) name: String,
    pub(super) view: watch::Sender<GrantView>,
    /// The last refusal that this worker has reported to the owner.
    pub(super) reported: Mutex<Option<RefusalReport>>,
}

impl LocalGrant {
    pub(super) fn new(name: &str, view: GrantView) -> Self {
        Self { name: name.to_owned(), view: watch::Sender::new(view), reported: Mutex::default() }
    }
}

/// Keeps the view of one grant up to date, until cancelled.
pub(super) async fn run(shared: Arc<GrantContext>, local: Arc<LocalGrant>, cancel: CancellationToken) {
    let mut viewer = ViewTask { shared, local, checked: None, stale: None };
    cancel.run_until_cancelled(viewer.run()).await;
}

/// Login and serial: one set of tokens.
type TokenId = (String, u64);

struct ViewTask {
    shared: Arc<GrantContext>,
    local: Arc<LocalGrant>,
    /// The token that was checked last, and the outcome.
    checked: Option<(TokenId, GrantView)>,
    /// The last token that was too old, too new, or signed with an unknown key, and how many in a row there were of its login.
    stale: Option<(TokenId, u32)>,
}

impl ViewTask {
    /// Counts a stale token. Returns whether it differs from the last one, and how many there were in a row.
    fn count_stale(&mut self, token: TokenId) -> (bool, u32) {
        let before = self.stale.take().filter(|((login, _), _)| *login == token.0);
        let is_news = before.as_ref().is_none_or(|(last, _)| *last != token);
        let in_a_row = before.map_or(0, |(_, in_a_row)| in_a_row) + u32::from(is_news);
        self.stale = Some((token, in_a_row));
        (is_news, in_a_row)
    }

    async fn run(&mut self) {
        let table = self.shared.store.table().clone();
        let (mut changes, mut clients) = (table.changes(), self.shared.clients.subscribe());
        table.caught_up().await;
        let mut backoff = Backoff::new(KEYS_BACKOFF, 7);
        loop {
            changes.borrow_and_update();
            clients.borrow_and_update();
            let again = match self.update().await {
                Ok(()) => {
                    backoff.reset();
                    RECHECK_INTERVAL
                }
                Err(wait) => backoff.next_wait(wait).unwrap_or(RECHECK_INTERVAL),
            };
            tokio::select! {
                _ = changes.changed() => {}
                _ = clients.changed() => self.forget(),
                () = sleep(again) => {}
            }
        }
    }

    /// Shows the grant as it is now. `Err` says when to retry.
    async fn update(&mut self) -> Result<(), Retry> {
        // In this order: a grant that was written after another group took over the topic is not shown.
        let view = match (self.shared.store.grant(&self.local.name), self.shared.foreign()) {
            (_, Some(group)) => GrantView::Foreign { group },
            (Err(error), None) => unreadable(error),
            (Ok(None), None) => GrantView::Absent,
            (Ok(Some(grant)), None) => match &grant.state {
                GrantState::LoggedOut { .. } => GrantView::LoggedOut,
                GrantState::Lost { origin, reason, .. } => {
                    GrantView::Lost { reason: lost(origin.as_ref(), reason) }
                }
                GrantState::Ready { .. } | GrantState::Refreshing { .. } => return self.check(&grant).await,
            },
        };
        self.show(view);
        Ok(())
    }

    /// Checks the access token, unless that is done, and shows the grant.
    async fn check(&mut self, grant: &Grant) -> Result<(), Retry> {
        let Some(tokens) = grant.tokens() else { return Ok(()) };
        let (login, serial) = (&grant.login.id, grant.serial);
        let id = (login.clone(), serial);
        if let Some((_, view)) = self.checked.as_ref().filter(|(checked, _)| *checked == id) {
            self.show(view.clone());
            return Ok(());
        }
        let clients = self.shared.clients.borrow().clone();
        let Some(client) = clients.of_login(grant) else {
            self.show(GrantView::Distrusted { rule: not_theirs(grant.area), login: login.clone() });
            return Ok(());
        };
        let issuer = match self.shared.issuers.issuer(client, &self.shared.clients) {
            Ok(issuer) => issuer,
            // A file may be missing for a moment, while it is replaced.
            Err(error) => {
                tracing::warn!(grant = grant.name, error = %ErrorChain(&error), "cannot reach the identity service with the current settings; retrying");
                self.show_unless_good(login, GrantView::Unusable { what: ErrorChain(&error).to_string() });
                return Err(Retry::Later);
            }
        };
        // Fetching the keys may take a while, and the problem shown until now is resolved.
        let is_resolved = self.local.view.borrow().is_resolved_by(grant);
        if is_resolved {
            self.show(GrantView::Unchecked);
        }
        let view = match issuer.check(&tokens.access).await {
            Ok(expires) => {
                let end = expires.unwrap_or(tokens.access_expires_ms).min(tokens.access_expires_ms);
                let header = Secret::new(format!("Bearer {}", tokens.access.reveal()));
                let access = Access { header, serial, expires_ms: Some(end) };
                GrantView::Ready(Arc::new(CheckedToken {
                    access,
                    area: grant.area,
                    login: grant.login.clone(),
                }))
            }
            Err(TokenFault::Distrusted(rule)) => {
                tracing::error!(
                    grant = grant.name,
                    serial,
                    rule,
                    "the provider gave a token that fails the check"
                );
                GrantView::Distrusted { rule, login: login.clone() }
            }
            Err(TokenFault::Stale(rule)) => {
                let (is_news, in_a_row) = self.count_stale(id);
                if is_news {
                    tracing::warn!(
                        grant = grant.name,
                        serial,
                        rule,
                        "a token cannot be used; asking the grant's owner for another"
                    );
                }
                if in_a_row >= STALE_LIMIT {
                    self.show(GrantView::Unusable {
                        what: format!("each of the last {STALE_LIMIT} tokens failed the check: {rule}"),
                    });
                } else {
                    self.show_unless_good(login, GrantView::Unchecked);
                }
                // The owner refreshes it; if the next one is no better, the owner waits between refreshes.
                self.shared.refuse(&self.local, login, serial);
                return Ok(());
            }
            Err(TokenFault::Keys { source, retry }) => {
                tracing::warn!(grant = grant.name, error = %ErrorChain(&*source), "could not fetch the provider's keys; retrying");
                self.show_unless_good(login, GrantView::Unchecked);
                return Err(if retry == Retry::Never { Retry::Later } else { retry });
            }
        };
        self.stale = None;
        self.checked = Some((id, view.clone()));
        self.show(view);
        Ok(())
    }

    /// Shows why the current token cannot be used, unless an earlier one of the same login is in use, which stays.
    fn show_unless_good(&self, login: &str, view: GrantView) {
        let is_good =
            matches!(&*self.local.view.borrow(), GrantView::Ready(token) if token.login.id == login);
        if !is_good {
            self.show(view);
        }
    }

    /// The client or the settings to reach the provider have changed: drop the earlier findings.
    fn forget(&mut self) {
        self.checked = None;
        self.local.view.send_if_modified(|shown| {
            let was_refused = matches!(shown, GrantView::ClientRefused { .. });
            if was_refused {
                *shown = GrantView::Unchecked;
            }
            was_refused
        });
    }

    fn show(&self, view: GrantView) {
        self.local.view.send_if_modified(|shown| {
            let is_other = !shown.covers(&view);
            if is_other {
                *shown = view;
            }
            is_other
        });
    }
}

impl GrantView {
    /// Whether `other` would show nothing new.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ready(one), Self::Ready(other)) => {
                (one.login.id == other.login.id) && one.access.serial == other.access.serial
            }
            // Stays until there is a new set of tokens, or another client.
            (Self::ClientRefused { login, serial, .. }, Self::Ready(other)) => {
                *login == other.login.id && *serial >= other.access.serial
            }
            (one, other) => format!("{one:?}") == format!("{other:?}"),
        }
    }
}

fn unreadable(error: seal::Error) -> GrantView {
    match error {
        seal::Error::UnknownKey { kid } => GrantView::Unreadable { kid },
        // A later version can read it; a login would overwrite it.
        error @ seal::Error::Form { .. } => GrantView::Unusable { what: error.to_string() },
        error => GrantView::Lost { reason: format!("its record cannot be read: {error}") },
    }
}

/// Says that the grant belongs to another client. Holds no value of the configuration, since status and health show it.
fn not_theirs(area: Area) -> String {
    format!(
        "the login was made with another oauth.client.id or provider.auth.url, or for another area than this connector's: set \
         {area}.oauth.grant to a separate name, or correct those settings and log in again"
    )
}

/// How a grant was lost, for people.
pub(super) fn lost(origin: Option<&RefreshOrigin>, reason: &LossReason) -> String {
    match (reason, origin) {
        (LossReason::Tenant(mismatch), _) => mismatch.to_string(),
        (LossReason::Refused(code), None) => format!("the provider refuses its refresh token ({code})"),
        (LossReason::Refused(code), Some(RefreshOrigin { worker, begun_ms })) => {
            let started = Moment::from_micros(begun_ms.saturating_mul(1_000));
            format!(
                "the refresh started {started} by {worker} never ended, and the provider refuses the stored token ({code})"
            )
        }
    }
}

/// The command that logs in for a grant, for the first connector that names it.
pub(super) fn command(shared: &GrantContext, grant: &str, area: Area) -> String {
    let clients = shared.clients.borrow();
    let client = clients.naming(grant).iter().find(|client| client.area == area);
    client.map_or_else(|| login_command(area, "NAME"), GrantClient::login_command)
}

#[cfg(test)]
mod tests;
