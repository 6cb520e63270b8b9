//! Grants and whether their codes, refresh tokens and access tokens are valid.
//!
//! ```text
//! login ──▶ code ──redeem──▶ grant ──▶ access token
//!                              └────▶ refresh token ──refresh──▶ the next one, or the same
//! ```
//!
//! - The first attempt to redeem a code uses it up, even if it is refused.
//! - At most one refresh token of a grant is valid; the others are remembered, so that reuse is noticed.
//! - When a grant ends, all its tokens become invalid, including one that is being signed.
//! - The newest entries are kept; a forgotten token is refused like an unknown one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    Exchange, ExchangeOutcome, Issued,
    authorize::AuthorizationRequest,
    exchanges::{ExchangeKind, PresentedToken},
    oauth_error::OAuthError,
    parameters::Parameters,
    pkce,
};
use crate::{
    Error,
    clock::Ticks,
    journal::Journal,
    knobs::{IdentityKnobs, RefreshLife},
    random::Random,
    recent::Recent,
};

/// Entries of each kind that are kept.
const MAX_REMEMBERED: usize = 65_536;

/// A login and everything issued for it.
#[derive(Debug)]
pub(super) struct IssuedGrant {
    /// Numbered from 0.
    pub(super) number: u64,
    /// Granted scopes.
    pub(super) scopes: Arc<[String]>,
    /// Time of the login.
    pub(super) login: Ticks,
    /// For the identity token.
    pub(super) nonce: Option<String>,
    /// The knob at the time of the login.
    pub(super) tenant: Option<String>,
    ended: AtomicBool,
}

/// The result of an exchange.
#[derive(Debug)]
pub(super) struct Exchanged {
    /// The grant to issue tokens for.
    pub(super) grant: Arc<IssuedGrant>,
    /// The refresh token to use next; `None` without `offline_access`.
    pub(super) refresh: Option<String>,
    /// Whether it is new.
    pub(super) rotated: bool,
}

#[derive(Debug)]
struct DeniedExchange {
    outcome: ExchangeOutcome,
    refusal: OAuthError,
}

#[derive(Debug)]
pub(super) struct IssuedGrants {
    /// Draws codes and refresh tokens.
    secrets: Random,
    issued: Arc<Journal<Issued>>,
    exchanges: Arc<Journal<Exchange>>,
    logins: u64,
    codes: Recent<(IssuedSecret, AuthorizationRequest)>,
    refreshes: Recent<IssuedSecret>,
    accesses: Recent<IssuedSecret>,
}

/// A code, refresh token or access token.
#[derive(Debug)]
struct IssuedSecret {
    grant: Arc<IssuedGrant>,
    /// When it was issued; of a refresh token that is not rotated, when it was last used.
    since: Ticks,
    /// By the knobs of the time of issue.
    expires: Ticks,
    /// Whether it was redeemed or rotated out.
    used: bool,
    /// Its number in the journal.
    number: u64,
}

impl DeniedExchange {
    const fn new(outcome: ExchangeOutcome, description: &'static str) -> Self {
        Self { outcome, refusal: OAuthError::grant(description) }
    }
}

impl IssuedGrant {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl IssuedGrants {
    /// An empty table. Secrets come from the machine and not from the seed, so that a code or token of another run is not valid
    /// here by accident.
    pub(super) fn new(
        issued: Arc<Journal<Issued>>,
        exchanges: Arc<Journal<Exchange>>,
    ) -> Result<Self, Error> {
        let mut seed = [0; 16];
        aws_lc_rs::rand::fill(&mut seed).map_err(|_| Error::Key("the random number generator".to_owned()))?;
        let seed = u128::from_be_bytes(seed);
        Ok(Self {
            secrets: Random::new((seed >> 64) as u64, seed as u64),
            issued,
            exchanges,
            logins: 0,
            codes: Recent::new(MAX_REMEMBERED),
            refreshes: Recent::new(MAX_REMEMBERED),
            accesses: Recent::new(MAX_REMEMBERED),
        })
    }

