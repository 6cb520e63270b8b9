//! The identity provider: login, codes, tokens, keys.
//!
//! ```text
//! browser ──▶ authorize ──▶ page, button ──▶ redirect with code
//! client ───▶ token ─────▶ grants: codes, refresh tokens ──▶ claims ──▶ keys: RS256
//! client ───▶ discovery, key set
//! gateway ──▶ Identity::check
//! ```
//!
//! - All dates come from the provider's clock: moving it expires codes and tokens.
//! - A code is valid once, for the redirect address it was requested with.
//! - How long refresh tokens live depends on the knobs at the time of the refresh.
//! - The user follows from the seed; keys, codes and refresh tokens do not, so that another run refuses them.
//! - Every map is bounded: a forgotten token is refused like an unknown one.
//!
//! Errors of the setup prevent the start. Requests get an OAuth error or a page, or a knob ends the connection.

mod authorize;
mod claims;
mod discovery;
mod exchanges;
mod faults;
mod grants;
mod keys;
mod oauth_error;
mod page;
mod parameters;
mod pkce;
mod redirect;
mod token;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderMap, header},
    routing::{get, post},
};
use parking_lot::Mutex;

pub use self::exchanges::{AnswerFate, Exchange, ExchangeKind, ExchangeOutcome};
use self::{
    claims::{HashedToken, TokenFacts, User},
    grants::{IssuedGrant, IssuedGrants},
    keys::IdentityKeys,
};
use super::{
    clock::{SECOND, Ticks},
    core::Core,
    journal::Journal,
    knobs::{IdentityKnobs, Latency},
    random::Random,
};

const AUTHORIZE: &str = "/auth/core/connect/authorize";
const TOKEN: &str = "/auth/core/connect/token";
const DISCOVERY: &str = "/auth/core/.well-known/openid-configuration";
const KEY_SET: &str = "/auth/core/.well-known/jwks";

const MAX_BODY_BYTES: usize = 1 << 20;
/// Lifetime of an identity token, which is read at once.
const IDENTITY_SECONDS: u64 = 300;

/// Access tokens issued by this process. Each contains its number, so that no two are equal, even with frozen clocks and a
/// shared key.
static ACCESS_TOKENS: AtomicU64 = AtomicU64::new(0);

/// The identity provider.
#[derive(Debug)]
pub struct IdentityProvider {
    core: Arc<Core>,
    keys: IdentityKeys,
    user: User,
    issued: Arc<Journal<Issued>>,
    exchanges: Arc<Journal<Exchange>>,
    grants: Mutex<IssuedGrants>,
    /// Draws latencies.
    random: Mutex<Random>,
}

/// The caller of an API.
#[derive(Debug, Clone)]
pub struct Caller {
    /// `sub` of the token; the mail of the login for invoicing.
    pub subject: String,
    /// Scopes of the token; empty for invoicing.
    pub scopes: Arc<[String]>,
    /// Number of the chosen company, for invoicing tokens.
    pub invoicing_company: Option<u32>,
}

/// Whether a bearer token is valid.
#[derive(Debug, Clone)]
pub enum TokenStatus {
    /// It is valid.
    Valid(Caller),
    /// It has expired.
    Expired,
    /// It was never issued here, or revoked.
    Unknown,
}

/// A token that was issued.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Issued {
    /// Number of its grant; each login has one.
    pub grant: u64,
    /// `access`, `refresh`, `id`, `code`.
    pub kind: &'static str,
    /// The token.
    pub token: String,
    /// When it was issued.
    pub at: Ticks,
    /// When it expires, by the knobs of that time.
    pub expires: Ticks,
    /// When it was redeemed, rotated out or revoked.
    pub used: Option<Ticks>,
}

impl IdentityProvider {
    pub(super) fn new(core: &Arc<Core>) -> Result<Self, super::Error> {
        /// "wait" in ASCII.
        const PURPOSE: u64 = 0x7761_6974;
        let settings = &core.settings;
        let issued = Arc::new(Journal::new(settings.journal_limit));
        let exchanges = Arc::new(Journal::new(settings.journal_limit));
        Ok(Self {
            core: Arc::clone(core),
            keys: IdentityKeys::new()?,
            user: User::new(core),
            grants: Mutex::new(IssuedGrants::new(Arc::clone(&issued), Arc::clone(&exchanges))?),
            issued,
            exchanges,
            random: Mutex::new(Random::new(settings.world.seed, PURPOSE)),
        })
    }

    /// The status of an access token. Tokens issued here are looked up, not verified.
    pub fn check(&self, bearer: &str, now: Ticks) -> TokenStatus {
        let grants = self.grants.lock();
        match grants.access(bearer) {
            None => TokenStatus::Unknown,
            Some((_, expires)) if now >= expires => TokenStatus::Expired,
            Some((grant, _)) => TokenStatus::Valid(Caller {
                subject: self.user.subject(),
                scopes: Arc::clone(&grant.scopes),
                invoicing_company: None,
            }),
        }
    }

