//! The identity provider: login, codes, tokens, keys.
//!
//! ```text
//! browser ──▶ authorize ──▶ page, button ──▶ redirect with code
//! client ───▶ token ─────▶ ledger: codes, grants, refresh tokens ──▶ claims ──▶ keys: RS256
//! client ───▶ discovery, key set
//! gateway ──▶ Identity::check
//! ```
//!
//! - Everything is dated by the provider's clock: moving it makes codes and tokens grow old.
//! - A code is good once, for the redirect address it was asked for with.
//! - How refresh tokens live follows from the knobs at the moment of the refresh.
//! - The user follows from the seed; keys, codes and refresh tokens do not, so that those of one run are nothing worth in
//!   another.
//! - Every map is bounded: what has been forgotten is refused like what never was.
//!
//! What fails at the start is the start; afterwards a request gets an OAuth error, a page, or is hung up on by a knob.

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
    grants::{Grant, GrantTable},
    keys::SigningKeys,
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

/// The largest body that is read.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Seconds an identity token is good: it is read at once.
const IDENTITY_SECONDS: u64 = 300;

/// Access tokens of this process so far: each tells its number, so that no two are equal, not even under standing clocks
/// and the one first key.
static ACCESS_TOKENS: AtomicU64 = AtomicU64::new(0);

/// The identity provider's state.
#[derive(Debug)]
pub struct Identity {
    core: Arc<Core>,
    keys: SigningKeys,
    user: User,
    issued: Arc<Journal<Issued>>,
    exchanges: Arc<Journal<Exchange>>,
    ledger: Mutex<GrantTable>,
    /// For latencies.
    random: Mutex<Random>,
}

/// Who calls an API.
#[derive(Debug, Clone)]
pub struct Caller {
    /// `sub` of the token; for invoicing the login's mail.
    pub subject: String,
    /// Scopes of the token; empty for invoicing.
    pub scopes: Arc<[String]>,
    /// Number of the invoicing company chosen, for invoicing tokens.
    pub invoicing_company: Option<u32>,
}

/// What a bearer token is worth.
#[derive(Debug, Clone)]
pub enum TokenStatus {
    /// Good.
    Valid(Caller),
    /// It was good once.
    Expired,
    /// Never issued here, or revoked.
    Unknown,
}

/// A token that was issued, for those who compare.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Issued {
    /// Number of the grant it belongs to: one login, one grant.
    pub grant: u64,
    /// `access`, `refresh`, `id`, `code`.
    pub kind: &'static str,
    /// The token itself.
    pub token: String,
    /// When it was issued.
    pub at: Ticks,
    /// When it ends, by the knobs of that moment.
    pub expires: Ticks,
    /// When it was redeemed, rotated out or revoked.
    pub used: Option<Ticks>,
}

impl Identity {
    pub(super) fn new(core: &Arc<Core>) -> Result<Self, super::Error> {
        /// "wait" in ASCII: no other stream has this purpose.
        const PURPOSE: u64 = 0x7761_6974;
        let settings = &core.settings;
        let issued = Arc::new(Journal::new(settings.journal_limit));
        let exchanges = Arc::new(Journal::new(settings.journal_limit));
        Ok(Self {
            core: Arc::clone(core),
            keys: SigningKeys::new()?,
            user: User::new(settings),
            ledger: Mutex::new(GrantTable::new(Arc::clone(&issued), Arc::clone(&exchanges))?),
            issued,
            exchanges,
            random: Mutex::new(Random::new(settings.world.seed, PURPOSE)),
        })
    }

    /// What an access token is worth now. Cheap: tokens issued here are remembered, not verified again.
    pub fn check(&self, bearer: &str, now: Ticks) -> TokenStatus {
        let ledger = self.ledger.lock();
        match ledger.access(bearer) {
            None => TokenStatus::Unknown,
            Some((_, expires)) if now >= expires => TokenStatus::Expired,
            Some((grant, _)) => TokenStatus::Valid(Caller {
                subject: self.user.subject(),
                scopes: Arc::clone(&grant.scopes),
                invoicing_company: None,
            }),
        }
    }

