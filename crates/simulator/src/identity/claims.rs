//! The payloads of tokens: every claim of the document's table, with its type.

use std::sync::Arc;

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use crate::{
    clock::Ticks,
    core::Core,
    random::{Guid, Random},
};

/// Documented scopes of the accounting token.
pub(super) const ACCOUNTING: [&str; 4] =
    ["SVC.ES.NEWPOL.COR.API", "SVC.ES.NEWPOL.ACC.API", "SVC.ES.NEWPOL.MNG.API", "SVC.ES.Webhooks"];
/// Documented scopes of the payroll token.
pub(super) const PAYROLL: [&str; 2] = ["IDInfo", "SVC.ES.EquipoContex"];
/// Documented scopes of both.
pub(super) const COMMON: [&str; 2] = ["offline_access", "openid"];

/// The only user, which follows from the seed.
#[derive(Debug)]
pub(super) struct User {
    core: Arc<Core>,
    subject: Guid,
    /// Number of the customer account.
    account: u64,
    key_user: Guid,
    team_user: u64,
    second_client: u64,
    /// `usr`, `owapp`, `mem` and `oun`.
    others: [Guid; 4],
}

/// What tokens contain about their grant.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenFacts<'a> {
    /// Number of the access token.
    pub(super) number: u64,
    pub(super) scopes: &'a [String],
    /// The chosen tenant, if it is not the one of the settings; empty for none.
    pub(super) tenant: Option<&'a str>,
    /// Time of the login.
    pub(super) login: Ticks,
    /// `nbf`.
    pub(super) from: Ticks,
    /// `exp`.
    pub(super) until: Ticks,
}

/// The token or code beside an identity token, which contains its hash.
#[derive(Debug, Clone, Copy)]
pub(super) enum HashedToken<'a> {
    Access(&'a str),
    Code(&'a str),
}

impl User {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        /// "user" in ASCII.
        const PURPOSE: u64 = 0x7573_6572;
        let mut random = Random::new(core.seed(), PURPOSE);
        Self {
            core: Arc::clone(core),
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

    /// Payload of an access token. It begins with `$id`; with `twice`, that member appears twice.
    pub(super) fn access(&self, facts: TokenFacts<'_>, twice: bool) -> String {
        let [usr, owapp, mem, oun] = self.others;
        let settings = &self.core.settings;
        let mut claims = json!({
            "iss": settings.issuer,
            "aud": format!("{}/resources", settings.issuer),
            "exp": facts.until.seconds(),
            "nbf": facts.from.seconds(),
            "client_id": settings.client.id,
            "scope": facts.scopes,
            "sub": self.subject,
            "auth_time": facts.login.seconds(),
            "idp": "idsrv",
            "svc.es.idcda": format!("{:06}", self.account),
            "usr": usr,
            "owapp": owapp,
            "mem": mem,
            "oun": oun,
            "amr": ["password"],
        });
        let tenant = facts.tenant.unwrap_or(&settings.tenant);
        if !tenant.is_empty() {
            claims["svc.es.clientid"] = json!(tenant);
        }
        if has(facts.scopes, &ACCOUNTING) {
            claims["given_name"] = json!("Ana");
            claims["lang"] = json!("es");
            claims["email"] = json!(settings.invoicing.mail);
            claims["svc.es.modules"] = json!("COR;ACC;MNG;WHK");
            claims["svc.es.keyusercorrelationid"] = json!(self.key_user);
        }
        if has(facts.scopes, &PAYROLL) {
            claims["svc.es.equipouserid"] = json!(self.team_user.to_string());
            claims["svc.es.secondclientid"] = json!(self.second_client.to_string());
        }
        let id = format!("\"$id\":\"{}\",", facts.number).repeat(if twice { 2 } else { 1 });
        claims.to_string().replacen('{', &format!("{{{id}"), 1)
    }

    /// Payload of an identity token that comes with an access token or a code.
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
        let mut claims = json!({
            "iss": self.core.settings.issuer,
            "aud": self.core.settings.client.id,
            "exp": facts.until.seconds(),
            "nbf": facts.from.seconds(),
            "iat": facts.from.seconds(),
            "sub": self.subject,
            "auth_time": facts.login.seconds(),
            "idp": "idsrv",
            "amr": ["password"],
        });
        claims[name] = json!(URL_SAFE_NO_PAD.encode(half));
        if let Some(nonce) = nonce {
            claims["nonce"] = json!(nonce);
        }
        claims.to_string()
    }
}

/// Whether one of these scopes was granted.
fn has(granted: &[String], any: &[&str]) -> bool {
    granted.iter().any(|scope| any.contains(&scope.as_str()))
}
