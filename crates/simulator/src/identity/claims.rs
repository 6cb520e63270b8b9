//! The payloads of tokens: every claim of the document's table, with its type, in a fixed order.
//!
//! JSON is put together here rather than by a map, because the order is part of what clients see and one member can be
//! there twice.

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;
use serde_json::Value;

use crate::{
    clock::Ticks,
    random::{Guid, Random},
    settings::Settings,
};

/// Scopes of the document that tell an accounting token.
pub(super) const ACCOUNTING: [&str; 4] =
    ["SVC.ES.NEWPOL.COR.API", "SVC.ES.NEWPOL.ACC.API", "SVC.ES.NEWPOL.MNG.API", "SVC.ES.Webhooks"];
/// Scopes of the document that tell a payroll token.
pub(super) const PAYROLL: [&str; 2] = ["IDInfo", "SVC.ES.EquipoContex"];
/// Scopes of both.
pub(super) const COMMON: [&str; 2] = ["offline_access", "openid"];

/// The one user there is. Who it is follows from the seed, so that every run has the same one.
#[derive(Debug)]
pub(super) struct User {
    issuer: String,
    client: String,
    tenant: String,
    email: String,
    subject: Guid,
    /// Number of the customer account.
    account: u64,
    key_user: Guid,
    team_user: u64,
    second_client: u64,
    /// `usr`, `owapp`, `mem` and `oun`.
    others: [Guid; 4],
}

/// What a token says about its grant.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenFacts<'a> {
    /// Number of the access token.
    pub(super) number: u64,
    pub(super) scopes: &'a [String],
    /// When the user logged in.
    pub(super) login: Ticks,
    /// When the token begins.
    pub(super) from: Ticks,
    /// When it ends.
    pub(super) until: Ticks,
}

/// What an identity token came with, which it tells the hash of.
#[derive(Debug, Clone, Copy)]
pub(super) enum HashedToken<'a> {
    Access(&'a str),
    Code(&'a str),
}

impl User {
    pub(super) fn new(settings: &Settings) -> Self {
        /// "user" in ASCII: no other stream has this purpose.
        const PURPOSE: u64 = 0x7573_6572;
        let mut random = Random::new(settings.world.seed, PURPOSE);
        Self {
            issuer: settings.issuer.clone(),
            client: settings.client.id.clone(),
            tenant: settings.tenant.clone(),
            email: settings.invoicing.mail.clone(),
            subject: random.guid(),
            account: random.below(1_000_000),
            key_user: random.guid(),
            team_user: random.below(1_000_000),
            second_client: random.below(1_000_000),
            others: [random.guid(), random.guid(), random.guid(), random.guid()],
        }
    }

    /// `sub`.
    pub(super) fn subject(&self) -> String {
        self.subject.to_string()
    }

    /// ClaimsWriter of an access token; `twice` writes its first member `$id` two times.
    pub(super) fn access(&self, facts: TokenFacts<'_>, twice: bool) -> String {
        let (accounting, payroll) = (has(facts.scopes, &ACCOUNTING), has(facts.scopes, &PAYROLL));
        let mut payload = ClaimsWriter::new();
        for _ in 0..if twice { 2 } else { 1 } {
            payload.claim("$id", &facts.number.to_string());
        }
        payload.claim("iss", &self.issuer);
        payload.claim("aud", &format!("{}/resources", self.issuer));
        payload.claim("exp", &facts.until.seconds());
        payload.claim("nbf", &facts.from.seconds());
        payload.claim("client_id", &self.client);
        payload.claim("scope", facts.scopes);
        payload.claim("sub", &self.subject);
        payload.claim("auth_time", &facts.login.seconds());
        payload.claim("idp", "idsrv");
        if accounting {
            payload.claim("given_name", "Ana");
            payload.claim("lang", "es");
            payload.claim("email", &self.email);
            payload.claim("svc.es.modules", "COR;ACC;MNG;WHK");
        }
        payload.claim("svc.es.clientid", &self.tenant);
        payload.claim("svc.es.idcda", &format!("{:06}", self.account));
        if accounting {
            payload.claim("svc.es.keyusercorrelationid", &self.key_user);
        }
        if payroll {
            payload.claim("svc.es.equipouserid", &self.team_user.to_string());
            payload.claim("svc.es.secondclientid", &self.second_client.to_string());
        }
        for (name, value) in ["usr", "owapp", "mem", "oun"].into_iter().zip(&self.others) {
            payload.claim(name, value);
        }
        payload.claim("amr", &["password"]);
        payload.end()
    }

    /// ClaimsWriter of an identity token that came with an access token or a code.
    pub(super) fn identity(
        &self,
        facts: TokenFacts<'_>,
        beside: HashedToken<'_>,
        nonce: Option<&str>,
    ) -> String {
        let (name, text) = match beside {
            HashedToken::Access(token) => ("at_hash", token),
            HashedToken::Code(code) => ("c_hash", code),
        };
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let half = hash.as_ref().get(..16).unwrap_or_default();
        let mut payload = ClaimsWriter::new();
        payload.claim("iss", &self.issuer);
        payload.claim("aud", &self.client);
        payload.claim("exp", &facts.until.seconds());
        payload.claim("nbf", &facts.from.seconds());
        if let Some(nonce) = nonce {
            payload.claim("nonce", nonce);
        }
        payload.claim("iat", &facts.from.seconds());
        payload.claim(name, &URL_SAFE_NO_PAD.encode(half));
        payload.claim("sub", &self.subject);
        payload.claim("auth_time", &facts.login.seconds());
        payload.claim("idp", "idsrv");
        payload.claim("amr", &["password"]);
        payload.end()
    }

    /// Whom the login page greets.
    pub(super) fn name(&self) -> (&str, &str) {
        (&self.email, &self.tenant)
    }
}

/// Whether any of these was granted.
fn has(granted: &[String], any: &[&str]) -> bool {
    granted.iter().any(|scope| any.contains(&scope.as_str()))
}

/// A JSON object in the order it is written.
struct ClaimsWriter(String);

impl ClaimsWriter {
    fn new() -> Self {
        Self(String::with_capacity(1_024))
    }

    fn claim<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&Value::from(name).to_string());
        self.0.push(':');
        // Texts, numbers and lists of texts: none of them can fail to be written.
        self.0.push_str(&serde_json::to_string(value).unwrap_or_default());
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