    /// Creates a grant and its code.
    pub(super) fn grant(
        &mut self,
        login: AuthorizationRequest,
        seconds: u64,
        now: Ticks,
    ) -> (Arc<IssuedGrant>, String) {
        let nonce = Some(login.nonce.clone());
        let grant = self.begin(Arc::clone(&login.scopes), nonce, login.tenant.clone(), now);
        let code = self.secrets.guid().simple();
        let issued = self.record(&grant, "code", &code, now, now.plus(Duration::from_secs(seconds)));
        self.codes.insert(&code, (issued, login));
        (grant, code)
    }

    /// Creates a grant without a code.
    pub(super) fn begin(
        &mut self,
        scopes: Arc<[String]>,
        nonce: Option<String>,
        tenant: Option<String>,
        now: Ticks,
    ) -> Arc<IssuedGrant> {
        let number = self.logins;
        self.logins += 1;
        Arc::new(IssuedGrant { number, scopes, login: now, nonce, tenant, ended: AtomicBool::new(false) })
    }

    /// Exchanges a code or refresh token; also returns the number of its journal entry.
    pub(super) fn exchange(
        &mut self,
        presented: PresentedToken<'_>,
        form: &Parameters,
        knobs: &IdentityKnobs,
        now: Ticks,
    ) -> (u64, Result<Exchanged, OAuthError>) {
        let token = presented.token;
        let (grant, exchanged) = match presented.kind {
            ExchangeKind::Code => {
                let grant = self.codes.get(token).map(|(code, _)| code.grant.number);
                (grant, self.redeem(token, form, knobs, now))
            }
            ExchangeKind::Refresh => {
                let grant = self.refreshes.get(token).map(|refresh| refresh.grant.number);
                (grant, self.refresh(token, knobs, now))
            }
        };
        let outcome = match &exchanged {
            Ok(exchanged) if presented.kind == ExchangeKind::Refresh && exchanged.rotated => {
                ExchangeOutcome::Rotated
            }
            Ok(_) => ExchangeOutcome::Granted,
            Err(denied) => denied.outcome,
        };
        let number = self.exchanges.push(presented.decided(now, grant, outcome));
        (number, exchanged.map_err(|denied| denied.refusal))
    }

    fn redeem(
        &mut self,
        code: &str,
        form: &Parameters,
        knobs: &IdentityKnobs,
        now: Ticks,
    ) -> Result<Exchanged, DeniedExchange> {
        let unknown = DeniedExchange::new(ExchangeOutcome::Unknown, "the code is unknown");
        let (entry, login) = self.codes.get_mut(code).ok_or(unknown)?;
        if entry.used {
            return Err(DeniedExchange::new(ExchangeOutcome::Reused, "the code has been used"));
        }
        entry.used = true;
        self.issued.update(entry.number, |issued| issued.used = issued.used.or(Some(now)));
        if entry.grant.has_ended() {
            return Err(DeniedExchange::new(ExchangeOutcome::Revoked, "the grant has been revoked"));
        }
        if now >= entry.expires {
            return Err(DeniedExchange::new(ExchangeOutcome::Expired, "the code has expired"));
        }
        let redirected = match form.get("redirect_uri") {
            None => Err(OAuthError::redirect("redirect_uri is missing")),
            Some(redirect) if redirect != login.redirect.text() => {
                Err(OAuthError::redirect("redirect_uri is not the one of the authorization request"))
            }
            Some(_) => Ok(()),
        };
        let verify = |()| pkce::verify(login.challenge.as_ref(), form.get("code_verifier"), knobs.pkce);
        redirected
            .and_then(verify)
            .map_err(|refusal| DeniedExchange { outcome: ExchangeOutcome::Refused, refusal })?;
        let grant = Arc::clone(&entry.grant);
        let offline = grant.scopes.iter().any(|scope| scope == "offline_access");
        let refresh = offline.then(|| self.refresh_token(&grant, knobs, now));
        Ok(Exchanged { grant, refresh, rotated: true })
    }