    /// TokenResponse are signed with a new key from now on. The old one stays in the key set if `keep_old`.
    ///
    /// # Errors
    /// No key could be made.
    pub fn rotate_keys(&self, keep_old: bool) -> Result<(), super::Error> {
        self.keys.rotate(keep_old)
    }

    /// Ends every grant: refresh tokens are refused as `invalid_grant`, access tokens are unknown.
    pub fn revoke_all(&self, now: Ticks) {
        self.ledger.lock().end(now, |_| true);
    }

    /// An access token (and its refresh token) without the login, for tests of other parts: accounting or payroll scopes.
    pub fn grant(&self, scopes: &[&str]) -> (String, String) {
        let now = self.core.clock.now();
        let knobs = self.core.knobs();
        let scopes: Arc<[String]> = scopes.iter().map(|&scope| scope.to_owned()).collect();
        let (grant, refresh) = {
            let mut ledger = self.ledger.lock();
            let grant = ledger.begin(scopes, None, now);
            let refresh = ledger.refresh_token(&grant, &knobs.identity, now);
            (grant, refresh)
        };
        let (access, _) = self.issue(&grant, None, &knobs.identity, now);
        (access, refresh)
    }

    /// Every token issued, in order, within the journal's limit.
    pub fn issued(&self) -> Vec<Issued> {
        self.issued.all()
    }

    /// Codes and refresh tokens presented since the start, in order, within the journal's limit: `(number, exchange)` from a
    /// number on.
    pub fn exchanges(&self, from: u64, limit: usize) -> Vec<(u64, Exchange)> {
        self.exchanges.from(from, limit)
    }

    /// How many there ever were.
    pub fn exchange_count(&self) -> u64 {
        self.exchanges.count()
    }

    /// Signs and remembers an access token and an identity token. Not to be called with the ledger locked: signing takes
    /// its time, and every API call asks the ledger.
    fn issue(
        &self,
        grant: &Arc<Grant>,
        nonce: Option<&str>,
        knobs: &IdentityKnobs,
        now: Ticks,
    ) -> (String, String) {
        let number = ACCESS_TOKENS.fetch_add(1, Ordering::Relaxed) + 1;
        let facts =
            |until| TokenFacts { number, scopes: &grant.scopes, login: grant.login, from: now, until };
        let ends = [knobs.access_seconds, IDENTITY_SECONDS].map(|seconds| whole_seconds(now, seconds));
        let access = self.keys.sign(&self.user.access(facts(ends[0]), knobs.duplicate_id_claim));
        let identity = self.identity(facts(ends[1]), HashedToken::Access(&access), nonce, knobs.bend_nonce);
        self.ledger.lock().remember(grant, (&access, ends[0]), (&identity, ends[1]), now);
        (access, identity)
    }

    /// Signs the identity token of a callback. Not to be called with the ledger locked, either.
    fn introduce(&self, grant: &Arc<Grant>, code: &str, bend_nonce: bool, now: Ticks) -> String {
        let until = whole_seconds(now, IDENTITY_SECONDS);
        let facts = TokenFacts { number: 0, scopes: &grant.scopes, login: grant.login, from: now, until };
        let token = self.identity(facts, HashedToken::Code(code), grant.nonce.as_deref(), bend_nonce);
        self.ledger.lock().remember_identity(grant, (&token, until), now);
        token
    }

    /// A signed identity token.
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
pub(super) fn router(identity: &Arc<Identity>) -> Router {
    Router::new()
        .route(AUTHORIZE, get(authorize::authorize))
        .route(TOKEN, post(token::token))
        .route(DISCOVERY, get(discovery::discovery))
        .route(KEY_SET, get(discovery::key_set))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::clone(identity))
}

/// The token of an `Authorization` header; clients write the scheme in either case.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Another text that differs in its last character alone.
fn altered(text: &str) -> String {
    let mut altered = text.to_owned();
    let last = altered.pop();
    altered.push(if last == Some('0') { '1' } else { '0' });
    altered
}

/// So many seconds after the second of `now`: what a token says about its end, which must be what it is held to.
fn whole_seconds(now: Ticks, seconds: u64) -> Ticks {
    Ticks(now.seconds().saturating_mul(SECOND)).plus(Duration::from_secs(seconds))
}
