//! Tokens of the invoicing login: opaque texts, issued in pairs of an access and a refresh token.
//!
//! - A token follows from the seed and its number: the same calls give the same tokens.
//! - At most [`MAX_TOKENS`] are kept. The oldest are dropped first and are then unknown, not expired.
//! - Expiry is checked against the provider's clock at each use.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    clock::Ticks,
    identity::{Caller, Issued, TokenStatus},
    journal::Journal,
    knobs::InvoicingKnobs,
    random::{Random, mix},
    recent::Recent,
    settings::Settings,
};

/// Lifetime of a refresh token, seconds.
const REFRESH_SECONDS: u64 = 30 * 86_400;
const MAX_TOKENS: usize = 100_000;
/// The random stream of tokens.
const PURPOSE: u64 = 0x696e_765f_746f_6b65;

/// All tokens that are kept.
#[derive(Debug)]
pub(super) struct InvoicingTokenTable {
    seed: u64,
    mail: String,
    /// Invoicing tokens have no scopes; all callers share this empty list.
    scopes: Arc<[String]>,
    inner: Mutex<TokenList>,
    journal: Journal<Issued>,
}

#[derive(Debug)]
struct TokenList {
    tokens: Recent<InvoicingToken>,
    issued: u64,
    logins: u64,
}

#[derive(Debug)]
struct InvoicingToken {
    /// Whether it is an access token; otherwise a refresh token.
    access: bool,
    /// Number of its login.
    login: u64,
    company: Option<u32>,
    expires: Ticks,
    /// Whether it has selected a company.
    used: bool,
    /// Its number in the journal.
    entry: u64,
}

/// An access token (without `Bearer`) and its refresh token.
#[derive(Debug)]
pub(super) struct IssuedPair {
    pub(super) access: Arc<str>,
    pub(super) refresh: Arc<str>,
}

impl InvoicingTokenTable {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            seed: settings.world.seed,
            mail: settings.invoicing.mail.clone(),
            scopes: Arc::new([]),
            inner: Mutex::new(TokenList { tokens: Recent::new(MAX_TOKENS), issued: 0, logins: 0 }),
            journal: Journal::new(settings.journal_limit),
        }
    }

    /// The tokens of a new login, without a company.
    pub(super) fn login(&self, knobs: &InvoicingKnobs, now: Ticks) -> IssuedPair {
        let mut inner = self.inner.lock();
        let login = inner.logins;
        inner.logins += 1;
        self.pair(&mut inner, login, None, knobs, now)
    }

    /// The tokens for a selected company; `None` if the refresh token is unknown, expired or used up.
    pub(super) fn choose(
        &self,
        refresh: &str,
        company: u32,
        knobs: &InvoicingKnobs,
        now: Ticks,
    ) -> Option<IssuedPair> {
        let mut inner = self.inner.lock();
        let token = inner.tokens.get_mut(refresh)?;
        let spent = knobs.refresh_once && token.used;
        if token.access || token.expires <= now || spent {
            return None;
        }
        token.used = true;
        let (login, entry) = (token.login, token.entry);
        self.journal.update(entry, |issued| issued.used = Some(now));
        Some(self.pair(&mut inner, login, Some(company), knobs, now))
    }

    /// The status of an access token.
    pub(super) fn check(&self, bearer: &str, now: Ticks) -> TokenStatus {
        let inner = self.inner.lock();
        match inner.tokens.get(bearer) {
            Some(token) if token.access && token.expires > now => TokenStatus::Valid(Caller {
                subject: self.mail.clone(),
                scopes: Arc::clone(&self.scopes),
                invoicing_company: token.company,
            }),
            Some(token) if token.access => TokenStatus::Expired,
            _ => TokenStatus::Unknown,
        }
    }

    /// Every token that the journal still has, in order.
    pub(super) fn issued(&self) -> Vec<Issued> {
        self.journal.all()
    }

    fn pair(
        &self,
        inner: &mut TokenList,
        login: u64,
        company: Option<u32>,
        knobs: &InvoicingKnobs,
        now: Ticks,
    ) -> IssuedPair {
        let mut issue = |kind, seconds| {
            let expires = now.plus(Duration::from_secs(seconds));
            let mut random = Random::new(self.seed ^ mix(inner.issued), PURPOSE);
            let text: Arc<str> = format!("{}{}", random.guid().simple(), random.guid().simple()).into();
            inner.issued += 1;
            let issued = Issued { grant: login, kind, token: text.to_string(), at: now, expires, used: None };
            let entry = self.journal.push(issued);
            let access = kind == "access";
            inner
                .tokens
                .insert(&text, InvoicingToken { access, login, company, expires, used: false, entry });
            text
        };
        let access = issue("access", knobs.token_seconds);
        let refresh = issue("refresh", REFRESH_SECONDS);
        IssuedPair { access, refresh }
    }
}