    fn refresh(
        &mut self,
        token: &str,
        knobs: &IdentityKnobs,
        now: Ticks,
    ) -> Result<Exchanged, DeniedExchange> {
        let unknown = DeniedExchange::new(ExchangeOutcome::Unknown, "the refresh token is unknown");
        let entry = self.refreshes.get_mut(token).ok_or(unknown)?;
        let grant = Arc::clone(&entry.grant);
        // Checked before the end of the grant, so that the journal shows the reuse.
        if entry.used {
            if knobs.reuse_ends_grant {
                self.end(now, |other| other.number == grant.number);
            }
            return Err(DeniedExchange::new(ExchangeOutcome::Reused, "the refresh token has been used"));
        }
        if grant.has_ended() {
            return Err(DeniedExchange::new(ExchangeOutcome::Revoked, "the grant has been revoked"));
        }
        if now >= end_of_refresh(knobs, grant.login, entry.since) {
            return Err(DeniedExchange::new(ExchangeOutcome::Expired, "the refresh token has expired"));
        }
        if knobs.refresh == RefreshLife::Absolute && !knobs.rotate_absolute {
            entry.since = now;
            return Ok(Exchanged { grant, refresh: Some(token.to_owned()), rotated: false });
        }
        entry.used = true;
        self.issued.update(entry.number, |issued| issued.used = Some(now));
        let next = self.refresh_token(&grant, knobs, now);
        Ok(Exchanged { grant, refresh: Some(next), rotated: true })
    }

    pub(super) fn refresh_token(
        &mut self,
        grant: &Arc<IssuedGrant>,
        knobs: &IdentityKnobs,
        now: Ticks,
    ) -> String {
        let token = self.secrets.guid().simple();
        let issued = self.record(grant, "refresh", &token, now, end_of_refresh(knobs, grant.login, now));
        self.refreshes.insert(&token, issued);
        token
    }

    /// Adds an access token and the identity token issued with it.
    pub(super) fn remember(
        &mut self,
        grant: &Arc<IssuedGrant>,
        (access, expires): (&str, Ticks),
        identity: (&str, Ticks),
        now: Ticks,
    ) {
        let issued = self.record(grant, "access", access, now, expires);
        self.accesses.insert(access, issued);
        self.remember_identity(grant, identity, now);
    }

    /// Adds an identity token, which no API accepts.
    pub(super) fn remember_identity(
        &self,
        grant: &Arc<IssuedGrant>,
        (token, expires): (&str, Ticks),
        now: Ticks,
    ) {
        self.record(grant, "id", token, now, expires);
    }

    /// The grant and the expiry of an access token that was issued here and not revoked.
    pub(super) fn access(&self, token: &str) -> Option<(&IssuedGrant, Ticks)> {
        let access = self.accesses.get(token)?;
        (!access.grant.has_ended()).then_some((&access.grant, access.expires))
    }

    pub(super) fn end(&self, now: Ticks, fits: impl Fn(&IssuedGrant) -> bool) {
        let codes = self.codes.values().map(|(code, _)| code);
        let all = codes.chain(self.refreshes.values()).chain(self.accesses.values());
        for secret in all.filter(|secret| fits(&secret.grant)) {
            secret.grant.ended.store(true, Ordering::Relaxed);
            self.issued.update(secret.number, |issued| issued.used = issued.used.or(Some(now)));
        }
    }

    /// Adds a token to the journal.
    fn record(
        &self,
        grant: &Arc<IssuedGrant>,
        kind: &'static str,
        token: &str,
        at: Ticks,
        expires: Ticks,
    ) -> IssuedSecret {
        // The grant ended while its token was being signed.
        let used = grant.has_ended().then_some(at);
        let issued = Issued { grant: grant.number, kind, token: token.to_owned(), at, expires, used };
        let number = self.issued.push(issued);
        IssuedSecret { grant: Arc::clone(grant), since: at, expires, used: false, number }
    }
}

/// Expiry by the current knobs, which may have changed since the token was issued.
fn end_of_refresh(knobs: &IdentityKnobs, login: Ticks, since: Ticks) -> Ticks {
    match knobs.refresh {
        RefreshLife::Absolute => login.plus(Duration::from_secs(knobs.absolute_seconds)),
        RefreshLife::Sliding => since.plus(Duration::from_secs(knobs.sliding_seconds)),
    }
}