    /// Signs with a new key from now on; with `keep_old` the old one stays in the key set.
    ///
    /// # Errors
    /// No key could be generated.
    pub fn rotate_keys(&self, keep_old: bool) -> Result<(), super::Error> {
        self.keys.rotate(keep_old)
    }

    /// Ends every grant: refresh tokens are refused with `invalid_grant`, access tokens are unknown.
    pub fn revoke_all(&self, now: Ticks) {
        self.grants.lock().end(now, |_| true);
    }

    /// An access token and its refresh token without a login, for tests.
    pub fn grant(&self, scopes: &[&str]) -> (String, String) {
        let now = self.core.clock.now();
        let knobs = self.core.knobs();
        let scopes: Arc<[String]> = scopes.iter().map(|&scope| scope.to_owned()).collect();
        let (grant, refresh) = {
            let mut grants = self.grants.lock();
            let grant = grants.begin(scopes, None, knobs.identity.tenant.clone(), now);
            let refresh = grants.refresh_token(&grant, &knobs.identity, now);
            (grant, refresh)
        };
        let (access, _) = self.issue(&grant, None, grant.tenant.as_deref(), &knobs.identity, now);
        (access, refresh)
    }

    /// Every token that the journal still has, in order.
    pub fn issued(&self) -> Vec<Issued> {
        self.issued.all()
    }

    /// Codes and refresh tokens presented, from number `from` on, as far as the journal still has them: `(number, exchange)`.
    pub fn exchanges(&self, from: u64, limit: usize) -> Vec<(u64, Exchange)> {
        self.exchanges.from(from, limit)
    }

    /// Exchanges so far.
    pub fn exchange_count(&self) -> u64 {
        self.exchanges.count()
    }

    /// Signs and records an access token and an identity token. Must not be called with the grant table locked: signing is slow,
    /// and every API call uses the table.
    fn issue(
        &self,
        grant: &Arc<IssuedGrant>,
        nonce: Option<&str>,
        tenant: Option<&str>,
        knobs: &IdentityKnobs,
        now: Ticks,
    ) -> (String, String) {
        let number = ACCESS_TOKENS.fetch_add(1, Ordering::Relaxed) + 1;
        let facts = |until| TokenFacts {
            number,
            scopes: &grant.scopes,
            tenant,
            login: grant.login,
            from: now,
            until,
        };
        let ends = [knobs.access_seconds, IDENTITY_SECONDS].map(|seconds| whole_seconds(now, seconds));
        let access = self.keys.sign(&self.user.access(facts(ends[0]), knobs.duplicate_id_claim));
        let identity = self.identity(facts(ends[1]), HashedToken::Access(&access), nonce, knobs.bend_nonce);
        self.grants.lock().remember(grant, (&access, ends[0]), (&identity, ends[1]), now);
        (access, identity)
    }

    /// Signs the identity token of a callback. The grant table must not be locked here, either.
    fn issue_callback_token(
        &self,
        grant: &Arc<IssuedGrant>,
        code: &str,
        bend_nonce: bool,
        now: Ticks,
    ) -> String {
        let until = whole_seconds(now, IDENTITY_SECONDS);
        let scopes = &grant.scopes;
        let facts = TokenFacts { number: 0, scopes, tenant: None, login: grant.login, from: now, until };
        let token = self.identity(facts, HashedToken::Code(code), grant.nonce.as_deref(), bend_nonce);
        self.grants.lock().remember_identity(grant, (&token, until), now);
        token
    }

    /// Signs an identity token.
    fn identity(
        &self,
        facts: TokenFacts<'_>,
        beside: HashedToken<'_>,
        nonce: Option<&str>,
        bend: bool,
    ) -> String {
        let nonce = nonce.map(|nonce| if bend { altered(nonce) } else { nonce.to_owned() });
        self.keys.sign(&self.user.identity(facts, beside, nonce.as_deref()))
    }

    fn latency(&self, latency: &Latency) -> Duration {
        latency.sample(&mut self.random.lock())
    }
}

/// Routes under `/auth/core`.
pub(super) fn router(identity: &Arc<IdentityProvider>) -> Router {
    Router::new()
        .route(AUTHORIZE, get(authorize::authorize))
        .route(TOKEN, post(token::token))
        .route(DISCOVERY, get(discovery::discovery))
        .route(KEY_SET, get(discovery::key_set))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::clone(identity))
}

/// The token in an `Authorization` header; the scheme is case-insensitive.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Whether `Content-Type` is this type, with or without parameters.
pub(super) fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    sent.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted)
}

/// A text that differs only in its last character.
fn altered(text: &str) -> String {
    let mut altered = text.to_owned();
    let last = altered.pop();
    altered.push(if last == Some('0') { '1' } else { '0' });
    altered
}

/// This many seconds after the start of the current second, so that `exp` is exactly when the token expires.
fn whole_seconds(now: Ticks, seconds: u64) -> Ticks {
    Ticks(now.seconds().saturating_mul(SECOND)).plus(Duration::from_secs(seconds))
}
